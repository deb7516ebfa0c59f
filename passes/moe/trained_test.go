package moe_test

import (
	"slices"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/cmd/models/zoo"
)

// TestMoEOfGorgoniaTrained checks that Gorgonia's backward, which reads the hidden values, does not prevent the fusion,
// and that the mixture is differentiated as one.
func TestMoEOfGorgoniaTrained(t *testing.T) {
	m := zoo.MoEBlock(5, 6, 8, 3)
	cost := gorgonia.Must(gorgonia.Sum(gorgonia.Must(gorgonia.Square(m.Output))))
	if _, err := gorgonia.Grad(cost, m.Params...); err != nil {
		t.Fatal(err)
	}
	x := tensor.New(tensor.WithShape(5, 6), tensor.WithBacking(tensor.Random(tensor.Float32, 30)))
	if err := gorgonia.Let(m.Input, x); err != nil {
		t.Fatal(err)
	}
	vm := fusec.NewMachine(m.Graph, gorgonia.BindDualValues(m.Params...))
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, f := range vm.Fusions() {
		if f.Kind == "moe" {
			kinds = append(kinds, f.Kind)
		}
	}
	if !slices.Equal(kinds, []string{"moe", "moe"}) {
		t.Errorf("the launches of mixtures are %v, want one and its gradient", kinds)
	}
}
