package main

// ternaryFamily emits the three-operand opcodes for both widths. In a name V
// stands for a vector and S for a scalar, in the order of the operands.
func ternaryFamily(g *generator) {
	for _, w := range g.widths {
		for _, k := range ternaryKernels {
			k.unroll = 2
			k.emit(g, w)
		}
	}
}

var ternaryKernels = []mapKernel{
	{
		name: "fmaVVV", doc: "sets dst[i] = a[i]·b[i] + c[i], rounded once.",
		srcs: []string{"a", "b", "c"},
		body: func(e *emitter, in []vec, _ []splat) vec {
			e.mulAdd(in[0], in[1], in[2])
			return in[0]
		},
	},
	{
		name: "fmaVSV", doc: "sets dst[i] = a[i]·s + c[i], rounded once.",
		srcs: []string{"a", "c"}, scalars: []string{"s"},
		body: func(e *emitter, in []vec, s []splat) vec {
			e.mulAdd(in[0], s[0], in[1])
			return in[0]
		},
	},
	{
		name: "fmaVSS", doc: "sets dst[i] = a[i]·s + t, rounded once.",
		srcs: []string{"a"}, scalars: []string{"s", "t"},
		body: func(e *emitter, in []vec, s []splat) vec {
			e.mulAdd(in[0], s[0], s[1])
			return in[0]
		},
	},
	{
		name: "selectVVV", doc: "sets dst[i] = a[i] where m[i] ≠ 0, else b[i].",
		srcs: []string{"m", "a", "b"}, hoist: []float64{0},
		body: func(e *emitter, in []vec, _ []splat) vec { return selectNonzero(e, in[0], in[1], in[2]) },
	},
	{
		name: "selectVVS", doc: "sets dst[i] = a[i] where m[i] ≠ 0, else s.",
		srcs: []string{"m", "a"}, scalars: []string{"s"}, hoist: []float64{0},
		body: func(e *emitter, in []vec, s []splat) vec { return selectNonzero(e, in[0], in[1], s[0]) },
	},
	{
		name: "selectVSV", doc: "sets dst[i] = s where m[i] ≠ 0, else b[i].",
		srcs: []string{"m", "b"}, scalars: []string{"s"}, hoist: []float64{0},
		body: func(e *emitter, in []vec, s []splat) vec { return selectNonzero(e, in[0], s[0], in[1]) },
	},
	{
		name: "roundMul", doc: "sets dst[i] = min(max(round(x[i]·s) + zero, lo), hi).",
		srcs: []string{"x"}, scalars: []string{"s", "zero", "lo", "hi"},
		body: func(e *emitter, in []vec, s []splat) vec { return limited(e, e.mul(in[0], s[0]), s) },
	},
	{
		name: "roundDiv", doc: "sets dst[i] = min(max(round(x[i] ÷ s) + zero, lo), hi).",
		srcs: []string{"x"}, scalars: []string{"s", "zero", "lo", "hi"},
		body: func(e *emitter, in []vec, s []splat) vec { return limited(e, e.div(in[0], s[0]), s) },
	},
}

// limited rounds x, moves it, and limits it; a NaN stays one.
func limited(e *emitter, x vec, s []splat) vec {
	return e.atMost(e.atLeast(e.add(e.round(roundEven, x), s[1]), s[2]), s[3])
}

// selectNonzero returns yes where mask ≠ 0, else no.
func selectNonzero(e *emitter, mask vec, yes, no arg) vec {
	return e.choose(e.cmp(predNE, mask, e.c(0)), yes, no)
}
