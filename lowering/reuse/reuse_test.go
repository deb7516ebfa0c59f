package reuse

import (
	"testing"

	"fusec/graph"
	"fusec/lowering"
)

// doubled is 2x, and a constant of that many elements, as a request with the names.
func doubled(t *testing.T, input, output string, elems int) *Request {
	t.Helper()
	b := graph.NewBuilder("g")
	x := b.Input(input, graph.TypeOf(graph.F32, elems))
	y := b.Binary(graph.Add, x, b.Const(graph.Filled(x.Type, 1)))
	b.Output(output, y)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return &Request{Graph: g, Nodes: []*graph.Node{x, nil}, Outputs: []string{""}, Key: "cpu"}
}

func lowered(t *testing.T, r *Request) *lowering.Program {
	t.Helper()
	p, err := lowering.Lower(r.Graph, "cpu")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A program is found by an equal request, and renamed for one with other names.
func TestFind(t *testing.T) {
	c := New(10, 1<<20)
	r := doubled(t, "x", "y", 4)
	if e, _ := c.Find(r); e != nil {
		t.Error("an empty cache has a program")
	}
	kept := c.Add(r, lowered(t, r))
	if e, labels := c.Find(doubled(t, "x", "y", 4)); e != kept || !labels {
		t.Errorf("found %v, equal names %v", e, labels)
	}
	renamed := doubled(t, "in", "out", 4)
	e, labels := c.Find(renamed)
	if e != kept || labels {
		t.Fatalf("found %v, equal names %v", e, labels)
	}
	p := e.Labelled(renamed)
	if p.Outputs[0].Name != "out" || kept.Program.Outputs[0].Name != "y" {
		t.Errorf("outputs %q and %q", p.Outputs[0].Name, kept.Program.Outputs[0].Name)
	}
	for i, b := range p.Buffers {
		if b.Role == lowering.Input && (b.Name != "in" || kept.Program.Buffers[i].Name != "x") {
			t.Errorf("inputs %q and %q", b.Name, kept.Program.Buffers[i].Name)
		}
	}
	for name, change := range map[string]func(*Request){
		"names that count": func(r *Request) { r.Labels = true },
		"key":              func(r *Request) { r.Key = "cuda" },
		"other node":       func(r *Request) { r.Nodes[0] = r.Graph.Outputs[0].Node },
		"no node":          func(r *Request) { r.Nodes[0] = nil },
		"fewer nodes":      func(r *Request) { r.Nodes = r.Nodes[:1] },
		"more outputs":     func(r *Request) { r.Outputs = []string{"", "z"} },
		"a named output":   func(r *Request) { r.Outputs = []string{"z"} },
	} {
		other := doubled(t, "in", "out", 4)
		change(other)
		if e, _ := c.Find(other); e != nil {
			t.Errorf("%s: found", name)
		}
	}
	if e, _ := c.Find(doubled(t, "x", "y", 5)); e != nil {
		t.Error("a program of another shape was found")
	}
	if c.Clear(); c.Len() != 0 {
		t.Error("programs are left")
	}
}

// spare takes so many bytes.
type spare int64

func (spare) Executable(*lowering.Program) lowering.Executable { return nil }
func (s spare) Bytes() int64                                   { return int64(s) }

// What was used longest ago goes first, by number and by size, kernels of closed programs included.
func TestLimits(t *testing.T) {
	c := New(2, 1<<16)
	var kept []*Entry
	for elems := 1; elems <= 3; elems++ {
		r := doubled(t, "x", "y", elems)
		kept = append(kept, c.Add(r, lowered(t, r)))
		if elems == 2 {
			c.Find(doubled(t, "x", "y", 1))
		}
	}
	for elems, want := range []bool{true, false, true} {
		if e, _ := c.Find(doubled(t, "x", "y", 1+elems)); (e != nil) != want {
			t.Errorf("%d elements: kept %v", 1+elems, e != nil)
		}
	}
	if c.Leave(kept[1], spare(1)); c.Spares(kept[1]) != 0 {
		t.Error("kernels of a dropped program are kept")
	}
	if c.Leave(kept[0], spare(1<<16)); c.Spares(kept[0]) != 0 {
		t.Error("kernels are kept that are too large")
	}
	for range spares + 2 {
		c.Leave(kept[0], spare(100))
	}
	if n := c.Spares(kept[0]); n != spares {
		t.Errorf("%d kernels of closed programs, want %d", n, spares)
	}
	if s := c.Spare(kept[0]); s != spare(100) || c.Spares(kept[0]) != spares-1 {
		t.Errorf("spare %v", s)
	}
	if s := c.Spare(kept[2]); s != nil {
		t.Errorf("spare %v", s)
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	if r := doubled(t, "x", "y", 1<<14); c.Add(r, lowered(t, r)) != nil {
		t.Error("a program is kept that is too large")
	}
	for range 20 { // until size counts
		c.Leave(kept[2], spare(4000))
		c.Leave(kept[0], spare(4000))
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	c.bytes++
	if c.Check() == nil {
		t.Error("a wrong count was not found")
	}
}

// A graph with the user's own operation cannot be found again.
func TestOpaque(t *testing.T) {
	r := doubled(t, "x", "y", 2)
	if at := Opaque(r.Graph); at != "" {
		t.Errorf("opaque: %s", at)
	}
	b := graph.NewBuilder("g")
	b.Output("y", b.Named(b.Add(graph.Host{Name: "own", Type: graph.TypeOf(graph.F32, 2)}, b.Input("x", graph.TypeOf(graph.F32, 2))),
		"mine"))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	if at := Opaque(g); at == "" {
		t.Error("an operation of the user's own was not found")
	}
}
