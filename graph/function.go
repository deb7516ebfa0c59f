package graph

import "fmt"

// The functions of Unary and Binary are rows of tables. Each family of functions has a file with their names and rows.
// Type rules, references, gradients, costs, drawings and tests take what they need from the rows. The code with which a
// target computes a function is in the target's package. Each target checks at start that it has an answer for every
// row.

// UnaryFn is a function of one variable.
type UnaryFn uint8

// BinaryFn is a function of two variables.
type BinaryFn uint8

// The numbers of functions.
const (
	numUnary  = int(endUnaryLogic)
	numBinary = int(endCompare)
)

// UnaryInfo is the row of a function of one variable. One of Eval and EvalAlpha is its meaning.
type UnaryInfo struct {
	Fn        UnaryFn
	Name      string
	Doc       string // what the function is, in one line
	Of        Domain // the element types of operands; the result has the same type
	Eval      func(x float64) float64
	EvalAlpha func(x, alpha float64) float64 // of a function with the parameter [Unary.Alpha]
	EvalInt   func(x int64) int64            // of integers, before they wrap, and of Bools as 0 and 1
	EvalU64   func(x uint64) uint64          // of U64, where EvalInt of the same bits would be wrong
	Kink      bool                           // the derivative at 0 is given by [Unary.AtZero]
	Flat      bool                           // constant between jumps: there is no gradient
	// Applied twice, an idempotent function is itself, and an involution is x.
	Idempotent, Involution bool
	FLOPs                  int64
	Grad                   func(d derivative) *Node // the gradient of x: an expression of x, y and dy
	Bound                  Bound
	Form                   Form
	Lo, Hi                 float64 // the range from which tests draw x, without poles and points outside of the domain; both 0: [−2,2)
}

// BinaryInfo is the row of a function of two variables.
type BinaryInfo struct {
	Fn       BinaryFn
	Name     string
	Doc      string // what the function is, in one line
	Of       Domain // the element types of operands, which both have one type
	Eval     func(x, y float64) float64
	EvalInt  func(x, y int64) (int64, error)   // of integers, before they wrap, and of Bools as 0 and 1
	EvalU64  func(x, y uint64) (uint64, error) // of U64, where EvalInt of the same bits would be wrong
	Compares bool                              // the result is a Bool; the operands may be of another type
	Commutes bool                              // f(x,y) = f(y,x)
	Fails    bool                              // may be undefined for integers, which is an error at run time
	FLOPs    int64
	// Grad returns the gradients of n's operands x and y, before they are summed for a scalar; dy is the gradient of n.
	Grad  func(b *Builder, n, dy *Node) (dx, dz *Node)
	Bound Bound
	Form  Form
	// The ranges from which tests draw operands, without poles and points outside of the domain; both 0: [−2,2).
	XLo, XHi, YLo, YHi float64
}

// Domain is a set of kinds of element types.
type Domain uint8

// The kinds of element types that elementwise functions take.
const (
	Floats Domain = 1 << iota // F32 and F64
	Integers
	Bools

	Numbers = Floats | Integers
)

// Has reports whether functions of the domain take elements of type d.
func (of Domain) Has(d DType) bool {
	switch {
	case d == Bool:
		return of&Bools != 0
	case d.IsInt():
		return of&Integers != 0
	}
	return of&Floats != 0 && d.IsFloat()
}

// check refuses element types that f, a function of the domain, does not take.
func (of Domain) check(f fmt.Stringer, t Type) error {
	switch {
	case of.Has(t.DType):
		return nil
	case of == Bools:
		return fmt.Errorf("%v needs bool, not %v", f, t.DType)
	case of&(Floats|Integers) == Integers:
		return fmt.Errorf("%v needs integers%s, not %v", f, map[bool]string{true: " or bool"}[of&Bools != 0], t.DType)
	case of&Integers == 0:
		return fmt.Errorf("%v %w", f, wantFloat(t))
	case t.DType == Bool:
		return fmt.Errorf("%v needs numbers, not bool", f)
	}
	return fmt.Errorf("%v %w", f, wantComputed(t))
}

// Bound is the error that an implementation of a function of floats may have, in units of ε.
type Bound struct {
	Terms Terms
	// Properties that values close to x do not show. Pole: infinite at 0 (of two variables, where the second is 0),
	// with either sign. Poles: infinite at places that may be anywhere, and increasing between them. Wave: an extreme may
	// be anywhere. Overflows: infinite beyond the range of numbers, not only at a pole. Jumps: of two variables, where the
	// quotient is a whole number. Gated: x times a factor in [0,1], which may be 0 where it is less than the smallest normal number.
	Pole, Poles, Wave, Overflows, Jumps, Gated bool
}

// Terms is the magnitude to which a function's error is relative.
type Terms uint8

// The magnitudes.
const (
	OfResult    Terms = iota // |f|
	OfArguments              // |x|, or |x| + |y|
	OfBoth                   // |f| and those of OfArguments
	Exact                    // 0
)

// Form is how a function is written in a formula: by its name, unless Bind is greater than 0.
type Form struct {
	Sign        string  // before an operand, or between two
	After       string  // after an operand
	Bind        Binding // of the whole
	Left, Right Binding // the least binding of an operand without brackets; a function of one operand uses Right
}

// Binding is the precedence of an operator in a formula.
type Binding uint8

// The bindings.
const (
	BindLoose Binding = iota
	BindCompare
	BindSum
	BindProduct
	BindPower
	BindAtom
)

// derivative has the values from which the gradient of a function of one variable is computed: x, y = f(x), and dy, the
// gradient of y.
type derivative struct {
	*Builder
	op       Unary
	x, y, dy *Node
}

// of is the function f of u.
func (d derivative) of(f UnaryFn, u *Node) *Node { return d.Unary(f, u) }

func (d derivative) mul(u, v *Node) *Node           { return d.Binary(Mul, u, v) }
func (d derivative) div(u, v *Node) *Node           { return d.Binary(Div, u, v) }
func (d derivative) add(u, v *Node) *Node           { return d.Binary(Add, u, v) }
func (d derivative) times(u *Node, c float64) *Node { return d.BinaryScalar(Mul, u, c) }
func (d derivative) plus(u *Node, c float64) *Node  { return d.BinaryScalar(Add, u, c) }

// oneMinus is 1 − u.
func (d derivative) oneMinus(u *Node) *Node { return d.Binary(Sub, d.Scalar(u.Type.DType, 1), u) }

// where is u where x > 0, v where x < 0, and the value given by AtZero at 0.
func (d derivative) where(u, v *Node) *Node {
	switch d.op.AtZero {
	case RightSlope:
		return d.Add(Select{}, d.BinaryScalar(Ge, d.x, 0), u, v)
	case MeanSlope:
		v = d.Add(Select{}, d.BinaryScalar(Eq, d.x, 0), d.times(d.add(u, v), 0.5), v)
	}
	return d.Add(Select{}, d.BinaryScalar(Gt, d.x, 0), u, v)
}

var (
	unaryRows  [numUnary]UnaryInfo
	binaryRows [numBinary]BinaryInfo
)

func init() {
	for _, family := range [][]UnaryInfo{signs, exponentials, powers, waves, activations, unaryLogic} {
		for _, row := range family {
			unaryRows[row.Fn] = row
		}
	}
	for _, family := range [][]BinaryInfo{arithmetic, logic, comparisons} {
		for _, row := range family {
			binaryRows[row.Fn] = row
		}
	}
	if err := checkFunctions(unaryRows[:], binaryRows[:]); err != nil {
		panic(err)
	}
}

// checkFunctions reports a function without a row, or with an incomplete row.
func checkFunctions(unary []UnaryInfo, binary []BinaryInfo) error {
	after := "the first"
	for i, r := range unary {
		switch {
		case r.Name == "":
			return fmt.Errorf("graph: a function of one variable (%s) has no row", after)
		case int(r.Fn) != i:
			return fmt.Errorf("graph: the row of %s is that of function %d, not %d", r.Name, r.Fn, i)
		case (r.Eval == nil) == (r.EvalAlpha == nil):
			return fmt.Errorf("graph: %s needs either Eval or EvalAlpha", r.Name)
		case r.Doc == "" || r.Of == 0 || r.FLOPs == 0:
			return fmt.Errorf("graph: the row of %s lacks its doc, its operands or its cost", r.Name)
		case (r.EvalInt == nil) != (r.Of&(Integers|Bools) == 0):
			return fmt.Errorf("graph: %s needs EvalInt if and only if it takes integers", r.Name)
		case (r.Grad == nil) != (r.Of&Floats == 0 || r.Flat):
			return fmt.Errorf("graph: %s needs a gradient if and only if it takes floats and is not flat", r.Name)
		}
		after = "the one after " + r.Name
	}
	after = "the first"
	for i, r := range binary {
		switch {
		case r.Name == "":
			return fmt.Errorf("graph: a function of two variables (%s) has no row", after)
		case int(r.Fn) != i:
			return fmt.Errorf("graph: the row of %s is that of function %d, not %d", r.Name, r.Fn, i)
		case r.Eval == nil || r.EvalInt == nil:
			return fmt.Errorf("graph: %s has no value", r.Name)
		case r.Doc == "" || r.Of == 0 || r.FLOPs == 0 || r.Form.Sign == "":
			return fmt.Errorf("graph: the row of %s lacks its doc, its operands, its cost or its sign", r.Name)
		case (r.Grad == nil) != (r.Of&Floats == 0 || r.Compares):
			return fmt.Errorf("graph: %s needs a gradient if and only if its value is a float", r.Name)
		}
		after = "the one after " + r.Name
	}
	return nil
}

// UnaryFns lists the rows of the functions of one variable in their order.
func UnaryFns() []UnaryInfo { return unaryRows[:] }

// BinaryFns lists the rows of the functions of two variables in their order.
func BinaryFns() []BinaryInfo { return binaryRows[:] }

// UnaryFnsOf lists the functions of one variable that take elements of type d.
func UnaryFnsOf(d DType) (fns []UnaryFn) {
	for _, r := range unaryRows {
		if r.Of.Has(d) {
			fns = append(fns, r.Fn)
		}
	}
	return fns
}

// BinaryFnsOf lists the functions of two variables that take elements of type d.
func BinaryFnsOf(d DType) (fns []BinaryFn) {
	for _, r := range binaryRows {
		if r.Of.Has(d) {
			fns = append(fns, r.Fn)
		}
	}
	return fns
}

// Info is the function's row. It panics for a number that is not a function; the type rule keeps such numbers out of
// graphs.
func (f UnaryFn) Info() *UnaryInfo { return &unaryRows[f] }

// Info is the function's row. It panics for a number that is not a function; the type rule keeps such numbers out of
// graphs.
func (f BinaryFn) Info() *BinaryInfo { return &binaryRows[f] }

// String gives the function's name in the text form.
func (f UnaryFn) String() string { return f.Info().Name }

// String gives the function's name in the text form.
func (f BinaryFn) String() string { return f.Info().Name }

// HasAlpha reports whether the function has the parameter [Unary.Alpha].
func (f UnaryFn) HasAlpha() bool { return f.Info().EvalAlpha != nil }

// Eval is the function's value; alpha is ignored by functions without a parameter.
func (f UnaryFn) Eval(x, alpha float64) float64 {
	if r := f.Info(); r.EvalAlpha != nil {
		return r.EvalAlpha(x, alpha)
	} else {
		return r.Eval(x)
	}
}

// Eval is the function's value; true is 1.
func (f BinaryFn) Eval(x, y float64) float64 { return f.Info().Eval(x, y) }

// OfInts is f of integers or Bools of type d, before the result wraps. Numbers of U64 are int64s with the same bits, and
// Bools 0 and 1. It is nil for a function that does not take d.
func (f UnaryFn) OfInts(d DType) func(x int64) int64 {
	r := f.Info()
	if d == U64 && r.EvalU64 != nil {
		return func(x int64) int64 { return int64(r.EvalU64(uint64(x))) }
	}
	return r.EvalInt
}

// OfInts is f of integers or Bools of type d, before the result wraps; comparisons give 0 or 1. Numbers of U64 are int64s
// with the same bits, and Bools 0 and 1. Quotients and powers are truncated; it reports a division by zero.
func (f BinaryFn) OfInts(d DType) func(x, y int64) (int64, error) {
	r := f.Info()
	if d == U64 && r.EvalU64 != nil {
		return func(x, y int64) (int64, error) {
			v, err := r.EvalU64(uint64(x), uint64(y))
			return int64(v), err
		}
	}
	return r.EvalInt
}

// EvalInt is [UnaryFn.OfInts] of one number, wrapped. It panics for a function that does not take d; the type rule keeps
// such uses out of graphs.
func (f UnaryFn) EvalInt(d DType, x int64) int64 {
	eval := f.OfInts(d)
	if eval == nil {
		panic(fmt.Sprintf("graph: %v of %v", f, d))
	}
	return d.Wrap(eval(x))
}

// EvalInt is [BinaryFn.OfInts] of two numbers, wrapped.
func (f BinaryFn) EvalInt(d DType, x, y int64) (int64, error) {
	v, err := f.OfInts(d)(x, y)
	return d.Wrap(v), err
}

// Compares reports whether f is a comparison, whose result is a Bool.
func (f BinaryFn) Compares() bool { return f.Info().Compares }

// Commutes reports whether f(x,y) = f(y,x).
func (f BinaryFn) Commutes() bool { return f.Info().Commutes }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *UnaryFn) UnmarshalText(b []byte) (err error) {
	*f, err = parseEnum(string(b), UnaryFn.String, numUnary)
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *BinaryFn) UnmarshalText(b []byte) (err error) {
	*f, err = parseEnum(string(b), BinaryFn.String, numBinary)
	return
}

// b2f is 1 for true and 0 for false.
func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// truth is 1 for true and 0 for false.
func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
