package cpu

import (
	"errors"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// TestFits: scratch, a product's own memory and what kernels took before are asked for; what is refused is not taken.
func TestFits(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	b := graph.NewBuilder("product")
	x, y := b.Input("x", graph.TypeOf(graph.F32, 600, 3)), b.Input("y", graph.TypeOf(graph.F32, 3, 500))
	b.Output("z", b.Reduce(graph.Sum, b.Unary(graph.Exp, b.MatMul(x, y, false, false)), false, 0))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	norm := graph.TypeOf(graph.F32, 1000)
	for name, c := range map[string]struct {
		op            graph.Op
		args, results []graph.Type
		least         int64 // that it takes
	}{
		"scratch": {graph.SquaredNorm{}, []graph.Type{norm}, []graph.Type{graph.TypeOf(graph.F64)}, 2},
		"product": {graph.Fusion{Anchor: graph.AnchorMatMul, Kind: graph.KindMatMul, Body: g},
			[]graph.Type{x.Type, y.Type}, []graph.Type{graph.TypeOf(graph.F32, 500)}, 4 * 600 * 500},
	} {
		compile := func(env *Env) error {
			var operands [2][]Operand
			for i, types := range [][]graph.Type{c.args, c.results} {
				for _, t := range types {
					operands[i] = append(operands[i], Contiguous(t))
				}
			}
			_, err := Compile(c.op, operands[0], operands[1], env)
			return err
		}
		env, most := NewEnv(p), int64(0)
		env.Fits = func(bytes int64) error { most = max(most, bytes); return nil }
		if err := compile(env); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		first := most
		if first < c.least {
			t.Errorf("%s: asked for %d bytes, want at least %d", name, first, c.least)
		}
		full := errors.New("full")
		env = NewEnv(p)
		env.Fits = func(bytes int64) error {
			if bytes >= c.least {
				return full
			}
			return nil
		}
		if err := compile(env); !errors.Is(err, full) {
			t.Errorf("%s: error %v", name, err)
		}
		if n := env.WorkspaceBytes(); name == "scratch" && n != 0 {
			t.Errorf("%s: %d bytes were taken", name, n)
		}
	}
}
