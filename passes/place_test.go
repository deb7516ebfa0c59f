package passes_test

import (
	"errors"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

// TestPlace says where a copy is needed.
func TestPlace(t *testing.T) {
	tests := []struct {
		name  string
		build func(b *graph.Builder)
		want  string
	}{
		{"views that strides can say", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 6))
			b.Output("y", b.Unary(graph.Exp, b.Transpose(b.Slice(x, 0, 1, 2, 1), 1, 0)))
		}, "elementwise{slice[2,6] transpose[1,0] exp}"},
		{"a reshape of a transpose", func(b *graph.Builder) {
			b.Output("y", b.Unary(graph.Exp, b.Reshape(b.Transpose(b.Input("x", passtest.F64(4, 6)), 1, 0), 24)))
		}, "copy elementwise{exp}"},
		{"one copy for two readers", func(b *graph.Builder) {
			x := b.Transpose(b.Input("x", passtest.F64(4, 6)), 1, 0)
			b.Output("y", b.Add(graph.Concat{Axis: 0}, x, x))
			b.Output("z", b.Add(graph.Pad{Lo: graph.IntsOf(1, 0), Hi: graph.IntsOf(0, 0)}, x))
		}, "copy concat pad"},
		{"an operand that starts later", func(b *graph.Builder) {
			x := b.Slice(b.Input("x", passtest.F64(4, 6)), 0, 2, 2, 1)
			b.Output("y", b.Add(graph.Concat{Axis: 0}, x, x))
		}, "copy concat"},
		{"a slice from where an operand says", func(b *graph.Builder) {
			x := b.Transpose(b.Input("x", passtest.F64(4, 6)), 1, 0)
			b.Output("y", b.Add(graph.Slice{Axis: 0, Size: 2, Step: 1}, x, b.Input("start", graph.TypeOf(graph.I64))))
		}, "copy"},
		{"an input handed out", func(b *graph.Builder) {
			b.Output("y", b.Input("x", passtest.F64(4, 6)))
		}, "copy"},
		{"a constant handed out", func(b *graph.Builder) {
			b.Output("y", b.Const(graph.Filled(passtest.F64(3), 2)))
		}, "copy"},
		{"a value handed out twice, and kept", func(b *graph.Builder) {
			y := b.Unary(graph.Exp, b.Input("x", passtest.F64(3)))
			b.Output("y", y)
			b.Output("z", b.Reshape(y, 3, 1))
			b.Output("u", y)
			b.Update(b.State("s", passtest.F64(3)), y)
		}, "elementwise{exp} copy copy copy"},
		{"a part of a value handed out", func(b *graph.Builder) {
			y := b.Unary(graph.Exp, b.Input("x", passtest.F64(4, 3)))
			b.Output("y", b.Add(graph.Concat{Axis: 0}, y, y))
			b.Output("z", b.Slice(y, 0, 0, 2, 1))
		}, "elementwise{exp} concat copy"},
		{"states exchanged", func(b *graph.Builder) {
			s, u := b.State("s", passtest.F64(3)), b.State("u", passtest.F64(3))
			b.Update(s, u)
			b.Update(u, s)
		}, "copy copy"},
		{"a copy that was there, handed out twice", func(b *graph.Builder) {
			y := b.Add(graph.Copy{}, b.Input("x", passtest.F64(3)))
			b.Output("y", y)
			b.Output("z", y)
		}, "copy copy"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := passtest.Run(t, graphtest.Built(t, tt.build), passes.Config{})
			if got := passtest.Launches(h); got != tt.want {
				t.Errorf("launches:\n\t%s\nwant:\n\t%s", got, tt.want)
			}
		})
	}
}

// TestPlaceHost names what stays on the host.
func TestPlaceHost(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		b.Output("y", b.Add(graph.Host{Name: "user op", Type: passtest.F64(3)}, b.Input("x", passtest.F64(3))))
	})
	_, tr, err := passes.Run(g, passes.Config{Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	notes := passtest.Stage(t, tr, "place").Notes
	if len(notes) != 1 || notes[0].Text != "user op stays on the host: it is opaque and runs by its own code" {
		t.Errorf("notes %v", notes)
	}
}

// picky is a target without kernels for some operations.
type picky map[string]string

func (picky) Name() string { return "picky" }

func (p picky) Accepts(op graph.Op, _, _ []graph.Type) error {
	if f, ok := op.(graph.Fusion); ok {
		for _, n := range f.Body.Nodes {
			if err := p.Accepts(n.Op, nil, nil); err != nil {
				return err
			}
		}
	}
	if reason := p[op.OpName()]; reason != "" {
		return errors.New(reason)
	}
	return nil
}

// TestCheckLowered names every node that the target refuses, with its reason.
func TestCheckLowered(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", passtest.F64(4, 6))
		n := b.Add(graph.BatchNorm{Eps: 1, Momentum: 0.5, Train: true}, x, b.Param("g", passtest.F64(6)), b.Param("h", passtest.F64(6)),
			b.Param("m", passtest.F64(6)), b.Param("v", passtest.F64(6)))
		b.Output("mean", b.Add(graph.Result{Index: 1}, n))
		b.Output("y", b.Named(b.Add(graph.Concat{Axis: 0}, x, n), "joined"))
	})
	if _, _, err := passes.Run(g, passes.Config{Target: picky{}}); err != nil {
		t.Error(err)
	}
	_, _, err := passes.Run(g, passes.Config{Target: picky{"concat": "no kernel joins", "batch_norm": "no norms here"}})
	for _, want := range []string{"pass check-lowered: ", `concat "joined" (`, ": no kernel joins", ": no norms here"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}
