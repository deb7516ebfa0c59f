package rows_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/passes"
	"fusec/passes/passtest"
)

func f32(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }

// joined runs the pass, compares values and gradients with those without it, and gives its stage and how many products
// are left.
func joined(t *testing.T, build func(b *graph.Builder)) (stage *trace.Stage, products int) {
	t.Helper()
	g := graphtest.Built(t, build)
	h, tr := passtest.Run(t, g, passes.Config{Stop: "join-rows", Verify: true, Disable: map[string]bool{"fuse-recurrence": true}})
	passtest.SameNumbers(t, g, h, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g))
	for _, n := range h.Nodes {
		if _, ok := n.Op.(graph.MatMul); ok {
			products++
		}
	}
	return passtest.Stage(t, tr, "join-rows"), products
}

// TestRecurrence joins the products of the inputs of a recurrence, however they read the matrix, and leaves those of its
// state apart.
func TestRecurrence(t *testing.T) {
	const steps = 5
	for name, c := range map[string]struct {
		x, w, hidden graph.Type
		left         bool // the matrix is the first operand
		transA, tB   bool
		joins        bool
	}{
		"rows":               {x: f32(3, 32), w: f32(32, 40), hidden: f32(3, 40), joins: true},
		"rows, w transposed": {x: f32(3, 32), w: f32(40, 32), tB: true, hidden: f32(3, 40), joins: true},
		"columns as rows":    {x: f32(32, 3), w: f32(32, 40), transA: true, hidden: f32(3, 40), joins: true},
		"a row":              {x: f32(1, 32), w: f32(32, 40), hidden: f32(1, 40), joins: true},
		"a vector":           {x: f32(32, 1), w: f32(40, 32), left: true, hidden: f32(40, 1), joins: true},
		"a vector, turned":   {x: f32(1, 32), w: f32(32, 40), left: true, transA: true, tB: true, hidden: f32(40, 1), joins: true},
		"columns":            {x: f32(32, 3), w: f32(40, 32), left: true, hidden: f32(40, 3)},
		"many rows":          {x: f32(33, 32), w: f32(32, 40), hidden: f32(33, 40)},
		"a small matrix":     {x: f32(3, 4), w: f32(4, 40), hidden: f32(3, 40)},
	} {
		t.Run(name, func(t *testing.T) {
			stage, products := joined(t, func(b *graph.Builder) {
				w, v, h := b.Param("w", c.w), b.Param("v", f32(40, 40)), b.Input("h", c.hidden)
				for i := range steps {
					x := b.Input(fmt.Sprint("x", i), c.x)
					if c.left {
						h = b.Binary(graph.Add, b.MatMul(w, x, c.transA, c.tB), b.MatMul(v, h, false, false))
					} else {
						h = b.Binary(graph.Add, b.MatMul(x, w, c.transA, c.tB), b.MatMul(h, v, false, false))
					}
					h = b.Unary(graph.Tanh, h)
				}
				b.Output("y", h)
			})
			if want := 2 * steps; c.joins && (products != steps+1 || len(stage.Matches) != 1) || !c.joins && products != want {
				t.Errorf("%d products, matches %v", products, stage.Matches)
			}
			apart := func(n trace.Note) bool { return strings.Contains(n.Text, "depend on one another and stay apart") }
			if rows := c.hidden.Shape.At(0); !c.left && rows <= 32 && !slices.ContainsFunc(stage.Notes, apart) {
				t.Errorf("notes %v", stage.Notes)
			}
			if name == "columns" && len(stage.Misses) == 0 {
				t.Error("no miss")
			}
		})
	}
}

// TestWaves joins products that do not depend on each other but on others with the same matrix, level by level, and makes no
// circle where products with two matrices depend on each other.
func TestWaves(t *testing.T) {
	stage, products := joined(t, func(b *graph.Builder) {
		w := b.Param("w", f32(32, 32))
		for i := range 4 {
			x := b.Input(fmt.Sprint("x", i), f32(2, 32))
			for range 3 {
				x = b.Unary(graph.Tanh, b.MatMul(x, w, false, false))
			}
			b.Output(fmt.Sprint("y", i), x)
		}
	})
	if products != 3 || len(stage.Matches) != 3 {
		t.Errorf("%d products, %d matches", products, len(stage.Matches))
	}
	_, products = joined(t, func(b *graph.Builder) {
		ws := []*graph.Node{b.Param("w", f32(32, 32)), b.Param("v", f32(32, 32))}
		for i := range 8 { // half of them use w first
			x := b.Input(fmt.Sprint("x", i), f32(2, 32))
			for k := range 2 {
				x = b.Unary(graph.Tanh, b.MatMul(x, ws[(i+k)%2], false, false))
			}
			b.Output(fmt.Sprint("y", i), x)
		}
	})
	if products >= 16 || products < 3 {
		t.Errorf("%d products", products)
	}
	if _, products = joined(t, func(b *graph.Builder) {
		w := b.Param("w", f32(32, 32))
		for i := range 3 {
			b.Output(fmt.Sprint("y", i), b.Unary(graph.Relu, b.MatMul(b.Input(fmt.Sprint("x", i), f32(2, 32)), w, false, false)))
		}
	}); products != 3 {
		t.Errorf("three products became %d", products)
	}
}
