package ref_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
)

// TestMesh simulates collective operations of two participants.
func TestMesh(t *testing.T) {
	two := graph.Group{Over: "a", Parts: 2}
	for want, op := range map[string]graph.Op{
		"[4 6 8 10] [4 6 8 10]":               graph.AllReduce{Fn: graph.Sum, Group: two},
		"[2 3 4 5] [2 3 4 5]":                 graph.AllReduce{Fn: graph.Mean},
		"[4 5 6 7] [4 5 6 7]":                 graph.AllReduce{Fn: graph.MaxOf, Group: two},
		"[0 1 2 3] [0 1 2 3]":                 graph.AllReduce{Fn: graph.MinOf, Group: two},
		"[4 6] [8 10]":                        graph.ReduceScatter{Fn: graph.Sum, Axis: 0, Group: two},
		"[4 8] [6 10]":                        graph.ReduceScatter{Fn: graph.Sum, Axis: 1, Group: two},
		"[0 1 2 3 4 5 6 7] [0 1 2 3 4 5 6 7]": graph.AllGather{Axis: 0, Group: two},
		"[0 1 4 5 2 3 6 7] [0 1 4 5 2 3 6 7]": graph.AllGather{Axis: 1, Group: two},
		"[0 2 4 6] [1 3 5 7]":                 graph.AllToAll{Split: 1, Join: 0, Group: two},
		"[0 2] [5 7]":                         graph.Part{Axis: 1, Group: two},
		"[4 5 6 7] [0 1 2 3]":                 graph.Permute{Shift: -1, Group: two},
		"[4 5 6 7] [4 5 6 7] ":                graph.BroadcastFrom{Root: 1, Group: two},
	} {
		b := graph.NewBuilder("")
		y := b.Add(op, b.Input("x", graph.TypeOf(graph.F64, 2, 2)))
		b.Output("y", y)
		g := graphtest.Graph(t, b)
		g.Mesh = graph.Mesh{{Name: "a", Size: 2}}
		in := make([]map[string]*graph.Tensor, 2)
		for r := range in {
			x := graph.NewTensor(graph.TypeOf(graph.F64, 2, 2))
			for i := range 4 {
				x.SetFloat(i, float64(4*r+i))
			}
			in[r] = map[string]*graph.Tensor{"x": x}
		}
		out, _, err := ref.Mesh(g, in)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(out[0]["y"].F, out[1]["y"].F); got != strings.TrimSpace(want) {
			t.Errorf("%#v: %s, want %s", op, got, want)
		}
		if _, _, err := ref.Mesh(g, in[:1]); err == nil {
			t.Error("one participant of two is accepted")
		}
	}
}

// TestCollectiveGradients compares the gradients of collective operations with finite differences of the sum over all
// participants.
func TestCollectiveGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	three := graph.Group{Parts: 3}
	for _, op := range []graph.Op{graph.AllReduce{Fn: graph.Sum, Group: three}, graph.AllReduce{Fn: graph.Mean, Group: three},
		graph.AllReduce{Fn: graph.MaxOf, Group: three}, graph.ReduceScatter{Fn: graph.Sum, Axis: 1, Group: three},
		graph.ReduceScatter{Fn: graph.Mean, Axis: 0, Group: three}, graph.AllGather{Axis: 1, Group: three},
		graph.AllToAll{Split: 0, Join: 1, Group: three}, graph.Part{Axis: 1, Group: three}, graph.Permute{Shift: 1, Group: three},
		graph.BroadcastFrom{Root: 2, Group: three}} {
		typ := graph.TypeOf(graph.F64, 3, 6)
		b := graph.NewBuilder("")
		x := b.Input("x", typ)
		y := b.Add(op, x)
		w := b.Input("w", y.Type) // so that participants' terms differ
		cost := b.Reduce(graph.Sum, b.Binary(graph.Mul, w, b.Unary(graph.Square, y)), false, 0, 1)
		b.Output("cost", cost)
		g := graphtest.Graph(t, b)
		grads, err := graph.Gradients(g, cost, []*graph.Node{x})
		if err != nil {
			t.Fatal(err)
		}
		g.Outputs = append(g.Outputs, graph.Output{Name: "dx", Node: grads[0]})
		g.Mesh = graph.Mesh{{Name: "a", Size: 3}}
		in := make([]map[string]*graph.Tensor, 3)
		for i := range in {
			in[i] = map[string]*graph.Tensor{"x": graphtest.Tensor(r, typ), "w": graphtest.Tensor(r, w.Type)}
		}
		total := func() (sum float64, dx []ref.Value) {
			out, _, err := ref.Mesh(g, in)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range out {
				sum += o["cost"].F[0]
				dx = append(dx, o["dx"])
			}
			return sum, dx
		}
		_, dx := total()
		const h = 1e-6
		for p := range in {
			for i := range typ.Shape.Elems() {
				at := in[p]["x"].Float(i)
				in[p]["x"].SetFloat(i, at+h)
				up, _ := total()
				in[p]["x"].SetFloat(i, at-h)
				down, _ := total()
				in[p]["x"].SetFloat(i, at)
				if d := (up-down)/(2*h) - dx[p].F[i]; d > 1e-6 || d < -1e-6 {
					t.Fatalf("%#v: participant %d, element %d: the gradient is %v, differences give %v", op, p, i, dx[p].F[i], (up-down)/(2*h))
				}
			}
		}
	}
}
