package cpu

import (
	"fmt"
	"math"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/vec"
)

// emit appends the instructions of a value that is computed.
func (c *compiler[T]) emit(v *body.Value) (value, error) {
	n := v.Node
	if v.Kind == body.Draw {
		return c.dropout(v), nil
	}
	in := make([]value, len(v.Args))
	for i, a := range v.Args {
		if in[i] = c.operand(a); graph.RowWeights(n.Op, i) {
			in[i] = c.asVector(in[i])
		}
	}
	switch op := n.Op.(type) {
	case graph.Unary:
		if n.Type.DType.IsInt() {
			return c.unaryInt(op.Fn, n.Type.DType, in[0]), nil
		}
		return c.unary(op, in[0]), nil
	case graph.Binary:
		if d := n.Args[0].Type.DType; d.IsInt() {
			return c.binaryInt(op.Fn, d, in[0], in[1]), nil
		}
		return c.binary(op.Fn, in[0], in[1]), nil
	case graph.Select:
		return c.selection(in[0], in[1], in[2]), nil
	case graph.Custom:
		return c.custom(op.Fn.Info(), in), nil
	case graph.Cast:
		if op.To.IsInt() && !wholeLanes[T]() && n.Args[0].IsWhole(op.To) {
			return in[0], nil
		}
		return c.cast(n.Args[0].Type.DType, op.To, in[0]), nil
	case graph.Reduce:
		return c.reduce(op.Fn, c.asVector(in[0])), nil
	case graph.Softmax:
		return c.softmax(c.asVector(in[0])), nil
	case graph.LogSoftmax:
		return c.logSoftmax(c.asVector(in[0])), nil
	case graph.LayerNorm:
		return c.layerNorm(op.Eps, c.asVector(in[0]), in[1], in[2]), nil
	case graph.RMSNorm:
		return c.rmsNorm(op.Eps, c.asVector(in[0]), in[1]), nil
	}
	return value{}, fmt.Errorf("the CPU has no instructions for %s", n.Where())
}

func (c *compiler[T]) unary(op graph.Unary, x value) value {
	a := c.place(x)
	if op.Fn.HasAlpha() {
		run, alpha := vec.Of[T]().UnaryScalar(op.Fn), T(op.Alpha)
		return c.step(func(f *frame[T], dst []T) { run(dst, f.at(a), alpha) }, x)
	}
	run := vec.Of[T]().Unary(op.Fn)
	return c.step(func(f *frame[T], dst []T) { run(dst, f.at(a)) }, x)
}

func (c *compiler[T]) binary(code graph.BinaryFn, x, y value) value {
	k, a, b := vec.Of[T](), c.place(x), c.place(y)
	switch {
	case a.scalar == b.scalar:
		run := k.BinaryVV(code)
		return c.step(func(f *frame[T], dst []T) { run(dst, f.at(a), f.at(b)) }, x, y)
	case b.scalar:
		run := k.BinaryVS(code)
		return c.step(func(f *frame[T], dst []T) { run(dst, f.v[a.slot], f.s[b.slot]) }, x)
	}
	run := k.BinarySV(code)
	return c.step(func(f *frame[T], dst []T) { run(dst, f.v[b.slot], f.s[a.slot]) }, y)
}

func (c *compiler[T]) selection(m, x, y value) value {
	k := vec.Of[T]()
	if x.kind == vector || y.kind == vector {
		m = c.asVector(m)
	}
	if m.kind == vector && x.kind != vector {
		y = c.asVector(y)
	}
	q, a, b := c.place(m), c.place(x), c.place(y)
	switch {
	case !q.scalar && b.scalar:
		run := k.SelectVVS()
		return c.step(func(f *frame[T], dst []T) { run(dst, f.at(q), f.at(a), f.s[b.slot]) }, m, x)
	case !q.scalar && a.scalar:
		run := k.SelectVSV()
		return c.step(func(f *frame[T], dst []T) { run(dst, f.at(q), f.at(b), f.s[a.slot]) }, m, y)
	}
	run := k.SelectVVV()
	return c.step(func(f *frame[T], dst []T) { run(dst, f.at(q), f.at(a), f.at(b)) }, m, x, y)
}

// cast converts between what lanes stand for; see integer.go for those that hold integers.
func (c *compiler[T]) cast(from, to graph.DType, x value) value {
	a := c.place(x)
	each := func(convert func(T) T) value {
		return c.step(func(f *frame[T], dst []T) {
			for i, v := range f.at(a)[:len(dst)] {
				dst[i] = convert(v)
			}
		}, x)
	}
	whole := from.IsInt() && wholeLanes[T]()
	switch {
	case from == to:
		return x
	case to.IsInt() && !wholeLanes[T]() && from.IsInt():
		return each(func(v T) T { return T(to.Wrap(int64(v))) })
	case to.IsInt() && to.Size() <= 2 && !wholeLanes[T]():
		least, most, cut := vec.Of[T]().BinaryVS(graph.Max), vec.Of[T]().BinaryVS(graph.Min), cutters[T](to)
		lo, hi := to.Limits()
		c.p.cuts = true
		return c.step(func(f *frame[T], dst []T) {
			least(dst, f.at(a)[:len(dst)], T(lo))
			most(dst, dst, T(hi))
			cut(dst, f.ints)
		}, x)
	case to.IsInt() && !wholeLanes[T]():
		return each(func(v T) T { return T(to.Truncate(float64(v))) })
	case to.IsInt() && whole:
		return each(func(v T) T { return ofInt[T](to.Wrap(toInt(v))) })
	case to.IsInt():
		return each(func(v T) T { return ofInt[T](to.Truncate(float64(v))) })
	case to == graph.Bool && whole:
		return c.binaryInt(graph.Ne, from, x, value{kind: constant})
	case to == graph.Bool:
		return c.binary(graph.Ne, x, value{kind: constant})
	case to.Is16() && whole:
		return each(func(v T) T { return T(to.Round(from.Real(toInt(v)))) })
	case to.Is16():
		return c.step(func(f *frame[T], dst []T) { vec.RoundHalf(dst, f.at(a), to) }, x)
	case to == graph.F32 && from == graph.U64 && whole:
		return each(func(v T) T { return T(float32(uint64(toInt(v)))) })
	case to == graph.F32 && whole:
		return each(func(v T) T { return T(float32(toInt(v))) })
	case whole:
		return each(func(v T) T { return T(from.Real(toInt(v))) })
	case to == graph.F32 && from == graph.F64:
		return each(func(v T) T { return T(float32(v)) })
	}
	return x
}

// dropout draws for each element by its index in the value.
func (c *compiler[T]) dropout(v *body.Value) value {
	rule := graph.DropoutRuleOf(v.Node.Op.(graph.Dropout).P)
	x := c.asVector(c.operand(v.Args[0]))
	a, s := x.slot, len(c.p.seeds)
	keep, scale := vec.Of[T]().Keep(), T(1/rule.Kept())
	if seed := &c.body.Values[v.Args[1]]; seed.Kind == body.Constant {
		c.p.seeds = append(c.p.seeds, seedRead{value: seed.Number.Int(0), buf: -1})
	} else {
		c.p.seeds = append(c.p.seeds, seedRead{buf: seed.Arg, at: seed.Layout.Offset})
	}
	return c.step(func(f *frame[T], dst []T) {
		for most, at := 32*len(f.words), 0; at < len(dst); at += most {
			n := min(most, len(dst)-at)
			vec.Kept(f.words, 1, n, rule, uint64(f.seeds[s]), uint64(f.base+at), 0)
			keep(dst[at:][:n], f.v[a][at:], f.words, scale)
		}
	}, x)
}

// reduce combines a whole row.
func (c *compiler[T]) reduce(fn graph.ReduceFn, x value) value {
	a, run, averages := x.slot, vec.Of[T]().Reduce(reductions[fn]), fn.Info().Averages
	return c.scalarStep(func(f *frame[T], dst []T) {
		dst[0] = run(f.v[a])
		if averages {
			dst[0] /= T(len(f.v[a]))
		}
	}, a)
}

func (c *compiler[T]) softmax(x value) value {
	k, a := vec.Of[T](), x.slot
	top, expSub, scale, fill := k.Reduce(vec.MaxOf), k.ExpSubSum(), k.BinaryVS(graph.Mul), k.Fill()
	return c.step(func(f *frame[T], dst []T) {
		m := top(f.v[a])
		if math.IsInf(float64(m), -1) {
			fill(dst, 0)
			return
		}
		scale(dst, dst, 1/expSub(dst, f.v[a], min(m, greatest[T]())))
	}, x)
}

func (c *compiler[T]) logSoftmax(x value) value {
	k := vec.Of[T]()
	top, expSub, sub, fill := k.Reduce(vec.MaxOf), k.ExpSubSum(), k.BinaryVS(graph.Sub), k.Fill()
	a := x.slot
	return c.step(func(f *frame[T], dst []T) {
		m := top(f.v[a])
		if math.IsInf(float64(m), -1) {
			fill(dst, m)
			return
		}
		m = min(m, greatest[T]())
		sum := expSub(dst, f.v[a], m)
		sub(dst, f.v[a], m)
		sub(dst, dst, T(math.Log(float64(sum))))
	}, x)
}

func (c *compiler[T]) layerNorm(eps float64, x, gamma, beta value) value {
	k, a, g, b := vec.Of[T](), x.slot, gamma.slot, beta.slot
	sum, squares, affine, fma := k.Reduce(vec.SumOf), k.SumSquaredDeviations(), k.FMAVSS(), k.FMAVVV()
	return c.step(func(f *frame[T], dst []T) {
		n := T(len(f.v[a]))
		mean := sum(f.v[a]) / n
		r := T(1 / math.Sqrt(float64(squares(f.v[a], mean)/n)+eps))
		affine(dst, f.v[a], r, -mean*r)
		fma(dst, dst, f.v[g], f.v[b])
	}, x, gamma, beta)
}

func (c *compiler[T]) rmsNorm(eps float64, x, gamma value) value {
	k, a, g := vec.Of[T](), x.slot, gamma.slot
	squares, scale, mul := k.Reduce(vec.SumSquaresOf), k.BinaryVS(graph.Mul), k.BinaryVV(graph.Mul)
	return c.step(func(f *frame[T], dst []T) {
		r := 1 / math.Sqrt(float64(squares(f.v[a])/T(len(f.v[a])))+eps)
		scale(dst, f.v[a], T(r))
		mul(dst, dst, f.v[g])
	}, x, gamma)
}
