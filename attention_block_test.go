package fusec_test

import (
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/lowering/cpu"
)

// Attentions and their gradients are the same, up to rounding, in blocks of every size; smaller ones need less scratch.
func TestWithAttentionBlock(t *testing.T) {
	const seq, depth = 70, 8
	var want map[string]*graph.Tensor
	scratch := map[int]int64{}
	for _, n := range []int{0, 1, 16, 33, 1000} {
		b := graph.NewBuilder("attention")
		var in [3]*graph.Node
		values := map[string]*graph.Tensor{}
		for i, name := range []string{"q", "k", "v"} {
			in[i] = b.Input(name, f32(2, seq, depth))
			x := graph.NewTensor(f32(2, seq, depth))
			for j := range 2 * seq * depth {
				x.SetFloat(j, float64((j*(i+3)+i)%17)/8-1)
			}
			values[name] = x
		}
		y := b.Add(graph.Attention{Scale: 0.5, Causal: true}, in[0], in[1], in[2])
		b.Output("y", y)
		cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1, 2)
		b.Output("cost", cost)
		p := compiled(t, b, fusec.WithTarget("cpu", cpu.AttentionBlock(n)), fusec.WithWorkers(2),
			fusec.WithGradient("dq", cost, in[0]), fusec.WithGradient("dk", cost, in[1]))
		out, err := p.Run(values)
		if err != nil {
			t.Fatal(err)
		}
		m := p.Memory()
		scratch[n] = m.Scratch
		if m.Bytes() != p.Bytes() || m.Bytes() != m.Arena+m.Outputs+m.Scratch+m.Kernels || m.Outputs <= 0 {
			t.Errorf("memory %+v of %d", m, p.Bytes())
		}
		if want == nil {
			want = out
		}
		for name, w := range want {
			sameFloats(t, name, out[name].Floats(), w.Floats(), 1e-5)
		}
	}
	if !(scratch[16] < scratch[0]) {
		t.Errorf("blocks of 16 take %d bytes of scratch, those chosen by the shape %d", scratch[16], scratch[0])
	}
	_, err := fusec.Compile(built(t, linearGraph()), fusec.WithTarget("cpu", cpu.AttentionBlock(-1)))
	wantError(t, err, "AttentionBlock(-1)")
}
