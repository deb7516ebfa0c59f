package cpu

import (
	"errors"
	"testing"

	"fusec/graph"
)

// hostFunc is a host operation made of a function.
type hostFunc struct {
	f func(args []*graph.Tensor) (*graph.Tensor, error)
}

// Do implements graph.HostImpl.
func (h *hostFunc) Do(args []*graph.Tensor) (*graph.Tensor, error) { return h.f(args) }

func TestHost(t *testing.T) {
	for _, d := range allTypes {
		x := graph.Filled(graph.TypeOf(d, 2, 3), 1)
		op := graph.Host{Name: "twin", Type: x.Type, Impl: &hostFunc{func(args []*graph.Tensor) (*graph.Tensor, error) {
			return args[0].Clone(), nil
		}}}
		checkOp(t, op, x)
	}
}

func TestHostErrors(t *testing.T) {
	typ := graph.TypeOf(graph.F32, 2)
	x := []*graph.Tensor{graph.NewTensor(typ)}
	op := func(f func([]*graph.Tensor) (*graph.Tensor, error)) graph.Host {
		return graph.Host{Name: "odd", Type: typ, Impl: &hostFunc{f}}
	}
	gives := func(y *graph.Tensor, err error) graph.Host {
		return op(func([]*graph.Tensor) (*graph.Tensor, error) { return y, err })
	}
	wantError(t, graph.Host{Name: "odd", Type: typ}, x, "host operation odd has no implementation: the graph was read from a file")
	wantError(t, gives(nil, errors.New("no luck")), x, "odd", "no luck")
	wantError(t, gives(nil, nil), x, "odd", "no value")
	wantError(t, gives(graph.NewTensor(graph.TypeOf(graph.F32, 3)), nil), x, "odd", "type f32[3], not f32[2]")
	wantError(t, gives(&graph.Tensor{Type: typ, Data: []float32{1}}, nil), x, "odd", "holds 1 elements")
	wantError(t, gives(&graph.Tensor{Type: typ, Data: []float64{1, 2}}, nil), x, "odd", "type f32[2] holds 2 elements of f64")
	wantError(t, op(func([]*graph.Tensor) (*graph.Tensor, error) { panic("oh") }), x, "odd", "panic: oh")
}
