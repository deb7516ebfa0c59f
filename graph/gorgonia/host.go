package gorgonia

import (
	"fmt"
	"reflect"
	"sync"

	"fusec/graph"

	"github.com/chewxy/hm"
	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// hostOp runs an operation by its own Do, on values of its own.
type hostOp struct {
	op  gorg.Op
	in  []hostArg
	out graph.Type
	// opaque takes the result if fusec has no type for its elements.
	opaque *Opaque
	// after holds what Do left in the operands whose effects somebody reads; see effectOf.
	after map[int]*graph.Tensor
	// before is the operation whose hidden state op reads, to be run on the first operands; or nil.
	before gorg.Op

	once sync.Once // makes grad
	grad hostGradient
}

// hostArg is the Gorgonia type of an operand.
type hostArg struct {
	dtype  tensor.Dtype
	shape  tensor.Shape
	typ    hm.Type
	opaque *Opaque // what it holds, if fusec has no type for its elements
}

// Opaque is a node for whose elements fusec has no type. Values of it pass from one operation's Do to the next; in the
// graph a token stands for them, so that operations keep their order.
type Opaque struct {
	Node *gorg.Node
	made gorg.Value // by the node's operation in the last run
}

// Value is the node's value: what the user gave an input, or what the operation made; nil before.
func (o *Opaque) Value() gorg.Value {
	if o.Node.Op() == nil {
		return o.Node.Value()
	}
	return o.made
}

// opaqueType is the type of the token that stands for an opaque value.
var opaqueType = graph.Type{DType: graph.I64}

// strange reports whether fusec has no type for n's elements: they are of a type of the user's own, or of int16, for example.
func strange(n *gorg.Node) bool {
	d, err := nodeDtype(n)
	if err != nil || d.Type == nil {
		return false
	}
	_, err = DTypeOf(d)
	return err != nil
}

// opaqueInput makes a token of an input.
func (im *importer) opaqueInput(n *gorg.Node) error {
	name := nameOf(n)
	if name == "" {
		name = fmt.Sprintf("input%d", n.ID())
	}
	v := graph.Extend(im.Graph, originOf(n)).Input(im.unique(name), opaqueType)
	im.stand(n, v)
	im.Opaques[v] = &Opaque{Node: n}
	im.Fills = append(im.Fills, Fill{v, func(*graph.Tensor) error {
		if n.Value() == nil {
			return fmt.Errorf("node %q has no value: give it one with gorgonia.Let before RunAll", Called(n))
		}
		return nil
	}})
	return nil
}

// host keeps the operation whole.
func (c *call) host() (*graph.Node, error) {
	h := &hostOp{op: c.op, out: c.want}
	for _, k := range c.children(c.n) {
		d, err := nodeDtype(k)
		if err != nil {
			return nil, err
		}
		h.in = append(h.in, hostArg{d, k.Shape(), k.Type(), c.Opaques[c.Node(k)]})
	}
	switch typeName(c.op) {
	case "ctcLossDiffOp":
		v := c.f.addressable().v.FieldByName("ctcLossOp")
		if !v.IsValid() || v.Kind() != reflect.Pointer {
			return nil, fmt.Errorf("%s is not laid out as in Gorgonia %s", c.f.v.Type(), version)
		}
		h.before, _ = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem().Interface().(gorg.Op)
	case "avgPoolDiffOp":
		v := c.f.addressable().v.FieldByName("avgPoolOp")
		if !v.IsValid() || v.Kind() != reflect.Struct {
			return nil, fmt.Errorf("%s is not laid out as in Gorgonia %s", c.f.v.Type(), version)
		}
		h.before, _ = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Interface().(gorg.Op)
	}
	v := c.b.Add(graph.Host{Name: describe(c.op), Type: c.want, Impl: h}, c.args...)
	if strange(c.n) {
		h.opaque = &Opaque{Node: c.n}
		c.Opaques[v] = h.opaque
	}
	c.effects(h, v)
	return v, c.b.Err()
}

// effects makes what the operation writes into an operand the value of that operand, if that is an Iop, which is there for
// this: Gorgonia hands an operation the memory of its operands, and an Iop has one of its own.
func (c *call) effects(h *hostOp, v *graph.Node) {
	for i, k := range c.children(c.n) {
		if k.Op() != (gorg.Iop{}) || h.in[i].opaque != nil {
			continue
		}
		if h.after == nil {
			h.after = map[int]*graph.Tensor{}
		}
		t := c.args[i].Type
		h.after[i] = graph.NewTensor(t)
		c.stand(k, c.b.Add(graph.Host{Name: "what " + describe(c.op) + " writes", Type: t, Impl: &effectOf{h, i}}, v))
	}
}

// effectOf is what an operation has written into one of its operands. It has the operation's result for an operand, so
// that it comes after.
type effectOf struct {
	op      *hostOp
	operand int
}

// IsEffect reports whether n is what an operation of the user's, its operand, has written into one of its own operands.
func IsEffect(n *graph.Node) bool {
	h, ok := n.Op.(graph.Host)
	if ok {
		_, ok = h.Impl.(*effectOf)
	}
	return ok
}

// Do implements graph.HostImpl.
func (e *effectOf) Do([]*graph.Tensor) (*graph.Tensor, error) {
	return e.op.after[e.operand].Clone(), nil
}

// Do implements graph.HostImpl.
func (h *hostOp) Do(args []*graph.Tensor) (t *graph.Tensor, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s panicked: %v", describe(h.op), r)
		}
	}()
	if len(args) != len(h.in) {
		return nil, fmt.Errorf("%s: %d operands instead of %d", describe(h.op), len(args), len(h.in))
	}
	if h.before != nil {
		v, err := h.values(args[:h.before.Arity()])
		if err == nil {
			_, err = h.before.Do(v...)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", describe(h.before), err)
		}
	}
	v, err := h.values(args)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", describe(h.op), err)
	}
	r, err := h.op.Do(v...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", describe(h.op), err)
	}
	for i, t := range h.after {
		if err := Load(t, v[i]); err != nil {
			return nil, fmt.Errorf("operand %d after %s: %w", i, describe(h.op), err)
		}
	}
	t = graph.NewTensor(h.out)
	if h.opaque != nil {
		if r == nil {
			return nil, fmt.Errorf("%s gave no value", describe(h.op))
		}
		h.opaque.made = r
		return t, nil
	}
	if err := Load(t, r); err != nil {
		return nil, fmt.Errorf("result of %s: %w", describe(h.op), err)
	}
	return t, nil
}

// values copies operands into fresh values, which the operation may keep or overwrite.
func (h *hostOp) values(args []*graph.Tensor) ([]gorg.Value, error) {
	v := make([]gorg.Value, len(args))
	for i, a := range args {
		if o := h.in[i].opaque; o != nil {
			if v[i] = o.Value(); v[i] == nil {
				return nil, fmt.Errorf("operand %d has no value", i)
			}
			continue
		}
		var err error
		if v[i], err = newValue(h.in[i].dtype, h.in[i].shape, a); err != nil {
			return nil, fmt.Errorf("operand %d: %w", i, err)
		}
	}
	return v, nil
}
