package lowering_test

import (
	"testing"

	"fusec/graph"
	"fusec/lowering"
)

// exchanging has an all-reduce and a reduce-scatter, and launches after them that do not read the results.
func exchanging(t *testing.T, read bool, opts ...lowering.Option) *lowering.Program {
	t.Helper()
	b := graph.NewBuilder("exchanging")
	f := graph.TypeOf(graph.F32, 256, 256)
	of := graph.Group{Over: "data", Parts: 2}
	x, w := b.Input("x", f), b.Param("w", f)
	p := b.MatMul(x, w, false, false)
	all := b.Add(graph.AllReduce{Fn: graph.Sum, Group: of}, b.Reshape(p, 256*256))
	q := b.MatMul(w, x, false, false)
	part := b.Add(graph.ReduceScatter{Fn: graph.Sum, Group: of}, q)
	y := x
	for range 12 {
		y = b.MatMul(y, w, false, false)
	}
	if read {
		y = b.Binary(graph.Add, y, p)
	}
	b.Output("y", y)
	b.Output("all", b.Unary(graph.Neg, all))
	b.Output("part", b.Unary(graph.Neg, part))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	g.Mesh, g.Parts = graph.Mesh{{Name: "data", Size: 2}}, true
	program, err := lowering.Lower(g, "cpu", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// TestExchangesInPlace: an all-reduce writes over its operand if nothing else reads it, and the operands of other exchanges keep
// their memory for some launches, so that these need not wait.
func TestExchangesInPlace(t *testing.T) {
	for _, c := range []struct {
		read bool
		opts []lowering.Option
		over bool
	}{{false, nil, true}, {true, nil, false}, {false, []lowering.Option{lowering.CopyUpdates()}, false}} {
		p := exchanging(t, c.read, c.opts...)
		for i, l := range p.Launches {
			switch l.Op.(type) {
			case graph.AllReduce:
				if over := l.Args[0].Buffer == l.Results[0].Buffer; over != c.over {
					t.Errorf("read %v: it writes over its operand: %v", c.read, over)
				}
			case graph.ReduceScatter:
				if b := p.Buffers[l.Args[0].Buffer]; b.Last != i+8 {
					t.Errorf("the operand of launch %d has memory until launch %d", i, b.Last)
				}
			}
		}
	}
}
