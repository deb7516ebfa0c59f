package graph

import (
	"slices"
	"testing"
)

// TestRecorder shares what has stayed the same between snapshots, and nothing else.
func TestRecorder(t *testing.T) {
	b := NewBuilder("g")
	x := b.Input("x", TypeOf(F32, 4))
	y := b.Unary(Exp, x)
	z := b.Unary(Tanh, y)
	side := b.Unary(Neg, x)
	b.Output("z", z)
	b.Output("side", side)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	var r Recorder
	one := r.Snapshot(g)
	if one == g || one.Nodes[1] == y || Print(one) != Print(g) {
		t.Fatalf("the snapshot is the graph itself, or another:\n%s", Print(one))
	}
	if r.Snapshot(g) != one {
		t.Error("another snapshot of the same graph")
	}
	text := Print(one)
	for _, change := range []func(){
		func() { y.Op = Unary{Fn: Log} },
		func() { y.Name = "y" },
		func() { y.Origin = []Origin{{Name: "user's y"}} },
		func() { y.Args = []*Node{side}; g.Nodes = []*Node{x, side, y, z} },
	} {
		before := r.Snapshot(g)
		if err := r.Check(g); err != nil {
			t.Error(err)
		}
		moved := g.Nodes
		change()
		if slices.Equal(g.Nodes, moved) {
			if err := r.Check(g); err == nil || r.Snapshot(g) != before {
				t.Errorf("a change in place: %v", err)
			}
			if _, err := g.Add(Unary{Fn: Neg}, x); err != nil {
				t.Fatal(err)
			}
			if err := g.Tidy(); err != nil {
				t.Fatal(err)
			}
		}
		after := r.Snapshot(g)
		if Print(after) != Print(g) || Verify(after) != nil {
			t.Errorf("the snapshot is\n%s, the graph\n%s", Print(after), Print(g))
		}
		if after == before || after.Outputs[0].Node == before.Outputs[0].Node || after.Outputs[1].Node != before.Outputs[1].Node {
			t.Error("what depends on the change has to be copied, and the rest shared")
		}
	}
	g.Outputs = g.Outputs[:1]
	if s := r.Snapshot(g); len(s.Outputs) != 1 {
		t.Errorf("outputs %v", s.Outputs)
	}
	if Print(one) != text {
		t.Errorf("the first snapshot has become\n%s", Print(one))
	}
}
