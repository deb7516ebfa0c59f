package graph

import "fmt"

// Unary applies a function of one variable. Alpha is the parameter of the functions that have one (leaky_relu, elu).
// AtZero is the derivative at 0 of those that have a kink there (relu, leaky_relu, elu); it changes no value.
type Unary struct {
	Fn     UnaryFn
	Alpha  float64
	AtZero Slope `attr:"optional"`
}

// Binary applies a function of two variables. Comparisons give Bool.
type Binary struct{ Fn BinaryFn }

// Select is cond ? a : b.
type Select struct{}

// Cast converts to another element type: float to integer truncates, to Bool is x ≠ 0; to a 16-bit type rounds to
// nearest, ties to even.
type Cast struct{ To DType }

// OpName implements Op.
func (Unary) OpName() string { return "unary" }

// OpName implements Op.
func (Binary) OpName() string { return "binary" }

// OpName implements Op.
func (Select) OpName() string { return "select" }

// OpName implements Op.
func (Cast) OpName() string { return "cast" }

var unaryRow = OpInfo{
	Name: "unary", Doc: "a function of one variable, elementwise", Operands: "x", Proto: Unary{},
	Class: ClassElementwise, Fuses: true, MinArgs: 1, MaxArgs: 1, Infer: inferUnary, FLOPs: flopsUnary,
	Grad: gradUnary, Verb: func(op Op) string { return op.(Unary).Fn.String() },
}

var binaryRow = OpInfo{
	Name: "binary", Doc: "a function of two variables, elementwise", Operands: "x, y", Proto: Binary{},
	Class: ClassElementwise, Fuses: true,
	Fails: func(n *Node) bool { return n.Op.(Binary).Fn.Info().Fails && n.Type.DType.IsInt() }, MinArgs: 2,
	MaxArgs: 2, Infer: inferBinary, FLOPs: flopsBinary, Grad: gradBinary, Verb: func(op Op) string { return op.(Binary).Fn.String() },
}

var selectRow = OpInfo{
	Name: "select", Doc: "cond ? a : b, elementwise", Operands: "cond, a, b", Proto: Select{},
	Class: ClassElementwise, Fuses: true, MinArgs: 3, MaxArgs: 3, Infer: inferSelect, Grad: gradSelect,
	Moves: func(i int) bool { return i > 0 },
}

var castRow = OpInfo{
	Name: "cast", Doc: "conversion to another element type", Operands: "x", Proto: Cast{}, Class: ClassElementwise,
	Fuses: true, MinArgs: 1, MaxArgs: 1, Infer: inferCast, FLOPs: free, Grad: gradCast,
}

// gradUnary calls the gradient in the function's row.
func gradUnary(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op := n.Op.(Unary)
	if op.Fn.Info().Flat {
		return []*Node{nil}, nil
	}
	return []*Node{op.Fn.Info().Grad(derivative{b, op, n.Args[0], n, dys[0]})}, nil
}

// gradBinary calls the gradient in the function's row. The gradient of a scalar operand that was broadcast is summed.
func gradBinary(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	x, y := n.Args[0], n.Args[1]
	dx, dz := n.Op.(Binary).Fn.Info().Grad(b, n, dys[0])
	if dx != nil {
		dx = b.SumTo(dx, x.Type.Shape)
	}
	return []*Node{dx, b.SumTo(dz, y.Type.Shape)}, nil
}

func gradSelect(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	cond, dy := n.Args[0], dys[0]
	zero := b.Scalar(dy.Type.DType, 0)
	da := b.SumTo(b.Add(Select{}, cond, dy, zero), n.Args[1].Type.Shape)
	db := b.SumTo(b.Add(Select{}, cond, zero, dy), n.Args[2].Type.Shape)
	return []*Node{nil, da, db}, nil
}

func gradCast(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.CastTo(n.Args[0].Type.DType.Accumulator(), dys[0])}, nil
}

func inferUnary(op Op, args []Type) ([]Type, error) {
	u, t := op.(Unary), args[0]
	if int(u.Fn) >= numUnary {
		return nil, fmt.Errorf("unknown function %d", u.Fn)
	}
	if err := u.checkSlope(); err != nil {
		return nil, err
	}
	if err := u.Fn.Info().Of.check(u.Fn, t); err != nil {
		return nil, err
	}
	return one(args, t)
}

// checkSlope refuses AtZero for functions that have no kink at 0.
func (u Unary) checkSlope() error {
	switch {
	case int(u.AtZero) >= len(slopes):
		return fmt.Errorf("unknown slope %d", u.AtZero)
	case u.AtZero != 0 && !u.Fn.Info().Kink:
		return fmt.Errorf("%v has no slope at 0 to choose", u.Fn)
	}
	return nil
}

// elementwiseShape is the shape of an elementwise result: that of the operands that are not scalars.
func elementwiseShape(args ...Type) (Shape, error) {
	var s Shape
	for _, t := range args {
		switch {
		case t.Shape.Rank() == 0 || t.Shape == s:
		case s.Rank() == 0:
			s = t.Shape
		default:
			return s, fmt.Errorf("shapes %v and %v differ (and neither is a scalar)", s, t.Shape)
		}
	}
	return s, nil
}

func inferBinary(op Op, args []Type) ([]Type, error) {
	f := op.(Binary).Fn
	if int(f) >= numBinary {
		return nil, fmt.Errorf("unknown function %d", f)
	}
	s, err := elementwiseShape(args...)
	if err != nil {
		return nil, err
	}
	d := args[0].DType
	if d != args[1].DType {
		return nil, fmt.Errorf("element types %v and %v differ", d, args[1].DType)
	}
	if err := f.Info().Of.check(f, args[0]); err != nil {
		return nil, err
	}
	if f.Compares() {
		d = Bool
	}
	return one(args, Type{d, s})
}

func inferSelect(_ Op, args []Type) ([]Type, error) {
	if args[0].DType != Bool {
		return nil, fmt.Errorf("the condition is %v, not bool", args[0].DType)
	}
	if args[1].DType != args[2].DType {
		return nil, fmt.Errorf("element types %v and %v differ", args[1].DType, args[2].DType)
	}
	if err := wantComputed(args[1]); err != nil {
		return nil, err
	}
	s, err := elementwiseShape(args...)
	if err != nil {
		return nil, err
	}
	return one(args, Type{args[1].DType, s})
}

func inferCast(op Op, args []Type) ([]Type, error) {
	d := op.(Cast).To
	if d == Invalid || int(d) >= len(dtypes) {
		return nil, fmt.Errorf("no element type is given")
	}
	if d.IsStored() {
		return nil, fmt.Errorf("to %v: only quantize makes such elements", d)
	}
	return one(args, args[0].With(d))
}

func flopsUnary(op Op, _, out []Type) int64 { return op.(Unary).Fn.Info().FLOPs * elems(out[0]) }

func flopsBinary(op Op, _, out []Type) int64 { return op.(Binary).Fn.Info().FLOPs * elems(out[0]) }
