package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// backwardRows is the configuration of the gradient of heads that follow one another, row-major.
func backwardRows(op graph.Attention, heads, queries, keys, depth int) BackwardConfig {
	f := Rows(op, heads, queries, keys, depth)
	f.LSE = Rows(op, heads, queries, keys, 1).Q
	return BackwardConfig{Config: f, DOut: f.Out, DLSE: f.LSE, DQ: f.Q, DK: f.K, DV: f.V}
}

// backwardArgs draws the operands of a gradient, with the results of the attention.
func backwardArgs(cfg BackwardConfig) BackwardArgs[float32] {
	d := cfg.Dims
	r := rand.New(rand.NewPCG(1, 2))
	q, k := d.Heads*d.Queries*d.Depth, d.Heads*d.Keys*d.Depth
	a := BackwardArgs[float32]{DOut: normal(r, q), DLSE: normal(r, d.Heads*d.Queries),
		DQ: make([]float32, q), DK: make([]float32, k), DV: make([]float32, k)}
	a.Args = Args[float32]{Q: normal(r, q), K: normal(r, k), V: normal(r, k), Out: make([]float32, q),
		LSE: make([]float32, d.Heads*d.Queries)}
	plan, err := New[float32](cfg.Config, pool.New(1))
	if err != nil {
		panic(err)
	}
	plan.Run(a.Args, Scratch(plan, 1))
	return a
}

func TestBackwardErrors(t *testing.T) {
	good := backwardRows(graph.Attention{}, 2, 3, 4, 5)
	short, negative, without, blocks := good, good, good, good
	short.DOut.Offsets = short.DOut.Offsets[:1]
	negative.DQ.RowStride = -1
	without.LSE.Offsets = nil
	blocks.Blocking.Keys = -1
	for want, cfg := range map[string]BackwardConfig{"dout has 1 offsets for 2 heads": short, "dq has": negative,
		"lse has 0 offsets": without, "blocks of 0 queries and -1 keys": blocks} {
		if _, err := NewBackward[float32](cfg, pool.New(1)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestBackwardBlocking computes the same with blocks of many sizes, and without the gradients of keys or values.
func TestBackwardBlocking(t *testing.T) {
	for _, heads := range []int{2, 8} {
		for _, causal := range []bool{false, true} {
			cfg := backwardRows(graph.Attention{Scale: 1.0 / 3, Causal: causal}, heads, 75, 130, 9)
			args := backwardArgs(cfg)
			var want [3][]float32
			for i, cut := range []Blocking{{}, {1, 1}, {16, 5}, {32, 64}, {40, 1000}, {1000, 24}} {
				cfg.Blocking = cut
				cfg := cfg
				if i%3 == 1 {
					cfg.DK.Offsets = nil
				}
				if i%3 == 2 {
					cfg.DV.Offsets = nil
				}
				plan, err := NewBackward[float32](cfg, pool.New(1))
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range []*[]float32{&args.DQ, &args.DK, &args.DV} {
					*x = make([]float32, len(*x))
				}
				plan.Run(args, scratch[float32](plan.Room(), 1))
				got := [3][]float32{args.DQ, args.DK, args.DV}
				if i == 0 {
					want = got
				}
				for j, g := range got {
					for n, x := range g {
						w := want[j][n]
						if i%3 == 1 && j == 1 || i%3 == 2 && j == 2 {
							w = 0 // not asked for
						}
						if d := math.Abs(float64(x - w)); !(d < 1e-5) {
							t.Fatalf("%+v, %d heads, causal %v: element %d of result %d is %v, want %v",
								cut, heads, causal, n, j, x, w)
						}
					}
				}
			}
		}
	}
}

func benchBackward(b *testing.B, op graph.Attention, heads, s, depth, workers int, cut Blocking) {
	p := pool.New(workers)
	defer p.Close()
	op.Scale = 1 / math.Sqrt(float64(depth))
	cfg := backwardRows(op, heads, s, s, depth)
	cfg.Blocking = cut
	plan, err := NewBackward[float32](cfg, p)
	if err != nil {
		b.Fatal(err)
	}
	args := backwardArgs(cfg)
	room := scratch[float32](plan.Room(), workers)
	in := make([]graph.Type, 3)
	for i := range in {
		in[i] = graph.TypeOf(graph.F32, heads, s, depth)
	}
	b.ReportAllocs()
	for b.Loop() {
		plan.Run(args, room)
	}
	grad := graph.AttentionGrad{Attention: op}
	products := float64(graph.InfoOf(grad).FLOPs(grad, in, nil)) * 10 * float64(depth) / (10*float64(depth) + 16)
	b.ReportMetric(products*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

// BenchmarkBackward measures the gradient of 8 heads of depth 64; GFLOP/s counts the five products alone.
func BenchmarkBackward(b *testing.B) {
	for _, s := range []int{1024, 4096} {
		for _, causal := range []bool{false, true} {
			for workers := 1; workers <= 2; workers++ {
				b.Run(fmt.Sprintf("%d/causal=%v/workers=%d", s, causal, workers), func(b *testing.B) {
					benchBackward(b, graph.Attention{Causal: causal}, 8, s, 64, workers, Blocking{})
				})
			}
		}
	}
}

// BenchmarkDropout measures what dropping probabilities costs, forward and backward.
func BenchmarkDropout(b *testing.B) {
	const heads, s, depth, workers = 8, 1024, 64, 2
	for _, share := range []float64{0, 0.1} {
		op := graph.Attention{Dropout: share}
		b.Run(fmt.Sprintf("forward/%v", share), func(b *testing.B) { bench(b, op, heads, s, s, depth, workers, Blocking{}) })
		b.Run(fmt.Sprintf("backward/%v", share), func(b *testing.B) { benchBackward(b, op, heads, s, depth, workers, Blocking{}) })
	}
}

// BenchmarkBackwardBlocking measures block sizes.
func BenchmarkBackwardBlocking(b *testing.B) {
	for _, queries := range []int{48, 96, 144, 192} {
		for _, keys := range []int{96, 192, 288, 384} {
			b.Run(fmt.Sprintf("%dx%d", queries, keys), func(b *testing.B) {
				benchBackward(b, graph.Attention{}, 8, 1024, 64, 1, Blocking{Queries: queries, Keys: keys})
			})
		}
	}
}
