package gorgonia

import (
	"fmt"
	"slices"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
)

// Exported is an expression graph made from a graph.Graph. Bools are numbers in it, 0 and 1 in the type of what they
// were made from.
type Exported struct {
	Graph   *gorg.ExprGraph
	Nodes   map[*graph.Node]*gorg.Node // the graph's sources
	Sources map[string]*gorg.Node      // the same by name
	Outputs map[string]*gorg.Node
}

// Export writes g as an expression graph, through the functions that Gorgonia offers its users. Parameters and states
// get the values of weights, copied; inputs have none and are given theirs with gorgonia.Let. Composites without a
// counterpart are decomposed, fusions are taken apart, and an operation that Gorgonia cannot express is an error that
// names it. Updates are not exported.
//
// The expression graph avoids what Gorgonia gets wrong: elementwise operations never follow the mere reshaping of a
// source, which they would overwrite; reductions run along the last axis; constants have names of their own.
func Export(g *graph.Graph, weights map[string]*graph.Tensor) (*Exported, error) {
	flat, err := primitive(g)
	if err != nil {
		return nil, err
	}
	e := &exporter{
		Exported: &Exported{
			Graph:   gorg.NewGraph(gorg.WithGraphName(g.Name)),
			Nodes:   map[*graph.Node]*gorg.Node{},
			Sources: map[string]*gorg.Node{},
			Outputs: map[string]*gorg.Node{},
		},
		weights: weights,
		nodes:   map[*graph.Node]*gorg.Node{},
		bare:    map[*gorg.Node]bool{},
	}
	for _, n := range flat.Nodes {
		if d := n.Type.DType; d != graph.Bool && !d.IsFloat() && !d.IsIndex() {
			return nil, fmt.Errorf("exporting %s: Gorgonia has no %v", n.Where(), n.Type.DType)
		}
		if e.nodes[n], err = e.export(n); err != nil {
			return nil, fmt.Errorf("exporting %s: %w", n.Where(), err)
		}
	}
	for _, s := range g.Sources() {
		e.Nodes[s] = e.Sources[s.Name]
	}
	for _, o := range flat.Outputs {
		e.Outputs[o.Name] = e.nodes[o.Node]
	}
	return e.Exported, nil
}

// exporter is an export under way.
type exporter struct {
	*Exported
	weights map[string]*graph.Tensor
	nodes   map[*graph.Node]*gorg.Node
	bare    map[*gorg.Node]bool // sources, perhaps reshaped: their memory is the source's
	fresh   int                 // how many helper nodes were made
}

// primitive copies g, without updates, gradients that are asked for, the optimiser, fusions and the composites that Gorgonia does
// not have.
func primitive(g *graph.Graph) (*graph.Graph, error) {
	c, _ := g.Clone()
	c.Updates, c.Gradients, c.Training = nil, nil, nil
	for {
		with := map[*graph.Node]*graph.Node{}
		b := graph.Extend(c)
		for _, n := range slices.Clone(c.Nodes) {
			if r, ok := n.Op.(graph.Result); ok {
				if results := graph.Decompose(b, n.Args[0]); results != nil {
					with[n] = results[r.Index]
				} else if f, ok := n.Args[0].Op.(graph.Fusion); ok {
					with[n] = b.From(n).Inline(f.Body, n.Args[0].Args)[r.Index]
				}
				continue
			}
			if f, ok := n.Op.(graph.Fusion); ok {
				with[n] = b.From(n).Inline(f.Body, n.Args)[0]
				continue
			}
			if _, ok := writers.Lookup(n.Op); ok && graph.ClassOf(n.Op) == graph.ClassComposite {
				continue
			}
			results := graph.Decompose(b, n)
			if results == nil {
				results = graph.Lower(b, n)
			}
			if results != nil {
				with[n] = results[0]
			}
		}
		if err := b.Err(); err != nil {
			return nil, err
		}
		if len(with) == 0 {
			return c, c.Tidy()
		}
		c.Replace(with)
		if err := c.Tidy(); err != nil {
			return nil, err
		}
	}
}

// source makes a named input node.
func (e *exporter) source(n *graph.Node) (*gorg.Node, error) {
	d := n.Type.DType
	if d == graph.Bool {
		return nil, fmt.Errorf("bools are no numbers in Gorgonia")
	}
	x := gorg.NewTensor(e.Graph, dtypeFor(d), n.Type.Shape.Rank(), gorg.WithName(n.Name), gorg.WithShape(n.Type.Shape.Slice()...))
	if _, ok := n.Op.(graph.Input); !ok {
		w := e.weights[n.Name]
		if w == nil {
			return nil, fmt.Errorf("no weight of this name is given")
		}
		if w.Type != n.Type {
			return nil, fmt.Errorf("its weight has type %v, not %v", w.Type, n.Type)
		}
		if err := Bind(x, FromTensor(w)); err != nil {
			return nil, err
		}
	}
	e.Sources[n.Name] = x
	e.bare[x] = true
	return x, nil
}

// name makes a name that no node of the user's has.
func (e *exporter) name(what string) gorg.NodeConsOpt {
	e.fresh++
	return gorg.WithName(fmt.Sprintf("%s·%d", what, e.fresh))
}

// tensor makes a node with a value; Gorgonia's tensor constants are compared as they print.
func (e *exporter) tensor(t *graph.Tensor) *gorg.Node {
	x := gorg.NewTensor(e.Graph, dtypeFor(t.Type.DType), t.Type.Shape.Rank(), e.name("const"),
		gorg.WithShape(t.Type.Shape.Slice()...), gorg.WithValue(FromTensor(t)))
	e.bare[x] = true
	return x
}

// scalar makes a constant of rank 0.
func (e *exporter) scalar(d graph.DType, v float64) *gorg.Node {
	name := gorg.WithName(fmt.Sprintf("%v:%v", d, v))
	switch d {
	case graph.F32:
		return gorg.NewConstant(float32(v), name)
	case graph.I32:
		return gorg.NewConstant(int32(v), name)
	case graph.I64:
		return gorg.NewConstant(int(v), name)
	}
	return gorg.NewConstant(v, name)
}

// constant makes a constant: by value if it is a scalar.
func (e *exporter) constant(t *graph.Tensor) *gorg.Node {
	if t.Type.Shape.Rank() == 0 {
		if t.Type.DType == graph.I64 { // float64 does not hold every one
			return e.Graph.AddNode(gorg.NewConstant(int(t.Int(0)), gorg.WithName(fmt.Sprintf("%v:%d", graph.I64, t.Int(0)))))
		}
		return e.Graph.AddNode(e.scalar(t.Type.DType, t.Float(0))) // there may be operations on constants alone
	}
	if t.Type.DType == graph.Bool {
		f := graph.NewTensor(t.Type.With(graph.F32))
		for i := range t.Type.Shape.Elems() {
			f.SetFloat(i, t.Float(i))
		}
		t = f
	}
	return e.tensor(t)
}

// reshape changes the shape and remembers whose memory it is.
func (e *exporter) reshape(x *gorg.Node, dims ...int) (*gorg.Node, error) {
	if s := x.Shape(); slices.Equal(s, dims) {
		return x, nil
	}
	y, err := gorg.Reshape(x, dims)
	if err == nil && e.bare[x] {
		e.bare[y] = true
	}
	return y, err
}

// own gives an operand of an elementwise operation memory of its own: Gorgonia's machine lets such an operation
// overwrite a reshaped operand, which may be a weight.
func (e *exporter) own(x *gorg.Node, d graph.DType) (*gorg.Node, error) {
	if x.Op() == nil || !e.bare[x] {
		return x, nil
	}
	return gorg.HadamardProd(x, e.scalar(d, 1))
}

// dtype is the element type of an exported node: that of what a Bool was made from.
func (e *exporter) dtype(x *gorg.Node) (graph.DType, error) {
	d, err := nodeDtype(x)
	if err != nil {
		return graph.Invalid, err
	}
	return DTypeOf(d)
}
