package cpu

import (
	"math"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// A moments takes the mean and the variance of what a reduction reads in one pass. Of each block it has the mean and the sum of
// the squared deviations from that, which are combined two by two (T. Chan, G. Golub and R. LeVeque, "Algorithms for computing
// the sample variance", 1983). Within a block of rows, deviations are from the first row, which is near the mean if anything is.
//
// The sum that it belongs to has the means.
type moments[T float] struct {
	partial []T // squared deviations, [blocks][kept·inner]
	total   []T // variances, [kept·inner]

	first, deviation [][]T // of each worker, a segment

	sub, add2 func(dst, a, b []T)
	fma       func(dst, a, b, c []T)
	sum       func(x []T) T
	squares   func(x []T, c T) T
}

func newMoments[T float]() *moments[T] {
	k := vec.Of[T]()
	return &moments[T]{sub: k.BinaryVV(graph.Sub), add2: k.BinaryVV(graph.Add), fma: k.FMAVVV(), sum: k.Reduce(vec.SumOf),
		squares: k.SumSquaredDeviations()}
}

// room makes room for as many elements as the sum has, and for the segments of so many workers.
func (m *moments[T]) room(r *reduction[T], workers int) {
	m.total = make([]T, r.kept*r.inner/r.fold)
	m.partial = m.total
	if r.blocks > 1 || r.fold > 1 {
		m.partial = make([]T, r.blocks*r.kept*r.inner)
	}
	for range workers {
		m.first, m.deviation = append(m.first, make([]T, r.width)), append(m.deviation, make([]T, r.width))
	}
}

// add adds a row to sums and squares of deviations from the first row.
func (m *moments[T]) add(worker int, sums, squares, x []T, first bool) {
	from, d := m.first[worker][:len(x)], m.deviation[worker][:len(x)]
	if first {
		for i, v := range x {
			if from[i] = v; math.IsInf(float64(v), 0) {
				from[i] = 0 // so that the mean is infinite, too
			}
		}
	}
	m.sub(d, x, from)
	m.add2(sums, sums, d)
	m.fma(squares, d, d, squares)
}

// close turns the sums of n rows into means, and the squares into those of deviations from the means.
func (m *moments[T]) close(worker int, sums, squares []T, n int) {
	from := m.first[worker]
	for i, s := range sums {
		mean := float64(s) / float64(n)
		sums[i] = T(float64(from[i]) + mean)
		squares[i] = T(max(float64(squares[i])-mean*float64(s), 0))
	}
}

// addRow adds elements of a row to the mean and the squared deviations of those before.
func (m *moments[T]) addRow(mean, squares *T, x []T, before int) {
	n := len(x)
	if n == 0 {
		return
	}
	of := m.sum(x) / T(n)
	combine(mean, squares, of, m.squares(x, of), before, n)
}

// combine joins the mean and the squared deviations of n numbers to those of so many before.
func combine[T float](mean, squares *T, mean2, squares2 T, before, n int) {
	if before == 0 {
		*mean, *squares = mean2, squares2
		return
	}
	a, b, all := float64(before), float64(n), float64(before+n)
	d := float64(mean2) - float64(*mean)
	*squares = T(float64(*squares) + float64(squares2) + d*d*a*b/all)
	*mean = T((a*float64(*mean) + b*float64(mean2)) / all)
}

// joinBlocks combines elements lo to hi of the blocks.
func (m *moments[T]) joinBlocks(s *sum[T], r *reduction[T], lo, hi int) {
	n := r.kept * r.inner
	for b, other := range pairs(r.blocks) {
		rows := (other - b) * r.block
		more := min(rows, r.count-other*r.block)
		to, from := b*n, other*n
		for i := lo; i < hi; i++ {
			combine(&s.partial[to+i], &m.partial[to+i], s.partial[from+i], m.partial[from+i], rows, more)
		}
	}
	if r.fold == 1 {
		copy(s.total[lo:hi], s.partial[lo:hi])
		m.finish(lo, hi, m.partial[lo:hi], r.count)
	}
}

// joinFold combines the elements of kept row k that belong to the same n reduced values.
func (m *moments[T]) joinFold(s *sum[T], r *reduction[T], k, n int) {
	at := k * r.inner
	for j, other := range pairs(r.fold) {
		rows, more := (other-j)*r.count, min(other-j, r.fold-other)*r.count
		to, from := at+j*n, at+other*n
		for i := range n {
			combine(&s.partial[to+i], &m.partial[to+i], s.partial[from+i], m.partial[from+i], rows, more)
		}
	}
	copy(s.total[k*n:][:n], s.partial[at:])
	m.finish(k*n, (k+1)*n, m.partial[at:][:n], r.count*r.fold)
}

// finish writes variances lo to hi, of n numbers each.
func (m *moments[T]) finish(lo, hi int, squares []T, n int) {
	for i, q := range squares[:hi-lo] {
		m.total[lo+i] = T(float64(q) / float64(n))
	}
}
