package fpga

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/model"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering"
	"fusec/lowering/host"
	"fusec/passes/passtest"
)

// built is the graph that a function makes.
var built = graphtest.Built

// lowered is the program of a graph.
func lowered(t testing.TB, g *graph.Graph, d *Device) *lowering.Program {
	t.Helper()
	return passtest.Lowered(t, g, d, false)
}

// overlay is a named configuration.
func overlay(t testing.TB, name string) isa.Config {
	t.Helper()
	c, err := isa.Overlay(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// overModel runs programs on the model, which refuses one whose result hangs on the engines' pace.
func overModel(_ context.Context, cfg isa.Config, memory int64) (link.Link, error) {
	return model.New(cfg, model.Options{Memory: memory, Races: true})
}

// bindRandom binds normal random numbers, weights so small that a row of them keeps the scale of what it multiplies.
func bindRandom(t testing.TB, e lowering.Executable, p *lowering.Program, r *rand.Rand) {
	t.Helper()
	for i, b := range p.Buffers {
		if b.Role != lowering.Input && b.Role != lowering.Param {
			continue
		}
		if err := e.Bind(i, randomOf(b, r)); err != nil {
			t.Fatal(err)
		}
	}
}

// randomOf draws a value for a buffer.
func randomOf(b lowering.Buffer, r *rand.Rand) *graph.Tensor {
	v := graph.NewTensor(b.Type)
	scale := 1.0
	if s := b.Type.Shape; b.Role == lowering.Param && s.Rank() > 1 {
		scale = 1 / float64(max(s.At(s.Rank()-2), 8))
		scale = 2 * scale * float64(min(s.At(s.Rank()-2), 8))
	}
	for i := range v.Type.Shape.Elems() {
		v.SetFloat(i, scale*r.NormFloat64())
	}
	return v
}

// compiled is a graph as an executable over the model, with random values.
func compiled(t testing.TB, g *graph.Graph, opts ...Option) (*executable, *lowering.Program) {
	t.Helper()
	return compiledOf(t, g, false, opts...)
}

// compiledOf is compiled with parameters that change only by Bind if frozen is set.
func compiledOf(t testing.TB, g *graph.Graph, frozen bool, opts ...Option) (*executable, *lowering.Program) {
	t.Helper()
	d := New(append([]Option{Over(overModel)}, opts...)...)
	p := passtest.Lowered(t, g, d, frozen)
	x, err := d.Compile(p)
	if err != nil {
		t.Fatalf("%v\n%v", err, p)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	bindRandom(t, x, p, rand.New(rand.NewPCG(7, 11)))
	return x.(*executable), p
}

// own runs the program launch by launch, and finds by how much the results of each depart from what the processor
// makes of the very operands that the overlay had.
func own(t testing.TB, e *executable) []departure {
	t.Helper()
	h, i, err := host.New(e.p, 2, func(*lowering.Launch) bool { return true })
	if err != nil {
		t.Fatalf("launch %d: %v", i, err)
	}
	defer h.Close()
	list := make([]departure, len(e.p.Launches))
	run := func(i int) error {
		l := &e.p.Launches[i]
		for _, v := range l.Args {
			if !e.has(v.Buffer) {
				continue // what leads to gates, which the processor made of the same logits
			}
			whole, err := e.whole(v.Buffer)
			if err != nil {
				return err
			}
			h.Copies[v.Buffer] = whole
		}
		for _, v := range l.Results {
			h.Copies[v.Buffer] = graph.NewTensor(e.p.Buffers[v.Buffer].Type)
		}
		return h.Run(i)
	}
	next := 0
	err = e.runEach(func(i int) error {
		for ; next <= i; next++ {
			if err := run(next); err != nil {
				return err
			}
		}
		for _, r := range e.p.Launches[i].Results {
			if !e.has(r.Buffer) {
				continue
			}
			got, err := e.whole(r.Buffer)
			if err != nil {
				return err
			}
			list[i] = compare(got, h.Copies[r.Buffer])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// wants fails the test if the error is not about the text.
func wants(t testing.TB, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want one about %q", err, text)
	}
}
