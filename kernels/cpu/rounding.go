package cpu

import (
	"math"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/vec"
)

// A rounding is values of a body that one instruction computes, those of a quantisation: x is scaled, rounded, moved by the zero
// point, and limited. Scale and zero point are one number for all elements of a segment.
type rounding struct {
	x, by, zero int // values; by and zero are −1 where there is none
	divides     bool
	lo, hi      float64
}

// roundings finds those of the body by their last values. Each value before is read by the next one alone, and is skipped.
func (c *compiler[T]) roundings() (found map[int]rounding, skipped map[int]bool) {
	uses := make([]int, len(c.body.Values))
	for i := range c.body.Values {
		for _, a := range c.body.Values[i].Args {
			uses[a]++
		}
	}
	for i := range c.body.Stores {
		uses[c.body.Stores[i].Value]++
	}
	for i := len(c.body.Values) - 1; i >= 0; i-- {
		if r, within, ok := c.rounding(i, uses); ok && !skipped[i] {
			if found == nil {
				found, skipped = map[int]rounding{}, map[int]bool{}
			}
			found[i] = r
			for _, w := range within {
				skipped[w] = true
			}
		}
	}
	return found, skipped
}

// rounding reads value last as the end of one, and lists the values within.
func (c *compiler[T]) rounding(last int, uses []int) (r rounding, within []int, ok bool) {
	r = rounding{by: -1, zero: -1, lo: math.Inf(-1), hi: math.Inf(1)}
	at := last
	first := &c.body.Values[last]
	// elementwise is the operation of the value that is next, if it can be one of these.
	elementwise := func() graph.Op {
		v := &c.body.Values[at]
		if v.Kind != body.Elementwise || v.Node.Type.DType != dtypeOf[T]() || v.Level != first.Level || v.PerRow != first.PerRow ||
			at != last && uses[at] != 1 {
			return nil
		}
		return v.Node.Op
	}
	step := func() {
		if at != last {
			within = append(within, at)
		}
		at = c.body.Values[at].Args[0]
	}
	for limits := 0; limits < 2; limits++ {
		switch op := elementwise().(type) {
		case graph.Unary:
			if op.Fn != graph.Relu {
				return r, nil, false
			}
			r.lo = max(r.lo, 0)
		case graph.Binary:
			bound := &c.body.Values[c.body.Values[at].Args[1]]
			if bound.Kind != body.Constant {
				return r, nil, false
			}
			switch v := bound.Number.Float(0); {
			case op.Fn == graph.Max:
				r.lo = max(r.lo, v)
			case op.Fn == graph.Min:
				r.hi = min(r.hi, v)
			default:
				return r, nil, false
			}
		default:
			return r, nil, false
		}
		step()
	}
	if elementwise() == graph.Op(graph.Binary{Fn: graph.Add}) {
		if r.zero = c.body.Values[at].Args[1]; !c.single(r.zero) {
			return r, nil, false
		}
		step()
	}
	if elementwise() != graph.Op(graph.Unary{Fn: graph.Round}) {
		return r, nil, false
	}
	step()
	if op, is := elementwise().(graph.Binary); is && (op.Fn == graph.Mul || op.Fn == graph.Div) {
		if by := c.body.Values[at].Args[1]; c.single(by) {
			r.by, r.divides = by, op.Fn == graph.Div
			step()
		}
	}
	r.x = at
	return r, within, r.lo <= r.hi
}

// single reports whether a value is most likely one number for all elements of a segment.
func (c *compiler[T]) single(i int) bool {
	v := &c.body.Values[i]
	if v.Kind == body.Load {
		l := v.Layout
		l.Shape = c.space
		return c.perRow(l)
	}
	return v.Kind == body.Constant || v.PerRow
}

// emitRounding appends the instruction of one, whose operands have been compiled, or those of each of its values if an operand is a
// vector.
func (c *compiler[T]) emitRounding(r rounding) value {
	number := func(i int, otherwise float64) value {
		if i < 0 {
			return value{kind: constant, c: otherwise}
		}
		return c.operand(i)
	}
	x, by, zero := c.operand(r.x), number(r.by, 1), number(r.zero, 0)
	scale, run := graph.Mul, vec.Of[T]().RoundMul()
	if r.divides {
		scale, run = graph.Div, vec.Of[T]().RoundDiv()
	}
	if by.kind == vector || zero.kind == vector {
		x = c.binary(graph.Add, c.unary(graph.Unary{Fn: graph.Round}, c.binary(scale, x, by)), zero)
		return c.binary(graph.Min, c.binary(graph.Max, x, value{kind: constant, c: r.lo}), value{kind: constant, c: r.hi})
	}
	a, s, z, lo, hi := c.place(x), c.place(by), c.place(zero), T(r.lo), T(r.hi)
	return c.step(func(f *frame[T], dst []T) { run(dst, f.at(a), f.s[s.slot], f.s[z.slot], lo, hi) }, x)
}
