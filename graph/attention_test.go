package graph_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// attentionWith is a case of 2 batches of one head of attention, with depths of 3 and 2.
func attentionWith(op graph.Attention, sq, sk int, more ...cases.Arg) cases.Case {
	real := func(dims ...int) cases.Arg { return cases.Arg{Type: graph.TypeOf(graph.F64, dims...), Lo: -2, Hi: 2} }
	op.Scale = 0.7
	args := append([]cases.Arg{real(2, 1, sq, 3), real(2, 1, sk, 3), real(2, 1, sk, 2)}, more...)
	return cases.Case{Name: "attention", Op: op, Args: args}
}

// TestAttentionOfNothing checks queries that may attend no key: the result and its gradient are zeros.
func TestAttentionOfNothing(t *testing.T) {
	lengths := cases.Arg{Type: graph.TypeOf(graph.I32, 2), Lo: -1, Hi: 1}
	nowhere := cases.Arg{Type: graph.TypeOf(graph.F64, 1, 4), Lo: math.Inf(-1), Hi: math.Inf(-1)}
	for name, c := range map[string]cases.Case{
		"no keys":           attentionWith(graph.Attention{}, 3, 0),
		"causal":            attentionWith(graph.Attention{Causal: true}, 5, 3),
		"window":            attentionWith(graph.Attention{Window: 1}, 5, 3),
		"causal window":     attentionWith(graph.Attention{Window: 2, Causal: true}, 5, 3),
		"lengths":           attentionWith(graph.Attention{HasLengths: true}, 3, 3, lengths),
		"tail":              attentionWith(graph.Attention{HasLengths: true, Tail: true, Causal: true}, 3, 3, lengths),
		"mask":              attentionWith(graph.Attention{HasMask: true}, 3, 4, nowhere),
		"everything masked": attentionWith(graph.Attention{HasMask: true, HasLengths: true, Causal: true}, 5, 4, nowhere, lengths),
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 8))
			args := make([]ref.Value, len(c.Args))
			for i, a := range c.Args {
				args[i] = ref.FromTensor(a.Draw(r))
				if a.Lo < -2 {
					for j := range args[i].F {
						args[i].F[j] = a.Lo
					}
				}
			}
			direct, err := ref.Op(c.Op, args)
			if err != nil {
				t.Fatal(err)
			}
			meaning, err := ref.Decomposed(c.Op, args)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range direct {
				if err := ref.Check(v.Tensor(), meaning[i]); err != nil {
					t.Errorf("result %d: %v", i, err)
				}
			}
			if y, lse := direct[0].F[0], direct[1].F[0]; y != 0 || !math.IsInf(lse, -1) {
				t.Errorf("the first query gets %v, log-sum-exp %v", y, lse)
			}
			in := c.Inputs(rand.New(rand.NewPCG(1, 2)))
			if i := c.Op.(graph.Attention).MaskArg(); i >= 0 {
				in["x3"] = args[i].Tensor()
			}
			g, wrt := gradientGraph(t, c, false)
			for _, x := range wrt {
				if d := evalRef(t, g, in)["d"+x]; d.Type.Shape.Elems() > 0 && math.IsNaN(d.Float(0)) {
					t.Errorf("the gradient of %s is NaN", x)
				}
			}
		})
	}
}

// TestAttentionPairs compares the work counted with the pairs that position allows.
func TestAttentionPairs(t *testing.T) {
	for _, op := range []graph.Attention{{}, {Causal: true}, {Window: 1}, {Window: 3}, {Causal: true, Window: 3},
		{Window: math.MaxInt}, {Causal: true, Window: math.MaxInt}} {
		for sq := range 9 {
			for sk := range 9 {
				c := attentionWith(op, sq, sk)
				args := make([]graph.Type, len(c.Args))
				for i, a := range c.Args {
					args[i] = a.Type
				}
				d := op.Dims(args[0].Shape, args[1].Shape, args[2].Shape)
				var pairs int64
				for i := range sq {
					lo, hi := op.Range(&d, i, sk)
					pairs += int64(hi - lo)
				}
				want := 2 * pairs * (2*3 + 2*2 + 16)
				if got := graph.InfoOf(op).FLOPs(c.Op, args, nil); got != want {
					t.Errorf("%+v of %d queries and %d keys costs %d, want %d", op, sq, sk, got, want)
				}
			}
		}
	}
	huge := graph.TypeOf(graph.F32, 1<<39, 1)
	if n := graph.InfoOf(graph.Attention{}).FLOPs(graph.Attention{}, []graph.Type{huge, huge, huge}, nil); n != math.MaxInt64 {
		t.Errorf("too much work counts as %d", n)
	}
}

// TestAttentionRange compares the ranges of keys with the rule for each key.
func TestAttentionRange(t *testing.T) {
	for _, op := range []graph.Attention{{}, {Causal: true}, {Window: 2}, {Causal: true, Window: 2}, {Tail: true, Causal: true},
		{Tail: true, Window: 2}} {
		for sq := range 6 {
			for sk := range 6 {
				d := graph.AttentionDims{Queries: sq, Keys: sk}
				for valid := -1; valid < sk+2; valid++ {
					for i := range sq {
						lo, hi := op.Range(&d, i, valid)
						n := min(max(valid, 0), sk)
						at := i + sk - sq
						if op.Tail {
							at = i + n - sq
						}
						for j := range sk {
							away := at - j
							want := j < n && (!op.Causal || away >= 0) && (op.Window == 0 || max(away, -away) < op.Window)
							if got := j >= lo && j < hi; got != want {
								t.Fatalf("%+v: query %d of %d attends key %d of %d (%d valid): %v", op, i, sq, j, sk, valid, got)
							}
						}
					}
				}
			}
		}
	}
}

func TestAttentionShapes(t *testing.T) {
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	for _, c := range []struct {
		q, k, v graph.Type
		want    string
	}{
		{f(0, 3, 4), f(0, 5, 4), f(0, 5, 4), ""},
		{f(4, 3, 4), f(2, 5, 4), f(2, 5, 7), ""},
		{f(3, 3, 4), f(2, 5, 4), f(2, 5, 4), "not a multiple of 2"},
		{f(3, 3, 4), f(0, 5, 4), f(0, 5, 4), "not a multiple of 0"},
		{f(0, 3, 4), f(2, 5, 4), f(2, 5, 4), "no head of queries"},
		{f(2, 3, 3, 4), f(1, 3, 5, 4), f(1, 3, 5, 4), "batch axes"},
	} {
		out, err := graph.InfoOf(graph.Attention{}).Infer(graph.Attention{}, []graph.Type{c.q, c.k, c.v})
		switch {
		case c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%v, %v, %v: error %v, want %q", c.q, c.k, c.v, err, c.want)
		case err == nil && out[0].Shape.At(2) != c.v.Shape.At(2):
			t.Errorf("%v, %v, %v: result %v", c.q, c.k, c.v, out[0])
		}
	}
}
