package cuda_test

import (
	"fmt"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering/cuda"
)

// sloped adds layers with a norm, a product and a sum with what went in, and gives their parameters and the gradients of a cost by
// these. Gradients of weights are products, and those of a norm's gain and bias sums over rows; both are needed only at the end.
func sloped(t testing.TB, b *graph.Builder, layers, rows, width int) (params, ds []*graph.Node) {
	t.Helper()
	param := func(name string, i int, dims ...int) *graph.Node {
		p := b.Param(fmt.Sprint(name, i), graph.TypeOf(graph.F32, dims...))
		params = append(params, p)
		return p
	}
	x := b.Input("x", graph.TypeOf(graph.F32, rows, width))
	for i := range layers {
		y := b.Add(graph.LayerNorm{Eps: 1e-3}, x, param("gain", i, width), param("bias", i, width))
		x = b.Binary(graph.Add, x, b.Unary(graph.Tanh, b.MatMul(y, param("w", i, width, width), false, false)))
	}
	cost := b.Reduce(graph.Mean, b.Unary(graph.Square, x), false, 0, 1)
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	if ds, err = graph.Gradients(g, cost, params); err != nil {
		t.Fatal(err)
	}
	return params, ds
}

// descent is a step of gradient descent on such layers.
func descent(t testing.TB, layers, rows, width int) *graph.Graph {
	t.Helper()
	b := graph.NewBuilder("descent")
	params, ds := sloped(t, b, layers, rows, width)
	for i, p := range params {
		b.Update(p, b.Binary(graph.Sub, p, b.BinaryScalar(graph.Mul, ds[i], 0.1)))
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestBranchKeepsOrder checks all dependencies between the launches of programs with a branch.
func TestBranchKeepsOrder(t *testing.T) {
	for _, c := range []struct{ layers, rows, width, least int }{{1, 5, 3, 0}, {2, 70, 64, 1}, {6, 64, 128, 4}, {100, 64, 64, 90}} {
		for _, precision := range []kernels.Precision{kernels.F32, kernels.TF32} {
			d := cuda.New(cuda.Precision(precision))
			in, last, err := cuda.CheckBranches(d, lowered(t, descent(t, c.layers, c.rows, c.width), d))
			if err != nil {
				t.Errorf("%v: %v", c, err)
			}
			if in < c.least || last < c.least {
				t.Errorf("%v: %d launches, and %d last steps, in the branch", c, in, last)
			}
		}
	}
}

// TestBranchEarly: in a program with branches launches whose blocks have a multiprocessor each begin early, and in others they do
// not.
func TestBranchEarly(t *testing.T) {
	for _, branches := range []int{0, cuda.DefaultBranches} {
		d := cuda.New(cuda.Precision(kernels.TF32), cuda.Branches(branches))
		large := 0
		for _, k := range d.Kernels(lowered(t, descent(t, 1, 1024, 512), d)) {
			for _, s := range k.Steps {
				if s.Shared <= kernels.H200.Shared*3/4 {
					continue
				}
				if large++; s.Early != (branches > 0) {
					t.Errorf("with %d branches %s begins early: %v", branches, s.Entry, s.Early)
				}
			}
		}
		if large == 0 {
			t.Error("no blocks have a multiprocessor each")
		}
	}
}

// TestBranch compares steps of programs with a branch with the reference, and with programs without one: the emulator does what
// is in the branch as late as the events allow.
func TestBranch(t *testing.T) {
	g := descent(t, 4, 6, 16)
	in := values(g)
	want, updates, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatal(err)
	}
	var first []*graph.Tensor
	for _, opts := range [][]cuda.Option{nil, {cuda.Branches(0)}, {cuda.Apart()}} {
		e, p := compiled(t, g, in, opts...)
		if branch, _, err := cuda.CheckBranches(cuda.New(opts...), p); err != nil || branch == 0 && opts == nil {
			t.Fatalf("%d launches in the branch, %v", branch, err)
		}
		bound := map[string]*graph.Tensor{}
		for _, u := range p.Updates {
			name := p.Buffers[u.Target].Name
			bound[name] = in[name].Clone()
			if err := e.Bind(u.Target, bound[name]); err != nil {
				t.Fatal(err)
			}
		}
		for step := range 3 {
			run(t, e)
			if err := e.Sync(); err != nil {
				t.Fatal(err)
			}
			if step > 0 {
				continue
			}
			if err := ref.Check(e.Output(p.Outputs[0].Buffer), want["cost"]); err != nil {
				t.Error(err)
			}
			for name, v := range bound {
				if err := ref.Check(v, updates[name]); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if first == nil {
			for _, u := range p.Updates {
				first = append(first, bound[p.Buffers[u.Target].Name])
			}
			continue
		}
		for i, u := range p.Updates {
			if name := p.Buffers[u.Target].Name; !bound[name].Equal(first[i]) {
				t.Errorf("%s differs after three steps", name)
			}
		}
	}
}

// TestJoined has attention's gradients written side by side, where a product reads them as one value.
func TestJoined(t *testing.T) {
	b := graph.NewBuilder("joined")
	x := b.Input("x", graph.TypeOf(graph.F32, 10, 48))
	parts := b.Transpose(b.Reshape(x, 2, 5, 3, 2, 8), 2, 0, 3, 1, 4)
	part := func(i int) *graph.Node { return b.Reshape(b.Slice(parts, 0, i, 1, 1), 2, 2, 5, 8) }
	y := b.Add(graph.Attention{Scale: 0.3, Causal: true}, part(0), part(1), part(2))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	ds, err := graph.Gradients(g, b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1, 2, 3), []*graph.Node{x})
	if err != nil {
		t.Fatal(err)
	}
	b.Output("dx", b.MatMul(ds[0], b.Param("w", graph.TypeOf(graph.F32, 48, 4)), false, false))
	b.Output("sum", b.Reduce(graph.Sum, ds[0], false, 0))
	if g, err = b.Graph(); err != nil {
		t.Fatal(err)
	}
	p := check(t, g, values(g))
	for _, l := range p.Launches {
		switch l.Op.(type) {
		case graph.Concat, graph.Copy:
			t.Errorf("%s is a launch:\n%v", l.Kind(), p)
		}
	}
}
