package norms_test

import (
	"errors"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/precision"
	"fusec/graph/trace"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda"
	"fusec/passes"
	"fusec/passes/passtest"
)

const eps = 1e-5

// normed is an RMS norm of rows of 512 elements.
func normed(b *graph.Builder, rows int) *graph.Node {
	gain := b.Param("gain", graph.TypeOf(graph.F32, 512))
	return b.Add(graph.RMSNorm{Eps: eps}, b.Input("x", graph.TypeOf(graph.F32, rows, 512)), gain)
}

// product is one with weights of that name.
func product(b *graph.Builder, x *graph.Node, name string) *graph.Node {
	return b.MatMul(x, b.Param(name, graph.TypeOf(graph.F32, 512, 640)), false, false)
}

// one is a graph of a norm of some rows and a product.
func one(rows int) func(b *graph.Builder) {
	return func(b *graph.Builder) { b.Output("y", product(b, normed(b, rows), "w")) }
}

// gateAndUp is a graph of a norm and two products, one of which multiplies the other.
func gateAndUp(b *graph.Builder) {
	n := normed(b, 1)
	b.Output("y", b.Binary(graph.Mul, b.Unary(graph.Silu, product(b, n, "gate")), product(b, n, "up")))
}

// compiled compiles a graph for an H200 in bf16 and returns the stage of the pass, and how many norms are launches of their own.
func compiled(t *testing.T, p precision.Precision, target passes.Target, build func(b *graph.Builder)) (s *trace.Stage, alone int) {
	t.Helper()
	g := graphtest.Built(t, build)
	h, tr, err := passes.Run(g, passes.Config{Target: target, Precision: p, Verify: true, Frozen: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range h.Nodes {
		if f, ok := n.Op.(graph.Fusion); ok && f.Anchor == graph.AnchorRow {
			alone++
		}
	}
	return passtest.Stage(t, tr, "fuse-norms"), alone
}

func h200(p kernels.Precision) *cuda.Device { return cuda.New(cuda.Precision(p)) }

// TestJoined has products that read a norm make it, also where the rows are a residual.
func TestJoined(t *testing.T) {
	for name, c := range map[string]struct {
		products int
		build    func(b *graph.Builder)
	}{
		"one":         {1, one(1)},
		"gate and up": {2, gateAndUp},
		"residual": {1, func(b *graph.Builder) {
			n := normed(b, 1)
			y := b.MatMul(n, b.Param("w", graph.TypeOf(graph.F32, 512, 512)), false, false)
			b.Output("y", b.Binary(graph.Add, n.Args[0], y))
		}},
	} {
		s, alone := compiled(t, precision.BF16, h200(kernels.BF16), c.build)
		if alone != 0 || len(s.Matches) != c.products || len(s.Misses) > 0 {
			t.Errorf("%s: %d norms are left, matches %+v, misses %+v", name, alone, s.Matches, s.Misses)
		}
	}
}

// plain is a GPU that norms rows for products which nothing elementwise follows.
type plain struct{ *cuda.Device }

func (d plain) NormsProduct(f graph.Fusion, args, results []graph.Type) error {
	if graph.Has[graph.Unary](f.Body) {
		return errors.New("something follows")
	}
	return d.Device.NormsProduct(f, args, results)
}

// TestApart leaves norms that something else reads, and those of products without such a kernel.
func TestApart(t *testing.T) {
	for name, c := range map[string]struct {
		precision precision.Precision
		target    passes.Target
		missed    bool
		build     func(b *graph.Builder)
	}{
		"handed out": {precision.BF16, h200(kernels.BF16), false, func(b *graph.Builder) {
			n := normed(b, 1)
			b.Output("n", n)
			b.Output("y", product(b, n, "w"))
		}},
		"16 rows":     {precision.BF16, h200(kernels.BF16), false, one(16)},
		"2 rows":      {precision.BF16, h200(kernels.BF16), false, one(2)},
		"f16":         {precision.F16, h200(kernels.F16), false, one(1)},
		"f32":         {precision.F32, h200(kernels.F32), false, one(1)},
		"old chip":    {precision.BF16, cuda.New(cuda.Precision(kernels.BF16), cuda.Arch("sm_80")), false, one(1)},
		"one refused": {precision.BF16, plain{h200(kernels.BF16)}, true, gateAndUp},
	} {
		s, alone := compiled(t, c.precision, c.target, c.build)
		if alone != 1 || len(s.Matches) != 0 || (len(s.Misses) > 0) != c.missed {
			t.Errorf("%s: %d norms are left, matches %+v, misses %+v", name, alone, s.Matches, s.Misses)
		}
	}
}
