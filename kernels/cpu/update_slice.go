package cpu

import (
	"unsafe"

	"fusec/graph"
)

// A sliceUpdater copies its operand to the result and writes the update over part of it. If the result is in the
// operand's own memory, it writes that part alone and keeps the old contents until the next run, for [Undo].
type sliceUpdater struct {
	whole, write  Kernel
	save, restore Kernel        // between the part and saved
	part          graph.Type    // of the update
	saved         *graph.Tensor // of that type, once a run was in place
	startAt       int           // index of the start among the elements of its operand

	start  [1]int64 // of the last run: the operand's memory may be another value's by the time of an undo
	args   [2]Memory
	result [1]Memory
	inside [1]Memory // saved
	valid  bool
}

var _ = answers.Add(moves(newUpdateSlice))

// newUpdateSlice writes an operand over part of an axis of another.
func newUpdateSlice(op graph.UpdateSlice, args, results []Operand, env *Env) Kernel {
	x, u, y := args[0], args[1], results[0]
	k := &sliceUpdater{part: u.Type(), startAt: args[2].Layout.Offset}
	size := u.Layout.Shape.At(op.Axis)
	into := y
	into.Layout = y.Layout.Slice(op.Axis, 0, size, 1)
	saved := Contiguous(u.Type())
	slides := func(inDst bool) *slide {
		return &slide{op: op, arg: 1, axis: op.Axis, dim: y.Layout.Shape.At(op.Axis), size: size, step: 1,
			stride: y.Layout.Stride[op.Axis], inDst: inDst}
	}
	k.whole = newMove(y, env, []part{copyPart(0, x, y)})
	k.write = newMover(y, env, []part{copyPart(0, u, into)}, slides(true), nil)
	k.save = newMover(saved, env, []part{copyPart(0, into, saved)}, slides(false), nil)
	k.restore = newMover(y, env, []part{copyPart(0, saved, into)}, slides(true), nil)
	k.args[1] = memoryOf(k.start[:])
	return k
}

// Run implements [Kernel]. A run in place that fails leaves the operand as it was.
func (k *sliceUpdater) Run(args, results []Memory) error {
	k.valid = false
	k.start[0] = elems[int64](args[2])[k.startAt]
	k.result[0] = results[0]
	if unsafe.SliceData(args[0]) != unsafe.SliceData(results[0]) {
		if err := k.whole.Run(args[:1], results); err != nil {
			return err
		}
		k.args[0] = args[1]
		return k.write.Run(k.args[:], results)
	}
	if k.saved == nil {
		k.saved = graph.NewTensor(k.part)
		k.inside[0] = MemoryOf(k.saved)
	}
	k.args[0] = results[0]
	if err := k.save.Run(k.args[:], k.inside[:]); err != nil { // a start that does not fit
		return err
	}
	k.valid = true
	written := false
	defer func() {
		if !written {
			k.undo()
		}
	}()
	k.args[0] = args[1]
	err := k.write.Run(k.args[:], k.result[:])
	written = err == nil
	return err
}

// undo puts back what stood in the part. The start fitted when the part was saved.
func (k *sliceUpdater) undo() {
	if !k.valid {
		return
	}
	k.valid = false
	k.args[0] = k.inside[0]
	if err := k.restore.Run(k.args[:], k.result[:]); err != nil {
		panic(err)
	}
}

func (k *sliceUpdater) bytes() int64 {
	if k.saved == nil {
		return 0
	}
	return k.part.Bytes()
}
