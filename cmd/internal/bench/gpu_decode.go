package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"fusec"
	"fusec/graph"
)

// A decodeCase is a step of decoding: one token for each sequence of a batch, whose keys and values are in caches.
type decodeCase struct {
	batch, context       int // sequences, and the tokens of each after the step
	heads, kvHeads, head int // heads of queries, of keys and values, and the size of each
	width, hidden        int
	layers               int         // 0 for attention alone
	vocabulary           int         // of a whole model; 0 for attention or layers alone
	distinct             int         // how many layers have weights of their own, if not all
	page                 int         // tokens of a page, if the caches are in pages; for attention alone
	stored               graph.DType // of the caches: BF16, or I8 with a scale for each token and head, for attention alone
}

// decodeWorks have the sizes of Llama 3 8B. The rate is the bytes of the caches and the weights over the time.
func decodeWorks(small bool) []*gpuWork {
	c := decodeCase{heads: 32, kvHeads: 8, head: 128, width: 4096, hidden: 14336, stored: graph.BF16}
	contexts, batches, layers := []int{1024, 16384}, []int{1, 32}, 2
	if small {
		c = decodeCase{heads: 4, kvHeads: 2, head: 16, width: 32, hidden: 48, stored: graph.BF16}
		contexts, batches = []int{150}, []int{3}
	}
	var list []*gpuWork
	for _, c.layers = range []int{0, layers} {
		for _, c.batch = range batches {
			for _, c.context = range contexts {
				list = append(list, c.work())
				if c.layers == 0 {
					bytes := c
					bytes.stored = graph.I8
					list = append(list, bytes.work())
				}
			}
		}
		if c.layers == 0 {
			paged := c
			paged.context, paged.page = contexts[len(contexts)-1]/16*16, 16
			list = append(list, paged.work())
		}
	}
	return list
}

// modelWorks are steps of a whole model of the sizes of Llama 3 8B: the embedding of tokens, its layers, the logits, and the pick
// of the next tokens, which the next step reads. The rate is the bytes of the caches and the weights over the time.
func modelWorks(small bool) []*gpuWork {
	c := decodeCase{heads: 32, kvHeads: 8, head: 128, width: 4096, hidden: 14336, stored: graph.BF16, layers: 32, vocabulary: 128256}
	contexts, batches := []int{1024, 16384}, []int{1, 32}
	if small {
		c = decodeCase{heads: 4, kvHeads: 2, head: 16, width: 32, hidden: 48, stored: graph.BF16, layers: 6, vocabulary: 150}
		contexts, batches = []int{40}, []int{3}
	}
	var list []*gpuWork
	for _, c.batch = range batches {
		for _, c.context = range contexts {
			list = append(list, c.model())
		}
	}
	return list
}

// modelDistinct is how many layers of a model differ: those that come later have the weights and caches of one of these, each in
// memory of its own. So less has to be drawn.
const modelDistinct = 4

// topK is among how many tokens a model picks.
const topK = 20

// model is a step of a whole model.
func (c decodeCase) model() *gpuWork {
	w := c.work()
	w.name = fmt.Sprintf("model bf16 b%d c%d", c.batch, c.context)
	w.work += 2 * float64(c.vocabulary) * float64(c.width)
	w.scale["head"] = 1 / math.Sqrt(float64(c.width))
	w.fill["token"] = func(t *graph.Tensor) {
		for i := range c.batch {
			t.SetInt(i, int64((1+31*i)%c.vocabulary))
		}
	}
	w.fill["temperature"] = func(t *graph.Tensor) { t.SetFloat(0, 0.8) }
	w.fill["top_k"] = func(t *graph.Tensor) { fillWith(t, topK) }
	w.fill["top_p"] = func(t *graph.Tensor) { t.SetFloat(0, 0.95) }
	w.fill["seed"] = func(t *graph.Tensor) { fillWith(t, 7) }
	w.same = func(name string) string {
		layer, part, found := strings.Cut(name, ".")
		i, err := strconv.Atoi(layer)
		if !found || err != nil {
			return name
		}
		return layerName(i%modelDistinct, part)
	}
	w.build = func(b *graph.Builder) {
		logits, token, position := c.buildLogits(b)
		sampled := []*graph.Node{logits, b.Input("temperature", graph.TypeOf(graph.F32)), b.Input("top_k", graph.TypeOf(graph.I64)),
			b.Input("top_p", graph.TypeOf(graph.F32)), b.Input("seed", graph.TypeOf(graph.I64)), position}
		picked := b.Add(graph.Sample{}, sampled...)
		b.Output("picked", picked)
		b.Update(token, picked)
	}
	w.check = c.checkPicks
	return w
}

// buildLogits is a model up to the logits of the tokens to come. It gives the state of the tokens, and their position, too.
func (c decodeCase) buildLogits(b *graph.Builder) (logits, token, position *graph.Node) {
	matrix := func(name string) *graph.Node {
		return b.CastTo(graph.F32, b.Param(name, graph.TypeOf(graph.BF16, c.vocabulary, c.width)))
	}
	position, token = b.Input("position", graph.TypeOf(graph.I64)), b.State("token", graph.TypeOf(graph.I64, c.batch))
	x := c.layersOf(b, b.Add(graph.Gather{}, matrix("embedding"), token), position)
	n := b.Add(graph.RMSNorm{Eps: rmsEps}, x, b.Param("norm", graph.TypeOf(graph.F32, c.width)))
	return b.MatMul(n, matrix("head"), false, true), token, position
}

// checkPicks compares the first sequence's token with its logits on the CPU: it is one of the likeliest, up to their error.
func (c decodeCase) checkPicks(v *gpuValues) error {
	c.batch, c.distinct = 1, modelDistinct
	b := graph.NewBuilder("first sequence")
	logits, _, _ := c.buildLogits(b)
	b.Output("logits", logits)
	g, err := b.Graph()
	if err != nil {
		return err
	}
	out, err := v.onCPU(g)
	if err != nil {
		return err
	}
	x := floats(out["logits"], 0, c.vocabulary)
	order := slices.Sorted(slices.Values(x))
	picked := v.out["picked"].Int(0)
	if least := order[len(order)-topK] - modelError*rms(x); picked < 0 || int(picked) >= len(x) || !(x[picked] >= least) {
		return fmt.Errorf("the first sequence's token is %d, which is not one of the %d likeliest on the CPU", picked, topK)
	}
	return nil
}

// modelError is how far a logit of a whole model may be off, as a part of the root of their mean square.
const modelError = 0.3

// weights are the matrices of a layer, [rows, cols].
func (c decodeCase) weights() []decodeWeight {
	return []decodeWeight{{"q", c.heads * c.head, c.width}, {"k", c.kvHeads * c.head, c.width}, {"v", c.kvHeads * c.head, c.width},
		{"o", c.width, c.heads * c.head}, {"gate", c.hidden, c.width}, {"up", c.hidden, c.width}, {"down", c.width, c.hidden}}
}

type decodeWeight struct {
	name       string
	rows, cols int
}

// cache is the type of a layer's keys, and of its values.
func (c decodeCase) cache() graph.Type {
	if c.page > 0 {
		return graph.TypeOf(c.stored, c.batch*c.context/c.page, c.page, c.kvHeads, c.head)
	}
	return graph.TypeOf(c.stored, c.batch, c.kvHeads, c.context, c.head)
}

// scales is the type of the scales of a layer's keys, and of its values.
func (c decodeCase) scales() graph.Type {
	return graph.TypeOf(graph.F32, c.batch, c.kvHeads, c.context, 1)
}

// pageOf is the number of a page of a sequence in the pool: the pages of all are mixed.
func (c decodeCase) pageOf(sequence, page int) int { return page*c.batch + sequence }

// row is where the key or value of a token begins in a cache.
func (c decodeCase) row(sequence, head, token int) int {
	if c.page > 0 {
		return ((c.pageOf(sequence, token/c.page)*c.page+token%c.page)*c.kvHeads + head) * c.head
	}
	return ((sequence*c.kvHeads+head)*c.context + token) * c.head
}

func (c decodeCase) op() graph.Attention {
	return graph.Attention{Scale: 1 / math.Sqrt(float64(c.head)), Causal: true, HasLengths: true, Tail: true, Page: c.page,
		HasScales: c.stored == graph.I8}
}

func (c decodeCase) work() *gpuWork {
	w := &gpuWork{unit: gigabytes, precision: fusec.BF16, scale: map[string]float64{}}
	w.fill = map[string]func(*graph.Tensor){
		"lengths":  func(t *graph.Tensor) { fillWith(t, c.context) },
		"position": func(t *graph.Tensor) { fillWith(t, c.context-1) },
	}
	caches := 2 * float64(c.cache().Bytes())
	if c.layers == 0 {
		w.name, w.work = fmt.Sprintf("decode attention %v b%d c%d", c.stored, c.batch, c.context), caches
		if c.op().HasScales {
			const spread = 40 // standard deviation of what is stored
			w.scale["k"], w.scale["v"], w.scale["k.scale"], w.scale["v.scale"] = spread, spread, 1.0/spread, 1.0/spread
			w.work += 2 * float64(c.scales().Bytes())
		}
		w.build, w.check = c.buildAttention, c.checkAttention
		if c.page > 0 {
			w.name += " paged"
			w.fill["table"] = func(t *graph.Tensor) {
				for i := range t.Type.Shape.Elems() {
					pages := c.context / c.page
					t.SetFloat(i, float64(c.pageOf(i/pages, i%pages)))
				}
			}
		}
		return w
	}
	w.name = fmt.Sprintf("decode %d layers bf16 b%d c%d", c.layers, c.batch, c.context)
	w.work = caches * float64(c.layers)
	for i := range c.layers {
		for _, m := range c.weights() {
			w.scale[layerName(i, m.name)] = 1 / math.Sqrt(float64(m.cols))
			w.work += 2 * float64(m.rows) * float64(m.cols)
		}
	}
	w.build, w.check = c.buildLayers, checkDecoder
	return w
}

// layerName is the name of a part of a layer.
func layerName(layer int, part string) string { return fmt.Sprintf("%d.%s", layer, part) }

// fillWith sets all elements.
func fillWith(t *graph.Tensor, x int) {
	for i := range t.Type.Shape.Elems() {
		t.SetFloat(i, float64(x))
	}
}

func (c decodeCase) lengths(b *graph.Builder) *graph.Node {
	return b.Input("lengths", graph.TypeOf(graph.I64, c.batch))
}

// buildAttention is the attention of one layer. The caches do not change, so that they are parameters.
func (c decodeCase) buildAttention(b *graph.Builder) {
	q := b.Input("q", graph.TypeOf(graph.BF16, c.batch, c.heads, 1, c.head))
	args := []*graph.Node{q, b.Param("k", c.cache()), b.Param("v", c.cache()), c.lengths(b)}
	if c.page > 0 { // in memory the features of all heads of a token are side by side
		args[1], args[2] = b.Transpose(args[1], 0, 2, 1, 3), b.Transpose(args[2], 0, 2, 1, 3)
		args = append(args, b.Input("table", graph.TypeOf(graph.I64, c.batch, c.context/c.page)))
	}
	if c.op().HasScales {
		args = append(args, b.Param("k.scale", c.scales()), b.Param("v.scale", c.scales()))
	}
	b.Output("out", b.CastTo(graph.BF16, b.Add(c.op(), args...)))
}

// buildLayers are layers of a decoder, with rotary positions and gates of SiLU.
func (c decodeCase) buildLayers(b *graph.Builder) {
	position := b.Input("position", graph.TypeOf(graph.I64))
	b.Output("y", c.layersOf(b, b.Input("x", graph.TypeOf(graph.F32, c.batch, c.width)), position))
}

// layersOf are the layers on x, one token of each sequence.
func (c decodeCase) layersOf(b *graph.Builder, x, position *graph.Node) *graph.Node {
	lengths := c.lengths(b)
	weights := map[string]*graph.Node{}
	for i := range c.layers {
		weight := func(name string, d graph.DType, dims ...int) *graph.Node {
			of := i
			if c.distinct > 0 {
				of %= c.distinct
			}
			name = layerName(of, name)
			if weights[name] == nil {
				weights[name] = b.Param(name, graph.TypeOf(d, dims...))
			}
			return weights[name]
		}
		matrix := map[string]*graph.Node{}
		for _, m := range c.weights() {
			matrix[m.name] = weight(m.name, graph.BF16, m.rows, m.cols)
		}
		product := func(x *graph.Node, name string) *graph.Node {
			return b.MatMul(x, b.CastTo(graph.F32, matrix[name]), false, true)
		}
		norm := func(x *graph.Node, name string) *graph.Node {
			return b.Add(graph.RMSNorm{Eps: rmsEps}, x, weight(name, graph.F32, c.width))
		}
		rotated := func(x *graph.Node) *graph.Node { return b.Add(graph.RoPE{Base: ropeBase}, x, position) }
		cached := func(name string, x *graph.Node) *graph.Node {
			return b.Cache(layerName(i, name), 2, c.context, b.CastTo(graph.BF16, x), position)
		}
		n := norm(x, "norm1")
		heads := func(name string, heads int) *graph.Node {
			return b.Reshape(product(n, name), c.batch, heads, 1, c.head)
		}
		q, k, v := rotated(heads("q", c.heads)), rotated(heads("k", c.kvHeads)), heads("v", c.kvHeads)
		y := b.Add(c.op(), b.CastTo(graph.BF16, q), cached("keys", k), cached("values", v), lengths)
		x = b.Binary(graph.Add, x, product(b.CastTo(graph.F32, b.Reshape(y, c.batch, c.heads*c.head)), "o"))
		n = norm(x, "norm2")
		h := b.Binary(graph.Mul, b.Unary(graph.Silu, product(n, "gate")), product(n, "up"))
		x = b.Binary(graph.Add, x, product(h, "down"))
	}
	return x
}

// ropeBase is that of Llama 3.
const ropeBase = 500000

// attend computes the attention of a head's query to the keys and values of a sequence in float64.
func (c decodeCase) attend(q []float64, in map[string]*graph.Tensor, sequence, head int) sums {
	head /= c.heads / c.kvHeads
	scaled := func(name string, token int) float64 {
		if !c.op().HasScales {
			return 1
		}
		return in[name+".scale"].Float((sequence*c.kvHeads+head)*c.context + token)
	}
	k, v := in["k"], in["v"]
	p := make([]float64, c.context)
	top := math.Inf(-1)
	for j := range p {
		for i, u := range q {
			p[j] += u * k.Float(c.row(sequence, head, j)+i)
		}
		p[j] *= c.op().Scale * scaled("k", j)
		top = max(top, p[j])
	}
	sum := 0.0
	for j := range p {
		p[j] = math.Exp(p[j] - top)
		sum += p[j]
	}
	y := make(sums, c.head)
	for j := range p {
		w := p[j] / sum * scaled("v", j)
		for i := range y {
			y[i].add(w * v.Float(c.row(sequence, head, j)+i))
		}
	}
	return y
}

// checkAttention compares some heads.
func (c decodeCase) checkAttention(v *gpuValues) error {
	return each(samples(c.batch*c.heads), func(row int) error {
		q := floats(v.in["q"], row*c.head, c.head)
		y := c.attend(q, v.in, row/c.heads, row%c.heads)
		return y.compare("out", v, row, halfError(graph.BF16))
	})
}

// floats are n elements of a tensor.
func floats(t *graph.Tensor, first, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = t.Float(first + i)
	}
	return x
}
