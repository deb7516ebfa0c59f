package onnx

import "fusec/graph"

func init() {
	declare(
		operator{name: "BitShift", min: 2, max: 2, attrs: []attr{{name: "direction", def: required{""}}}, build: buildBitShift},
		operator{name: "BitCast", min: 1, max: 1, exact: true, attrs: []attr{{name: "to", def: required{int64(0)}}}, build: buildBitCast},
		operator{name: "BitwiseNot", min: 1, max: 1, build: func(c *call) []*value {
			x := c.integers(0)
			_, hi := x.Type.DType.Limits() // as a number of the type, −1 is the one with all bits
			if !x.Type.DType.IsUnsigned() {
				hi = -1
			}
			all := graph.NewTensor(graph.Type{DType: x.Type.DType})
			all.SetInt(0, hi)
			return one(c.minus(c.constant(all), x))
		}},
	)
	for name, f := range map[string]func(x, y uint64) uint64{
		"BitwiseAnd": func(x, y uint64) uint64 { return x & y },
		"BitwiseOr":  func(x, y uint64) uint64 { return x | y },
		"BitwiseXor": func(x, y uint64) uint64 { return x ^ y },
	} {
		declare(operator{name: name, min: 2, max: 2, build: func(c *call) []*value { return one(c.bitwise(f)) }})
	}
}

// integers is operand i, which has to be of integers.
func (c *call) integers(i int) *graph.Node {
	x := c.node(i)
	if !x.Type.DType.IsInt() {
		c.refuse("it takes integers, not %v", x.Type)
	}
	return x
}

// buildBitCast takes integers for others of their size, to which they wrap.
func buildBitCast(c *call) []*value {
	x := c.node(0)
	d, err := elemType(int32(c.int("to")))
	c.check(err)
	from := x.Type.DType
	if from != d && (!from.IsInt() || !d.IsInt() || from.Size() != d.Size()) {
		c.refuse("the bits of %v as %v are not supported: only those of integers as integers of their size are", from, d)
	}
	return one(c.cast(x, d))
}

// buildBitShift multiplies by a power of two, or divides by one and rounds down.
func buildBitShift(c *call) []*value {
	x, y := c.integers(0), c.integers(1)
	d := x.Type.DType
	if d.Size() < 8 { // so that the power is in range
		x, y = c.cast(x, graph.I64), c.cast(y, graph.I64)
	}
	power := c.binary(graph.Pow, c.scalar(y.Type.DType, 2), y)
	power = c.cast(power, x.Type.DType)
	switch how := c.string("direction"); how {
	case "LEFT":
		return one(c.cast(c.mul(x, power), d))
	case "RIGHT":
		q := c.over(x, power)
		if !d.IsUnsigned() {
			less := c.binary(graph.And, c.with(graph.Lt, x, 0), c.binary(graph.Ne, c.mul(q, power), x))
			q = c.choose(less, c.with(graph.Sub, q, 1), q)
		}
		return one(c.cast(q, d))
	default:
		c.refuse("attribute \"direction\" is %q", how)
	}
	return nil
}

// bitwise joins the digits of two numbers to base 16 by a table.
func (c *call) bitwise(f func(x, y uint64) uint64) *graph.Node {
	x, y := c.integers(0), c.integers(1)
	d := x.Type.DType
	const base = 16
	t := graph.NewTensor(graph.TypeOf(graph.I64, base*base))
	for i := range uint64(base) {
		for j := range uint64(base) {
			t.SetInt(int(i*base+j), int64(f(i, j)))
		}
	}
	table := c.constant(t)
	all := c.broadcast(x, y)
	x, y = all[0], all[1]
	if d.Size() < 8 {
		x, y = c.cast(x, graph.I64), c.cast(y, graph.I64)
	}
	wide := x.Type.DType
	digit := func(n *graph.Node) (low, rest *graph.Node) {
		q := c.with(graph.Div, n, base)
		r := c.minus(n, c.with(graph.Mul, q, base))
		if !wide.IsUnsigned() { // round down
			neg := c.with(graph.Lt, r, 0)
			q, r = c.choose(neg, c.with(graph.Sub, q, 1), q), c.choose(neg, c.with(graph.Add, r, base), r)
		}
		return r, q
	}
	var sum *graph.Node
	place := graph.NewTensor(graph.Type{DType: wide})
	place.SetInt(0, 1)
	for range d.Size() * 2 {
		var i, j *graph.Node
		i, x = digit(x)
		j, y = digit(y)
		at := c.cast(c.plus(c.with(graph.Mul, i, base), j), graph.I64)
		part := c.mul(c.cast(c.gather(table, at, 0), wide), c.constant(place))
		if sum == nil {
			sum = part
		} else {
			sum = c.plus(sum, part)
		}
		next := graph.NewTensor(place.Type)
		next.SetInt(0, place.Int(0)*base)
		place = next
	}
	return c.cast(sum, d)
}
