package onnx

import (
	"math"

	"fusec/graph"
)

func init() {
	window := []attr{intAttr("output_datatype", 1), intAttr("periodic", 1)}
	declare(
		operator{name: "RotaryEmbedding", min: 3, max: 4, attrs: []attr{intAttr("interleaved", 0), intAttr("num_heads", 0),
			intAttr("rotary_embedding_dim", 0)}, build: buildRotary},
		operator{name: "CausalConvWithState", min: 2, max: 4, attrs: []attr{{name: "activation", def: "none"}}, build: buildCausalConv},
		operator{name: "SwiGLU", min: 2, max: 2, attrs: []attr{floatAttr("alpha", 1)}, build: func(c *call) []*value {
			x := c.node(0)
			if x.Type != c.node(1).Type {
				c.refuse("operands %v and %v", x.Type, c.node(1).Type)
			}
			return one(c.mul(c.mul(x, c.unary(graph.Sigmoid, c.scaled(x, c.float("alpha")))), c.node(1)))
		}},
		operator{name: "HannWindow", min: 1, max: 1, exact: true, attrs: window, build: func(c *call) []*value {
			return one(c.windowOf(func(t float64) float64 { return 0.5 - 0.5*math.Cos(t) }))
		}},
		operator{name: "HammingWindow", min: 1, max: 1, exact: true, attrs: window, build: func(c *call) []*value {
			return one(c.windowOf(func(t float64) float64 { return 25./46 - 21./46*math.Cos(t) }))
		}},
		operator{name: "BlackmanWindow", min: 1, max: 1, exact: true, attrs: window, build: func(c *call) []*value {
			return one(c.windowOf(func(t float64) float64 { return 0.42 - 0.5*math.Cos(t) + 0.08*math.Cos(2*t) }))
		}},
	)
}

// windowOf is a window of signal processing, a function of the angle from 0 to 2π.
func (c *call) windowOf(f func(t float64) float64) *graph.Node {
	n := c.knownInt(0)
	d, err := elemType(int32(c.int("output_datatype")))
	c.check(err)
	if n < 0 || n > maxMade {
		c.refuse("a window of %d elements", n)
	}
	c.made(n)
	period := n
	if !c.flag("periodic") {
		period--
	}
	t := graph.NewTensor(graph.TypeOf(graph.F64, n))
	for i := range n {
		t.SetFloat(i, f(2*math.Pi*float64(i)/float64(max(period, 1))))
	}
	return c.cast(c.constant(t), d)
}

// buildCausalConv is a depthwise convolution over time, of x [B,C,L] behind the state [B,C,K−1]; the second result is the
// state for what follows.
func buildCausalConv(c *call) []*value {
	x, w := c.node(0), c.node(1)
	s, ws := x.Type.Shape, w.Type.Shape
	if s.Rank() != 3 || ws.Rank() != 3 || ws.At(0) != s.At(1) || ws.At(1) != 1 || ws.At(2) < 1 {
		c.refuse("filters %v for %v", w.Type, x.Type)
	}
	k := ws.At(2)
	state := c.filled(graph.TypeOf(x.Type.DType, s.At(0), s.At(1), k-1), 0)
	if c.there(3) {
		if state = c.node(3); state.Type.Shape != graph.ShapeOf(s.At(0), s.At(1), k-1) {
			c.refuse("a state %v for filters %v", state.Type, w.Type)
		}
	}
	all := c.concat(2, state, x)
	one, zero := []int{1}, []int{0}
	y := c.convolve(all, w, windows{kernel: []int{k}, stride: one, dilation: one, lo: zero, hi: zero}, s.At(1))
	if c.there(2) {
		y = c.plus(y, c.perChannel(c.node(2), y))
	}
	switch how := c.string("activation"); how {
	case "none":
	case "silu", "swish":
		y = c.unary(graph.Silu, y)
	default:
		c.refuse("attribute \"activation\" is %q", how)
	}
	return several(y, c.slice(all, 2, s.At(2), k-1, 1))
}

// buildRotary rotates by angles of tables for each position, or by angles of each batch and position.
func buildRotary(c *call) []*value {
	x, cos, sin := c.node(0), c.node(1), c.node(2)
	flat := x.Type.Shape.Rank() == 3
	if flat {
		x = c.split(x, c.int("num_heads"))
	}
	if x.Type.Shape.Rank() != 4 {
		c.refuse("it takes [B,S,H·D] or [B,H,S,D], not %v", x.Type)
	}
	if c.there(3) {
		cos, sin = c.atPositions(cos, c.node(3)), c.atPositions(sin, c.node(3))
	}
	y := c.rotated(x, cos, sin, c.int("rotary_embedding_dim"), c.flag("interleaved"))
	if flat {
		y = c.joined(y)
	}
	return one(y)
}

// atPositions are the rows of a table [positions, …] at positions [B,S].
func (c *call) atPositions(table, positions *graph.Node) *graph.Node {
	if table.Type.Shape.Rank() != 2 {
		c.refuse("a table %v for positions", table.Type)
	}
	return c.gather(table, c.counted(positions, table.Type.Shape.At(0)), 0)
}

// rotated rotates pairs of the first n elements of each head of x [B,H,S,D], all of them if n is 0, by angles [B,S,n/2] or
// [1,S,n/2]. The pairs are half of n apart, or neighbours.
func (c *call) rotated(x, cos, sin *graph.Node, n int, interleaved bool) *graph.Node {
	d := dims(x)
	if n == 0 {
		n = d[3]
	}
	if n < 0 || n > d[3] || n%2 != 0 {
		c.refuse("%d of %d elements", n, d[3])
	}
	half := n / 2
	angles := func(t *graph.Node) *graph.Node {
		s := t.Type.Shape
		if s != graph.ShapeOf(d[0], d[2], half) && s != graph.ShapeOf(1, d[2], half) {
			c.refuse("angles %v for %v", t.Type, x.Type)
		}
		return c.reshape(t, s.At(0), 1, d[2], half)
	}
	cos, sin = angles(cos), angles(sin)
	turned, rest := c.slice(x, 3, 0, n, 1), c.slice(x, 3, n, d[3]-n, 1)
	a, b := c.slice(turned, 3, 0, half, 1), c.slice(turned, 3, half, half, 1)
	if interleaved {
		pairs := c.reshape(turned, d[0], d[1], d[2], half, 2)
		a, b = c.part(pairs, 4, 0), c.part(pairs, 4, 1)
	}
	re, im := c.minus(c.mul(cos, a), c.mul(sin, b)), c.plus(c.mul(sin, a), c.mul(cos, b))
	var y *graph.Node
	if interleaved {
		y = c.reshape(c.concat(4, c.reshape(re, d[0], d[1], d[2], half, 1), c.reshape(im, d[0], d[1], d[2], half, 1)), d[0], d[1], d[2],
			n)
	} else {
		y = c.concat(3, re, im)
	}
	if n < d[3] {
		y = c.concat(3, y, rest)
	}
	return y
}
