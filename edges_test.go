package fusec_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	fgorgonia "fusec/graph/gorgonia"
)

// An edge is an operation on values where arithmetic has its edges.
type edge struct {
	name  string
	x, y  []float64 // y only for operations of two operands
	shape tensor.Shape
	build func(x, y *gorgonia.Node) (*gorgonia.Node, error)
	// still is set where there is no gradient: Gorgonia has none, or its machine ends the process.
	still bool
}

// A departure is where fusec gives something else than Gorgonia's machine: of the operations whose names begin so, in the
// value ("") or the gradient for an operand, for the operands that where holds for (nil: some). why is the row of
// docs/divergences.md.
type departure struct {
	edge, of string
	where    func(x, y float64) bool
	why      string
}

var (
	inf     = math.Inf(1)
	minus0  = math.Copysign(0, -1)
	numbers = []float64{-inf, -1000, -100, -2, -1, -0.5, minus0, 0, 1e-40, 0.5, 1, 2, 89, 1000, inf, math.NaN()}
	plain   = []float64{-inf, -2, -1, minus0, 0, 0.5, 1, 3, inf, math.NaN()}
)

func edges() []edge {
	type node = *gorgonia.Node
	var list []edge
	unary := func(name string, still bool, f func(node) (node, error)) {
		list = append(list, edge{name: name, x: numbers, shape: tensor.Shape{len(numbers)}, still: still,
			build: func(x, _ node) (node, error) { return f(x) }})
	}
	for name, f := range map[string]func(node) (node, error){
		"abs": gorgonia.Abs, "sin": gorgonia.Sin, "cos": gorgonia.Cos, "exp": gorgonia.Exp, "log": gorgonia.Log,
		"log2": gorgonia.Log2, "neg": gorgonia.Neg, "square": gorgonia.Square, "sqrt": gorgonia.Sqrt, "inverse": gorgonia.Inverse,
		"inverse sqrt": gorgonia.InverseSqrt, "cube": gorgonia.Cube, "tanh": gorgonia.Tanh, "sigmoid": gorgonia.Sigmoid,
		"log1p": gorgonia.Log1p, "expm1": gorgonia.Expm1, "softplus": gorgonia.Softplus, "rectify": gorgonia.Rectify,
		"leaky": func(x node) (node, error) { return gorgonia.LeakyRelu(x, 0.1) },
		"rectify by >": func(x node) (node, error) {
			return gorgonia.HadamardProd(x, must(gorgonia.Gt(x, gorgonia.NewConstant(0.0), true)))
		},
		"log(1+exp)": func(x node) (node, error) {
			return gorgonia.Log(must(gorgonia.Add(must(gorgonia.Exp(x)), gorgonia.NewConstant(1.0))))
		},
		"max of all": func(x node) (node, error) { return gorgonia.Max(x) },
		"sum of all": func(x node) (node, error) { return gorgonia.Sum(x) },
		"x ÷ x":      func(x node) (node, error) { return gorgonia.HadamardDiv(x, x) },
		"x − x":      func(x node) (node, error) { return gorgonia.Sub(x, x) },
		"x · 0":      func(x node) (node, error) { return gorgonia.HadamardProd(x, gorgonia.NewConstant(0.0)) },
		"x ÷ 0":      func(x node) (node, error) { return gorgonia.HadamardDiv(x, gorgonia.NewConstant(0.0)) },
		"0 − x":      func(x node) (node, error) { return gorgonia.Sub(gorgonia.NewConstant(0.0), x) },
	} {
		unary(name, false, f)
	}
	for name, f := range map[string]func(node) (node, error){"sign": gorgonia.Sign, "ceil": gorgonia.Ceil, "floor": gorgonia.Floor} {
		unary(name, true, f)
	}
	for _, p := range []float64{0, 1, 2, 3, 0.5, -1, -0.5} {
		unary(fmt.Sprint("x ^ ", p), false, func(x node) (node, error) { return gorgonia.Pow(x, gorgonia.NewConstant(p)) })
	}
	var xs, ys []float64
	for _, x := range plain {
		for _, y := range plain {
			xs, ys = append(xs, x), append(ys, y)
		}
	}
	binary := func(name string, still bool, f func(x, y node) (node, error)) {
		list = append(list, edge{name, xs, ys, tensor.Shape{len(xs)}, f, still})
	}
	for name, f := range map[string]func(x, y node) (node, error){
		"add": gorgonia.Add, "sub": gorgonia.Sub, "mul": gorgonia.HadamardProd, "div": gorgonia.HadamardDiv, "pow": gorgonia.Pow,
		"max between": gorgonia.MaxBetween, "min between": gorgonia.MinBetween,
	} {
		binary(name, false, f)
	}
	for name, f := range map[string]func(x, y node, same bool) (node, error){
		"lt": gorgonia.Lt, "gt": gorgonia.Gt, "lte": gorgonia.Lte, "gte": gorgonia.Gte, "eq": gorgonia.Eq, "ne": gorgonia.Ne,
	} {
		binary(name, true, func(x, y node) (node, error) { return f(x, y, true) })
		binary(name+" as bool", true, func(x, y node) (node, error) { return f(x, y, false) })
	}
	ties := []float64{1, 5, 3, 2, 5, 5, 0, 5, minus0, 0, -1, 5}
	rows := func(name string, x []float64, shape tensor.Shape, still bool, f func(x node) (node, error)) {
		list = append(list, edge{name: name, x: x, shape: shape, still: still, build: func(x, _ node) (node, error) { return f(x) }})
	}
	rows("max of columns", ties, tensor.Shape{3, 4}, false, func(x node) (node, error) { return gorgonia.Max(x, 0) })
	rows("max of rows", ties, tensor.Shape{3, 4}, false, func(x node) (node, error) { return gorgonia.Max(x, 1) })
	rows("max of NaN", []float64{math.NaN(), 1, 2, math.NaN()}, tensor.Shape{2, 2}, true, func(x node) (node, error) { return gorgonia.Max(x, 1) })
	pool := func(x node) (node, error) { return gorgonia.MaxPool2D(x, tensor.Shape{2, 2}, []int{0, 0}, []int{1, 1}) }
	rows("max pool of ties", ties, tensor.Shape{1, 1, 3, 4}, false, pool)
	rows("max pool of NaN", []float64{math.NaN(), 1, -inf, 2, 3, -inf}, tensor.Shape{1, 1, 2, 3}, true, pool)
	rows("max pool of −Inf", []float64{-inf, -inf, -inf, -inf}, tensor.Shape{1, 1, 2, 2}, true, pool)
	masked := []float64{1, 200, 3, 4, -inf, 6}
	soft := func(x node) (node, error) { return gorgonia.SoftMax(x, 1) }
	rows("softmax", masked, tensor.Shape{2, 3}, false, soft)
	rows("softmax of columns", masked, tensor.Shape{2, 3}, false, func(x node) (node, error) { return gorgonia.SoftMax(x, 0) })
	rows("softmax of −Inf", []float64{-inf, -inf}, tensor.Shape{1, 2}, true, soft)
	rows("softmax of +Inf", []float64{1, inf, -inf, 2, 2, 1}, tensor.Shape{2, 3}, true, soft)
	rows("norm of 0", []float64{0, 0, 0}, tensor.Shape{3}, false, func(x node) (node, error) { return gorgonia.Norm(x, 0, 2) })
	return list
}

var departures = []departure{
	{"rectify", "", func(x, _ float64) bool { return x == -inf }, "a rectifier"},
	{"leaky", "", func(x, _ float64) bool { return math.IsInf(x, 0) }, "a rectifier"},
	{"leaky", "x", func(x, _ float64) bool { return math.IsNaN(x) }, "a rectifier"},
	{"log(1+exp)", "x", func(x, _ float64) bool { return x >= 1000 }, "softplus, written"},
	{"log2", "x", nil, "`log2-gradient`"},
	{"inverse sqrt", "x", nil, "`inverse-sqrt-gradient`"},
	{"div", "", func(x, y float64) bool { return y == 0 && (x == 0 || math.IsNaN(x)) }, "0 ÷ 0"},
	{"div", "y", func(x, y float64) bool { return y == 0 && (x == 0 || math.IsNaN(x)) }, "0 ÷ 0"},
	{"x ÷ x", "", func(x, _ float64) bool { return x == 0 }, "0 ÷ 0"},
	{"x ÷ x", "x", func(x, _ float64) bool { return x == 0 }, "0 ÷ 0"},
	{"x ^ 0", "x", func(x, _ float64) bool { return x == 0 || math.IsNaN(x) }, "`Pow`"},
	{"pow", "x", func(x, y float64) bool { return y == 0 && (x == 0 || math.IsNaN(x)) }, "`Pow`"},
	{"pow", "y", func(x, y float64) bool { return x == 0 && y > 0 }, "`Pow`"},
	{"max between", "", func(_, y float64) bool { return math.IsNaN(y) }, "NaN in a maximum"},
	{"min between", "", func(_, y float64) bool { return math.IsNaN(y) }, "NaN in a maximum"},
	{"m", "x", func(x, y float64) bool { return math.IsNaN(y) || x == y }, "`tied-pair`"},
	{"m", "y", func(x, y float64) bool { return math.IsNaN(x) || x == y }, "`tied-pair`"},
	{"max of rows", "x", nil, "`tied-maximum`"},
	{"max of columns", "x", nil, "`tied-maximum`"},
	{"max of all", "x", nil, "NaN in a maximum"},
	{"max of NaN", "", nil, "NaN in a maximum"},
	{"max pool of NaN", "", nil, "NaN in a maximum"},
	{"max pool of −Inf", "", nil, "a window of −Inf"},
	{"softmax of −Inf", "", nil, "a row of −Inf"},
	{"softmax of +Inf", "", func(x, _ float64) bool { return !math.IsInf(x, 1) }, "a row with +Inf"},
}

// run gives the value of an edge and, unless it is still, the gradients.
func (e edge) run(t *testing.T, machine func(*gorgonia.ExprGraph, ...gorgonia.VMOpt) gorgonia.VM) map[string][]float64 {
	b := newNet(tensor.Float64)
	x := b.given("x", append([]float64{}, e.x...), e.shape...)
	inputs := gorgonia.Nodes{x}
	var y *gorgonia.Node
	if e.y != nil {
		y = b.given("y", append([]float64{}, e.y...), e.shape...)
		inputs = append(inputs, y)
	}
	z := must(e.build(x, y))
	var value gorgonia.Value
	gorgonia.Read(z, &value)
	var opts []gorgonia.VMOpt
	if !e.still {
		cost := z
		if !z.IsScalar() {
			cost = must(gorgonia.Sum(must(gorgonia.HadamardProd(z, b.counted("dz", z.Shape()...)))))
		}
		if _, err := gorgonia.Grad(cost, inputs...); err != nil {
			t.Fatal(err)
		}
		opts = append(opts, gorgonia.BindDualValues(inputs...))
	}
	vm := machine(b.g, opts...)
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		t.Fatal(err)
	}
	got := map[string][]float64{"": floats(t, value)}
	if !e.still {
		for _, n := range inputs {
			g, err := n.Grad()
			if err != nil {
				t.Fatal(err)
			}
			got[n.Name()] = floats(t, g)
		}
	}
	return got
}

// TestEdges compares every operation with Gorgonia's machine where arithmetic has its edges, but for the sign of a zero.
// Each departure is listed, and is one.
func TestEdges(t *testing.T) {
	seen := make([]bool, len(departures))
	for _, e := range edges() {
		t.Run(e.name, func(t *testing.T) {
			got := e.run(t, func(g *gorgonia.ExprGraph, o ...gorgonia.VMOpt) gorgonia.VM { return fusec.NewMachine(g, o...) })
			want := e.run(t, func(g *gorgonia.ExprGraph, o ...gorgonia.VMOpt) gorgonia.VM { return gorgonia.NewTapeMachine(g, o...) })
			for of := range want {
			elements:
				for i, w := range want[of] {
					v := got[of][i]
					if v == w || math.IsNaN(v) && math.IsNaN(w) || math.Abs(v-w) <= 1e-9*max(1, math.Abs(w)) {
						continue
					}
					for k, d := range departures {
						if !strings.HasPrefix(e.name, d.edge) || of != d.of {
							continue
						}
						y := 0.0
						if e.y != nil {
							y = e.y[i]
						}
						if d.where == nil || d.where(e.x[min(i, len(e.x)-1)], y) {
							seen[k] = true
							continue elements
						}
					}
					t.Errorf("of %q: element %d is %v, Gorgonia computes %v", of, i, v, w)
				}
			}
		})
	}
	page, err := os.ReadFile("docs/divergences.md")
	if err != nil {
		t.Fatal(err)
	}
	for k, d := range departures {
		if !strings.Contains(string(page), "| "+d.why) {
			t.Errorf("docs/divergences.md has no row %s", d.why)
		}
		if !seen[k] {
			t.Errorf("no departure of %s, for %q: %s", d.edge, d.of, d.why)
		}
	}
}

// TestIntegerEdges compares quotients that are not exact and sums that overflow with Gorgonia's machine. A division by 0
// ends its process; here it is an error.
func TestIntegerEdges(t *testing.T) {
	build := func(divisor int64) (*gorgonia.ExprGraph, []*gorgonia.Value) {
		g := gorgonia.NewGraph()
		in := func(name string, v ...int64) *gorgonia.Node {
			return gorgonia.NewVector(g, tensor.Int64, gorgonia.WithShape(len(v)), gorgonia.WithName(name),
				gorgonia.WithValue(tensor.New(tensor.WithShape(len(v)), tensor.WithBacking(v))))
		}
		x, y := in("x", 7, -7, math.MaxInt64, math.MinInt64), in("y", -2, divisor, 2, 3)
		var values []*gorgonia.Value
		for _, f := range []func(x, y *gorgonia.Node) (*gorgonia.Node, error){
			gorgonia.Add, gorgonia.Sub, gorgonia.HadamardProd, gorgonia.HadamardDiv,
		} {
			values = append(values, new(gorgonia.Value))
			gorgonia.Read(must(f(x, y)), values[len(values)-1])
		}
		return g, values
	}
	g, want := build(2)
	tape := gorgonia.NewTapeMachine(g)
	defer tape.Close()
	if err := tape.RunAll(); err != nil {
		t.Fatal(err)
	}
	g, got := build(2)
	m := fusec.NewMachine(g)
	defer m.Close()
	if err := m.RunAll(); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		v, err := fgorgonia.ToTensor(*got[i])
		if err != nil {
			t.Fatal(err)
		}
		if w := (*want[i]).Data().([]int64); !slices.Equal(v.Data.([]int64), w) {
			t.Errorf("operation %d gives %v, Gorgonia computes %v", i, v.Data, w)
		}
	}
	g, _ = build(0)
	zero := fusec.NewMachine(g)
	defer zero.Close()
	if err := zero.RunAll(); err == nil || !strings.Contains(err.Error(), "zero") {
		t.Errorf("division by 0: %v", err)
	}
}
