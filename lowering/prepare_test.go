package lowering

import (
	"slices"
	"testing"

	"fusec/graph"
)

// TestPrepared checks which launches are prepared, what the run reads of them, and which parameters it does not need: those
// that neither a launch of the run, nor an output, nor an update has.
func TestPrepared(t *testing.T) {
	for _, kept := range []bool{false, true} {
		p, err := Lower(made(t, func(b *graph.Builder) {
			x, w, s := b.Input("x", f32(2, 3)), b.Param("w", f32(4, 3)), b.Param("s", f32(2, 4))
			turned := b.Add(graph.Copy{}, b.Transpose(w, 1, 0)) // prepared
			b.Output("y", b.Binary(graph.Add, b.MatMul(x, turned, false, false), s))
			if kept {
				b.Output("kept", b.Add(graph.Copy{}, w))
			}
		}), "none", Frozen())
		if err != nil {
			t.Fatal(err)
		}
		var from, originals, made []string
		for i, b := range p.Buffers {
			if p.PreparedFrom()[i] {
				from = append(from, b.Name)
			}
			if p.Originals()[i] {
				originals = append(originals, b.Name)
			}
			if b.Role == Prepared {
				made = append(made, b.Name)
			}
		}
		want := []string{"w"}
		if kept {
			want = nil
		}
		if p.Prepared != 1 || len(made) != 1 || !slices.Equal(from, []string{"w"}) || !slices.Equal(originals, want) {
			t.Errorf("output %v: %d launches prepared, results %q, from %q, originals %q", kept, p.Prepared, made, from, originals)
		}
	}
}

// TestSamePrepared finds the values that two programs prepare alike: of the same operations on parameters of the same names and
// equal constants.
func TestSamePrepared(t *testing.T) {
	lowered := func(build func(b *graph.Builder, x *graph.Node)) *Program {
		p, err := Lower(made(t, func(b *graph.Builder) { build(b, b.Input("x", f32(2, 3))) }), "none", Frozen())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	turned := func(b *graph.Builder, name string) *graph.Node {
		return b.Add(graph.Copy{}, b.Transpose(b.Param(name, f32(4, 3)), 1, 0))
	}
	p := lowered(func(b *graph.Builder, x *graph.Node) {
		b.Output("y", b.MatMul(x, turned(b, "w"), false, false))
		b.Output("z", b.MatMul(x, b.Add(graph.Softmax{Axis: 1}, turned(b, "v")), false, false))
		b.Output("s", b.MatMul(x, b.BinaryScalar(graph.Mul, b.Param("u", f32(3, 5)), 3), false, false))
	})
	q := lowered(func(b *graph.Builder, x *graph.Node) {
		b.Output("z", b.MatMul(x, b.Add(graph.Softmax{Axis: 0}, turned(b, "v")), false, false))
		b.Output("s", b.MatMul(x, b.BinaryScalar(graph.Mul, b.Param("u", f32(3, 5)), 3), false, false))
		b.Output("t", b.MatMul(x, b.BinaryScalar(graph.Mul, b.Param("u2", f32(3, 5)), 3), false, false))
		b.Output("y", b.MatMul(x, turned(b, "w"), false, false))
	})
	found := 0
	for i, j := range p.SamePrepared(q) {
		if j < 0 {
			continue
		}
		found++
		if p.Buffers[i].Role != Prepared || q.Buffers[j].Role != Prepared || p.Buffers[i].Type != q.Buffers[j].Type {
			t.Errorf("%+v is like %+v", p.Buffers[i], q.Buffers[j])
		}
	}
	if found != 2 {
		t.Errorf("%d values are alike\n%v\n%v", found, p, q)
	}
	q.Frozen = false
	if slices.ContainsFunc(p.SamePrepared(q), func(j int) bool { return j >= 0 }) {
		t.Error("values of parameters that change are alike")
	}
}
