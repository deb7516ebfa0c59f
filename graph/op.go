package graph

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
)

// Op is an operation: a small comparable struct whose exported fields are its attributes.
type Op interface {
	// OpName is the operation's name in the table and in the text form.
	OpName() string
}

// OpInfo is a row of the operation table.
type OpInfo struct {
	Name     string
	Doc      string // one line on what the operation computes
	Operands string // names of the operands, for messages and documentation
	Proto    Op     // a value of the operation's type; its fields are the attributes
	Class    Class
	MinArgs  int
	MaxArgs  int // -1: any number
	// Infer is the type rule: the types of the results from those of the operands.
	Infer func(op Op, args []Type) ([]Type, error)
	// FLOPs counts floating-point operations; nil means one per element of the first result.
	FLOPs func(op Op, args []Type, out []Type) int64
	// Decompose rebuilds a composite from primitives, which defines its meaning. Nil for primitives.
	Decompose func(b *Builder, op Op, args []*Node) []*Node
	// Lower rebuilds an operation from simpler ones, for targets without a kernel for it. It returns nil if there are none for
	// op. Nil: there never are. That of a composite is its decomposition.
	Lower func(b *Builder, op Op, args []*Node) []*Node
	// Grad appends the gradient of n's operands to the graph, given the gradient dy of each of n's results (nil where
	// none flows). It returns one node per operand, nil where no gradient flows. If it is nil, a composite has the
	// gradient of its decomposition, and a primitive has none.
	Grad func(b *Builder, n *Node, dy []*Node) ([]*Node, error)

	// Fuses says that a Fusion's body may contain the operation. Anchor is then the anchor of a Fusion of this
	// operation alone, or AnchorNone for elementwise work, which fusions of all anchors may contain.
	Fuses  bool
	Anchor Anchor
	// RowAxes are the axes, in ascending order, along which an operation of AnchorRow combines elements.
	RowAxes func(n *Node) Ints
	// AlongAxis says that the operation takes each slice along its attribute Axis by itself: results and operands of the same rank
	// have the same shape but along that axis, and a slice of a result follows from the slices at its place in the operands. If it
	// moves elements, other elements of its results are zero.
	AlongAxis bool
	// RowWeights says that all operands but the first of an operation of AnchorRow are vectors that all rows read.
	RowWeights bool
	// ChannelWeights says that all operands but the first are vectors of one element for each channel: axis 1 of the first.
	ChannelWeights bool
	// Contracts reports whether operand i of op meets another operand in products that are summed; see [Contracts]. Nil: none
	// does.
	Contracts func(op Op, i int) bool
	// Sent is how many bytes a participant of a group of the given number sends, at least, for a collective operation on x of
	// the given bytes; see [LinkBytes].
	Sent func(bytes, participants int64) int64
	// Strided says that a launch of the operation alone reads its operands with any strides. Otherwise operands must be
	// contiguous.
	Strided bool
	// Stored says that operands may be of the element types that are only stored, such as I4.
	Stored bool
	// Fails reports whether n may fail at run time. Nil: it never fails.
	Fails func(n *Node) bool
	// Index is the operand of n that holds indices, or the index at which something begins, and the number that they are below;
	// they are at least 0. Nil: there is none.
	Index func(n *Node) (operand, below int)
	// Chooses reports whether operand i is compared to choose something: a small error in it may change much of the results.
	// Nil: none is.
	Chooses func(i int) bool
	// Moves reports whether elements of operand i are elements of the result as they are; see [Moves]. Nil: the first operand's
	// are if Class is ClassView, and no others.
	Moves func(i int) bool
	// Skips reports whether a kernel for op may leave out products with the zeros of padding, of a mask or of dropped elements,
	// so that what they are multiplied with does not show if it is not finite. Nil: only kernels of an anchor that is the whole
	// operation may.
	Skips func(op Op) bool
	// Usual is n's operation with the attributes that frameworks give it if the user says nothing. Drawings leave these out.
	// Nil: there are none.
	Usual func(n *Node) Op
	// Kind is the operation's class in reports and drawings.
	Kind Kind
	// Verb is what messages and drawings call op, such as the function that it applies. Nil, or an empty text: Name. Detail is
	// what messages say behind it; nil for nothing.
	Verb, Detail func(op Op) string
}

// Class says how the compiler may treat an operation.
type Class uint8

// The classes.
const (
	ClassSource      Class = iota // a value from outside, or a constant
	ClassElementwise              // element i of the result depends on element i of the operands only
	ClassContraction              // matrix products and convolutions
	ClassReduce                   // fewer elements out than in
	ClassView                     // the operand's elements under other indices: free if strides express it
	ClassMove                     // copies elements
	ClassIndex                    // reads or writes at indices that another operand gives
	ClassRandom                   // draws from a counter-based generator
	ClassComposite                // has a decomposition
	ClassFusion                   // Fusion, Host and Result
	ClassCollective               // a value of which other participants have a part
)

// infer applies the type rule. Elements that are only stored are refused where the operation does not take them.
func (i *OpInfo) infer(op Op, args []Type) ([]Type, error) {
	if !i.Stored {
		for _, t := range args {
			if t.DType.IsStored() {
				return nil, fmt.Errorf("of %v: only dequantize, reshape and copy read such elements", t.DType)
			}
		}
	}
	return i.Infer(op, args)
}

func (i *OpInfo) arity() string {
	s := func(n int) string {
		if n == 1 {
			return "1 operand"
		}
		return fmt.Sprintf("%d operands", n)
	}
	switch {
	case i.MaxArgs < 0:
		return "at least " + s(i.MinArgs)
	case i.MinArgs == i.MaxArgs:
		return s(i.MinArgs)
	}
	return fmt.Sprintf("%d to %s", i.MinArgs, s(i.MaxArgs))
}

var byType = map[uintptr]*OpInfo{}
var byName = map[string]*OpInfo{}

func init() {
	for i := range opTable {
		info := &opTable[i]
		t := typeOf(info.Proto)
		if byType[t] != nil || byName[info.Name] != nil || info.Proto.OpName() != info.Name {
			panic("graph: operation table: " + info.Name)
		}
		if err := info.check(); err != nil {
			panic(err)
		}
		byType[t], byName[info.Name] = info, info
	}
}

// check reports an inconsistent row.
func (i *OpInfo) check() error {
	switch {
	case i.Doc == "" || i.Infer == nil:
		return fmt.Errorf("graph: the row of %s lacks its doc or its type rule", i.Name)
	case i.Class == ClassElementwise && (!i.Fuses || i.Anchor != AnchorNone):
		return fmt.Errorf("graph: %s is elementwise, but Fuses is not set", i.Name)
	case !i.Fuses && i.Anchor != AnchorNone:
		return fmt.Errorf("graph: %s has an anchor, but Fuses is not set", i.Name)
	case (i.Anchor == AnchorRow) != (i.RowAxes != nil):
		return fmt.Errorf("graph: %s needs row axes if and only if its anchor is a row", i.Name)
	case i.AlongAxis && axisOf(i.Proto).Kind() != reflect.Int:
		return fmt.Errorf("graph: %s goes along an axis, but has no attribute Axis", i.Name)
	case i.RowWeights && i.Anchor != AnchorRow:
		return fmt.Errorf("graph: %s has weights of rows, but its anchor is not a row", i.Name)
	case (i.Class == ClassCollective) != (i.Sent != nil):
		return fmt.Errorf("graph: %s needs the bytes that are sent if and only if it is collective", i.Name)
	case (i.Class == ClassComposite) != (i.Decompose != nil):
		return fmt.Errorf("graph: %s needs a decomposition if and only if it is composite", i.Name)
	}
	return nil
}

// typeOf is the address of op's type. A map finds it in half the time that it takes for a reflect.Type.
func typeOf(op Op) uintptr { return reflect.ValueOf(reflect.TypeOf(op)).Pointer() }

// InfoOf returns op's row of the table, or nil.
func InfoOf(op Op) *OpInfo {
	if op == nil {
		return nil
	}
	return byType[typeOf(op)]
}

// Has reports whether a node of g is an operation of type T, which may also be an interface.
func Has[T Op](g *Graph) bool {
	return slices.ContainsFunc(g.Nodes, func(n *Node) bool { _, ok := n.Op.(T); return ok })
}

// OpByName returns the row of the named operation, or nil.
func OpByName(name string) *OpInfo { return byName[name] }

// Ops returns the operation table in its order.
func Ops() []*OpInfo {
	r := make([]*OpInfo, len(opTable))
	for i := range opTable {
		r[i] = &opTable[i]
	}
	return r
}

// ClassOf is the class of op.
func ClassOf(op Op) Class {
	if i := InfoOf(op); i != nil {
		return i.Class
	}
	return ClassFusion
}

// Elementwise reports whether element i of op's result depends only on element i of its operands.
func Elementwise(op Op) bool { return ClassOf(op) == ClassElementwise }

// IsView reports whether op only renames the indices of its first operand's elements.
func IsView(op Op) bool { return ClassOf(op) == ClassView }

// ReadsStrides reports whether op, as a separate launch, reads its operands with any strides. Otherwise operands must
// be contiguous.
func ReadsStrides(op Op) bool {
	i := InfoOf(op)
	return i != nil && i.Strided
}

// AnchorOf is the anchor of a Fusion of op alone; ok is false for operations that no body may contain.
func AnchorOf(op Op) (a Anchor, ok bool) {
	if i := InfoOf(op); i != nil && i.Fuses {
		return i.Anchor, true
	}
	return AnchorNone, false
}

// Joins reports whether any body may contain op in addition to its anchor. Such operations are elementwise, or Dropout,
// which also uses an element's index.
func Joins(op Op) bool {
	a, ok := AnchorOf(op)
	return ok && a == AnchorNone
}

func axisOf(op Op) reflect.Value {
	if v := reflect.ValueOf(op); v.Kind() == reflect.Struct {
		return v.FieldByName("Axis")
	}
	return reflect.Value{}
}

// AxisOf is the attribute Axis of an operation that takes each slice along it by itself; ok is false for others.
func AxisOf(op Op) (axis int, ok bool) {
	if i := InfoOf(op); i == nil || !i.AlongAxis {
		return 0, false
	}
	return int(axisOf(op).Int()), true
}

// ReplaceAxis is op with what axis makes of its attribute Axis.
func ReplaceAxis(op Op, axis func(int) int) Op {
	v := reflect.New(reflect.TypeOf(op)).Elem()
	v.Set(reflect.ValueOf(op))
	a := v.FieldByName("Axis")
	a.SetInt(int64(axis(int(a.Int()))))
	return v.Interface().(Op)
}

// RowWeights reports whether operand i of op is a vector that all rows read.
func RowWeights(op Op, i int) bool {
	info := InfoOf(op)
	return info != nil && info.RowWeights && i > 0
}

// KindOf is op's class in reports and drawings.
func KindOf(op Op) Kind {
	if i := InfoOf(op); i != nil {
		return i.Kind
	}
	return KindElementwise
}

// Verb is what messages and drawings call op: its function, such as log, or its name.
func Verb(op Op) string {
	i := InfoOf(op)
	if i == nil || i.Verb == nil {
		return op.OpName()
	}
	return cmp.Or(i.Verb(op), i.Name)
}

// Index is the operand of n that holds indices, and the number that they are below; see [OpInfo]. It is nil if there is none.
func Index(n *Node) (index *Node, below int) {
	i := InfoOf(n.Op)
	if i == nil || i.Index == nil {
		return nil, 0
	}
	operand, below := i.Index(n)
	return n.Args[operand], below
}

// Choosers lists the operands of n that are compared to choose something; see [OpInfo].
func Choosers(n *Node) (list []*Node) {
	info := InfoOf(n.Op)
	if info == nil || info.Chooses == nil {
		return nil
	}
	for i, a := range n.Args {
		if info.Chooses(i) {
			list = append(list, a)
		}
	}
	return list
}

// Moves reports whether elements of operand i of op are elements of its result as they are, such as those of concat.
func Moves(op Op, i int) bool {
	info := InfoOf(op)
	switch {
	case info == nil:
		return false
	case info.Moves == nil:
		return info.Class == ClassView && i == 0
	}
	return info.Moves(i)
}

// Skips reports whether a kernel for op may leave out products with the zeros of padding, of a mask or of dropped elements.
func Skips(op Op) bool {
	info := InfoOf(op)
	return info != nil && (info.Anchor.Whole() || info.Skips != nil && info.Skips(op))
}

// Usual is n's operation with the attributes that frameworks give it if the user says nothing, or nil if there are none.
func Usual(n *Node) Op {
	if info := InfoOf(n.Op); info != nil && info.Usual != nil {
		return info.Usual(n)
	}
	return nil
}

// Fails reports whether n may fail at run time.
func Fails(n *Node) bool {
	i := InfoOf(n.Op)
	return i == nil || i.Fails != nil && i.Fails(n)
}
