package gorgonia

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// fits refuses what computes bytes that may not fit: Gorgonia's wrap at 256, and I32, which stands for them, does not.
func (c *call) fits() error {
	if d, err := nodeDtype(c.n); err == nil && d == tensor.Byte {
		return errors.New("bytes wrap at 256")
	}
	return nil
}

func (c *call) unary() (*graph.Node, error) {
	if err := c.fits(); err != nil {
		return nil, err
	}
	fn, ok := unaryNames[c.op.String()]
	if !ok {
		return nil, fmt.Errorf("%q is not a function that fusec knows", c.op)
	}
	switch {
	case c.n.Deriv() == nil:
	case fn == graph.Log2:
		c.differs(log2Gradient)
	case fn == graph.Rsqrt:
		c.differs(invSqrtGradient)
	}
	c.overwrites()
	return c.b.Unary(fn, c.args[0]), nil
}

func (c *call) binary() (*graph.Node, error) {
	fn, err := binaryOf(c.op, c.f)
	if err != nil {
		return nil, err
	}
	return c.pointwise(fn, c.f.bool("retSame"))
}

// binaryOf is the function of an elemBinOp with the given fields.
func binaryOf(op gorg.Op, f *fields) (graph.BinaryFn, error) {
	in := f.inner("ʘBinaryOperator")
	kind := in.byte("ʘBinaryOperatorType")
	if in.err != nil {
		return 0, in.err
	}
	if kind >= len(binaryOrder) || !binaryPrints.of(kind, func(int) bool {
		return strings.HasPrefix(op.String(), binaries[binaryOrder[kind]].sign+" ")
	}) {
		return 0, fmt.Errorf("function %d prints as %q", kind, op)
	}
	return binaryOrder[kind], nil
}

// binaryPrints tells whether functions of two variables print as this package thinks.
var binaryPrints memo[int, bool]

func (c *call) minBetween() (*graph.Node, error) { return c.extreme(graph.Min) }

func (c *call) maxBetween() (*graph.Node, error) { return c.extreme(graph.Max) }

func (c *call) extreme(fn graph.BinaryFn) (*graph.Node, error) {
	if c.n.Deriv() != nil {
		c.differs(tiedPair)
	}
	return c.pointwise(fn, false)
}

// overwrites notes an operand that Gorgonia's machines would take for a value of their own and change in place: an input
// or weight behind a reshaping, a dropout in evaluation, or a concatenation of one.
func (c *call) overwrites() {
	for _, k := range c.children(c.n) {
		under := c.children(k)
		if len(under) == 0 || under[0].Op() != nil {
			continue
		}
		switch typeName(k.Op()) {
		case "reshapeOp":
		case "concatOp":
			if len(under) > 1 {
				continue
			}
		case "dropoutOp":
			if f := fieldsOf(k.Op()); f.bool("isTraining") && f.float("probability") != 0 {
				continue
			}
		default:
			continue
		}
		c.differs(overwrittenInput)
		return
	}
}

// pointwise applies a function of two variables; with same, a comparison gives 0 and 1 in the operands' type.
func (c *call) pointwise(fn graph.BinaryFn, same bool) (*graph.Node, error) {
	if fn == graph.Add || fn == graph.Sub || fn == graph.Mul || fn == graph.Pow {
		if err := c.fits(); err != nil {
			return nil, err
		}
	}
	c.agree()
	c.overwrites()
	if s, t := c.args[0].Type.Shape, c.args[1].Type.Shape; s != t && s.Rank() > 0 && t.Rank() > 0 && s.Elems() == 1 &&
		t.Elems() == 1 {
		c.differs(oneElement)
	}
	x, y := c.align(c.args[0]), c.align(c.args[1])
	d := x.Type.DType
	v := c.b.Binary(fn, x, y)
	if fn.Compares() && same {
		v = c.b.Add(graph.Cast{To: d}, v)
	}
	return v, nil
}

// align gives an operand of an elementwise operation the shape of the result, or that of a scalar: Gorgonia lets a
// vector stand for a matrix of one row or column, and a tensor of one element for a scalar.
func (c *call) align(x *graph.Node) *graph.Node {
	switch s := x.Type.Shape; {
	case s == c.want.Shape || s.Rank() == 0:
		return x
	case s.Elems() == 1:
		return c.b.Reshape(x)
	case s.Elems() == c.want.Shape.Elems():
		return c.b.Reshape(x, c.want.Shape.Slice()...)
	}
	return x
}

// agree repairs an operand that Gorgonia has replaced by a constant of another type: it takes constants that print
// alike for the same one.
func (c *call) agree() {
	x, y := c.args[0], c.args[1]
	if x.Type.DType == y.Type.DType {
		return
	}
	for i, other := range []*graph.Node{y, x} {
		k := c.children(c.n)[i]
		if typeName(k.Op()) != "constantScalar" {
			continue
		}
		v, err := strconv.ParseFloat(nameOf(k), 64)
		if err != nil {
			continue
		}
		t := graph.Scalar(other.Type.DType, v)
		if whole, err := strconv.ParseInt(nameOf(k), 10, 64); err == nil && t.Type.DType == graph.I64 {
			t.SetInt(0, whole) // which float64 may not hold
		}
		c.args = slices.Clone(c.args) // what attempt goes back to
		c.args[i] = c.b.Const(t)
		c.differs(mergedConstants)
		return
	}
}

func (c *call) convert() (*graph.Node, error) {
	to, err := DTypeOf(value[tensor.Dtype](c.f, "to"))
	if err != nil {
		return nil, err
	}
	if c.args[0].Type.DType == to {
		return c.args[0], nil
	}
	return c.b.Add(graph.Cast{To: to}, c.args[0]), nil
}

func (c *call) identity() (*graph.Node, error) {
	return c.args[0], nil
}

func (c *call) constant() (*graph.Node, error) {
	k, ok := c.op.(interface{ Value() gorg.Value })
	if !ok {
		return nil, fmt.Errorf("a constant without a value")
	}
	t, err := ToTensor(k.Value())
	if err != nil {
		return nil, err
	}
	return c.b.Const(t), nil
}

// size is the length of an axis, as a number of the operand's type.
func (c *call) size() (*graph.Node, error) {
	axis, n := c.f.int("axis"), c.f.int("val")
	if s := c.args[0].Type.Shape; axis < s.Rank() {
		n = s.At(axis)
	}
	return c.b.Scalar(c.want.DType, float64(n)), nil
}
