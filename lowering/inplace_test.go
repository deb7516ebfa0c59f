package lowering

import (
	"slices"
	"testing"

	"fusec/graph"
)

// elementwise adds a fusion whose body is built of inputs of the operands' types.
func elementwise(b *graph.Builder, build func(b *graph.Builder, in []*graph.Node), args ...*graph.Node) *graph.Node {
	body := graph.New("")
	bb := graph.Extend(body)
	in := make([]*graph.Node, len(args))
	for i, a := range args {
		in[i] = bb.Add(graph.Input{Type: a.Type})
	}
	build(bb, in)
	for i := range body.Outputs {
		body.Outputs[i].Name = string(rune('0' + i))
	}
	return b.Add(graph.Fusion{Anchor: graph.AnchorNone, Kind: graph.KindElementwise, Body: body}, args...)
}

// TestInPlace says which updates are written straight into what they update.
func TestInPlace(t *testing.T) {
	sum := func(b *graph.Builder, in []*graph.Node) { b.Output("", b.Binary(graph.Add, in[0], in[1])) }
	for _, c := range []struct {
		name    string
		build   func(b *graph.Builder)
		inPlace []string // the targets
	}{
		{"an update alone", func(b *graph.Builder) {
			w := b.Param("w", f32(4, 6))
			b.Update(w, elementwise(b, sum, w, b.Input("g", f32(4, 6))))
		}, []string{"w"}},
		{"state that is only written", func(b *graph.Builder) {
			s, x := b.State("s", f32(4)), b.Input("x", f32(4))
			b.Update(s, elementwise(b, sum, x, x))
		}, []string{"s"}},
		{"read by launches before, not by itself last", func(b *graph.Builder) {
			w, g := b.Param("w", f32(4)), b.Input("g", f32(4))
			b.Update(w, elementwise(b, sum, w, g))
			b.Output("y", b.Add(graph.Concat{Axis: 0}, w, g)) // after the update in the graph
		}, []string{"w"}},
		{"a result of several", func(b *graph.Builder) {
			w, m, g := b.Param("w", f32(4)), b.State("m", f32(4)), b.Input("g", f32(4))
			y := elementwise(b, func(b *graph.Builder, in []*graph.Node) {
				m := b.Binary(graph.Add, in[1], in[2])
				b.Output("", m)
				b.Output("", b.Binary(graph.Sub, in[0], m))
			}, w, m, g)
			b.Update(m, y)
			b.Update(w, b.Add(graph.Result{Index: 1}, y))
		}, []string{"m", "w"}},
		{"handed out, too", func(b *graph.Builder) {
			w := b.Param("w", f32(4))
			y := elementwise(b, func(b *graph.Builder, in []*graph.Node) {
				b.Output("", b.Unary(graph.Exp, in[0]))
				b.Output("", b.Unary(graph.Tanh, in[0]))
			}, w)
			b.Update(w, y)
			b.Output("y", b.Add(graph.Result{Index: 1}, y))
		}, nil},
		{"another update reads it", func(b *graph.Builder) {
			w, s, g := b.Param("w", f32(4)), b.State("s", f32(4)), b.Input("g", f32(4))
			b.Update(w, elementwise(b, sum, w, g))
			b.Update(s, elementwise(b, sum, w, s))
		}, []string{"s"}},
		{"another segment reads it", func(b *graph.Builder) {
			w, s := b.Param("w", f32(4)), b.State("s", f32(4))
			y := elementwise(b, func(b *graph.Builder, in []*graph.Node) {
				b.Output("", b.Unary(graph.Exp, in[0]))
				b.Output("", b.Unary(graph.Tanh, in[0]))
			}, w)
			b.Update(w, y)
			b.Update(s, b.Add(graph.Result{Index: 1}, y))
		}, []string{"s"}},
		{"read through a view of it", func(b *graph.Builder) {
			w := b.Param("w", f32(4, 4))
			b.Update(w, elementwise(b, sum, w, b.Transpose(w, 1, 0)))
		}, nil},
		{"read through a view in the body", func(b *graph.Builder) {
			w := b.Param("w", f32(4, 4))
			b.Update(w, elementwise(b, func(b *graph.Builder, in []*graph.Node) {
				b.Output("", b.Unary(graph.Exp, b.Transpose(in[0], 1, 0)))
			}, w))
		}, nil},
		{"stored through a view", func(b *graph.Builder) {
			w := b.Param("w", f32(4, 4))
			b.Update(w, elementwise(b, func(b *graph.Builder, in []*graph.Node) {
				b.Output("", b.Transpose(b.Unary(graph.Exp, in[0]), 1, 0))
			}, w))
		}, nil},
		{"an operation that can fail", func(b *graph.Builder) {
			s, n := b.State("s", graph.TypeOf(graph.I64, 3)), b.Input("n", graph.TypeOf(graph.I64, 3))
			b.Update(s, elementwise(b, func(b *graph.Builder, in []*graph.Node) {
				b.Output("", b.Binary(graph.Div, in[0], in[1]))
			}, s, n))
		}, nil},
		{"another operation", func(b *graph.Builder) {
			s := b.State("s", f32(3, 3))
			b.Update(s, b.MatMul(s, s, false, false))
		}, nil},
	} {
		g := made(t, c.build)
		p, err := Lower(g, "none")
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var got []string
		written := map[int]bool{}
		for _, u := range p.Updates {
			if u.Target == u.Value {
				got = append(got, p.Buffers[u.Target].Name)
				written[u.Target] = true
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.inPlace) {
			t.Errorf("%s: %v are written in place, want %v\n%v", c.name, got, c.inPlace, p)
		}
		// Once a launch has written in place, no other reads what it wrote, and none that could fail follows.
		begun := map[int]bool{}
		for _, l := range p.Launches {
			f, fusion := l.Op.(graph.Fusion)
			for _, a := range l.Args {
				if begun[a.Buffer] {
					t.Errorf("%s: %v reads what has been overwritten\n%v", c.name, l.Node, p)
				}
			}
			if len(begun) > 0 && (!fusion || f.Fails()) {
				t.Errorf("%s: %v can fail after weights were written\n%v", c.name, l.Node, p)
			}
			for _, r := range l.Results {
				if written[r.Buffer] {
					begun[r.Buffer] = true
				}
			}
		}
		if p, err = Lower(g, "none", CopyUpdates()); err != nil {
			t.Fatal(err)
		}
		for _, u := range p.Updates {
			if u.Target == u.Value {
				t.Errorf("%s: %q is written in place although updates are to be copied", c.name,
					p.Buffers[u.Target].Name)
			}
		}
	}
}
