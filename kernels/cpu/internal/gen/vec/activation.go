package main

import "math"

// activationKernels are the activation functions on float32, each one fused
// loop.
var activationKernels = []mapKernel{
	{name: "tanh", doc: "sets dst[i] = tanh x[i].", unroll: 3, wide: true, body: of1(tanh)},
	{name: "sigmoid", doc: "sets dst[i] = 1/(1 + e^−x[i]).", unroll: 4, wide: true, body: of1(sigmoid)},
	{name: "silu", doc: "sets dst[i] = x[i]/(1 + e^−x[i]).", unroll: 4, wide: true, body: of1(silu)},
	{name: "geluTanh", doc: "sets dst[i] to GELU(x[i]) by the tanh formula.", unroll: 4, wide: true, body: of1(geluTanh)},
	{name: "geluTanhSlope", doc: "sets dst[i] to the slope of geluTanh at x[i].", unroll: 3, body: of1(geluTanhSlope)},
	{name: "geluErf", doc: "sets dst[i] = x[i]·Φ(x[i]).", unroll: 3, wide: true, body: of1(geluErf)},
	{name: "geluErfSlope", doc: "sets dst[i] = Φ(x[i]) + x[i]·φ(x[i]).", unroll: 3, body: of1(geluErfSlope)},
	{name: "softplus", doc: "sets dst[i] = ln(1 + e^x[i]).", unroll: 4, body: of1(softplus)},
	{
		name: "elu", doc: "sets dst[i] = x[i] where x[i] > 0, else s·(e^x[i] − 1).", unroll: 2,
		scalars: []string{"s"},
		body: func(e *emitter, in []vec, s []splat) vec {
			x := in[0]
			y := e.mul(expm1(e, e.atMost(x, e.c(0))), s[0])
			return e.choose(e.cmp(predGT, x, e.c(0)), x, y)
		},
	},
}

// tanhMax is a float32 whose rational approximation is 1 after rounding; beyond
// it tanh is 1 in float32.
const tanhMax = 8.996415

// tanh is a rational function of degrees 13 and 6, from Eigen
// (Eigen/src/Core/MathFunctionsImpl.h, generic_fast_tanh_float).
func tanh(e *emitter, x vec) vec {
	t := e.atMost(e.abs(x), e.c(tanhMax))
	square := e.mul(t, t)
	p := e.poly(square,
		-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
		1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03)
	q := e.poly(square, 1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
	y := e.atMost(e.mul(e.div(p, q), t), e.c(1)) // rounding may have gone beyond
	return e.or(y, e.signBit(x))
}

// sigmoid is 1/(1 + e^−x).
func sigmoid(e *emitter, x vec) vec {
	t := e.atLeast(e.atMost(e.neg(x), e.c(expNormalMax)), e.c(expNormalMin))
	return e.div(e.c(1), e.add(expNormal(e, t), e.c(1)))
}

// silu is x/(1 + e^−x), with x bounded where the quotient is −0.
func silu(e *emitter, x vec) vec {
	t := e.atLeast(e.atMost(e.neg(x), e.c(expNormalMax)), e.c(expNormalMin))
	y := e.add(expNormal(e, t), e.c(1))
	return e.div(e.atLeast(e.again(0), e.c(-expNormalMax)), y)
}

// geluTanh is ½x(1 + tanh u) = x/(1 + e^−2u) with u = √(2/π)(x + 0.044715x³), the
// exponential taken as a power of 2.
func geluTanh(e *emitter, x vec) vec {
	t := e.atMost(e.atLeast(x, e.c(geluLow)), e.c(geluHigh))
	u := e.fma(e.mul(t, t), e.c(-0.044715*geluFirst*math.Log2E), e.c(-geluFirst*math.Log2E))
	y := e.add(exp2Normal(e, e.mul(t, u)), e.c(1))
	return e.div(e.atLeast(e.again(0), e.c(geluLow)), y)
}

const (
	geluFirst = 2 * math.Sqrt2 / 1.77245385090551602729816748334 // 2√(2/π)
	geluLow   = -10.06                                           // the exponent is 127.96 there, so the quotient is −0
	geluHigh  = 10                                               // the exponent is −126 there, so the quotient is x
)

// geluTanhSlope is s + x·s(1−s)·(2u)′ with s = 1/(1 + e^−2u).
func geluTanhSlope(e *emitter, x vec) vec {
	t := e.atMost(e.atLeast(x, e.c(geluLow)), e.c(geluHigh))
	square := e.mul(t, t)
	u := e.fma(square, e.c(-0.044715*geluFirst*math.Log2E), e.c(-geluFirst*math.Log2E))
	s := e.div(e.c(1), e.add(exp2Normal(e, e.mul(t, u)), e.c(1)))
	a := e.mul(e.fma(square, e.c(3*0.044715*geluFirst), e.c(geluFirst)), t)
	a = e.mul(a, s)
	return e.fma(a, e.sub(e.c(1), s), s)
}

// geluErf is max(x, 0) − |x|·Φ(−|x|), with Φ(−t) = 2^P(t). P is a minimax
// polynomial for log₂ Φ(−t) on 0 ≤ t ≤ 6, made by iteratively reweighted least
// squares with weight 1/max(1, |log₂ Φ(−t)|); its weighted error is 7e-8. Beyond
// 6, where Φ(−t) < 1e-9, it falls faster than log₂ Φ(−t), and at 11.61 it is
// −127.1, which makes the power 0.
func geluErf(e *emitter, x vec) vec {
	t := e.atMost(e.abs(x), e.c(11.61))
	p := e.poly(t,
		-1.8624190190053014e-08, 5.959104782959912e-07, -8.140769750752952e-06, 6.000177745590918e-05,
		-0.00022335757967084646, -0.0001150838506873697, 0.007083631586283445, -0.052529044449329376,
		-0.4591946601867676, -1.1511067152023315, -1)
	q := exp2Normal(e, p)
	y := e.atLeast(x, e.c(0))
	e.subMul(y, t, q)
	return y
}

// geluErfSlope is g = φ(t)·(R(t) − t) for t = |x| where x < 0, else 1 − g, with φ(t) = e^(−t²/2)/√2π. R is the ratio of
// Φ(−t) and φ(t), Mills' ratio. R/√2π is a polynomial in 1/(1 + 0.3t) (a form of Hastings, in Abramowitz and Stegun, 26.2.17)
// without a constant term, made by iteratively reweighted least squares on 0 ≤ t ≤ 13.5, of an error of 6e-7·(R + t)/√2π.
func geluErfSlope(e *emitter, x vec) vec {
	t := e.atMost(e.abs(x), e.c(13.26)) // where the power is 0
	k := e.div(e.c(1), e.fma(t, e.c(0.3), e.c(1)))
	r := e.mul(e.poly(k, -0.07948568178807117, 0.22229187705115797, -0.02273575508935126, 0.14635613314559376,
		0.11351747039275148, 0.120055658328247), k)
	e.subMul(r, t, e.c(1/math.Sqrt(2*math.Pi)))
	g := e.mul(exp2Normal(e, e.mul(e.mul(t, t), e.c(-0.5*math.Log2E))), r)
	return e.choose(e.cmp(predLT, e.again(0), e.c(0)), g, e.sub(e.c(1), g))
}

// softplus is max(x, 0) + ln(1 + q) with q = e^−|x|. The logarithm is
// 2·artanh s with s = q/(2+q) ≤ ⅓; 2·artanh(s)/s is a minimax polynomial in s²,
// made by iteratively reweighted least squares, of relative error 5e-9.
func softplus(e *emitter, x vec) vec {
	t := e.atLeast(e.or(x, e.pattern(f32.sign)), e.c(expNormalMin))
	q := expNormal(e, t)
	s := e.div(q, e.add(q, e.c(2)))
	y := e.poly(e.mul(s, s), 0.2802445888519287, 0.27999141812324524, 0.4002169966697693, 0.6666641235351562, 2)
	e.mulAdd(y, s, e.atLeast(e.again(0), e.c(0)))
	return y
}
