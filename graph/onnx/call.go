package onnx

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/onnx/internal/pb"
)

// A call is one node that is being built. Its methods panic with a [refusal] where something is wrong; the importer
// returns that as an error that names the node.
type call struct {
	m     *importer
	row   *operator
	scope *scope
	opset int // of the operator's domain
	proto *pb.NodeProto
	args  []*value // nil: left out
	b     *graph.Builder
}

// refuse gives up.
func (c *call) refuse(format string, args ...any) {
	panic(refusal{fmt.Errorf(format, args...)})
}

// check gives up on an error.
func (c *call) check(err error) {
	if err != nil {
		panic(refusal{err})
	}
}

// run checks the node against the row and builds it.
func (c *call) run() []*value {
	r := c.row
	if r.refused != "" {
		c.refuse("%s", r.refused)
	}
	if n := len(c.args); n < r.min || r.max >= 0 && n > r.max {
		c.refuse("it has %d operands", n)
	}
	for i, a := range c.args {
		if a == nil && i < r.min {
			c.refuse("operand %d is missing", i)
		}
		if a != nil && a.err != nil && (a.unsigned == nil || !r.unsigned) {
			c.refuse("%w", a.err)
		}
	}
	for _, a := range c.proto.GetAttribute() {
		if c.entry(a.GetName()) == nil {
			c.refuse("there is no attribute %q in opset %d", a.GetName(), c.opset)
		}
	}
	for _, a := range r.attrs {
		if want, ok := a.def.(required); ok && a.holds(c.opset) && c.given(a.name) == nil {
			c.refuse("its attribute %q, of type %T, is missing", a.name, want.of)
		}
	}
	if r.exact {
		return r.build(c)
	}
	narrow := graph.Invalid
	for i, a := range c.args {
		if a == nil {
			continue
		}
		if n := c.node(i); n.Type.DType.Is16() {
			if narrow == graph.Invalid {
				narrow = n.Type.DType
			}
			c.args[i] = &value{node: c.cast(n, graph.F32)}
		}
	}
	out := r.build(c)
	if narrow != graph.Invalid {
		for _, v := range out {
			if v != nil && v.node != nil && v.node.Type.DType == graph.F32 {
				v.node = c.cast(v.node, narrow)
			}
		}
	}
	return out
}

// entry is the entry of an attribute that holds, or nil.
func (c *call) entry(name string) *attr {
	for i := range c.row.attrs {
		if a := &c.row.attrs[i]; a.name == name && a.holds(c.opset) {
			return a
		}
	}
	return nil
}

// given is the node's attribute of a name, or nil.
func (c *call) given(name string) *pb.AttributeProto {
	for _, a := range c.proto.GetAttribute() {
		if a.GetName() == name {
			bound, err := c.scope.attribute(a)
			c.check(err)
			return bound
		}
	}
	return nil
}

// attribute is the value of an attribute of type T: as given, or its default. It is the zero value where the row has no
// entry for the opset.
func attribute[T any](c *call, name string, kind pb.AttributeProto_AttributeType, read func(*pb.AttributeProto) T) (r T) {
	e := c.entry(name)
	if e == nil {
		return r
	}
	if a := c.given(name); a != nil {
		if a.GetType() != kind && a.GetType() != pb.AttributeProto_UNDEFINED {
			c.refuse("attribute %q is of type %v, not %v", name, a.GetType(), kind)
		}
		return read(a)
	}
	r, _ = e.def.(T)
	return r
}

func (c *call) has(name string) bool { return c.entry(name) != nil && c.given(name) != nil }

func (c *call) int(name string) int {
	v := attribute(c, name, pb.AttributeProto_INT, (*pb.AttributeProto).GetI)
	if v != int64(int(v)) {
		c.refuse("attribute %q is %d", name, v)
	}
	return int(v)
}

func (c *call) flag(name string) bool { return c.int(name) != 0 }

func (c *call) float(name string) float64 {
	return attribute(c, name, pb.AttributeProto_FLOAT, func(a *pb.AttributeProto) float64 { return float64(a.GetF()) })
}

func (c *call) string(name string) string {
	return attribute(c, name, pb.AttributeProto_STRING, func(a *pb.AttributeProto) string { return string(a.GetS()) })
}

func (c *call) strings(name string) []string {
	return attribute(c, name, pb.AttributeProto_STRINGS, func(a *pb.AttributeProto) []string {
		var r []string
		for _, s := range a.GetStrings() {
			r = append(r, string(s))
		}
		return r
	})
}

func (c *call) ints(name string) []int {
	var r []int
	for _, v := range attribute(c, name, pb.AttributeProto_INTS, (*pb.AttributeProto).GetInts) {
		r = append(r, c.size(v))
	}
	return r
}

// size refuses integers that no size, axis or index comes near, so that sums and products of two do not overflow.
func (c *call) size(v int64) int {
	return int(min(max(v, -1<<62), 1<<62))
}

func (c *call) floats(name string) []float64 {
	return attribute(c, name, pb.AttributeProto_FLOATS, func(a *pb.AttributeProto) []float64 {
		var r []float64
		for _, v := range a.GetFloats() {
			r = append(r, float64(v))
		}
		return r
	})
}

// body is the graph of an attribute.
func (c *call) body(name string) *pb.GraphProto {
	g := attribute(c, name, pb.AttributeProto_GRAPH, (*pb.AttributeProto).GetG)
	if g == nil {
		c.refuse("its attribute %q is missing", name)
	}
	return g
}

// tensor is the tensor of an attribute, or nil.
func (c *call) tensor(name string) *graph.Tensor {
	p := attribute(c, name, pb.AttributeProto_TENSOR, (*pb.AttributeProto).GetT)
	if p == nil {
		return nil
	}
	t, err := c.m.files.tensor(p)
	c.check(err)
	return t
}

// there reports whether operand i is given.
func (c *call) there(i int) bool { return i >= 0 && i < len(c.args) && c.args[i] != nil }

// node is operand i, which has to be given.
func (c *call) node(i int) *graph.Node {
	if !c.there(i) {
		c.refuse("operand %d is missing", i)
	}
	n, err := c.m.nodeOf(c.args[i])
	if err != nil {
		c.refuse("operand %d: %w", i, err)
	}
	return n
}

// known is the value of operand i, which has to be known while the model is read.
func (c *call) known(i int) *graph.Tensor {
	t := c.ifKnown(i)
	if t == nil {
		c.refuse("operand %d, %s, decides the shape of the result and depends on data: give the value of the input that it follows from",
			i, c.operandName(i))
	}
	return t
}

// ifKnown is known, or nil.
func (c *call) ifKnown(i int) *graph.Tensor {
	if !c.there(i) {
		c.refuse("operand %d is missing", i)
	}
	if v := c.args[i]; v.tensor != nil {
		return v.tensor
	}
	return c.valueOf(c.node(i))
}

// valueOf is the value of a node, or nil.
func (c *call) valueOf(n *graph.Node) *graph.Tensor {
	t, err := c.m.known(n)
	c.check(err)
	return t
}

func (c *call) operandName(i int) string {
	if names := c.proto.GetInput(); i < len(names) {
		return fmt.Sprintf("%q", names[i])
	}
	return "which has no name"
}

// knownInts are the elements of operand i, a vector or a scalar of integers.
func (c *call) knownInts(i int) []int {
	t := c.known(i)
	if t.Type.DType.IsReal() || t.Type.Shape.Rank() > 1 {
		c.refuse("operand %d is %v, not a vector of integers", i, t.Type)
	}
	r := make([]int, t.Type.Shape.Elems())
	for k := range r {
		r[k] = c.size(t.Int(k))
	}
	return r
}

// knownInt is the only element of operand i.
func (c *call) knownInt(i int) int {
	v := c.knownInts(i)
	if len(v) != 1 {
		c.refuse("operand %d has %d elements, not one", i, len(v))
	}
	return v[0]
}

// knownFloat is the only element of operand i.
func (c *call) knownFloat(i int) float64 {
	t := c.known(i)
	if t.Type.Shape.Elems() != 1 {
		c.refuse("operand %d is %v, not one number", i, t.Type)
	}
	return t.Float(0)
}

// axis resolves an axis that may be counted from the end.
func (c *call) axis(axis, rank int) int {
	if axis < -rank || axis >= rank {
		c.refuse("axis %d of a tensor of rank %d", axis, rank)
	}
	if axis < 0 {
		axis += rank
	}
	return axis
}

// axes resolves a list of different axes; they come back in ascending order.
func (c *call) axes(axes []int, rank int) []int {
	r := make([]int, len(axes))
	for i, a := range axes {
		r[i] = c.axis(a, rank)
	}
	slices.Sort(r)
	if len(slices.Compact(slices.Clone(r))) != len(r) {
		c.refuse("an axis is given twice: %v", axes)
	}
	return r
}

// operandOrInts is a list of integers that was an attribute in older opsets and is operand i since; ok is false if it is
// not given.
func (c *call) operandOrInts(i int, name string) (list []int, ok bool) {
	if c.entry(name) != nil {
		return c.ints(name), c.has(name)
	}
	if !c.there(i) {
		return nil, false
	}
	return c.knownInts(i), true
}

// one is the list of one result.
func one(n *graph.Node) []*value { return []*value{{node: n}} }

// several is a list of results.
func several(nodes ...*graph.Node) []*value {
	r := make([]*value, len(nodes))
	for i, n := range nodes {
		if n != nil {
			r[i] = &value{node: n}
		}
	}
	return r
}
