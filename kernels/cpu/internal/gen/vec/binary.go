package main

// binaryOps are the bodies of the two-operand opcodes, for both widths.
var binaryOps = []struct {
	name string
	body func(e *emitter, a, b arg) vec
}{
	{"add", (*emitter).add},
	{"sub", (*emitter).sub},
	{"mul", (*emitter).mul},
	{"div", (*emitter).div},
	{"min", minimum},
	{"max", maximum},
	{"lt", compare(predLT)},
	{"le", compare(predLE)},
	{"gt", compare(predGT)},
	{"ge", compare(predGE)},
	{"eq", compare(predEQ)},
	{"ne", compare(predNE)},
	{"and", and01},
	{"or", or01},
}

// binaryFamily emits every two-operand opcode in its forms vector-vector,
// vector-scalar and scalar-vector.
func binaryFamily(g *generator) {
	for _, w := range g.widths {
		for _, op := range binaryOps {
			g.tables.addForms(op.name, w)
			mapKernel{
				name: op.name + "VV", doc: "sets dst[i] = " + op.name + "(a[i], b[i]).",
				srcs: []string{"a", "b"}, unroll: 2,
				body: func(e *emitter, in []vec, _ []splat) vec { return op.body(e, in[0], in[1]) },
			}.emit(g, w)
			mapKernel{
				name: op.name + "VS", doc: "sets dst[i] = " + op.name + "(x[i], s).",
				srcs: []string{"x"}, scalars: []string{"s"}, unroll: 2,
				body: func(e *emitter, in []vec, s []splat) vec { return op.body(e, in[0], s[0]) },
			}.emit(g, w)
			mapKernel{
				name: op.name + "SV", doc: "sets dst[i] = " + op.name + "(s, x[i]).",
				srcs: []string{"x"}, scalars: []string{"s"}, unroll: 2,
				body: func(e *emitter, in []vec, s []splat) vec { return op.body(e, s[0], in[0]) },
			}.emit(g, w)
		}
	}
}

// compare returns the body of a comparison that gives 1 or 0.
func compare(pred uint64) func(e *emitter, a, b arg) vec {
	return func(e *emitter, a, b arg) vec { return e.bool01(e.cmp(pred, a, b)) }
}

// minimum is Go's min: NaN if either is, and −0 before +0. VMINPS returns its
// second source when both are zero or one is NaN, so the two orders differ only
// in these cases, where OR gives −0; the mask of NaNs is itself a NaN.
func minimum(e *emitter, a, b arg) vec {
	if e.w.neon { // FMIN is just that
		return e.two(e.w.min, a, b)
	}
	m := e.or(e.two(e.w.min, a, b), e.two(e.w.min, b, a))
	return e.or(m, e.cmp(predUnord, a, b))
}

// maximum is Go's max: NaN if either is, and +0 after −0, by AND.
func maximum(e *emitter, a, b arg) vec {
	if e.w.neon { // FMAX is just that
		return e.two(e.w.max, a, b)
	}
	m := e.and(e.two(e.w.max, a, b), e.two(e.w.max, b, a))
	return e.or(m, e.cmp(predUnord, a, b))
}

// and01 is 1 where neither operand is zero.
func and01(e *emitter, a, b arg) vec {
	return e.bool01(e.and(e.cmp(predNE, a, e.c(0)), e.cmp(predNE, b, e.c(0))))
}

// or01 is 1 where at least one operand is not zero.
func or01(e *emitter, a, b arg) vec {
	return e.bool01(e.or(e.cmp(predNE, a, e.c(0)), e.cmp(predNE, b, e.c(0))))
}
