package llama

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Sampler picks tokens by their logits.
type Sampler struct {
	// Temperature divides the logits; 0 picks the greatest.
	Temperature float64
	// TopK leaves only so many of the likeliest tokens; 0 leaves all.
	TopK int
	// TopP leaves only the likeliest tokens that have this probability together (Holtzman et al., arXiv 1904.09751); 0 and 1
	// leave all.
	TopP float64

	rand *rand.Rand
	list []choice
}

type choice struct {
	weight float64
	token  int32
}

// NewSampler makes a sampler. The same seed picks the same tokens.
func NewSampler(temperature float64, topK int, topP float64, seed uint64) (*Sampler, error) {
	if err := checkSampling(temperature, topK, topP); err != nil {
		return nil, err
	}
	return &Sampler{Temperature: temperature, TopK: topK, TopP: topP, rand: rand.New(rand.NewPCG(seed, 0))}, nil
}

// Pick draws a token from softmax(logits ÷ Temperature) over those that TopK leaves, and TopP of these. Equal logits are in
// the order of their tokens. A NaN is never picked unless all are. It allocates nothing after the first time.
func (s *Sampler) Pick(logits []float32) int {
	best := 0
	for i, v := range logits {
		if v > logits[best] || logits[best] != logits[best] && v == v {
			best = i
		}
	}
	if s.Temperature == 0 || logits[best] != logits[best] {
		return best
	}
	s.list = s.list[:0]
	for i, v := range logits {
		if v == v {
			s.list = append(s.list, choice{float64(v), int32(i)})
		}
	}
	list := s.list
	if k := s.TopK; k > 0 && k < len(list) {
		list = firsts(list, k)
	}
	most, total := float64(logits[best]), 0.0
	for i := range list {
		d := (list[i].weight - most) / s.Temperature
		if d != d { // of two infinities
			d = 0
		}
		list[i].weight = math.Exp(d)
		total += list[i].weight
	}
	if s.TopP > 0 && s.TopP < 1 {
		slices.SortFunc(list, before)
		sum := 0.0
		for i := range list {
			if sum += list[i].weight; sum >= s.TopP*total {
				list, total = list[:i+1], sum
				break
			}
		}
	}
	at := total * s.rand.Float64()
	for _, c := range list {
		if at -= c.weight; at < 0 {
			return int(c.token)
		}
	}
	return best
}

// before orders the likelier first.
func before(a, b choice) int {
	switch {
	case a.weight > b.weight:
		return -1
	case a.weight < b.weight:
		return 1
	}
	return int(a.token) - int(b.token)
}

// firsts moves the k first of a list to its front, in any order: it narrows down a range that holds the border, as quicksort
// does (Hoare, Algorithm 65: Find, 1961).
func firsts(list []choice, k int) []choice {
	lo, hi := 0, len(list)
	for hi-lo > 1 {
		pivot, i := list[lo+(hi-lo)/2], lo
		list[lo+(hi-lo)/2], list[hi-1] = list[hi-1], pivot
		for j := lo; j < hi-1; j++ {
			if before(list[j], pivot) < 0 {
				list[i], list[j] = list[j], list[i]
				i++
			}
		}
		list[i], list[hi-1] = pivot, list[i]
		switch {
		case i < k:
			lo = i + 1
		case i > k:
			hi = i
		default:
			return list[:k]
		}
	}
	return list[:k]
}
