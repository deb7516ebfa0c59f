package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/ladders"
	"fusec/graph"
	"fusec/kernels/cpu/attention"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// attentionShape says which attentions fusec bench attention measures.
type attentionShape struct {
	seqs       []int
	heads, dim int
	causal     bool
}

var defaultSeqs = []int{512, 1024, 2048, 4096}

// Bounds of an attention's sizes.
const MaxSeq, MaxHeads, maxDim = 1 << 17, 1 << 10, 1 << 10

// gemmSide is the side of the square product whose speed the attention's is compared with.
const gemmSide = 1024

// parseNumbers reads numbers from 1 to most, separated by commas, in order and each once.
func parseNumbers(s, what string, most int) ([]int, error) {
	var list []int
	for _, word := range strings.Split(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("%q is no %s: want 1 to %d", word, what, most)
		}
		list = append(list, n)
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// given reports whether any flag of the attention's was used.
func (a attentionShape) given() bool { return a.seqs != nil || a.heads != 0 || a.dim != 0 || a.causal }

// withDefaults fills in what no flag said.
func (a attentionShape) withDefaults() (attentionShape, error) {
	if a.seqs == nil {
		a.seqs = defaultSeqs
	}
	if a.heads == 0 {
		a.heads = 8
	}
	if a.dim == 0 {
		a.dim = 64
	}
	if a.heads > MaxHeads || a.dim > maxDim {
		return a, cli.Usage("--heads is at most %d, --dim at most %d", MaxHeads, maxDim)
	}
	return a, nil
}

// flops counts the two products of the pairs of a query and a key that it may attend.
func (a attentionShape) flops(seq int) float64 {
	s := float64(seq)
	pairs := s * s
	if a.causal {
		pairs = s * (s + 1) / 2
	}
	return 4 * pairs * float64(a.heads) * float64(a.dim)
}

// subject names one attention.
func (a attentionShape) subject(seq int) string {
	kind := "full"
	if a.causal {
		kind = "causal"
	}
	return fmt.Sprintf("attention %dx%dx%d %s", seq, a.heads, a.dim, kind)
}

// attender is a way to compute attention, a row of the ladder's table.
type attender struct {
	way
	prepare func(a attentionShape, seq int) (run func(q, k, v, out []float32), scratch int64, err error)
}

// attenders lists the ladder if asked for, and fusec on all threads.
func (b *bencher) attenders(p *pool.Pool) []*attender {
	var list []*attender
	if b.ladder {
		for _, r := range ladders.Attention {
			list = append(list, &attender{way: way{name: r.Name, doc: r.Doc, threads: 1},
				prepare: func(a attentionShape, seq int) (func(q, k, v, out []float32), int64, error) {
					return func(q, k, v, out []float32) { r.Func(a.heads, seq, seq, a.dim, a.causal, q, k, v, out) }, 0, nil
				}})
		}
	}
	return append(list, &attender{way: way{name: "fusec", doc: "As every compiled model attends.", threads: p.Workers()},
		prepare: func(a attentionShape, seq int) (func(q, k, v, out []float32), int64, error) {
			op := graph.Attention{Scale: 1 / math.Sqrt(float64(a.dim)), Causal: a.causal}
			plan, err := attention.New[float32](attention.Rows(op, a.heads, seq, seq, a.dim), p)
			if err != nil {
				return nil, 0, err
			}
			scratch := attention.Scratch(plan, p.Workers())
			bytes := plan.Bytes() + 4*int64(plan.Room())*int64(p.Workers())
			return func(q, k, v, out []float32) {
				plan.Run(attention.Args[float32]{Q: q, K: k, V: v, Out: out}, scratch)
			}, bytes, nil
		}})
}

// attentionReport is what fusec bench attention found, and its JSON form.
type attentionReport struct {
	Schema  string            `json:"schema"` // fusec.attention/1
	Machine cli.Machine       `json:"machine"`
	Rounds  int               `json:"rounds"`
	Heads   int               `json:"heads"`
	Dim     int               `json:"dim"`
	Causal  bool              `json:"causal"`
	Results []attentionResult `json:"results"`
}

type attentionResult struct {
	Seq      int     `json:"seq"`
	Name     string  `json:"name"`
	Threads  int     `json:"threads"`
	MedianNS int64   `json:"median_ns"`
	BestNS   int64   `json:"best_ns"`
	GFLOPs   float64 `json:"gflops"` // per second, of the products, by the median of the rounds
	Spread   float64 `json:"spread"` // (slowest − fastest round) ÷ median
	// Of fusec's own way: its speed as a share of the matrix product's in the same rounds, and its scratch.
	Share   float64 `json:"gemm_share,omitempty"`
	GEMM    float64 `json:"gemm_gflops,omitempty"`
	Scratch int64   `json:"scratch_bytes,omitempty"`
}

// attention times attentions and a matrix product in turn and prints the report.
func (b *bencher) attention(e *cli.Env) (*outcome, error) {
	shape, err := b.attends.withDefaults()
	if err != nil {
		return nil, err
	}
	p := pool.New(b.compile.Threads)
	defer p.Close()
	rep := &attentionReport{Schema: "fusec.attention/1", Machine: cli.ThisMachine(), Rounds: b.rounds, Heads: shape.heads,
		Dim: shape.dim, Causal: shape.causal, Results: []attentionResult{}}
	rows := b.attenders(p)
	product, err := squareProduct(p)
	if err != nil {
		return nil, err
	}
	entries, err := sweep(b.progress(e), shape.seqs, func(seq int, show *cli.Progress) (entry, error) {
		return b.attend(e, rep, shape, rows, product, seq, show)
	})
	if err != nil {
		return nil, err
	}
	text := rep.text()
	if b.ladder {
		text = rep.ladder(rows)
	}
	return &outcome{report: rep, text: text, entries: entries}, nil
}

// squareProduct is the matrix product of gemmSide.
func squareProduct(p *pool.Pool) (Contestant, error) {
	const n = gemmSide
	plan, err := gemm.New(gemm.Config[float32]{M: n, N: n, K: n, Batch: 1, A: gemm.RowMajor(n), B: gemm.RowMajor(n),
		C: gemm.RowMajor(n)}, p, nil)
	x, y, z := uniform(n*n, 1), uniform(n*n, 2), make([]float32, n*n)
	return Contestant{"gemm", func() error { return plan.Run(x, y, z, nil) }}, err
}

// attend times one length.
func (b *bencher) attend(e *cli.Env, rep *attentionReport, shape attentionShape, rows []*attender, product Contestant,
	seq int, show *cli.Progress) (entry, error) {
	n := shape.heads * seq * shape.dim
	q, k, v := uniform(n, 1), uniform(n, 2), uniform(n, 3)
	field := []Contestant{product}
	var ways []*attender
	var results [][]float32
	var scratch int64
	for _, w := range rows {
		if w.name != "fusec" && w.rate > 0 && shape.flops(seq)/w.rate > slowest {
			continue
		}
		run, bytes, err := w.prepare(shape, seq)
		if err != nil {
			return entry{}, err
		}
		out := make([]float32, n)
		results, ways, scratch = append(results, out), append(ways, w), bytes
		field = append(field, Contestant{w.name, func() error { run(q, k, v, out); return nil }})
	}
	times, err := Race(e.Ctx, field, b.rounds, b.seconds, func(round int) {
		show.Show("%s: round %d of %d", shape.subject(seq), round+1, b.rounds)
	})
	if err != nil {
		return entry{}, err
	}
	reference := size{gemmSide, gemmSide, gemmSide}.flops()
	last := len(ways) - 1
	var shares []float64
	for i, w := range ways {
		if !agree(results[i], results[last], 1) {
			return entry{}, fmt.Errorf("%s: %s and %s do not agree", shape.subject(seq), w.name, ways[last].name)
		}
		t := times[i+1]
		w.rate = shape.flops(seq) / t.median()
		r := attentionResult{Seq: seq, Name: w.name, Threads: w.threads, MedianNS: int64(t.Duration()),
			BestNS: int64(t.Best * 1e9), GFLOPs: w.rate / 1e9, Spread: t.Spread()}
		if i == last {
			for _, ratio := range Ratios(times[0], t) {
				shares = append(shares, ratio*shape.flops(seq)/reference)
			}
			r.Share, r.GEMM, r.Scratch = Median(shares), reference/times[0].median()/1e9, scratch
		}
		rep.Results = append(rep.Results, r)
	}
	return newEntry(shape.subject(seq), product.Name, b.compile.Threads, times[last+1], times[0], shape.flops(seq)/reference), nil
}

// title says what was measured, and on what.
func (rep *attentionReport) title() string {
	kind := "full"
	if rep.Causal {
		kind = "causal"
	}
	return fmt.Sprintf("%s attention, %d heads of %d, float32 on %s; median of %d rounds\n\n",
		kind, rep.Heads, rep.Dim, rep.Machine, rep.Rounds)
}

// text prints the report for people: a row for each length.
func (rep *attentionReport) text() string {
	t := cli.NewTable(">length", ">threads", ">time", ">spread", ">GFLOP/s", ">of the GEMM's", ">best time", ">scratch")
	for _, r := range rep.Results {
		t.Row(strconv.Itoa(r.Seq), strconv.Itoa(r.Threads), cli.HumanTime(time.Duration(r.MedianNS)),
			fmt.Sprintf("±%.0f%%", 50*r.Spread), cli.Digits(r.GFLOPs), fmt.Sprintf("%.0f %% of %s", 100*r.Share,
				cli.Digits(r.GEMM)),
			cli.HumanTime(time.Duration(r.BestNS)), cli.HumanBytes(r.Scratch))
	}
	return rep.title() + t.String()
}

// ladder prints the variants: a row for each, a column for each length.
func (rep *attentionReport) ladder(rows []*attender) string {
	var list []speed
	for _, r := range rep.Results {
		list = append(list, speed{r.Name, strconv.Itoa(r.Seq), r.GFLOPs, r.Spread})
	}
	return rep.title() + speedTable(rows, list)
}
