package fuse

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// TestLaunchOrder joins units at random and compares with a search for paths over the whole graph.
func TestLaunchOrder(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		g := graphtest.Built(t, func(b *graph.Builder) {
			nodes := []*graph.Node{b.Input("x", graph.TypeOf(graph.F64, 2))}
			for range 25 {
				pick := func() *graph.Node { return nodes[r.IntN(len(nodes))] }
				nodes = append(nodes, b.Binary(graph.Add, pick(), pick()))
			}
			for i, n := range nodes {
				b.Output(fmt.Sprint(i), n)
			}
		})
		o := newLaunchOrder(g, g.Uses())
		unit := map[*graph.Node]int{}
		for i, n := range g.Nodes {
			unit[n] = i
		}
		units := len(g.Nodes)
		reads := func(from, to int) bool { // directly
			for _, n := range g.Nodes {
				for _, a := range n.Args {
					if unit[n] == from && unit[a] == to && from != to {
						return true
					}
				}
			}
			return false
		}
		var path func(from, to int, seen map[int]bool) bool
		path = func(from, to int, seen map[int]bool) bool {
			if from == to {
				return true
			}
			seen[from] = true
			for _, n := range g.Nodes {
				if u := unit[n]; !seen[u] && reads(from, u) && path(u, to, seen) {
					return true
				}
			}
			return false
		}
		indirect := func(from, to int) bool {
			for _, n := range g.Nodes {
				if u := unit[n]; u != from && u != to && reads(from, u) && path(u, to, map[int]bool{from: true}) {
					return true
				}
			}
			return false
		}
		for range 30 {
			a, b := g.Nodes[r.IntN(len(g.Nodes))], g.Nodes[r.IntN(len(g.Nodes))]
			if unit[a] == unit[b] {
				continue
			}
			want := indirect(unit[a], unit[b]) || indirect(unit[b], unit[a])
			if got, way := o.between(a, b), o.way(a, b); got != want || (way != nil) != want {
				t.Fatalf("seed %d: a third unit between %v and %v: %v by %v, want %v", seed, a, b, got, way, want)
			}
			o.join(a, b)
			if !want {
				for _, n := range g.Nodes {
					if unit[n] == unit[b] && n != b {
						unit[n] = unit[a]
					}
				}
				unit[b] = unit[a]
			}
			if last := g.Nodes[len(g.Nodes)-1-r.IntN(3)]; r.IntN(3) == 0 && len(o.of.Get(last).nodes) > 1 &&
				!slices.ContainsFunc(o.of.Get(last).nodes, func(n *graph.Node) bool { return slices.Contains(n.Args, last) }) {
				rest := slices.DeleteFunc(slices.Clone(o.of.Get(last).nodes), func(n *graph.Node) bool { return n == last })
				units++
				unit[last] = units
				o.split(rest[0], []*graph.Node{last})
			}
			for _, n := range g.Nodes {
				for _, x := range n.Args {
					if o.of.Get(x).label > o.of.Get(n).label || (o.of.Get(x) == o.of.Get(n)) != (unit[x] == unit[n]) {
						t.Fatalf("seed %d: %v and its operand %v stand at %d and %d", seed, n, x, o.of.Get(n).label, o.of.Get(x).label)
					}
				}
			}
		}
	}
}

// TestLaunchOrderMoves moves a thousand units to one place, one after the other.
func TestLaunchOrderMoves(t *testing.T) {
	const n = 1000
	var root *graph.Node
	var side, sums []*graph.Node
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 4))
		root = b.Unary(graph.Exp, x)
		y := root
		for range n {
			s := b.Unary(graph.Tanh, x)
			y = b.Binary(graph.Add, y, s)
			side, sums = append(side, s), append(sums, y)
		}
		b.Output("y", y)
	})
	o := newLaunchOrder(g, g.Uses())
	for i, y := range sums {
		o.join(root, y)
		if o.of.Get(y) != o.of.Get(root) || o.of.Get(side[i]).label >= o.of.Get(y).label {
			t.Fatalf("sum %d stands at %d, its operand at %d, the unit that it joins at %d", i, o.of.Get(y).label, o.of.Get(side[i]).label,
				o.of.Get(root).label)
		}
	}
	count := 0
	for u := o.first.next; u != &o.last; u = u.next {
		if count++; u.label <= u.prev.label || u.label >= u.next.label {
			t.Fatalf("labels %d, %d, %d", u.prev.label, u.label, u.next.label)
		}
	}
	if count != n+2 {
		t.Errorf("%d units, want %d", count, n+2)
	}
}
