package gorgonia

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
)

// The kinds of products, in the order of Gorgonia's enumeration, and how they print.
const (
	matMul = iota
	matVec
	vecDot
	outer
	batched
)

// products tells how they print.
var products memo[gorg.Op, string]

var productSigns = []string{" × B", " × b", " ⋅ b", " ⊗ b", " ××× B"}

func (c *call) linear() (*graph.Node, error) {
	kind := c.f.byte("āBinaryOperator")
	ta, tb := c.f.bool("transA"), c.f.bool("transB")
	if kind >= len(productSigns) || !strings.Contains(products.of(c.op, gorg.Op.String), productSigns[kind]) {
		return nil, fmt.Errorf("product %d prints as %q", kind, c.op)
	}
	x, y := c.args[0], c.args[1]
	n, m := x.Type.Shape.Elems(), y.Type.Shape.Elems()
	switch kind {
	case matVec:
		if other, second := c.outerOperand(); other != nil {
			ta, y, m = second, other, other.Type.Shape.Elems()
		}
		y = c.b.Reshape(y, m, 1)
		tb = false
	case vecDot:
		x, y, ta, tb = c.b.Reshape(x, 1, n), c.b.Reshape(y, m, 1), false, false
	case outer:
		if c.n.Deriv() != nil {
			c.differs(outerGradient)
		}
		x, y, ta, tb = c.b.Reshape(x, n, 1), c.b.Reshape(y, 1, m), false, false
	}
	return c.b.MatMul(x, y, ta, tb), nil
}

// outerOperand is what the gradient of an outer product has to be multiplied by, if the gradient for one of its operands is
// being imported, and whether that is the second. Gorgonia multiplies by that operand itself and not by the other, which
// fits only where both have one length.
func (c *call) outerOperand() (other *graph.Node, second bool) {
	args := c.children(c.n)
	for _, u := range c.usersOf(args[1]) {
		xy := c.children(u)
		if u.Deriv() != args[0] || typeName(u.Op()) != "linAlgBinOp" || fieldsOf(u.Op()).byte("āBinaryOperator") != outer ||
			xy[0].Shape().TotalSize() == xy[1].Shape().TotalSize() {
			continue
		}
		for i := range xy {
			if xy[i] == args[1] && xy[i].Deriv() == c.n {
				return c.Node(xy[1-i]), i == 1
			}
		}
	}
	return nil, false
}

// tensordot moves the contracted axes together and multiplies matrices.
func (c *call) tensordot() (*graph.Node, error) {
	x, y := c.args[0], c.args[1]
	ax, ay := c.f.ints("aAxes"), c.f.ints("bAxes")
	restX, m := others(x.Type.Shape, ax)
	restY, n := others(y.Type.Shape, ay)
	k := 1
	for _, a := range ax {
		k *= x.Type.Shape.At(a)
	}
	x = c.b.Reshape(c.b.Transpose(x, slices.Concat(restX, ax)...), m, k)
	y = c.b.Reshape(c.b.Transpose(y, slices.Concat(ay, restY)...), k, n)
	return c.b.MatMul(x, y, false, false), nil
}

// others lists the axes of s that are not in axes, and the product of their sizes.
func others(s graph.Shape, axes []int) (rest []int, n int) {
	n = 1
	for i := range s.Rank() {
		if !slices.Contains(axes, i) {
			rest = append(rest, i)
			n *= s.At(i)
		}
	}
	return rest, n
}

func (c *call) im2col() (*graph.Node, error) {
	// Gorgonia's patches lie as fusec's do: channel, then kernel row, then kernel column.
	k, s, d, p := c.patches()
	return c.b.Add(graph.Im2Col{Kernel: k, Stride: s, Dilation: d, Pad: p}, c.args[0]), nil
}

func (c *call) col2im() (*graph.Node, error) {
	k, s, d, p := c.patches()
	op := graph.Col2Im{Kernel: k, Stride: s, Dilation: d, Pad: p, H: c.f.int("unpaddedH"), W: c.f.int("unpaddedW")}
	return c.b.Add(op, c.args[0]), nil
}

func (c *call) patches() (kernel, stride, dilation, pad graph.Ints) {
	h, w := c.f.int("padH"), c.f.int("padW")
	return graph.IntsOf(c.f.int("h"), c.f.int("w")),
		graph.IntsOf(c.f.int("strideH"), c.f.int("strideW")),
		graph.IntsOf(c.f.int("dilationH"), c.f.int("dilationW")),
		graph.IntsOf(h, w, h, w)
}

// pool imports the pools and their derivatives, which take the operand, the pooled value and its gradient. Padding
// stands where Gorgonia's documentation puts it. The mean divides by the size of the window, padding included.
func (c *call) pool() (*graph.Node, error) {
	name := typeName(c.op)
	average := strings.HasPrefix(name, "avg")
	north, south, west, east := c.f.int("padNorth"), c.f.int("padSouth"), c.f.int("padWest"), c.f.int("padEast")
	if (north != south || west != east) && c.differs(poolPadding) {
		north, south, west, east = south, north, east, west
	}
	p := graph.Pool{
		Kernel:   graph.IntsOf(c.f.int("h"), c.f.int("w")),
		Stride:   graph.IntsOf(c.f.int("strideH"), c.f.int("strideW")),
		Pad:      graph.IntsOf(north, west, south, east),
		CountPad: average,
	}
	backward := strings.HasSuffix(name, "DiffOp")
	if !average {
		if backward {
			return c.b.Add(graph.PoolGrad(p), c.args[0], c.args[2]), nil
		}
		return c.b.Add(p, c.args[0]), nil
	}
	p.Fn = graph.AvgPool
	if backward {
		if c.differs(averageGradient) {
			return c.host()
		}
		return c.b.Add(graph.PoolGrad(p), c.args[0], c.args[2]), nil
	}
	y := c.b.Add(p, c.args[0])
	if width, window := c.args[0].Type.Shape.At(3), p.Kernel.At(0)*p.Kernel.At(1); width != window && c.differs(averageDivisor) {
		return c.b.BinaryScalar(graph.Mul, y, float64(window)/float64(width)), nil
	}
	return y, nil
}

func (c *call) globalAveragePool() (*graph.Node, error) {
	return c.b.Reduce(graph.Mean, c.args[0], true, 2, 3), nil
}
