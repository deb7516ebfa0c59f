package ladders

import (
	"math"

	"fusec/graph"
	"fusec/kernels/cpu/attention"
	"fusec/kernels/cpu/vec"
)

// An AttentionVariant computes attention over contiguous heads: q and out are heads×queries×depth, k and v heads×keys×depth,
// all row-major. Scale is 1/√depth. If causal, query i attends keys up to i + keys − queries.
type AttentionVariant struct {
	Name string
	Doc  string // the difference from the variant before
	Func func(heads, queries, keys, depth int, causal bool, q, k, v, out []float32)
}

// Attention lists variants from the definition to the algorithm of programs, on one core. The last two are those of programs.
var Attention = []AttentionVariant{
	{"naive", "The definition: all scores of a head are stored, then their softmax, then its product with the values.",
		naiveAttention},
	{"blocked", "Blocks of keys with the online softmax, so that no score is stored for long; a query at a time, by vector opcodes.",
		blockedAttention},
	{"flash", "Packed panels of queries through the matrix kernels, blocks out of reach left out: what programs use.", flashAttention},
	{"paged", "The same, with keys and values in pages of up to 16 that a table lists.", pagedAttention},
}

// reachOf is how many keys query i may attend.
func reachOf(i, queries, keys int, causal bool) int {
	if causal {
		return max(i+keys-queries+1, 0)
	}
	return keys
}

func naiveAttention(heads, queries, keys, depth int, causal bool, q, k, v, out []float32) {
	scale := float32(1 / math.Sqrt(float64(depth)))
	scores := make([]float32, queries*keys)
	for h := range heads {
		q, k, v, out := q[h*queries*depth:], k[h*keys*depth:], v[h*keys*depth:], out[h*queries*depth:]
		for i := range queries {
			for j := range keys {
				var s float32
				for c := range depth {
					s += q[i*depth+c] * k[j*depth+c]
				}
				scores[i*keys+j] = s * scale
			}
		}
		for i := range queries {
			row := scores[i*keys:][:keys]
			n := reachOf(i, queries, keys, causal)
			top := float32(math.Inf(-1))
			for _, s := range row[:n] {
				top = max(top, s)
			}
			var sum float32
			for j := range row {
				row[j] = float32(math.Exp(float64(row[j] - top)))
				if j >= n {
					row[j] = 0
				}
				sum += row[j]
			}
			for j := range row[:n] {
				row[j] /= sum
			}
		}
		for i := range queries {
			y := out[i*depth:][:depth]
			clear(y)
			for j, p := range scores[i*keys:][:keys] {
				for c := range y {
					y[c] += p * v[j*depth+c]
				}
			}
		}
	}
}

func blockedAttention(heads, queries, keys, depth int, causal bool, q, k, v, out []float32) {
	const block = 256
	code := vec.F32()
	dot, top, exp, mul := code.Dot(), code.Reduce(vec.MaxOf), code.ExpSubSum(), code.BinaryVS(graph.Mul)
	scale := float32(1 / math.Sqrt(float64(depth)))
	var room [block]float32
	for row := range heads * queries {
		h := row / queries
		query, y := q[row*depth:][:depth], out[row*depth:][:depth]
		clear(y)
		m, l := float32(math.Inf(-1)), float32(0)
		reach := reachOf(row%queries, queries, keys, causal)
		for first := 0; first < reach; first += block {
			s := room[:min(block, reach-first)]
			at := (h*keys + first) * depth
			for j := range s {
				s[j] = scale * dot(query, k[at+j*depth:][:depth])
			}
			old := m
			m = max(m, top(s))
			shrink := float32(math.Exp(float64(old - m)))
			l = l*shrink + exp(s, s, m)
			mul(y, y, shrink)
			for j, p := range s {
				code.Axpy(y, v[at+j*depth:][:depth], p)
			}
		}
		if l > 0 {
			mul(y, y, 1/l)
		}
	}
}

func flashAttention(heads, queries, keys, depth int, causal bool, q, k, v, out []float32) {
	op := graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: causal}
	run(attention.Rows(op, heads, queries, keys, depth), attention.Args[float32]{Q: q, K: k, V: v, Out: out})
}

// run computes on the caller's core.
func run(cfg attention.Config, args attention.Args[float32]) {
	plan, err := attention.New[float32](cfg, onlyCaller())
	if err != nil {
		panic(err) // as an index out of range does in the other variants
	}
	plan.Run(args, attention.Scratch(plan, 1))
}

// pageSize is the largest number of keys of a page.
const pageSize = 16

// pageOf is the number of keys of a page, which divides that of all keys.
func pageOf(keys int) int {
	page := max(min(pageSize, keys), 1)
	for keys%page != 0 {
		page--
	}
	return page
}

// paged finds the heads' keys in contiguous pages; each head is a separate sequence.
func pagedAttention(heads, queries, keys, depth int, causal bool, q, k, v, out []float32) {
	op := graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: causal, HasLengths: true, Page: pageOf(keys)}
	cfg, args := attention.Pages(attention.Rows(op, heads, queries, keys, depth))
	args.Q, args.K, args.V, args.Out = q, k, v, out
	run(cfg, args)
}
