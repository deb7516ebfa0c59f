package graph

import (
	"fmt"
	"slices"
)

// Operand describes an argument or a result of a launch for its kernels: its element type, the layout of its elements
// in the buffer, and properties of the buffer.
type Operand struct {
	DType  DType
	Layout Layout
	Frozen bool // an argument that changes only when the caller announces it
	Given  bool // an argument that no launch of a run writes
	Own    bool // an argument that no other launch of a run writes
	Within bool // an argument in the buffer of the Concat's result
	// Over is 1 + the index of the argument whose memory a result overwrites, element by element; 0 if there is none.
	Over int
	// Update says that a result's buffer is a State or Param, which a failed run must not change.
	Update bool
}

// Type is the type of the operand's value.
func (o Operand) Type() Type { return Type{DType: o.DType, Shape: o.Layout.Shape} }

// BytesOf describes values whose elements are only stored as their bytes, of type U8, for what copies them. Those of I4, two
// of which share a byte, are contiguous, and become a vector.
func BytesOf(list []Operand) []Operand {
	out := slices.Clone(list)
	for i := range out {
		o := &out[i]
		switch {
		case o.DType == I4:
			*o = Operand{DType: U8, Layout: Contiguous(ShapeOf(int(o.Type().Bytes())))}
		case o.DType.IsStored():
			o.DType = U8
		}
	}
	return out
}

// CheckOperands reports operands and results that do not fit the operation's type rule, or that are not contiguous
// although the operation requires it.
func CheckOperands(op Op, args, results []Operand) error {
	info := InfoOf(op)
	if info == nil {
		return fmt.Errorf("operation %T is not in the table", op)
	}
	if len(args) < info.MinArgs || info.MaxArgs >= 0 && len(args) > info.MaxArgs {
		return fmt.Errorf("%s of %d operands", info.Name, len(args))
	}
	in := make([]Type, len(args))
	for i, a := range args {
		in[i] = a.Type()
		if !ReadsStrides(op) && !a.Layout.IsContiguous() {
			return fmt.Errorf("%s: operand %d of type %v is not contiguous", info.Name, i, in[i])
		}
	}
	out, err := info.infer(op, in)
	if err != nil {
		return fmt.Errorf("%s: %w", info.Name, err)
	}
	if len(results) != len(out) {
		return fmt.Errorf("%s: %d results, not %d", info.Name, len(results), len(out))
	}
	for i, r := range results {
		if r.Type() != out[i] {
			return fmt.Errorf("%s: result %d has type %v, not %v", info.Name, i, r.Type(), out[i])
		}
		if !r.Layout.IsContiguous() {
			return fmt.Errorf("%s: result %d of type %v is not contiguous", info.Name, i, out[i])
		}
	}
	return nil
}

// Alone is the Fusion of one operation, with the operands as inputs and all its results as outputs.
func Alone(op Op, args []Operand, results int) (Fusion, error) {
	anchor, ok := AnchorOf(op)
	if !ok {
		return Fusion{}, fmt.Errorf("no fusion computes %s", op.OpName())
	}
	b := NewBuilder(op.OpName())
	in := make([]*Node, len(args))
	for i, a := range args {
		in[i] = b.Input(fmt.Sprintf("x%d", i), a.Type())
	}
	y := b.Add(op, in...)
	b.Output("0", y)
	for i := 1; i < results; i++ {
		b.Output(fmt.Sprint(i), b.Add(Result{Index: i}, y))
	}
	body, err := b.Graph()
	return Fusion{Anchor: anchor, Body: body}, err
}

// Operands are the segment's arguments and results, with Over counted by the segment's arguments.
func (s Segment) Operands(args, results []Operand) (in, out []Operand) {
	for _, i := range s.Args {
		in = append(in, args[i])
	}
	for _, i := range s.Results {
		r := results[i]
		if r.Over > 0 {
			r.Over = 1 + slices.Index(s.Args, r.Over-1)
		}
		out = append(out, r)
	}
	return in, out
}

// CheckSegments refuses results that overwrite an argument of another segment, because segments may run in any order.
func CheckSegments(segments []Segment, results []Operand) error {
	for i, s := range segments {
		for _, r := range s.Results {
			for k, other := range segments {
				if o := results[r].Over - 1; o >= 0 && k != i && slices.Contains(other.Args, o) {
					return fmt.Errorf("result %d is written over operand %d, which another segment reads", r, o)
				}
			}
		}
	}
	return nil
}
