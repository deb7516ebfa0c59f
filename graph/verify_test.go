package graph_test

import (
	"strings"
	"testing"

	"fusec/graph"
)

func TestVerify(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(g *graph.Graph)
	}{
		{"", func(*graph.Graph) {}},
		{"have the same ID 0", func(g *graph.Graph) { g.Nodes[1].ID = 0 }},
		{"operand 0 (\"x\") is not a node before it", func(g *graph.Graph) { g.Nodes[0], g.Nodes[3] = g.Nodes[3], g.Nodes[0] }},
		{"has type f32[4], its operands give f32[3]", func(g *graph.Graph) { g.Nodes[3].Type = graph.TypeOf(graph.F32, 4) }},
		{"takes 1 operand, not 0", func(g *graph.Graph) { g.Nodes[3].Args = nil }},
		{"operand 0 is missing", func(g *graph.Graph) { g.Nodes[3].Args[0] = nil }},
		{"is not in the table", func(g *graph.Graph) { g.Nodes[3].Op = alienOp{} }},
		{"has no operation", func(g *graph.Graph) { g.Nodes[3].Op = nil }},
		{"has no operation", func(g *graph.Graph) { g.Nodes[3] = nil }},
		{"has no name", func(g *graph.Graph) { g.Nodes[0].Name = "" }},
		{"have the same name", func(g *graph.Graph) { g.Nodes[1].Name = "x" }},
		{"has no value", func(g *graph.Graph) { g.Nodes[2].Op = graph.Const{} }},
		{"holds 2 elements", func(g *graph.Graph) {
			g.Nodes[2].Op = graph.Const{Value: &graph.Tensor{Type: vec, Data: make([]float32, 2)}}
		}},
		{"has no body", func(g *graph.Graph) { g.Nodes[4].Op = graph.Fusion{} }},
		{"body of fusion %4", func(g *graph.Graph) { g.Nodes[4].Op.(graph.Fusion).Body.Nodes[1].ID = 0 }},
		{"a fusion's body holds only inputs", func(g *graph.Graph) {
			g.Nodes[4].Op.(graph.Fusion).Body.Nodes[1].Op = graph.Param{Type: vec}
		}},
		{"nested deeper than 4", func(g *graph.Graph) {
			for range 5 {
				body := graph.New("")
				x, _ := body.Add(graph.Input{Type: vec})
				f, _ := body.Add(g.Nodes[4].Op, x)
				body.Outputs = []graph.Output{{Name: "y", Node: f}}
				g.Nodes[4].Op = graph.Fusion{Body: body}
			}
		}},
		{`output "y" is not a node`, func(g *graph.Graph) { g.Outputs[0].Node = nil }},
		{`two outputs are named "y"`, func(g *graph.Graph) { g.Outputs = append(g.Outputs, g.Outputs[0]) }},
		{"neither state nor parameter", func(g *graph.Graph) { g.Updates[0].Target = g.Nodes[0] }},
		{"not a node of the graph", func(g *graph.Graph) { g.Updates[0].Value = nil }},
		{"not a node of the graph", func(g *graph.Graph) { g.Updates[0].Target = &graph.Node{Op: graph.State{Type: vec}, Type: vec} }},
		{"with a value of type f32[]", func(g *graph.Graph) { g.Updates[0].Value = g.Nodes[2] }},
		{"is updated twice", func(g *graph.Graph) { g.Updates = append(g.Updates, g.Updates[0]) }},
	} {
		g, err := graph.Parse("m.graph", []byte(`fusec graph 1 {
			x = input : f32[3]
			s = state : f32[3]
			c = const[value=1] : f32
			%3 = unary[fn=neg] x
			%4 = fusion[anchor=none kind=elementwise] %3 {
				%0 = input : f32[3]
				%1 = unary[fn=neg] %0
				output y = %1
			}
			output y = %4
			update s = %3
		}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		c.change(g)
		err = graph.Verify(g)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

// TestVerifyAnchors refuses bodies that hold other anchors than their Fusion's, or not as many as a launch computes.
func TestVerifyAnchors(t *testing.T) {
	const product, sum = "y = matmul x x\n", "z = reduce[fn=sum axes=[1]] x\n"
	for _, c := range []struct{ anchor, body, output, want string }{
		{"none", product + sum, "z", `matmul "y" (m.graph:5) has no place in a fusion of anchor none`},
		{"none", sum, "z", "no place in a fusion of anchor none"},
		{"row", product + sum, "z", "no place in a fusion of anchor row"},
		{"matmul", product + sum, "z", "no place in a fusion of anchor matmul"},
		{"matmul", product + "z = matmul y y\n", "z", "a fusion of anchor matmul with 2 of them"},
		{"matmul", product + "z = matmul x x\n", "z", ""}, // several products, for user-defined kernels
		{"moe", "y = unary[fn=neg] x\n", "y", "a fusion of anchor moe without one"},
		{"matmul", product + "z = reduce[fn=sum axes=[0]] y\n", "z", ""}, // a column sum
		{"row", sum + "y = reduce[fn=max axes=[1]] x\n", "y", ""},
	} {
		_, err := graph.Parse("m.graph", []byte("fusec graph 1 {\nm = input : f32[3,3]\nr = fusion[anchor="+c.anchor+
			" kind=matmul] m {\nx = input : f32[3,3]\n"+c.body+"output \"\" = "+c.output+"\n}\noutput r = r\n}"), nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("anchor %s of\n%sgives error %v, want one with %q", c.anchor, c.body, err, c.want)
		}
	}
}

func TestVerifyReportsAll(t *testing.T) {
	g := graph.New("")
	for range 3 {
		add(t, g, graph.Input{Type: vec})
	}
	if n := strings.Count(graph.Verify(g).Error(), "has no name"); n != 3 {
		t.Errorf("%d of 3 violations", n)
	}
}
