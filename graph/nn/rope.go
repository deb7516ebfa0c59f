package nn

import (
	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// RoPEOptions are the options of [RoPE].
type RoPEOptions struct {
	// Base of the angles; 0 is 10000.
	Base float64
	// Interleaved pairs elements 2j and 2j+1 instead of j and j + d/2.
	Interleaved bool
	// Start, if not nil, is a scalar int: the position of the first row, else 0.
	Start *gorgonia.Node
}

// RoPE is the rotary position embedding (Su et al., arXiv 2104.09864) of x [..., s, d]: pair j of the elements of the
// row at position p is rotated by the angle p·Base^(−2j/d). d is even.
func RoPE(x *gorgonia.Node, o RoPEOptions) (*gorgonia.Node, error) {
	d := rope{graph.RoPE{Base: o.Base, Interleaved: o.Interleaved}}
	if d.op.Base == 0 {
		d.op.Base = 10000
	}
	operands := []operand{{"x", x}}
	if o.Start != nil {
		operands = append(operands, operand{"start", o.Start})
	}
	return apply(d, operands...)
}

type rope struct{ op graph.RoPE }

func (d rope) name() string { return single{d.op, "RoPE"}.name() }

func (d rope) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	if len(args) == 1 {
		args = append(args[:1:1], b.Scalar(graph.I64, 0))
	}
	return b.Add(d.op, args...)
}
