package moe

import (
	"sync"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/vec"
)

// A Variant is one way to compute y[t] = Σ_e gates[t,e]·relu(x[t]·w1_e)·w2_e: x and y are tokens×width, gates
// tokens×experts, w1 experts×width×hidden and w2 experts×hidden×width, all row-major.
type Variant struct {
	Name string
	Doc  string // the difference from the variant before
	Func func(tokens, experts, width, hidden int, x, gates, w1, w2, y []float32)
}

// Ladder climbs from the definition to this package's way of computing it, on one core, so that each step's worth can
// be measured. Only the last variant is meant for use.
var Ladder = []Variant{
	{"naive", "The definition: every token through every expert.", naive},
	{"routed", "Token by token, through the experts whose gates are not zero, by vector opcodes.", routed},
	{"grouped", "The tokens of each expert as one product, through the matrix kernels: this package's plans.", grouped},
}

func naive(tokens, experts, width, hidden int, x, gates, w1, w2, y []float32) {
	clear(y[:tokens*width])
	for t := range tokens {
		for e := range experts {
			for j := range hidden {
				var h float32
				for c := range width {
					h += x[t*width+c] * w1[(e*width+c)*hidden+j]
				}
				for c := range width {
					y[t*width+c] += gates[t*experts+e] * max(h, 0) * w2[(e*hidden+j)*width+c]
				}
			}
		}
	}
}

func routed(tokens, experts, width, hidden int, x, gates, w1, w2, y []float32) {
	code := vec.F32()
	positive := code.Unary(graph.Relu)
	h := make([]float32, hidden)
	clear(y[:tokens*width])
	for t := range tokens {
		for e := range experts {
			g := gates[t*experts+e]
			if g == 0 {
				continue
			}
			clear(h)
			for c := range width {
				code.Axpy(h, w1[(e*width+c)*hidden:][:hidden], x[t*width+c])
			}
			positive(h, h)
			for j, v := range h {
				code.Axpy(y[t*width:][:width], w2[(e*hidden+j)*width:][:width], g*v)
			}
		}
	}
}

// onlyCaller is a pool without goroutines.
var onlyCaller = sync.OnceValue(func() *pool.Pool { return pool.New(1) })

func grouped(tokens, experts, width, hidden int, x, gates, w1, w2, y []float32) {
	plan, err := New(Rows(tokens, experts, width, hidden), relu, onlyCaller())
	if err != nil {
		panic(err) // as an index out of range does in the other variants
	}
	args := Args[float32]{X: x, Gates: gates, Y: y}
	for e := range experts {
		args.Weights[graph.MoEW1] = append(args.Weights[graph.MoEW1], w1[e*width*hidden:])
		args.Weights[graph.MoEW2] = append(args.Weights[graph.MoEW2], w2[e*width*hidden:])
	}
	plan.Run(args, aligned(plan.Shared()), [][]float32{aligned(plan.Room())})
}

// Rows is the configuration of a mixture of ReLU networks over row-major operands.
func Rows(tokens, experts, width, hidden int) Config {
	rows := func(width int) gemm.Layout {
		l := gemm.Layout{ColStride: 1, Offsets: make([]int, tokens)}
		for t := range l.Offsets {
			l.Offsets[t] = t * width
		}
		return l
	}
	cfg := Config{
		Op:   graph.MoE{Experts: experts, Activation: graph.Relu, Stacked: true},
		Dims: graph.MoEDims{Tokens: tokens, Width: width, Hidden: hidden, Result: width},
		X:    rows(width), Gates: rows(experts), Y: rows(width),
	}
	for range experts {
		cfg.Weights[graph.MoEW1] = append(cfg.Weights[graph.MoEW1], gemm.RowMajor(hidden))
		cfg.Weights[graph.MoEW2] = append(cfg.Weights[graph.MoEW2], gemm.RowMajor(width))
	}
	return cfg
}

// relu is the activation of the ladder.
var relu = Hidden[float32]{Forward: func(_ int, u, _ []float32) { vec.F32().Unary(graph.Relu)(u, u) }}

// aligned allocates elements that start at a cache line.
func aligned(n int) []float32 {
	const line = 64 / 4
	x := make([]float32, n+line)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(x)))%64) / 4
	return x[skip:][:n]
}
