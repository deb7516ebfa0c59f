package cpu

import (
	"math"

	"fusec/graph"
)

// A rope turns pairs of elements. It reads its operand through strides: heads come from a projection permuted. The
// sines and cosines of all positions are kept between runs, and made again, from angles in float64, only when the rows
// start elsewhere.
type rope[T float] struct {
	env     *Env
	op      graph.RoPE
	args    []Operand
	result  Operand
	n, d    int // positions, and elements of each
	rows    int // of all batches and heads
	rowsPer int // per item

	cos, sin []T // [n, d/2]
	known    bool
	start    int64     // of the positions that they are for
	divisors []float64 // that they are for, nil for ones

	turning  bool // else the tables are being filled
	src, dst []T
}

var _ = answers.Add(floats(newRoPE[float32], newRoPE[float64]))

func newRoPE[T float](op graph.RoPE, args, results []Operand, env *Env) (Kernel, error) {
	s := args[0].Layout.Shape
	rows, n, d := s.Around(s.Rank()-2, 1)
	k := &rope[T]{env: env, op: op, args: args, result: results[0], n: n, d: d, rows: rows * n,
		rowsPer: max(grain/4/max(d, 1), 1), cos: make([]T, n*d/2), sin: make([]T, n*d/2)}
	if len(args) > 2 {
		k.divisors = make([]float64, d/2)
	}
	return k, nil
}

// Run implements [Kernel].
func (k *rope[T]) Run(args, results []Memory) error {
	if k.rows*k.d == 0 {
		return nil
	}
	start, changed := elems[int64](args[1])[k.args[1].Layout.Offset], !k.known
	if k.divisors != nil {
		changed = k.divide(elems[float64](args[2])) || changed
	}
	if changed || start != k.start {
		k.known, k.start, k.turning = true, start, false
		k.env.Pool.Run(chunks(k.n, k.rowsPer), k)
	}
	k.turning = true
	k.src, k.dst = elems[T](args[0]), numbers[T](results[0], k.result)
	k.env.Pool.Run(chunks(k.rows, k.rowsPer), k)
	k.src, k.dst = nil, nil
	return nil
}

// divide takes over the divisors, and reports whether they are others than those of the last run.
func (k *rope[T]) divide(from []float64) (changed bool) {
	l := &k.args[2].Layout
	for j, old := range k.divisors {
		if v := from[l.Offset+j*l.Stride[0]]; v != old {
			k.divisors[j], changed = v, true
		}
	}
	return changed
}

// Do runs one item; see pool.Task.
func (k *rope[T]) Do(_, item int) {
	first := item * k.rowsPer
	if !k.turning {
		k.fill(first, min(first+k.rowsPer, k.n))
		return
	}
	for row := first; row < min(first+k.rowsPer, k.rows); row++ {
		k.turn(row)
	}
}

// fill makes the table's rows from first up to end.
func (k *rope[T]) fill(first, end int) {
	h := k.d / 2
	for i := first; i < end; i++ {
		for j := range h {
			divisor := 1.0
			if k.divisors != nil {
				divisor = k.divisors[j]
			}
			sin, cos := math.Sincos(k.op.Angle(k.start+int64(i), j, k.d, divisor))
			if k.op.Inverse {
				sin = -sin
			}
			k.cos[i*h+j], k.sin[i*h+j] = T(cos), T(sin)
		}
	}
}

// turn turns the pairs of one row.
func (k *rope[T]) turn(row int) {
	h := k.d / 2
	at := row % k.n * h
	cos, sin := k.cos[at:][:h], k.sin[at:][:h]
	dst, src := k.dst[row*k.d:][:k.d], k.src[k.from(row):]
	stride := k.args[0].Layout.Stride[k.args[0].Layout.Shape.Rank()-1]
	second, step := k.op.Pairs(k.d)
	if stride == 1 && step == 1 {
		x, y, low, high := src[:h], src[h:][:h], dst[:h], dst[h:][:h]
		for j, c := range cos {
			u, v, s := x[j], y[j], sin[j]
			low[j], high[j] = u*c-v*s, v*c+u*s
		}
		return
	}
	for j, c := range cos {
		u, v, s := src[j*step*stride], src[(second+j*step)*stride], sin[j]
		dst[j*step], dst[second+j*step] = u*c-v*s, v*c+u*s
	}
}

// from is where a row of the operand begins.
func (k *rope[T]) from(row int) int {
	l := &k.args[0].Layout
	at := l.Offset
	for a := l.Shape.Rank() - 2; a >= 0; a-- {
		at += row % l.Shape.At(a) * l.Stride[a]
		row /= l.Shape.At(a)
	}
	return at
}

// bytes is the memory of the tables.
func (k *rope[T]) bytes() int64 { return int64(len(k.cos)+len(k.sin)) * int64(dtypeOf[T]().Size()) }
