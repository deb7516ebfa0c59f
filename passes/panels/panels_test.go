package panels_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/precision"
	"fusec/kernels/cpu/panel"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/passes"
	"fusec/passes/passtest"
)

func device(t *testing.T) lowering.Device {
	d, err := cpu.Target.Open(lowering.Setup{Name: "cpu", Precision: precision.BF16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// a form of weights of few bits.
type form struct {
	stored      graph.DType
	trans       bool
	axis, block int
	scale       []int // the shape
	zero        bool
	miss        string // why they are not packed
}

// TestQuantised multiplies by weights in every form, and compares with the graph as it is written.
func TestQuantised(t *testing.T) {
	d := device(t)
	for _, f := range []form{
		{stored: graph.I8}, {stored: graph.I4, trans: true}, {stored: graph.U8, zero: true}, {stored: graph.U8, trans: true},
		{stored: graph.I8, axis: 1, scale: []int{40}}, {stored: graph.I8, trans: true, scale: []int{40}, zero: true},
		{stored: graph.I4, block: 16, scale: []int{3, 40}},
		{stored: graph.I4, trans: true, axis: 1, block: 16, scale: []int{40, 3}, zero: true},
		{stored: graph.U8, block: 24, scale: []int{2, 40}, zero: true}, {stored: graph.I8, block: 32, scale: []int{2, 40}},
		{stored: graph.I8, block: 64, scale: []int{1, 40}, zero: true},
		{stored: graph.I8, scale: []int{48}, miss: "each row has a scale"},
		{stored: graph.I8, axis: 1, block: 8, scale: []int{48, 5}, miss: "blocks of columns"},
		{stored: graph.I8, block: 12, scale: []int{4, 40}, miss: "no multiple of 8"},
		{stored: graph.I8, block: 32, scale: []int{2, 40}, zero: true, miss: "not whole blocks"},
		{stored: graph.I16, miss: "i16"}, {stored: graph.F8E4M3, miss: "f8e4m3"},
	} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				x := b.Input("x", graph.TypeOf(graph.F32, 2, 3, 48))
				shape := graph.ShapeOf(48, 40)
				if f.trans {
					shape = graph.ShapeOf(40, 48)
				}
				args := []*graph.Node{b.Param("w", graph.Type{DType: f.stored, Shape: shape}),
					b.Param("scale", graph.TypeOf(graph.F32, f.scale...))}
				if f.zero {
					args = append(args, b.Param("zero", graph.TypeOf(f.stored, f.scale...)))
				}
				w := b.Add(graph.Dequantize{Axis: f.axis, Block: f.block}, args...)
				b.Output("y", b.Unary(graph.Relu, b.MatMul(x, w, false, f.trans)))
			})
			out, tr := passtest.Run(t, g, passes.Config{Frozen: true, Target: d})
			stage := passtest.Stage(t, tr, "pack-quantised")
			if got := len(stage.Matches); (got == 1) != (f.miss == "") {
				t.Errorf("%d matches, %v", got, stage.Misses)
			}
			if f.miss != "" {
				if misses := fmt.Sprint(passtest.Misses(t, stage, "panels")); !strings.Contains(misses, f.miss) {
					t.Errorf("misses %s", misses)
				}
			}
			in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
			passtest.SameNumbers(t, g, out, in)
			passtest.SameOnCPU(t, g, out, in)
		})
	}
}

// A bare device packs weights, and its products have no offsets.
type bare struct{ lowering.Device }

func (bare) PacksWeights(graph.Type, graph.DType) error { return nil }

// TestWithoutOffsets has the zero points of u8, stated and its own, for rows that are whole blocks and for some that are not.
func TestWithoutOffsets(t *testing.T) {
	for block, matches := range map[int]int{16: 1, 32: 0} {
		for _, zero := range []bool{false, true} {
			g := graphtest.Built(t, func(b *graph.Builder) {
				scales := graph.TypeOf(graph.F32, (48+block-1)/block, 40)
				args := []*graph.Node{b.Param("w", graph.TypeOf(graph.U8, 48, 40)), b.Param("scale", scales)}
				if zero {
					args = append(args, b.Param("zero", scales.With(graph.U8)))
				}
				w := b.Add(graph.Dequantize{Block: block}, args...)
				b.Output("y", b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 3, 48)), w, false, false))
			})
			out, tr := passtest.Run(t, g, passes.Config{Frozen: true, Target: bare{device(t)}})
			if got := len(passtest.Stage(t, tr, "pack-quantised").Matches); got != matches {
				t.Errorf("blocks of %d, zero points %t: %d matches\n%s", block, zero, got, graph.Print(out))
			}
			passtest.SameNumbers(t, g, out, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g))
		}
	}
}

// TestReshaped has work after a reshape of a product with packed weights: the reshape moves below it, and all is one launch.
func TestReshaped(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		w := b.Add(graph.Dequantize{}, b.Param("w", graph.TypeOf(graph.I8, 48, 40)), b.Param("scale", graph.TypeOf(graph.F32)))
		y := b.Reshape(b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 6, 48)), w, false, false), 2, 3, 40)
		y = b.Binary(graph.Add, y, b.Broadcast(b.Param("bias", graph.TypeOf(graph.F32, 40)), y.Type.Shape))
		b.Output("y", b.Unary(graph.Tanh, y))
	})
	out, tr := passtest.Run(t, g, passes.Config{Frozen: true, Target: device(t)})
	n := len(passtest.Stage(t, tr, "sink-reshapes").Matches)
	if n != 2 || !graph.Has[graph.Fusion](out) || graph.Has[graph.Unary](out) {
		t.Errorf("%d operations are above the reshape:\n%s", n, graph.Print(out))
	}
	passtest.SameNumbers(t, g, out, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g))
}

// TestSquare multiplies what a launch computes by as many columns as it has: it is finished before the product reads it.
func TestSquare(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		w := b.Add(graph.Dequantize{}, b.Param("w", graph.TypeOf(graph.I8, 40, 40)), b.Scalar(graph.F32, 0.5))
		b.Output("y", b.MatMul(b.Unary(graph.Exp, b.Input("x", graph.TypeOf(graph.F32, 3, 40))), w, false, false))
	})
	out, _ := passtest.Run(t, g, passes.Config{Frozen: true, Target: device(t)})
	passtest.SameOnCPU(t, g, out, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g))
}

// TestHalve rounds weights to 16 bits.
func TestHalve(t *testing.T) {
	d := device(t)
	g := graphtest.Built(t, func(b *graph.Builder) {
		x, y := b.Input("x", graph.TypeOf(graph.F32, 3, 80)), b.Input("y", graph.TypeOf(graph.F32, 80, 70))
		w, v := b.Param("w", graph.TypeOf(graph.F32, 70, 80)), b.Param("v", graph.TypeOf(graph.F32, 8, 8))
		b.Output("large", b.MatMul(x, w, false, true))
		b.Output("product", b.MatMul(x, y, false, false))
		b.Output("small", b.MatMul(b.Input("z", graph.TypeOf(graph.F32, 3, 8)), v, false, false))
	})
	_, tr, err := passes.Run(g, passes.Config{Frozen: true, Target: d, Precision: precision.BF16, Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := passtest.Contracts(tr, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)); err != nil {
		t.Error(err)
	}
	stage := passtest.Stage(t, tr, "precision")
	if len(stage.Matches) != 1 || len(stage.Notes) != 2 {
		t.Errorf("%v %v", stage.Matches, stage.Notes)
	}
}

// TestPairs rounds the rows of products of bf16, too, once for all that read them, where the processor multiplies such numbers.
func TestPairs(t *testing.T) {
	d := device(t)
	pairs := panel.Pairs() == nil
	for _, c := range []struct {
		rows  int
		to    precision.Precision
		casts int
	}{{40, precision.BF16, 1}, {3, precision.BF16, 0}, {40, precision.F16, 0}} {
		g := graphtest.Built(t, func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.F32, c.rows, 80))
			b.Output("y", b.MatMul(x, b.Param("w", graph.TypeOf(graph.F32, 70, 80)), false, true))
			b.Output("z", b.MatMul(x, b.Param("v", graph.TypeOf(graph.F32, 80, 75)), false, false))
		})
		_, tr, err := passes.Run(g, passes.Config{Frozen: true, Target: d, Precision: c.to, Verify: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := passtest.Contracts(tr, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)); err != nil {
			t.Error(err)
		}
		want := c.casts
		if !pairs {
			want = 0
		}
		if text := passtest.Ops(passtest.Stage(t, tr, "precision").Graph); strings.Count(text, "cast") != want {
			t.Errorf("%d rows in %v: want %d casts:\n%v", c.rows, c.to, want, text)
		}
	}
}

// TestStored16 reads weights of 16 bits as they are stored, and rows of bf16 where the processor multiplies such numbers.
func TestStored16(t *testing.T) {
	d := device(t)
	for _, c := range []struct {
		of    graph.DType
		rows  int
		wide  bool // x is of f32
		trans bool
	}{{graph.BF16, 40, false, false}, {graph.BF16, 40, true, true}, {graph.F16, 9, false, true}, {graph.BF16, 3, false, true}} {
		g := graphtest.Built(t, func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.F32, c.rows, 80))
			if !c.wide {
				x = b.CastTo(graph.F32, b.CastTo(c.of, b.Unary(graph.Tanh, x)))
			}
			shape := graph.ShapeOf(80, 70)
			if c.trans {
				shape = graph.ShapeOf(70, 80)
			}
			w := b.CastTo(graph.F32, b.Param("w", graph.Type{DType: c.of, Shape: shape}))
			b.Output("y", b.CastTo(c.of, b.Unary(graph.Relu, b.MatMul(x, w, false, c.trans))))
		})
		out, tr := passtest.Run(t, g, passes.Config{Frozen: true, Target: d, Verify: true})
		passtest.SameOnCPU(t, g, out, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g))
		stage := passtest.Stage(t, tr, "pack-quantised")
		if len(stage.Matches) != 1 {
			t.Fatalf("%+v: %v", c, stage.Matches)
		}
		nodes := stage.Graph.Nodes
		product := nodes[slices.IndexFunc(nodes, func(n *graph.Node) bool { return n.Op.OpName() == "matmul_panels" })]
		pairs := c.of == graph.BF16 && !c.wide && c.rows > 8 && panel.Pairs() == nil
		if x := product.Args[0].Type.DType; (x == graph.BF16) != pairs {
			t.Errorf("%+v: the rows are of %v", c, x)
		}
	}
}

// TestIntegers rounds what is multiplied by weights of few bits: where blocks are those of the weights, the product rounds itself.
func TestIntegers(t *testing.T) {
	d := device(t)
	integers := panel.Integers() == nil
	for _, f := range []struct {
		stored    graph.DType
		in, block int // blocks of x, and of the weights
		halves    bool
		trans     bool
		rounds    bool
	}{
		{stored: graph.I8, rounds: true}, {stored: graph.I4, trans: true, rounds: true}, {stored: graph.U8, rounds: true},
		{stored: graph.I8, in: 16, block: 16, rounds: true},
		{stored: graph.I4, in: 24, block: 24, trans: true, halves: true, rounds: true},
		{stored: graph.I8, in: 16, block: 16, halves: true, rounds: true}, {stored: graph.I8, in: 48, rounds: true},
		{stored: graph.I8, in: 16}, {stored: graph.I8, in: 8, block: 16, halves: true},
	} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				x := b.RoundRows(b.Input("x", graph.TypeOf(graph.F32, 2, 3, 48)), f.in)
				shape, axis := graph.ShapeOf(48, 40), 0
				if f.trans {
					shape, axis = graph.ShapeOf(40, 48), 1
				}
				scales := graph.Type{DType: graph.F32, Shape: graph.ShapeOf(40)}
				op := graph.Dequantize{Axis: 1 - axis}
				if f.block > 0 {
					scales.Shape, op = shape.With(axis, 48/f.block), graph.Dequantize{Axis: axis, Block: f.block}
				}
				if f.halves {
					scales.DType = graph.F16
				}
				scale := b.CastTo(graph.F32, b.Param("scale", scales))
				w := b.Add(op, b.Param("w", graph.Type{DType: f.stored, Shape: shape}), scale)
				b.Output("y", b.Unary(graph.Relu, b.MatMul(x, w, false, f.trans)))
			})
			out, _ := passtest.Run(t, g, passes.Config{Frozen: true, Target: d})
			text := graph.Print(out)
			if rounds := strings.Contains(text, "integers=true"); rounds != (f.rounds && integers) {
				t.Errorf("sums of integers: %v\n%s", rounds, text)
			}
			if f.rounds && integers && strings.Contains(text, "quantize[") && f.stored != graph.U8 {
				t.Errorf("x is rounded outside of the product\n%s", text)
			}
			if halves := strings.Contains(text, "f16[2,8,32]"); halves != f.halves {
				t.Errorf("scales of f16: %v\n%s", halves, text)
			}
			in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
			passtest.SameNumbers(t, g, out, in)
			passtest.SameOnCPU(t, g, out, in)
		})
	}
}

// TestBytes multiplies integers of 8 bits, found in every form, by weights that are stored in 8 bits.
func TestBytes(t *testing.T) {
	d := device(t)
	whole := panel.Bytes() == nil
	in := func(b *graph.Builder) *graph.Node { return b.Input("x", graph.TypeOf(graph.F32, 2, 3, 44)) }
	of := func(b *graph.Builder, x *graph.Node, zero *graph.Node) *graph.Node {
		return b.Binary(graph.Sub, x, b.Broadcast(zero, x.Type.Shape))
	}
	dequantized := func(to graph.DType, scales []int, zero bool) func(b *graph.Builder) *graph.Node {
		return func(b *graph.Builder) *graph.Node {
			scale := b.BinaryScalar(graph.Add, b.Unary(graph.Square, b.Input("scale of x", graph.TypeOf(graph.F32, scales...))), 0.01)
			with := []*graph.Node{scale}
			if zero {
				with = append(with, b.CastTo(to, b.Unary(graph.Round, b.Input("zero", graph.TypeOf(graph.F32)))))
			}
			q := b.Add(graph.Quantize{To: to, Axis: 2}, append([]*graph.Node{in(b)}, with...)...)
			return b.Add(graph.Dequantize{Axis: 2}, append([]*graph.Node{q}, with...)...)
		}
	}
	for _, f := range []struct {
		name   string
		x      func(b *graph.Builder) *graph.Node
		stored graph.DType
		trans  bool
		scale  []int
		zero   bool
		miss   string // why bytes are not multiplied
	}{
		{name: "cast", x: func(b *graph.Builder) *graph.Node {
			return b.CastTo(graph.F32, b.Input("x", graph.TypeOf(graph.U8, 2, 3, 44)))
		}},
		{name: "rounded", trans: true, scale: []int{40}, x: func(b *graph.Builder) *graph.Node { return rounded(b, in(b), 7) }},
		{name: "moved", zero: true, x: func(b *graph.Builder) *graph.Node {
			return of(b, rounded(b, in(b), 7), b.Input("zero", graph.TypeOf(graph.F32)))
		}},
		{name: "moved by one", trans: true, x: func(b *graph.Builder) *graph.Node {
			return of(b, rounded(b, in(b), 0), b.Input("zero", graph.TypeOf(graph.F32, 1)))
		}},
		{name: "dequantized", scale: []int{40}, x: dequantized(graph.U8, nil, false)},
		{name: "dequantized with a zero", x: dequantized(graph.U8, nil, true)},
		{name: "signed", x: dequantized(graph.I8, nil, false), trans: true, scale: []int{40}, zero: true},
		{name: "signed with a zero", x: dequantized(graph.I8, nil, true)},
		{name: "several scales", x: dequantized(graph.I8, []int{44}, false), miss: "several scales"},
		{name: "wide", x: dequantized(graph.I16, nil, false), miss: "of i16"},
		{name: "several zeros", miss: "several zero points", x: func(b *graph.Builder) *graph.Node {
			return of(b, rounded(b, in(b), 7), b.Input("zero", graph.TypeOf(graph.F32, 44)))
		}},
		{name: "numbers", x: in, miss: "not known to be integers"},
	} {
		t.Run(f.name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				shape, axis := graph.ShapeOf(44, 40), 1
				if f.trans {
					shape, axis = graph.ShapeOf(40, 44), 0
				}
				args := []*graph.Node{b.Param("w", graph.Type{DType: graph.I8, Shape: shape}),
					b.Param("scale", graph.TypeOf(graph.F32, f.scale...))}
				if f.zero {
					args = append(args, b.Param("zeros", graph.TypeOf(graph.I8, f.scale...)))
				}
				w := b.Add(graph.Dequantize{Axis: axis}, args...)
				b.Output("y", b.Unary(graph.Relu, b.MatMul(f.x(b), w, false, f.trans)))
			})
			out, tr := passtest.Run(t, g, passes.Config{Frozen: true, Target: d})
			text, notes := graph.Print(out), fmt.Sprint(passtest.Stage(t, tr, "pack-quantised").Notes)
			if got := strings.Contains(text, "integers=true"); got != (f.miss == "" && whole) {
				t.Errorf("bytes are multiplied: %v, %s\n%s", got, notes, text)
			}
			if !strings.Contains(notes, f.miss) {
				t.Errorf("notes %s", notes)
			}
			values := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
			passtest.SameOnCPU(t, g, out, values)
		})
	}
}
