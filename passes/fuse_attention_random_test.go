package passes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	program "fusec/lowering"
	"fusec/lowering/cpu"
)

// attentionWriter writes attention in one of the ways in which people do, drawn at random.
type attentionWriter struct {
	r *rand.Rand
	b *graph.Builder
	d graph.DType

	batch, kv, groups, sq, sk, depth, width int
	names                                   int
}

func (w *attentionWriter) coin() bool           { return w.r.IntN(2) == 0 }
func (w *attentionWriter) one(of ...int) int    { return of[w.r.IntN(len(of))] }
func (w *attentionWriter) heads() int           { return w.kv * w.groups }
func (w *attentionWriter) name(s string) string { w.names++; return fmt.Sprintf("%s%d", s, w.names) }

func (w *attentionWriter) in(name string, dims ...int) *graph.Node {
	return w.b.Input(w.name(name), graph.TypeOf(w.d, dims...))
}

// split is an input of h heads as [batch, h, n, m], as an input of that shape, or of another and seen through views.
func (w *attentionWriter) split(name string, h, n, m int) *graph.Node {
	switch w.r.IntN(3) {
	case 0:
		return w.in(name, w.batch, h, n, m)
	case 1:
		return w.b.Transpose(w.b.Reshape(w.in(name, w.batch*n, h*m), w.batch, n, h, m), 0, 2, 1, 3)
	}
	return w.b.Transpose(w.in(name, w.batch, h, m, n), 0, 1, 3, 2)
}

// keysOrValues gives each head of queries its keys or values.
func (w *attentionWriter) keysOrValues(name string, m int) *graph.Node {
	b := w.b
	x := w.split(name, w.kv, w.sk, m)
	if w.groups == 1 {
		return x
	}
	if w.kv == 1 && w.coin() {
		return x // by broadcasting
	}
	if w.coin() {
		x = b.Broadcast(b.Reshape(x, w.batch, w.kv, 1, w.sk, m), graph.ShapeOf(w.batch, w.kv, w.groups, w.sk, m))
		return b.Reshape(x, w.batch, w.heads(), w.sk, m)
	}
	var parts []*graph.Node
	for h := range w.kv {
		part := b.Slice(x, 1, h, 1, 1)
		for range w.groups {
			parts = append(parts, part)
		}
	}
	return b.Add(graph.Concat{Axis: 1}, parts...)
}

func (w *attentionWriter) scale(x *graph.Node) *graph.Node {
	switch w.r.IntN(4) {
	case 0:
		return w.b.BinaryScalar(graph.Div, x, 0.5+2*w.r.Float64())
	case 1:
		return w.b.BinaryScalar(graph.Mul, x, 0.5+w.r.Float64())
	}
	return x
}

// mask masks the scores x, of shape [batch, heads, sq, sk], or leaves them.
func (w *attentionWriter) mask(x *graph.Node) *graph.Node {
	b, more := w.b, w.sk-w.sq
	low := []float64{inf, -1e9}[w.r.IntN(2)]
	narrow := []int{w.one(1, w.batch), w.one(1, w.heads()), w.one(1, w.sq), w.sk}
	lengths := make([]int, w.batch)
	for i := range lengths {
		lengths[i] = w.r.IntN(w.sk + 1)
	}
	keep := [](func([]int) bool){
		at(more, func(i, j int) bool { return j <= i }),
		at(more, func(i, j int) bool { return j <= i && i-j < 3 }),
		at(more, func(i, j int) bool { return i-j < 2 && j-i < 2 }),
		padded(lengths...),
		func([]int) bool { return w.coin() },
		func([]int) bool { return true },
	}[w.r.IntN(6)]
	dims := []int{w.batch, 1, w.sq, w.sk}
	full := x.Type.Shape
	switch w.r.IntN(6) {
	case 0:
		return b.Binary(graph.Add, x, b.Broadcast(w.in("m", narrow...), full))
	case 1:
		return b.Binary(graph.Add, b.Broadcast(maskOf(b, w.d, low, keep, dims...), full), x)
	case 2:
		return b.Binary(graph.Sub, x, b.Broadcast(maskOf(b, w.d, -low, keep, dims...), full))
	case 3:
		return b.Add(graph.Select{}, b.Broadcast(boolOf(b, keep, dims...), full), x, b.Scalar(w.d, low))
	case 4:
		c := b.Input(w.name("keep"), graph.TypeOf(graph.Bool, narrow...))
		if w.coin() {
			return b.Add(graph.Select{}, b.Broadcast(c, full), x, b.Scalar(w.d, low))
		}
		return b.Add(graph.Select{}, b.Broadcast(c, full), b.Scalar(w.d, low), x)
	}
	return x
}

// write composes one spelling and returns its result [batch, heads, sq, width].
func (w *attentionWriter) write() *graph.Node {
	b := w.b
	q := w.scale(w.split("q", w.heads(), w.sq, w.depth))
	k, v := w.scale(w.keysOrValues("k", w.depth)), w.keysOrValues("v", w.width)
	flat := w.coin() && k.Type.Shape.At(1) == w.heads() && v.Type.Shape.At(1) == w.heads()
	full := []int{w.batch, w.heads(), w.sq, w.sk}
	if flat {
		merge := func(x *graph.Node) *graph.Node {
			s := x.Type.Shape
			return b.Reshape(x, s.At(0)*s.At(1), s.At(2), s.At(3))
		}
		q, k, v = merge(q), merge(k), merge(v)
		full = []int{w.batch * w.heads(), w.sq, w.sk}
	}
	var s *graph.Node
	if w.coin() {
		s = b.MatMul(q, k, false, true)
	} else {
		r := k.Type.Shape.Rank()
		perm := []int{0, 1, 2, 3}[:r]
		perm[r-2], perm[r-1] = r-1, r-2
		s = b.MatMul(q, b.Transpose(k, perm...), false, false)
	}
	wide := w.d
	if w.d == graph.F32 && w.coin() {
		wide = graph.F64
		s = b.Add(graph.Cast{To: wide}, s)
	}
	s = b.Reshape(w.scale(s), w.batch, w.heads(), w.sq, w.sk)
	if wide == w.d {
		for range w.r.IntN(3) {
			s = w.mask(s)
		}
	}
	p := softmax(b, b.Reshape(w.scale(s), full...))
	if w.r.IntN(3) == 0 {
		p = b.Add(graph.Dropout{P: 0.4}, p, b.Input("seed", graph.TypeOf(graph.I64)))
	}
	if wide != w.d {
		p = b.Add(graph.Cast{To: w.d}, p)
	}
	return b.Reshape(b.MatMul(p, v, false, false), w.batch, w.heads(), w.sq, w.width)
}

// sameOnCPU runs the compiled graph h on the CPU and compares with what g means.
func sameOnCPU(t *testing.T, g, h *graph.Graph, in map[string]*graph.Tensor) {
	t.Helper()
	want, _, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatal(err)
	}
	d := cpu.New()
	p, err := program.Lower(h, d.Name())
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i, b := range p.Buffers {
		if b.Role == program.Input || b.Role == program.Param {
			if err := e.Bind(i, in[b.Name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	for _, o := range p.Outputs {
		if err := ref.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
			t.Fatalf("output %q: %v\nof %s (%s)\n%v", o.Name, err, opsOf(g), attentionOf(h), p)
		}
	}
}

// scoresLeft reports whether g takes a softmax of what follows from a product.
func scoresLeft(g *graph.Graph) bool {
	return slices.ContainsFunc(g.Nodes, func(n *graph.Node) bool {
		_, ok := n.Op.(graph.Softmax)
		return ok && productUnder(n.Args[0])
	})
}

// TestAttentionRandom composes spellings at random. Each becomes one attention of the same values, except where a
// choice by −1e9 meets another mask and nobody knows whether a query keeps a key.
func TestAttentionRandom(t *testing.T) {
	n := uint64(1500)
	if testing.Short() {
		n = 200
	}
	refused := 0
	for seed := range n {
		r := rand.New(rand.NewPCG(seed, 11))
		b := graph.NewBuilder("random")
		w := &attentionWriter{r: r, b: b, d: []graph.DType{graph.F32, graph.F64}[r.IntN(2)]}
		w.batch, w.kv, w.groups = w.one(1, 1, 2, 3), w.one(1, 2, 3), w.one(1, 1, 2, 3)
		w.sq, w.sk, w.depth, w.width = w.one(1, 3, 5), w.one(1, 3, 5, 7), w.one(1, 3, 4), w.one(1, 2, 5)
		b.Output("y", w.write())
		g, err := b.Graph()
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		h, tr, err := Run(g, Config{Verify: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		in := graphtest.Values(r, g)
		sameNumbers(t, g, h, in)
		if seed%4 == 0 {
			sameOnCPU(t, g, h, in)
		}
		left := opsOf(stageOf(t, tr, "simplify-again").Graph)
		misses := stageOf(t, tr, "fuse-attention").Misses
		switch {
		case len(misses) == 1 && strings.Contains(misses[0].Reason, "beside another mask"):
			refused++
		case !scoresLeft(stageOf(t, tr, "raise").Graph): // a constant mask left nothing of them
		case strings.Count(left, "attention") != 1 || strings.Contains(left, "softmax") || strings.Contains(left, "concat"):
			t.Errorf("seed %d: %s became %s: %+v", seed, opsOf(g), left, misses)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if refused > int(n/10) {
		t.Errorf("%d of %d were refused", refused, n)
	}
}
