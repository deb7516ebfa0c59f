package fusec_test

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

// An f32 attention whose mask moves every score to −1e9 is a plain mean over the keys, as arithmetic says, and its
// gradients are those of a mean: that of the values in the attention's own kernel, that of the mask in primitives.
func TestAttentionAllMasked(t *testing.T) {
	const queries, keys, depth = 5, 70, 4
	b := graph.NewBuilder("masked")
	q, k, v := b.Input("q", f32(queries, depth)), b.Input("k", f32(keys, depth)), b.Input("v", f32(keys, depth))
	mask, weigh := b.Input("mask", f32(queries, keys)), b.Input("weigh", f32(queries, depth))
	y := b.Add(graph.Attention{Scale: 1, HasMask: true}, q, k, v, mask)
	cost := b.Reduce(graph.Sum, b.Binary(graph.Mul, y, weigh), false, 0, 1)
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	d, err := graph.Gradients(g, cost, []*graph.Node{q, v, mask})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"dq", "dv", "dmask"} {
		b.Output(name, d[i])
	}
	r := rand.New(rand.NewPCG(1, 2))
	in := map[string]*graph.Tensor{"mask": graph.Filled(mask.Type, -1e9)}
	for _, n := range []*graph.Node{q, k, v, weigh} {
		x := graph.NewTensor(n.Type)
		for i := range n.Type.Shape.Elems() {
			x.SetFloat(i, 2*r.Float64()-1) // scores far below the 64 that −1e9 has room for
		}
		in[n.Name] = x
	}
	out, err := compiled(t, b).Run(in)
	if err != nil {
		t.Fatal(err)
	}
	dq, dv, dmask := make([]float64, queries*depth), make([]float64, keys*depth), make([]float64, queries*keys)
	for i := range queries {
		mean := 0.0
		for j := range keys {
			for c := range depth {
				w := in["weigh"].Float(i*depth+c) / keys
				dv[j*depth+c] += w
				dmask[i*keys+j] += w * in["v"].Float(j*depth+c)
			}
			mean += dmask[i*keys+j] / keys
		}
		for j := range keys {
			dmask[i*keys+j] -= mean
			for c := range depth {
				dq[i*depth+c] += dmask[i*keys+j] * in["k"].Float(j*depth+c)
			}
		}
	}
	sameFloats(t, "dq", out["dq"].Floats(), dq, 1e-6)
	sameFloats(t, "dv", out["dv"].Floats(), dv, 1e-6)
	sameFloats(t, "dmask", out["dmask"].Floats(), dmask, 1e-6)
}
