// Package body lowers the body of a [graph.Fusion] to a [Program]: a short list of values in the order in which they can
// be computed, over one iteration space. Targets turn it into their own code: kernels/cpu into a vector program,
// kernels/cuda into C++, lowering/fpga into tasks of the overlay.
//
// [Lower] follows the views once. What the body reads has a layout over the iteration space; what it hands out has a
// layout in the result's buffer. No view is left. [Lower] is also the check of the contract that graph/fusion.go states:
// it refuses a body that breaks the contract, and names the node that does.
//
// A Program says what is computed, not how: which axis is vectorised, what stays in registers and in what order the
// iteration space is walked is the target's choice.
package body

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
)

// A Program is the lowered body of a launch.
//
// For the anchors none, matmul, conv and row all values are numbers over one iteration space. For an anchor that is
// [graph.Anchor.Whole], the values are results of the anchor, each with a shape of its own, and there is no space.
type Program struct {
	Kind graph.Anchor
	// Anchor is the operation of the anchor: of a row the first reduction; nil where there is none.
	Anchor *graph.Node
	// Operands are those of Anchor, except for rows, whose operands are values.
	Operands []Operand
	// Space is the shape of the iteration space: that of the elementwise work, and of the anchor's result or, for rows,
	// of what is reduced.
	Space graph.Shape
	// Axes are the axes of Space along which rows run, in ascending order. Kept is Space with these axes at 1.
	Axes graph.Ints
	Kept graph.Shape
	// Lane is the element type in which all values can be computed: F32 or F64. See [graph.LaneOf].
	Lane graph.DType
	// Values are what is computed. Each comes after its operands, and at least one store needs it. Values come in the
	// order in which stores of level 0 need them, then reductions of level 1, stores of level 1, and so on.
	Values []Value
	// Stores are the results, in the order of the body's outputs.
	Stores []Store
	// Levels is the greatest level of a value.
	Levels int
}

// A Value is a number for each element of the iteration space, or fewer: one for each row, or one for all.
type Value struct {
	Kind Kind
	// Node is what computes the value in the body; of a load the view that is read, or the input.
	Node *graph.Node
	// Args are the operands, as indices of values.
	Args []int
	// Level is the number of reductions in a chain up to and including the value.
	Level int
	// PerRow says that the value is the same for all elements of a row.
	PerRow bool

	Arg    int           // of a load: the argument
	Layout graph.Layout  // of a load: where the elements of the space lie in the argument
	Number *graph.Tensor // of a constant: its elements, all of one value
	Result int           // of an anchor's result: which one
}

// Kind says how a value comes about.
type Kind uint8

// The kinds.
const (
	Load         Kind = iota // read from an argument
	Constant                 // one number
	Elementwise              // computed from the same element of the operands: Unary, Binary, Select or Cast
	Draw                     // Dropout: operand 0 is x; operand 1 is the seed, a load or a constant
	Row                      // computed along rows: a Reduce, Softmax, LogSoftmax, LayerNorm or RMSNorm
	AnchorResult             // a result of the anchor
)

var kinds = [...]string{"load", "constant", "elementwise", "draw", "row", "anchor"}

// String is the kind's name.
func (k Kind) String() string { return kinds[k] }

// An Operand is an operand of the anchor: an argument through a layout of its own shape. A constant, which only the seed
// of an attention may be, has Arg −1 and a Number.
type Operand struct {
	Node   *graph.Node
	Arg    int
	Layout graph.Layout
	Number *graph.Tensor
	// Norm, if set, says that the launch makes the operand: the argument's rows are normed, and perhaps cast.
	Norm *Norm
}

// A Norm makes an operand of a product: its node is an RMSNorm, whose gamma is an argument, too.
type Norm struct {
	Node   *graph.Node
	Arg    int
	Layout graph.Layout
}

// A Store writes a value, or its column sums, to the result of the same index.
type Store struct {
	Value int
	// Layout says where elements of the space lie in the result. For column sums, and for an anchor that is whole, it has
	// the shape of Node.
	Layout graph.Layout
	// Node is what the store views of the output lead from: for column sums the Reduce.
	Node *graph.Node
	// Sums says that the column sums of the value are stored: its sums over all rows; see [graph.Fusion].
	Sums bool
	// PerRow says that there is one number for each row.
	PerRow bool
	// Pool is the pool of which the result is stored, over windows of the value; or nil. Layout has its shape then, and there is
	// no other result.
	Pool *graph.Node
}

// StoreLevel is the level at which store s can run: results of rows come last.
func (p *Program) StoreLevel(s *Store) int {
	if s.PerRow {
		return p.Levels
	}
	return p.Values[s.Value].Level
}

// LeadsBack reports whether an element of a row depends on a reduction of that row: rows cannot be cut into parts that
// are reduced apart.
func (p *Program) LeadsBack() bool {
	return p.Levels > 1 || slices.ContainsFunc(p.Values, func(v Value) bool { return v.Level > 0 && !v.PerRow }) ||
		slices.ContainsFunc(p.Stores, func(s Store) bool { return !s.PerRow && p.Values[s.Value].Level > 0 })
}

// SumsColumns reports whether a result is a column sum.
func (p *Program) SumsColumns() bool {
	return slices.ContainsFunc(p.Stores, func(s Store) bool { return s.Sums })
}

// Draws reports whether a value depends on an element's index.
func (p *Program) Draws() bool {
	return slices.ContainsFunc(p.Values, func(v Value) bool { return v.Kind == Draw })
}

// Norms reports whether an operand of the anchor is normed in the launch.
func (p *Program) Norms() bool {
	return slices.ContainsFunc(p.Operands, func(o Operand) bool { return o.Norm != nil })
}

// ResultOf is the result of the anchor that store s hands out, perhaps after a cast, which is returned then.
func (p *Program) ResultOf(s *Store) (result int, cast *graph.Node) {
	v := &p.Values[s.Value]
	if v.Kind == Elementwise {
		return p.Values[v.Args[0]].Result, v.Node
	}
	return v.Result, nil
}

// OperandTypes are the types of the anchor's operands.
func (p *Program) OperandTypes() []graph.Type {
	types := make([]graph.Type, len(p.Operands))
	for i, o := range p.Operands {
		types[i] = o.Node.Type
	}
	return types
}

// IndexOf is the index of the value that is result number result of the anchor, or -1.
func (p *Program) IndexOf(result int) int {
	return slices.IndexFunc(p.Values, func(v Value) bool { return v.Kind == AnchorResult && v.Result == result })
}

// Order calls visit for value root and those of its operands, operands of operands and so on that are not yet made: each
// once, after its operands. It stops at the first error. The caller notes in visit what is made.
func (p *Program) Order(root int, made func(i int) bool, visit func(i int) error) error {
	type frame struct{ value, next int }
	stack := []frame{{root, 0}}
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		args := p.Values[top.value].Args
		switch {
		case made(top.value):
			stack = stack[:len(stack)-1]
		case top.next < len(args):
			top.next++
			stack = append(stack, frame{args[top.next-1], 0})
		default:
			if err := visit(top.value); err != nil {
				return err
			}
			stack = stack[:len(stack)-1]
		}
	}
	return nil
}

// String lists the program, a value a line.
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v", p.Kind)
	if !p.Kind.Whole() {
		fmt.Fprintf(&b, " over %v in %v", p.Space, p.Lane)
	}
	if p.Kind == graph.AnchorRow {
		fmt.Fprintf(&b, ", rows along %v", p.Axes)
	}
	b.WriteByte('\n')
	for i, o := range p.Operands {
		if o.Arg < 0 {
			fmt.Fprintf(&b, "  operand %d = %v\n", i, o.Number.Float(0))
		} else {
			fmt.Fprintf(&b, "  operand %d = argument %d %s", i, o.Arg, place(o.Layout))
			if o.Norm != nil {
				fmt.Fprintf(&b, ", %s by argument %d %s", o.Norm.Node.Op.OpName(), o.Norm.Arg, place(o.Norm.Layout))
			}
			b.WriteByte('\n')
		}
	}
	for i := range p.Values {
		v := &p.Values[i]
		fmt.Fprintf(&b, "  v%d = ", i)
		switch v.Kind {
		case Load:
			fmt.Fprintf(&b, "argument %d %s", v.Arg, place(v.Layout))
		case Constant:
			fmt.Fprintf(&b, "%v", v.Number.Float(0))
		case AnchorResult:
			fmt.Fprintf(&b, "%s", p.Anchor.Op.OpName())
			if v.Result > 0 {
				fmt.Fprintf(&b, ".%d", v.Result)
			}
		default:
			b.WriteString(v.Node.Op.OpName())
			for _, a := range graph.Attrs(v.Node.Op) {
				fmt.Fprintf(&b, " %s=%s", a.Name, a.Value)
			}
			for _, a := range v.Args {
				fmt.Fprintf(&b, " v%d", a)
			}
		}
		if p.Kind == graph.AnchorRow && v.Kind != Constant {
			fmt.Fprintf(&b, "  # level %d", v.Level)
			if v.PerRow {
				b.WriteString(", one for each row")
			}
		}
		b.WriteByte('\n')
	}
	for i := range p.Stores {
		s := &p.Stores[i]
		what := "v%d"
		switch {
		case s.Sums:
			what = "column sums of v%d"
		case s.Pool != nil:
			what = "windows of v%d"
		}
		fmt.Fprintf(&b, "  result %d %s = "+what+"\n", i, place(s.Layout), s.Value)
	}
	return b.String()
}

// place writes a layout: its shape and, where its elements do not lie side by side from the first on, offset and strides.
func place(l graph.Layout) string {
	if l.Offset == 0 && l.IsContiguous() {
		return l.Shape.String()
	}
	return fmt.Sprintf("%v+%d/%v", l.Shape, l.Offset, l.Stride[:l.Shape.Rank()])
}
