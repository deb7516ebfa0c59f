package graph_test

import (
	"errors"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// hosted is an operation that hands its operand on, with a gradient of the test's.
type hosted struct {
	gradient func(b *graph.Builder, n, dy *graph.Node) ([]*graph.Node, error)
}

func (*hosted) Do(args []*graph.Tensor) (*graph.Tensor, error) { return args[0], nil }

func (h *hosted) Gradient(b *graph.Builder, n, dy *graph.Node) ([]*graph.Node, error) {
	return h.gradient(b, n, dy)
}

// plainHost has no gradient.
type plainHost struct{ _ byte }

func (*plainHost) Do(args []*graph.Tensor) (*graph.Tensor, error) { return args[0], nil }

// TestHostGradientErrors: the error names the operation whose gradient does not fit, and the graph is unchanged.
func TestHostGradientErrors(t *testing.T) {
	x := graph.TypeOf(graph.F64, 3)
	for want, impl := range map[string]graph.HostImpl{
		`"mine" is opaque and has no gradient`: &plainHost{},
		`"mine": 2 gradients of 1 operands`: &hosted{func(_ *graph.Builder, _, dy *graph.Node) ([]*graph.Node, error) {
			return []*graph.Node{dy, dy}, nil
		}},
		`"mine": the gradient of operand 0 is f64[], not f64[3]`: &hosted{
			func(b *graph.Builder, _, dy *graph.Node) ([]*graph.Node, error) {
				return []*graph.Node{b.Reduce(graph.Sum, dy, false, 0)}, nil
			}},
		`"mine": out of order`: &hosted{func(*graph.Builder, *graph.Node, *graph.Node) ([]*graph.Node, error) {
			return nil, errors.New("out of order")
		}},
	} {
		b := graph.NewBuilder("host")
		in := b.Input("x", x)
		cost := sumAll(b, b.Add(graph.Host{Name: "mine", Type: x, Impl: impl}, in))
		b.Output("cost", cost)
		g := graphtest.Graph(t, b)
		before := len(g.Nodes)
		if _, err := graph.Gradients(g, cost, []*graph.Node{in}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		if len(g.Nodes) != before {
			t.Errorf("%q: %d nodes were left behind", want, len(g.Nodes)-before)
		}
	}
}
