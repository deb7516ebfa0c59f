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
