package fusec_test

import (
	"math"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph/optim"
)

// Of a Gorgonia graph, whose inner nodes have no names, it says of what the values come.
func TestWatchInGorgonia(t *testing.T) {
	b := newNet(tensor.Float64)
	x, w := b.in("x", 2, 3), b.in("w", 3, 2)
	must(gorgonia.Sum(must(gorgonia.Log(must(gorgonia.Neg(must(gorgonia.Square(must(gorgonia.Mul(x, w))))))))))
	m := machine(t, b.g, fusec.WithWatchNonFinite())
	wantError(t, m.RunAll(), ` of "x" and "w" made NaN of operands without NaN`)
}

// In training the watch ends the run before weights, moments and counters change.
func TestWatchInTraining(t *testing.T) {
	var x *gorgonia.Node
	o := optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.1)}
	_, made, m := trained(t, batches(0, 4, &x), 3, &o, fusec.WithWatchNonFinite())
	before := bits(t, made, m)
	w := made.wrt[0].Value().Data().([]float64)
	good := w[0]
	w[0] = math.NaN()
	m.Reset()
	wantError(t, m.RunAll(), `param "out.weight" holds NaN`)
	w[0] = good
	x.Value().Data().([]float64)[0] = math.Inf(1) // whose tanh has the gradient 0
	m.Reset()
	wantError(t, m.RunAll(), "made NaN of operands without NaN")
	if d := changed(before, bits(t, made, m)); d != nil {
		t.Errorf("the runs that were ended changed %v", d)
	}
	if s := m.StepStats(); s.Steps != 3 || s.Skipped != 0 {
		t.Errorf("the statistics are %+v", s)
	}
}

// An operation that fails leaves weights and moments as they are.
func TestFailedRunLeavesWeights(t *testing.T) {
	b := newNet(tensor.Float64)
	table := b.in("table", 5, 3)
	rows := gorgonia.NewVector(b.g, tensor.Int, gorgonia.WithShape(2), gorgonia.WithName("rows"),
		gorgonia.WithValue(tensor.New(tensor.WithBacking([]int{1, 2}))))
	cost := must(gorgonia.Sum(must(gorgonia.Square(must(gorgonia.ByIndices(table, rows, 0))))))
	if _, err := gorgonia.Grad(cost, table); err != nil {
		t.Fatal(err)
	}
	m := machine(t, b.g, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.1)}))
	run(t, m)
	made := task{cost, gorgonia.Nodes{table}}
	before := bits(t, made, m)
	rows.Value().Data().([]int)[1] = 7
	m.Reset()
	wantError(t, m.RunAll(), "7")
	if d := changed(before, bits(t, made, m)); d != nil {
		t.Errorf("the run that failed changed %v", d)
	}
}
