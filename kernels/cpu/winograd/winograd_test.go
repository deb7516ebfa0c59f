package winograd

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/conv"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
)

// A spec is a convolution of n images h×w of c channels with o filters.
type spec struct {
	n, h, w, c, o int
	pad           [4]int
	tile          int
}

// reference is the convolution in NHWC by package ref, with the bound of Winograd's algorithm.
func (s spec) reference(t *testing.T, x, w []float32) ref.Value {
	t.Helper()
	op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(s.pad[:]...), Groups: 1,
		Layout: graph.NHWC, Winograd: s.tile}
	v, err := ref.OpBound(op, []ref.Value{
		ref.FromTensor(&graph.Tensor{Type: graph.TypeOf(graph.F32, s.n, s.h, s.w, s.c), Data: x}),
		ref.FromTensor(&graph.Tensor{Type: graph.TypeOf(graph.F32, 3, 3, s.c, s.o), Data: w})})
	if err != nil {
		t.Fatal(err)
	}
	return v[0]
}

// adds1 is an epilogue that adds 1 to each element.
type adds1 struct {
	y  []float32
	ld int
}

func (m *adds1) Tile(_, _, row, col, rows, cols int) {
	for i := row; i < row+rows; i++ {
		for j := col; j < col+cols; j++ {
			m.y[i*m.ld+j]++
		}
	}
}

// check compares a convolution with want, on one of the instruction sets, for 1 to 3 workers.
func (s spec) check(t *testing.T, rng *rand.Rand, set int, x, w []float32, want ref.Value) {
	t.Helper()
	micro := gemm.Micros[float32]()[set]
	gap := rng.IntN(2) * (1 + rng.IntN(5))
	xs := graph.Layout{Shape: graph.ShapeOf(s.n, s.h, s.w, s.c), Stride: [8]int{0, 0, s.c + gap, 1}, Offset: gap}
	if rng.IntN(4) == 0 { // channels apart
		xs.Stride = [8]int{0, 0, 2*s.c + gap, 2}
	}
	xs.Stride[1] = s.w*xs.Stride[2] + gap
	xs.Stride[0] = s.h*xs.Stride[1] + gap
	spread := make([]float32, conv.Extent(xs))
	at := 0
	for n := range s.n {
		for i := range s.h {
			for j := range s.w {
				for c := range s.c {
					spread[xs.Offset+n*xs.Stride[0]+i*xs.Stride[1]+j*xs.Stride[2]+c*xs.Stride[3]] = x[at]
					at++
				}
			}
		}
	}
	// Filters in NCHW, as they are, or with channels behind filters, perhaps turned.
	ws := graph.Layout{Shape: graph.ShapeOf(3, 3, s.c, s.o), Stride: [][8]int{{3, 1, 9, 9 * s.c},
		{3 * s.c * s.o, s.c * s.o, s.o, 1}, {3 * s.c * s.o, s.c * s.o, 1, s.c}}[rng.IntN(3)]}
	turned, changing := rng.IntN(2) == 0, rng.IntN(2) == 0
	laid := make([]float32, len(w))
	for i, v := range w {
		tap, c, o := i/s.o/s.c, i/s.o%s.c, i%s.o
		if turned {
			tap = 8 - tap
		}
		laid[tap/3*ws.Stride[0]+tap%3*ws.Stride[1]+c*ws.Stride[2]+o*ws.Stride[3]] = v
	}
	var first []float32
	for workers := 1; workers <= 3; workers++ {
		p := pool.New(workers)
		defer p.Close()
		f, err := newFilters(s.tile, ws, turned, p, micro, kernels[set])
		if err == nil && !changing {
			f.data = gemm.Aligned[float32](f.elements())
			err = f.Update(laid)
		}
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		ld := s.o + gap
		k, err := newPlan(Config{X: xs, Pad: graph.IntsOf(s.pad[:]...), Filters: f, RowStride: ld, Band: (workers - 1) * 13}, p, nil,
			kernels[set])
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		y := make([]float32, k.Rows()*ld)
		for i := range y {
			y[i] = 7
		}
		if err := k.Run(spread, laid, y, nil); err != nil {
			t.Fatal(err)
		}
		got := graph.NewTensor(want.Type)
		for i := range got.Type.Shape.Elems() {
			got.Data.([]float32)[i] = y[i/s.o*ld+i%s.o]
		}
		for i, v := range y {
			if i%ld >= s.o && v != 7 {
				t.Fatalf("%+v: an element behind row %d was written", s, i/ld)
			}
		}
		if err := ref.Check(got, want); err != nil {
			t.Fatalf("%+v, set %d: %v", s, set, err)
		}
		if first == nil {
			first = slices.Clone(y)
		} else if !slices.Equal(first, y) {
			t.Fatalf("%+v: %d workers give other bits", s, workers)
		}
		// Again, with an epilogue that changes each element once.
		if err := k.Run(spread, laid, y, &adds1{y, ld}); err != nil {
			t.Fatal(err)
		}
		for i := range y {
			if i%ld < s.o && y[i] != first[i]+1 {
				t.Fatalf("%+v: the epilogue missed element %d of row %d", s, i%ld, i/ld)
			}
		}
	}
}

func TestAgainstReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	specs := []spec{
		{1, 1, 1, 1, 1, [4]int{1, 1, 1, 1}, 4}, {2, 3, 3, 1, 1, [4]int{}, 4}, {1, 3, 290, 2, 3, [4]int{1, 1, 1, 1}, 4},
		{1, 3, 150, 3, 2, [4]int{0, 1, 1, 0}, 2}, {1, 5, 6, 400, 33, [4]int{1, 1, 1, 1}, 4}, {1, 4, 5, 512, 17, [4]int{1, 1, 1, 1}, 2},
		{70, 2, 2, 5, 4, [4]int{1, 1, 1, 1}, 2}, {2, 10, 20, 8, 70, [4]int{1, 1, 1, 1}, 4}, {1, 5, 5, 0, 3, [4]int{}, 4},
		{0, 5, 5, 2, 3, [4]int{}, 2}, {1, 5, 5, 2, 0, [4]int{}, 2}, {1, 9, 9, 16, 64, [4]int{4, 3, 2, 5}, 4},
	}
	for range 30 {
		s := spec{n: 1 + rng.IntN(3), h: 1 + rng.IntN(18), w: 1 + rng.IntN(18), c: 1 + rng.IntN(20), o: 1 + rng.IntN(20),
			tile: 2 + 2*rng.IntN(2)}
		for i := range s.pad {
			s.pad[i] = rng.IntN(3)
		}
		if s.h+s.pad[0]+s.pad[2] >= 3 && s.w+s.pad[1]+s.pad[3] >= 3 {
			specs = append(specs, s)
		}
	}
	for _, s := range specs {
		x, w := random(rng, s.n*s.h*s.w*s.c), random(rng, 9*s.c*s.o)
		want := s.reference(t, x, w)
		for set := range kernels {
			s.check(t, rng, set, x, w, want)
		}
	}
}

// TestWideRange has filters that copy one element, and images of very different sizes: for these the error is much larger than
// the terms of an element's sum, but not than the terms of the algorithm.
func TestWideRange(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, tile := range []int{2, 4} {
		s := spec{1, 12, 12, 3, 3, [4]int{1, 1, 1, 1}, tile}
		x, w := random(rng, s.h*s.w*s.c), make([]float32, 9*s.c*s.o)
		for i := range x {
			if rng.IntN(3) == 0 {
				x[i] *= 1e6
			}
		}
		for c := range s.c {
			w[(4*s.c+c)*s.o+c] = 1
		}
		want := s.reference(t, x, w)
		for set := range kernels {
			s.check(t, rng, set, x, w, want)
		}
	}
}

func TestErrors(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	w := graph.Contiguous(graph.ShapeOf(3, 3, 2, 4))
	f, err := NewFilters(4, w, false, p)
	if err != nil {
		t.Fatal(err)
	}
	wants := func(err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
	_, err = NewFilters(3, w, false, p)
	wants(err, "tiles of 3×3")
	_, err = NewFilters(4, graph.Contiguous(graph.ShapeOf(3, 5, 2, 4)), false, p)
	wants(err, "filters")
	_, err = NewFilters(4, w, false, nil)
	wants(err, "no pool")
	wants(f.Update(nil), "need 72 elements")
	x := graph.Contiguous(graph.ShapeOf(1, 5, 5, 2))
	one := graph.IntsOf(1, 1, 1, 1)
	for text, cfg := range map[string]Config{
		"no filters":              {X: x, Pad: one},
		"images":                  {X: graph.Contiguous(graph.ShapeOf(1, 5, 5, 3)), Pad: one, Filters: f, RowStride: 4},
		"padding [1]":             {X: x, Pad: graph.IntsOf(1), Filters: f, RowStride: 4},
		"with padding [0,-1,0,0]": {X: x, Pad: graph.IntsOf(0, -1, 0, 0), Filters: f, RowStride: 4},
		"rows of 4 elements":      {X: x, Pad: one, Filters: f, RowStride: 3},
	} {
		_, err := New(cfg, p, nil)
		wants(err, text)
	}
	k, err := New(Config{X: x, Pad: one, Filters: f, RowStride: 4}, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	wants(k.Run(make([]float32, 49), nil, make([]float32, 100), nil), "too short")
	wants(k.Run(make([]float32, 50), nil, make([]float32, 99), nil), "too short")
	changing, err := NewChanging(4, w, false, p)
	if err != nil {
		t.Fatal(err)
	}
	if k, err = New(Config{X: x, Pad: one, Filters: changing, RowStride: 4}, p, nil); err != nil {
		t.Fatal(err)
	}
	wants(k.Run(make([]float32, 50), make([]float32, 71), make([]float32, 100), nil), "need 72 elements")
}

func TestRunAllocatesNothing(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	f, err := NewFilters(2, graph.Contiguous(graph.ShapeOf(3, 3, 5, 40)), false, p)
	if err != nil {
		t.Fatal(err)
	}
	images := graph.Contiguous(graph.ShapeOf(1, 9, 9, 5))
	k, err := New(Config{X: images, Pad: graph.IntsOf(1, 1, 1, 1), Filters: f, RowStride: 40}, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, w, y := make([]float32, 9*9*5), make([]float32, 9*5*40), make([]float32, 9*9*40)
	if n := testing.AllocsPerRun(10, func() {
		if err := f.Update(w); err != nil {
			t.Error(err)
		}
		if err := k.Run(x, nil, y, nil); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("a run allocates %v times", n)
	}
	if k.Bytes() == 0 || f.Bytes() < 4*16*5*40 {
		t.Errorf("the plan has %d bytes, the filters %d", k.Bytes(), f.Bytes())
	}
}
