package graph

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// TestUses counts the readers of a random graph, rewrites it, and compares with a fresh count.
func TestUses(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 5))
		b := NewBuilder("g")
		nodes := []*Node{b.Input("x", TypeOf(F32, 2)), b.State("s", TypeOf(F32, 2))}
		pick := func() *Node { return nodes[r.IntN(len(nodes))] }
		for range 30 {
			nodes = append(nodes, b.Binary(Add, pick(), pick()))
		}
		b.Output("y", pick())
		b.Update(nodes[1], pick())
		g := b.g
		u := g.Uses()
		readers, escapes := g.Users(), g.Escapes()
		for _, n := range g.Nodes {
			if !slices.Equal(u.Readers(n), readers[n]) || u.Escapes(n) != escapes[n] {
				t.Fatalf("seed %d: %v is read by %v, escapes: %v; want %v, %v", seed, n, u.Readers(n), u.Escapes(n), readers[n], escapes[n])
			}
		}
		for range 10 { // what reads a reads another, which may not be computed from it
			i, j := r.IntN(len(nodes)), r.IntN(len(nodes))
			a, to := nodes[max(i, j)], nodes[min(i, j)]
			if a == to || IsSource(a.Op) {
				continue
			}
			g.Replace(map[*Node]*Node{a: to})
			u.Move(a, to)
		}
		last := nodes[len(nodes)-1]
		of := []bool{u.Of(g)}
		g.Nodes = slices.Delete(g.Nodes, len(g.Nodes)-1, len(g.Nodes))
		of = append(of, u.Of(g))
		for _, a := range last.Args {
			u.Remove(a, last)
		}
		if of = append(of, u.Of(g)); !slices.Equal(of, []bool{true, false, true}) {
			t.Fatalf("seed %d: uses up to date, of the graph before, and up to date: %v", seed, of)
		}
		readers, escapes = g.Users(), g.Escapes()
		byID := func(a, b *Node) int { return a.ID - b.ID }
		for _, n := range g.Nodes {
			have := slices.SortedFunc(slices.Values(u.Readers(n)), byID)
			if !slices.Equal(have, readers[n]) || u.Escapes(n) != escapes[n] ||
				u.One(n) != (len(readers[n]) == 1 && !escapes[n]) || u.None(n) != (len(readers[n]) == 0 && !escapes[n]) {
				t.Fatalf("seed %d: after rewrites %v is read by %v, escapes: %v; want %v, %v", seed, n, have, u.Escapes(n), readers[n],
					escapes[n])
			}
		}
	}
}

// TestResultOfFusion says that the type of a further result is that of the body's output, and is refused outside of them. It
// is not found by a list of all.
func TestResultOfFusion(t *testing.T) {
	body := NewBuilder("")
	x := body.Input("x", TypeOf(F32, 2))
	const results = 2000
	for range results {
		x = body.CastTo(map[bool]DType{true: F64, false: F32}[x.Type.DType == F32], x)
		body.Output("", x)
	}
	b := NewBuilder("g")
	f := b.Add(Fusion{Anchor: AnchorNone, Body: body.g}, b.Input("x", TypeOf(F32, 2)))
	if b.Err() != nil {
		t.Fatal(b.Err())
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		b.Add(Result{results - 1}, f)
	}
	runtime.ReadMemStats(&after)
	if bytes := (after.TotalAlloc - before.TotalAlloc) / 100; bytes > 4096 {
		t.Errorf("a result of %d takes %d bytes to add", results, bytes)
	}
	for i, want := range map[int]DType{1: F32, 2: F64, results - 1: F32} {
		if n := b.Add(Result{i}, f); n.Type != TypeOf(want, 2) {
			t.Errorf("result %d is %v", i, n.Type)
		}
	}
	for _, i := range []int{0, results} {
		if _, err := b.g.Add(Result{i}, f); err == nil {
			t.Errorf("result %d of %d is accepted", i, results)
		}
	}
}
