package graph

// Layout gives the positions of a value's elements in a buffer: element (i0, i1, …) is at Offset + Σ i·Stride, in
// elements. Views change the layout and move no data.
type Layout struct {
	Shape  Shape
	Stride [MaxRank]int
	Offset int
}

// Contiguous is the row-major layout of a shape.
func Contiguous(s Shape) Layout {
	l := Layout{Shape: s}
	copy(l.Stride[:], s.Strides())
	return l
}

// IsContiguous reports whether the elements are in row-major order without gaps.
func (l Layout) IsContiguous() bool {
	n := 1
	for i := l.Shape.Rank() - 1; i >= 0; i-- {
		d := l.Shape.At(i)
		if d == 0 {
			return true
		}
		if d != 1 && l.Stride[i] != n {
			return false
		}
		n *= d
	}
	return true
}

// Transpose permutes the axes as [Transpose] does.
func (l Layout) Transpose(perm Ints) Layout {
	r := l
	for i := range perm.Len() {
		r.Shape = r.Shape.With(i, l.Shape.At(perm.At(i)))
		r.Stride[i] = l.Stride[perm.At(i)]
	}
	return r
}

// Broadcast repeats the value to shape s, aligned at the last axis, with strides of 0.
func (l Layout) Broadcast(s Shape) Layout {
	r := Layout{Shape: s, Offset: l.Offset}
	lead := s.Rank() - l.Shape.Rank()
	for i := range l.Shape.Rank() {
		if l.Shape.At(i) == s.At(lead+i) && l.Shape.At(i) != 1 {
			r.Stride[lead+i] = l.Stride[i]
		}
	}
	return r
}

// Slice takes size elements, step apart, of an axis.
func (l Layout) Slice(axis, start, size, step int) Layout {
	l.Shape = l.Shape.With(axis, size)
	if l.Shape.Elems() == 0 { // there are no elements
		return l
	}
	l.Offset += start * l.Stride[axis]
	l.Stride[axis] *= step
	return l
}

// Reshape gives the elements, in their row-major order, another shape of the same number of elements. It reports false
// if no strides express that.
func (l Layout) Reshape(s Shape) (Layout, bool) {
	r := Layout{Shape: s, Offset: l.Offset}
	if s.Elems() == 0 {
		copy(r.Stride[:], s.Strides())
		return r, true
	}
	// Merge the axes that are contiguous in memory, then split the merged axes into the new ones.
	var dim, stride [MaxRank]int
	n := 0
	for i := range l.Shape.Rank() {
		d, st := l.Shape.At(i), l.Stride[i]
		switch {
		case d == 1:
		case n > 0 && stride[n-1] == st*d:
			dim[n-1] *= d
			stride[n-1] = st
		default:
			dim[n], stride[n] = d, st
			n++
		}
	}
	j := n - 1
	left := 1 // elements of merged axis j not yet used
	step := 0
	if j >= 0 {
		left, step = dim[j], stride[j]
	}
	for i := s.Rank() - 1; i >= 0; i-- {
		d := s.At(i)
		if d == 1 {
			continue
		}
		for left == 1 {
			j--
			left, step = dim[j], stride[j]
		}
		if left%d != 0 {
			return r, false
		}
		r.Stride[i] = step
		step *= d
		left /= d
	}
	return r, true
}

// View applies a view operation whose start operand, if it has one, is constant. It reports false if op is not a view,
// if its start is not constant or out of range, or if no strides express it.
func (l Layout) View(n *Node) (Layout, bool) {
	switch op := n.Op.(type) {
	case Reshape:
		return l.Reshape(op.Shape)
	case Transpose:
		return l.Transpose(op.Perm), true
	case Broadcast:
		return l.Broadcast(op.Shape), true
	case Slice:
		start, ok := op.ConstStart(n)
		if !ok {
			return l, false
		}
		return l.Slice(op.Axis, start, op.Size, op.Step), true
	}
	return l, false
}

// Invert inverts a store view: given the layout l of the output of a Reshape or Transpose n, it returns the layout of
// n's operand in the same buffer.
func (l Layout) Invert(n *Node) (Layout, bool) {
	switch op := n.Op.(type) {
	case Reshape:
		return l.Reshape(n.Args[0].Type.Shape)
	case Transpose:
		var back Ints
		back.n = op.Perm.n
		for i := range op.Perm.Len() {
			back.v[op.Perm.At(i)] = i
		}
		return l.Transpose(back), true
	}
	return l, false
}
