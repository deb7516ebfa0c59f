package cuda_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering/cuda"
	"fusec/passes/passtest"
)

// threeOf are three products of a norm, which make outputs, and one of the first of them.
func threeOf(t *testing.T) *graph.Graph {
	return built(t, func(b *graph.Builder) {
		weight := func(name string, n int) *graph.Node { return b.Param(name, graph.TypeOf(graph.F32, 256, n)) }
		x := b.Add(graph.RMSNorm{Eps: 1e-5}, b.Input("x", graph.TypeOf(graph.F32, 2, 256)), b.Param("gain", graph.TypeOf(graph.F32, 256)))
		y := b.MatMul(x, weight("q", 256), false, false)
		b.Output("k", b.MatMul(x, weight("k", 512), false, false))
		b.Output("v", b.MatMul(x, weight("v", 512), false, false))
		b.Output("y", b.MatMul(y, weight("o", 512), false, false))
	})
}

// gated is a norm, and two products of it, of which the second is multiplied by a function of the first.
func gated(t *testing.T) *graph.Graph {
	return built(t, func(b *graph.Builder) {
		weight := func(name string) *graph.Node { return b.Param(name, graph.TypeOf(graph.F16, 256, 512)) }
		x := b.Add(graph.RMSNorm{Eps: 1e-5}, b.Input("x", graph.TypeOf(graph.F32, 2, 256)), b.Param("gain", graph.TypeOf(graph.F32, 256)))
		x = b.Add(graph.Cast{To: graph.F16}, x)
		gate := b.Unary(graph.Silu, b.MatMul(x, weight("gate"), false, false))
		b.Output("y", b.Binary(graph.Mul, gate, b.MatMul(x, weight("up"), false, false)))
	})
}

// projections are three products of a norm of many rows, which make outputs, and one of the first of them.
func projections(t *testing.T, rows, width, wide, narrow int) *graph.Graph {
	return built(t, func(b *graph.Builder) {
		weight := func(name string, k, n int) *graph.Node { return b.Param(name, graph.TypeOf(graph.BF16, k, n)) }
		x := b.Input("x", graph.TypeOf(graph.F32, rows, width))
		x = b.Add(graph.RMSNorm{Eps: 1e-5}, x, b.Param("gain", graph.TypeOf(graph.F32, width)))
		x = b.CastTo(graph.BF16, x)
		b.Output("k", b.MatMul(x, weight("k", width, narrow), false, false))
		b.Output("v", b.MatMul(x, weight("v", width, narrow), false, false))
		y := b.MatMul(x, weight("q", width, wide), false, false)
		b.Output("y", b.MatMul(b.CastTo(graph.BF16, y), weight("o", wide, width), false, false))
	})
}

// unlike are products of many rows that differ in their sizes, in what is done to them, and in what they make.
func unlike(t *testing.T) *graph.Graph {
	return built(t, func(b *graph.Builder) {
		matrix := func(name string, m, n int) *graph.Node { return b.Input(name, graph.TypeOf(graph.F16, m, n)) }
		y := b.MatMul(matrix("x", 137, 264), matrix("w", 264, 200), false, false)
		y = b.Binary(graph.Add, y, b.Broadcast(b.Input("bias", graph.TypeOf(graph.F32, 200)), y.Type.Shape))
		b.Output("gelu", b.CastTo(graph.F16, b.Unary(graph.GeluTanh, y)))
		b.Output("plain", b.MatMul(matrix("u", 80, 520), matrix("v", 96, 520), false, true))
		z := b.MatMul(matrix("p", 300, 136), matrix("q", 136, 64), false, false)
		b.Output("residual", b.Binary(graph.Add, z, b.CastTo(graph.F32, matrix("r", 300, 64))))
	})
}

// TestNeighbours: launches that use nothing of one another run at the same time, where the chip can, and so does one that uses
// what another makes in its body alone: it awaits that there.
func TestNeighbours(t *testing.T) {
	orders := func(g *graph.Graph, opts ...cuda.Option) string {
		var list []string
		d := cuda.New(append(opts, cuda.Precision(kernels.BF16))...)
		p := passtest.Lowered(t, g, d, true)
		for i, k := range d.Kernels(p) {
			order := ""
			for _, word := range []string{"leads", "beside", "awaits"} {
				if strings.Contains(k.Source, "#define FUSEC_"+strings.ToUpper(word)+"\n") {
					order += word
				}
			}
			if len(k.Steps) == 0 {
				order = "joined"
			}
			if _, ok := p.Launches[i].Op.(graph.Fusion); ok {
				list = append(list, cmp.Or(order, "alone"))
			}
		}
		return strings.Join(list, " ")
	}
	if got := orders(threeOf(t)); !strings.HasSuffix(got, "alone leads beside beside alone") {
		t.Errorf("on Hopper: %s", got)
	}
	if got := orders(gated(t)); !strings.HasSuffix(got, "alone leads besideawaits") {
		t.Errorf("a gate on Hopper: %s", got)
	}
	many := projections(t, 256, 4096, 4096, 1024)
	for _, g := range []*graph.Graph{many, projections(t, 200, 512, 384, 192)} {
		if got := orders(g); !strings.HasSuffix(got, "alone alone joined joined alone") {
			t.Errorf("projections on Hopper: %s", got)
		}
	}
	if got := orders(unlike(t)); got != "alone joined joined" {
		t.Errorf("products that differ on Hopper: %s", got)
	}
	if got := orders(projections(t, 8192, 4096, 4096, 4096)); strings.Contains(got, "joined") {
		t.Errorf("projections that fill the GPU: %s", got)
	}
	if got := orders(many, cuda.Arch("sm_80")); strings.Contains(got, "joined") {
		t.Errorf("projections on sm_80: %s", got)
	}
	if got := orders(threeOf(t), cuda.Arch("sm_80")) + orders(gated(t), cuda.Arch("sm_80")); strings.Contains(got, "beside") {
		t.Errorf("on sm_80: %s", got)
	}
}

// TestNeighboursTold: what is told of a program names for each launch the one beside which it runs, or whose kernel computes it.
func TestNeighboursTold(t *testing.T) {
	told := func(g *graph.Graph, opts ...cuda.Option) string {
		var list []string
		d := cuda.New(append(opts, cuda.Precision(kernels.BF16))...)
		p := passtest.Lowered(t, g, d, true)
		d.Describe(&trace.Trace{}, p)
		launches := p.Trace().Launches
		for i := range launches[p.Prepared:] {
			list = append(list, strings.ReplaceAll(launches[p.Prepared+i].Words(), fmt.Sprintf("#%d", p.Prepared+2), "second"))
		}
		return strings.Join(list, ", ")
	}
	if got, want := told(threeOf(t)), ", , beside second, beside second, "; got != want {
		t.Errorf("on Hopper: %q, want %q", got, want)
	}
	if got, want := told(projections(t, 200, 512, 384, 192)), ", , in the kernel of second, in the kernel of second, "; got != want {
		t.Errorf("projections on Hopper: %q, want %q", got, want)
	}
	if got := told(threeOf(t), cuda.Arch("sm_80")); strings.Trim(got, ", ") != "" {
		t.Errorf("on sm_80: %q", got)
	}
}

// TestNeighboursRun compares such programs with the reference.
func TestNeighboursRun(t *testing.T) {
	for _, g := range []*graph.Graph{threeOf(t), gated(t), projections(t, 200, 512, 384, 192), unlike(t)} {
		runNeighbours(t, g)
	}
}

func runNeighbours(t *testing.T, g *graph.Graph) {
	in := graphtest.Values(rand.New(rand.NewPCG(8, 8)), g)
	e, p := compiledOf(t, g, in, true, cuda.Precision(kernels.F32))
	want, _, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	for _, o := range p.Outputs {
		if err := ref.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
			t.Errorf("%s: %v", o.Name, err)
		}
	}
}
