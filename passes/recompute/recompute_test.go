package recompute_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

// apart leaves every operation a launch of its own.
var apart = map[string]bool{"fuse-regions": true}

// wave is so many launches that each read the one before.
func wave(b *graph.Builder, x *graph.Node, fns ...graph.UnaryFn) *graph.Node {
	for _, f := range fns {
		x = b.Unary(f, x)
	}
	return x
}

// TestRecomputeLaunches says what is computed again. A value of 64 f64 takes 512 bytes.
func TestRecomputeLaunches(t *testing.T) {
	tests := []struct {
		name          string
		budget, after int64
		build         func(b *graph.Builder)
		want          string
		repeated      int
	}{
		{"what is needed late", 1024, 1024, func(b *graph.Builder) {
			a := b.Unary(graph.Exp, b.Input("x", passtest.F64(64)))
			b.Output("y", b.Binary(graph.Add, wave(b, a, graph.Sin, graph.Tanh), a))
		}, "exp sin tanh exp add", 1},
		{"nothing where all fits", 1536, 1536, func(b *graph.Builder) {
			a := b.Unary(graph.Exp, b.Input("x", passtest.F64(64)))
			b.Output("y", b.Binary(graph.Add, wave(b, a, graph.Sin, graph.Tanh), a))
		}, "exp sin tanh add", 0},
		{"what is needed only late runs later", 1024, 1024, func(b *graph.Builder) {
			a := b.Unary(graph.Exp, b.Input("x", passtest.F64(64)))
			b.Output("y", b.Binary(graph.Add, wave(b, b.Input("w", passtest.F64(64)), graph.Sin, graph.Tanh, graph.Cos), a))
		}, "sin tanh cos exp add", 0},
		{"what frees memory runs at once", 1024, 1024, func(b *graph.Builder) {
			a := b.Unary(graph.Exp, b.Input("x", passtest.F64(64)))
			b.Output("y", wave(b, b.Input("w", passtest.F64(64)), graph.Sin, graph.Tanh, graph.Cos))
			b.Output("z", b.Reduce(graph.Sum, a, false, 0))
		}, "exp sum[0] sin tanh cos", 0},
		{"a chain", 65536, 65536, func(b *graph.Builder) {
			a := wave(b, b.Input("x", passtest.F64(1, 64)), graph.Exp, graph.Sin)
			y := b.Unary(graph.Tanh, b.MatMul(a, b.Param("w", passtest.F64(1, 64)), true, false))
			b.Output("y", b.Binary(graph.Add, b.Reduce(graph.Sum, y, true, 0), a))
		}, "exp sin matmulᵀA tanh sum[0] exp sin add", 2},
		{"a view of it", 1024, 1024, func(b *graph.Builder) {
			a := b.Unary(graph.Exp, b.Input("x", passtest.F64(64)))
			y := wave(b, a, graph.Sin, graph.Tanh)
			b.Output("y", b.MatMul(b.Reshape(y, 8, 8), b.Reshape(a, 8, 8), false, false))
		}, "exp sin tanh reshape[8,8] exp reshape[8,8] matmul", 1},
		{"a further result, though the first is handed out", 8192, 8192, func(b *graph.Builder) {
			vector := func(name string) *graph.Node { return b.Param(name, passtest.F64(64)) }
			norm := graph.BatchNorm{Eps: 1, Momentum: 0.5, Train: true}
			n := b.Add(norm, b.Input("x", passtest.F64(2, 64)), vector("g"), vector("h"), vector("m"), vector("v"))
			b.Output("norm", n)
			y := b.Reduce(graph.Sum, wave(b, b.Input("w", passtest.F64(8, 64)), graph.Sin, graph.Tanh), false, 0)
			b.Output("y", b.Binary(graph.Add, y, b.Add(graph.Result{Index: 1}, n)))
		}, "batch_norm sin tanh sum[0] batch_norm result add", 1},
		{"state that is updated later", 1024, 1024, func(b *graph.Builder) {
			s := b.State("s", passtest.F64(64))
			a := b.Unary(graph.Exp, s)
			y := b.Binary(graph.Add, wave(b, a, graph.Sin, graph.Tanh, graph.Cos), a)
			b.Output("y", y)
			b.Update(s, b.Unary(graph.Neg, y))
		}, "exp sin tanh cos exp add neg", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, tr := passtest.Run(t, graphtest.Built(t, tt.build), passes.Config{Budget: tt.budget, Disable: apart})
			if got := passtest.Ops(h); got != tt.want {
				t.Errorf("left:\n\t%s\nwant:\n\t%s", got, tt.want)
			}
			s := passtest.Stage(t, tr, "recompute")
			rec := s.Recompute
			if rec.Budget != tt.budget || rec.After != tt.after || len(s.Notes) != 0 {
				t.Errorf("recorded %+v, notes %v; want %d bytes", rec, s.Notes, tt.after)
			}
			if len(rec.Launches) != tt.repeated || len(s.Matches) != tt.repeated {
				t.Errorf("recorded %+v, matches %v; want %d launches repeated", rec, s.Matches, tt.repeated)
			}
		})
	}
}

// TestRecomputeRefuses names what keeps memory and cannot be computed again, and how far one gets without.
func TestRecomputeRefuses(t *testing.T) {
	unmet := func(bytes int) string {
		return fmt.Sprintf("the memory budget of 1024 bytes is not met: "+
			"the fewest that were found are %d, without recomputation %d", bytes, bytes)
	}
	tests := []struct {
		name  string
		build func(b *graph.Builder)
		notes []string
	}{
		{"an operation of the host", func(b *graph.Builder) {
			a := b.Add(graph.Host{Name: "user op", Type: passtest.F64(64)}, b.Input("x", passtest.F64(64)))
			b.Output("y", b.Binary(graph.Add, wave(b, a, graph.Sin, graph.Tanh), a))
		}, []string{
			unmet(1536),
			"host %1 of \"x\" keeps 512 bytes and is not computed again: user op runs by its own code, which may keep state",
		}},
		{"a reader of state that has its new value by then", func(b *graph.Builder) {
			s := b.State("s", passtest.F64(64))
			a := b.Unary(graph.Exp, b.Reshape(s, 8, 8))
			n := b.Unary(graph.Sin, a)
			b.Update(s, b.Reshape(n, 64))
			b.Output("y", b.Binary(graph.Add, wave(b, n, graph.Tanh, graph.Cos), a))
		}, []string{
			unmet(1536),
			"exp %2 of \"s\" keeps 512 bytes and is not computed again: " +
				"it reads a state or parameter, and sin %3 of \"s\" has made the new value by then",
		}},
		{"frozen values, one of which is handed out", func(b *graph.Builder) {
			vector := func(name string) *graph.Node { return b.Param(name, passtest.F64(64)) }
			norm := graph.BatchNorm{Eps: 1, Momentum: 0.5, Train: true}
			n := b.Add(norm, b.Param("x", passtest.F64(2, 64)), vector("g"), vector("h"), vector("m"), vector("v"))
			b.Output("norm", n)
			y := wave(b, b.Input("w", passtest.F64(64)), graph.Sin, graph.Tanh)
			b.Output("y", b.Binary(graph.Add, y, b.Add(graph.Result{Index: 1}, n)))
		}, []string{
			unmet(1536),
			"batch_norm %5 of \"x\", \"g\", \"h\" and \"m\" keeps 512 bytes and is not computed again: " +
				"a second time it would run when parameters are set, and what it makes would be kept",
		}},
		{"nothing to compute again", func(b *graph.Builder) {
			b.Output("y", wave(b, b.Input("x", passtest.F64(256)), graph.Exp, graph.Sin))
		}, []string{
			unmet(2048),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := passes.Config{Budget: 1024, Frozen: true, Disable: apart, Verify: true}
			_, tr, err := passes.Run(graphtest.Built(t, tt.build), cfg)
			if err != nil {
				t.Fatal(err)
			}
			var notes []string
			for _, n := range passtest.Stage(t, tr, "recompute").Notes {
				notes = append(notes, passtest.WithoutLines(n.Text))
			}
			if !slices.Equal(notes, tt.notes) {
				t.Errorf("notes\n\t%s\nwant\n\t%s", strings.Join(notes, "\n\t"), strings.Join(tt.notes, "\n\t"))
			}
		})
	}
}

// TestRecomputeOrder says that what makes a new value stays behind what reads the old one, though it frees memory.
func TestRecomputeOrder(t *testing.T) {
	h, _ := passtest.Run(t, graphtest.Built(t, func(b *graph.Builder) {
		s := b.State("s", passtest.F64(64))
		a := b.Unary(graph.Exp, b.Input("x", passtest.F64(64)))
		y := wave(b, b.Input("w", passtest.F64(64)), graph.Sin, graph.Tanh)
		b.Output("y", b.Binary(graph.Add, y, s))
		b.Update(s, b.Unary(graph.Cos, a))
	}), passes.Config{Budget: 1, Disable: apart})
	if got, want := passtest.Ops(h), "sin tanh add exp cos"; got != want {
		t.Errorf("launches %s, want %s", got, want)
	}
}

// TestRecomputeInactive does nothing without a budget, and finds nothing to do in a graph without launches.
func TestRecomputeInactive(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) { b.Input("x", passtest.F64(64)) })
	_, tr := passtest.Run(t, g, passes.Config{})
	if s := passtest.Stage(t, tr, "recompute"); s.Recompute != nil {
		t.Errorf("recorded %+v without a budget", s.Recompute)
	}
	if _, _, err := passes.Run(g, passes.Config{Budget: -1}); err == nil ||
		!strings.Contains(err.Error(), "a memory budget of -1 bytes") {
		t.Errorf("error %v", err)
	}
	_, tr = passtest.Run(t, g, passes.Config{Budget: 1})
	if s := passtest.Stage(t, tr, "recompute"); s.Recompute.Before != 0 || s.Recompute.After != 0 || len(s.Notes) != 0 {
		t.Errorf("recorded %+v, notes %v", s.Recompute, s.Notes)
	}
}
