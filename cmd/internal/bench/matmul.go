package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/ladders"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// size is that of a product: M×K by K×N.
type size struct{ m, k, n int }

// String gives the size as MxKxN.
func (s size) String() string { return fmt.Sprintf("%dx%dx%d", s.m, s.k, s.n) }

func (s size) flops() float64 { return 2 * float64(s.m) * float64(s.k) * float64(s.n) }

// maxSide bounds the sides of a matrix.
const maxSide = 1 << 14

// parseSizes reads sizes separated by commas: N for N×N by N×N, or MxKxN.
func parseSizes(s string) ([]size, error) {
	var list []size
	for _, word := range strings.Split(s, ",") {
		word = strings.TrimSpace(word)
		var side []int
		for _, part := range strings.Split(word, "x") {
			n, err := strconv.Atoi(part)
			if err != nil || n < 1 || n > maxSide {
				return nil, fmt.Errorf("%q is no size: want N or MxKxN, each from 1 to %d", word, maxSide)
			}
			side = append(side, n)
		}
		switch len(side) {
		case 1:
			list = append(list, size{side[0], side[0], side[0]})
		case 3:
			list = append(list, size{side[0], side[1], side[2]})
		default:
			return nil, fmt.Errorf("%q is no size: want N or MxKxN", word)
		}
	}
	return list, nil
}

var defaultSizes = []size{{256, 256, 256}, {512, 512, 512}, {1024, 1024, 1024}, {2048, 2048, 2048}}

// gonumName is the rival's name.
const gonumName = "gonum"

// multiplier is a way to multiply matrices, a row of the table.
type multiplier struct {
	way
	prepare func(s size) (func(a, b, c []float32) error, error)
}

// multipliers lists the rows: the ladder if asked for, fusec on all threads and gonum.
func (b *bencher) multipliers(p *pool.Pool) []*multiplier {
	var list []*multiplier
	if b.ladder {
		for _, r := range ladders.MatMul {
			list = append(list, &multiplier{way: way{name: r.Name, doc: r.Doc, threads: 1},
				prepare: func(s size) (func(a, b, c []float32) error, error) {
					return func(a, b, c []float32) error { r.Func(s.m, s.n, s.k, a, b, c); return nil }, nil
				}})
		}
	}
	return append(list,
		&multiplier{way: way{name: "fusec", doc: "As every compiled model multiplies.", threads: p.Workers()},
			prepare: func(s size) (func(a, b, c []float32) error, error) {
				plan, err := gemm.New(gemm.Config[float32]{M: s.m, N: s.n, K: s.k, Batch: 1,
					A: gemm.RowMajor(s.k), B: gemm.RowMajor(s.n), C: gemm.RowMajor(s.n)}, p, nil)
				return func(a, b, c []float32) error { return plan.Run(a, b, c, nil) }, err
			}},
		&multiplier{way: way{name: gonumName, doc: "What Gorgonia multiplies with.", threads: p.Workers()},
			prepare: func(s size) (func(a, b, c []float32) error, error) {
				return func(a, b, c []float32) error {
					gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, s.m, s.n, s.k, 1, a, s.k, b, s.n, 0, c, s.n)
					return nil
				}, nil
			}})
}

// matmulReport is what fusec bench matmul found, and its JSON form.
type matmulReport struct {
	Schema  string         `json:"schema"` // fusec.matmul/1
	Machine cli.Machine    `json:"machine"`
	Rounds  int            `json:"rounds"`
	Results []matmulResult `json:"results"`
}

type matmulResult struct {
	Size    string  `json:"size"` // MxKxN
	Name    string  `json:"name"`
	Threads int     `json:"threads"`
	GFLOPs  float64 `json:"gflops"` // per second, by the median of the rounds
	Spread  float64 `json:"spread"` // (slowest − fastest round) ÷ median
	Ratio   float64 `json:"ratio"`  // gonum's time over this one's
}

// matmul times the product and prints the report.
func (b *bencher) matmul(e *cli.Env) (*outcome, error) {
	p := pool.New(b.compile.Threads)
	defer p.Close()
	sizes := b.sizes
	if sizes == nil {
		sizes = defaultSizes
	}
	rep := &matmulReport{Schema: "fusec.matmul/1", Machine: cli.ThisMachine(), Rounds: b.rounds, Results: []matmulResult{}}
	rows := b.multipliers(p)
	sizes = slices.SortedStableFunc(slices.Values(sizes), func(a, b size) int { return cmp.Compare(a.flops(), b.flops()) })
	entries, err := sweep(b.progress(e), sizes, func(s size, show *cli.Progress) (entry,
		error) {
		return b.product(e, rep, rows, s, show)
	})
	if err != nil {
		return nil, err
	}
	return &outcome{report: rep, text: rep.text(rows), entries: entries}, nil
}

// product times one size.
func (b *bencher) product(e *cli.Env, rep *matmulReport, rows []*multiplier, s size, show *cli.Progress) (entry, error) {
	x, y := uniform(s.m*s.k, 1), uniform(s.k*s.n, 2)
	var field []Contestant
	var ways []*multiplier
	var results [][]float32
	for _, w := range rows {
		rival := w.name == gonumName || w.name == "fusec"
		if !rival && w.rate > 0 && s.flops()/w.rate > slowest {
			continue
		}
		do, err := w.prepare(s)
		if err != nil {
			return entry{}, err
		}
		c := make([]float32, s.m*s.n)
		results = append(results, c)
		field = append(field, Contestant{w.name, func() error { return do(x, y, c) }})
		ways = append(ways, w)
	}
	times, err := Race(e.Ctx, field, b.rounds, b.seconds,
		func(round int) { show.Show("matmul %v: round %d of %d", s, round+1, b.rounds) })
	if err != nil {
		return entry{}, err
	}
	rival := len(times) - 1
	for i, t := range times {
		if !agree(results[i], results[rival], s.k) {
			return entry{}, fmt.Errorf("matmul %v: %s and %s do not agree", s, ways[i].name, gonumName)
		}
		ways[i].rate = s.flops() / t.median()
		rep.Results = append(rep.Results, matmulResult{Size: s.String(), Name: ways[i].name, Threads: ways[i].threads,
			GFLOPs: ways[i].rate / 1e9, Spread: t.Spread(), Ratio: Median(Ratios(times[rival], t))})
	}
	return newEntry("matmul "+s.String(), gonumName, b.compile.Threads, times[rival-1], times[rival], 1), nil
}

// uniform makes n numbers in [−0.5,0.5) from a linear congruential generator (Knuth's MMIX).
func uniform(n int, seed uint64) []float32 {
	x := make([]float32, n)
	for i := range x {
		seed = seed*6364136223846793005 + 1442695040888963407
		x[i] = float32(seed>>40)/(1<<24) - 0.5
	}
	return x
}

// agree reports whether two products over k terms, each at most 1/4, are equal up to rounding.
func agree(x, y []float32, k int) bool {
	const eps = 1e-5
	for i := range x {
		if !(math.Abs(float64(x[i])-float64(y[i])) <= eps*float64(k)) {
			return false
		}
	}
	return true
}

// text prints the report for people: a row for each way, a column for each size.
func (rep *matmulReport) text(rows []*multiplier) string {
	var list []speed
	for _, r := range rep.Results {
		list = append(list, speed{r.Name, r.Size, r.GFLOPs, r.Spread})
	}
	return fmt.Sprintf("float32 on %s; median of %d rounds\n\n", rep.Machine, rep.Rounds) + speedTable(rows, list)
}
