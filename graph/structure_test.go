package graph

import (
	"math"
	"reflect"
	"slices"
	"testing"
)

// structured is a small graph with a constant, a float attribute, an update and two outputs, under other labels or
// with a part of its structure changed.
func structured(t *testing.T, change string) *Graph {
	t.Helper()
	is := func(s string) bool { return s == change }
	pick := func(yes bool, a, b string) string {
		if yes {
			return b
		}
		return a
	}
	size, alpha, factor := 3, 0.0, 2.0
	if is("size") {
		size = 4
	}
	if is("sign of zero") {
		alpha = math.Copysign(0, -1)
	}
	if is("constant") {
		factor = math.Nextafter(2, 3)
	}
	fn := Add
	if is("function") {
		fn = Sub
	}
	d := F64
	if is("dtype") {
		d = F32
	}
	b := NewBuilder(pick(is("labels"), "g", "h"))
	x, w := b.Input(pick(is("labels"), "x", "y"), TypeOf(d, 2, size)), b.Param(pick(is("labels"), "w", "v"), TypeOf(d, 2, size))
	if is("kind") {
		w = b.Input("w2", TypeOf(d, 2, size))
	}
	s := b.State("s", TypeOf(d))
	u := b.Add(Unary{Fn: LeakyRelu, Alpha: alpha}, x)
	v := b.Binary(fn, u, w)
	if is("order of operands") {
		v = b.Binary(fn, w, u)
	}
	k := b.BinaryScalar(Mul, v, factor)
	sum := b.Reduce(Sum, k, false, 0, 1)
	if is("labels") {
		b.Named(sum, "total")
	}
	b.Output(pick(is("labels"), "k", "l"), k)
	if is("output") {
		b.Output("sum", v)
	} else {
		b.Output("sum", sum)
	}
	if !is("update") {
		b.Update(s, sum)
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Graphs that differ in labels alone have one structure, and every other difference is one of structure.
func TestSameStructure(t *testing.T) {
	g, same, labels := structured(t, ""), structured(t, ""), structured(t, "labels")
	clone, _ := g.Clone()
	for _, h := range []*Graph{g, same, labels, clone} {
		if !SameStructure(g, h) || !SameStructure(h, g) || StructureHash(g) != StructureHash(h) {
			t.Errorf("the structures of %q and %q differ", g.Name, h.Name)
		}
	}
	same.Notes = []Note{{Text: "a note", Node: same.Nodes[0]}}
	if noted, _ := same.Clone(); SameLabels(g, same) || !SameLabels(same, noted) {
		t.Error("notes are no labels")
	}
	if !SameLabels(g, clone) || SameLabels(g, labels) {
		t.Errorf("labels: of a clone %v, of other names %v", SameLabels(g, clone), SameLabels(g, labels))
	}
	for _, change := range []string{"size", "sign of zero", "constant", "function", "dtype", "kind", "order of operands", "output",
		"update"} {
		h := structured(t, change)
		if SameStructure(g, h) || SameStructure(h, g) {
			t.Errorf("a change of the %s is not seen", change)
		}
		if change != "sign of zero" && StructureHash(g) == StructureHash(h) {
			t.Errorf("the hash does not depend on the %s", change)
		}
	}
}

// IDs of any size are labels only.
func TestStructureOfLargeIDs(t *testing.T) {
	g, h := structured(t, ""), structured(t, "")
	for _, n := range h.Nodes {
		n.ID += 1_000_000_000
	}
	if !SameStructure(g, h) || StructureHash(g) != StructureHash(h) {
		t.Error("large IDs change the structure")
	}
	if SameLabels(g, h) {
		t.Error("IDs are no labels")
	}
	for _, g := range []*Graph{g, h} {
		at := Positions(g)
		for i, n := range g.Nodes {
			if at.Of(n) != i {
				t.Errorf("node %d is at %d", i, at.Of(n))
			}
		}
		if i := at.Of(&Node{ID: g.Nodes[1].ID}); i != -1 {
			t.Errorf("a node of no graph is at %d", i)
		}
	}
}

type codeOfNothing struct{ HostImpl }

// Host operations of different code, which has no structure that can be looked at, differ.
func TestStructureOfHosts(t *testing.T) {
	make := func(impl HostImpl) *Graph {
		b := NewBuilder("host")
		x := b.Input("x", TypeOf(F32, 2))
		b.Output("y", b.Add(Host{Name: "op", Type: TypeOf(F32, 2), Impl: impl}, x))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	one, two := &codeOfNothing{}, &struct {
		codeOfNothing
		int
	}{}
	if !SameStructure(make(one), make(one)) || SameStructure(make(one), make(two)) {
		t.Error("the code of host operations is not compared")
	}
}

// Every attribute of every operation is a value that == compares whole, or one of those that sameOp looks into.
func TestAttributesCompareExactly(t *testing.T) {
	var plain func(t reflect.Type) bool
	plain = func(t reflect.Type) bool {
		switch t.Kind() {
		case reflect.Struct:
			for i := range t.NumField() {
				if f := t.Field(i).Type; f.Kind() != reflect.Float64 && !plain(f) {
					return false
				}
			}
			return true
		case reflect.Array:
			return plain(t.Elem())
		}
		return slices.Contains([]reflect.Kind{reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
			reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.String}, t.Kind())
	}
	var floats func(t reflect.Type) int
	floats = func(t reflect.Type) (n int) {
		switch t.Kind() {
		case reflect.Float64:
			return 1
		case reflect.Struct:
			for i := range t.NumField() {
				n += floats(t.Field(i).Type)
			}
		}
		return n
	}
	for _, info := range Ops() {
		switch info.Proto.(type) {
		case Const, Fusion, Host:
			continue
		}
		if t1 := reflect.TypeOf(info.Proto); !plain(t1) || floats(t1) != len(floatAttrs[t1]) {
			t.Errorf("%s has an attribute that neither == nor floatAttrs compares exactly", info.Name)
		}
	}
}
