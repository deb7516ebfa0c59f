package graph_test

import (
	"fmt"
	"strings"
	"testing"

	"fusec/graph"
)

// trainingGraph has every form of the statements of training; its nodes have the names of their words.
const trainingGraph = `fusec graph 2 "training" {
  x = input : f32[2,3]
  w = param : f32[3,3]
  by = param : f32[3,3]
  y = matmul x w : f32[2,3]
  z = matmul y by : f32[2,3]
  step = reduce[axes=[0,1] fn=sum keep=false] z : f32[]
  seed = state : f32[]
  %7 value = const[value=2] : f32[]
  %8 = broadcast[shape=[3,3]] value : f32[3,3] backward
  output step = step
  gradient "of w" = step by w
  gradient by = step by by seed seed value %8 wanted
  mark %8 = step by w seed value wanted
  mark z = step by y
  mark y by x
  optimiser adamw[clip=1 rate=0.001]
  step w = step
  step by = step seed seed value %8 rate 0.5 nodecay
}
`

// TestTrainingText checks that gradients and the optimiser survive the text form, a clone and a dropped node.
func TestTrainingText(t *testing.T) {
	g, err := graph.Parse("m.graph", []byte(trainingGraph), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := g.Clone()
	if err := c.Tidy(); err != nil {
		t.Fatal(err)
	}
	if err := graph.Equal(g, c); err != nil {
		t.Error(err)
	}
	text := graph.Print(c)
	again, err := graph.Parse("m.graph", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := graph.Equal(g, again); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(trainingGraph) {
		if f := strings.Fields(line); len(f) > 2 && f[1] != "=" && f[2] != "=" && !strings.Contains(text, strings.TrimSpace(line)) {
			t.Errorf("%q is not in\n%s", line, text)
		}
	}
	if o := g.Training; o.Pos != "m.graph:17" || len(o.Steps) != 2 || o.Steps[1].Rate != 0.5 || o.Steps[1].Seed != g.Lookup("seed") {
		t.Errorf("%+v", o)
	}
	if c.Gradients[0].Cost == g.Gradients[0].Cost || c.Training.Steps[0].Param == g.Training.Steps[0].Param {
		t.Error("a clone shares nodes")
	}
	if got := fmt.Sprintf("%q", g.OutputNames()); got != `["step" "of w" "by"]` {
		t.Errorf("outputs %s", got)
	}
	if text, err := graph.Optimiser.MarshalText(); string(text) != "optimiser" || err != nil {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := graph.Phase(9).MarshalText(); err == nil {
		t.Error("phase 9 has a name")
	}
	w := g.Lookup("w")
	for i, change := range []func(*graph.Graph){
		func(g *graph.Graph) { g.Gradients[2].Wanted = false },
		func(g *graph.Graph) { g.Gradients[0].Of = g.Lookup("by") },
		func(g *graph.Graph) { g.Training = nil },
		func(g *graph.Graph) { g.Training.Steps[1].NoDecay = false },
		func(g *graph.Graph) { g.Training.Settings[0].Value = "2" },
		func(g *graph.Graph) { g.Training.Rule = "sgd" },
	} {
		d, _ := g.Clone()
		if change(d); graph.Equal(g, d) == nil {
			t.Errorf("change %d is not seen", i)
		}
	}
	d, to := g.Clone()
	d.Replace(map[*graph.Node]*graph.Node{to[w]: d.Lookup("by")})
	if d.Gradients[0].Of != d.Lookup("by") {
		t.Error("a gradient's node was not replaced")
	}
}

func TestTrainingErrors(t *testing.T) {
	head, _, _ := strings.Cut(trainingGraph, "  gradient \"of w\"")
	for _, c := range []struct{ line, want string }{
		{`gradient step = step by w`, `m.graph:12:10: two outputs are named "step"`},
		{`gradient d by w`, `m.graph:12:12: expected '=' and the cost, found by`},
		{`gradient d = step w`, `m.graph:12:19: expected 'by' and a node, found w`},
		{`gradient d = step by nothing`, `nothing is not defined above`},
		{`gradient d = step by w wanted wanted`, `expected the end of the line, found wanted`},
		{`mark y by x seed seed`, `expected the end of the line, found seed`},
		{`mark "none" by x`, `"none" is not defined above`},
		{`step w = step`, `a step comes after its optimiser`},
		{`optimiser [rate=1]`, `expected an optimiser's rule, such as adamw`},
		{`optimiser sgd[rate=[1]]`, `rate of an optimiser is a number`},
		{`optimiser sgd[rate=1 rate=2]`, `rate is given twice`},
		{"optimiser sgd\noptimiser sgd", `a second optimiser; the first is in m.graph:12`},
		{"optimiser sgd\nstep x = step", `a step of input "x" (m.graph:2), which is not a parameter`},
		{"optimiser sgd\nstep w", `the step of param "w" (m.graph:3) has neither a cost nor a gradient`},
		{"optimiser sgd\nstep w = step\nstep w = step", `param "w" (m.graph:3) has two steps`},
		{"optimiser sgd\nstep w = step rate 0", `expected a factor of the learning rate, more than 0, found 0`},
		{"optimiser sgd\nstep w = step rate inf", `expected a factor of the learning rate, more than 0, found inf`},
		{"f = fusion[anchor=none kind=linear] {\n c = const[value=1] : f32\n output y = c\n mark c by c\n}",
			`m.graph:15:2: a fusion's body has no mark`},
	} {
		_, err := graph.Parse("m.graph", []byte(head+c.line+"\n}"), nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\n got  %v\n want %s", c.line, err, c.want)
		}
	}
	many := "fusec graph 2 {\n  w = param : f32\n"
	for i := range 3000 {
		many += fmt.Sprintf("  c%d = copy w\n  gradient d%d = c%d by w\n", i, i, i)
	}
	if _, err := graph.Parse("m.graph", []byte(many+"}"), nil); err == nil ||
		!strings.Contains(err.Error(), "gradients of 3000 costs in a graph of 3001 nodes") {
		t.Errorf("gradients of 3000 costs: %v", err)
	}
	g, err := graph.Parse("m.graph", []byte(trainingGraph), nil)
	if err != nil {
		t.Fatal(err)
	}
	other := graph.New("other")
	for i, change := range []func(*graph.Graph){
		func(g *graph.Graph) { g.Gradients[0].Of = nil },
		func(g *graph.Graph) { g.Gradients[0].Output = "" },
		func(g *graph.Graph) { g.Gradients[0].Cost = nil },
		func(g *graph.Graph) { g.Gradients[1].Output = "step" },
		func(g *graph.Graph) { g.Gradients[2].Cost = nil },
		func(g *graph.Graph) { g.Gradients[2].Value = &graph.Node{ID: 3, Op: graph.Input{}} },
		func(g *graph.Graph) { g.Training.Steps[0].Param = nil },
		func(g *graph.Graph) { other.Training = g.Training; *g = *other },
	} {
		d, _ := g.Clone()
		if change(d); graph.Verify(d) == nil {
			t.Errorf("change %d passes", i)
		}
	}
}
