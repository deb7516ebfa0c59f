package gorgonia

import (
	"fmt"
	"math"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
)

// unaryForm is what a function of one variable is in Gorgonia: a function of its own, or what it is written with, or
// nothing, for a reason.
type unaryForm struct {
	name    string // of Gorgonia's operation, which is what it prints; it holds the function itself
	apply   nodeFunc
	write   func(w writer) (*gorg.Node, error)
	refused string
}

var unaries = map[graph.UnaryFn]unaryForm{
	graph.Neg:       {name: "neg", apply: gorg.Neg},
	graph.Abs:       {name: "abs", apply: gorg.Abs},
	graph.Sign:      {name: "sign", apply: gorg.Sign},
	graph.Ceil:      {name: "ceil", apply: gorg.Ceil},
	graph.Floor:     {name: "floor", apply: gorg.Floor},
	graph.Round:     {refused: "it does not round to the nearest"},
	graph.Exp:       {name: "exp", apply: gorg.Exp},
	graph.Expm1:     {name: "expm1", apply: gorg.Expm1},
	graph.Log:       {name: "ln", apply: gorg.Log},
	graph.Log1p:     {name: "log1p", apply: gorg.Log1p},
	graph.Log2:      {name: "log2", apply: gorg.Log2},
	graph.Sqrt:      {name: "sqrt", apply: gorg.Sqrt},
	graph.Rsqrt:     {name: "invSqrt", apply: gorg.InverseSqrt},
	graph.Recip:     {name: "inv", apply: gorg.Inverse},
	graph.Square:    {name: "square", apply: gorg.Square},
	graph.Cube:      {name: "cube", apply: gorg.Cube},
	graph.Sin:       {name: "sin", apply: gorg.Sin},
	graph.Cos:       {name: "cos", apply: gorg.Cos},
	graph.Tan:       {refused: "it has no such function"},
	graph.Asin:      {refused: "it has no such function"},
	graph.Acos:      {refused: "it has no such function"},
	graph.Atan:      {refused: "it has no such function"},
	graph.Sinh:      {refused: "it has no such function"},
	graph.Cosh:      {refused: "it has no such function"},
	graph.Asinh:     {refused: "it has no such function"},
	graph.Acosh:     {refused: "it has no such function"},
	graph.Atanh:     {refused: "it has no such function"},
	graph.Tanh:      {name: "tanh", apply: gorg.Tanh},
	graph.Sigmoid:   {name: "sigmoid", apply: gorg.Sigmoid},
	graph.Softplus:  {name: "softplus", apply: gorg.Softplus},
	graph.Erf:       {refused: "it has no error function"},
	graph.Relu:      {write: writer.relu},
	graph.LeakyRelu: {write: writer.leakyRelu},
	graph.Elu: {write: func(w writer) (*gorg.Node, error) { // relu(x) + α·(e^min(x,0) − 1), and min(x,0) = −relu(−x)
		pos, err := gorg.Rectify(w.x)
		if err != nil {
			return nil, err
		}
		return chain(w.x, gorg.Neg, gorg.Rectify, gorg.Neg, gorg.Expm1, w.times(w.op.Alpha), w.add(pos))
	}},
	graph.GeluTanh: {write: func(w writer) (*gorg.Node, error) {
		return chain(w.x, gorg.Cube, w.times(0.044715), w.add(w.x), w.times(math.Sqrt(2/math.Pi)), gorg.Tanh, w.plus(1), w.mul,
			w.times(0.5))
	}},
	graph.GeluTanhSlope: {write: func(w writer) (*gorg.Node, error) { // s + x·s(1−s)·(2u)′
		const k = 2 * math.Sqrt2 * math.SqrtPi / math.Pi
		s, err := chain(w.x, gorg.Square, w.times(k*0.044715), w.plus(k), w.mul, gorg.Sigmoid)
		if err != nil {
			return nil, err
		}
		rest, err := chain(s, gorg.Neg, w.plus(1))
		if err != nil {
			return nil, err
		}
		a, err := chain(w.x, gorg.Square, w.times(3*k*0.044715), w.plus(k), w.mul)
		if err != nil {
			return nil, err
		}
		if rest, err = gorg.HadamardProd(s, rest); err != nil {
			return nil, err
		}
		if a, err = gorg.HadamardProd(a, rest); err != nil {
			return nil, err
		}
		return gorg.Add(s, a)
	}},
	graph.GeluErf:      {refused: "it has no error function"},
	graph.GeluErfSlope: {refused: "it has no error function"},
	graph.Silu:         {write: func(w writer) (*gorg.Node, error) { return chain(w.x, gorg.Sigmoid, w.mul) }},
	graph.Not: {write: func(w writer) (*gorg.Node, error) {
		k, err := w.dtype(w.x)
		if err != nil {
			return nil, err
		}
		return gorg.Sub(w.scalar(k, 1), w.x)
	}},
}

// binaryForm is what a function of two variables is in Gorgonia.
type binaryForm struct {
	sign    string // of Gorgonia's operation; its place in Gorgonia's enumeration is that in binaryOrder
	apply   func(a, b *gorg.Node) (*gorg.Node, error)
	compare compareFunc
	between func(a, b *gorg.Node) (*gorg.Node, error) // of operands of equal shapes
	refused string
}

var binaries = map[graph.BinaryFn]binaryForm{
	graph.Add: {sign: "+", apply: gorg.Add},
	graph.Sub: {sign: "-", apply: gorg.Sub},
	graph.Mul: {sign: "⊙", apply: gorg.HadamardProd},
	graph.Div: {sign: "÷", apply: gorg.HadamardDiv},
	graph.Pow: {sign: "^", apply: gorg.Pow},
	graph.Max: {between: gorg.MaxBetween},
	graph.Min: {between: gorg.MinBetween},
	graph.Rem: {refused: "it has no remainder"},
	graph.Mod: {refused: "it has no remainder"},
	graph.And: {apply: gorg.HadamardProd},
	graph.Or:  {between: gorg.MaxBetween},
	graph.Xor: {sign: "!=", compare: gorg.Ne},
	graph.Shl: {refused: "it has no shifts"},
	graph.Shr: {refused: "it has no shifts"},
	graph.Lt:  {sign: "<", compare: gorg.Lt},
	graph.Gt:  {sign: ">", compare: gorg.Gt},
	graph.Le:  {sign: "<=", compare: gorg.Lte},
	graph.Ge:  {sign: ">=", compare: gorg.Gte},
	graph.Eq:  {sign: "==", compare: gorg.Eq},
	graph.Ne:  {sign: "!=", compare: gorg.Ne},
}

// binaryOrder lists the functions of Gorgonia's enumeration.
var binaryOrder = []graph.BinaryFn{graph.Add, graph.Sub, graph.Mul, graph.Div, graph.Pow, graph.Lt, graph.Gt, graph.Le, graph.Ge,
	graph.Eq, graph.Ne}

// unaryNames are the functions by Gorgonia's names.
var unaryNames = map[string]graph.UnaryFn{}

func init() {
	if err := checkFunctions(unaries, binaries); err != nil {
		panic(err)
	}
	for fn, form := range unaries {
		if form.name != "" {
			unaryNames[form.name] = fn
		}
	}
}

// checkFunctions reports a function of which it is not said what it is in Gorgonia.
func checkFunctions(unaries map[graph.UnaryFn]unaryForm, binaries map[graph.BinaryFn]binaryForm) error {
	for _, f := range graph.UnaryFns() {
		if r := unaries[f.Fn]; r.apply == nil && r.write == nil && r.refused == "" {
			return fmt.Errorf("graph/gorgonia: no form or refusal of %s", f.Name)
		}
	}
	for _, f := range graph.BinaryFns() {
		if r := binaries[f.Fn]; r.apply == nil && r.compare == nil && r.between == nil && r.refused == "" {
			return fmt.Errorf("graph/gorgonia: no form of %s", f.Name)
		}
	}
	return nil
}

// writer writes a function of x, of elements of type d, with Gorgonia's.
type writer struct {
	*exporter
	op graph.Unary
	x  *gorg.Node
	d  graph.DType
}

func (w writer) times(v float64) nodeFunc {
	return func(y *gorg.Node) (*gorg.Node, error) { return gorg.HadamardProd(y, w.scalar(w.d, v)) }
}

func (w writer) plus(v float64) nodeFunc {
	return func(y *gorg.Node) (*gorg.Node, error) { return gorg.Add(y, w.scalar(w.d, v)) }
}

func (w writer) add(x *gorg.Node) nodeFunc {
	return func(y *gorg.Node) (*gorg.Node, error) { return gorg.Add(x, y) }
}

func (w writer) mul(y *gorg.Node) (*gorg.Node, error) { return gorg.HadamardProd(w.x, y) }

// where is x where it compares so with 0, else 0.
func (w writer) where(test compareFunc) (*gorg.Node, error) {
	mask, err := test(w.x, w.scalar(w.d, 0), true)
	if err != nil {
		return nil, err
	}
	return w.mul(mask)
}

func (w writer) relu() (*gorg.Node, error) {
	if w.op.AtZero == graph.LeftSlope {
		return w.where(gorg.Gt)
	}
	return gorg.Rectify(w.x)
}

func (w writer) leakyRelu() (*gorg.Node, error) {
	if w.op.AtZero != graph.LeftSlope {
		return gorg.LeakyRelu(w.x, w.op.Alpha)
	}
	pos, err := w.where(gorg.Gt)
	if err != nil {
		return nil, err
	}
	below, err := w.where(gorg.Lte)
	if err != nil {
		return nil, err
	}
	return chain(below, w.times(w.op.Alpha), w.add(pos))
}

func (e *exporter) unary(op graph.Unary, x *gorg.Node, d graph.DType) (*gorg.Node, error) {
	switch form := unaries[op.Fn]; {
	case form.apply != nil:
		return form.apply(x)
	case form.write != nil:
		return form.write(writer{e, op, x, d})
	default:
		return nil, fmt.Errorf("no function %v in Gorgonia: %s", op.Fn, form.refused)
	}
}

type compareFunc = func(a, b *gorg.Node, same bool) (*gorg.Node, error)

func (e *exporter) binary(op graph.Binary, x, y *gorg.Node, n *graph.Node) (*gorg.Node, error) {
	var err error
	if x, err = e.own(x, n.Args[0].Type.DType); err != nil {
		return nil, err
	}
	if y, err = e.own(y, n.Args[1].Type.DType); err != nil {
		return nil, err
	}
	if x, y, err = e.sameNumbers(x, y); err != nil {
		return nil, err
	}
	form := binaries[op.Fn]
	if op.Fn == graph.And || op.Fn == graph.Or || op.Fn == graph.Xor {
		if d := n.Type.DType; d != graph.Bool {
			return nil, fmt.Errorf("no function %v of %v in Gorgonia", op.Fn, d)
		}
	}
	switch {
	case form.refused != "":
		return nil, fmt.Errorf("no function %v in Gorgonia: %s", op.Fn, form.refused)
	case form.apply != nil:
		return form.apply(x, y)
	case form.compare != nil:
		return form.compare(x, y, true)
	}
	if x, err = e.broadcast(x, n.Type.Shape); err != nil {
		return nil, err
	}
	if y, err = e.broadcast(y, n.Type.Shape); err != nil {
		return nil, err
	}
	return form.between(x, y)
}
