package cuda_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering/cuda"
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

// TestNeighbours: launches that use nothing of one another run at the same time, where the chip can.
func TestNeighbours(t *testing.T) {
	orders := func(opts ...cuda.Option) (list []string) {
		d := cuda.New(append(opts, cuda.Precision(kernels.BF16))...)
		p := lowered(t, threeOf(t), d)
		for i, k := range d.Kernels(p) {
			order := "alone"
			if strings.Contains(k.Source, "#define FUSEC_LEADS\n") {
				order = "leads"
			} else if strings.Contains(k.Source, "#define FUSEC_BESIDE\n") {
				order = "beside"
			}
			if _, ok := p.Launches[i].Op.(graph.Fusion); ok {
				list = append(list, order)
			}
		}
		return list
	}
	if got := strings.Join(orders(), " "); !strings.HasSuffix(got, "alone leads beside beside alone") {
		t.Errorf("on Hopper: %s", got)
	}
	if got := strings.Join(orders(cuda.Arch("sm_80")), " "); strings.Contains(got, "beside") {
		t.Errorf("on sm_80: %s", got)
	}
}

// TestNeighboursRun compares such a program with the reference.
func TestNeighboursRun(t *testing.T) {
	g := threeOf(t)
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
