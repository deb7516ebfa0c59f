package moe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// normal draws n numbers.
func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// someGates draws gates of which about one in four is open.
func someGates(r *rand.Rand, n int) []float32 {
	x := normal(r, n)
	for i := range x {
		if r.IntN(4) > 0 {
			x[i] = 0
		}
	}
	return x
}

// TestLadder compares the variants with one another.
func TestLadder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, s := range [][4]int{
		{1, 1, 1, 1}, {0, 2, 3, 4}, {7, 3, 5, 9}, {60, 4, 17, 33}, {300, 2, 8, 200}, {5, 2, 260, 3},
	} {
		tokens, experts, width, hidden := s[0], s[1], s[2], s[3]
		x, gates := normal(r, tokens*width), someGates(r, tokens*experts)
		w1, w2 := normal(r, experts*width*hidden), normal(r, experts*width*hidden)
		var want []float32
		for _, variant := range Ladder {
			got := normal(r, tokens*width)
			variant.Func(tokens, experts, width, hidden, x, gates, w1, w2, got)
			if want == nil {
				want = got
			}
			for i, w := range want {
				if d := math.Abs(float64(got[i] - w)); !(d < 1e-5*float64(width*hidden)) {
					t.Fatalf("%s, %v: element %d is %v, want %v", variant.Name, s, i, got[i], w)
				}
			}
		}
	}
}

// TestRoutes checks the lists of tokens.
func TestRoutes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	p := pool.New(3)
	defer p.Close()
	const tokens, experts = 1500, 5
	plan, err := New(Rows(tokens, experts, 1, 1), relu, p)
	if err != nil {
		t.Fatal(err)
	}
	gates := someGates(r, tokens*experts)
	plan.args = Args[float32]{Gates: gates, Y: make([]float32, tokens)}
	plan.route()
	total := 0
	for e := range experts {
		var want []int32
		for token := range tokens {
			if gates[token*experts+e] != 0 {
				want = append(want, int32(token))
			}
		}
		got := plan.routes.tokens(&segment{expert: e, n: plan.Loads()[e]})
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("expert %d gets %v, want %v", e, got, want)
		}
		total += len(want)
	}
	if plan.cutSegments(); plan.routes.starts[experts-1]+plan.Loads()[experts-1] != total {
		t.Errorf("%d pairs, want %d", plan.routes.starts[experts-1]+plan.Loads()[experts-1], total)
	}
	next := map[int]int{}
	for _, s := range plan.segments {
		blocks := s.block%plan.micro.MR == 0 && (s.blocks-1)*s.block < s.n && s.n <= s.blocks*s.block
		if s.from != next[s.expert] || s.n < 1 || !blocks {
			t.Errorf("segment %+v after %d", s, next[s.expert])
		}
		next[s.expert] += s.n
	}
	for e, n := range plan.Loads() {
		if next[e] != n {
			t.Errorf("segments of expert %d have %d tokens of %d", e, next[e], n)
		}
	}
}

// A mixture is a plan's operands, and memory for its results.
type mixture struct {
	cfg  Config
	args Args[float32]
}

// draw makes a mixture of row-major operands, and memory for its gradients if it is one.
func draw(r *rand.Rand, tokens, experts, width, hidden int, backward bool) mixture {
	m := mixture{cfg: Rows(tokens, experts, width, hidden)}
	m.args = Args[float32]{X: normal(r, tokens*width), Gates: someGates(r, tokens*experts), Y: normal(r, tokens*width)}
	for _, w := range []graph.MoEWeight{graph.MoEW1, graph.MoEW2} {
		for range experts {
			m.args.Weights[w] = append(m.args.Weights[w], normal(r, width*hidden))
		}
	}
	if backward {
		m.cfg.Backward, m.cfg.DX, m.cfg.DGates, m.cfg.DWeights = true, m.cfg.X, m.cfg.Gates, m.cfg.Weights
	}
	return m
}

// run computes the mixture, cut as change says, and returns its results: y, or the gradients of x, gates and weights.
func (m mixture) run(t *testing.T, p *pool.Pool, change func(k *Plan[float32])) [][]float32 {
	t.Helper()
	hidden := relu
	hidden.Backward = func(worker int, u, _, da, h, du, _ []float32) {
		copy(h, u)
		relu.Forward(worker, h, nil)
		for i, v := range u {
			du[i] = 0
			if v > 0 {
				du[i] = da[i]
			}
		}
	}
	k, err := New(m.cfg, hidden, p)
	if err != nil {
		t.Fatal(err)
	}
	change(k)
	results := [][]float32{m.args.Y}
	if m.cfg.Backward {
		m.args.DX, m.args.DGates = make([]float32, len(m.args.X)), make([]float32, len(m.args.Gates))
		results = [][]float32{m.args.DX, m.args.DGates}
		for w := range m.args.Weights {
			m.args.DWeights[w] = nil
			for _, x := range m.args.Weights[w] {
				m.args.DWeights[w] = append(m.args.DWeights[w], make([]float32, len(x)))
			}
			results = append(results, m.args.DWeights[w]...)
		}
	} else {
		m.args.Y = make([]float32, len(m.args.Y))
		results[0] = m.args.Y
	}
	scratch := make([][]float32, p.Workers())
	for i := range scratch {
		scratch[i] = aligned(k.Room())
	}
	k.Run(m.args, aligned(k.Shared()), scratch)
	return results
}

// TestWaves checks that it makes no difference what goes into one wave, and none but of rounding how long segments are.
func TestWaves(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	p := pool.New(2)
	defer p.Close()
	for _, backward := range []bool{false, true} {
		m := draw(r, 1200, 7, 20, 50, backward)
		long := m.run(t, p, func(*Plan[float32]) {})
		var want [][]float32
		for _, rows := range []int{1 << 30, 400, 0} {
			got := m.run(t, p, func(k *Plan[float32]) {
				k.segment = 120 // a multiple of all kernels' MR
				k.waveRows = min(k.waveRows, max(rows, k.segment))
				k.segments = make([]segment, 0, 100)
				if rows == 0 {
					k.homes, k.owner = 1, k.owner[:1]
				}
			})
			if want == nil {
				want = got
			}
			for i := range want {
				for j, w := range want[i] {
					if got[i][j] != w {
						t.Fatalf("waves of %d rows: element %d of result %d is %v, not %v", rows, j, i, got[i][j], w)
					}
					if d := math.Abs(float64(w - long[i][j])); !(d < 1e-2) {
						t.Fatalf("short segments: element %d of result %d is %v, not %v", j, i, w, long[i][j])
					}
				}
			}
		}
	}
}

func TestErrors(t *testing.T) {
	p := pool.New(1)
	good := Rows(3, 2, 4, 5)
	tokens, experts, grads, backward := good, good, good, good
	tokens.Gates.Offsets = tokens.Gates.Offsets[:1]
	experts.Weights[graph.MoEW2] = experts.Weights[graph.MoEW2][:1]
	grads.DWeights[graph.MoEW1] = []gemm.Layout{{}}
	backward.Backward = true
	for want, cfg := range map[string]Config{
		"gates has 1 offsets for 3 tokens": tokens, "w2 has 1 layouts for 2 experts": experts,
		"dw1 has 1 layouts for 2 experts": grads, "dx has 0 offsets for 3 tokens": backward,
	} {
		if _, err := New(cfg, relu, p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := New(good, relu, p); err != nil {
		t.Error(err)
	}
}

func BenchmarkLadder(b *testing.B) {
	const tokens, experts, width, hidden = 1024, 8, 64, 256
	r := rand.New(rand.NewPCG(5, 6))
	x, gates := normal(r, tokens*width), someGates(r, tokens*experts)
	w1, w2 := normal(r, experts*width*hidden), normal(r, experts*width*hidden)
	y := make([]float32, tokens*width)
	for _, variant := range Ladder {
		b.Run(variant.Name, func(b *testing.B) {
			for b.Loop() {
				variant.Func(tokens, experts, width, hidden, x, gates, w1, w2, y)
			}
		})
	}
}
