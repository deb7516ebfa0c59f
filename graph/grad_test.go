package graph_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// withoutGradient lists the operations that have no gradient rule, and why.
var withoutGradient = map[string]string{
	"input":  "has no operands",
	"param":  "has no operands",
	"state":  "has no operands",
	"const":  "has no operands",
	"random": "its one operand, the seed, is an integer",
	"result": "is routed to its node by the driver",
	"fusion": "has that of its body",

	"quantize":      "is a step",
	"dequantize":    "reads weights that are not trained",
	"pack_weights":  "reads weights that are not trained",
	"matmul_panels": "reads weights that are not trained",
}

func TestEveryOpHasAGradient(t *testing.T) {
	for _, info := range graph.Ops() {
		own := info.Grad != nil || info.Decompose != nil // a composite without a rule has that of its decomposition
		if _, none := withoutGradient[info.Name]; none == own {
			t.Errorf("%s: gradient %v, listed as without %v", info.Name, own, none)
		}
	}
}

// weightedSum makes a scalar of a node: the sum of its elements times fixed weights.
func weightedSum(b *graph.Builder, n *graph.Node, r *rand.Rand) *graph.Node {
	if !n.Type.DType.IsFloat() {
		n = b.CastTo(graph.F64, n)
	}
	w := b.Const(cases.Arg{Type: n.Type, Lo: -1, Hi: 1}.Draw(r))
	return sumAll(b, b.Binary(graph.Mul, n, w))
}

// sumAll is the sum of all elements, as f64.
func sumAll(b *graph.Builder, n *graph.Node) *graph.Node {
	if n.Type.DType != graph.F64 {
		n = b.Add(graph.Cast{To: graph.F64}, n)
	}
	axes := make([]int, n.Type.Shape.Rank())
	for i := range axes {
		axes[i] = i
	}
	return b.Reduce(graph.Sum, n, false, axes...)
}

// gradientGraph makes the case's graph with the output "cost" and, for each float operand xi, the output "dxi"; the
// second-order one has instead a cost made of the first gradients.
func gradientGraph(t *testing.T, c cases.Case, second bool) (g *graph.Graph, wrt []string) {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 6))
	g = graphtest.Graph(t, c)
	b := graph.Extend(g)
	outputs := g.Outputs
	if c.Op.OpName() == "batch_norm" {
		outputs = outputs[:1] // the running statistics carry no gradient
	}
	cost := b.Scalar(graph.F64, 0)
	for _, o := range outputs {
		cost = b.Binary(graph.Add, cost, weightedSum(b, o.Node, r))
	}
	var xs []*graph.Node
	for i, s := range g.Sources() {
		if stats := c.Op.OpName() == "batch_norm" && i >= 3; s.Type.DType.IsReal() && !stats {
			xs = append(xs, s)
			wrt = append(wrt, s.Name)
		}
	}
	grads, err := graph.Gradients(g, cost, xs)
	if err != nil {
		t.Fatal(err)
	}
	if second {
		cost = b.Scalar(graph.F64, 0)
		for _, d := range grads {
			cost = b.Binary(graph.Add, cost, weightedSum(b, d, r))
		}
		if grads, err = graph.Gradients(g, cost, xs); err != nil {
			t.Fatal(err)
		}
	}
	g.Outputs = nil
	b.Output("cost", cost)
	for i, d := range grads {
		b.Output("d"+wrt[i], d)
		if d.Type != xs[i].Type.Accumulator() {
			t.Errorf("the gradient of %v has type %v, not %v", xs[i], d.Type, xs[i].Type.Accumulator())
		}
	}
	if _, err := b.Graph(); err != nil {
		t.Fatal(err)
	}
	return g, wrt
}

func evalRef(t *testing.T, g *graph.Graph, in map[string]*graph.Tensor) map[string]*graph.Tensor {
	t.Helper()
	out, _, err := ref.Eval(g, in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// compareWithDifferences compares the outputs "dx" with central differences of the output "cost". Where one of the
// closed operands is zero, the cost jumps and the gradient has to be zero.
func compareWithDifferences(t *testing.T, g *graph.Graph, in map[string]*graph.Tensor, wrt []string, closed ...string) {
	t.Helper()
	got := evalRef(t, g, in)
	forward, _ := g.Clone()
	forward.Outputs = slices.DeleteFunc(forward.Outputs, func(o graph.Output) bool { return o.Name != "cost" })
	if err := forward.Tidy(); err != nil {
		t.Fatal(err)
	}
	cost := func() float64 { return evalRef(t, forward, in)["cost"].Float(0) }
	r := rand.New(rand.NewPCG(7, 8))
	for _, name := range wrt {
		x, dx := in[name], got["d"+name]
		var open []int
		for i := range x.Type.Shape.Elems() {
			if x.Float(i) != 0 || !slices.Contains(closed, name) {
				open = append(open, i)
			} else if d := dx.Float(i); d != 0 {
				t.Errorf("d%s[%d] is %.9g where it is closed", name, i, d)
			}
		}
		var moves [][]int // of elements that change together
		r.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
		for i := range open[:min(len(open), mostDifferences)] {
			moves = append(moves, open[i:i+1])
		}
		if len(open) > mostDifferences {
			moves = append(moves, open, open)
		}
		was := x.Clone()
		for _, at := range moves {
			const h = 1e-5
			step := make([]float64, len(at))
			d, sum := 0.0, 0.0 // along the move, and of its parts without their signs
			for k, i := range at {
				step[k] = max(1, math.Abs(was.Float(i))) / math.Sqrt(float64(len(at)))
				if r.IntN(2) == 0 {
					step[k] = -step[k]
				}
				part := step[k] * dx.Float(i)
				d, sum = d+part, sum+math.Abs(part)
			}
			move := func(by float64) float64 {
				for k, i := range at {
					x.SetFloat(i, was.Float(i)+by*step[k])
				}
				return cost()
			}
			up := move(h)
			want := (up - move(-h)) / (2 * h)
			move(0)
			if !(math.Abs(d-want) <= 1e-6*(1+sum+math.Abs(want)+math.Abs(up))) {
				t.Errorf("along %d elements of %s, from %d, the derivative is %.9g, by differences %.9g", len(at), name, at[0], d, want)
			}
		}
	}
}

// mostDifferences is how many elements of an operand are compared one by one. If there are more, they are compared along
// random directions, too.
const mostDifferences = 6

// TestGradients compares the gradients of every operation, and the gradients of those, with finite differences.
func TestGradients(t *testing.T) {
	for _, c := range cases.All(graph.F64) {
		name := c.Op.OpName()
		if _, none := withoutGradient[name]; none && name != "fusion" {
			continue
		}
		for _, order := range []string{"first", "second"} {
			t.Run(c.Name+"/"+order, func(t *testing.T) {
				in := c.Inputs(rand.New(rand.NewPCG(1, 2)))
				g, wrt := gradientGraph(t, c, order == "second")
				var closed []string
				for i, a := range c.Args {
					if a.Sparse {
						closed = append(closed, fmt.Sprint("x", i))
					}
				}
				compareWithDifferences(t, g, in, wrt, closed...)
			})
		}
	}
}

// TestGradientsF32 checks that the rules keep to the operands' element type.
func TestGradientsF32(t *testing.T) {
	for _, c := range cases.All(graph.F32) {
		if _, none := withoutGradient[c.Op.OpName()]; none {
			continue
		}
		t.Run(c.Name, func(t *testing.T) { gradientGraph(t, c, false) })
	}
}

// TestCompositeGradients compares the rules of the composites with the gradients of their decompositions.
func TestCompositeGradients(t *testing.T) {
	for _, c := range cases.All(graph.F64) {
		info := graph.InfoOf(c.Op)
		if info.Decompose == nil {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			in := c.Inputs(rand.New(rand.NewPCG(1, 2)))
			own, wrt := gradientGraph(t, c, false)
			rule := info.Grad
			defer func() { info.Grad = rule }()
			info.Grad = nil
			decomposed, _ := gradientGraph(t, c, false)
			got, want := evalRef(t, own, in), evalRef(t, decomposed, in)
			for _, name := range wrt {
				for i, w := range want["d"+name].Floats() {
					if d := got["d"+name].Float(i); math.Abs(d-w) > 1e-11*(1+math.Abs(w)) {
						t.Errorf("d%s[%d] is %v, by the decomposition %v", name, i, d, w)
					}
				}
			}
		})
	}
}

// TestGradientChoices states what the rules choose where a derivative does not exist or a formula would give NaN.
func TestGradientChoices(t *testing.T) {
	unary := func(f graph.UnaryFn) graph.Op { return graph.Unary{Fn: f, Alpha: 0.25} }
	last := func(f graph.ReduceFn) graph.Op { return graph.Reduce{Fn: f, Axes: graph.IntsOf(3)} }
	inf := math.Inf(1)
	for _, c := range []struct {
		op   graph.Op
		x, y []float64 // y only for operations of two operands
		want []float64 // for x
	}{
		{unary(graph.Abs), []float64{0, -2}, nil, []float64{0, -1}},
		{unary(graph.Relu), []float64{0, 2, -2, inf}, nil, []float64{0, 1, 0, 1}},
		{unary(graph.LeakyRelu), []float64{0, 2, -2}, nil, []float64{0.25, 1, 0.25}},
		{graph.Unary{Fn: graph.Relu, AtZero: graph.RightSlope}, []float64{0, 2, -2, inf}, nil, []float64{1, 1, 0, 1}},
		{graph.Unary{Fn: graph.Relu, AtZero: graph.MeanSlope}, []float64{0, 2, -2, inf}, nil, []float64{0.5, 1, 0, 1}},
		{graph.Unary{Fn: graph.LeakyRelu, Alpha: 0.25, AtZero: graph.RightSlope}, []float64{0, 2, -2}, nil, []float64{1, 1, 0.25}},
		{graph.Unary{Fn: graph.LeakyRelu, Alpha: 0.25, AtZero: graph.MeanSlope}, []float64{0, 2, -2}, nil, []float64{0.625, 1, 0.25}},
		{graph.Unary{Fn: graph.Elu, Alpha: 0.25, AtZero: graph.RightSlope}, []float64{0, 2000, -2000}, nil, []float64{1, 1, 0}},
		{unary(graph.Elu), []float64{0, 2000, -2000}, nil, []float64{0.25, 1, 0}},
		{unary(graph.Softplus), []float64{2000, -2000}, nil, []float64{1, 0}},
		{unary(graph.Silu), []float64{2000, -2000}, nil, []float64{1, 0}},
		{unary(graph.Round), []float64{0.5, 3.2}, nil, []float64{0, 0}},
		{graph.Binary{Fn: graph.Max}, []float64{1, 2, 3}, []float64{2, 2, 2}, []float64{0, 0.5, 1}},
		{graph.Binary{Fn: graph.Min}, []float64{1, 2, 3}, []float64{2, 2, 2}, []float64{1, 0.5, 0}},
		{graph.Binary{Fn: graph.Pow}, []float64{0, 0, 3}, []float64{0, 1, 0}, []float64{0, 1, 0}},
		{last(graph.MaxOf), []float64{3, 1, 3}, nil, []float64{0.5, 0, 0.5}},
		{last(graph.MinOf), []float64{3, 1, 3}, nil, []float64{0, 1, 0}},
		{last(graph.Prod), []float64{2, 3, 4}, nil, []float64{12, 8, 6}},
		{last(graph.Prod), []float64{2, 0, 4}, nil, []float64{0, 8, 0}},
		{last(graph.Prod), []float64{2, 0, 0}, nil, []float64{0, 0, 0}},
		{graph.Softmax{Axis: 3}, []float64{-inf, -inf}, nil, []float64{0, 0}},
		{graph.Pool{Kernel: graph.IntsOf(1, 2), Stride: graph.IntsOf(1, 2), Pad: graph.IntsOf(0, 0, 0, 0)},
			[]float64{5, 5, 1, 2}, nil, []float64{1, 0, 0, 1}},
	} {
		b := graph.NewBuilder("choice")
		x := b.Input("x", graph.TypeOf(graph.F64, 1, 1, 1, len(c.x)))
		in := map[string]*graph.Tensor{"x": {Type: x.Type, Data: c.x}}
		args := []*graph.Node{x}
		if c.y != nil {
			args = append(args, b.Input("y", x.Type))
			in["y"] = &graph.Tensor{Type: x.Type, Data: c.y}
		}
		cost := sumAll(b, b.Add(c.op, args...))
		b.Output("cost", cost)
		g := graphtest.Graph(t, b)
		d, err := graph.Gradients(g, cost, []*graph.Node{x})
		if err != nil {
			t.Fatal(err)
		}
		b.Output("dx", d[0])
		if got := evalRef(t, g, in)["dx"].Floats(); !slices.Equal(got, c.want) {
			t.Errorf("%v at %v: gradient %v, want %v", c.op, c.x, got, c.want)
		}
	}
}

// TestGradPow covers constant exponents, whose rules are simpler, and the exponent's own gradient at 0.
func TestGradPow(t *testing.T) {
	for _, p := range []float64{-1, 0, 0.5, 1, 2, 3} {
		t.Run(fmt.Sprint(p), func(t *testing.T) {
			b := graph.NewBuilder("pow")
			x := b.Input("x", graph.TypeOf(graph.F64, 3))
			cost := sumAll(b, b.BinaryScalar(graph.Pow, x, p))
			b.Output("cost", cost)
			g := graphtest.Graph(t, b)
			d, err := graph.Gradients(g, cost, []*graph.Node{x})
			if err != nil {
				t.Fatal(err)
			}
			b.Output("dx", d[0])
			xs, _ := graph.TensorOf([]float64{0.5, 1, 3}, 3)
			compareWithDifferences(t, g, map[string]*graph.Tensor{"x": xs}, []string{"x"})
		})
	}
	b := graph.NewBuilder("exponent")
	y := b.Input("y", graph.TypeOf(graph.F64))
	cost := b.Binary(graph.Pow, b.Scalar(graph.F64, 0), y)
	b.Output("cost", cost)
	g := graphtest.Graph(t, b)
	d, err := graph.Gradients(g, cost, []*graph.Node{y})
	if err != nil {
		t.Fatal(err)
	}
	b.Output("dy", d[0])
	if got := evalRef(t, g, map[string]*graph.Tensor{"y": graph.Scalar(graph.F64, 2)})["dy"].Float(0); got != 0 {
		t.Errorf("d(0^y)/dy is %v, want 0", got)
	}
}

// TestGradientsDriver differentiates a small model with shared values, a wrt in the middle and one that is not reached.
func TestGradientsDriver(t *testing.T) {
	b := graph.NewBuilder("driver")
	x := b.Input("x", graph.TypeOf(graph.F64, 3))
	unused := b.Input("unused", graph.TypeOf(graph.F32, 2, 3))
	index := b.Input("index", graph.TypeOf(graph.I64))
	h := b.Binary(graph.Mul, x, x)                                             // x²
	k := b.Add(graph.Cast{To: graph.F64}, b.Add(graph.Cast{To: graph.I64}, x)) // carries no gradient
	y := b.Binary(graph.Add, b.Binary(graph.Mul, h, h), b.Binary(graph.Add, k, b.Add(graph.Gather{}, x, index)))
	cost := sumAll(b, y)
	b.Output("cost", cost)
	g := graphtest.Graph(t, b)
	n := len(g.Nodes)
	grads, err := graph.Gradients(g, cost, []*graph.Node{x, h, unused, cost})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"dx", "dh", "dunused", "dcost"} {
		b.Output(name, grads[i])
	}
	appended := len(g.Nodes)
	if _, err := b.Graph(); err != nil {
		t.Fatal(err)
	}
	if len(g.Nodes) != appended {
		t.Errorf("%d of %d appended nodes are not needed", appended-len(g.Nodes), appended-n)
	}
	for _, d := range g.Nodes[n:] {
		if len(d.Origin) == 0 {
			t.Errorf("%s has no origin", d.Where())
		}
	}
	xs, _ := graph.TensorOf([]float64{1, 2, 3}, 3)
	out := evalRef(t, g, map[string]*graph.Tensor{"x": xs, "index": graph.Scalar(graph.I64, 1),
		"unused": graph.NewTensor(unused.Type)})
	for name, want := range map[string][]float64{
		"dx":      {4, 32 + 3, 108}, // 4x³, and 1 from each of the three that read element 1
		"dh":      {2, 8, 18},
		"dunused": make([]float64, 6),
		"dcost":   {1},
	} {
		if got := out[name].Floats(); !slices.Equal(got, want) {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
}

// TestVJP goes through two outputs, a Fusion that reads one operand twice, and its second result.
func TestVJP(t *testing.T) {
	vector := graph.TypeOf(graph.F64, 2)
	f := graph.NewBuilder("body")
	p, q := f.Input("p", vector), f.Input("q", vector)
	f.Output("product", f.Binary(graph.Mul, p, q))
	f.Output("square", f.Unary(graph.Square, q))
	body := graphtest.Graph(t, f)
	b := graph.NewBuilder("vjp")
	x, dy, dz := b.Input("x", vector), b.Input("dy", vector), b.Input("dz", vector)
	y := b.Add(graph.Fusion{Body: body}, x, x)
	z := b.Add(graph.Result{Index: 1}, y)
	if b.Err() != nil {
		t.Fatal(b.Err())
	}
	b.Output("y", y)
	b.Output("z", z)
	g := graphtest.Graph(t, b)
	grads, err := graph.VJP(g, []*graph.Node{y, z, z}, []*graph.Node{dy, dz, dy}, []*graph.Node{x, z})
	if err != nil {
		t.Fatal(err)
	}
	b.Output("dx", grads[0])
	b.Output("dz", grads[1])
	if _, err := b.Graph(); err != nil {
		t.Fatal(err)
	}
	tensor := func(v ...float64) *graph.Tensor { return &graph.Tensor{Type: vector, Data: v} }
	out := evalRef(t, g, map[string]*graph.Tensor{"x": tensor(3, 5), "dy": tensor(1, 10), "dz": tensor(100, 0)})
	if got := out["dx"].Floats(); !slices.Equal(got, []float64{6 + 606, 100 + 100}) {
		t.Errorf("dx = %v", got)
	}
	if got := out["dz"].Floats(); !slices.Equal(got, []float64{101, 10}) {
		t.Errorf("dz = %v", got)
	}
}

func TestGradientErrors(t *testing.T) {
	scalar := graph.TypeOf(graph.F32)
	b := graph.NewBuilder("errors")
	x := b.Input("x", scalar)
	v := b.Input("v", graph.TypeOf(graph.F32, 2))
	i := b.Input("i", graph.TypeOf(graph.I64))
	opaque := b.Named(b.Add(graph.Host{Name: "mine", Type: scalar}, x), "opaque")
	f := graph.NewBuilder("body")
	f.Output("y", f.Add(graph.Host{Name: "mine", Type: scalar}, f.Input("x", scalar)))
	body := graphtest.Graph(t, f)
	fused := b.Add(graph.Fusion{Body: body}, x)
	b.Output("opaque", opaque)
	b.Output("fused", fused)
	g := graphtest.Graph(t, b)
	n := len(g.Nodes)
	stranger := graph.NewBuilder("other").Input("stranger", scalar)
	vjp := func(outputs, dys []*graph.Node) error {
		_, err := graph.VJP(g, outputs, dys, []*graph.Node{x})
		return err
	}
	gradients := func(cost, wrt *graph.Node) error {
		_, err := graph.Gradients(g, cost, []*graph.Node{wrt})
		return err
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{gradients(opaque, x), `gradient of host "opaque" (`},
		{gradients(fused, x), "gradient of fusion"},
		{gradients(v, x), "needs a scalar"},
		{gradients(stranger, x), "not a node of the graph"},
		{gradients(x, i), "only floats"},
		{gradients(i, x), "cannot have the gradient"},
		{vjp([]*graph.Node{x}, nil), "1 outputs have 0 gradients"},
		{vjp([]*graph.Node{x}, []*graph.Node{v}), "cannot have the gradient"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("error %v does not say %q", c.err, c.want)
		}
		if len(g.Nodes) != n {
			t.Fatalf("after %v the graph has %d nodes, not %d", c.err, len(g.Nodes), n)
		}
	}
	if err := gradients(opaque, v); err != nil {
		t.Errorf("a host operation off the path matters: %v", err)
	}
	unknown := &graph.Node{ID: 99, Op: strangeOp{}, Args: []*graph.Node{x}, Type: scalar}
	g.Nodes = append(g.Nodes, unknown)
	if err := gradients(unknown, x); err == nil || !strings.Contains(err.Error(), "not in the operation table") {
		t.Errorf("error %v for an unknown operation", err)
	}
}

type strangeOp struct{}

func (strangeOp) OpName() string { return "strange" }

// TestRunningStatistics checks that the running statistics carry no gradient.
func TestRunningStatistics(t *testing.T) {
	vector := graph.TypeOf(graph.F64, 2)
	b := graph.NewBuilder("statistics")
	x, mean := b.Input("x", graph.TypeOf(graph.F64, 3, 2)), b.State("mean", vector)
	ones := b.Const(graph.Filled(vector, 1))
	cost := sumAll(b, b.Add(graph.Result{Index: 1}, b.Add(graph.BatchNorm{Eps: 1, Momentum: 0.5, Train: true}, x, ones, ones, mean,
		ones)))
	b.Output("cost", cost)
	g := graphtest.Graph(t, b)
	grads, err := graph.Gradients(g, cost, []*graph.Node{x, mean})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range grads {
		if v, ok := d.ConstScalar(); !ok || v != 0 {
			t.Errorf("%s is not zeros", d.Where())
		}
	}
}

// TestGradRuleErrors checks that the driver does not trust a rule.
func TestGradRuleErrors(t *testing.T) {
	info := graph.OpByName("copy")
	rule := info.Grad
	defer func() { info.Grad = rule }()
	for want, bad := range map[string]func(b *graph.Builder, n *graph.Node, dy []*graph.Node) ([]*graph.Node, error){
		"its gradient f64[]": func(b *graph.Builder, n *graph.Node, dy []*graph.Node) ([]*graph.Node, error) {
			return []*graph.Node{b.Scalar(graph.F64, 0)}, nil
		},
		"contracts": func(b *graph.Builder, n *graph.Node, dy []*graph.Node) ([]*graph.Node, error) {
			return []*graph.Node{b.MatMul(dy[0], dy[0], false, false)}, nil
		},
	} {
		info.Grad = bad
		b := graph.NewBuilder("rule")
		x := b.Input("x", graph.TypeOf(graph.F64, 2, 3))
		y := b.Add(graph.Copy{}, x)
		b.Output("y", y)
		g := graphtest.Graph(t, b)
		_, err := graph.VJP(g, []*graph.Node{y}, []*graph.Node{x}, []*graph.Node{x})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}
