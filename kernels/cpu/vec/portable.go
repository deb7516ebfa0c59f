package vec

import "math"

// Portable returns the opcodes in plain Go, computed in float64 and rounded to
// T. They run everywhere and are what the faster ones are compared with.
func Portable[T Float]() *Kernels[T] {
	k := &Kernels[T]{
		unaryScalar: [numUnaryScalar]func(dst, x []T, s T){
			LeakyReLU: mapVS(leakyReLU[T]),
			ELU:       mapVS(elu[T]),
		},
		reduce: [numReduction]func(x []T) T{
			SumOf:        sum[T],
			SumSquaresOf: sumSquares[T],
			SumAbsOf:     sumAbs[T],
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
		dot:                 dot[T],
		sumSquareDeviations: sumSquaredDeviations[T],
		expSubSum:           expSubSum[T],
		fill:                fill[T],
		keep:                keep[T],
	}
	for op, f := range unaryFuncs {
		k.unary[op] = mapUnary[T](f)
	}
	k.unary[Neg], k.unary[Square], k.unary[Cube] = neg[T], square[T], cube[T]
	k.unary[Recip], k.unary[ReLU] = recip[T], relu[T]
	for op, f := range binaryFuncs[T]() {
		k.vv[op], k.vs[op], k.sv[op] = mapVV(f), mapVS(f), mapSV(f)
	}
	k.vv[Add], k.vs[Add], k.sv[Add] = addVV[T], addVS[T], addVS[T]
	k.vv[Sub], k.vs[Sub], k.sv[Sub] = subVV[T], subVS[T], subSV[T]
	k.vv[Mul], k.vs[Mul], k.sv[Mul] = mulVV[T], mulVS[T], mulVS[T]
	k.vv[Div], k.vs[Div], k.sv[Div] = divVV[T], divVS[T], divSV[T]
	k.vs[Pow] = powVS(k)
	return k
}

// powVS makes the vector-scalar form of Pow. The powers that models raise to most
// often are opcodes of k.
func powVS[T Float](k *Kernels[T]) func(dst, x []T, s T) {
	general := k.vs[Pow]
	return func(dst, x []T, s T) {
		switch s {
		case 2:
			k.unary[Square](dst, x)
		case 3:
			k.unary[Cube](dst, x)
		case -1:
			k.unary[Recip](dst, x)
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

// one01 is 1 or 0.
func one01[T Float](b bool) T {
	if b {
		return 1
	}
	return 0
}

// binaryFuncs has the scalar form of each binary opcode.
func binaryFuncs[T Float]() [numBinary]func(a, b T) T {
	return [numBinary]func(a, b T) T{
		Add: func(a, b T) T { return a + b },
		Sub: func(a, b T) T { return a - b },
		Mul: func(a, b T) T { return a * b },
		Div: func(a, b T) T { return a / b },
		Pow: func(a, b T) T { return T(math.Pow(float64(a), float64(b))) },
		Min: func(a, b T) T { return min(a, b) },
		Max: func(a, b T) T { return max(a, b) },
		Lt:  func(a, b T) T { return one01[T](a < b) },
		Le:  func(a, b T) T { return one01[T](a <= b) },
		Gt:  func(a, b T) T { return one01[T](a > b) },
		Ge:  func(a, b T) T { return one01[T](a >= b) },
		Eq:  func(a, b T) T { return one01[T](a == b) },
		Ne:  func(a, b T) T { return one01[T](a != b) },
		And: func(a, b T) T { return one01[T](a != 0 && b != 0) },
		Or:  func(a, b T) T { return one01[T](a != 0 || b != 0) },
	}
}
