package cpu

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// checkCopy copies out of a buffer that holds 0, 1, 2, … (or, of Bools, a pattern), as a Copy and as a Pad by nothing, and compares
// element by element.
func checkCopy(t *testing.T, d graph.DType, from graph.Layout) {
	t.Helper()
	none := graph.IntsOf(make([]int, from.Shape.Rank())...)
	checkCopyBy(t, graph.Copy{}, d, from)
	checkCopyBy(t, graph.Pad{Lo: none, Hi: none}, d, from)
}

func checkCopyBy(t *testing.T, op graph.Op, d graph.DType, from graph.Layout) {
	t.Helper()
	o := Operand{DType: d, Layout: from}
	last := from.Offset
	for i := range from.Shape.Rank() {
		last += max(from.Shape.At(i)-1, 0) * from.Stride[i]
	}
	src := graph.NewTensor(graph.TypeOf(d, last+1))
	for i := range last + 1 {
		src.SetFloat(i, float64(i))
		if d == graph.Bool {
			src.SetFloat(i, float64(i*i%7&1))
		}
	}
	dst := graph.Filled(o.Type(), 1)
	for workers := 1; workers <= 3; workers++ {
		p := pool.New(workers)
		k, err := Compile(op, []Operand{o}, []Operand{Contiguous(o.Type())}, NewEnv(p))
		if err != nil {
			t.Fatal(err)
		}
		args, results := []Memory{MemoryOf(src)}, []Memory{MemoryOf(dst)}
		if err := k.Run(args, results); err != nil {
			t.Fatal(err)
		}
		if n := allocations(func() { _ = k.Run(args, results) }); n > 0 {
			t.Errorf("%v allocations per run", n)
		}
		p.Close()
		at := make([]int, from.Shape.Rank())
		for i := range from.Shape.Elems() {
			off := from.Offset
			for a, rest := len(at)-1, i; a >= 0; a-- {
				off += rest % from.Shape.At(a) * from.Stride[a]
				rest /= from.Shape.At(a)
			}
			if dst.Float(i) != src.Float(off) {
				t.Fatalf("%#v, %v of %+v: element %d is %v, want %v", op, d, from, i, dst.Float(i), src.Float(off))
			}
		}
	}
}

func TestCopyLayouts(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	for n := range 300 {
		rank := r.IntN(6)
		dims := make([]int, rank)
		for i := range dims {
			dims[i] = []int{1, 2, 3, 5, 8, 17, 33}[r.IntN(7)]
			if n%20 == 0 {
				dims[i] = r.IntN(3)
			}
		}
		l := graph.Contiguous(graph.ShapeOf(dims...))
		l.Offset = r.IntN(4)
		for i := range dims { // leave some elements out
			if step := 1 + r.IntN(2); r.IntN(3) == 0 && dims[i] > 0 {
				l = l.Slice(i, r.IntN(2)*(1-dims[i]%2), (dims[i]+step-1)/step, step)
			}
		}
		var perm []int
		for range 3 {
			perm = r.Perm(rank)
			l = l.Transpose(graph.IntsOf(perm...))
		}
		if r.IntN(4) == 0 && rank > 0 {
			s := l.Shape
			axis := r.IntN(rank)
			l.Stride[axis] = 0
			l = l.Broadcast(s)
		}
		checkCopy(t, allTypes[n%len(allTypes)], l)
	}
}

func TestCopyLarge(t *testing.T) {
	for _, d := range allTypes {
		for _, c := range []struct{ dims, perm []int }{
			{[]int{300, 500}, []int{1, 0}},
			{[]int{129, 257}, []int{1, 0}},
			{[]int{70000}, []int{0}},
			{[]int{3, 40, 5, 32}, []int{0, 2, 1, 3}},
			{[]int{3, 40, 5, 32}, []int{0, 2, 3, 1}},
			{[]int{2, 3, 70, 60}, []int{0, 2, 3, 1}},
			{[]int{2, 70, 60, 3}, []int{0, 3, 1, 2}},
			{[]int{9, 8, 7, 6, 5}, []int{4, 3, 2, 1, 0}},
		} {
			checkCopy(t, d, graph.Contiguous(graph.ShapeOf(c.dims...)).Transpose(graph.IntsOf(c.perm...)))
		}
		checkCopy(t, d, graph.Contiguous(graph.ShapeOf(1)).Broadcast(graph.ShapeOf(40000)))
		checkCopy(t, d, graph.Contiguous(graph.ShapeOf(300, 1)).Broadcast(graph.ShapeOf(300, 200)))
		checkCopy(t, d, graph.Contiguous(graph.ShapeOf(200)).Broadcast(graph.ShapeOf(300, 200)))
	}
}
