package cpu_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

const decodeHeads, decodeDepth, decodePage, decodePages = 2, 4, 3, 4

// kept writes x, of type d, to a cache; one of 8 bits has another for the scales.
func kept(b *graph.Builder, name string, d graph.DType, x *graph.Node,
	write func(name string, x *graph.Node) *graph.Node) *graph.Node {
	if d != graph.I8 {
		return write(name, b.CastTo(d, x))
	}
	q, scale := b.QuantizeRows(x)
	op := graph.Dequantize{Axis: x.Type.Shape.Rank() - 1, Block: decodeDepth}
	return b.Add(op, write(name, q), write(name+".scale", scale))
}

// cached appends a token to a cache of keys or values of type d, as rows of one buffer.
func cached(b *graph.Builder, name string, d graph.DType) *graph.Node {
	x := b.Input("new_"+name, graph.TypeOf(graph.F32, 1, decodeHeads*decodeDepth))
	at := b.Input("at_"+name, graph.TypeOf(graph.I64))
	return kept(b, name, d, b.Reshape(x, decodeHeads, 1, decodeDepth), func(name string, x *graph.Node) *graph.Node {
		cache := b.State(name, graph.Type{DType: x.Type.DType, Shape: x.Type.Shape.With(1, decodePages*decodePage)})
		y := b.Add(graph.UpdateSlice{Axis: 1}, cache, x, at)
		b.Update(cache, y)
		return y
	})
}

// pooled appends a token to a page of a pool.
func pooled(b *graph.Builder, name string, d graph.DType, page, slot *graph.Node) *graph.Node {
	x := b.Reshape(b.Input("new_"+name, graph.TypeOf(graph.F32, 1, decodeHeads*decodeDepth)), 1, decodeHeads, 1, decodeDepth)
	return kept(b, name, d, x, func(name string, x *graph.Node) *graph.Node {
		s := x.Type.Shape.With(0, decodePages+1).With(2, decodePage)
		pool := b.State(name, graph.Type{DType: x.Type.DType, Shape: s})
		old := b.Add(graph.Slice{Axis: 0, Size: 1, Step: 1}, pool, page)
		y := b.Add(graph.UpdateSlice{Axis: 0}, pool, b.Add(graph.UpdateSlice{Axis: 2}, old, x, slot), page)
		b.Update(pool, y)
		return y
	})
}

// TestDecode feeds a sequence to a cache token by token, in one buffer and in pages, and compares each step with the
// attention of the whole sequence so far. Caches of 16 and of 8 bits are read as they are stored.
func TestDecode(t *testing.T) {
	for _, d := range []graph.DType{graph.F32, graph.BF16, graph.F16, graph.I8} {
		t.Run(d.String(), func(t *testing.T) { checkDecode(t, d) })
	}
}

func checkDecode(t *testing.T, d graph.DType) {
	const n = decodePages * decodePage
	r := rand.New(rand.NewPCG(1, 2))
	tokens := map[string]*graph.Tensor{}
	for _, name := range []string{"q", "k", "v"} {
		tokens[name] = graphtest.Tensor(r, graph.TypeOf(graph.F32, n, decodeHeads*decodeDepth))
		for i := range tokens[name].Type.Shape.Elems() {
			if d.Is16() {
				tokens[name].SetFloat(i, d.Round(tokens[name].Float(i)))
			}
		}
	}
	exact := tokens // what caches of 8 bits stand for
	if d == graph.I8 {
		exact = map[string]*graph.Tensor{"q": tokens["q"], "k": rounded8(tokens["k"]), "v": rounded8(tokens["v"])}
	}
	order := r.Perm(decodePages + 1)
	op := graph.Attention{Scale: 0.5, Causal: true, HasLengths: true, Tail: true}
	query := func(b *graph.Builder) *graph.Node {
		q := b.Input("q", graph.TypeOf(graph.F32, 1, decodeHeads*decodeDepth))
		if d.Is16() {
			q = b.CastTo(d, q)
		}
		return b.Reshape(q, decodeHeads, 1, decodeDepth)
	}
	plain := built(t, func(b *graph.Builder) {
		y := b.Add(op, query(b), cached(b, "k", d), cached(b, "v", d), b.Input("length", graph.TypeOf(graph.I64)))
		b.Output("y", b.Reshape(y, 1, decodeHeads*decodeDepth))
	})
	paged := built(t, func(b *graph.Builder) {
		op := op
		op.Page = decodePage
		page, slot := b.Input("page", graph.TypeOf(graph.I64)), b.Input("slot", graph.TypeOf(graph.I64))
		table := b.Input("table", graph.TypeOf(graph.I64, decodePages))
		y := b.Add(op, query(b), pooled(b, "k", d, page, slot), pooled(b, "v", d, page, slot), b.Input("length", graph.TypeOf(graph.I64)),
			table)
		b.Output("y", b.Reshape(y, 1, decodeHeads*decodeDepth))
	})
	for name, g := range map[string]*graph.Graph{"one buffer": plain, "pages": paged} {
		t.Run(name, func(t *testing.T) {
			in := values(g)
			e, p := compiled(t, g, in, cpu.Workers(2))
			defer e.Close()
			inPlace := 0
			for _, l := range p.Launches {
				if p.Buffers[l.Results[0].Buffer].Role == lowering.State {
					inPlace++
				}
				if l.Op.OpName() == "copy" {
					t.Errorf("a copy in\n%v", p)
				}
				if l.Kind() == "attention" {
					for _, i := range []int{1, 2} {
						if b := p.Buffers[l.Args[i].Buffer]; b.Role != lowering.State || b.Type.DType != d {
							t.Errorf("the attention reads %v of role %v, and no cache of %v\n%v", b.Type, b.Role, d, p)
						}
					}
				}
			}
			want := 2
			if d == graph.I8 {
				want = 4 // with the scales
			}
			if inPlace != want {
				t.Errorf("%d updates in place, want %d\n%v", inPlace, want, p)
			}
			set := func(name string, i, v int) {
				if x := in[name]; x != nil {
					x.SetFloat(i, float64(v))
				}
			}
			for i := range decodePages {
				set("table", i, -5) // until it counts
			}
			for i := range n {
				set("table", i/decodePage, order[i/decodePage])
				set("page", 0, order[i/decodePage])
				set("slot", 0, i%decodePage)
				set("at_k", 0, i)
				set("at_v", 0, i)
				set("length", 0, i+1)
				for j := range decodeHeads * decodeDepth {
					for name, to := range map[string]string{"q": "q", "k": "new_k", "v": "new_v"} {
						in[to].SetFloat(j, tokens[name].Float(i*decodeHeads*decodeDepth+j))
					}
				}
				step(t, g, e, p, in)
				whole := wholeAttention(t, op, exact, i+1)
				y := e.Output(p.Outputs[0].Buffer)
				for j := range decodeHeads * decodeDepth {
					if d := y.Float(j) - whole[j]; !(d < 1e-5 && d > -1e-5) {
						t.Fatalf("token %d, element %d: %v, want %v", i, j, y.Float(j), whole[j])
					}
				}
			}
		})
	}
}

// rounded8 is what rows of decodeDepth elements stand for when they are stored in 8 bits with a scale each.
func rounded8(x *graph.Tensor) *graph.Tensor {
	y := graph.NewTensor(x.Type)
	for i := range x.Type.Shape.Elems() {
		most := float32(0)
		for j := range decodeDepth {
			most = max(most, float32(math.Abs(x.Float(i/decodeDepth*decodeDepth+j))))
		}
		scale := most / 127
		y.SetFloat(i, graph.I8.Quantised(float64(float32(x.Float(i))/scale), 0)*float64(scale))
	}
	return y
}

// wholeAttention is the last row of the attention of n tokens, by the reference.
func wholeAttention(t *testing.T, op graph.Attention, tokens map[string]*graph.Tensor, n int) []float64 {
	t.Helper()
	op.HasLengths, op.Tail = false, false
	var args []ref.Value
	for _, name := range []string{"q", "k", "v"} {
		x := ref.FromTensor(graph.NewTensor(graph.TypeOf(graph.F32, decodeHeads, n, decodeDepth)))
		for i := range x.F {
			h, row, c := i/(n*decodeDepth), i/decodeDepth%n, i%decodeDepth
			x.F[i] = tokens[name].Float((row*decodeHeads+h)*decodeDepth + c)
		}
		args = append(args, x)
	}
	out, err := ref.Op(op, args)
	if err != nil {
		t.Fatal(err)
	}
	var last []float64
	for h := range decodeHeads {
		last = append(last, out[0].F[(h*n+n-1)*decodeDepth:][:decodeDepth]...)
	}
	return last
}
