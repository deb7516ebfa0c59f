package cuda_test

import (
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
)

// cached is what a decoder does to a product's queries, keys and values of some tokens: queries and keys are rotated, all are cast,
// and keys and values overwrite rows of caches of a type.
func cached(t *testing.T, from, to graph.DType, batch, tokens, heads, kv, d, capacity int, rope graph.RoPE, divisors bool) (
	op graph.Fusion, types []graph.Type) {
	op, types, err := cases.Bodied(graph.AnchorMoves, func(b *graph.Builder, in cases.Inputs) {
		x, at := in(from, batch, tokens, (heads+2*kv)*d), in(graph.I64)
		keys, values := in(to, batch, kv, capacity, d), in(to, batch, kv, capacity, d)
		angles := []*graph.Node{at}
		if divisors {
			angles = append(angles, in(graph.F64, d/2))
		}
		part := func(first, n int) *graph.Node {
			p := b.Reshape(b.Slice(x, 2, first*d, n*d, 1), batch, tokens, n, d)
			return b.Transpose(p, 0, 2, 1, 3)
		}
		cast := func(x *graph.Node) *graph.Node {
			if from == to {
				return x
			}
			return b.CastTo(to, x)
		}
		turned := func(x *graph.Node) *graph.Node { return b.Add(rope, append([]*graph.Node{x}, angles...)...) }
		b.Output("q", cast(turned(part(0, heads))))
		b.Output("k", b.Add(graph.UpdateSlice{Axis: 2}, keys, cast(turned(part(heads, kv))), at))
		b.Output("v", b.Add(graph.UpdateSlice{Axis: 2}, values, cast(part(heads+kv, kv)), at))
	})
	if err != nil {
		t.Fatal(err)
	}
	return op, types
}

// cachedCases are some of odd sizes, with positions in and beyond the caches.
func cachedCases(t *testing.T, l *list) (checks []cudatest.Check) {
	type shape struct {
		from, to                               graph.DType
		batch, tokens, heads, kv, d, capacity  int
		at                                     float64
		interleaved, inverse, divisors, beyond bool
	}
	for _, s := range []shape{
		{from: graph.F32, to: graph.BF16, batch: 1, tokens: 1, heads: 4, kv: 2, d: 128, capacity: 7, at: 6},
		{from: graph.F32, to: graph.F16, batch: 3, tokens: 2, heads: 5, kv: 1, d: 6, capacity: 9, at: 3, interleaved: true},
		{from: graph.F32, to: graph.F32, batch: 2, tokens: 3, heads: 3, kv: 3, d: 20, capacity: 5, inverse: true, divisors: true},
		{from: graph.F64, to: graph.F32, batch: 2, tokens: 1, heads: 2, kv: 1, d: 24, capacity: 4, at: 1},
		{from: graph.F64, to: graph.BF16, batch: 1, tokens: 5, heads: 1, kv: 1, d: 14, capacity: 5},
		{from: graph.F32, to: graph.BF16, batch: 2, tokens: 2, heads: 2, kv: 2, d: 8, capacity: 6, at: 5, beyond: true},
	} {
		rope := graph.RoPE{Base: 500, Interleaved: s.interleaved, Inverse: s.inverse}
		op, types := cached(t, s.from, s.to, s.batch, s.tokens, s.heads, s.kv, s.d, s.capacity, rope, s.divisors)
		c := cudatest.Check{Name: "moves of " + s.from.String() + " to " + s.to.String(), Op: op}
		for i, u := range types {
			x := draw(l.r, u)
			if i == 1 {
				x.SetFloat(0, s.at)
			}
			if u.DType == graph.F64 && u.Shape.Rank() == 1 {
				for j := range u.Shape.Elems() {
					x.SetFloat(j, 1+float64(j))
				}
			}
			c.Args = append(c.Args, x)
		}
		if s.beyond {
			c.Status = kernels.StatusStart
		}
		checks = append(checks, c)
	}
	return checks
}

// TestMovesJoined compares launches of several moves with the reference, whose results lie apart from the caches, and operands in
// several layouts.
func TestMovesJoined(t *testing.T) {
	l := newList(90)
	checks := cachedCases(t, l)
	for _, c := range checks[:len(checks)-1] {
		c.ArgLayouts = make([]graph.Layout, len(c.Args))
		for i, a := range c.Args {
			c.ArgLayouts[i] = cudatest.Layout(l.r, a.Type.Shape, false)
		}
		checks = append(checks, c)
	}
	cudatest.Run(t, cudatest.Open(t), checks...)
}

// TestMovesInPlace: in place, caches keep their other rows, and the kernel keeps those that it overwrites, before it waits where no
// other launch writes them.
func TestMovesInPlace(t *testing.T) {
	l := newList(91)
	op, types, err := cases.Bodied(graph.AnchorMoves, func(b *graph.Builder, in cases.Inputs) {
		x, at := in(graph.F32, 3, 1, 20), in(graph.I64)
		keys, values := in(graph.BF16, 3, 7, 12), in(graph.F32, 3, 5, 8)
		turned := b.Add(graph.RoPE{Base: 100}, b.Slice(x, 2, 0, 12, 1), at)
		b.Output("k", b.Add(graph.UpdateSlice{Axis: 1}, keys, b.CastTo(graph.BF16, turned), at))
		b.Output("v", b.Add(graph.UpdateSlice{Axis: 1}, values, b.Slice(x, 2, 12, 8, 1), at))
	})
	if err != nil {
		t.Fatal(err)
	}
	var args []*graph.Tensor
	for _, u := range types {
		args = append(args, draw(l.r, u))
	}
	args[1].SetFloat(0, 4)
	for _, own := range [][]int{nil, {1}, {1, 2}, {1, 2, 3}} {
		k := inPlace(t, op, args, []int{2, 3}, own...)
		if k.Zeroed != 16 || k.Kept != 80+96 {
			t.Errorf("%d bytes zeroed and %d kept", k.Zeroed, k.Kept)
		}
		functions := strings.Split(k.Generated(), "DEVICE void ")[1:]
		if len(functions) != 2 {
			t.Fatalf("%d functions", len(functions))
		}
		for i, text := range functions {
			early, waits, status := strings.Index(text, "keep<"), strings.Index(text, "late_read();"), strings.Index(text, "->code != 0")
			if (waits >= 0) != (own != nil) || status < early || status < waits || (early < waits) != slices.Contains(own, 2+i) {
				t.Errorf("own %v: keeps at %d, waits at %d, reads the status at %d of\n%s", own, early, waits, status, text)
			}
		}
	}
}

// TestMovesRefused names what no such launch computes.
func TestMovesRefused(t *testing.T) {
	op, types := cached(t, graph.F32, graph.BF16, 64, 64, 32, 1, 64, 64, graph.RoPE{Base: 100}, false)
	operands := func(list []graph.Type) (o []kernels.Operand) {
		for _, u := range list {
			o = append(o, kernels.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape)})
		}
		return o
	}
	results, err := graph.InfoOf(op).Infer(op, types)
	if err != nil {
		t.Fatal(err)
	}
	_, err = kernels.Compile(op, operands(types), operands(results), kernels.Config{Chip: kernels.H200})
	if err == nil || !strings.Contains(err.Error(), "the angles of 4194304 pairs") {
		t.Errorf("error %v", err)
	}
}
