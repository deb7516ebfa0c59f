package gorgonia

import (
	"fmt"
	"reflect"
	"testing"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// TestPositions looks up nodes whose IDs are those of others, out of range or negative, and nodes that were not added.
func TestPositions(t *testing.T) {
	var nodes []*gorg.Node
	for range 2 { // two graphs number their nodes alike
		g := gorg.NewGraph()
		for i := range 5 {
			nodes = append(nodes, gorg.NewScalar(g, tensor.Float32, gorg.WithName(fmt.Sprint("x", i))))
		}
	}
	p := newPositions(nodes[:3])
	stranger := gorg.NewScalar(gorg.NewGraph(), tensor.Float32, gorg.WithName("stranger"))
	for i, n := range nodes {
		if at := p.of(n); at != -1 {
			t.Errorf("node %d is at %d before it is added", i, at)
		}
		p.add(n)
	}
	for i, n := range nodes {
		if at := p.of(n); at != i {
			t.Errorf("node %d is at %d", i, at)
		}
	}
	if p.of(nil) != -1 || p.of(stranger) != -1 {
		t.Errorf("nil is at %d, a node that was not added at %d", p.of(nil), p.of(stranger))
	}
}

// TestSet adds numbers twice, few and many.
func TestSet(t *testing.T) {
	for _, n := range []int{1, 4, 5, 16, 17, 40} {
		var s set[int]
		for round := range 2 {
			for i := range n {
				if new := s.add(i); new != (round == 0) {
					t.Errorf("%d numbers, round %d: adding %d gave %v", n, round, i, new)
				}
			}
		}
	}
}

// TestFieldIndex reads fields of two types of one name, through an embedded struct as well, twice each.
func TestFieldIndex(t *testing.T) {
	type inner struct{ n int }
	type first struct {
		a bool
		inner
	}
	type second struct{ n, m int }
	for range 2 {
		if f := fieldsOf(first{true, inner{3}}); f.int("n") != 3 || !f.bool("a") || f.err != nil {
			t.Errorf("first: %d, %v", f.int("n"), f.err)
		}
		if f := fieldsOf(&second{5, 6}); f.int("n") != 5 || f.int("m") != 6 || f.err != nil {
			t.Errorf("second: %d %d, %v", f.int("n"), f.int("m"), f.err)
		}
		if f := fieldsOf(second{}); f.int("k") != 0 || f.err == nil {
			t.Error("a field that the type lacks was found")
		}
	}
}

// TestOptionsAreReadApart reads options of every kind and then none: what one call reads does not reach the next.
func TestOptionsAreReadApart(t *testing.T) {
	g := gorg.NewGraph()
	x := gorg.NewScalar(g, tensor.Float32, gorg.WithName("x"))
	for kind, opts := range map[VMKind][]gorg.VMOpt{
		TapeMachine: {gorg.BindDualValues(x), gorg.EvalMode(), gorg.TraceExec(), gorg.WithWatchlist(x), gorg.WithNaNWatch(),
			gorg.WithInfWatch(), gorg.WithValueFmt("%v")},
		LispMachine: {gorg.ExecuteFwdOnly(), gorg.WithManualGradient(), gorg.WithWatchlist(x), gorg.LogBothDir(),
			gorg.WithValueFmt("%v")},
	} {
		before, err := ReadOptions(kind, nil)
		if err != nil {
			t.Fatal(err)
		}
		if given, err := ReadOptions(kind, nil, opts...); err != nil || reflect.DeepEqual(given, before) {
			t.Errorf("%v: the options read as %+v, %v", kind, given, err)
		}
		if after, err := ReadOptions(kind, nil); err != nil || !reflect.DeepEqual(after, before) {
			t.Errorf("%v: without options %+v, before %+v, %v", kind, after, before, err)
		}
	}
}

// TestOriginsOfEqualOperations compares the descriptions that imports keep with those of the operations themselves.
func TestOriginsOfEqualOperations(t *testing.T) {
	g := gorg.NewGraph()
	x := gorg.NewMatrix(g, tensor.Float64, gorg.WithName("x"), gorg.WithShape(3, 3))
	y := gorg.NewMatrix(g, tensor.Float64, gorg.WithName("y"), gorg.WithShape(3, 3))
	var last *gorg.Node
	for range 3 {
		last = gorg.Must(gorg.Mul(gorg.Must(gorg.Tanh(gorg.Must(gorg.Add(x, y)))), gorg.Must(gorg.Gt(x, y, true))))
		x, y = last, gorg.Must(gorg.HadamardProd(last, gorg.Must(gorg.Lt(x, last, true))))
	}
	im := mustImport(t, g, Options{})
	seen := 0
	for _, n := range g.AllNodes() {
		if n.Op() == nil {
			continue
		}
		v := im.Node(n)
		if want := []graph.Origin{originOf(n)}; !reflect.DeepEqual(v.Origin, want) {
			t.Errorf("%v: origin %v, not %v", n, v.Origin, want)
		}
		seen++
	}
	if seen < 12 {
		t.Errorf("%d operations", seen)
	}
}
