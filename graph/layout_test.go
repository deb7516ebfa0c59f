package graph

import (
	"math/rand/v2"
	"testing"
)

// element is the place of element i, in row-major order, of a layout.
func (l Layout) element(i int) int {
	at := l.Offset
	for a := l.Shape.Rank() - 1; a >= 0; a-- {
		at += i % l.Shape.At(a) * l.Stride[a]
		i /= l.Shape.At(a)
	}
	return at
}

// TestLayoutViews follows random chains of views and compares each element's place with that of a copy.
func TestLayoutViews(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := NewBuilder("views")
		dims := make([]int, 1+r.IntN(4))
		for i := range dims {
			dims[i] = 1 + r.IntN(4)
		}
		n := b.Input("x", TypeOf(F32, dims...))
		l := Contiguous(n.Type.Shape)
		places := make([]int, n.Type.Shape.Elems()) // of each element in x
		for i := range places {
			places[i] = i
		}
		for range 5 {
			s := n.Type.Shape
			old, from := Contiguous(s), n
			var index func(i int) int // of the new value's element in the old value
			switch r.IntN(4) {
			case 0:
				perm := r.Perm(s.Rank())
				n = b.Transpose(n, perm...)
				index = old.Transpose(IntsOf(perm...)).element
			case 1:
				axis := r.IntN(s.Rank())
				size := 1 + r.IntN(s.At(axis))
				step := 1 + r.IntN(max((s.At(axis)-1)/max(size-1, 1), 1))
				start := r.IntN(s.At(axis) - (size-1)*step)
				n = b.Slice(n, axis, start, size, step)
				index = old.Slice(axis, start, size, step).element
			case 2:
				to := s
				for i := range s.Rank() {
					if s.At(i) == 1 {
						to = to.With(i, 1+r.IntN(3))
					}
				}
				if r.IntN(2) == 0 && s.Rank() < 5 {
					to = ShapeOf(append([]int{1 + r.IntN(3)}, to.Slice()...)...)
				}
				n = b.Broadcast(n, to)
				index = old.Broadcast(to).element
			case 3:
				to := []int{s.Elems()}
				for f := 2; f < 5 && r.IntN(3) > 0; f++ {
					if to[0]%f == 0 {
						to = append([]int{to[0] / f, f}, to[1:]...)
					}
				}
				if r.IntN(3) == 0 {
					to = append(to, 1)
				}
				n = b.Reshape(n, to...)
				index = func(i int) int { return i }
			}
			if b.Err() != nil {
				t.Fatal(b.Err())
			}
			if n == from {
				continue
			}
			next := make([]int, n.Type.Shape.Elems())
			for i := range next {
				next[i] = places[index(i)]
			}
			places = next
			at, ok := l.View(n)
			if !ok {
				if _, isReshape := n.Op.(Reshape); !isReshape {
					t.Fatalf("seed %d: %s cannot be seen through strides", seed, n.Where())
				}
				break
			}
			l = at
			for i, p := range places {
				if l.element(i) != p {
					t.Fatalf("seed %d: element %d of %s stands at %d, want %d", seed, i, n.Where(), l.element(i), p)
				}
			}
			inOrder := true
			for i, p := range places {
				inOrder = inOrder && p == places[0]+i
			}
			if l.IsContiguous() != inOrder {
				t.Fatalf("seed %d: %v with strides %v is contiguous: %v", seed, l.Shape, l.Stride, l.IsContiguous())
			}
		}
	}
}

// TestLayoutInvert stores through views and reads back through them.
func TestLayoutInvert(t *testing.T) {
	b := NewBuilder("store")
	x := b.Input("x", TypeOf(F32, 2, 3, 4, 5))
	y := b.Transpose(x, 0, 2, 1, 3)
	z := b.Reshape(y, 8, 15)
	l := Contiguous(z.Type.Shape)
	for _, n := range []*Node{z, y} {
		var ok bool
		if l, ok = l.Invert(n); !ok {
			t.Fatalf("%s cannot be inverted", n.Where())
		}
	}
	if l.Shape != x.Type.Shape || l.Stride != [MaxRank]int{60, 5, 15, 1} {
		t.Errorf("layout %v with strides %v", l.Shape, l.Stride)
	}
	split := b.Reshape(x, 2, 2, 30)
	cut := b.Transpose(split, 1, 0, 2)
	l, _ = Contiguous(cut.Type.Shape).Invert(cut)
	if _, ok := l.Invert(split); ok {
		t.Error("a reshape was inverted that joins what a transpose has parted")
	}
	if _, ok := l.Invert(b.Broadcast(x, ShapeOf(2, 2, 3, 4, 5))); ok {
		t.Error("a broadcast was inverted")
	}
}

// TestLayoutEdges looks at scalars, sizes of 0 and starts that do not fit.
func TestLayoutEdges(t *testing.T) {
	b := NewBuilder("edges")
	x := b.Input("x", TypeOf(F32, 4, 0, 3))
	if l := Contiguous(x.Type.Shape); !l.IsContiguous() {
		t.Error("nothing is not contiguous")
	}
	if l, ok := Contiguous(x.Type.Shape).Transpose(IntsOf(2, 0, 1)).Reshape(ShapeOf(0, 7)); !ok || l.Shape != ShapeOf(0, 7) {
		t.Error("nothing cannot be reshaped")
	}
	if l := Contiguous(ShapeOf(4, 3)).Slice(0, 4, 0, 1); l.Offset != 0 || l.Shape != ShapeOf(0, 3) {
		t.Errorf("an empty slice at the end starts at %d", l.Offset)
	}
	y := b.Input("y", TypeOf(F32, 5))
	l := Contiguous(y.Type.Shape)
	start := b.Input("start", TypeOf(I64))
	for name, n := range map[string]*Node{
		"a start given for each run":   b.Add(Slice{Axis: 0, Size: 2, Step: 1}, y, start),
		"a start before the first":     b.Slice(y, 0, -1, 2, 1),
		"a start after the last":       b.Slice(y, 0, 4, 2, 1),
		"an operation that is no view": b.Unary(Neg, y),
	} {
		if _, ok := l.View(n); ok {
			t.Errorf("%s: there is a layout", name)
		}
	}
	if l, ok := Contiguous(ShapeOf()).Reshape(ShapeOf(1, 1)); !ok || !l.IsContiguous() || l.element(0) != 0 {
		t.Error("a scalar cannot be reshaped")
	}
}
