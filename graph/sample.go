package graph

import (
	"fmt"
	"math"
	"math/bits"
)

// Sample draws an element of each row of logits [..., n], n at least 1, with the probability softmax(logits ÷ temperature)
// over those that top_k and top_p leave. The result, I64 [...], is the element's place in its row: a token of a language model.
//
// The operands after the logits are one number for all rows, or one for each, [...]. temperature, F32: if it is not positive,
// the first of the greatest logits is picked. top_k, I64: the number of greatest logits that are left; 0, and numbers that
// are not in 1..n, leave all. top_p, F32: of these, the greatest are left that have this probability together, and at least
// one (Holtzman et al., arXiv 1904.09751); 0, and numbers that are not in (0,1), leave all. Of equal logits the first come
// first. A NaN is never picked; if a row has nothing else, the result is 0. Infinite logits share all probability.
//
// seed and step, I64, decide what is drawn: see [SampleWord]. The numbers are integers, of [SampleWeight], so that their sums
// depend on no order, and every target that has the same logits, rounded to F32, picks the same element. Between targets
// whose logits differ in their last bits, a draw differs with about the probability that their softmaxes do.
type Sample struct{}

// OpName implements Op.
func (Sample) OpName() string { return "sample" }

// The operands of [Sample].
const (
	SampleLogits = iota
	SampleTemperature
	SampleTopK
	SampleTopP
	SampleSeed
	SampleStep
	sampleOperands
)

var sampleRow = OpInfo{
	Name: "sample", Doc: "an element of each row drawn by its softmax",
	Operands: "logits, temperature, top_k, top_p, seed, step", Proto: Sample{}, Class: ClassIndex,
	MinArgs: sampleOperands, MaxArgs: sampleOperands, Infer: inferSample, FLOPs: perOperand, Grad: gradSample,
}

// SampleMost bounds the elements of a row, so that the sum of their weights is less than 2⁶⁴.
const SampleMost = 1 << 23

func inferSample(_ Op, args []Type) ([]Type, error) {
	x := args[SampleLogits]
	if err := wantFloat(x); err != nil {
		return nil, err
	}
	r := x.Shape.Rank()
	if r == 0 {
		return nil, fmt.Errorf("needs logits of rank 1 or more, not %v", x)
	}
	if n := x.Shape.At(r - 1); n < 1 || n > SampleMost {
		return nil, fmt.Errorf("rows of %d logits: want 1 to %d", n, SampleMost)
	}
	y := Type{DType: I64, Shape: x.Shape.Drop(IntsOf(r - 1))}
	for i, name := range []string{"temperature", "top_k", "top_p", "seed", "step"} {
		t, want := args[1+i], I64
		if 1+i == SampleTemperature || 1+i == SampleTopP {
			want = F32
		}
		if t.DType != want || t.Shape.Rank() != 0 && t.Shape != y.Shape {
			return nil, fmt.Errorf("%s is %v: want %v, one for all rows or of shape %v", name, t, want, y.Shape)
		}
	}
	return []Type{y}, nil
}

// gradSample returns no gradient: the result is constant between jumps.
func gradSample(*Builder, *Node, []*Node) ([]*Node, error) { return make([]*Node, sampleOperands), nil }

// SampleKey maps logits to integers in the same order. That of NaN is 0, less than all others.
func SampleKey(x float32) uint32 {
	if x != x {
		return 0
	}
	u := math.Float32bits(x + 0) // +0 for both zeros
	return u ^ (uint32(int32(u)>>31) | 1<<31)
}

// SampleScale is what [SampleWeight] multiplies with at a temperature.
func SampleScale(temperature float32) float64 { return math.Log2E * (1 << 32) / float64(temperature) }

// SamplePowers are the coefficients of the polynomial c₀ − x(c₁ − x(c₂ − …)) for 2^−x from 0 to 1, as multiples of 2⁻³²: it
// interpolates in c₀ and the zeros of a Chebyshev polynomial, and is off by less than 4·2⁻³².
var SamplePowers = [8]uint64{1 << 32, 2977044471, 1031764939, 238387495, 41304489, 5712048, 639488, 48550}

// SampleWeight is 2⁴⁰·e^((x−most)÷temperature), rounded down, where most is the greatest logit of the row. One product of
// float64 aside it computes with integers, which all targets do alike.
func SampleWeight(x, most float32, scale float64) uint64 {
	if x == most {
		return 1 << 40
	}
	z := (float64(most) - float64(x)) * scale
	if !(z < 41<<32) { // or NaN
		return 0
	}
	whole := uint64(z)
	f, p := whole&(1<<32-1), SamplePowers[7]
	p = SamplePowers[6] - p*f>>32
	p = SamplePowers[5] - p*f>>32
	p = SamplePowers[4] - p*f>>32
	p = SamplePowers[3] - p*f>>32
	p = SamplePowers[2] - p*f>>32
	p = SamplePowers[1] - p*f>>32
	p = SamplePowers[0] - p*f>>32
	return p << 8 >> (whole >> 32)
}

// SampleWord decides which element of a row is drawn: the first, in their order, at which the sum of the weights of those that
// are left exceeds this 64-bit number times the whole sum, divided by 2⁶⁴. It is the first two words of the block that
// [Philox] has at step·rows + row, for a seed that all rows have; with seeds of their own, they have that at step, so that a
// row draws the same wherever it is in a batch.
func SampleWord(seed, step int64, row, rows int, own bool) uint64 {
	counter := uint64(step)
	if !own {
		counter = counter*uint64(rows) + uint64(row)
	}
	w := Philox(uint64(seed), counter)
	return uint64(w[1])<<32 | uint64(w[0])
}

// SampleShare is the sum of weights that the greatest elements must have for top_p, of a total: ⌈top_p·total⌉, with top_p
// rounded down to a multiple of 2⁻⁶⁴, and at least 1.
func SampleShare(topP float32, total uint64) uint64 {
	hi, lo := bits.Mul64(uint64(float64(topP)*(1<<64)), total)
	if lo != 0 {
		hi++
	}
	return max(hi, 1)
}
