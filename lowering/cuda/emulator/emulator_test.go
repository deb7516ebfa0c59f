package emulator_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering/cuda/cudatest"
)

// TestElementwise runs generated kernels on operands of all layouts.
func TestElementwise(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var checks []cudatest.Check
	for i := range 12 {
		shape := []int{1 + r.IntN(5), 1 + r.IntN(9), 4 * (1 + r.IntN(20))}
		body := graph.New("")
		b := graph.Extend(body)
		x := b.Add(graph.Input{Type: graph.TypeOf(graph.F32, shape...)})
		y := b.Add(graph.Input{Type: graph.TypeOf(graph.F32, shape...)})
		b.Output("z", b.Unary(graph.GeluErf, b.Binary(graph.Mul, x, b.Unary(graph.Tanh, y))))
		if err := b.Err(); err != nil {
			t.Fatal(err)
		}
		c := cudatest.Check{Name: fmt.Sprint(i, shape), Op: graph.Fusion{Body: body}}
		for _, n := range []*graph.Node{x, y} {
			c.Args = append(c.Args, graphtest.Tensor(r, n.Type))
			c.ArgLayouts = append(c.ArgLayouts, cudatest.Layout(r, n.Type.Shape, true))
		}
		c.ResultLayouts = []graph.Layout{cudatest.Layout(r, x.Type.Shape, false)}
		checks = append(checks, c)
	}
	cudatest.Run(t, cudatest.Emulator(t), checks...)
}
