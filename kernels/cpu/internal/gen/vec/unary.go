package main

// unaryFamily emits the one-operand opcodes: the cheap ones for both widths,
// the transcendental ones (transcendental.go, activation.go) for float32.
func unaryFamily(g *generator) {
	for _, w := range g.widths {
		for _, k := range cheapKernels {
			k.srcs = []string{"x"}
			k.unroll = 2
			k.emit(g, w)
			g.tables.add(k, w)
		}
	}
	for _, list := range [][]mapKernel{transcendentalKernels, activationKernels} {
		for _, k := range list {
			k.srcs = []string{"x"}
			k.emit(g, g.f32())
			g.tables.add(k, g.f32())
			if k.wide && g.file == nil {
				k.emit(g, f32x16)
				g.tables.add(k, f32x16)
			}
		}
	}
}

// of1 adapts a body of one operand and no scalars.
func of1(body func(e *emitter, x vec) vec) func(*emitter, []vec, []splat) vec {
	return func(e *emitter, in []vec, _ []splat) vec { return body(e, in[0]) }
}

// rounding returns the body of a rounding opcode.
func rounding(mode uint64) func(*emitter, []vec, []splat) vec {
	return of1(func(e *emitter, x vec) vec { return e.round(mode, x) })
}

// cheapKernels are a few instructions each, the same for both widths.
var cheapKernels = []mapKernel{
	{name: "neg", doc: "sets dst[i] = −x[i].", body: of1(func(e *emitter, x vec) vec { return e.neg(x) })},
	{name: "abs", doc: "sets dst[i] = |x[i]|.", body: of1(func(e *emitter, x vec) vec { return e.abs(x) })},
	{name: "sign", doc: "sets dst[i] = ±1 by the sign of x[i]; ±0 and NaN stay.", hoist: []float64{0, 1}, body: of1(sign)},
	{name: "ceil", doc: "sets dst[i] = ⌈x[i]⌉.", body: rounding(roundCeil)},
	{name: "floor", doc: "sets dst[i] = ⌊x[i]⌋.", body: rounding(roundFloor)},
	{name: "round", doc: "sets dst[i] to x[i] rounded to the nearest integer, halves to even.", body: rounding(roundEven)},
	{name: "square", doc: "sets dst[i] = x[i]².", body: of1(func(e *emitter, x vec) vec { return e.mul(x, x) })},
	{name: "cube", doc: "sets dst[i] = x[i]³.", body: of1(func(e *emitter, x vec) vec { return e.mul(e.mul(x, x), x) })},
	{name: "sqrt", doc: "sets dst[i] = √x[i].", body: of1(func(e *emitter, x vec) vec { return e.sqrt(x) })},
	{name: "recip", doc: "sets dst[i] = 1/x[i].", hoist: []float64{1},
		body: of1(func(e *emitter, x vec) vec { return e.div(e.c(1), x) })},
	{name: "rsqrt", doc: "sets dst[i] = 1/√x[i].", hoist: []float64{1},
		body: of1(func(e *emitter, x vec) vec { return e.div(e.c(1), e.sqrt(x)) })},
	{name: "relu", doc: "sets dst[i] = x[i] where x[i] ≥ 0 or NaN, else 0.", hoist: []float64{0},
		body: of1(func(e *emitter, x vec) vec { return e.atLeast(x, e.c(0)) })},
	{name: "not", doc: "sets dst[i] = 1 where x[i] = 0, else 0.", hoist: []float64{0, 1},
		body: of1(func(e *emitter, x vec) vec { return e.bool01(e.cmp(predEQ, x, e.c(0))) })},
	{
		name: "leakyRelu", doc: "sets dst[i] = x[i] where x[i] ≥ 0, else s·x[i].",
		scalars: []string{"s"}, hoist: []float64{0},
		body: func(e *emitter, in []vec, s []splat) vec {
			x := in[0]
			return e.choose(e.cmp(predGE, x, e.c(0)), x, e.mul(x, s[0]))
		},
	},
}

// sign is ±1 where x is neither zero nor NaN, and x itself where it is.
func sign(e *emitter, x vec) vec {
	special := e.cmp(predEQ, x, e.c(0))
	nan := e.cmp(predUnord, x, x)
	return e.choose(e.or(special, nan), x, e.or(e.signBit(x), e.c(1)))
}
