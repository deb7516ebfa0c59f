package cpu

import (
	"fmt"

	"fusec/graph"
)

// indexOperand is an operand of indices into an axis.
type indexOperand struct {
	arg  int
	from Operand
	op   graph.Op
	dim  int   // elements of the axis
	at   []int // the indices of the run in progress
}

func newIndexOperand(op graph.Op, arg int, from Operand, dim int) indexOperand {
	return indexOperand{arg: arg, from: from, op: op, dim: dim, at: make([]int, from.Layout.Shape.Elems())}
}

// read takes the indices over and checks their range.
func (x *indexOperand) read(args []Memory) error {
	m := args[x.arg]
	bad := -1
	if x.from.DType == graph.I32 {
		bad = readIndices(x.at, elems[int32](m)[x.from.Layout.Offset:], x.dim)
	} else {
		bad = readIndices(x.at, elems[int64](m)[x.from.Layout.Offset:], x.dim)
	}
	if bad >= 0 {
		if x.dim == 0 {
			return fmt.Errorf("%s: index %d, element %d of the indices, into an axis of no elements", x.op.OpName(), x.at[bad], bad)
		}
		return fmt.Errorf("%s: index %d, element %d of the indices, is outside 0..%d", x.op.OpName(), x.at[bad], bad, x.dim-1)
	}
	return nil
}

// readIndices converts indices and returns the place of the first that is out of range, or −1.
func readIndices[I int32 | int64](dst []int, src []I, dim int) int {
	for i := range dst {
		j := int64(src[i])
		dst[i] = int(j)
		if uint64(j) >= uint64(dim) {
			return i
		}
	}
	return -1
}

// A gatherer copies rows: result [outer, indices, inner] of x [outer, dim, inner].
type gatherer[E unit] struct {
	env     *Env
	indices indexOperand
	x, y    Operand
	count   int // indices
	rows    int // outer·indices
	inner   int
	group   int // rows per item
	width   int // elements of a row per item
	parts   int

	src, dst []E
}

var _ = answers.Add(moves(newGather))

func newGather(op graph.Gather, args, results []Operand, env *Env) Kernel {
	return bySize(args[0].DType, makeGather[uint8], makeGather[uint16], makeGather[uint32], makeGather[uint64])(op, args, results, env)
}

func makeGather[E unit](op graph.Gather, args, results []Operand, env *Env) Kernel {
	outer, dim, inner := args[0].Layout.Shape.Around(op.Axis, 1)
	k := &gatherer[E]{env: env, indices: newIndexOperand(op, 1, args[1], dim), x: args[0], y: results[0],
		count: args[1].Layout.Shape.Elems(), inner: inner}
	k.rows = outer * k.count
	k.group = max(grain/max(inner, 1), 1)
	k.width = min(max(inner, 1), grain)
	k.parts = chunks(inner, k.width)
	return k
}

// Run implements [Kernel].
func (k *gatherer[E]) Run(args, results []Memory) error {
	if err := k.indices.read(args); err != nil {
		return err
	}
	if k.rows*k.inner == 0 {
		return nil
	}
	k.src = elems[E](args[0])[k.x.Layout.Offset:]
	k.dst = elems[E](results[0])[k.y.Layout.Offset:]
	k.env.Pool.Run(chunks(k.rows, k.group)*k.parts, k)
	k.src, k.dst = nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *gatherer[E]) Do(_, item int) {
	col := item % k.parts * k.width
	width := min(k.width, k.inner-col)
	first := item / k.parts * k.group
	outer, at := first/k.count, first%k.count
	for row := first; row < min(first+k.group, k.rows); {
		n := min(k.count-at, first+k.group-row, k.rows-row)
		dst := k.dst[row*k.inner+col:]
		src := k.src[outer*k.indices.dim*k.inner+col:]
		k.pick(dst, src, k.indices.at[at:at+n], width)
		row += n
		outer, at = outer+1, 0
	}
}

// pick copies the first width elements of the rows at the indices.
func (k *gatherer[E]) pick(dst, src []E, at []int, width int) {
	if k.inner == 1 {
		for i, j := range at {
			dst[i] = src[j]
		}
		return
	}
	for i, j := range at {
		copy(dst[i*k.inner:][:width], src[j*k.inner:][:width])
	}
}

// bytes is the memory of the indices.
func (k *gatherer[E]) bytes() int64 { return int64(8 * len(k.indices.at)) }
