package cpu

import (
	"errors"
	"slices"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering"
)

// TestWatch sees what every launch reads, strided operands too, and makes; its error ends a run before the updates.
func TestWatch(t *testing.T) {
	b, body := graph.NewBuilder("watched"), graph.NewBuilder("sum")
	x, s := b.Input("x", graph.TypeOf(graph.F32, 2, 3)), b.State("s", graph.TypeOf(graph.F32, 3, 2))
	body.Output("0", body.Binary(graph.Add, body.Input("a", s.Type), body.Input("b", s.Type)))
	sum := graphtest.Graph(t, body)
	b.Update(s, b.Add(graph.Fusion{Anchor: graph.AnchorNone, Body: sum}, s, b.Transpose(x, 1, 0)))
	g := graphtest.Graph(t, b)
	d := New(Workers(1))
	p, err := lowering.Lower(g, "cpu", lowering.CopyUpdates())
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	value, state := graph.NewTensor(x.Type), graph.NewTensor(s.Type)
	for i := range 6 {
		value.SetFloat(i, float64(i))
	}
	for i, buffer := range p.Buffers {
		switch buffer.Name {
		case "x":
			err = errors.Join(err, e.Bind(i, value))
		case "s":
			err = errors.Join(err, e.Bind(i, state))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	var seen [][]float64
	e.Watch(func(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
		for _, v := range append(slices.Clone(l.Args), l.Results...) {
			x, err := value(v)
			if err != nil {
				return err
			}
			seen = append(seen, x.Floats())
		}
		return stop
	})
	if err := e.Run(); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
	turned := []float64{0, 3, 1, 4, 2, 5}
	if len(seen) != 3 || !slices.Equal(seen[1], turned) || !slices.Equal(seen[2], turned) {
		t.Errorf("the launch read and made %v", seen)
	}
	if !slices.Equal(state.Floats(), make([]float64, 6)) {
		t.Errorf("the state became %v", state.Floats())
	}
	e.Watch(nil)
	if err := e.Run(); err != nil || !slices.Equal(state.Floats(), turned) {
		t.Errorf("the state became %v, %v", state.Floats(), err)
	}
}
