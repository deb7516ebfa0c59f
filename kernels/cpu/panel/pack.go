package panel

import (
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// A Packer arranges weights [k, n] in panels; see [graph.PackWeights].
type Packer struct {
	k, n       int
	row, col   int // distances of the weights' rows and columns, in elements
	from, to   graph.DType
	beside     int // rows of a column that stand side by side, in panels of whole bytes
	pool       *pool.Pool
	src, panel []byte
}

// NewPacker is for weights of type from [k, n] that op packs, whose panels have the type to.
func NewPacker(k, n int, op graph.PackWeights, from, to graph.DType, p *pool.Pool) *Packer {
	q := &Packer{k: k, n: n, row: n, col: 1, from: from, to: to, beside: 1, pool: p}
	switch {
	case op.Deep:
		q.beside = steps
	case op.Quads:
		q.beside = 4
	}
	if op.Trans {
		q.row, q.col = 1, k
	}
	return q
}

// Pack fills the panels.
func (q *Packer) Pack(src, panels []byte) {
	q.src, q.panel = src, panels
	q.pool.Run((q.n+columns-1)/columns, q)
	q.src, q.panel = nil, nil
}

// Do packs a panel; see pool.Task.
func (q *Packer) Do(_, panel int) {
	rows := (q.k + steps - 1) / steps * steps
	bytes := int(q.to.Span(int64(rows * columns)))
	to := q.panel[panel*bytes:][:bytes]
	clear(to)
	first, cols := panel*columns, min(columns, q.n-panel*columns)
	if q.to == graph.I4 {
		for j := range cols {
			at := (first + j) * q.col
			for i := range q.k {
				graph.SetNibble(to, (i/steps*columns+j)*steps+i%steps, graph.Nibble(q.src, at+i*q.row))
			}
		}
		return
	}
	switch {
	case q.from.Size() == 1:
		fill(q, to, q.src, first, cols, func(v uint8) uint8 { return v })
	case q.from != graph.F32:
		fill(q, units[uint16](to), units[uint16](q.src), first, cols, func(v uint16) uint16 { return v })
	case q.to == graph.BF16:
		fill(q, units[uint16](to), units[float32](q.src), first, cols, graph.BF16FromFloat32)
	default:
		fill(q, units[uint16](to), units[float32](q.src), first, cols, graph.F16FromFloat32)
	}
}

// at is where row i of column j of a panel of whole bytes stands.
func (q *Packer) at(i, j int) int { return (i/q.beside*columns+j)*q.beside + i%q.beside }

func units[E any](b []byte) []E {
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(E))))
}

// fill copies a panel's columns in squares, so that lines stay in the cache whichever way the weights lie.
func fill[E, S any](q *Packer, to []E, src []S, first, cols int, convert func(S) E) {
	for from := 0; from < q.k; from += columns {
		end := min(from+columns, q.k)
		for j := range cols {
			at := (first + j) * q.col
			for i := from; i < end; i++ {
				to[q.at(i, j)] = convert(src[at+i*q.row])
			}
		}
	}
}
