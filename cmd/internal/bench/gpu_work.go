package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/graph"
	"fusec/graph/optim"
	"fusec/lowering"
)

// gpuWork is one workload of fusec bench gpu. The rivals' program, cmd/peers/rivals/gpu_bench.py, has the same ones
// under the same names, with the same arithmetic counted.
type gpuWork struct {
	name      string
	work      float64 // FLOPs or bytes
	unit      string  // of the rate: teraFLOPs or gigabytes
	precision fusec.Precision
	optimizer *optim.Optimizer
	build     func(b *graph.Builder)
	// gradients, if set, adds a backward pass to the graph.
	gradients func(g *graph.Graph) error
	options   []lowering.TargetOption
	fill      map[string]func(t *graph.Tensor) // sources that are not random
	scale     map[string]float64               // standard deviations of random sources, 1 where there is none
	// same, if set, gives for a source the name of one that has the same values, which may be itself.
	same func(name string) string
	// before makes values that this work reads, as outputs of the names of its inputs.
	before *gpuWork
	// check compares outputs with what they should be, computed in another way.
	check func(v *gpuValues) error
}

// The units of rates.
const teraFLOPs, gigabytes = "TFLOP/s", "GB/s"

// rate is the work done in a second, in the unit.
func (w *gpuWork) rate(seconds float64) float64 {
	if w.unit == gigabytes {
		return w.work / seconds / 1e9
	}
	return w.work / seconds / 1e12
}

// graph builds the work's graph.
func (w *gpuWork) graph() (*graph.Graph, error) {
	b := graph.NewBuilder(w.name)
	w.build(b)
	g, err := b.Graph()
	if err == nil && w.gradients != nil {
		err = w.gradients(g)
	}
	return g, err
}

// gpuGroup is a part of the workloads; small ones are for tests.
type gpuGroup struct {
	name string
	list func(small bool) []*gpuWork
	// large ones take much memory and time, and are measured only where a word begins with their name.
	large bool
}

var gpuGroups = []gpuGroup{
	{name: "memory_bound", list: memoryWorks}, {name: "linear", list: linearWorks}, {name: "shapes", list: shapeWorks},
	{name: "attention", list: attentionWorks}, {name: "moe", list: mixtureWorks}, {name: "conv", list: convWorks},
	{name: "decode", list: decodeWorks}, {name: "layer", list: decoderWorks}, {name: "training", list: trainingWorks},
	{name: "model", list: modelWorks, large: true},
}

// gpuWorks are the workloads that words ask for, by a group's name or a part of their own; without words all but the large ones.
func gpuWorks(words []string, small bool) ([]*gpuWork, error) {
	var all, usual, list []*gpuWork
	groups := map[*gpuWork]gpuGroup{}
	for _, g := range gpuGroups {
		for _, w := range g.list(small) {
			all = append(all, w)
			groups[w] = g
			if !g.large {
				usual = append(usual, w)
			}
		}
	}
	if len(words) == 0 {
		return usual, nil
	}
	asks := func(w *gpuWork, word string) bool {
		if slices.ContainsFunc(gpuGroups, func(g gpuGroup) bool { return g.name == word }) {
			return groups[w].name == word
		}
		return strings.Contains(w.name, word) && (!groups[w].large || strings.HasPrefix(word, groups[w].name))
	}
	for _, word := range words {
		if !slices.ContainsFunc(all, func(w *gpuWork) bool { return asks(w, word) }) {
			var names []string
			for _, g := range gpuGroups {
				names = append(names, g.name)
			}
			return nil, cli.Usage("no workload is called %q: want %s, or a part of a name", word, strings.Join(names, ", "))
		}
	}
	for _, w := range all {
		if slices.ContainsFunc(words, func(word string) bool { return asks(w, word) }) {
			list = append(list, w)
		}
	}
	return list, nil
}

// memoryWorks are bound by memory: as many bytes are counted as have to be moved.
func memoryWorks(small bool) []*gpuWork {
	rows, width := 16384, 4096
	if small {
		rows, width = 5, 48
	}
	bytes := 4 * float64(rows) * float64(width)
	x := graph.TypeOf(graph.F32, rows, width)
	gain := graph.TypeOf(graph.F32, width)
	list := []*gpuWork{{
		name: fmt.Sprintf("add+gelu+layernorm f32 %dx%d", rows, width), work: 3 * bytes, unit: gigabytes,
		build: func(b *graph.Builder) {
			h := b.Unary(graph.GeluErf, b.Binary(graph.Add, b.Input("x", x), b.Input("r", x)))
			b.Output("y", b.Add(graph.LayerNorm{Eps: normEps}, h, b.Input("gain", gain), b.Input("bias", gain)))
		},
		check: checkNorm,
	}, {
		name: fmt.Sprintf("rmsnorm f32 %dx%d", rows, width), work: 2 * bytes, unit: gigabytes,
		build: func(b *graph.Builder) {
			b.Output("y", b.Add(graph.RMSNorm{Eps: rmsEps}, b.Input("x", x), b.Input("gain", gain)))
		},
		check: checkNorm,
	}}
	wide := []int{32768, 131072}
	if small {
		wide = []int{96}
	}
	for _, width := range wide {
		list = append(list, longRows(max(rows*4096/width, 1), width)...)
	}
	return list
}

// longRows are a softmax and a norm of long rows.
func longRows(rows, width int) []*gpuWork {
	x := graph.TypeOf(graph.F32, rows, width)
	bytes := 2 * float64(x.Bytes())
	return []*gpuWork{{
		name: fmt.Sprintf("softmax f32 %dx%d", rows, width), work: bytes, unit: gigabytes,
		build: func(b *graph.Builder) { b.Output("y", b.Add(graph.Softmax{Axis: 1}, b.Input("x", x))) },
		check: checkSoftmax,
	}, {
		name: fmt.Sprintf("layernorm f32 %dx%d", rows, width), work: bytes, unit: gigabytes,
		build: func(b *graph.Builder) {
			gain := graph.TypeOf(graph.F32, width)
			b.Output("y", b.Add(graph.LayerNorm{Eps: normEps}, b.Input("x", x), b.Input("gain", gain), b.Input("bias", gain)))
		},
		check: checkNorm,
	}}
}

// normEps and rmsEps keep the norms' divisors from zero.
const normEps, rmsEps = 1e-5, 1e-6

// linearWorks are products, bare and with a bias and GELU.
func linearWorks(small bool) []*gpuWork {
	sizes := []size{{8192, 4096, 16384}, {16384, 1024, 4096}, {512, 4096, 4096}}
	if small {
		sizes = []size{{9, 16, 24}}
	}
	var list []*gpuWork
	for _, s := range sizes {
		for _, p := range []fusec.Precision{fusec.BF16, fusec.TF32, fusec.F32} {
			for _, bare := range []bool{true, false} {
				list = append(list, linearWork(s, p, bare))
			}
		}
	}
	return list
}

func linearWork(s size, p fusec.Precision, bare bool) *gpuWork {
	d := graph.F32
	if p == fusec.BF16 {
		d = graph.BF16
	}
	w := &gpuWork{name: fmt.Sprintf("linear %v %dx%dx%d", p, s.m, s.k, s.n), unit: teraFLOPs, precision: p,
		work:  2 * float64(s.m) * float64(s.k) * float64(s.n),
		scale: map[string]float64{"w": 1 / math.Sqrt(float64(s.k))}}
	if !bare {
		w.name += " +bias+gelu"
	}
	w.build = func(b *graph.Builder) {
		x, weight := b.Input("x", graph.TypeOf(d, s.m, s.k)), b.Param("w", graph.TypeOf(d, s.k, s.n))
		y := b.MatMul(x, weight, false, false)
		if !bare {
			bias := b.CastTo(graph.F32, b.Broadcast(b.Param("b", graph.TypeOf(d, s.n)), y.Type.Shape))
			y = b.Unary(graph.GeluTanh, b.Binary(graph.Add, y, bias))
		}
		b.Output("y", b.CastTo(d, y))
	}
	w.check = checkLinear
	return w
}

// attentionCase is the shape of an attention's operands.
type attentionCase struct {
	batch, heads, seq, dim int
	causal                 bool
	with                   string // withMask, withLengths, withDropout or nothing
}

// What an attention has beside position: a mask of Booleans for all heads, of which one in ten is false; lengths, 3/4 of the
// keys for each odd sequence; dropout of one weight in ten.
const withMask, withLengths, withDropout = "mask", "lengths", "dropout"

// attentionWorks are attentions forward and backward in bf16, and in f32 and tf32 where the scores' arithmetic is not too much
// for it.
func attentionWorks(small bool) []*gpuWork {
	cases := []attentionCase{{4, 16, 4096, 128, true, ""}, {4, 16, 4096, 128, false, ""}, {2, 16, 8192, 64, true, ""},
		{1, 16, 16384, 128, true, ""}, {1, 8, 1024, 64, true, ""}}
	masked := attentionCase{4, 16, 4096, 128, false, ""}
	if small {
		cases = []attentionCase{{1, 2, 20, 16, true, ""}, {2, 1, 20, 16, false, ""}}
		masked = attentionCase{2, 2, 66, 16, false, ""}
	}
	for _, masked.with = range []string{withMask, withLengths, withDropout} {
		cases = append(cases, masked)
	}
	var list []*gpuWork
	for _, c := range cases {
		precisions := []fusec.Precision{fusec.BF16}
		if c.seq <= 8192 && c.with == "" {
			precisions = append(precisions, fusec.F32, fusec.TF32)
		}
		for _, p := range precisions {
			forward := c.forward(p)
			list = append(list, forward, c.backward(forward, p))
		}
	}
	return list
}

func (c attentionCase) op() graph.Attention {
	op := graph.Attention{Scale: 1 / math.Sqrt(float64(c.dim)), Causal: c.causal}
	switch c.with {
	case withMask:
		op.HasMask = true
	case withLengths:
		op.HasLengths = true
	case withDropout:
		op.Dropout = 0.1
	}
	return op
}

// operands are q, k and v and what the attention has beside them.
func (c attentionCase) operands(b *graph.Builder, d graph.DType) []*graph.Node {
	list := c.inputs(b, d, "q", "k", "v")
	switch c.with {
	case withMask:
		list = append(list, b.Input("mask", graph.TypeOf(graph.Bool, c.seq, c.seq)))
	case withLengths:
		list = append(list, b.Input("lengths", graph.TypeOf(graph.I64, c.batch)))
	case withDropout:
		list = append(list, b.Input("seed", graph.TypeOf(graph.I64)))
	}
	return list
}

// fill are the operands that are not random.
func (c attentionCase) fill() map[string]func(*graph.Tensor) {
	return map[string]func(*graph.Tensor){
		"mask": func(t *graph.Tensor) {
			for i := range t.Type.Shape.Elems() {
				t.SetInt(i, int64(min(i%10, 1)))
			}
		},
		"lengths": func(t *graph.Tensor) {
			for i := range c.batch {
				t.SetInt(i, int64(c.seq-i%2*c.seq/4))
			}
		},
		"seed": func(t *graph.Tensor) { t.SetInt(0, 90) },
	}
}

func (c attentionCase) inputs(b *graph.Builder, d graph.DType, names ...string) (list []*graph.Node) {
	for _, name := range names {
		list = append(list, b.Input(name, graph.TypeOf(d, c.batch, c.heads, c.seq, c.dim)))
	}
	return list
}

// work is a pass that takes flops for each element of each pair of a query and a key. Half of all pairs count if it is causal, as
// is usual.
func (c attentionCase) work(p fusec.Precision, pass string, flops float64) *gpuWork {
	name := fmt.Sprintf("attention %v b%dh%ds%dd%d", p, c.batch, c.heads, c.seq, c.dim)
	if c.causal {
		name += " causal"
		flops /= 2
	}
	if c.with != "" {
		name += " " + c.with
	}
	flops *= float64(c.batch) * float64(c.heads) * float64(c.seq) * float64(c.seq) * float64(c.dim)
	// In bf16, results are written in 16 bits.
	return &gpuWork{name: name + " " + pass, work: flops, unit: teraFLOPs, fill: c.fill(), precision: p}
}

func (c attentionCase) forward(p fusec.Precision) *gpuWork {
	w, d := c.work(p, "fwd", 4), elementOf(p)
	w.build = func(b *graph.Builder) {
		n := b.Add(c.op(), c.operands(b, d)...)
		b.Output("out", b.CastTo(d, n))
		b.Output("lse", b.Add(graph.Result{Index: 1}, n))
	}
	w.check = func(v *gpuValues) error { return c.checkForward(v, p) }
	return w
}

func (c attentionCase) backward(forward *gpuWork, p fusec.Precision) *gpuWork {
	w, d := c.work(p, "bwd", 10), elementOf(p)
	w.before = forward
	w.build = func(b *graph.Builder) {
		args := append(c.operands(b, d), c.inputs(b, d, "out")...)
		args = append(args, b.Input("lse", graph.TypeOf(graph.F32, c.batch, c.heads, c.seq)))
		n := b.Add(graph.AttentionGrad{Attention: c.op()}, append(args, c.inputs(b, d, "dout")...)...)
		b.Output("dq", b.CastTo(d, n))
		b.Output("dk", b.CastTo(d, b.Add(graph.Result{Index: 1}, n)))
		b.Output("dv", b.CastTo(d, b.Add(graph.Result{Index: 2}, n)))
	}
	w.check = func(v *gpuValues) error { return c.checkBackward(v, p) }
	return w
}

// mixtureCase is a mixture of experts: two products with GELU between them.
type mixtureCase struct {
	tokens, width, hidden, experts, topK int
	// skew, if not 0, is added to the score of the first expert, so that it gets half of the tokens.
	skew float64
}

func mixtureWorks(small bool) []*gpuWork {
	cases := []mixtureCase{{8192, 2048, 5632, 8, 2, 0}, {16384, 2048, 1408, 64, 6, 0}}
	skews := []float64{0.79, 1.33}
	if small {
		cases, skews = []mixtureCase{{20, 16, 24, 4, 2, 0}}, []float64{0.4}
	}
	var list []*gpuWork
	for i, c := range cases {
		skewed := c
		skewed.skew = skews[i]
		list = append(list, c.work(), skewed.work(), c.training())
	}
	return list
}

func (c mixtureCase) name(pass string) string {
	with := ""
	if c.skew != 0 {
		with = "skewed "
	}
	return fmt.Sprintf("moe bf16 T%dd%df%dE%dk%d %s%s", c.tokens, c.width, c.hidden, c.experts, c.topK, with, pass)
}

func (c mixtureCase) work() *gpuWork {
	in, mid := 1/math.Sqrt(float64(c.width)), 1/math.Sqrt(float64(c.hidden))
	return &gpuWork{
		name:  c.name("fwd"),
		unit:  teraFLOPs,
		work:  4 * float64(c.tokens) * float64(c.topK) * float64(c.width) * float64(c.hidden),
		scale: map[string]float64{"router": in, "up": in, "down": mid}, build: c.build, check: c.check,
		precision: fusec.BF16,
		fill:      map[string]func(*graph.Tensor){"prior": func(t *graph.Tensor) { t.SetFloat(0, c.skew) }},
	}
}

// training is the mixture and its gradients for all operands; twice as many FLOPs are counted for these as for the mixture.
func (c mixtureCase) training() *gpuWork {
	w := c.work()
	w.name, w.work = c.name("fwd+bwd"), 3*w.work
	w.gradients, w.check = c.gradients, c.checkTraining
	return w
}

func (c mixtureCase) build(b *graph.Builder) { b.Output("y", b.CastTo(graph.BF16, c.mix(b))) }

// gradients adds those of x and of the weights, and the gates as an output.
func (c mixtureCase) gradients(g *graph.Graph) error {
	var wrt []*graph.Node
	names := []string{"x", "router", "up", "down"}
	for _, name := range names {
		wrt = append(wrt, g.Lookup(name))
	}
	rounded := g.Outputs[0].Node
	y, b := rounded.Args[0], graph.Extend(g)
	dy := b.CastTo(y.Type.DType, b.Input("dy", rounded.Type))
	grads, err := graph.VJP(g, []*graph.Node{y}, []*graph.Node{dy}, wrt)
	if err != nil {
		return err
	}
	for i, d := range grads {
		b.Output("d"+names[i], d)
	}
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.MoE); ok {
			b.Output("gates", n.Args[1])
		}
	}
	return b.Err()
}

// mix routes the tokens by the softmax of their scores; the gates are the probabilities of the experts chosen.
func (c mixtureCase) mix(b *graph.Builder) *graph.Node {
	const d = graph.BF16
	x := b.Input("x", graph.TypeOf(d, c.tokens, c.width))
	router := b.Param("router", graph.TypeOf(d, c.width, c.experts))
	scores := b.MatMul(x, router, false, false)
	if c.skew != 0 {
		prior := b.Param("prior", graph.TypeOf(graph.F32, c.experts))
		scores = b.Binary(graph.Add, scores, b.Broadcast(prior, scores.Type.Shape))
	}
	scores = b.Add(graph.Softmax{Axis: 1}, scores)
	gates := b.Add(graph.Select{}, b.Add(graph.Route{K: c.topK}, scores), scores, b.Scalar(graph.F32, 0))
	return b.Add(graph.MoE{Experts: c.experts, Activation: graph.GeluErf, Stacked: true, TopK: c.topK}, x, gates,
		b.Param("up", graph.TypeOf(d, c.experts, c.width, c.hidden)),
		b.Param("down", graph.TypeOf(d, c.experts, c.hidden, c.width)))
}

// trainingCase is a transformer of layers blocks: LayerNorm, causal attention, LayerNorm, two products with GELU.
type trainingCase struct{ layers, width, heads, batch, seq int }

func trainingWorks(small bool) []*gpuWork {
	cases := []trainingCase{{12, 768, 12, 8, 1024}, {4, 256, 8, 4, 128}}
	if small {
		cases = []trainingCase{{2, 16, 2, 1, 8}}
	}
	var list []*gpuWork
	for _, c := range cases {
		for _, p := range []fusec.Precision{fusec.F32, fusec.TF32, fusec.BF16} {
			list = append(list, c.work(p))
		}
	}
	return list
}

func (c trainingCase) work(p fusec.Precision) *gpuWork {
	mode := p.String()
	if p == fusec.BF16 {
		mode += " autocast"
	}
	tokens, width := float64(c.batch)*float64(c.seq), float64(c.width)
	return &gpuWork{
		name: fmt.Sprintf("training step %s L%dd%db%ds%d", mode, c.layers, c.width, c.batch, c.seq), unit: teraFLOPs,
		work:      72*tokens*float64(c.layers)*width*width + 6*float64(c.layers)*tokens*float64(c.seq)*width,
		precision: p, build: c.build, scale: c.scales(), check: checkLoss,
		optimizer: &optim.Optimizer{Rule: optim.AdamW{Decay: 0.01}, Rate: optim.Constant(1e-4)},
	}
}

// trainingWeights are the matrices of a block, with rows and columns in widths of the model.
var trainingWeights = []struct {
	name    string
	in, out int
}{{"qkv", 1, 3}, {"o", 1, 1}, {"f1", 1, 4}, {"f2", 4, 1}}

// scales are the standard deviations with which weights begin.
func (c trainingCase) scales() map[string]float64 {
	m := map[string]float64{}
	for i := range c.layers {
		for _, w := range trainingWeights {
			m[fmt.Sprintf("%d.%s", i, w.name)] = 1 / math.Sqrt(3*float64(w.in*c.width))
			m[fmt.Sprintf("%d.%s bias", i, w.name)] = 0.02
		}
		for _, norm := range []string{"n1", "n2"} {
			m[fmt.Sprintf("%d.%s bias", i, norm)] = 0.1
		}
	}
	return m
}

func (c trainingCase) build(b *graph.Builder) {
	rows := graph.TypeOf(graph.F32, c.batch*c.seq, c.width)
	x := b.Input("x", rows)
	for i := range c.layers {
		x = c.block(b, fmt.Sprintf("%d.", i), x)
	}
	far := b.Binary(graph.Sub, x, b.Input("target", rows))
	b.Output("loss", b.Reduce(graph.Mean, b.Unary(graph.Square, far), false, 0, 1))
}

func (c trainingCase) block(b *graph.Builder, name string, x *graph.Node) *graph.Node {
	param := func(part string, dims ...int) *graph.Node {
		return b.Param(name+part, graph.TypeOf(graph.F32, dims...))
	}
	norm := func(part string, x *graph.Node) *graph.Node {
		return b.Add(graph.LayerNorm{Eps: normEps}, x, param(part+" gain", c.width), param(part+" bias", c.width))
	}
	product := func(i int, x *graph.Node) *graph.Node {
		w := trainingWeights[i]
		return Linear(b, x, param(w.name, w.in*c.width, w.out*c.width), param(w.name+" bias", w.out*c.width))
	}
	depth := c.width / c.heads
	qkv := b.Reshape(product(0, norm("n1", x)), c.batch, c.seq, 3, c.heads, depth)
	qkv = b.Transpose(qkv, 2, 0, 3, 1, 4)
	part := func(i int) *graph.Node { return b.Reshape(b.Slice(qkv, 0, i, 1, 1), c.batch, c.heads, c.seq, depth) }
	a := b.Add(graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: true}, part(0), part(1), part(2))
	a = b.Reshape(b.Transpose(a, 0, 2, 1, 3), c.batch*c.seq, c.width)
	x = b.Binary(graph.Add, x, product(1, a))
	return b.Binary(graph.Add, x, product(3, b.Unary(graph.GeluTanh, product(2, norm("n2", x)))))
}
