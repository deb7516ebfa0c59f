package estimate_test

import (
	"testing"
	"time"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/estimate"
)

// program has a product, an all-reduce of its result, and two more products: one that reads it and one that does not.
func program(t *testing.T, reads bool) *lowering.Program {
	t.Helper()
	b := graph.NewBuilder("steps")
	f := graph.TypeOf(graph.F32, 100, 100)
	x, w := b.Input("x", f), b.Param("w", f)
	y := b.MatMul(x, w, false, false)
	r := b.Add(graph.AllReduce{Fn: graph.Sum, Group: graph.Group{Over: "data", Parts: 2}}, y)
	next := x
	if reads {
		next = r
	}
	b.Output("z", b.MatMul(next, b.Add(graph.Copy{}, w), false, false))
	b.Output("r", b.Add(graph.Copy{}, r))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	g.Mesh, g.Parts = graph.Mesh{{Name: "data", Size: 2}}, true
	p, err := lowering.Lower(g, "cpu")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestOf(t *testing.T) {
	m := estimate.Machine{FLOPS: 1e9, Bytes: 1e15, Link: 40e6, Latency: time.Millisecond}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	// A product takes 2 ms, the all-reduce 40,000 bytes at 40 MB/s and two messages: 3 ms.
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if d := got - want; d > 10*time.Microsecond || d < -10*time.Microsecond {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	hidden, exposed := estimate.Of(program(t, false), m), estimate.Of(program(t, true), m)
	for _, s := range []estimate.Step{hidden, exposed} {
		near("computing", s.Compute, 4*time.Millisecond)
		near("exchanging", s.Exchange, 3*time.Millisecond)
		near("in order", s.Ordered(), 7*time.Millisecond)
		if s.Sent != 40000 {
			t.Errorf("%d bytes are sent", s.Sent)
		}
		if s.Memory < 2*40000 {
			t.Errorf("%d bytes of memory", s.Memory)
		}
	}
	near("exposed, if the next product does not wait", hidden.Exposed, time.Millisecond)
	near("exposed, if it waits", exposed.Exposed, 3*time.Millisecond)
	if (estimate.Machine{FLOPS: 1, Bytes: 1}).Check() == nil {
		t.Error("a machine without links is accepted")
	}
}

// TestExchanges tells of each exchange what it sends and how long it takes, once.
func TestExchanges(t *testing.T) {
	p := program(t, true)
	for range 2 {
		estimate.Exchanges(p, estimate.Links{Rate: 40e6, Latency: time.Millisecond})
	}
	n := 0
	for _, l := range p.Launches {
		if len(l.Estimates) == 0 {
			continue
		}
		n++
		if len(l.Estimates) != 2 || l.Estimates.Get(estimate.SentBytes) != 40000 || l.Estimates.Get(estimate.ExchangeTime) != 3000 {
			t.Errorf("%v: %v", l.Node, l.Estimates)
		}
	}
	if n != 1 {
		t.Errorf("%d launches have estimates", n)
	}
}

// TestPipeline has two stages of one product, for each of three microbatches, and of another one at the end.
func TestPipeline(t *testing.T) {
	b := graph.NewBuilder("stages")
	f := graph.TypeOf(graph.F32, 100, 100)
	y := b.Input("x", f)
	w := b.Param("w", f)
	for range 4 {
		y = b.MatMul(y, w, false, false)
	}
	b.Output("y", y)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	p, err := lowering.Lower(g, "cpu")
	if err != nil {
		t.Fatal(err)
	}
	p.Microbatches = 3
	p.Stages = []lowering.Stage{{Launches: 2, Each: 1, Sent: 40000, Memory: 7}, {Launches: 2, Each: 1, Memory: 9}}
	s := estimate.Of(p, estimate.Machine{FLOPS: 1e9, Bytes: 1e15, Link: 40e6, Latency: time.Millisecond})
	// Products take 2 ms, and a message 3 ms. The other stage's microbatch and four messages are waited for.
	want := estimate.Step{Compute: 8 * time.Millisecond, Exchange: 14 * time.Millisecond, Exposed: 14 * time.Millisecond, Sent: 120000,
		Memory: 9}
	if s != want {
		t.Errorf("the step is %+v, want %+v", s, want)
	}
}

// TestFitted has launches take as long as they were measured to, and leaves links as they are.
func TestFitted(t *testing.T) {
	p := program(t, true)
	was := estimate.Machine{FLOPS: 1e9, Bytes: 1e15, Link: 40e6, Latency: time.Millisecond, Launch: time.Millisecond}
	m := was.Fitted(p, 500*time.Microsecond)
	if got := estimate.Of(p, m).Compute; got < 499*time.Microsecond || got > 501*time.Microsecond {
		t.Errorf("the launches take %v", got)
	}
	if m.Link != was.Link || m.Latency != was.Latency {
		t.Errorf("its links are %+v", m)
	}
	for name, m := range estimate.Devices {
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExperts: of split experts a participant computes its part of the tokens' choices.
func TestExperts(t *testing.T) {
	took := func(split bool) time.Duration {
		b := graph.NewBuilder("experts")
		f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
		b.Output("y", b.Add(graph.MoE{Experts: 8, Activation: graph.Relu, Stacked: true, TopK: 2}, b.Input("x", f(64, 16)),
			b.Input("gates", f(64, 8)), b.Param("up", f(8, 16, 32)), b.Param("down", f(8, 32, 16))))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		g.Mesh, g.Parts = graph.Mesh{{Name: "expert", Size: 4}}, true
		for _, n := range g.Sources() {
			if n.Sharding = graph.Replicated; split && n.Type.Shape.Rank() == 3 {
				n.Sharding.Split[0] = 1
			}
		}
		p, err := lowering.Lower(g, "cpu")
		if err != nil {
			t.Fatal(err)
		}
		return estimate.Of(p, estimate.Machine{FLOPS: 1e6, Bytes: 1e15, Link: 1e9}).Compute
	}
	if whole, part := took(false), took(true); whole < 3*part || whole > 5*part {
		t.Errorf("experts that are split in four take %v, whole ones %v", part, whole)
	}
}
