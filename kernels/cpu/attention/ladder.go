package attention

import (
	"math"
	"sync"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/vec"
)

// A Rung is a variant of attention over contiguous heads: q and out are heads×queries×depth, k and v heads×keys×depth,
// all row-major. Scale is 1/√depth. If causal, query i attends keys up to i + keys − queries.
type Rung struct {
	Name string
	Doc  string // the difference from the variant before
	Func func(heads, queries, keys, depth int, causal bool, q, k, v, out []float32)
}

// Ladder lists variants from the definition to this package's algorithm, on one core, so that the gain of each step can
// be measured. The last two are meant for use.
var Ladder = []Rung{
	{"naive", "The definition: all scores of a head are stored, then their softmax, then its product with the values.", naive},
	{"blocked", "Blocks of keys with the online softmax, so that no score is stored for long; a query at a time, by vector opcodes.", blocked},
	{"flash", "Packed panels of queries through the matrix kernels, blocks out of reach left out: this package's plans.", flash},
	{"paged", "The same, with keys and values in pages of up to 16 that a table lists.", paged},
}

// reachOf is how many keys query i may attend.
func reachOf(i, queries, keys int, causal bool) int {
	if causal {
		return max(i+keys-queries+1, 0)
	}
	return keys
}

func naive(heads, queries, keys, depth int, causal bool, q, k, v, out []float32) {
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

func blocked(heads, queries, keys, depth int, causal bool, q, k, v, out []float32) {
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

// onlyCaller is a pool without goroutines.
var onlyCaller = sync.OnceValue(func() *pool.Pool { return pool.New(1) })

func flash(heads, queries, keys, depth int, causal bool, q, k, v, out []float32) {
	op := graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: causal}
	run(Rows(op, heads, queries, keys, depth), Args[float32]{Q: q, K: k, V: v, Out: out})
}

// run computes on the caller's core.
func run(cfg Config, args Args[float32]) {
	plan, err := New[float32](cfg, onlyCaller())
	if err != nil {
		panic(err) // as an index out of range does in the other variants
	}
	plan.Run(args, Scratch(plan, 1))
}

// rungPage is the largest number of keys of a page of the paged variant.
const rungPage = 16

// paged finds the heads' keys in contiguous pages; each head is a separate sequence.
func paged(heads, queries, keys, depth int, causal bool, q, k, v, out []float32) {
	page := min(rungPage, keys)
	for keys%page != 0 {
		page--
	}
	op := graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: causal, HasLengths: true, Page: page}
	cfg, args := Pages(Rows(op, heads, queries, keys, depth))
	args.Q, args.K, args.V, args.Out = q, k, v, out
	run(cfg, args)
}

// Pages turns each head of a configuration from [Rows] into a sequence whose keys are in pages, with lengths and a
// table. Its Op has the size of a page, which divides the keys.
func Pages(cfg Config) (Config, Args[float32]) {
	d := &cfg.Dims
	d.Batch, d.Heads = graph.ShapeOf(d.Heads), 1
	sequences := d.Batch.At(0)
	args := Args[float32]{Lengths: make([]int, sequences), Table: make([]int, sequences*d.Keys/cfg.Op.Page)}
	for i := range args.Lengths {
		args.Lengths[i] = d.Keys
	}
	for i := range args.Table {
		args.Table[i] = i
	}
	for _, l := range []*gemm.Layout{&cfg.K, &cfg.V} {
		l.Offsets = make([]int, sequences)
	}
	cfg.KPages, cfg.VPages = cfg.Op.Page*d.Depth, cfg.Op.Page*d.Width
	return cfg, args
}

// Rows is the configuration of contiguous heads, each with its own keys and values, row-major.
func Rows(op graph.Attention, heads, queries, keys, depth int) Config {
	layout := func(rows int) gemm.Layout {
		l := gemm.RowMajor(depth)
		l.Offsets = make([]int, heads)
		for h := range l.Offsets {
			l.Offsets[h] = h * rows * depth
		}
		return l
	}
	d := graph.AttentionDims{Heads: heads, Group: 1, Queries: queries, Keys: keys, Depth: depth, Width: depth}
	return Config{Op: op, Dims: d, Q: layout(queries), K: layout(keys), V: layout(keys), Out: layout(queries)}
}

// Scratch makes the scratch that a plan needs to run on some workers.
func Scratch[T Float](plan *Plan[T], workers int) [][]T { return scratch[T](plan.Room(), workers) }

// scratch is memory for each worker, aligned to cache lines.
func scratch[T Float](room, workers int) [][]T {
	s := make([][]T, workers)
	line := 64 / int(unsafe.Sizeof(*new(T)))
	for i := range s {
		x := make([]T, room+line)
		skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(x)))%64) * line / 64
		s[i] = x[skip:][:room]
	}
	return s
}
