package cuda_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/passes/passtest"
)

// chainCase is a decoder layer without its attention, of some rows, with weights of i4.
type chainCase struct {
	width, hidden, kv int
	group             int // rows of a column that share a scale; 0: all
	sms               int // multiprocessors
	to                graph.DType
	norm              bool
	rows              int
}

func (c chainCase) graph(t testing.TB) *graph.Graph {
	return built(t, func(b *graph.Builder) {
		product := func(x *graph.Node, name string, n int) *graph.Node {
			k := x.Type.Shape.At(1)
			op, scales := graph.Dequantize{Axis: 1}, []int{n}
			if c.group > 0 {
				op, scales = graph.Dequantize{Block: c.group}, []int{(k + c.group - 1) / c.group, n}
			}
			w := b.Add(op, b.Param(name, graph.TypeOf(graph.I4, k, n)), b.Param(name+".scale", graph.TypeOf(graph.F32, scales...)))
			if !c.norm { // so that the reference rounds, too
				x = b.CastTo(graph.F32, b.CastTo(c.to, x))
			}
			return b.MatMul(x, w, false, false)
		}
		norm := func(x *graph.Node, name string) *graph.Node {
			if !c.norm {
				return x
			}
			return b.Add(graph.RMSNorm{Eps: 1e-5}, x, b.Param(name, graph.TypeOf(graph.F32, c.width)))
		}
		x := b.Input("x", graph.TypeOf(graph.F32, max(c.rows, 1), c.width))
		n := norm(x, "gain1")
		b.Output("keys", product(n, "k", c.kv))
		b.Output("values", product(n, "v", c.kv))
		r := b.Binary(graph.Add, x, product(product(n, "q", c.width), "out", c.width))
		n = norm(r, "gain2")
		h := b.Binary(graph.Mul, b.Unary(graph.Silu, product(n, "gate", c.hidden)), product(n, "up", c.hidden))
		s := b.CastTo(graph.F32, b.Input("s", graph.TypeOf(c.to, max(c.rows, 1), c.width)))
		b.Output("y", b.Binary(graph.Add, s, b.Binary(graph.Add, r, product(h, "down", c.width))))
	})
}

func (c chainCase) options() []cuda.Option {
	chip := kernels.H200
	chip.SMs = c.sms
	precision := kernels.BF16
	if c.to == graph.F16 {
		precision = kernels.F16
	}
	return []cuda.Option{cuda.For(chip), cuda.Precision(precision)}
}

// TestChain compares products of one row, of which some use what others make, in one launch. With few multiprocessors a block has
// several panels, and a product begins when the first ones of its row are there.
func TestChain(t *testing.T) {
	for i, c := range []chainCase{
		{width: 512, hidden: 1024, kv: 512, group: 128, sms: 132, to: graph.BF16},
		{width: 520, hidden: 5000, kv: 612, sms: 5, to: graph.F16},
		{width: 1036, hidden: 2092, kv: 160, group: 256, sms: 3, to: graph.BF16},
		{width: 520, hidden: 1090, kv: 612, sms: 7, to: graph.BF16, norm: true},
		{width: 2080, hidden: 4192, kv: 128, group: 4096, sms: 4, to: graph.BF16, norm: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			g := c.graph(t)
			in := graphtest.Values(rand.New(rand.NewPCG(3, uint64(i))), g)
			e, p := compiledOf(t, g, in, true, c.options()...)
			if joined := joinedOf(c, p); !slices.Contains(joined, 6) {
				t.Errorf("launches joined to each: %v", joined)
			}
			runsAsReference(t, e, p, g, in, 2, !c.norm)
		})
	}
}

// runsAsReference runs a program several times, and holds its outputs within the bound of the reference, or near it.
func runsAsReference(t *testing.T, e lowering.Executable, p *lowering.Program, g *graph.Graph,
	in map[string]*graph.Tensor, runs int, bound bool) {
	t.Helper()
	want, _, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatal(err)
	}
	for range runs {
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
		for _, o := range p.Outputs {
			got := e.Output(o.Buffer)
			if bound {
				if err := ref.Check(got, want[o.Name]); err != nil {
					t.Errorf("%s: %v", o.Name, err)
				}
			} else if d := distance(got, want[o.Name].F); d > 0.02 {
				t.Errorf("%s is %g from the reference", o.Name, d)
			}
		}
	}
}

// joinedOf is how many launches each kernel of a program computes besides its own.
func joinedOf(c chainCase, p *lowering.Program) (list []int) {
	for _, k := range cuda.New(c.options()...).Kernels(p) {
		list = append(list, k.Joined)
	}
	return list
}

// distance is that of two values, relative to the second.
func distance(x *graph.Tensor, y []float64) float64 {
	var d, n float64
	for i, y := range y {
		d += (x.Float(i) - y) * (x.Float(i) - y)
		n += y * y
	}
	return math.Sqrt(d / n)
}

// TestChainExtremes: rows with zeros, infinities, NaN, and elements that are much smaller than others.
func TestChainExtremes(t *testing.T) {
	c := chainCase{width: 512, hidden: 1024, kv: 512, group: 128, sms: 9, to: graph.BF16}
	g := c.graph(t)
	in := graphtest.Values(rand.New(rand.NewPCG(4, 4)), g)
	e, p := compiledOf(t, g, in, true, c.options()...)
	x := slices.IndexFunc(p.Buffers, func(b lowering.Buffer) bool { return b.Role == lowering.Input })
	for name, of := range map[string]func(i int) float64{
		"zeros":          func(int) float64 { return 0 },
		"large":          func(i int) float64 { return 1e18 * float64(i%7-3) },
		"small":          func(i int) float64 { return 1e-18 * float64(i%7-3) },
		"unlike":         func(i int) float64 { return math.Ldexp(float64(i%5-2), -i%16) },
		"unlike in rows": func(i int) float64 { return math.Ldexp(float64(i%5-2), i/128*20-40) },
		"an infinity":    func(i int) float64 { return map[bool]float64{true: math.Inf(1), false: 1}[i == 200] },
		"no number":      func(i int) float64 { return map[bool]float64{true: math.NaN(), false: 1}[i == 511] },
	} {
		row := graph.NewTensor(in["x"].Type)
		for i := range c.width {
			row.SetFloat(i, of(i))
		}
		in["x"] = row
		want, _, err := ref.EvalBound(g, in)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(e.Bind(x, row.Clone()), e.Run()); err != nil {
			t.Fatal(err)
		}
		for _, o := range p.Outputs {
			got := e.Output(o.Buffer)
			switch finite := of(200) + of(511); {
			case math.IsNaN(finite) || math.IsInf(finite, 0):
				for i := range got.Type.Shape.Elems() {
					if !math.IsNaN(got.Float(i)) {
						t.Fatalf("%s: element %d of %s is %g", name, i, o.Name, got.Float(i))
					}
				}
			default:
				if err := ref.Check(got, want[o.Name]); err != nil {
					t.Errorf("%s: %s: %v", name, o.Name, err)
				}
			}
		}
	}
}

// TestChainsBeside runs two programs with chains that fill the GPU at the same time.
func TestChainsBeside(t *testing.T) {
	c := chainCase{width: 512, hidden: 128 * 16 * effort, kv: 512, group: 128, sms: 33 * effort, to: graph.BF16}
	g := c.graph(t)
	in := graphtest.Values(rand.New(rand.NewPCG(5, 5)), g)
	var list [2]lowering.Executable
	var p *lowering.Program
	for i := range list {
		list[i], p = compiledOf(t, g, in, true, c.options()...)
	}
	want, _, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	for _, e := range list {
		go func() {
			var err error
			for range 2 * effort * effort {
				err = errors.Join(err, e.Run())
			}
			errs <- err
		}()
	}
	for range list {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range list {
		for _, o := range p.Outputs {
			if err := ref.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
				t.Errorf("%s: %v", o.Name, err)
			}
		}
	}
}

// TestChainModel runs two decoder layers with attention to caches: each has a chain, up to the next attention.
func TestChainModel(t *testing.T) {
	const width, hidden, heads, kvHeads, head, context = 512, 1024, 4, 2, 128, 24
	g := built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 1, width))
		position, lengths := b.Input("position", graph.TypeOf(graph.I64)), b.Input("lengths", graph.TypeOf(graph.I64, 1))
		for i := range 2 {
			name := func(part string) string { return fmt.Sprintf("layer%d.%s", i, part) }
			product := func(x *graph.Node, part string, n int) *graph.Node {
				k := x.Type.Shape.At(1)
				w := b.Add(graph.Dequantize{Block: 128}, b.Param(name(part), graph.TypeOf(graph.I4, k, n)),
					b.Param(name(part+".scale"), graph.TypeOf(graph.F32, k/128, n)))
				return b.MatMul(x, w, false, false)
			}
			norm := func(x *graph.Node, part string) *graph.Node {
				return b.Add(graph.RMSNorm{Eps: 1e-5}, x, b.Param(name(part), graph.TypeOf(graph.F32, width)))
			}
			rotated := func(x *graph.Node) *graph.Node { return b.Add(graph.RoPE{Base: 10000}, x, position) }
			cached := func(part string, x *graph.Node) *graph.Node {
				return b.Cache(name(part), 2, context, b.CastTo(graph.BF16, x), position)
			}
			n := norm(x, "norm1")
			of := func(part string, heads int) *graph.Node {
				return b.Reshape(product(n, part, heads*head), 1, heads, 1, head)
			}
			q, k, v := rotated(of("q", heads)), rotated(of("k", kvHeads)), of("v", kvHeads)
			y := b.Add(graph.Attention{Scale: 1 / math.Sqrt(head), HasLengths: true}, b.CastTo(graph.BF16, q), cached("keys", k),
				cached("values", v), lengths)
			x = b.Binary(graph.Add, x, product(b.CastTo(graph.F32, b.Reshape(y, 1, heads*head)), "out", width))
			n = norm(x, "norm2")
			h := b.Binary(graph.Mul, b.Unary(graph.Silu, product(n, "gate", hidden)), product(n, "up", hidden))
			x = b.Binary(graph.Add, x, product(h, "down", width))
		}
		b.Output("y", x)
	})
	c := chainCase{sms: 9, to: graph.BF16}
	in := graphtest.Values(rand.New(rand.NewPCG(6, 6)), g)
	in["position"].SetInt(0, 16)
	in["lengths"].SetInt(0, 17)
	e, p := compiledOf(t, g, in, true, c.options()...)
	if joined := joinedOf(c, p); !slices.Contains(joined, 4) || !slices.Contains(joined, 3) {
		t.Errorf("launches joined to each: %v", joined)
	}
	runsAsReference(t, e, p, g, in, 3, false)
}

// TestChained tells which products are a chain.
func TestChained(t *testing.T) {
	whole := chainCase{width: 512, hidden: 1024, kv: 512, group: 128, sms: 132, to: graph.BF16, norm: true}
	rows, groups := whole, whole
	rows.rows, groups.group = 2, 64
	for _, c := range []struct {
		name string
		chainCase
		options []cuda.Option
		joined  bool
	}{
		{"a layer", whole, nil, true},
		{"two rows", rows, nil, false},
		{"groups of 64", groups, nil, false},
		{"sm_80", whole, []cuda.Option{cuda.Arch("sm_80")}, false},
	} {
		d := cuda.New(append(c.chainCase.options(), c.options...)...)
		joined := 0
		p := passtest.Lowered(t, c.graph(t), d, true)
		for _, k := range d.Kernels(p) {
			joined += k.Joined
		}
		d.Describe(&trace.Trace{}, p)
		for i, l := range p.Trace().Launches {
			if want := fmt.Sprintf("in the kernel of #%d", len(p.Launches)-6); c.joined && i > len(p.Launches)-7 && l.Words() != want {
				t.Errorf("%s: launch %d runs %q, want %q", c.name, i, l.Words(), want)
			}
		}
		if (joined == 6) != c.joined {
			t.Errorf("%s: %d launches are joined to others", c.name, joined)
		}
	}
}
