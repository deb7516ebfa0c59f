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

// A drawer is a definition that draws random numbers in training.
type drawer interface {
	definition
	// still is the same definition without random numbers, for evaluation. It takes the same operands.
	still() definition
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
	draws bool                  // uses random numbers in training
	still bool                  // in evaluation, without random numbers
	body  map[bool]*graph.Graph // the graph that Do evaluates, by still
	// held is the state of the operation between runs, or nil. The definition takes it as an additional last operand.
	// Its result is the node's value and the new state.
	held *graph.Tensor
}

var (
	_ gorgonia.SDOp    = (*op)(nil)
	_ fgorgonia.Modal  = (*op)(nil)
	_ fgorgonia.Holder = (*op)(nil)
)

// apply makes the node of a definition. Errors name the operation and the operand at fault.
func apply(def definition, operands ...operand) (*gorgonia.Node, error) {
	o, nodes, err := newOp(def, nil, operands...)
	if err != nil {
		return nil, err
	}
	n, err := gorgonia.ApplyOp(o, nodes...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", def.name(), err)
	}
	return n, nil
}

// newOp makes the operation of a definition with the state held, which may be nil, and lists the nodes to which it is
// applied.
func newOp(def definition, held *graph.Tensor, operands ...operand) (*op, []*gorgonia.Node, error) {
	o := &op{def: def, draws: still(def) != def, body: map[bool]*graph.Graph{}, held: held}
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
	if held != nil {
		in = append(in, b.State("what is held", held.Type))
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

// still is the definition without random numbers.
func still(def definition) definition {
	if d, ok := def.(drawer); ok {
		return d.still()
	}
	return def
}

// SetTraining implements gorgonia.TrainModeOp. In evaluation nothing is dropped.
func (o *op) SetTraining(training bool) error {
	o.still = !training
	return nil
}

// Training reports whether the operation may use random numbers. It is always true for an operation that never does:
// its mode has no effect.
func (o *op) Training() bool { return !o.still || !o.draws }

// Build implements the importer's Builder.
func (o *op) Build(b *graph.Builder, args []*graph.Node) (*graph.Node, error) {
	return o.active().build(b, args), b.Err()
}

// Held implements the importer's Holder.
func (o *op) Held() *graph.Tensor { return o.held }

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
	if o.held != nil {
		in[argument(len(values))] = o.held
	}
	all, err := ref.Nodes(g, in, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o, err)
	}
	y := all[g.Outputs[0].Node][0].Rounded()
	if o.held != nil {
		o.held.CopyFrom(y)
	}
	return fgorgonia.FromTensor(y), nil
}

// graph is a separate graph of the operation in the current mode.
func (o *op) graph() (*graph.Graph, error) {
	if g := o.body[o.still]; g != nil {
		return g, nil
	}
	args := o.args
	if o.held != nil {
		args = append(args[:len(args):len(args)], o.held.Type)
	}
	g, err := bodyOf(o.active(), args)
	if err == nil {
		o.body[o.still] = g
	}
	return g, err
}

// bodyOf is a definition as a graph with an input for each operand and one output.
func bodyOf(def definition, args []graph.Type) (*graph.Graph, error) {
	g := graph.New(def.name())
	b := graph.Extend(g)
	in := make([]*graph.Node, len(args))
	for i, t := range args {
		in[i] = b.Input(argument(i), t)
	}
	b.Output("y", def.build(b, in))
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
func (o *op) WriteHash(h hash.Hash) { fmt.Fprintf(h, "fusec/graph/nn %#v%v%p", o.def, o.args, o.held) }

// Hashcode implements gorgonia.Op.
func (o *op) Hashcode() uint32 { return hashOf(o) }

func hashOf(o gorgonia.Op) uint32 {
	h := fnv.New32a()
	o.WriteHash(h)
	return h.Sum32()
}

// String implements gorgonia.Op.
func (o *op) String() string { return o.def.name() }

// DiffWRT implements gorgonia.SDOp. No gradient flows into integers or into state.
func (o *op) DiffWRT(inputs int) []bool {
	diff := make([]bool, inputs)
	if o.held != nil || !o.out.DType.IsFloat() {
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
		n, err := apply(vjp{o.def, i, o.what[i]}, operands...)
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

// A vjp is the gradient of a definition's operand: it takes the operands and the gradient of the value.
type vjp struct {
	of   definition
	wrt  int
	what string // the operand's name
}

func (d vjp) name() string { return "∂" + d.of.name() + "/∂" + d.what }

// build differentiates a graph of only the definition, in which no operand depends on another.
func (d vjp) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	types := make([]graph.Type, len(args))
	for i, a := range args {
		types[i] = a.Type
	}
	last := len(args) - 1
	g, err := bodyOf(d.of, types[:last])
	if err != nil {
		return b.Fail(err)
	}
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

// still implements drawer.
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
