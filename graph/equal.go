package graph

import (
	"fmt"
	"slices"
)

// Equal explains the first difference between two graphs, or returns nil. Everything that the text form stores is
// compared: names, IDs, phases, the order of nodes, operations with their attributes, constants bit for bit, types, shardings,
// outputs, updates, notes, gradients and the optimiser. Origins and the code of Host operations are not compared.
func Equal(a, b *Graph) error {
	if a.Name != b.Name {
		return fmt.Errorf("the graphs are named %q and %q", a.Name, b.Name)
	}
	if !slices.Equal(a.Mesh, b.Mesh) || a.Parts != b.Parts {
		return fmt.Errorf("the meshes are %q and %q", a.Mesh, b.Mesh)
	}
	if len(a.Nodes) != len(b.Nodes) {
		return fmt.Errorf("the graphs have %d and %d nodes", len(a.Nodes), len(b.Nodes))
	}
	at := make(map[*Node]*Node, len(a.Nodes))
	for i, n := range a.Nodes {
		m := b.Nodes[i]
		at[n] = m
		if err := equalNodes(n, m, at); err != nil {
			return fmt.Errorf("node %d: %s: %w", i, n.Where(), err)
		}
	}
	if !slices.EqualFunc(a.Outputs, b.Outputs, func(o, p Output) bool { return o.Name == p.Name && at[o.Node] == p.Node }) {
		return fmt.Errorf("the outputs differ: %v and %v", a.Outputs, b.Outputs)
	}
	if !slices.EqualFunc(a.Updates, b.Updates, func(u, v Update) bool { return at[u.Target] == v.Target && at[u.Value] == v.Value }) {
		return fmt.Errorf("the updates differ: %v and %v", a.Updates, b.Updates)
	}
	if !slices.EqualFunc(a.Notes, b.Notes, func(n, m Note) bool {
		return n.Kind == m.Kind && n.Topic == m.Topic && n.Text == m.Text && at[n.Node] == m.Node
	}) {
		return fmt.Errorf("the notes differ: %v and %v", a.Notes, b.Notes)
	}
	return equalTraining(a, b, at)
}

func equalNodes(n, m *Node, at map[*Node]*Node) error {
	switch {
	case n.ID != m.ID:
		return fmt.Errorf("IDs %d and %d", n.ID, m.ID)
	case n.Name != m.Name:
		return fmt.Errorf("names %q and %q", n.Name, m.Name)
	case n.Phase != m.Phase:
		return fmt.Errorf("phases %v and %v", n.Phase, m.Phase)
	case n.Sharding != m.Sharding:
		return fmt.Errorf("shardings %v and %v", n.Sharding, m.Sharding)
	case n.Type != m.Type:
		return fmt.Errorf("types %v and %v", n.Type, m.Type)
	case !slices.EqualFunc(n.Args, m.Args, func(x, y *Node) bool { return at[x] == y }):
		return fmt.Errorf("operands %v and %v", n.Args, m.Args)
	}
	return equalOps(n.Op, m.Op)
}

func equalOps(p, q Op) error {
	if InfoOf(p) != InfoOf(q) {
		return fmt.Errorf("operations %s and %s", p.OpName(), q.OpName())
	}
	switch o := p.(type) {
	case Const:
		if !o.Value.Equal(q.(Const).Value) {
			return fmt.Errorf("the constants differ")
		}
		return nil
	case Fusion:
		if err := Equal(o.Body, q.(Fusion).Body); err != nil {
			return fmt.Errorf("the bodies differ: %w", err)
		}
	}
	// Attributes are compared as text, so that NaN equals itself and -0 differs from 0.
	x, y := Attrs(p), Attrs(q)
	if !slices.Equal(x, y) {
		return fmt.Errorf("attributes %v and %v", x, y)
	}
	return nil
}
