package nn

import (
	"fmt"

	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// Linear is x·w + bias for x [..., in], w [in, out] and bias [out], which may be nil. The result is [..., out].
func Linear(x, w, bias *gorgonia.Node) (*gorgonia.Node, error) {
	operands := []operand{{"x", x}, {"w", w}}
	if bias != nil {
		operands = append(operands, operand{"bias", bias})
	}
	return apply(linear{}, operands...)
}

type linear struct{}

func (linear) name() string { return "Linear" }

// build multiplies matrices: all axes of x except the last are rows.
func (linear) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	x, w := args[0], args[1]
	s := x.Type.Shape
	if s.Rank() == 0 || w.Type.Shape.Rank() != 2 || s.At(s.Rank()-1) != w.Type.Shape.At(0) {
		return b.Fail(fmt.Errorf("%s of type %v and %s of type %v: want x [..., in] and w [in, out]",
			x.Where(), x.Type, w.Where(), w.Type))
	}
	in, out := w.Type.Shape.At(0), w.Type.Shape.At(1)
	rows := 1
	for i := range s.Rank() - 1 {
		rows *= s.At(i)
	}
	y := b.MatMul(b.Reshape(x, rows, in), w, false, false)
	if len(args) == 3 {
		bias := args[2]
		if bias.Type.Shape != graph.ShapeOf(out) {
			return b.Fail(fmt.Errorf("%s of type %v: want [%d] for w %v", bias.Where(), bias.Type, out, w.Type.Shape))
		}
		y = b.Binary(graph.Add, y, b.Broadcast(bias, y.Type.Shape))
	}
	return b.Reshape(y, s.With(s.Rank()-1, out).Slice()...)
}

// addBias adds bias [out] to every row of x [..., out].
func addBias(x, bias *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(biased{}, operand{"x", x}, operand{"bias", bias})
}

type biased struct{}

func (biased) name() string { return "Bias" }

func (biased) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	return b.Binary(graph.Add, args[0], b.Broadcast(args[1], args[0].Type.Shape))
}
