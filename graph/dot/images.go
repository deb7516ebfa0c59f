package dot

import (
	"slices"

	"fusec/graph"
)

// channelsLast finds the values of a graph that are images in NHWC: those that operations on such images read and make, and those
// that elementwise work, joins and cuts make of them.
func channelsLast(g *graph.Graph) map[*graph.Node]bool {
	f := imageFinder{found: make(map[*graph.Node]bool), results: make(map[*graph.Node][]bool)}
	f.search(g)
	return f.found
}

// An imageFinder has the values of a graph that are known to be images in NHWC.
type imageFinder struct {
	found   map[*graph.Node]bool
	results map[*graph.Node][]bool // of fusions
}

func (f *imageFinder) search(g *graph.Graph) {
	for _, n := range g.Nodes {
		f.visit(n)
	}
	for _, n := range slices.Backward(g.Nodes) { // elementwise work before the operation that tells
		f.visit(n)
	}
	for _, n := range g.Nodes {
		f.visit(n)
	}
}

// visit learns what an operation says about its operands and its value.
func (f *imageFinder) visit(n *graph.Node) {
	switch op := n.Op.(type) {
	case graph.ImageOp:
		if op.ImageLayout() != graph.NHWC {
			return
		}
		for i, a := range n.Args {
			if i != op.FilterAt() {
				f.found[a] = true
			}
		}
		f.found[n] = op.FilterAt() != graph.FiltersOut
	case graph.SeparableConv2D:
		f.found[n], f.found[n.Args[graph.SeparableImage]] = true, true
	case graph.Fusion:
		f.fusion(n, op.Body)
	case graph.Result:
		if all := f.results[n.Args[0]]; op.Index < len(all) && all[op.Index] {
			f.found[n] = true
		}
	case graph.Concat, graph.Pad, graph.Slice, graph.Copy:
		f.found[n] = f.found[n] || f.found[n.Args[0]] && n.Args[0].Type.Shape.Rank() == n.Type.Shape.Rank()
	default:
		if !graph.Elementwise(op) {
			return
		}
		images := []*graph.Node{n}
		for _, a := range n.Args {
			switch a.Op.(type) {
			case graph.Broadcast, graph.Const:
			default:
				if a.Type.Shape == n.Type.Shape {
					images = append(images, a)
				}
			}
		}
		if slices.ContainsFunc(images, func(a *graph.Node) bool { return f.found[a] }) {
			for _, a := range images {
				f.found[a] = true
			}
		}
	}
}

// fusion looks into the body of n, whose inputs are n's operands.
func (f *imageFinder) fusion(n *graph.Node, body *graph.Graph) {
	in := imageFinder{found: make(map[*graph.Node]bool), results: make(map[*graph.Node][]bool)}
	var inputs []*graph.Node
	for _, k := range body.Nodes {
		if _, ok := k.Op.(graph.Input); ok && len(inputs) < len(n.Args) {
			in.found[k] = f.found[n.Args[len(inputs)]]
			inputs = append(inputs, k)
		}
	}
	in.search(body)
	for i, k := range inputs {
		if in.found[k] {
			f.found[n.Args[i]] = true
		}
	}
	results := make([]bool, len(body.Outputs))
	for i, o := range body.Outputs {
		results[i] = in.found[o.Node]
	}
	f.results[n] = results
	f.found[n] = f.found[n] || results[0] // a Result has one of the others
}
