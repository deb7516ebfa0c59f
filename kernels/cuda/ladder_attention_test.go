package cuda_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering/cuda/cudatest"
)

// TestLadderAttention checks that all rungs compute the same.
func TestLadderAttention(t *testing.T) {
	const heads = 2
	d := cudatest.OpenFor(t, cuda.ChipOf(70))
	r := rand.New(rand.NewPCG(9, 1))
	for _, s := range []struct {
		queries, keys, depth int
		causal               bool
	}{{70, 96, 40, true}, {5, 7, 3, false}, {9, 4, 1, true}} {
		op := graph.Attention{Scale: 1 / math.Sqrt(float64(s.depth)), Causal: s.causal}
		args := []*graph.Tensor{drawReals(r, graph.F32, -2, 2, heads, s.queries, s.depth),
			drawReals(r, graph.F32, -2, 2, heads, s.keys, s.depth),
			drawReals(r, graph.F32, -2, 2, heads, s.keys, s.depth)}
		var in []ref.Value
		for _, a := range args {
			in = append(in, ref.FromTensor(a))
		}
		want, err := ref.OpBound(op, in)
		if err != nil {
			t.Fatal(err)
		}
		rungs, err := cuda.LadderAttention(heads, s.queries, s.keys, s.depth, s.causal, cuda.Config{Chip: d.GPU.Chip()})
		if err != nil {
			t.Fatal(err)
		}
		for _, rung := range rungs {
			var buffers []cudatest.Buffer
			for i, u := range rung.Args {
				x := graph.NewTensor(u)
				switch i {
				case 3:
					x = graph.Filled(u, float64(s.keys))
				case 4:
					for e := range u.Shape.Elems() {
						x.SetFloat(e, float64(e))
					}
				default:
					copy(x.Data.([]float32), args[i].Data.([]float32))
				}
				o := cuda.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape)}
				buffers = append(buffers, cudatest.Buffer{Operand: o, Value: x})
			}
			shape := want[0].Type.Shape
			out := []cudatest.Buffer{{Operand: cuda.Operand{DType: graph.F32, Layout: graph.Contiguous(shape)}}}
			if _, err := d.Run(rung.Kernel, buffers, out); err != nil {
				t.Fatalf("%s: %v", rung.Name, err)
			}
			if err := ref.Check(out[0].Value, want[0]); err != nil {
				t.Errorf("%s of %+v: %v", rung.Name, s, err)
			}
		}
	}
}
