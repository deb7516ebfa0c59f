package loader

import (
	"math/bits"

	"fusec/graph"
)

// permutation is an order of the numbers below n, given by seed and epoch. Any element is computed independently of the
// others.
//
// It is a Feistel network whose round function is Philox (Luby & Rackoff, "How to construct pseudorandom permutations
// from pseudorandom functions", 1988), over the smallest range of whole bits that holds n; numbers that are not below n
// are permuted again until they are (cycle walking: Black & Rogaway, "Ciphers with arbitrary finite domains", 2002).
// The range is smaller than 2n, so that this takes less than two rounds on average.
type permutation struct {
	n           uint64
	left, right uint // bits of the two halves
	seed, epoch uint64
}

// feistelRounds changes each half three times, two rounds more than the theory asks for.
const feistelRounds = 6

func newPermutation(n int64, seed, epoch uint64) permutation {
	width := uint(bits.Len64(uint64(n - 1)))
	return permutation{n: uint64(n), left: width / 2, right: width - width/2, seed: seed, epoch: epoch}
}

// at is the number at position i.
func (p permutation) at(i int64) int64 {
	x := uint64(i)
	for {
		l, r := x>>p.right, x&(1<<p.right-1)
		for round := uint64(0); round < feistelRounds; round += 2 {
			r ^= p.noise(l, round) & (1<<p.right - 1)
			l ^= p.noise(r, round+1) & (1<<p.left - 1)
		}
		if x = l<<p.right | r; x < p.n {
			return int64(x)
		}
	}
}

// noise is the round function: the halves have at most 32 bits.
func (p permutation) noise(half, round uint64) uint64 {
	ctr := [4]uint32{uint32(half), uint32(round), uint32(p.epoch), uint32(p.epoch >> 32)}
	return uint64(graph.Philox4x32(ctr, [2]uint32{uint32(p.seed), uint32(p.seed >> 32)})[0])
}
