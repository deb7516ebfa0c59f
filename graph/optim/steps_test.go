package optim_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/optim"
)

// TestSteps trains the parameters that the cost depends on, and no others.
func TestSteps(t *testing.T) {
	build := func(add func(b *graph.Builder)) *graph.Graph {
		t.Helper()
		b := graph.NewBuilder("g")
		add(b)
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	f32 := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	g := build(func(b *graph.Builder) {
		x, w := b.Input("x", f32(3)), b.Param("w", f32(3))
		b.Param("index", graph.TypeOf(graph.I64, 3))
		other := b.Param("other", f32(3))
		cost := b.Reduce(graph.Sum, b.Binary(graph.Mul, x, w), false, 0)
		b.Output("cost", cost)
		b.Output("again", cost)
		b.Output("vector", b.Unary(graph.Neg, other))
	})
	tr, err := optim.Steps(g, "sgd", []graph.Attr{{Name: "rate", Value: "1"}})
	if err != nil || len(tr.Steps) != 1 || tr.Steps[0].Param.Name != "w" || tr.Rule != "sgd" || len(tr.Settings) != 1 {
		t.Errorf("%+v, %v", tr, err)
	}
	fast := optim.AtRate(tr, 2)
	o, err := optim.FromTraining(fast)
	if err != nil || o.Rate(0) != 2 || len(fast.Settings) != 1 || tr.Settings[0].Value != "1" {
		t.Errorf("%+v, %v", fast, err)
	}
	if n, err := optim.Cost(g, "again"); err != nil || n != tr.Steps[0].Cost {
		t.Errorf("%v, %v", n, err)
	}
	refused := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	_, err = optim.Cost(g, "vector")
	refused(err, "not a scalar")
	_, err = optim.Cost(g, "none")
	refused(err, `no output "none"`)
	for want, add := range map[string]func(b *graph.Builder){
		"no scalar output":        func(b *graph.Builder) { b.Output("y", b.Param("w", f32(3))) },
		"several scalar outputs":  func(b *graph.Builder) { b.Output("y", b.Param("w", f32())); b.Output("z", b.Input("x", f32())) },
		"depends on no parameter": func(b *graph.Builder) { b.Output("y", b.Input("x", f32())) },
	} {
		_, err := optim.Steps(build(add), "sgd", nil)
		refused(err, want)
	}
}
