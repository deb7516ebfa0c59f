package vec

import "fusec/graph"

// Portable returns the opcodes in plain Go: functions by their references in
// package graph, computed in float64 and rounded to T. They run everywhere.
func Portable[T Float]() *Kernels[T] {
	k := &Kernels[T]{
		unary:       make([]func(dst, x []T), len(graph.UnaryFns())),
		unaryScalar: make([]func(dst, x []T, s T), len(graph.UnaryFns())),
		vv:          make([]func(dst, a, b []T), len(graph.BinaryFns())),
		vs:          make([]func(dst, x []T, s T), len(graph.BinaryFns())),
		sv:          make([]func(dst, x []T, s T), len(graph.BinaryFns())),
		reduce: [numReduction]func(x []T) T{
			SumOf:        sum[T],
			SumSquaresOf: sumSquares[T],
			ProdOf:       prod[T],
			MaxOf:        maxOf[T],
			MinOf:        minOf[T],
		},
		fmaVVV:              fmaVVV[T],
		fmaVSV:              fmaVSV[T],
		fmaVSS:              fmaVSS[T],
		selectVVV:           selectVVV[T],
		selectVVS:           selectVVS[T],
		selectVSV:           selectVSV[T],
		roundMul:            roundMul[T],
		roundDiv:            roundDiv[T],
		dot:                 dot[T],
		sumSquareDeviations: sumSquaredDeviations[T],
		expSubSum:           expSubSum[T],
		fill:                fill[T],
		keep:                keep[T],
	}
	for op, f := range graph.UnaryFns() {
		if f.Fn.HasAlpha() {
			k.unaryScalar[op] = mapVS(func(x, s T) T { return T(f.EvalAlpha(float64(x), float64(s))) })
		} else {
			k.unary[op] = mapUnary[T](f.Eval)
		}
	}
	k.unary[graph.Neg], k.unary[graph.Square], k.unary[graph.Cube] = neg[T], square[T], cube[T]
	k.unary[graph.Recip], k.unary[graph.Relu] = recip[T], relu[T]
	for op, row := range graph.BinaryFns() {
		f := func(a, b T) T { return T(row.Eval(float64(a), float64(b))) }
		k.vv[op], k.vs[op], k.sv[op] = mapVV(f), mapVS(f), mapSV(f)
	}
	k.vv[graph.Add], k.vs[graph.Add], k.sv[graph.Add] = addVV[T], addVS[T], addVS[T]
	k.vv[graph.Sub], k.vs[graph.Sub], k.sv[graph.Sub] = subVV[T], subVS[T], subSV[T]
	k.vv[graph.Mul], k.vs[graph.Mul], k.sv[graph.Mul] = mulVV[T], mulVS[T], mulVS[T]
	k.vv[graph.Div], k.vs[graph.Div], k.sv[graph.Div] = divVV[T], divVS[T], divSV[T]
	k.vs[graph.Pow] = powVS(k)
	return k
}

// powVS makes the vector-scalar form of Pow. The powers that models raise to most
// often are opcodes of k.
func powVS[T Float](k *Kernels[T]) func(dst, x []T, s T) {
	general := k.vs[graph.Pow]
	return func(dst, x []T, s T) {
		switch s {
		case 2:
			k.unary[graph.Square](dst, x)
		case 3:
			k.unary[graph.Cube](dst, x)
		case -1:
			k.unary[graph.Recip](dst, x)
		default:
			general(dst, x, s)
		}
	}
}

// cut1 returns dst and x cut to the shorter of them, which lets the compiler
// see that they are of one length.
func cut1[D, S any](dst []D, x []S) ([]D, []S) {
	n := min(len(dst), len(x))
	return dst[:n], x[:n]
}

// cut2 is cut1 for two sources.
func cut2[T any](dst, a, b []T) ([]T, []T, []T) {
	n := min(len(dst), len(a), len(b))
	return dst[:n], a[:n], b[:n]
}

// mapUnary makes the vector form of f.
func mapUnary[T Float](f func(float64) float64) func(dst, x []T) {
	return func(dst, x []T) {
		dst, x = cut1(dst, x)
		for i, v := range x {
			dst[i] = T(f(float64(v)))
		}
	}
}

// mapVV makes the vector-vector form of f.
func mapVV[T Float](f func(a, b T) T) func(dst, a, b []T) {
	return func(dst, a, b []T) {
		dst, a, b = cut2(dst, a, b)
		for i, v := range a {
			dst[i] = f(v, b[i])
		}
	}
}

// mapVS makes the vector-scalar form of f.
func mapVS[T Float](f func(a, b T) T) func(dst, x []T, s T) {
	return func(dst, x []T, s T) {
		dst, x = cut1(dst, x)
		for i, v := range x {
			dst[i] = f(v, s)
		}
	}
}

// mapSV makes the scalar-vector form of f.
func mapSV[T Float](f func(a, b T) T) func(dst, x []T, s T) {
	return func(dst, x []T, s T) {
		dst, x = cut1(dst, x)
		for i, v := range x {
			dst[i] = f(s, v)
		}
	}
}
