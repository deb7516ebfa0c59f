package main

import "math"

// Sources of the polynomials in this file:
//
//   - exp, sin, cos, erf: N. Juffa's single-precision functions for processors
//     with FMA, published in answers on Stack Overflow;
//   - log, log2, and the inverse and the hyperbolic functions: S. Moshier,
//     Cephes, single/logf.c, log2f.c, asinf.c, atanf.c, sinhf.c, asinhf.c,
//     acoshf.c and atanhf.c.

// transcendentalKernels are the elementary functions on float32.
var transcendentalKernels = []mapKernel{
	{name: "exp", doc: "sets dst[i] = e^x[i].", hoist: []float64{expMin, expMax}, unroll: 4, body: of1(exp)},
	{name: "expm1", doc: "sets dst[i] = e^x[i] − 1.", unroll: 3, body: of1(expm1)},
	{name: "log", doc: "sets dst[i] = ln x[i].", unroll: 3, body: of1(log)},
	{name: "log2", doc: "sets dst[i] = log₂ x[i].", unroll: 3, body: of1(log2)},
	{name: "log1p", doc: "sets dst[i] = ln(1 + x[i]).", unroll: 2, body: of1(log1p)},
	{
		name: "sinBlocks", doc: "sets dst[i] = sin x[i], up to an |x[i]| that needs a longer reduction.",
		unroll: 3, body: of1(func(e *emitter, x vec) vec { return sine(e, x, 0) }), unfit: farFromZero,
	},
	{
		name: "cosBlocks", doc: "sets dst[i] = cos x[i], up to an |x[i]| that needs a longer reduction.",
		unroll: 3, body: of1(func(e *emitter, x vec) vec { return sine(e, x, 1) }), unfit: farFromZero,
	},
	{
		name: "tanBlocks", doc: "sets dst[i] = tan x[i], up to an |x[i]| that needs a longer reduction.",
		unroll: 1, body: of1(tangent), unfit: farFromZero,
	},
	{name: "asin", doc: "sets dst[i] = arcsin x[i].", unroll: 2, body: of1(arcsine)},
	{name: "acos", doc: "sets dst[i] = arccos x[i].", unroll: 2, body: of1(arccosine)},
	{name: "atan", doc: "sets dst[i] = arctan x[i].", unroll: 2, body: of1(arctangent)},
	{name: "sinh", doc: "sets dst[i] = sinh x[i].", unroll: 2, body: of1(hyperbolicSine)},
	{name: "cosh", doc: "sets dst[i] = cosh x[i].", unroll: 2, body: of1(hyperbolicCosine)},
	{name: "asinh", doc: "sets dst[i] = arsinh x[i].", unroll: 1, body: of1(inverseHyperbolicSine)},
	{name: "acosh", doc: "sets dst[i] = arcosh x[i].", unroll: 1, body: of1(inverseHyperbolicCosine)},
	{name: "atanh", doc: "sets dst[i] = artanh x[i].", unroll: 1, body: of1(inverseHyperbolicTangent)},
	{name: "erf", doc: "sets dst[i] = erf x[i].", unroll: 3, body: of1(erf)},
}

const (
	// magic is 1.5·2²³: adding it rounds a small float32 to an integer, which
	// stands in the low bits of the sum.
	magic = 3 << 22

	// biasedMagic leaves the integer plus 127 in the low bits, which shifted
	// left by 23 are the float32 2^n.
	biasedMagic = magic + 127

	// ln 2 in two parts; products of the first with integers below 2⁸ are exact
	// under FMA's single rounding.
	ln2High = 0x1.62e400p-1
	ln2Low  = 0x1.7f7d1cp-20

	// Beyond these bounds e^x is 0 or +Inf in float32.
	expMin, expMax   = -104, 89
	exp2Min, exp2Max = -151, 129
)

// expCoefficients are those of expPoly, highest power first.
var expCoefficients = []float64{1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1, 1}

// expPoly approximates e^r for |r| ≤ ln 2/2 (Juffa).
func expPoly(e *emitter, r vec) vec { return e.poly(r, expCoefficients...) }

// reduceExp splits x = n·ln 2 + r, |r| ≤ ln 2/2. It returns n + offset, whose low
// bits are an integer, and leaves r in x.
func reduceExp(e *emitter, x vec, offset float64) (sum vec) {
	sum = e.fma(x, e.c(math.Log2E), e.c(offset))
	n := e.sub(sum, e.c(offset))
	e.subMul(x, n, e.c(ln2High))
	e.subMul(x, n, e.c(ln2Low))
	return sum
}

// scale returns y·2^n for the integer n in the low bits of sum = n + magic. It
// multiplies by two powers, half the exponent each, so that the result may be
// denormal or infinite.
func scale(e *emitter, y, sum vec) vec {
	n := e.two(e.w.intSub, sum, e.pattern(f32.bits(magic)))
	half := e.imm(e.w.shiftRight, 1, n)
	rest := e.two(e.w.intSub, n, half)
	one := e.pattern(f32.one)
	y = e.mul(y, e.two(e.w.intAdd, e.imm(e.w.shiftLeft, 23, half), one))
	return e.mul(y, e.two(e.w.intAdd, e.imm(e.w.shiftLeft, 23, rest), one))
}

// exp is e^x in the whole range.
func exp(e *emitter, x vec) vec {
	x = e.atMost(e.atLeast(x, e.c(expMin)), e.c(expMax))
	sum := reduceExp(e, x, magic)
	return scale(e, expPoly(e, x), sum)
}

// expNormal is e^x for expNormalMin ≤ x ≤ expNormalMax, with 0 for exponents
// below −126½ and +Inf for those above 127½, both reached within the bounds. It
// changes x.
func expNormal(e *emitter, x vec) vec {
	sum := reduceExp(e, x, biasedMagic)
	return e.mul(expPoly(e, x), e.imm(e.w.shiftLeft, 23, sum))
}

const expNormalMin, expNormalMax = -88, 88.7

// exp2Poly approximates 2^r for |r| ≤ ½: expPoly at r·ln 2.
func exp2Poly(e *emitter, r vec) vec {
	const ln2 = math.Ln2
	return e.poly(r,
		1.37805939e-3*ln2*ln2*ln2*ln2*ln2*ln2, 8.37312452e-3*ln2*ln2*ln2*ln2*ln2,
		4.16695364e-2*ln2*ln2*ln2*ln2, 1.66664720e-1*ln2*ln2*ln2, 4.99999851e-1*ln2*ln2, ln2, 1)
}

// reduceExp2 splits x = n + r, |r| ≤ ½. It returns n + offset, whose low bits
// are an integer, and r.
func reduceExp2(e *emitter, x vec, offset float64) (sum, r vec) {
	sum = e.add(x, e.c(offset))
	return sum, e.sub(x, e.sub(sum, e.c(offset)))
}

// exp2Normal is 2^x for −127 ≤ x ≤ 128, with 0 below −126½ and +Inf above 127½.
func exp2Normal(e *emitter, x vec) vec {
	sum, r := reduceExp2(e, x, biasedMagic)
	return e.mul(exp2Poly(e, r), e.imm(e.w.shiftLeft, 23, sum))
}

// expm1 is e^x − 1: with s = 2^(n−1) and p ≈ e^r − 1 it is 2·(s·p + (s − ½)),
// which neither cancels near 0 nor overflows early.
func expm1(e *emitter, x vec) vec {
	tiny := e.cmp(predLT, e.abs(x), e.c(0x1p-26))
	r := e.copy(e.atMost(e.atLeast(x, e.c(-20)), e.c(expMax)))
	sum := reduceExp(e, r, biasedMagic-1)
	s := e.imm(e.w.shiftLeft, 23, sum)
	q := e.poly(r, 1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1)
	p := e.mul(q, r)
	e.mulAdd(p, s, e.sub(s, e.c(0.5)))
	return e.choose(tiny, x, e.add(p, p))
}

// logPoly returns ln(1+f) − f + f²/2 for √½ ≤ 1+f ≤ √2, and f² (Cephes logf.c).
func logPoly(e *emitter, f vec) (y, square vec) {
	square = e.mul(f, f)
	p := e.poly(f,
		7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
		-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)
	return e.mul(e.mul(p, f), square), square
}

// logSum returns ln(1+f) + k·ln 2.
func logSum(e *emitter, f, k vec) vec {
	y, square := logPoly(e, f)
	e.addMul(y, k, e.c(-2.12194440e-4))
	e.subMul(y, square, e.c(0.5))
	y = e.add(f, y)
	e.addMul(y, k, e.c(0.693359375))
	return y
}

// splitFloat returns, for a positive normal x, the integers k·2²³ and k, and
// the mantissa m = x·2^−k in [√½, √2).
func splitFloat(e *emitter, x vec) (shifted, k, m vec) {
	const sqrtHalf = 0x3f3504f3
	k = e.imm(e.w.shiftRight, 23, e.two(e.w.intSub, x, e.pattern(sqrtHalf)))
	shifted = e.imm(e.w.shiftLeft, 23, k)
	return shifted, k, e.two(e.w.intSub, x, shifted)
}

// logSplit returns f and k with x = (1+f)·2^k, scaling denormals up first.
func logSplit(e *emitter, x vec) (f, k vec) {
	small := e.cmp(predLT, x, e.c(0x1p-126))
	x = e.choose(small, e.mul(x, e.c(0x1p25)), x)
	_, n, m := splitFloat(e, x)
	k = e.sub(e.one(e.w.toFloat, n), e.and(small, e.c(25)))
	return e.sub(m, e.c(1)), k
}

// logSpecial puts the values at 0, +Inf and below 0 into y, the logarithm of x.
func logSpecial(e *emitter, x, y vec) vec {
	inf := math.Inf(1)
	y = e.choose(e.cmp(predEQ, x, e.c(inf)), e.c(inf), y)
	y = e.choose(e.cmp(predEQ, x, e.c(0)), e.c(-inf), y)
	return e.or(y, e.cmp(predNGE, x, e.c(0)))
}

// log is ln x.
func log(e *emitter, x vec) vec {
	f, k := logSplit(e, x)
	return logSpecial(e, x, logSum(e, f, k))
}

// log2 is k + f·log₂e + (ln(1+f) − f)·log₂e, with log₂e = 1 + 0.4427 so that
// the large parts are exact (Cephes log2f.c).
func log2(e *emitter, x vec) vec {
	f, k := logSplit(e, x)
	y, square := logPoly(e, f)
	e.subMul(y, square, e.c(0.5))
	z := e.mul(y, e.c(math.Log2E-1))
	e.addMul(z, f, e.c(math.Log2E-1))
	z = e.add(e.add(e.add(z, y), f), k)
	return logSpecial(e, x, z)
}

// log1pCore is ln(1+x) where 1+x is positive and finite. What the addition
// u = 1+x loses is put back into the reduced argument.
func log1pCore(e *emitter, x, u vec) vec {
	lost := e.sub(x, e.sub(u, e.c(1)))
	shifted, n, m := splitFloat(e, u)
	f := e.sub(m, e.c(1))
	inverse := e.two(e.w.intSub, e.pattern(f32.one), shifted)
	e.addMul(f, lost, e.two(e.w.intMax, inverse, e.pattern(0))) // 2^−k, or 0 where k = 128
	return logSum(e, f, e.one(e.w.toFloat, n))
}

// log1p is ln(1+x); where x² is out of reach of the result it is x itself.
func log1p(e *emitter, x vec) vec {
	u := e.add(x, e.c(1))
	y := logSpecial(e, u, log1pCore(e, x, u))
	return e.choose(e.cmp(predLT, e.abs(x), e.c(0x1p-26)), x, y)
}

// farFromZero marks the lanes whose reduction by multiples of π/2 needs more
// than three parts of π/2.
func farFromZero(e *emitter, in []vec) vec {
	return e.cmp(predGT, e.abs(in[0]), e.c(1e4))
}

// waves reduces x by the nearest multiple n of π/2, in three parts (Cody and
// Waite). It returns the sine and the cosine of what remains, and n in the low
// bits of sum.
func waves(e *emitter, x vec) (s, c, sum vec) {
	sum = e.fma(x, e.c(2/math.Pi), e.c(magic))
	n := e.sub(sum, e.c(magic))
	r := e.copy(x)
	e.subMul(r, n, e.c(0x1.921fb0p+0))
	e.subMul(r, n, e.c(0x1.5110b4p-22))
	e.subMul(r, n, e.c(0x1.846988p-48))

	square := e.mul(r, r)
	c = e.poly(square, 2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1)
	s = e.poly(square, 2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1)
	e.mulAdd(s, e.add(e.mul(r, square), e.c(0)), r) // + 0 keeps the sign of sin(−0)
	return s, c, sum
}

// sine is sin(x + quadrant·π/2): n + quadrant, of waves, chooses between the two
// polynomials and the sign.
func sine(e *emitter, x vec, quadrant float64) vec {
	s, c, q := waves(e, x)
	if quadrant != 0 {
		q = e.two(e.w.intAdd, q, e.pattern(uint64(quadrant)))
	}
	y := e.choose(e.topBit(e.imm(e.w.shiftLeft, 31, q)), c, s)
	return e.xor(y, e.signBit(e.imm(e.w.shiftLeft, 30, q)))
}

// tangent is s/c or −c/s.
func tangent(e *emitter, x vec) vec {
	s, c, q := waves(e, x)
	odd := e.imm(e.w.shiftLeft, 31, q)
	mask := e.topBit(odd)
	y := e.div(e.choose(mask, c, s), e.choose(mask, s, c))
	return e.xor(y, odd)
}

// arctangent reduces |x| to at most tan π/8, by arctan x = π/4 + arctan((x−1)/(x+1))
// and arctan x = π/2 − arctan(1/x).
func arctangent(e *emitter, x vec) vec {
	t := e.abs(x)
	far, middle := e.cmp(predGT, t, e.c(2.414213562373095)), e.cmp(predGT, t, e.c(0.4142135623730950))
	top := e.choose(far, e.c(-1), e.choose(middle, e.sub(t, e.c(1)), t))
	below := e.choose(far, t, e.choose(middle, e.add(t, e.c(1)), e.c(1)))
	r := e.div(top, below)
	z := e.mul(r, r)
	y := e.poly(z, 8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
	y = e.mul(e.mul(y, z), r)
	y = e.add(y, r)
	y = e.add(y, e.choose(far, e.c(math.Pi/2), e.and(middle, e.c(math.Pi/4))))
	return e.or(y, e.signBit(x))
}

// arcsinePart is arcsin r, with r = |x| for |x| ≤ ½ and else √((1−|x|)/2), whose
// arcsine is half of arccos |x|; far marks the latter.
func arcsinePart(e *emitter, x vec) (y, far vec) {
	t := e.abs(x)
	far = e.cmp(predGT, t, e.c(0.5))
	half := e.mul(e.sub(e.c(1), t), e.c(0.5))
	z := e.choose(far, half, e.mul(t, t))
	r := e.choose(far, e.sqrt(half), t)
	y = e.poly(z, 4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
	y = e.mul(e.mul(y, z), r)
	return e.add(y, r), far
}

// arcsine is π/2 − 2·arcsin √((1−|x|)/2) beyond ½.
func arcsine(e *emitter, x vec) vec {
	y, far := arcsinePart(e, x)
	y = e.choose(far, e.sub(e.c(math.Pi/2), e.add(y, y)), y)
	return e.or(y, e.signBit(x))
}

// arccosine is π/2 − arcsin x, and beyond ½ 2·arcsin √((1−|x|)/2), or π less that.
func arccosine(e *emitter, x vec) vec {
	y, far := arcsinePart(e, x)
	plus := e.signBit(e.xor(far, e.xor(x, e.pattern(f32.sign)))) // the sign of y in the sum
	y = e.xor(e.choose(far, e.add(y, y), y), plus)
	base := e.choose(far, e.and(e.imm(e.w.shiftRight, 31, x), e.c(math.Pi)), e.c(math.Pi/2))
	return e.add(base, y)
}

// halfExp is e^|x|/2, infinite only where that is.
func halfExp(e *emitter, x vec) vec {
	t := e.copy(e.atMost(e.abs(x), e.c(90)))
	sum := reduceExp(e, t, magic)
	return scale(e, expPoly(e, t), e.two(e.w.intSub, sum, e.pattern(1)))
}

// hyperbolicSine is h − 1/(4h) with h = e^|x|/2, and a polynomial up to 1.
func hyperbolicSine(e *emitter, x vec) vec {
	h := halfExp(e, x)
	y := e.sub(h, e.div(e.c(0.25), h))
	y = e.or(y, e.signBit(x))
	z := e.mul(x, x)
	p := e.poly(z, 2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)
	p = e.mul(e.mul(p, z), x)
	return e.choose(e.cmp(predLE, e.abs(x), e.c(1)), e.add(p, x), y)
}

// hyperbolicCosine is h + 1/(4h) with h = e^|x|/2.
func hyperbolicCosine(e *emitter, x vec) vec {
	h := halfExp(e, x)
	return e.add(h, e.div(e.c(0.25), h))
}

// logAbove is ln v for v ≥ 1, or ln 2v in the lanes that are marked, if any.
func logAbove(e *emitter, v, doubled vec) vec {
	_, n, m := splitFloat(e, v)
	k := e.one(e.w.toFloat, n)
	if doubled != nil {
		k = e.add(k, e.and(doubled, e.c(1)))
	}
	y := logSum(e, e.sub(m, e.c(1)), k)
	y = e.choose(e.cmp(predEQ, v, e.c(math.Inf(1))), e.c(math.Inf(1)), y)
	return e.or(y, e.cmp(predUnord, v, v))
}

// inverseHyperbolicSine is ln(|x| + √(x²+1)), ln 2|x| where the 1 is lost, and a
// polynomial up to ½.
func inverseHyperbolicSine(e *emitter, x vec) vec {
	t, z := e.abs(x), e.mul(x, x)
	large := e.cmp(predGT, t, e.c(1500))
	y := logAbove(e, e.choose(large, t, e.add(t, e.sqrt(e.add(z, e.c(1))))), large)
	y = e.or(y, e.signBit(x))
	p := e.poly(z, 2.0122003309e-2, -4.2699340972e-2, 7.4847586088e-2, -1.6666288134e-1)
	p = e.mul(e.mul(p, z), x)
	return e.choose(e.cmp(predLT, t, e.c(0.5)), e.add(p, x), y)
}

// inverseHyperbolicCosine is ln(x + √(x²−1)), ln 2x where the 1 is lost, and up to
// 1½ √(x−1) times a polynomial. It is NaN below 1.
func inverseHyperbolicCosine(e *emitter, x vec) vec {
	large := e.cmp(predGT, x, e.c(1500))
	z := e.sub(x, e.c(1))
	y := logAbove(e, e.choose(large, x, e.add(x, e.sqrt(e.mul(z, e.add(x, e.c(1)))))), large)
	p := e.poly(z, 1.7596881071e-3, -7.5272886713e-3, 2.6454905019e-2, -1.1784741703e-1, 1.4142135263)
	y = e.choose(e.cmp(predLT, z, e.c(0.5)), e.mul(p, e.sqrt(z)), y)
	return e.or(y, e.cmp(predNGE, x, e.c(1)))
}

// inverseHyperbolicTangent is ½·ln((1+|x|)/(1−|x|)), and a polynomial up to ½. It is
// NaN beyond 1.
func inverseHyperbolicTangent(e *emitter, x vec) vec {
	t := e.abs(x)
	rest := e.sub(e.c(1), t)
	y := e.mul(logAbove(e, e.div(e.add(t, e.c(1)), rest), nil), e.c(0.5))
	y = e.or(y, e.cmp(predNGE, rest, e.c(0)))
	y = e.or(y, e.signBit(x))
	z := e.mul(x, x)
	p := e.poly(z, 1.81740078349e-1, 8.24370301058e-2, 1.46691431730e-1, 1.99782164500e-1, 3.33337300303e-1)
	p = e.mul(e.mul(p, z), x)
	return e.choose(e.cmp(predLT, t, e.c(0.5)), e.add(p, x), y)
}

// erf is x + x·P(x²) near 0 and ±(1 − e^(|x|·Q(|x|))) elsewhere (Juffa).
func erf(e *emitter, x vec) vec {
	t := e.atMost(e.abs(x), e.c(4))
	far := e.poly(t, -1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2,
		-1.06777877e-1, -6.34846687e-1, -1.28717512e-1)
	e.mulAdd(far, t, e.neg(t))
	far = e.sub(e.c(1), expNormal(e, far))
	far = e.or(far, e.signBit(x))

	near := e.poly(e.mul(x, x), -5.96761703e-4, 4.99119423e-3, -2.67681349e-2,
		1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
	e.mulAdd(near, x, x)
	return e.choose(e.cmp(predGT, t, e.c(0.927734375)), far, near)
}
