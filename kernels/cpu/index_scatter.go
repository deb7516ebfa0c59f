package cpu

import (
	"fmt"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// A number is an element type that can be added.
type number interface {
	float32 | float64 | graph.Integer
}

// adder is the addition of a slice to another.
func adder[T number]() func(acc, x []T) {
	var add any
	switch any(*new(T)).(type) {
	case float32:
		add = vec.F32().AddTo
	case float64:
		add = vec.F64().AddTo
	default:
		return addInts[T]
	}
	return add.(func(acc, x []T))
}

func addInts[T number](acc, x []T) {
	for i, v := range x {
		acc[i] += v
	}
}

// A scatterer adds rows: result [outer, dim, inner] of updates [outer, indices, inner]. The indices are sorted by the
// row they name, keeping their order, so that each row of the result is summed by one worker in the order of the
// indices.
type scatterer[T number] struct {
	env     *Env
	indices indexOperand
	x, y    Operand
	add     func(acc, x []T)
	outer   int
	inner   int
	first   []int // by row of the axis: where its indices start in order
	order   []int // places of indices, sorted
	group   int   // rows per item
	width   int   // elements of a row per item
	parts   int

	src, dst []T
}

var _ = answers.Add(own(newScatterAdd))

func newScatterAdd(op graph.ScatterAdd, args, results []Operand, env *Env) (Kernel, error) {
	switch d := args[1].DType; {
	case d == graph.F32:
		return makeScatterAdd[float32](op, args, results, env), nil
	case d == graph.F64:
		return makeScatterAdd[float64](op, args, results, env), nil
	case d.IsInt(): // unsigned ones have the sums of signed ones
		return bySize(d, makeScatterAdd[int8], makeScatterAdd[int16], makeScatterAdd[int32], makeScatterAdd[int64])(op, args, results,
			env), nil
	default:
		return nil, fmt.Errorf("scatter_add: the CPU has no sum of %v", d)
	}
}

func makeScatterAdd[T number](op graph.ScatterAdd, args, results []Operand, env *Env) Kernel {
	outer, _, inner := results[0].Layout.Shape.Around(op.Axis, 1)
	count := args[0].Layout.Shape.Elems()
	k := &scatterer[T]{env: env, indices: newIndexOperand(op, 0, args[0], op.Size), x: args[1], y: results[0],
		add: adder[T](), outer: outer, inner: inner, first: make([]int, op.Size+1), order: make([]int, count)}
	k.width = min(max(inner, 1), 1<<12)
	k.parts = chunks(inner, k.width)
	k.group = max(grain/(k.width*max(count/max(op.Size, 1), 1)), 1)
	return k
}

// Run implements [Kernel].
func (k *scatterer[T]) Run(args, results []Memory) error {
	if err := k.indices.read(args); err != nil {
		return err
	}
	rows := k.outer * k.indices.dim
	if rows*k.inner == 0 {
		return nil
	}
	k.sort()
	k.src = elems[T](args[1])[k.x.Layout.Offset:]
	k.dst = elems[T](results[0])[k.y.Layout.Offset:]
	k.env.Pool.Run(chunks(rows, k.group)*k.parts, k)
	k.src, k.dst = nil, nil
	return nil
}

// sort counts the indices of each row and lists them by row.
func (k *scatterer[T]) sort() {
	clear(k.first)
	for _, j := range k.indices.at {
		k.first[j]++
	}
	sum := 0
	for j, n := range k.first {
		sum += n
		k.first[j] = sum
	}
	for i := len(k.indices.at) - 1; i >= 0; i-- {
		j := k.indices.at[i]
		k.first[j]--
		k.order[k.first[j]] = i
	}
}

// Do runs one item; see pool.Task.
func (k *scatterer[T]) Do(_, item int) {
	col := item % k.parts * k.width
	width := min(k.width, k.inner-col)
	lo := item / k.parts * k.group
	dim, count := k.indices.dim, len(k.order)
	for row := lo; row < min(lo+k.group, k.outer*dim); row++ {
		dst := k.dst[row*k.inner+col:][:width]
		src := k.src[row/dim*count*k.inner:]
		at := k.order[k.first[row%dim]:k.first[row%dim+1]]
		if k.inner == 1 {
			var sum T
			for _, i := range at {
				sum += src[i]
			}
			dst[0] = sum
			continue
		}
		clear(dst)
		for _, i := range at {
			k.add(dst, src[i*k.inner+col:][:width])
		}
	}
}

// bytes is the memory of the indices, sorted and not.
func (k *scatterer[T]) bytes() int64 {
	return int64(8 * (len(k.indices.at) + len(k.first) + len(k.order)))
}
