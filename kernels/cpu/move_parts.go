package cpu

import (
	"fmt"

	"fusec/graph"
)

// A part is a box that comes from one operand.
type part struct {
	arg int
	box box
}

// copyPart copies all of an operand to a place of the same shape.
func copyPart(arg int, from, to Operand) part { return part{arg, newBox(from.Layout, to.Layout)} }

// A slide is a start that an operand gives at run time: all boxes move along an axis by it.
type slide struct {
	op     graph.Op
	arg    int // the operand, an I64 scalar
	offset int // where it stands
	axis   int
	dim    int // elements of the axis
	size   int // how many are taken
	step   int // how far apart
	stride int // of the axis
	inDst  bool
}

// at reads the start and checks its range.
func (s *slide) at(args []Memory) (int, error) {
	start := elems[int64](args[s.arg])[s.offset]
	last := s.dim - max(s.size-1, 0)*s.step // the start lies below it, or at it if nothing is taken
	if s.size > 0 {
		last--
	}
	if start < 0 || start > int64(last) {
		return 0, fmt.Errorf("%s from %d: %d elements, %d apart, do not fit into dimension %d of %d elements",
			s.op.OpName(), start, s.size, s.step, s.axis, s.dim)
	}
	return int(start), nil
}

// A mover fills a result with a value, if it has one, and copies boxes into it.
type mover[E unit] struct {
	env    *Env
	parts  []part
	result Operand
	n      int    // elements of the result
	items  int    // of all parts
	slide  *slide // or nil
	fills  bool
	value  E

	args               []Memory
	dst                []E
	srcShift, dstShift int
	filling            bool
}

// newMove makes the kernel that copies parts.
func newMove(result Operand, env *Env, parts []part) Kernel {
	return newMover(result, env, parts, nil, nil)
}

// newMover makes the kernel that fills with a value, unless it is nil, and copies parts, which slide if asked.
func newMover(result Operand, env *Env, parts []part, s *slide, value *graph.Tensor) Kernel {
	return bySize(result.DType, makeMover[uint8], makeMover[uint16], makeMover[uint32], makeMover[uint64])(result, env, parts, s,
		value)
}

func makeMover[E unit](result Operand, env *Env, parts []part, s *slide, value *graph.Tensor) Kernel {
	k := &mover[E]{env: env, parts: parts, result: result, n: result.Layout.Shape.Elems(), slide: s}
	for _, p := range parts {
		k.items += p.box.items
	}
	if value != nil {
		m := MemoryOf(value)
		k.fills, k.value = true, elems[E](m)[0]
	}
	return k
}

// fillGrain is the number of elements of a result that are filled at once.
const fillGrain = 4 * grain

// Run implements [Kernel].
func (k *mover[E]) Run(args, results []Memory) error {
	k.srcShift, k.dstShift = 0, 0
	if s := k.slide; s != nil {
		start, err := s.at(args)
		if err != nil {
			return err
		}
		if s.inDst {
			k.dstShift = start * s.stride
		} else {
			k.srcShift = start * s.stride
		}
	}
	k.args, k.dst = args, elems[E](results[0])
	if k.fills && k.n > 0 {
		k.filling = true
		k.env.Pool.Run(chunks(k.n, fillGrain), k)
		k.filling = false
	}
	k.env.Pool.Run(k.items, k)
	k.args, k.dst = nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *mover[E]) Do(_, item int) {
	if k.filling {
		at := k.result.Layout.Offset
		fillUnits(k.dst[at+item*fillGrain:at+min((item+1)*fillGrain, k.n)], k.value)
		return
	}
	for i := range k.parts {
		p := &k.parts[i]
		if item < p.box.items {
			copyItem(&p.box, item, k.dst, elems[E](k.args[p.arg]), k.dstShift, k.srcShift)
			return
		}
		item -= p.box.items
	}
}

var _ = answers.Add(moves(newSlice)).Add(moves(newUnslice)).Add(moves(newConcat)).Add(moves(newPad))

// newSlice takes part of an axis from where an operand says.
func newSlice(op graph.Slice, args, results []Operand, env *Env) Kernel {
	x, y := args[0], results[0]
	s := &slide{op: op, arg: 1, offset: args[1].Layout.Offset, axis: op.Axis, dim: x.Layout.Shape.At(op.Axis),
		size: op.Size, step: op.Step, stride: x.Layout.Stride[op.Axis]}
	x.Layout = x.Layout.Slice(op.Axis, 0, op.Size, op.Step)
	return newMover(y, env, []part{copyPart(0, x, y)}, s, nil)
}

// newUnslice puts the operand into zeros where another operand says.
func newUnslice(op graph.Unslice, args, results []Operand, env *Env) Kernel {
	x, y := args[0], results[0]
	s := &slide{op: op, arg: 1, offset: args[1].Layout.Offset, axis: op.Axis, dim: op.Size,
		size: x.Layout.Shape.At(op.Axis), step: op.Step, stride: y.Layout.Stride[op.Axis], inDst: true}
	to := y
	to.Layout = to.Layout.Slice(op.Axis, 0, s.size, op.Step)
	return newMover(y, env, []part{copyPart(0, x, to)}, s, graph.Scalar(y.DType, 0))
}

// newConcat puts the operands side by side, except for those that are in their places already.
func newConcat(op graph.Concat, args, results []Operand, env *Env) Kernel {
	y := results[0]
	var parts []part
	start := 0
	for i, a := range args {
		to, size := y, a.Layout.Shape.At(op.Axis)
		to.Layout = to.Layout.Slice(op.Axis, start, size, 1)
		if !a.Within || a.Layout != to.Layout {
			parts = append(parts, copyPart(i, a, to))
		}
		start += size
	}
	return newMove(y, env, parts)
}

// newPad puts the operand into the middle of a value.
func newPad(op graph.Pad, args, results []Operand, env *Env) Kernel {
	to := results[0]
	for i := range op.Lo.Len() {
		to.Layout = to.Layout.Slice(i, op.Lo.At(i), args[0].Layout.Shape.At(i), 1)
	}
	return newMover(results[0], env, []part{copyPart(0, args[0], to)}, nil, graph.Scalar(results[0].DType, op.Value))
}
