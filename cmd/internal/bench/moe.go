package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/plotting"
	"fusec/graph"
	"fusec/graph/memlimit"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// mixtureShape says which mixtures of experts fusec bench moe measures. Zeros are filled in by withDefaults.
type mixtureShape struct {
	experts                     []int // a mixture of so many, each
	tokens, width, hidden, topK int
	plot                        string // file of the drawing
}

// The mixtures that are measured unless flags say otherwise, and the number of experts that see every token.
var defaultExperts = []int{4, 8, 16, 32, 64}

const denseExperts = 8

// maxTokens bounds the tokens of a mixture.
const maxTokens = 1 << 20

// declare adds the flags of the mixture.
func (m *mixtureShape) declare(f *cli.FlagSet) {
	f.Func("experts", "moe: mixtures of these `NUMBERS` of experts (default 4,8,16,32,64)", func(s string) (err error) {
		m.experts, err = parseNumbers(s, "number of experts", MaxExperts)
		return err
	})
	f.Count(&m.tokens, "tokens", 1, "moe: `N` tokens (default 4096)")
	f.Count(&m.width, "d-model", 1, "moe: tokens of `N` numbers (default 256)")
	f.Count(&m.hidden, "hidden", 1, "moe: experts `N` wide (default 1024)")
	f.Count(&m.topK, "top-k", 1, "moe: each token goes to `N` experts (default 2)")
	f.Func("plot", "moe: draw time over the number of experts into `FILE`, .svg or .png", func(s string) error {
		m.plot = s
		return plotting.CheckPlot(s)
	})
}

// given reports whether any flag of the mixture's was used.
func (m *mixtureShape) given() bool {
	return m.experts != nil || m.tokens != 0 || m.width != 0 || m.hidden != 0 || m.topK != 0 || m.plot != ""
}

// withDefaults fills in what no flag said, and checks the rest.
func (m mixtureShape) withDefaults() (mixtureShape, error) {
	if m.experts == nil {
		m.experts = defaultExperts
	}
	for _, d := range []struct {
		flag      string
		at        *int
		value, to int
	}{
		{"tokens", &m.tokens, 4096, maxTokens}, {"top-k", &m.topK, 2, MaxExperts},
		{"d-model", &m.width, 256, MaxModel}, {"hidden", &m.hidden, 1024, MaxModel},
	} {
		if *d.at == 0 {
			*d.at = d.value
		}
		if *d.at > d.to {
			return m, cli.Usage("--%s %d: want at most %d", d.flag, *d.at, d.to)
		}
	}
	if least := min(m.experts[0], denseExperts); m.topK > least {
		return m, cli.Usage("--top-k %d is more than the %s of a mixture", m.topK, cli.Plural(least, "expert", "experts"))
	}
	// Weights as given once, packed for each mixture; hidden values of all experts in the worst case.
	need := 4 * 2 * m.width * m.hidden * (slices.Max(m.experts) + denseExperts)
	for _, e := range m.experts {
		need += 4 * 2 * m.width * m.hidden * e
	}
	need += 4 * m.tokens * (m.topK*(m.hidden+2*m.width) + slices.Max(m.experts))
	return m, memlimit.Check(int64(need))
}

// flops counts the two products of a mixture whose tokens go to so many experts.
func (m *mixtureShape) flops(each int) float64 {
	return 4 * float64(m.tokens) * float64(each) * float64(m.width) * float64(m.hidden)
}

// mixtureValues are what all mixtures share: the tokens, and the weights of as many experts as any has.
type mixtureValues struct{ x, up, down []float32 }

// program compiles a mixture of some experts, or a dense one of them, with gates that are drawn: top-k for each token.
func (m *mixtureShape) program(experts int, dense bool, threads int, vals mixtureValues) (*fusec.Program, error) {
	b := graph.NewBuilder("moe")
	f32 := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	op := graph.MoE{Experts: experts, Activation: graph.Relu, Stacked: true, Dense: dense, TopK: m.topK}
	b.Output("y", b.Add(op, b.Input("x", f32(m.tokens, m.width)), b.Input("gates", f32(m.tokens, experts)),
		b.Param("up", f32(experts, m.width, m.hidden)), b.Param("down", f32(experts, m.hidden, m.width))))
	g, err := b.Graph()
	if err != nil {
		return nil, err
	}
	p, err := fusec.Compile(g, fusec.WithWorkers(threads))
	if err != nil {
		return nil, err
	}
	each := experts * m.width * m.hidden
	for _, v := range []struct {
		name string
		data []float32
		dims []int
	}{
		{"x", vals.x, []int{m.tokens, m.width}}, {"gates", m.gates(experts), []int{m.tokens, experts}},
		{"up", vals.up[:each], []int{experts, m.width, m.hidden}},
		{"down", vals.down[:each], []int{experts, m.hidden, m.width}},
	} {
		t, err := graph.TensorOf(v.data, v.dims...)
		if err == nil {
			err = p.Set(v.name, t)
		}
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// gates opens top-k gates of each token, chosen evenly.
func (m *mixtureShape) gates(experts int) []float32 {
	r := rand.New(rand.NewPCG(1, uint64(experts)))
	x := make([]float32, m.tokens*experts)
	for t := range m.tokens {
		row := x[t*experts : (t+1)*experts]
		for open := 0; open < m.topK; {
			if e := r.IntN(experts); row[e] == 0 {
				row[e] = 1 / float32(m.topK)
				open++
			}
		}
	}
	return x
}

// products are a mixture's two products for one expert that sees as many tokens as all see together.
func (m *mixtureShape) products(p *pool.Pool, vals mixtureValues) (Contestant, error) {
	rows := m.tokens * m.topK
	plan := func(n, k int) (*gemm.Plan[float32], error) {
		return gemm.New(gemm.Config[float32]{M: rows, N: n, K: k, Batch: 1, A: gemm.RowMajor(k), B: gemm.RowMajor(n),
			C: gemm.RowMajor(n)}, p, nil)
	}
	up, err := plan(m.hidden, m.width)
	if err != nil {
		return Contestant{}, err
	}
	down, err := plan(m.width, m.hidden)
	if err != nil {
		return Contestant{}, err
	}
	x, h, y := uniform(rows*m.width, 3), make([]float32, rows*m.hidden), make([]float32, rows*m.width)
	each := m.width * m.hidden
	return Contestant{"gemm", func() error {
		if err := up.Run(x, vals.up[:each], h, nil); err != nil {
			return err
		}
		return down.Run(h, vals.down[:each], y, nil)
	}}, nil
}

// mixtureReport is what fusec bench moe found, and its JSON form.
type mixtureReport struct {
	Schema  string          `json:"schema"` // fusec.moe/1
	Machine cli.Machine     `json:"machine"`
	Threads int             `json:"threads"`
	Rounds  int             `json:"rounds"`
	Tokens  int             `json:"tokens"`
	Model   int             `json:"d_model"`
	Hidden  int             `json:"hidden"`
	TopK    int             `json:"top_k"`
	Results []mixtureResult `json:"results"` // by the number of experts, then the dense one, then the products
}

type mixtureResult struct {
	Name     string  `json:"name"` // moe, dense or gemm
	Experts  int     `json:"experts,omitempty"`
	MedianNS int64   `json:"median_ns"`
	BestNS   int64   `json:"best_ns"`
	GFLOPs   float64 `json:"gflops"`        // per second, of the products computed, by the median of the rounds
	Spread   float64 `json:"spread"`        // (slowest − fastest round) ÷ median
	Slower   float64 `json:"time_to_first"` // its time ÷ that of the first mixture
	Dense    float64 `json:"dense_to_time"` // the dense one's time ÷ its own
	GEMM     float64 `json:"gemm_to_time"`  // the products' time ÷ its own
}

// moe times mixtures of experts, a dense one and a matrix product in turn and prints the report.
func (b *bencher) moe(e *cli.Env) (*outcome, error) {
	m, err := b.mixes.withDefaults()
	if err != nil {
		return nil, err
	}
	weights := max(slices.Max(m.experts), denseExperts) * m.width * m.hidden
	vals := mixtureValues{uniform(m.tokens*m.width, 1), uniform(weights, 2), uniform(weights, 3)}
	workers := pool.New(b.compile.Threads)
	defer workers.Close()
	var field []Contestant
	var outputs []*graph.Tensor
	for i := range len(m.experts) + 1 {
		name, experts, dense := "dense", denseExperts, i == len(m.experts)
		if !dense {
			name, experts = "moe", m.experts[i]
		}
		p, err := m.program(experts, dense, b.compile.Threads, vals)
		if err != nil {
			return nil, fmt.Errorf("%s of %d experts: %w", name, experts, err)
		}
		defer p.Close()
		if err := p.Exec(); err != nil {
			return nil, err
		}
		y, err := p.Output("y")
		if err != nil {
			return nil, err
		}
		outputs = append(outputs, y)
		field = append(field, Contestant{fmt.Sprintf("%s of %d experts", name, experts), p.Exec})
	}
	if i := slices.Index(m.experts, denseExperts); i >= 0 {
		if far := Difference(outputs[i].Floats(), outputs[len(m.experts)].Floats()); !(far <= Agreement) {
			return nil, fmt.Errorf("the mixture of %d experts and the dense one differ by %.1e", denseExperts, far)
		}
	}
	product, err := m.products(workers, vals)
	if err != nil {
		return nil, err
	}
	field = append(field, product)
	show := b.progress(e)
	defer show.Done()
	times, err := Race(e.Ctx, field, b.rounds, b.seconds, func(round int) {
		show.Show("mixtures of experts: round %d of %d", round+1, b.rounds)
	})
	if err != nil {
		return nil, err
	}
	show.Done()
	rep, entries := b.mixtureReport(&m, times)
	if m.plot != "" {
		if err := rep.chart().Save(m.plot); err != nil {
			return nil, err
		}
	}
	return &outcome{report: rep, text: rep.text(), entries: entries}, nil
}

// mixtureReport makes the report of times, which are in the order of the results.
func (b *bencher) mixtureReport(m *mixtureShape, times []Timing) (*mixtureReport, []entry) {
	rep := &mixtureReport{Schema: "fusec.moe/1", Machine: cli.ThisMachine(), Threads: b.compile.Threads, Rounds: b.rounds,
		Tokens: m.tokens, Model: m.width, Hidden: m.hidden, TopK: m.topK}
	dense, product := times[len(times)-2], times[len(times)-1]
	var entries []entry
	for i, t := range times {
		r := mixtureResult{Name: "moe", MedianNS: int64(t.Duration()), BestNS: int64(t.Best * 1e9), Spread: t.Spread(),
			Slower: Median(Ratios(t, times[0])), Dense: Median(Ratios(dense, t)), GEMM: Median(Ratios(product, t))}
		each := m.topK
		switch i {
		case len(times) - 2:
			r.Name, r.Experts, each = "dense", denseExperts, denseExperts
		case len(times) - 1:
			r.Name = "gemm"
		default:
			r.Experts = m.experts[i]
			subject := fmt.Sprintf("moe %dx%dx%d top-%d of %d", m.tokens, m.width, m.hidden, m.topK, r.Experts)
			entries = append(entries, newEntry(subject, "gemm", b.compile.Threads, t, product, 1))
		}
		r.GFLOPs = m.flops(each) / t.median() / 1e9
		rep.Results = append(rep.Results, r)
	}
	return rep, entries
}

// text prints the report for people.
func (rep *mixtureReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "mixtures of experts %d wide, %d for each of %d tokens of %d, float32\n",
		rep.Hidden, rep.TopK, rep.Tokens, rep.Model)
	fmt.Fprintf(&b, "%s on %s; median of %d rounds\n\n", cli.Plural(rep.Threads, "thread", "threads"), rep.Machine, rep.Rounds)
	first := rep.Results[0].Experts
	t := cli.NewTable(">experts", ">time", ">spread", ">GFLOP/s", fmt.Sprintf(">time ÷ of %d", first), ">dense ÷ time",
		">gemm ÷ time", "")
	for _, r := range rep.Results {
		experts, what := strconv.Itoa(r.Experts), ""
		switch r.Name {
		case "dense":
			what = "dense: all experts compute all tokens"
		case "gemm":
			experts, what = "", "gemm: products of the same useful FLOPs"
		}
		t.Row(experts, cli.HumanTime(time.Duration(r.MedianNS)), fmt.Sprintf("±%.0f%%", 50*r.Spread), cli.Digits(r.GFLOPs),
			cli.Digits(r.Slower), cli.Digits(r.Dense), cli.Digits(r.GEMM), what)
	}
	return b.String() + t.String()
}

// chart draws time over the number of experts.
func (rep *mixtureReport) chart() *plotting.Chart {
	title := fmt.Sprintf("%d tokens of %d, top-%d of experts %d wide", rep.Tokens, rep.Model, rep.TopK, rep.Hidden)
	c := &plotting.Chart{Title: title, X: "experts", Y: "milliseconds", LogX: true, ZeroY: true}
	mixtures := plotting.Curve{Name: "mixture"}
	var level []plotting.Curve
	for _, r := range rep.Results {
		ms := float64(r.MedianNS) / 1e6
		switch r.Name {
		case "dense":
			name := fmt.Sprintf("dense, %d experts", r.Experts)
			level = append(level, plotting.Curve{Name: name, Y: []float64{ms, ms}, Dashed: true})
		case "gemm":
			level = append(level, plotting.Curve{Name: "matrix products of as many FLOPs", Y: []float64{ms, ms}, Dashed: true})
		default:
			mixtures.X, mixtures.Y = append(mixtures.X, float64(r.Experts)), append(mixtures.Y, ms)
		}
	}
	c.Curves = []plotting.Curve{mixtures}
	for _, k := range level {
		k.X = []float64{mixtures.X[0], mixtures.X[len(mixtures.X)-1]}
		c.Curves = append(c.Curves, k)
	}
	return c
}

// Bounds of sizes; what memory allows is less.
const MaxBatch, MaxModel, MaxExperts = 1 << 16, 1 << 15, 512

// Agreement is how far outputs may lie apart, as a part of the largest value.
const Agreement = 1e-4
