package isa

import (
	"math"
	"math/bits"
)

// Fixed-point arithmetic, bit by bit as the hardware does it. All shifts are arithmetic and round down.

// TBits is the width to which a scaled value saturates: a sign, 15 bits and TFrac bits of fraction of one step of the
// result. With the bias it may have one bit more.
const (
	TBits = 24
	TFrac = 8
)

// sat saturates v to n bits, sign and all.
func sat(v int64, n int) int64 { return max(-(1 << (n - 1)), min(1<<(n-1)-1, v)) }

// Record scales a column (or row) of results: see [Scale]. In memory it takes 8 bytes: Bias, Mul, Shift, a zero.
type Record struct {
	Bias  int32 // in 1/256 of a step of the result, of 24 bits
	Mul   int16
	Shift uint8 // at most 47
}

// RecordBytes is a Record's size in memory.
const RecordBytes = 8

// Scale is sat24(acc·Mul >> Shift) + Bias: the result in 1/256 of its step.
func (r Record) Scale(acc int32) int32 {
	return int32(sat(int64(acc)*int64(r.Mul)>>r.Shift, TBits)) + r.Bias
}

// Residual is element x of Y times mul, which has 12 fraction bits, in 1/256 of the result's step.
func Residual(x int8, mul uint16) int32 { return int32(x) * int32(mul) >> 4 }

// Finish makes an int8 result of t, which has 8 fraction bits and the residual in it: rounded half up, negative ones zero with
// relu, then the zero point added, saturated, and replaced by its entry in table, at index uint8(y), if there is one.
func Finish(t int32, relu bool, zero int8, table *[256]int8) int8 {
	y := int8(finish(t, relu, zero, 8))
	if table != nil {
		y = table[uint8(y)]
	}
	return y
}

// FinishWide makes an int16 result.
func FinishWide(t int32, relu bool, zero int8) int16 { return int16(finish(t, relu, zero, 16)) }

func finish(t int32, relu bool, zero int8, n int) int64 {
	y := (int64(t) + 1<<(TFrac-1)) >> TFrac
	if relu {
		y = max(y, 0)
	}
	return sat(y+int64(zero), n)
}

// Softmax in base 2 with a running maximum, after Milakov and Gimelshein, "Online normalizer calculation for softmax"
// (2018). Scores are in units of log2 with ScoreFrac fraction bits. The running maximum m is kept as a multiple of two, so
// that taking older sums to a new maximum is a shift.
const (
	ScoreFrac = 10
	ScoreBits = 20
	// MaxUnit is the fraction bits of a score below one unit of the running maximum; MaxStart is the maximum's value before
	// any key, and MaxClear a rise of it, in units, after which earlier keys do not count any more.
	MaxUnit  = ScoreFrac + 1
	MaxStart = -1 << (ScoreBits - MaxUnit - 1)
	MaxClear = 16
	// ProbFrac: a probability of 1 would be 1<<ProbFrac; the greatest is one less.
	ProbFrac = 17
	// SumBits is the width of a row's sum of probabilities, AccumulatorBits that of its accumulators.
	SumBits, AccumulatorBits = 32, 40
)

// Score is a dot product in units of log2: sat20(dot·mul >> shift), mul at most 32767.
func Score(dot int32, mul uint16, shift uint8) int32 {
	return int32(sat(int64(dot)*int64(mul)>>shift, ScoreBits))
}

// RowMax is the least maximum, in units of two, that is above a score.
func RowMax(score int32) int32 { return score>>MaxUnit + 1 }

// exp2Table[i] is round(2^17·2^(-i/64)), at most 2^17-1, and exp2Slope[i] the way to the next.
var exp2Table, exp2Slope = func() (t, d [64]uint32) {
	at := func(i int) uint32 { return uint32(math.Round(math.Ldexp(math.Exp2(-float64(i)/64), ProbFrac))) }
	for i := range t {
		t[i] = min(at(i), 1<<ProbFrac-1)
		d[i] = t[i] - at(i+1)
	}
	return
}()

// Exp2 is 2^-(t/1024) as a probability, for t ≥ 0: 64 entries between powers of two, straight lines between them, rounded half up
// after the shift.
func Exp2(t int32) uint32 {
	whole, f := uint(t)>>ScoreFrac, uint32(t)&(1<<ScoreFrac-1)
	e := exp2Table[f>>4] - exp2Slope[f>>4]*(f&15)>>4
	switch {
	case whole == 0:
		return e
	case whole > ProbFrac+1:
		return 0
	}
	return (e + 1<<(whole-1)) >> whole
}

// Reciprocal normalises a sum: z is the shift with which sum<<z has its highest bit in bit 31, r = ⌊2^47/(sum<<z)⌋, at most
// 65535. Of zero both are zero.
func Reciprocal(sum uint32) (r uint32, z uint) {
	if sum == 0 {
		return 0, 0
	}
	z = uint(bits.LeadingZeros32(sum))
	return min(uint32(uint64(1)<<47/uint64(sum<<z)), 65535), z
}

// FinishAttention is an element of a row of attention in 1/256 of the result's step: the accumulator over the sum, times
// mul/65536 and a power of two. r and z are the sum's Reciprocal. With Wide results, mul = 65535 and shift = 19, the
// step is 1/256 of that of V.
//
//	q = acc<<z >> 12    28 bits
//	f = r·mul + 2^15 >> 16
//	t = sat24(q·f >> shift)
func FinishAttention(acc int64, r uint32, z uint, mul uint16, shift uint8) int32 {
	q := acc << z >> 12
	f := int64((uint64(r)*uint64(mul) + 1<<15) >> 16)
	return int32(sat(q*f>>shift, TBits))
}

// Norm normalises a row of integers. With d = n·x − Σx (RMS: n·x) and v = n·Σx² − (Σx)² + eps (RMS: n·Σx² + eps) an
// element is d/√v·2^12, found by an integer root and one division per row.
type Norm struct {
	sum, root int64
	shift     uint
	n         int64
}

// NormShift is the fraction bits of a normalised element, MaxNorm the most elements that a norm takes together.
const (
	NormShift = 12
	MaxNorm   = 4096
)

// NewNorm makes the norm of a row with Σx = sum (zero for RMSNorm) and Σx² = squares.
func NewNorm(n int, sum, squares int64, eps uint32) Norm {
	v := uint64(int64(n)*squares - sum*sum + int64(eps))
	if v == 0 {
		return Norm{}
	}
	// v = u·4^e with u in [2^38, 2^40); 40 bits hold every v.
	e := 0
	for v < 1<<38 {
		v, e = v<<2, e+1
	}
	root := uint64(math.Sqrt(float64(v))) // of 20 bits; float64 holds v, and its root rounds the right way but for squares
	for root*root > v {
		root--
	}
	for (root+1)*(root+1) <= v {
		root++
	}
	return Norm{sum: sum, n: int64(n), root: int64(min(uint64(1)<<36/root, 1<<17-1)), shift: uint(24 - e)}
}

// Element is the normalised x with NormShift fraction bits: d·⌊2^36/√u⌋ >> 24-e, of at most 20 bits.
func (m Norm) Element(x int8) int32 {
	d := m.n*int64(x) - m.sum
	return int32(sat(d*m.root>>m.shift, 20))
}

// Gates are the gates of one token: p = Exp2(max − logit) for each logit, their sum over those that count (the chosen
// ones alone, or all), and for the chosen p·r >> 31−z, at most 65535, r and z being the sum's Reciprocal: 16 fraction bits.
func Gates(logits []int16, chosen []int, renormalise bool) []uint16 {
	top := int32(logits[chosen[0]])
	var sum uint32
	if renormalise {
		for _, e := range chosen {
			sum += Exp2(top - int32(logits[e]))
		}
	} else {
		for _, x := range logits {
			sum += Exp2(top - int32(x))
		}
	}
	r, z := Reciprocal(sum)
	gates := make([]uint16, len(chosen))
	for i, e := range chosen {
		gates[i] = uint16(min(uint64(Exp2(top-int32(logits[e])))*uint64(r)>>(31-z), 65535))
	}
	return gates
}

// Combine is one element of a Vector with VectorCombine: Σ gate·x.
func Combine(gates []uint16, x []int8) (acc int32) {
	for i, g := range gates {
		acc += int32(g) * int32(x[i])
	}
	return acc
}
