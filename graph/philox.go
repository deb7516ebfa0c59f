package graph

import "math"

// The counter-based generator of all random operations. Element i of a tensor uses word i mod 4 of block i div 4, or
// what [DropoutRule] says, so that all targets draw the same numbers in any order.

// Philox4x32 is Philox-4×32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): ten rounds
// of a bijection of the counter, chosen by the key. They found that seven rounds pass TestU01's BigCrush, and recommend
// ten, which their library Random123 and cuRAND use. [Dropout] has seven.
func Philox4x32(ctr [4]uint32, key [2]uint32) [4]uint32 { return philox(ctr, key, 10) }

func philox(ctr [4]uint32, key [2]uint32, rounds int) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57 // multipliers
		w0, w1 = 0x9E3779B9, 0xBB67AE85 // Weyl increments of the key: the golden ratio and √3−1
	)
	c0, c1, c2, c3 := ctr[0], ctr[1], ctr[2], ctr[3] // in registers, unlike an array
	k0, k1 := key[0], key[1]
	for range rounds {
		p0, p1 := m0*uint64(c0), m1*uint64(c2)
		c0, c1, c2, c3 = uint32(p1>>32)^c1^k0, uint32(p1), uint32(p0>>32)^c3^k1, uint32(p0)
		k0 += w0
		k1 += w1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// Philox is the block of four words at counter; the seed is the key.
func Philox(seed, counter uint64) [4]uint32 { return block(seed, counter, 10) }

// Philox7 is the same of seven rounds.
func Philox7(seed, counter uint64) [4]uint32 { return block(seed, counter, 7) }

func block(seed, counter uint64, rounds int) [4]uint32 {
	return philox([4]uint32{uint32(counter), uint32(counter >> 32)}, [2]uint32{uint32(seed), uint32(seed >> 32)}, rounds)
}

// RandomThreshold is the number such that a uniform 32-bit word is less than it with probability p, for p in [0,1).
func RandomThreshold(p float64) uint32 { return uint32(p * (1 << 32)) }

// A DropoutRule is how [Dropout] decides. Each element has a number of so many random bits and is dropped if it is less than
// Threshold. The numbers of 32 elements, a group, are in so many words of [Philox7], counted through its blocks: the first word
// has the lowest bit of all 32, and so on; bits for which Threshold has 0 are complements. So two logical operations on words for
// each bit compare all numbers of a group; see [DropoutRule.KeptWord].
type DropoutRule struct {
	Bits      int // 1, 2 or a multiple of 4 up to 32
	Threshold uint32
}

// DropoutRuleOf is the rule for a probability in [0,1): the fewest bits with which neither the probability nor its complement is
// rounded by more than 2 % of itself. That is one bit for 0.5, and at most 8 bits where both are 0.1 or more.
func DropoutRuleOf(p float64) DropoutRule {
	for bits := 1; bits < 32; bits += min(bits, 4) {
		one := math.Ldexp(1, bits)
		t := math.Round(p * one)
		if math.Abs(t-p*one) <= min(p, 1-p)*one/50 {
			return DropoutRule{bits, uint32(t)}
		}
	}
	return DropoutRule{32, uint32(min(math.Round(p*(1<<32)), math.MaxUint32))}
}

// KeptWord has a bit for each element of a group, at [DropoutBit]: 1 if it is kept.
func (r DropoutRule) KeptWord(seed, group uint64) uint32 {
	kept := ^uint32(0)
	for i := range r.Bits {
		at := group*uint64(r.Bits) + uint64(i)
		if word := Philox7(seed, at/4)[at%4]; r.Threshold>>i&1 == 1 {
			kept &= word
		} else {
			kept |= ^word
		}
	}
	return kept
}

// DropoutBit is the place in its group's words of element i. Byte j has elements 2j and 2j+1 of each eight, as the threads have
// that hold them in a product on NVIDIA's tensor cores.
func DropoutBit(i uint64) int { return int(i/2%4*8 + i/8%4*2 + i%2) }

// Keeps reports whether element i is kept.
func (r DropoutRule) Keeps(seed, i uint64) bool { return r.KeptWord(seed, i/32)>>DropoutBit(i)&1 == 1 }

// Kept is the probability with which an element is kept. The elements that are kept are divided by it.
func (r DropoutRule) Kept() float64 { return 1 - math.Ldexp(float64(r.Threshold), -r.Bits) }

// DropoutKeep reports whether Dropout with probability p keeps element i.
func DropoutKeep(seed, i uint64, p float64) bool { return DropoutRuleOf(p).Keeps(seed, i) }

// RandomAt is element i of a [Random] tensor with parameters a and b.
//
// A uniform number has the 24 high bits of its word, so that float32 holds it exactly. Normal numbers come in pairs,
// elements 2j and 2j+1, by the Box–Muller transform: r·cos θ and r·sin θ, with r = √(−2 ln u), u in (0,1] from the
// word of element 2j, and θ in [0,2π) from that of element 2j+1. So no number is further than 5.8 deviations from the
// mean.
func RandomAt(dist Dist, a, b float64, seed, i uint64) float64 {
	w := Philox(seed, i/4)
	switch dist {
	case Normal:
		pair := i % 4 &^ 1
		r := math.Sqrt(-2 * math.Log(unit(w[pair])+0x1p-24))
		sin, cos := math.Sincos(2 * math.Pi * unit(w[pair+1]))
		if i%2 == 0 {
			return a + b*r*cos
		}
		return a + b*r*sin
	case Bernoulli:
		return b2f(a >= 1 || a > 0 && w[i%4] < RandomThreshold(a))
	}
	return a + (b-a)*unit(w[i%4])
}

// unit maps a word to [0,1) in steps of 2⁻²⁴.
func unit(w uint32) float64 { return float64(w>>8) * 0x1p-24 }
