package panels_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/passes"
	"fusec/passes/passtest"
)

// stored is a value of 8 bits with a scale for each row.
func stored(b *graph.Builder, name string, d graph.DType, dims ...int) *graph.Node {
	last := len(dims) - 1
	scales := append(append([]int(nil), dims[:last]...), 1)
	q, scale := b.Input(name, graph.TypeOf(d, dims...)), b.Input(name+"_scale", graph.TypeOf(graph.F32, scales...))
	return b.Add(graph.Dequantize{Axis: last, Block: dims[last]}, q, scale)
}

// TestStoredKeys has attentions whose keys and values are stored in 8 bits, also seen through views, and those that do not read
// them as they are stored, with the reason.
func TestStoredKeys(t *testing.T) {
	causal := graph.Attention{Scale: 0.5, Causal: true}
	query := func(b *graph.Builder) *graph.Node { return b.Input("q", graph.TypeOf(graph.F32, 2, 4, 3, 8)) }
	for name, c := range map[string]struct {
		build func(b *graph.Builder) *graph.Node
		miss  string
	}{
		"plain": {build: func(b *graph.Builder) *graph.Node {
			return b.Add(causal, query(b), stored(b, "k", graph.I8, 2, 2, 5, 8), stored(b, "v", graph.I8, 2, 2, 5, 6))
		}},
		"views": {build: func(b *graph.Builder) *graph.Node {
			k := b.Transpose(b.Reshape(stored(b, "k", graph.I8, 10, 2, 8), 2, 5, 2, 8), 0, 2, 1, 3)
			return b.Add(causal, query(b), k, b.Transpose(stored(b, "v", graph.I8, 2, 5, 2, 6), 0, 2, 1, 3))
		}},
		"pages, lengths, mask and log-sum-exp": {build: func(b *graph.Builder) *graph.Node {
			op := graph.Attention{Scale: 0.5, HasMask: true, HasLengths: true, Tail: true, Page: 2}
			table, err := graph.TensorOf([]int64{3, 0, 1, 2, 1, 0}, 2, 3)
			if err != nil {
				return b.Fail(err)
			}
			length, err := graph.TensorOf([]int64{5, 3}, 2)
			if err != nil {
				return b.Fail(err)
			}
			y := b.Add(op, query(b), stored(b, "k", graph.I8, 4, 2, 2, 8), stored(b, "v", graph.I8, 4, 2, 2, 6),
				b.Input("mask", graph.TypeOf(graph.F32, 3, 6)), b.Const(length), b.Const(table))
			b.Output("lse", b.Add(graph.Result{Index: 1}, y))
			return y
		}},
		"values of f32": {miss: "keys and values are not both stored in few bits", build: func(b *graph.Builder) *graph.Node {
			return b.Add(causal, query(b), stored(b, "k", graph.I8, 2, 2, 5, 8), b.Input("v", graph.TypeOf(graph.F32, 2, 2, 5, 6)))
		}},
		"keys of u8": {miss: "is stored as u8, and not as i8", build: func(b *graph.Builder) *graph.Node {
			return b.Add(causal, query(b), stored(b, "k", graph.U8, 2, 2, 5, 8), stored(b, "v", graph.I8, 2, 2, 5, 6))
		}},
		"values of u8": {miss: "is stored as u8, and not as i8", build: func(b *graph.Builder) *graph.Node {
			return b.Add(causal, query(b), stored(b, "k", graph.I8, 2, 2, 5, 8), stored(b, "v", graph.U8, 2, 2, 5, 6))
		}},
		"zero points": {miss: "has zero points", build: func(b *graph.Builder) *graph.Node {
			k := b.Add(graph.Dequantize{}, b.Input("k", graph.TypeOf(graph.I8, 2, 2, 5, 8)), b.Scalar(graph.F32, 0.1), b.Scalar(graph.I8, 3))
			return b.Add(causal, query(b), k, stored(b, "v", graph.I8, 2, 2, 5, 6))
		}},
		"one scale": {miss: "has scales [], and not one for each row", build: func(b *graph.Builder) *graph.Node {
			k := b.Add(graph.Dequantize{}, b.Input("k", graph.TypeOf(graph.I8, 2, 2, 5, 8)), b.Scalar(graph.F32, 0.1))
			return b.Add(causal, query(b), k, stored(b, "v", graph.I8, 2, 2, 5, 6))
		}},
		"turned": {miss: "moves elements between the rows", build: func(b *graph.Builder) *graph.Node {
			k := b.Transpose(stored(b, "k", graph.I8, 2, 2, 8, 5), 0, 1, 3, 2)
			return b.Add(causal, query(b), k, stored(b, "v", graph.I8, 2, 2, 5, 6))
		}},
		"cut": {miss: "moves elements between the rows", build: func(b *graph.Builder) *graph.Node {
			k := b.Reshape(stored(b, "k", graph.I8, 2, 2, 10, 4), 2, 2, 5, 8)
			return b.Add(causal, query(b), k, stored(b, "v", graph.I8, 2, 2, 5, 6))
		}},
		"a transpose of what is cut": {miss: "moves elements between the rows", build: func(b *graph.Builder) *graph.Node {
			k := b.Transpose(b.Reshape(stored(b, "k", graph.I8, 2, 5, 4, 4), 2, 5, 2, 8), 0, 2, 1, 3)
			return b.Add(causal, query(b), k, stored(b, "v", graph.I8, 2, 2, 5, 6))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", b.Unary(graph.Tanh, c.build(b))) })
			for _, target := range []lowering.Device{device(t), cuda.New()} {
				out, tr := passtest.Run(t, g, passes.Config{Target: target})
				stage := passtest.Stage(t, tr, "pack-quantised")
				if got := len(stage.Matches); (got == 1) != (c.miss == "") {
					t.Errorf("%s: %d matches, %v", target.Name(), got, stage.Misses)
				}
				if c.miss == "" {
					for _, n := range out.Nodes {
						if n.Type.DType.IsReal() && n.Type.Shape.Elems() == 2*2*5*8 {
							t.Errorf("%s: %v is a copy of the keys\n%s", target.Name(), n, graph.Print(out))
						}
					}
				} else if misses := fmt.Sprint(passtest.Misses(t, stage, "stored-keys")); !strings.Contains(misses, c.miss) {
					t.Errorf("%s: misses %s", target.Name(), misses)
				}
				in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
				passtest.SameNumbers(t, g, out, in)
				if target.Name() == "cpu" {
					passtest.SameOnCPU(t, g, out, in)
				}
			}
		})
	}
}

// TestStoredKeysRefused has a target that does not attend to keys of 8 bits.
func TestStoredKeysRefused(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		q := b.Input("q", graph.TypeOf(graph.F32, 2, 3, 8))
		b.Output("y", b.Add(graph.Attention{Scale: 1}, q, stored(b, "k", graph.I8, 2, 5, 8), stored(b, "v", graph.I8, 2, 5, 8)))
	})
	_, tr := passtest.Run(t, g, passes.Config{Target: wide{device(t)}})
	stage := passtest.Stage(t, tr, "pack-quantised")
	if misses := fmt.Sprint(passtest.Misses(t, stage, "stored-keys")); !strings.Contains(misses, "in each run: keys of floats alone") {
		t.Errorf("misses %s", misses)
	}
}

// wide is a device whose attentions have no scales.
type wide struct{ lowering.Device }

func (d wide) Accepts(op graph.Op, args, results []graph.Type) error {
	if a, ok := op.(graph.Attention); ok && a.HasScales {
		return fmt.Errorf("keys of floats alone")
	}
	return d.Device.Accepts(op, args, results)
}
