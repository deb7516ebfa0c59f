package lowering_test

import (
	"fmt"
	"slices"
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

// TestGathersAhead: parameters are gathered while launches read those before them, small ones together, and few at a time. A value
// that depends on an input is gathered where it is.
func TestGathersAhead(t *testing.T) {
	const layers, width = 12, 1024
	b := graph.NewBuilder("fully sharded")
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	gather := func(x *graph.Node) *graph.Node {
		return b.Add(graph.AllGather{Group: graph.Group{Over: "data", Parts: 2}}, x)
	}
	var gains, weights []*graph.Node // in the graph they come first
	for i := range layers {
		gains = append(gains, gather(b.Param(fmt.Sprint("gain", i), f(width/2))))
		w := b.Param(fmt.Sprint("w", i), f(width/2, width))
		weights = append(weights, gather(b.Add(graph.Cast{To: graph.BF16}, w)))
	}
	y := b.Input("x", f(64, width))
	late := map[*graph.Node]bool{}
	for i := range layers {
		y = b.Add(graph.RMSNorm{Eps: 1e-5}, y, gains[i])
		y = b.MatMul(b.Add(graph.Cast{To: graph.BF16}, y), weights[i], false, false)
		if y.Type.DType != graph.F32 {
			y = b.Add(graph.Cast{To: graph.F32}, y)
		}
		if i == layers/2 {
			y = gather(b.Add(graph.Unary{Fn: graph.Tanh}, b.Slice(y, 0, 0, 32, 1)))
			late[y] = true
		}
	}
	b.Output("y", y)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	g.Mesh, g.Parts = graph.Mesh{{Name: "data", Size: 2}}, true
	p, err := lowering.Lower(g, "cpu")
	if err != nil {
		t.Fatal(err)
	}
	buckets := map[int][]int{} // by number: the launches
	first := map[int]int{}     // by number: the launch that first reads one of them
	readers := make([]int, len(p.Launches))
	for i, l := range p.Launches {
		if _, ok := l.Op.(graph.AllGather); !ok || late[l.Node] != (l.Ahead == 0) {
			if ok || l.Ahead != 0 {
				t.Errorf("launch %d, %s, is of bucket %d", i, l.Op.OpName(), l.Ahead)
			}
			continue
		}
		readers[i] = i + 1 + slices.IndexFunc(p.Launches[i+1:], func(m lowering.Launch) bool {
			return slices.ContainsFunc(m.Args, func(v lowering.View) bool { return v.Buffer == l.Results[0].Buffer })
		})
		if l.Ahead == 0 {
			continue
		}
		if first[l.Ahead] == 0 || readers[i] < first[l.Ahead] {
			first[l.Ahead] = readers[i]
		}
		buckets[l.Ahead] = append(buckets[l.Ahead], i)
		if operand := p.Buffers[l.Args[0].Buffer]; operand.Role == lowering.Temp && operand.Last < readers[i]-1 {
			t.Errorf("the operand of launch %d has memory until launch %d, and its result is read by %d", i, operand.Last, readers[i])
		}
	}
	if len(buckets) < 4 || len(buckets) > 2*layers-8 {
		t.Fatalf("%d buckets of %d gathers", len(buckets), 2*layers)
	}
	for k := 2; k <= len(buckets); k++ {
		last := buckets[k][len(buckets[k])-1]
		if last != buckets[k][0]+len(buckets[k])-1 {
			t.Errorf("bucket %d is launches %v: want one after another", k, buckets[k])
		}
		if last > first[k-1] {
			t.Errorf("bucket %d begins after launch %d, the first that reads one of the bucket before", k, first[k-1])
		}
		if k > 2 && buckets[k][0] < first[k-2] {
			t.Errorf("bucket %d begins at launch %d, before one of bucket %d is read by launch %d", k, buckets[k][0], k-2, first[k-2])
		}
	}
}
