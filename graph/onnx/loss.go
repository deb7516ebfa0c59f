package onnx

import (
	"slices"

	"fusec/graph"
)

func init() {
	attrs := []attr{{name: "ignore_index", def: int64(0)}, {name: "reduction", def: "mean"}}
	declare(
		operator{name: "NegativeLogLikelihoodLoss", min: 2, max: 3, attrs: attrs, build: func(c *call) []*value {
			return one(c.likelihoodLoss(c.node(0)))
		}},
		operator{name: "SoftmaxCrossEntropyLoss", min: 2, max: 3, attrs: attrs, build: func(c *call) []*value {
			if c.node(0).Type.Shape.Rank() < 2 {
				c.refuse("it takes [N,C,...], not %v", c.node(0).Type)
			}
			p := c.add(graph.LogSoftmax{Axis: 1}, c.node(0))
			return several(c.likelihoodLoss(p), p)
		}},
	)
}

// likelihoodLoss is minus the elements of p [N,C,...] that the labels [N,...] name, weighted by class, without those of the
// label that is ignored; their sum; or their mean, which is weighted, too.
func (c *call) likelihoodLoss(p *graph.Node) *graph.Node {
	label := c.cast(c.node(1), graph.I64)
	s, d := p.Type.Shape, p.Type.DType
	if s.Rank() < 2 || label.Type.Shape != s.Drop(graph.IntsOf(1)) {
		c.refuse("labels %v for %v", label.Type, p.Type)
	}
	zero := c.scalar(d, 0)
	hit := c.binary(graph.Eq, c.counting(s, 1), c.reshape(label, slices.Insert(dims(label), 1, 1)...))
	loss := c.unary(graph.Neg, c.reduce(graph.Sum, c.choose(hit, p, zero), false, 1))
	var weight *graph.Node
	if c.there(2) {
		if c.node(2).Type.Shape != graph.ShapeOf(s.At(1)) {
			c.refuse("weights %v of %d classes", c.node(2).Type, s.At(1))
		}
		weight = c.reduce(graph.Sum, c.choose(hit, c.perChannel(c.node(2), p), zero), false, 1)
	}
	if c.has("ignore_index") {
		counts := c.with(graph.Ne, label, float64(c.int("ignore_index")))
		if weight == nil {
			weight = c.expand(c.scalar(d, 1), label.Type.Shape)
		}
		weight = c.choose(counts, weight, zero)
	}
	if weight != nil {
		loss = c.mul(loss, weight)
	}
	axes := make([]int, label.Type.Shape.Rank())
	for i := range axes {
		axes[i] = i
	}
	switch how := c.string("reduction"); {
	case how == "none":
		return loss
	case how == "sum":
		return c.reduce(graph.Sum, loss, false, axes...)
	case how == "mean" && weight == nil:
		return c.reduce(graph.Mean, loss, false, axes...)
	case how == "mean":
		return c.over(c.reduce(graph.Sum, loss, false, axes...), c.reduce(graph.Sum, weight, false, axes...))
	default:
		c.refuse("attribute \"reduction\" is %q", how)
	}
	return nil
}
