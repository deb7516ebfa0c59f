package gorgonia

import (
	"testing"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// TestMalformed gives every operation of every test operands that do not fit: the decoder must give up without a trace,
// or make a value of the type that was inferred.
func TestMalformed(t *testing.T) {
	types := []graph.Type{graph.TypeOf(graph.F64), graph.TypeOf(graph.Bool, 2), graph.TypeOf(graph.F64, 1, 1),
		graph.TypeOf(graph.F32, 3, 5), graph.TypeOf(graph.I64, 2, 0, 1, 4)}
	for _, c := range opCases() {
		b := newBuilder()
		y := c.build(b)
		var wrt gorg.Nodes
		for _, name := range c.grad {
			wrt = append(wrt, b.ByName(name)[0])
		}
		if len(wrt) > 0 && y.IsScalar() {
			if _, err := gorg.Grad(y, wrt...); err != nil {
				t.Fatal(err)
			}
		} else if len(wrt) > 0 {
			if _, err := gorg.Grad(must(gorg.Sum(y)), wrt...); err != nil {
				t.Fatal(err)
			}
		}
		im := &importer{Imported: mustImport(t, b.ExprGraph, Options{}), names: map[string]bool{}, shared: map[any][2]*graph.Node{}}
		im.layout, _ = layout()
		im.findUsers()
		for _, n := range b.AllNodes() {
			d, ok := decoders[typeName(n.Op())]
			if !ok {
				continue
			}
			for count := range 4 {
				for _, typ := range types {
					want, err := TypeOf(n)
					if err != nil {
						t.Fatal(err)
					}
					k := &call{importer: im, n: n, op: n.Op(), f: fieldsOf(n.Op()), want: want, b: graph.Extend(im.Graph)}
					for range count {
						k.args = append(k.args, k.b.Input("odd", typ))
					}
					nodes, notes := len(im.Graph.Nodes), len(im.Graph.Notes)
					v, err := k.attempt(d)
					if err == nil && v.Type != want {
						t.Errorf("%s of %d operands of type %v became %v", describeNode(n), count, typ, v.Type)
					}
					if err != nil && (len(im.Graph.Nodes) != nodes || len(im.Graph.Notes) != notes) {
						t.Errorf("%s of %d operands of type %v left a trace", describeNode(n), count, typ)
					}
				}
			}
		}
	}
}

// TestUnfitting puts an operation on operands that it does not take: it runs on the host, and the note says why.
func TestUnfitting(t *testing.T) {
	b := newBuilder()
	x := b.in("x", 3)
	op := must(gorg.Exp(x)).Op()
	y := gorg.NewUniqueNode(gorg.WithType(x.Type()), gorg.WithOp(op), gorg.WithChildren(gorg.Nodes{x, x}), gorg.In(b.ExprGraph),
		gorg.WithShape(3))
	im := mustImport(t, b.ExprGraph, Options{})
	if _, ok := im.Node(y).Op.(graph.Host); !ok || !hasNote(im, "2 operands instead of 1") {
		t.Errorf("%v; notes are %v", im.Node(y).Op, im.Graph.Notes)
	}
}

// TestRepeat repeats elements of an axis that has more than one.
func TestRepeat(t *testing.T) {
	b := newBuilder()
	must(gorg.BroadcastAdd(b.in("x", 2, 3), b.in("y", 1, 3), nil, []byte{0}))
	var op gorg.Op
	for _, n := range b.AllNodes() {
		if typeName(n.Op()) == "repeatOp" {
			op = n.Op()
		}
	}
	x := b.in("z", 2, 3)
	y := must(gorg.ApplyOp(op, x, must(gorg.SizeOf(0, x))))
	im := mustImport(t, b.ExprGraph, Options{})
	if s := im.Node(y).Type.Shape; s != graph.ShapeOf(4, 3) {
		t.Fatalf("shape %v", s)
	}
	sameAsDo(t, im, b.ExprGraph)
	if _, ok := im.Node(y).Op.(graph.Host); ok {
		t.Errorf("runs on the host: %v", im.Graph.Notes)
	}
}

func TestIntegers(t *testing.T) {
	b := newBuilder()
	x, y := b.ints("x", 5, -7, 3), b.ints("y", 2, 2, 2)
	z := must(gorg.Add(must(gorg.HadamardProd(x, y)), gorg.NewConstant(4)))
	must(gorg.Gt(z, y, true))
	must(gorg.Sum(z))
	g := b.ExprGraph
	bools := gorg.NewVector(g, tensor.Bool, gorg.WithShape(2), gorg.WithName("b"),
		gorg.WithValue(dense([]int{2}, []bool{true, false})))
	im := mustImport(t, g, Options{})
	sameAsDo(t, im, g)
	if im.Node(bools).Type != graph.TypeOf(graph.Bool, 2) {
		t.Errorf("bools are %v", im.Node(bools).Type)
	}
}
