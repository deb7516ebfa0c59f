package lowering

import (
	"slices"
	"testing"

	"fusec/graph"
)

// TestUpdateInPlace checks which updates by UpdateSlice are written into the state's buffer, for any target.
func TestUpdateInPlace(t *testing.T) {
	overwrite := graph.UpdateSlice{Axis: 1}
	wide := f32(2, 6, 3)
	for _, c := range []struct {
		name    string
		build   func(b *graph.Builder, cache, update, start *graph.Node)
		inPlace []string // the states
	}{
		{"alone", func(b *graph.Builder, cache, update, start *graph.Node) {
			b.Update(cache, b.Add(overwrite, cache, update, start))
		}, []string{"cache"}},
		{"behind a reader of what it overwrites", func(b *graph.Builder, cache, update, start *graph.Node) {
			b.Update(cache, b.Add(overwrite, cache, update, start))
			b.Output("old", b.Add(graph.Concat{Axis: 0}, cache, cache)) // after the update in the graph
		}, []string{"cache"}},
		{"a chain", func(b *graph.Builder, cache, update, start *graph.Node) {
			y := b.Add(overwrite, cache, update, start)
			b.Update(cache, b.Add(overwrite, y, update, b.Scalar(graph.I64, 4)))
		}, []string{"cache"}},
		{"read with the new value", func(b *graph.Builder, cache, update, start *graph.Node) {
			y := b.Add(overwrite, cache, update, start)
			b.Update(cache, y)
			b.Output("both", b.Add(graph.Concat{Axis: 0}, cache, y))
		}, nil},
		{"a link of a chain is read", func(b *graph.Builder, cache, update, start *graph.Node) {
			y := b.Add(overwrite, cache, update, start)
			z := b.Add(overwrite, y, update, b.Scalar(graph.I64, 4))
			b.Update(cache, z)
			b.Output("both", b.Add(graph.Concat{Axis: 0}, y, z))
		}, nil},
		{"of itself", func(b *graph.Builder, cache, update, start *graph.Node) {
			b.Update(cache, b.Add(overwrite, cache, cache, b.Scalar(graph.I64, 0)))
		}, nil},
		{"of another state's new value", func(b *graph.Builder, cache, update, start *graph.Node) {
			other := b.State("other", wide)
			y := b.Add(overwrite, cache, update, start)
			b.Update(cache, y)
			b.Update(other, b.Add(overwrite, y, update, b.Scalar(graph.I64, 4)))
		}, []string{"cache"}},
		{"another operation", func(b *graph.Builder, cache, update, start *graph.Node) {
			b.Update(cache, b.Add(graph.Concat{Axis: 1}, update, update, update))
		}, nil},
		{"of a parameter", func(b *graph.Builder, cache, update, start *graph.Node) {
			w := b.Param("w", wide)
			b.Update(w, b.Add(overwrite, w, update, start))
		}, nil},
	} {
		g := made(t, func(b *graph.Builder) {
			c.build(b, b.State("cache", wide), b.Input("update", f32(2, 2, 3)), b.Input("start", graph.TypeOf(graph.I64)))
		})
		p, err := Lower(g, "none")
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var got []string
		for _, u := range p.Updates {
			if u.Target == u.Value {
				got = append(got, p.Buffers[u.Target].Name)
			}
		}
		if !slices.Equal(got, c.inPlace) {
			t.Errorf("%s: %v are written in place, want %v\n%v", c.name, got, c.inPlace, p)
		}
		used := make([]bool, len(p.Buffers))
		begun := map[int]bool{} // what was overwritten
		for _, l := range p.Launches {
			at := l.Results[0].Buffer
			_, update := l.Op.(graph.UpdateSlice)
			in := update && l.Args[0].Buffer == at
			for i, a := range l.Args {
				used[a.Buffer] = true
				if begun[a.Buffer] && !update {
					t.Errorf("%s: argument %d of %v has been overwritten\n%v", c.name, i, l.Node, p)
				}
			}
			used[at] = true
			if in {
				begun[at] = true
				if want := int64(2*2*2*3*4 + 8); int64(l.Bytes) != want { // read and written, and the start
					t.Errorf("%s: an update in place moves %d bytes, want %d", c.name, l.Bytes, want)
				}
			}
		}
		for i, b := range p.Buffers {
			if !used[i] && b.Role == Temp {
				t.Errorf("%s: buffer %d is left and nothing uses it\n%v", c.name, i, p)
			}
		}
	}
}
