package main

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// minimise makes a case smaller for as long as it fails, or until the deadline: outputs, updates and gradients go, nodes
// give way to an operand or to an input of their type, axes become shorter. This is delta debugging (Zeller and
// Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002) over a graph.
func minimise(c *graphtest.Case, fails func(*graphtest.Case) bool, deadline time.Time) *graphtest.Case {
	m := &minimiser{best: c, fails: fails, deadline: deadline}
	for m.pass() {
	}
	return m.best
}

type minimiser struct {
	best     *graphtest.Case
	fails    func(*graphtest.Case) bool
	deadline time.Time
}

// pass tries everything once, and reports whether anything became smaller.
func (m *minimiser) pass() bool {
	before := m.best
	m.chunks(func(c *graphtest.Case) int { return len(c.Gradients) }, func(c *graphtest.Case, i, j int) {
		c.Gradients = slices.Delete(c.Gradients, i, j)
	})
	m.chunks(func(c *graphtest.Case) int { return len(c.Graph.Updates) }, func(c *graphtest.Case, i, j int) {
		c.Graph.Updates = slices.Delete(c.Graph.Updates, i, j)
	})
	m.chunks(func(c *graphtest.Case) int { return len(c.Graph.Outputs) }, func(c *graphtest.Case, i, j int) {
		c.Graph.Outputs = slices.Delete(c.Graph.Outputs, i, j)
	})
	for i := len(m.best.Graph.Nodes) - 1; i >= 0; i-- {
		if i < len(m.best.Graph.Nodes) {
			m.node(i)
		}
	}
	m.sizes()
	if m.best.Draw != graphtest.Ordinary {
		m.try(func(c *graphtest.Case) bool { c.Draw = graphtest.Ordinary; return true })
	}
	return m.best != before && time.Now().Before(m.deadline)
}

// try keeps what change makes of a copy if it is valid and fails. Change returns false if it has nothing to do.
func (m *minimiser) try(change func(c *graphtest.Case) bool) bool {
	if time.Now().After(m.deadline) {
		return false
	}
	c := m.best.Clone()
	if !change(c) || !tidy(c) || !m.fails(c) {
		return false
	}
	m.best = c
	return true
}

// tidy drops the nodes that nothing needs, sources among them, and the gradients whose nodes are gone, and reports
// whether the graph is valid.
func tidy(c *graphtest.Case) bool {
	needed := map[*graph.Node]bool{}
	need := func(n *graph.Node) { needed[n] = true }
	for _, o := range c.Graph.Outputs {
		need(o.Node)
	}
	for _, u := range c.Graph.Updates {
		need(u.Target)
		need(u.Value)
	}
	if len(needed) == 0 {
		return false
	}
	for i := len(c.Graph.Nodes) - 1; i >= 0; i-- {
		if n := c.Graph.Nodes[i]; needed[n] {
			for _, a := range n.Args {
				need(a)
			}
		}
	}
	c.Graph.Nodes = slices.DeleteFunc(c.Graph.Nodes, func(n *graph.Node) bool { return !needed[n] })
	c.Gradients = slices.DeleteFunc(c.Gradients, func(d graphtest.Gradient) bool { return !needed[d.Cost] || !needed[d.Of] })
	return c.Graph.Tidy() == nil && graph.Verify(c.Graph) == nil
}

// chunks drops parts of a list of n elements, ever shorter ones.
func (m *minimiser) chunks(n func(c *graphtest.Case) int, drop func(c *graphtest.Case, i, j int)) {
	for size := n(m.best); size > 0; size /= 2 {
		for i := 0; i < n(m.best); {
			if !m.try(func(c *graphtest.Case) bool { drop(c, i, min(i+size, n(c))); return true }) {
				i += size
			}
		}
	}
}

// node lets node i give way to an operand of its type, or to an input.
func (m *minimiser) node(i int) {
	n := m.best.Graph.Nodes[i]
	if graph.IsSource(n.Op) {
		if _, ok := n.Op.(graph.Input); !ok {
			m.try(func(c *graphtest.Case) bool { c.Graph.Nodes[i].Op = graph.Input{Type: n.Type}; return true })
		}
		return
	}
	for j, a := range n.Args {
		if a.Type == n.Type && m.try(func(c *graphtest.Case) bool {
			replace(c, c.Graph.Nodes[i], c.Graph.Nodes[i].Args[j])
			return true
		}) {
			return
		}
	}
	m.try(func(c *graphtest.Case) bool {
		old := c.Graph.Nodes[i]
		replace(c, old, graph.Extend(c.Graph).Input(fmt.Sprintf("m%d", old.ID), old.Type))
		return true
	})
}

// replace makes everything that names a node name another one.
func replace(c *graphtest.Case, old, with *graph.Node) {
	c.Graph.Replace(map[*graph.Node]*graph.Node{old: with})
	for i := range c.Gradients {
		for _, n := range []**graph.Node{&c.Gradients[i].Cost, &c.Gradients[i].Of} {
			if *n == old {
				*n = with
			}
		}
	}
}

// sizes lets every axis of one size have another, smaller one.
func (m *minimiser) sizes() {
	seen := map[int]bool{}
	for _, n := range m.best.Graph.Nodes {
		for _, d := range n.Type.Shape.Slice() {
			seen[d] = true
		}
	}
	for d := range seen {
		for _, to := range []int{1, 2, d / 2, d - 1} {
			if to > 0 && to < d && m.try(func(c *graphtest.Case) bool { return resize(c, d, to) }) {
				break
			}
		}
	}
}

// resize builds the graph once more with axes of size to instead of from. It reports whether that fits.
func resize(c *graphtest.Case, from, to int) bool {
	shape := func(s graph.Shape) graph.Shape {
		for i := range s.Rank() {
			if s.At(i) == from {
				s = s.With(i, to)
			}
		}
		return s
	}
	for _, n := range c.Graph.Nodes {
		if _, fused := n.Op.(graph.Fusion); fused {
			return false
		}
		op := reflect.New(reflect.TypeOf(n.Op)).Elem()
		op.Set(reflect.ValueOf(n.Op))
		for _, f := range reflect.VisibleFields(op.Type()) {
			field := op.FieldByIndex(f.Index)
			switch v := field.Interface().(type) {
			case graph.Type:
				field.Set(reflect.ValueOf(v.Reshaped(shape(v.Shape))))
			case graph.Shape:
				field.Set(reflect.ValueOf(shape(v)))
			case *graph.Tensor:
				field.Set(reflect.ValueOf(cut(v, v.Type.Reshaped(shape(v.Type.Shape)))))
			case int:
				if f.Name == "Size" && v == from { // of an axis
					field.SetInt(int64(to))
				}
			}
		}
		n.Op = op.Interface().(graph.Op)
		types, err := graph.ResultTypes(n.Op, n.Args)
		if err != nil {
			return false
		}
		n.Type = types[0]
	}
	return true
}

// cut is the first elements of a constant, as a tensor of a smaller type.
func cut(x *graph.Tensor, t graph.Type) *graph.Tensor {
	y := graph.NewTensor(t)
	for i := range t.Shape.Elems() {
		y.SetElem(i, x, i)
	}
	return y
}
