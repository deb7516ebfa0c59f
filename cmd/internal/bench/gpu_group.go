package bench

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/kernels/group"
	"fusec/kernels/group/rendezvous"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/estimate"
)

// A groupWork is work that the participants of a group do together, and what one of them does alone.
type groupWork struct {
	name   string
	alone  *gpuWork
	all    *gpuWork
	splits map[string][]string // shardings of sources, see [fusec.WithSplit]
	mesh   string
	zero   int // the stage of ZeRO
	// rounded says that gradients are exchanged in bf16.
	rounded bool
	// weak says that participants have as much to do as one alone, each on its part of the inputs; else they share the work.
	weak bool
}

// groupLine is what fusec bench group prints about a work.
type groupLine struct {
	Workload     string `json:"workload"`
	Peer         string `json:"peer"`
	Participants int    `json:"participants"`
	// AloneMS is the median of one participant alone, the slowest of all at the same time; 0 if its memory is too small for that.
	AloneMS float64 `json:"alone_ms"`
	MS      float64 `json:"ms"` // median of all together, of the slowest
	// Scaling is the part of the ideal speed that the group reaches, 1 at best; Speedup how many times as fast as one it is.
	Scaling float64 `json:"scaling"`
	Speedup float64 `json:"speedup"`
	// PlanMS is what a plan predicts for all together: of a machine on which one participant alone takes as long as was measured.
	PlanMS float64 `json:"plan_ms"`
	Sent   int64   `json:"sent_bytes"` // by each participant
	// ExchangeMS is for how long exchanges were under way in a run that was timed launch by launch, and ExposedMS for how long of
	// that no launch was.
	ExchangeMS float64 `json:"exchange_ms"`
	ExposedMS  float64 `json:"exposed_ms"`
	Error      string  `json:"error,omitempty"`
}

// groupWorks are the works for n participants.
func groupWorks(n int, small bool) []*groupWork {
	cases := []trainingCase{{12, 768, 12, 8, 1024}, {24, 1024, 16, 8, 1024}}
	large := trainingCase{24, 1536, 12, 4, 1024}
	layers := []layerCase{ // of Llama 3 8B and 70B
		{tokens: 8192, heads: 32, kvHeads: 8, head: 128, width: 4096, hidden: 14336},
		{tokens: 8192, heads: 64, kvHeads: 8, head: 128, width: 8192, hidden: 28672},
	}
	mixture := mixtureCase{16384, 2048, 1408, 64, 6, 0}
	decode := decodeCase{batch: 1, context: 1024, heads: 32, kvHeads: 8, head: 128, width: 4096, hidden: 14336, layers: 8}
	if small {
		cases = []trainingCase{{2, 16, 2, 1, 8}}
		large = trainingCase{1, 16, 2, 2, 8}
		layers = []layerCase{{tokens: 16, heads: 4, kvHeads: 2, head: 8, width: 32, hidden: 48}}
		mixture = mixtureCase{64, 16, 24, 4, 2, 0}
		decode = decodeCase{batch: 1, context: 40, heads: 4, kvHeads: 2, head: 16, width: 32, hidden: 48, layers: 1}
	}
	var list []*groupWork
	for _, c := range cases {
		list = append(list, c.groupWork("data parallel", n, 0))
	}
	for _, c := range cases {
		w := c.groupWork("gradients in bf16", n, 0)
		w.rounded = true
		list = append(list, w)
	}
	for _, c := range append(cases, large) {
		list = append(list, c.groupWork("fully sharded", n, 3))
	}
	for _, c := range layers {
		list = append(list, c.work())
	}
	return append(list, mixture.expertWork(), decode.groupWork())
}

// groupWork is a step of n participants, each of which has as many samples as one alone.
func (c trainingCase) groupWork(how string, n, zero int) *groupWork {
	w := &groupWork{name: how + " " + c.work(fusec.BF16).name, alone: c.work(fusec.BF16), weak: true, zero: zero}
	c.batch *= n
	w.all = c.work(fusec.BF16)
	return w
}

// expertWork has the experts and the tokens split. What comes out of each token, which is rounded to bf16, is one number, for the
// sake of the comparison: values as they are would stay split in a model.
func (c mixtureCase) expertWork() *groupWork {
	w := c.work()
	w.build = func(b *graph.Builder) {
		b.Output("y", b.Reduce(graph.Mean, b.CastTo(graph.F32, b.CastTo(graph.BF16, c.mix(b))), false, 1))
	}
	split := []string{"expert", "", ""}
	return &groupWork{name: "expert parallel " + w.name, alone: w, all: w, mesh: "expert",
		splits: map[string][]string{"x": split[:2], "up": split, "down": split}}
}

// layerCase is a layer of a decoder on the tokens of one sequence.
type layerCase struct{ tokens, heads, kvHeads, head, width, hidden int }

func (c layerCase) work() *groupWork {
	w := &gpuWork{name: fmt.Sprintf("layer bf16 t%dd%dh%d", c.tokens, c.width, c.hidden), unit: teraFLOPs, precision: fusec.BF16,
		build: c.build, scale: map[string]float64{}}
	splits := map[string][]string{"x": {"", ""}}
	d := decodeCase{heads: c.heads, kvHeads: c.kvHeads, head: c.head, width: c.width, hidden: c.hidden}
	for _, m := range d.weights() {
		w.scale[m.name], splits[m.name] = 1/math.Sqrt(float64(m.cols)), m.split()
	}
	return &groupWork{name: "tensor parallel " + w.name, alone: w, all: w, splits: splits, mesh: "tensor"}
}

// split is how a matrix of a layer is split over GPUs, as in Megatron-LM: by heads and hidden columns.
func (m decodeWeight) split() []string {
	if m.name == "o" || m.name == "down" {
		return []string{"", "tensor"}
	}
	return []string{"tensor", ""}
}

// groupWork is a step of decoding whose layers, and caches, are split by heads and hidden columns.
func (c decodeCase) groupWork() *groupWork {
	w := c.work()
	splits := map[string][]string{"x": {"", ""}}
	for i := range c.layers {
		for _, m := range c.weights() {
			splits[layerName(i, m.name)] = m.split()
		}
		for _, cache := range []string{"keys", "values"} {
			splits[layerName(i, cache)] = []string{"", "tensor", "", ""}
		}
	}
	return &groupWork{name: "tensor parallel " + w.name, alone: w, all: w, splits: splits, mesh: "tensor"}
}

func (c layerCase) build(b *graph.Builder) {
	d := decodeCase{heads: c.heads, kvHeads: c.kvHeads, head: c.head, width: c.width, hidden: c.hidden}
	weight := map[string]*graph.Node{}
	for _, m := range d.weights() {
		weight[m.name] = b.Param(m.name, graph.TypeOf(graph.BF16, m.rows, m.cols))
	}
	x := b.Input("x", graph.TypeOf(graph.F32, c.tokens, c.width))
	product := func(x *graph.Node, name string) *graph.Node {
		return b.MatMul(b.CastTo(graph.BF16, x), weight[name], false, true)
	}
	norm := func(x *graph.Node, name string) *graph.Node {
		return b.Add(graph.RMSNorm{Eps: rmsEps}, x, b.Param(name, graph.TypeOf(graph.F32, c.width)))
	}
	n := norm(x, "norm1")
	heads := func(name string, heads int) *graph.Node {
		return b.Transpose(b.Reshape(product(n, name), 1, c.tokens, heads, c.head), 0, 2, 1, 3)
	}
	rotated := func(x *graph.Node) *graph.Node {
		return b.CastTo(graph.BF16, b.Add(graph.RoPE{Base: ropeBase}, x, b.Scalar(graph.I64, 0)))
	}
	a := b.Add(graph.Attention{Scale: 1 / math.Sqrt(float64(c.head)), Causal: true}, rotated(heads("q", c.heads)),
		rotated(heads("k", c.kvHeads)), b.CastTo(graph.BF16, heads("v", c.kvHeads)))
	rounded := func(x *graph.Node) *graph.Node { return b.CastTo(graph.F32, b.CastTo(graph.BF16, x)) }
	x = b.Binary(graph.Add, x, rounded(product(b.Reshape(b.Transpose(a, 0, 2, 1, 3), c.tokens, c.heads*c.head), "o")))
	n = norm(x, "norm2")
	h := b.Binary(graph.Mul, b.Unary(graph.Silu, product(n, "gate")), product(n, "up"))
	b.Output("y", b.Binary(graph.Add, x, rounded(product(h, "down"))))
}

// groupBench times works of a group on GPUs.
type groupBench struct {
	group   *group.Group
	target  string
	options []lowering.TargetOption
	release func() error // frees what closed programs have left on the GPU
	// How often a work is run before it is timed, and then.
	warm, runs int
}

// group is fusec bench group, in the place that a launcher has given it.
func (b *bencher) group(e *cli.Env, words []string) (err error) {
	g, place, err := rendezvous.Join(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	x := groupBench{group: g, target: fmt.Sprintf("cuda:%d", max(place.Local, 0)), release: cuda.Release}
	if b.bucket > 0 {
		x.options = append(x.options, cuda.Bucket(b.bucket))
	}
	if b.exchangeBlocks >= 0 {
		x.options = append(x.options, cuda.ExchangeBlocks(b.exchangeBlocks))
	}
	if b.spare >= 0 {
		x.options = append(x.options, cuda.Spare(b.spare))
	}
	return x.run(e, words, b.small, b.json)
}

func (x *groupBench) run(e *cli.Env, words []string, small, asJSON bool) error {
	list := slices.DeleteFunc(groupWorks(x.group.Size(), small), func(w *groupWork) bool {
		return len(words) > 0 && !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(w.name, word) })
	})
	if x.warm, x.runs = gpuWarmRuns, gpuRuns; small {
		x.warm, x.runs = 1, 3
	}
	if len(list) == 0 {
		return cli.Usage("no workload of a group has one of %q in its name", words)
	}
	t := cli.NewTable("workload", ">alone", ">together", ">planned", ">scaling", ">speedup", ">sent", ">exchanging", ">exposed")
	for _, w := range list {
		line, err := x.measure(w)
		if err != nil {
			x.group.Abort(err)
			return fmt.Errorf("%s: %w", w.name, err)
		}
		if x.group.Rank() > 0 {
			continue
		}
		if asJSON {
			if err := errors.Join(json.NewEncoder(e.Out).Encode(line), e.Out.Flush()); err != nil {
				return err
			}
			continue
		}
		alone, planned, scaling, speedup := "no memory", "–", "–", "–"
		if line.AloneMS > 0 {
			alone, planned = fmt.Sprintf("%.3f ms", line.AloneMS), fmt.Sprintf("%.3f ms", line.PlanMS)
			scaling, speedup = fmt.Sprintf("%.3f", line.Scaling), fmt.Sprintf("%.3f", line.Speedup)
		}
		t.Row(w.name, alone, fmt.Sprintf("%.3f ms", line.MS), planned, scaling, speedup, cli.HumanBytes(line.Sent),
			fmt.Sprintf("%.3f ms", line.ExchangeMS), fmt.Sprintf("%.3f ms", line.ExposedMS))
	}
	if x.group.Rank() > 0 || asJSON {
		return nil
	}
	return e.Print(t.String())
}

// of gives a number of each participant, in the order of their ranks.
func (x *groupBench) of(v float64) ([]float64, error) {
	all := make([]byte, 8*x.group.Size())
	err := x.group.All().Gather(binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)), all)
	list := make([]float64, x.group.Size())
	for i := range list {
		list[i] = math.Float64frombits(binary.LittleEndian.Uint64(all[8*i:]))
	}
	return list, err
}

// errFull is why none is timed alone.
var errFull = errors.New("the memory of a participant is too small")

// agree takes the error of each participant, and gives all the same: errFull where one of them has no memory left. Another error is
// that of its participant alone, which ends the others with it.
func (x *groupBench) agree(err error) error {
	full := 0.0
	if errors.Is(err, driver.ErrOutOfMemory) {
		full = 1
	} else if err != nil {
		return err
	}
	list, err := x.of(full)
	if err == nil && slices.Max(list) > 0 {
		err = errFull
	}
	return err
}

// together waits for all participants, if this one has not failed.
func (x *groupBench) together(err error) error {
	if err == nil {
		_, err = x.of(0)
	}
	return err
}

// measure times what a participant does alone, all at the same time, and what they do together, and compares what comes out.
// What the first has left in the GPU's memory is freed before the second begins.
func (x *groupBench) measure(w *groupWork) (line groupLine, err error) {
	n, rank := x.group.Size(), x.group.Rank()
	line = groupLine{Workload: w.name, Peer: "fusec", Participants: n}
	all, err := w.all.values()
	if err != nil {
		return line, err
	}
	alone := &gpuValues{work: w.alone, in: all.in}
	if alone.graph, err = w.alone.graph(); err != nil {
		return line, err
	}
	if w.weak {
		alone.in = map[string]*graph.Tensor{}
		for _, s := range alone.graph.Sources() {
			alone.in[s.Name] = rows(all.in[s.Name], s.Type, rank)
		}
	}
	one, err := x.time(alone, x.agree)
	if err == errFull {
		one, err = timed{}, nil // nothing is compared
	}
	if err = errors.Join(err, x.release()); err != nil {
		return line, fmt.Errorf("alone: %w", err)
	}
	opts := []fusec.CompileOption{fusec.WithGroup(x.group)}
	for _, name := range slices.Sorted(maps.Keys(w.splits)) {
		opts = append(opts, fusec.WithSplit(name, w.splits[name]...))
	}
	if w.mesh != "" {
		opts = append(opts, fusec.WithMesh(fmt.Sprintf("%s=%d", w.mesh, n)))
	}
	if w.zero > 0 {
		opts = append(opts, fusec.WithZeRO(w.zero))
	}
	if w.rounded {
		opts = append(opts, fusec.WithRoundedGradients())
	}
	together, err := x.time(all, x.together, opts...)
	if err != nil {
		return line, err
	}
	line.Sent, line.ExchangeMS, line.ExposedMS = together.sent, together.exchange, together.exposed
	if one.program != nil {
		if err := x.compare(w, one, together); err != nil {
			return line, err
		}
	}
	for _, t := range []struct {
		of float64
		to *float64
	}{{one.ms, &line.AloneMS}, {together.ms, &line.MS}} {
		list, err := x.of(t.of)
		if err != nil {
			return line, err
		}
		*t.to = slices.Max(list)
	}
	if line.AloneMS == 0 {
		return line, nil
	}
	m := estimate.Devices[planDevice].Fitted(one.program, time.Duration(line.AloneMS*1e6))
	line.PlanMS = estimate.Of(together.program, m).Overlapped().Seconds() * 1e3
	line.Speedup = line.AloneMS / line.MS
	if line.Scaling = line.Speedup / float64(n); w.weak {
		line.Speedup, line.Scaling = line.Speedup*float64(n), line.Speedup
	}
	return line, nil
}

// planDevice is the device whose rates are those of a plan, apart from how long one participant takes alone.
const planDevice = "h200"

// timed is a program's median time, and what it computed first.
type timed struct {
	ms      float64
	sent    int64
	out     map[string]*graph.Tensor
	program *lowering.Program
	// in a run that was timed launch by launch
	exchange, exposed float64
}

// time compiles and runs a work, and times it. All brings the participants to an agreement when the work has run once, and when it
// has been timed.
func (x *groupBench) time(v *gpuValues, all func(error) error, opts ...fusec.CompileOption) (t timed, err error) {
	p, err := v.compileWith(v.work.precision, append(opts, modelio.OnTarget(x.target, x.options...))...)
	if err == nil {
		defer func() {
			if e := p.Close(); e != nil {
				err = errors.Join(err, e)
			}
		}()
		err = v.run(p)
	}
	if err = all(err); err != nil {
		return t, err
	}
	t.out = map[string]*graph.Tensor{}
	for name, y := range v.out {
		t.out[name] = y.Clone()
	}
	t.program = p.Lowered()
	for i := range p.Lowered().Launches {
		t.sent += estimate.Sent(p.Lowered(), &p.Lowered().Launches[i])
	}
	err = all(t.measure(p, x.warm, x.runs))
	return t, err
}

// measure times a program that has run.
func (t *timed) measure(p *fusec.Program, warm, runs int) error {
	times, err := p.Measure(warm + runs)
	if err != nil {
		return err
	}
	ms := make([]float64, 0, runs)
	for _, d := range times[warm:] {
		ms = append(ms, d.Seconds()*1e3)
	}
	t.ms = Median(ms)
	p.Profile(true)
	for range 2 {
		if err := p.Exec(); err != nil {
			return err
		}
	}
	t.exchange, t.exposed = exposed(p.Timeline())
	return nil
}

// exposed is for how long exchanges were under way, and for how long of that no launch was, in milliseconds.
func exposed(spans []lowering.Span) (exchange, alone float64) {
	type edge struct {
		at       time.Duration
		exchange bool
		by       int
	}
	var edges []edge
	for _, s := range spans {
		if s.What == lowering.SpanLaunch || s.What == lowering.SpanExchange {
			x := s.What == lowering.SpanExchange
			edges = append(edges, edge{s.Start, x, 1}, edge{s.Start + s.Length, x, -1})
		}
	}
	slices.SortStableFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	var launches, exchanges int
	for i, e := range edges {
		if i > 0 && exchanges > 0 {
			d := (e.at - edges[i-1].at).Seconds() * 1e3
			exchange += d
			if launches == 0 {
				alone += d
			}
		}
		if e.exchange {
			exchanges += e.by
		} else {
			launches += e.by
		}
	}
	return exchange, alone
}

// rows is a participant's part of the rows of a value of which all have several; a value of the same type is whole.
func rows(t *graph.Tensor, part graph.Type, rank int) *graph.Tensor {
	if t.Type == part {
		return t
	}
	y := graph.NewTensor(part)
	copy(y.Bytes(), t.Bytes()[rank*len(y.Bytes()):])
	return y
}

// groupError is how far results of a group may be from those of one participant, as a part of the root of their mean square:
// sums are made in another order, and then rounded to 16 bits for the next product.
const groupError = 0.02

// compare compares what a group computed first with what each participant did alone.
func (x *groupBench) compare(w *groupWork, alone, together timed) error {
	if w.weak { // the loss is the mean over all
		list, err := x.of(alone.out["loss"].Float(0))
		if err != nil {
			return err
		}
		want, got := 0.0, together.out["loss"].Float(0)
		for _, v := range list {
			want += v / float64(len(list))
		}
		if !(math.Abs(got-want) <= 1e-4*math.Abs(want)) {
			return fmt.Errorf("the loss of the first step is %v; alone it is %v", got, want)
		}
		return nil
	}
	want, got := alone.out["y"], together.out["y"]
	far, square := 0.0, 0.0
	for _, i := range samples(want.Type.Shape.Elems()) {
		d := got.Float(i) - want.Float(i)
		far, square = far+d*d, square+want.Float(i)*want.Float(i)
	}
	if !(far <= groupError*groupError*square) {
		return fmt.Errorf("the result differs by %g of its mean square from that of one participant", math.Sqrt(far/square))
	}
	return nil
}
