package ref

import (
	"fmt"

	"fusec/graph"
)

// An index tells for each element of one tensor the number of an element of another, or −1 for none. All operations
// that move elements are such an index, read one way (pick) or the other (spread).

// pick makes a value of type t whose element i is element index[i] of x, or 0.
func pick(x Value, t graph.Type, index []int) Value {
	v := zeros(t)
	v.Mag = make([]float64, v.Len())
	for i, j := range index {
		if j >= 0 {
			v.move(i, x, j)
		}
	}
	return v
}

// move sets element i of v to element j of x.
func (v Value) move(i int, x Value, j int) {
	if v.F != nil {
		v.F[i] = x.F[j]
	} else {
		v.I[i] = x.I[j]
	}
	v.Mag[i] = x.mag(j)
}

// spread makes a value of type t whose element j is the sum of the elements i of x with index[i] = j, in the order of
// i. A sum of one term is exact.
func spread(x Value, t graph.Type, index []int) Value {
	v := zeros(t)
	v.Mag = make([]float64, v.Len())
	terms := make([]int, v.Len())
	sum := make([]float64, v.Len())
	for i, j := range index {
		if j < 0 {
			continue
		}
		terms[j]++
		v.Mag[j] += x.mag(i)
		if v.F != nil {
			v.F[j] += x.F[i]
			sum[j] += size(x.F[i])
			continue
		}
		v.I[j] = t.DType.Wrap(v.I[j] + x.I[i])
		if t.DType == graph.Bool {
			v.I[j] = min(v.I[j], 1)
		}
	}
	for j, n := range terms {
		if n <= 1 {
			sum[j] = 0
		}
		if v.F != nil {
			v.Mag[j] = settle(v.F[j], sum[j], v.Mag[j], t.DType)
		}
	}
	return v
}

// indexOf builds the index of a tensor of shape s.
func indexOf(s graph.Shape, from func(at []int) int) []int {
	index := make([]int, s.Elems())
	each(s, func(i int, at []int) { index[i] = from(at) })
	return index
}

var _ = formulas.Add(moved(func(op graph.Transpose, a []Value, t graph.Type) (Value, error) {
	return pick(a[0], t, transposeIndex(op, a[0].Type.Shape, t.Shape)), nil
}))

func transposeIndex(op graph.Transpose, in, out graph.Shape) []int {
	src := make([]int, in.Rank())
	return indexOf(out, func(at []int) int {
		for k, i := range at {
			src[op.Perm.At(k)] = i
		}
		return offset(in, src)
	})
}

var _ = formulas.Add(moved(func(_ graph.Broadcast, a []Value, t graph.Type) (Value, error) {
	return pick(a[0], t, broadcastIndex(a[0].Type.Shape, t.Shape)), nil
}))

func broadcastIndex(in, out graph.Shape) []int {
	lead := out.Rank() - in.Rank()
	src := make([]int, in.Rank())
	return indexOf(out, func(at []int) int {
		for k := range src {
			src[k] = at[lead+k]
			if in.At(k) == 1 {
				src[k] = 0
			}
		}
		return offset(in, src)
	})
}

// stepIndex leads from the elements of a part of an axis to those of the whole.
func stepIndex(axis, step int, start int64, part, whole graph.Shape) ([]int, error) {
	size, dim := int64(part.At(axis)), int64(whole.At(axis))
	last := dim - max(size-1, 0)*int64(step) // start must lie below it, or at dim if nothing is taken
	if start < 0 || start > dim || size > 0 && start >= last {
		return nil, fmt.Errorf("start %d is out of range: %d elements, %d apart, of an axis of %d", start, size, step, dim)
	}
	src := make([]int, part.Rank())
	return indexOf(part, func(at []int) int {
		copy(src, at)
		src[axis] = int(start) + at[axis]*step
		return offset(whole, src)
	}), nil
}

var _ = formulas.
	Add(moved(func(op graph.Slice, a []Value, t graph.Type) (Value, error) { return slice(op, a[0], a[1], t) })).
	Add(moved(func(op graph.Unslice, a []Value, t graph.Type) (Value, error) { return unslice(op, a[0], a[1], t) })).
	Add(moved(func(op graph.Concat, a []Value, t graph.Type) (Value, error) { return concat(op, a, t), nil })).
	Add(moved(func(op graph.Pad, a []Value, t graph.Type) (Value, error) { return pad(op, a[0], t), nil })).
	Add(moved(func(op graph.Gather, a []Value, t graph.Type) (Value, error) { return gather(op, a[0], a[1], t) }))

func slice(op graph.Slice, x, start Value, t graph.Type) (Value, error) {
	index, err := stepIndex(op.Axis, op.Step, start.I[0], t.Shape, x.Type.Shape)
	if err != nil {
		return Value{}, err
	}
	return pick(x, t, index).doubt(start), nil
}

func unslice(op graph.Unslice, x, start Value, t graph.Type) (Value, error) {
	index, err := stepIndex(op.Axis, op.Step, start.I[0], x.Type.Shape, t.Shape)
	if err != nil {
		return Value{}, err
	}
	return spread(x, t, index).doubt(start), nil
}

var _ = formulas.Add(moved(func(op graph.UpdateSlice, a []Value, _ graph.Type) (Value, error) {
	return updateSlice(op, a[0], a[1], a[2])
}))

func updateSlice(op graph.UpdateSlice, x, update, start Value) (Value, error) {
	index, err := stepIndex(op.Axis, 1, start.I[0], update.Type.Shape, x.Type.Shape)
	if err != nil {
		return Value{}, err
	}
	v := zeros(x.Type)
	v.Mag = make([]float64, v.Len())
	for i := range v.Len() {
		v.move(i, x, i)
	}
	for i, j := range index {
		v.move(j, update, i)
	}
	return v.doubt(start), nil
}

func concat(op graph.Concat, args []Value, t graph.Type) Value {
	v := zeros(t)
	v.Mag = make([]float64, v.Len())
	start := 0
	for _, x := range args {
		each(x.Type.Shape, func(j int, at []int) {
			dst := append([]int(nil), at...)
			dst[op.Axis] += start
			v.move(offset(t.Shape, dst), x, j)
		})
		start += x.Type.Shape.At(op.Axis)
	}
	return v
}

func pad(op graph.Pad, x Value, t graph.Type) Value {
	in := x.Type.Shape
	src := make([]int, in.Rank())
	index := indexOf(t.Shape, func(at []int) int {
		for k := range src {
			src[k] = at[k] - op.Lo.At(k)
			if src[k] < 0 || src[k] >= in.At(k) {
				return -1
			}
		}
		return offset(in, src)
	})
	v := pick(x, t, index)
	fill := FromTensor(graph.Scalar(t.DType, op.Value))
	for i, j := range index {
		switch {
		case j >= 0:
		case v.F != nil:
			v.F[i] = fill.F[0]
		default:
			v.I[i] = fill.I[0]
		}
	}
	return v
}

var _ = formulas.Add(moved(func(op graph.Im2Col, a []Value, t graph.Type) (Value, error) {
	return pick(a[0], t, im2colIndex(op, a[0].Type.Shape, t.Shape)), nil
}))

var _ = formulas.Add(moved(func(op graph.Col2Im, a []Value, t graph.Type) (Value, error) {
	patches := graph.Im2Col{Kernel: op.Kernel, Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad}
	return spread(a[0], t, im2colIndex(patches, t.Shape, a[0].Type.Shape)), nil
}))

// im2colIndex leads from patches [N,OH,OW,C·KH·KW] to the image [N,C,H,W]; −1 is the padding.
func im2colIndex(op graph.Im2Col, image, patches graph.Shape) []int {
	kh, kw := op.Kernel.At(0), op.Kernel.At(1)
	return indexOf(patches, func(at []int) int {
		c, ky, kx := at[3]/(kh*kw), at[3]/kw%kh, at[3]%kw
		y := at[1]*op.Stride.At(0) + ky*op.Dilation.At(0) - op.Pad.At(0)
		x := at[2]*op.Stride.At(1) + kx*op.Dilation.At(1) - op.Pad.At(1)
		if y < 0 || y >= image.At(2) || x < 0 || x >= image.At(3) {
			return -1
		}
		return offset(image, []int{at[0], c, y, x})
	})
}

// gatherIndex leads from the elements of the gathered tensor to those of the table, whose axis the indices replace.
func gatherIndex(axis int, indices Value, gathered, table graph.Shape) ([]int, error) {
	dim, r := table.At(axis), indices.Type.Shape.Rank()
	for i, j := range indices.I {
		if j < 0 || j >= int64(dim) {
			return nil, fmt.Errorf("index %d, element %d of the indices, is outside 0..%d", j, i, dim-1)
		}
	}
	return indexOf(gathered, func(at []int) int {
		row := int(indices.I[offset(indices.Type.Shape, at[axis:axis+r])])
		src := append(append(append([]int(nil), at[:axis]...), row), at[axis+r:]...)
		return offset(table, src)
	}), nil
}

func gather(op graph.Gather, x, indices Value, t graph.Type) (Value, error) {
	index, err := gatherIndex(op.Axis, indices, t.Shape, x.Type.Shape)
	if err != nil {
		return Value{}, err
	}
	return pick(x, t, index).doubt(indices), nil
}

var _ = formulas.Add(moved(func(op graph.ScatterAdd, a []Value, t graph.Type) (Value, error) {
	return scatterAdd(op, a[0], a[1], t)
}))

func scatterAdd(op graph.ScatterAdd, indices, updates Value, t graph.Type) (Value, error) {
	index, err := gatherIndex(op.Axis, indices, updates.Type.Shape, t.Shape)
	if err != nil {
		return Value{}, err
	}
	return spread(updates, t, index).doubt(indices), nil
}
