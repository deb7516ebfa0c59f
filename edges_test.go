package fusec_test

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
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
			return gorgonia.HadamardProd(x, must(gorgonia.Gt(x, constant(x, 0), true)))
		},
		"log(1+exp)": func(x node) (node, error) {
			return gorgonia.Log(must(gorgonia.Add(must(gorgonia.Exp(x)), constant(x, 1))))
		},
		"max of all": func(x node) (node, error) { return gorgonia.Max(x) },
		"sum of all": func(x node) (node, error) { return gorgonia.Sum(x) },
		"x ÷ x":      func(x node) (node, error) { return gorgonia.HadamardDiv(x, x) },
		"x − x":      func(x node) (node, error) { return gorgonia.Sub(x, x) },
		"x · 0":      func(x node) (node, error) { return gorgonia.HadamardProd(x, constant(x, 0)) },
		"x ÷ 0":      func(x node) (node, error) { return gorgonia.HadamardDiv(x, constant(x, 0)) },
		"0 − x":      func(x node) (node, error) { return gorgonia.Sub(constant(x, 0), x) },
		"mish":       gorgonia.Mish,
		"mean":       func(x node) (node, error) { return gorgonia.Mean(x) },
		"clip": func(x node) (node, error) {
			return gorgonia.MinBetween(must(gorgonia.MaxBetween(x, filled(x, -1))), filled(x, 1))
		},
		"clip by masks": func(x node) (node, error) {
			low := must(gorgonia.HadamardProd(must(gorgonia.Lt(x, constant(x, -1), true)), constant(x, -1)))
			high := must(gorgonia.HadamardProd(must(gorgonia.Gt(x, constant(x, 1), true)), constant(x, 1)))
			in := must(gorgonia.HadamardProd(must(gorgonia.Lte(must(gorgonia.Abs(x)), constant(x, 1), true)), x))
			return gorgonia.Add(must(gorgonia.Add(low, in)), high)
		},
	} {
		unary(name, false, f)
	}
	for name, f := range map[string]func(node) (node, error){"sign": gorgonia.Sign, "ceil": gorgonia.Ceil, "floor": gorgonia.Floor} {
		unary(name, true, f)
	}
	for _, p := range []float64{0, 1, 2, 3, 0.5, -1, -0.5} {
		unary(fmt.Sprint("x ^ ", p), false, func(x node) (node, error) { return gorgonia.Pow(x, constant(x, p)) })
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
	rows("max of NaN", []float64{math.NaN(), 1, 2, math.NaN()}, tensor.Shape{2, 2}, true,
		func(x node) (node, error) { return gorgonia.Max(x, 1) })
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
	rows("log softmax", masked, tensor.Shape{2, 3}, false, func(x node) (node, error) { return gorgonia.LogSoftMax(x, 1) })
	rows("log of softmax", masked, tensor.Shape{2, 3}, false, func(x node) (node, error) { return gorgonia.Log(must(soft(x))) })
	rows("log sum exp", masked, tensor.Shape{6}, false, func(x node) (node, error) { return gorgonia.LogSumExp(x, 0) })
	some := []float64{1, inf, 3, math.NaN(), -2, 0, inf, -inf, 1}
	rows("sum of rows", some, tensor.Shape{3, 3}, false, func(x node) (node, error) { return gorgonia.Sum(x, 1) })
	rows("mean of columns", some, tensor.Shape{3, 3}, false, func(x node) (node, error) { return gorgonia.Mean(x, 0) })
	rows("norm of absolutes", some, tensor.Shape{9}, false, func(x node) (node, error) { return gorgonia.Norm(x, 0, 1) })
	rows("product", some, tensor.Shape{3, 3}, false, func(x node) (node, error) { return gorgonia.Mul(x, x) })
	rows("norm of 0", []float64{0, 0, 0}, tensor.Shape{3}, false, func(x node) (node, error) { return gorgonia.Norm(x, 0, 2) })
	return list
}

var departures = []departure{
	{"rectify", "", func(x, _ float64) bool { return x == -inf }, "a rectifier"},
	{"leaky", "", func(x, _ float64) bool { return math.IsInf(x, 0) }, "a rectifier"},
	{"leaky", "x", func(x, _ float64) bool { return math.IsNaN(x) }, "a rectifier"},
	{"log(1+exp)", "x", func(x, _ float64) bool { return x >= 89 }, "softplus, written"},
	{"sin", "", large, "float32 functions"},
	{"sin", "x", large, "float32 functions"},
	{"cos", "", large, "float32 functions"},
	{"cos", "x", large, "float32 functions"},
	{"log", "", func(x, _ float64) bool { return x == 1e-40 }, "float32 functions"},
	{"expm1", "", func(x, _ float64) bool { return x == 89 }, "float32 functions"},
	{"x ^ 0.5", "", func(x, _ float64) bool { return x == -inf }, "float32 functions"},
	{"x ^ 0.5", "x", func(x, _ float64) bool { return x == -inf }, "float32 functions"},
	{"x ^ -0.5", "", func(x, _ float64) bool { return x == -inf }, "float32 functions"},
	{"pow", "", func(x, y float64) bool { return x == -inf && y == 0.5 }, "float32 functions"},
	{"pow", "x", func(x, y float64) bool { return x == -inf && y == 0.5 }, "float32 functions"},
	{"log2", "x", nil, "`log2-gradient`"},
	{"inverse sqrt", "x", nil, "`inverse-sqrt-gradient`"},
	{"div", "", func(x, y float64) bool { return y == 0 && (x == 0 || math.IsNaN(x)) }, "0 ÷ 0"},
	{"div", "y", func(x, y float64) bool { return y == 0 && (x == 0 || math.IsNaN(x)) }, "0 ÷ 0"},
	{"x ÷ x", "", func(x, _ float64) bool { return x == 0 }, "0 ÷ 0"},
	{"x ÷ x", "x", func(x, _ float64) bool { return x == 0 }, "0 ÷ 0"},
	{"x ^ 0", "x", func(x, _ float64) bool { return math.Abs(x) <= 1e-40 || math.IsNaN(x) }, "`Pow`"},
	{"pow", "x", func(x, y float64) bool { return y == 0 && (x == 0 || math.IsNaN(x)) }, "`Pow`"},
	{"pow", "y", func(x, y float64) bool { return x == 0 && y > 0 }, "`Pow`"},
	{"max between", "", func(_, y float64) bool { return math.IsNaN(y) }, "NaN in a maximum"},
	{"min between", "", func(_, y float64) bool { return math.IsNaN(y) }, "NaN in a maximum"},
	{"clip", "x", func(x, _ float64) bool { return math.Abs(x) == 1 }, "`tied-pair`"},
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

// constant is a scalar of x's type.
func constant(x *gorgonia.Node, v float64) *gorgonia.Node { return (&net{d: x.Dtype()}).constant(v) }

// filled is a constant of x's type and shape.
func filled(x *gorgonia.Node, v float64) *gorgonia.Node {
	t := tensor.New(tensor.Of(x.Dtype()), tensor.WithShape(x.Shape()...))
	if err := t.Memset((&net{d: x.Dtype()}).constant(v).Value().Data()); err != nil {
		panic(err)
	}
	return gorgonia.NewConstant(t)
}

// large is where the period of sine and cosine has to be subtracted often.
func large(x, _ float64) bool { return math.Abs(x) >= 89 }

// run gives the value of an edge in an element type and, unless it is still, the gradients.
func (e edge) run(t *testing.T, of tensor.Dtype,
	machine func(*gorgonia.ExprGraph, ...gorgonia.VMOpt) gorgonia.VM) map[string][]float64 {
	b := newNet(of)
	x := b.given("x", e.x, e.shape...)
	inputs := gorgonia.Nodes{x}
	var y *gorgonia.Node
	if e.y != nil {
		y = b.given("y", e.y, e.shape...)
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
	for of, tol := range map[tensor.Dtype]float64{tensor.Float64: 1e-9, tensor.Float32: 1e-6} {
		for _, e := range edges() {
			t.Run(fmt.Sprint(of, " ", e.name), func(t *testing.T) { e.compare(t, of, tol, seen) })
		}
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

// compare runs an edge by both machines and marks the departures that explain where they differ.
func (e edge) compare(t *testing.T, dtype tensor.Dtype, tol float64, seen []bool) {
	got := e.run(t, dtype, func(g *gorgonia.ExprGraph, o ...gorgonia.VMOpt) gorgonia.VM { return fusec.NewMachine(g, o...) })
	want := e.run(t, dtype, func(g *gorgonia.ExprGraph, o ...gorgonia.VMOpt) gorgonia.VM { return gorgonia.NewTapeMachine(g, o...) })
	for of := range want {
	elements:
		for i, w := range want[of] {
			v := got[of][i]
			if v == w || math.IsNaN(v) && math.IsNaN(w) || math.Abs(v-w) <= tol*max(1, math.Abs(w)) {
				continue
			}
			x, y := e.x[min(i, len(e.x)-1)], 0.0
			if e.y != nil {
				y = e.y[i]
			}
			for k, d := range departures {
				if strings.HasPrefix(e.name, d.edge) && of == d.of && (d.where == nil || d.where(x, y)) {
					seen[k] = true
					continue elements
				}
			}
			t.Errorf("of %q: element %d, of %v and %v, is %v, Gorgonia computes %v", of, i, x, y, v, w)
		}
	}
}

// TestScalarEdges compares functions of scalars with Gorgonia's machine, which computes them by other code than those of tensors.
func TestScalarEdges(t *testing.T) {
	type node = *gorgonia.Node
	functions := map[string]func(node) (node, error){
		"abs": gorgonia.Abs, "sign": gorgonia.Sign, "ceil": gorgonia.Ceil, "floor": gorgonia.Floor, "sin": gorgonia.Sin,
		"cos": gorgonia.Cos, "exp": gorgonia.Exp, "log": gorgonia.Log, "log2": gorgonia.Log2, "neg": gorgonia.Neg,
		"square": gorgonia.Square, "sqrt": gorgonia.Sqrt, "inverse": gorgonia.Inverse, "inverse sqrt": gorgonia.InverseSqrt,
		"cube": gorgonia.Cube, "tanh": gorgonia.Tanh, "sigmoid": gorgonia.Sigmoid, "log1p": gorgonia.Log1p,
		"expm1": gorgonia.Expm1, "softplus": gorgonia.Softplus,
	}
	run := func(machine func(*gorgonia.ExprGraph) gorgonia.VM) map[string]float64 {
		g, read := gorgonia.NewGraph(), map[string]*gorgonia.Value{}
		for i, v := range numbers {
			x := gorgonia.NewScalar(g, tensor.Float64, gorgonia.WithName(fmt.Sprint("x", i)), gorgonia.WithValue(v))
			for name, f := range functions {
				to := new(gorgonia.Value)
				gorgonia.Read(must(f(x)), to)
				read[fmt.Sprint(name, " of ", v)] = to
			}
		}
		vm := machine(g)
		defer vm.Close()
		if err := vm.RunAll(); err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for name, to := range read {
			got[name] = floats(t, *to)[0]
		}
		return got
	}
	got := run(func(g *gorgonia.ExprGraph) gorgonia.VM { return fusec.NewMachine(g) })
	want := run(func(g *gorgonia.ExprGraph) gorgonia.VM { return gorgonia.NewTapeMachine(g) })
	for name, w := range want {
		v := got[name]
		same := v == w || math.IsNaN(v) && math.IsNaN(w) || math.Abs(v-w) <= 1e-12*max(1, math.Abs(w))
		departs := slices.Contains([]string{"sign of 0", "sign of -0", "sign of NaN"}, name) // of docs/divergences.md
		if same == departs {
			t.Errorf("%s is %v, Gorgonia computes %v", name, v, w)
		}
	}
}

// integers declares an input of an integer type.
func integers[T int | int64 | int32 | byte](g *gorgonia.ExprGraph, name string, v ...T) *gorgonia.Node {
	t := tensor.New(tensor.WithShape(len(v)), tensor.WithBacking(v))
	return gorgonia.NewVector(g, t.Dtype(), gorgonia.WithShape(len(v)), gorgonia.WithName(name), gorgonia.WithValue(t))
}

// TestIntegerEdges compares quotients that are not exact, what overflows, and comparisons of every integer type with Gorgonia's
// machine, and the Go types of the results.
func TestIntegerEdges(t *testing.T) {
	t.Run("int", func(t *testing.T) {
		integerEdges(t, []int{7, -7, math.MaxInt64, math.MinInt64, math.MinInt64, 1<<53 + 1}, []int{-2, 2, 2, 3, -1, 1 << 53})
	})
	t.Run("int64", func(t *testing.T) {
		integerEdges(t, []int64{7, -7, math.MaxInt64, math.MinInt64, math.MinInt64, 1<<53 + 1}, []int64{-2, 2, 2, 3, -1, 1 << 53})
	})
	t.Run("int32", func(t *testing.T) {
		integerEdges(t, []int32{7, -7, math.MaxInt32, math.MinInt32, math.MinInt32, 0}, []int32{-2, 2, 2, 3, -1, 5})
	})
	t.Run("byte", func(t *testing.T) { integerEdges(t, []byte{7, 250, 255, 255, 0, 16}, []byte{2, 10, 255, 1, 1, 16}) })
}

func integerEdges[T int | int64 | int32 | byte](t *testing.T, xs, ys []T) {
	type node = *gorgonia.Node
	comparison := func(f func(x, y node, same bool) (node, error), same bool) func(x, y node) (node, error) {
		return func(x, y node) (node, error) { return f(x, y, same) }
	}
	unary := func(f func(x node) (node, error)) func(x, y node) (node, error) {
		return func(x, _ node) (node, error) { return f(x) }
	}
	for name, f := range map[string]func(x, y node) (node, error){
		"add": gorgonia.Add, "sub": gorgonia.Sub, "mul": gorgonia.HadamardProd, "div": gorgonia.HadamardDiv,
		"max between": gorgonia.MaxBetween, "min between": gorgonia.MinBetween,
		"lt": comparison(gorgonia.Lt, false), "gte": comparison(gorgonia.Gte, false), "eq": comparison(gorgonia.Eq, false),
		"lt as numbers": comparison(gorgonia.Lt, true), "ne as numbers": comparison(gorgonia.Ne, true),
		"sum":             unary(func(x node) (node, error) { return gorgonia.Sum(x) }),
		"max":             unary(func(x node) (node, error) { return gorgonia.Max(x) }),
		"sum of products": func(x, y node) (node, error) { return gorgonia.Sum(must(gorgonia.HadamardProd(x, y))) },
	} {
		run := func(machine func(*gorgonia.ExprGraph) gorgonia.VM) (read, held any) {
			t.Helper()
			g := gorgonia.NewGraph()
			z := must(f(integers(g, "x", slices.Clone(xs)...), integers(g, "y", slices.Clone(ys)...)))
			var value gorgonia.Value
			gorgonia.Read(z, &value)
			vm := machine(g)
			defer vm.Close()
			if err := vm.RunAll(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return value.Data(), z.Value().Data()
		}
		want, _ := run(func(g *gorgonia.ExprGraph) gorgonia.VM { return gorgonia.NewTapeMachine(g) })
		read, held := run(func(g *gorgonia.ExprGraph) gorgonia.VM { return fusec.NewMachine(g) })
		if !reflect.DeepEqual(read, want) || !reflect.DeepEqual(held, want) {
			t.Errorf("%s gives %T %v, and the node holds %T %v; Gorgonia computes %T %v", name, read, read, held, held, want, want)
		}
	}
	// A division by 0 ends the process of Gorgonia's machine; here it is an error.
	g := gorgonia.NewGraph()
	must(gorgonia.HadamardDiv(integers(g, "x", xs...), integers(g, "y", make([]T, len(xs))...)))
	zero := fusec.NewMachine(g)
	defer zero.Close()
	if err := zero.RunAll(); err == nil || !strings.Contains(err.Error(), "zero") {
		t.Errorf("division by 0: %v", err)
	}
}

// TestEmptyTensors runs operations on tensors without elements, on which Gorgonia's machine panics.
func TestEmptyTensors(t *testing.T) {
	for _, of := range []tensor.Dtype{tensor.Float64, tensor.Float32} {
		for name, c := range map[string]struct {
			build func(x *gorgonia.Node) (*gorgonia.Node, error)
			want  []float64
		}{
			"sum":     {func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Sum(x) }, []float64{0}},
			"columns": {func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Sum(x, 0) }, []float64{0, 0, 0}},
			"mean":    {func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Mean(x) }, []float64{math.NaN()}},
			"max":     {func(x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Max(x) }, []float64{-inf}},
			"square":  {gorgonia.Square, nil},
			"exp of sum": {func(x *gorgonia.Node) (*gorgonia.Node, error) {
				return gorgonia.Exp(must(gorgonia.Sum(must(gorgonia.Add(x, x)))))
			}, []float64{1}},
		} {
			b := newNet(of)
			x := b.given("x", nil, 0, 3)
			z := must(c.build(x))
			var value gorgonia.Value
			gorgonia.Read(z, &value)
			opts := []gorgonia.VMOpt{}
			if z.IsScalar() && name != "max" {
				if _, err := gorgonia.Grad(z, x); err != nil {
					t.Fatal(err)
				}
				opts = append(opts, gorgonia.BindDualValues(x))
			}
			m := fusec.NewMachine(b.g, opts...)
			for range 2 {
				if err := m.RunAll(); err != nil {
					t.Fatalf("%v %s: %v", of, name, err)
				}
				sameFloats(t, name, floats(t, value), c.want, 0)
				m.Reset()
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
