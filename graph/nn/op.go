package nn

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"slices"
	"strings"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/kernels/ref"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// A definition is the only description of what an operation computes: Do evaluates it, the importer uses it, and
// gradients are derived from it. It is a comparable struct of plain attributes: equal definitions compute the same, and
// fmt's %#v distinguishes different ones.
type definition interface {
	// name is the operation's readable name, with the relevant attributes.
	name() string
	// build appends the operation to b. Errors stay in b.
	build(b *graph.Builder, args []*graph.Node) *graph.Node
}

// A modal is a definition that computes something else in training than in evaluation: it draws random numbers, or
// normalises by the batch.
type modal interface {
	definition
	// still is the definition in evaluation. It takes the same operands.
	still() definition
}

// A keeper is a definition with state, which it takes as operands more, behind the others.
type keeper interface {
	definition
	// next is the state after the operation, whose value is y, in the order of the operands; nil if it stays.
	next(b *graph.Builder, y *graph.Node) []*graph.Node
}

// A judge is a definition that has no gradient for some operands of floating-point type.
type judge interface {
	definition
	differentiable(operand int) bool
}

// An operand is a node and the operation's name for this operand.
type operand struct {
	what string
	node *gorgonia.Node
}

// An op is a definition with operands of given types, as a Gorgonia operation.
type op struct {
	def   definition
	what  []string     // names of the operands
	args  []graph.Type // their types
	types []hm.Type    // the same, as Gorgonia inferred them
	out   graph.Type
	modal bool                  // the modes differ
	still bool                  // in evaluation
	body  map[bool]*graph.Graph // the graph that Do evaluates, by still
	// held is the state of the operation between runs, if it has any. The definition is then a keeper.
	held []fgorgonia.Held
}

var (
	_ gorgonia.SDOp    = (*op)(nil)
	_ fgorgonia.Modal  = (*op)(nil)
	_ fgorgonia.Holder = (*op)(nil)
)

// apply makes the node of a definition. Errors name the operation and the operand at fault.
func apply(def definition, operands ...operand) (*gorgonia.Node, error) {
	return applyHeld(def, nil, operands...)
}

// applyHeld makes the node of a definition with state.
func applyHeld(def definition, held []fgorgonia.Held, operands ...operand) (*gorgonia.Node, error) {
	o, nodes, err := newOp(def, held, operands...)
	if err != nil {
		return nil, err
	}
	n, err := gorgonia.ApplyOp(o, nodes...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", def.name(), err)
	}
	return n, nil
}

// newOp makes the operation of a definition with the given state, if any, and lists the nodes to which it is applied.
func newOp(def definition, held []fgorgonia.Held, operands ...operand) (*op, []*gorgonia.Node, error) {
	o := &op{def: def, modal: still(def) != def, body: map[bool]*graph.Graph{}, held: held}
	nodes := make([]*gorgonia.Node, len(operands))
	b := graph.Extend(graph.New(def.name()))
	in := make([]*graph.Node, len(operands))
	for i, a := range operands {
		if a.node == nil {
			return nil, nil, fmt.Errorf("%s: %s is nil", def.name(), a.what)
		}
		t, err := fgorgonia.TypeOf(a.node)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %s: %w", def.name(), a.what, err)
		}
		in[i] = b.Input(called(a), t)
		nodes[i] = a.node
		o.what, o.args, o.types = append(o.what, a.what), append(o.args, t), append(o.types, a.node.Type())
	}
	for _, k := range held {
		in = append(in, b.State(k.Name, k.Value.Type))
	}
	y := def.build(b, in)
	if err := b.Err(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", def.name(), err)
	}
	o.out = y.Type
	return o, nodes, nil
}

// called is an operand's name in messages: the operation's name and the user's name for it.
func called(a operand) string {
	if name := fgorgonia.Called(a.node); name != a.what {
		return a.what + " = " + name
	}
	return a.what
}

// active is the definition in the current mode.
func (o *op) active() definition {
	if o.still {
		return still(o.def)
	}
	return o.def
}

// still is the definition in evaluation.
func still(def definition) definition {
	if d, ok := def.(modal); ok {
		return d.still()
	}
	return def
}

// SetTraining implements gorgonia.TrainModeOp. In evaluation nothing is dropped, and batch norms use their running
// statistics.
func (o *op) SetTraining(training bool) error {
	o.still = !training
	return nil
}

// Training reports whether the operation is in training. It is always true for an operation on which the mode has no
// effect.
func (o *op) Training() bool { return !o.still || !o.modal }

// Build implements the importer's Builder.
func (o *op) Build(b *graph.Builder, args []*graph.Node) (*graph.Node, error) {
	return o.active().build(b, args), b.Err()
}

// Held implements the importer's Holder.
func (o *op) Held() []fgorgonia.Held { return o.held }

// Next implements the importer's Holder.
func (o *op) Next(b *graph.Builder, y *graph.Node) []*graph.Node { return next(o.active(), b, y) }

// next is the state after a definition's operation, nil if it stays.
func next(def definition, b *graph.Builder, y *graph.Node) []*graph.Node {
	if k, ok := def.(keeper); ok {
		return k.next(b, y)
	}
	return nil
}

// Arity implements gorgonia.Op.
func (o *op) Arity() int { return len(o.args) }

// Type implements gorgonia.Op.
func (o *op) Type() hm.Type {
	if len(o.types) == 0 {
		return typeOf(o.out)
	}
	return hm.NewFnType(append(slices.Clone(o.types), typeOf(o.out))...)
}

// typeOf is Gorgonia's type for values of type t.
func typeOf(t graph.Type) hm.Type {
	d := dtypes[t.DType]
	if t.Shape.Rank() == 0 {
		return d
	}
	return gorgonia.TensorType{Dims: t.Shape.Rank(), Of: d}
}

var dtypes = map[graph.DType]tensor.Dtype{
	graph.F32: tensor.Float32, graph.F64: tensor.Float64, graph.I32: tensor.Int32, graph.I64: tensor.Int,
	graph.Bool: tensor.Bool,
}

// InferShape implements gorgonia.Op. The shapes of the operands are fixed when the node is made.
func (o *op) InferShape(shapes ...gorgonia.DimSizer) (tensor.Shape, error) {
	if len(shapes) != len(o.args) {
		return nil, fmt.Errorf("%s takes %d operands, not %d", o, len(o.args), len(shapes))
	}
	for i, s := range shapes {
		if s, ok := s.(tensor.Shape); ok && s.TotalSize() != o.args[i].Shape.Elems() && len(s) > 0 {
			return nil, fmt.Errorf("%s: %s has shape %v, not %v", o, o.what[i], s, o.args[i].Shape)
		}
	}
	return tensor.Shape(o.out.Shape.Slice()), nil
}

// Do implements gorgonia.Op: it evaluates the definition with the reference, in float64, one operation after the other.
// That is slow.
func (o *op) Do(values ...gorgonia.Value) (gorgonia.Value, error) {
	if len(values) != len(o.args) {
		return nil, fmt.Errorf("%s takes %d operands, not %d", o, len(o.args), len(values))
	}
	g, err := o.graph()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o, err)
	}
	in := make(map[string]*graph.Tensor, len(values))
	for i, v := range values {
		t := graph.NewTensor(o.args[i])
		if err := fgorgonia.Load(t, v); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", o, o.what[i], err)
		}
		in[argument(i)] = t
	}
	for i, k := range o.held {
		in[argument(len(values)+i)] = k.Value
	}
	all, err := ref.Nodes(g, in, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o, err)
	}
	for i, out := range g.Outputs[1:] {
		o.held[i].Value.CopyFrom(all[out.Node][0].Rounded())
	}
	return fgorgonia.FromTensor(all[g.Outputs[0].Node][0].Rounded()), nil
}

// graph is a separate graph of the operation in the current mode.
func (o *op) graph() (*graph.Graph, error) {
	if g := o.body[o.still]; g != nil {
		return g, nil
	}
	g, err := bodyOf(o.active(), withHeld(o.args, o.held))
	if err == nil {
		o.body[o.still] = g
	}
	return g, err
}

// withHeld are the types of operands and of state behind them.
func withHeld(args []graph.Type, held []fgorgonia.Held) []graph.Type {
	args = args[:len(args):len(args)]
	for _, k := range held {
		args = append(args, k.Value.Type)
	}
	return args
}

// bodyOf is a definition as a graph with an input for each operand, state included. Its outputs are the value and the
// state after the operation, where that changes.
func bodyOf(def definition, args []graph.Type) (*graph.Graph, error) {
	g := graph.New(def.name())
	b := graph.Extend(g)
	in := make([]*graph.Node, len(args))
	for i, t := range args {
		in[i] = b.Input(argument(i), t)
	}
	y := def.build(b, in)
	b.Output("y", y)
	if b.Err() == nil {
		for i, n := range next(def, b, y) {
			b.Output(fmt.Sprintf("next%d", i), n)
		}
	}
	if err := b.Err(); err != nil {
		return nil, err
	}
	return g, g.Tidy()
}

func argument(i int) string { return fmt.Sprintf("x%d", i) }

// ReturnsPtr implements gorgonia.Op: values are fresh.
func (o *op) ReturnsPtr() bool { return false }

// CallsExtern implements gorgonia.Op.
func (o *op) CallsExtern() bool { return false }

// OverwritesInput implements gorgonia.Op: it never does.
func (o *op) OverwritesInput() int { return -1 }

// WriteHash implements gorgonia.Op. The text differs if the definitions, the operands' types or the states differ.
func (o *op) WriteHash(h hash.Hash) {
	fmt.Fprintf(h, "fusec/graph/nn %#v%v", o.def, o.args)
	for _, k := range o.held {
		fmt.Fprintf(h, "%p", k.Value)
	}
}

// Hashcode implements gorgonia.Op.
func (o *op) Hashcode() uint32 { return hashOf(o) }

func hashOf(o gorgonia.Op) uint32 {
	h := fnv.New32a()
	o.WriteHash(h)
	return h.Sum32()
}

// String implements gorgonia.Op.
func (o *op) String() string { return o.def.name() }

// DiffWRT implements gorgonia.SDOp. No gradient flows into integers.
func (o *op) DiffWRT(inputs int) []bool {
	diff := make([]bool, inputs)
	if !o.out.DType.IsFloat() {
		return diff
	}
	for i := range min(inputs, len(o.args)) {
		diff[i] = differentiable(o.def, i, o.args[i])
	}
	return diff
}

func differentiable(def definition, operand int, t graph.Type) bool {
	j, ok := def.(judge)
	return t.DType.IsFloat() && (!ok || j.differentiable(operand))
}

// SymDiff implements gorgonia.SDOp: the gradient of each operand is a separate operation, which can be differentiated
// again.
func (o *op) SymDiff(inputs gorgonia.Nodes, _, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	if len(inputs) != len(o.args) {
		return nil, fmt.Errorf("%s takes %d operands, not %d", o, len(o.args), len(inputs))
	}
	operands := make([]operand, len(inputs), len(inputs)+1)
	for i, n := range inputs {
		operands[i] = operand{o.what[i], n}
	}
	operands = append(operands, operand{"the gradient", grad})
	out := make(gorgonia.Nodes, len(inputs))
	for i, d := range o.DiffWRT(len(inputs)) {
		if !d {
			continue
		}
		n, err := applyHeld(vjp{o.def, i, len(o.held), o.what[i]}, o.held, operands...)
		if err != nil {
			return nil, err
		}
		if g, ok := n.Op().(*op); ok {
			g.still = o.still
		}
		out[i] = n
	}
	return out, nil
}

// A vjp is the gradient of a definition's operand: it takes the operands, the gradient of the value, and the state, which
// it leaves as it is.
type vjp struct {
	of        definition
	wrt, held int    // the operand, and how many values the state has
	what      string // the operand's name
}

func (d vjp) name() string { return "∂" + d.of.name() + "/∂" + d.what }

// build differentiates a graph of only the definition, in which no operand depends on another.
func (d vjp) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	at := len(args) - 1 - d.held // of the gradient
	args = slices.Concat(args[:at], args[at+1:], args[at:at+1])
	types := graph.Types(args)
	last := len(args) - 1
	g, err := bodyOf(d.of, types[:last])
	if err != nil {
		return b.Fail(err)
	}
	g.Outputs = g.Outputs[:1]
	y := g.Outputs[0].Node
	if types[last] != y.Type && (types[last].DType != y.Type.DType || types[last].Shape.Elems() != y.Type.Shape.Elems()) {
		return b.Fail(fmt.Errorf("a gradient of type %v for a value of type %v", types[last], y.Type))
	}
	in := g.Sources()
	e := graph.Extend(g)
	dy := e.Input(argument(last), types[last])
	dx, err := graph.VJP(g, []*graph.Node{y}, []*graph.Node{e.Reshape(dy, y.Type.Shape.Slice()...)}, in[d.wrt:][:1])
	if err = errors.Join(err, e.Err()); err != nil {
		return b.Fail(err)
	}
	g.Outputs[0].Node = dx[0]
	if err := g.Tidy(); err != nil {
		return b.Fail(err)
	}
	return b.Inline(g, args)[0]
}

// still implements modal.
func (d vjp) still() definition {
	d.of = still(d.of)
	return d
}

// differentiable implements judge: the gradient of the value counts as an operand, in which the operation is linear.
func (d vjp) differentiable(operand int) bool {
	j, ok := d.of.(judge)
	return !ok || j.differentiable(operand)
}

// A single is one operation of package graph.
type single struct {
	op    graph.Op
	label string
}

func (d single) build(b *graph.Builder, args []*graph.Node) *graph.Node { return b.Add(d.op, args...) }

// name shows the attributes that are not zero.
func (d single) name() string {
	var attrs []string
	for _, a := range graph.Attrs(d.op) {
		if a.Value != "0" && a.Name != "fn" {
			attrs = append(attrs, a.Name+"="+a.Value)
		}
	}
	if len(attrs) == 0 {
		return d.label
	}
	return d.label + "(" + strings.Join(attrs, " ") + ")"
}
