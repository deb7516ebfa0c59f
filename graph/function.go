package graph

import "fmt"

// The functions of Unary and Binary are rows of tables. A family of functions is a file: their names and their rows, from
// which type rules, references, gradients, costs, drawings and tests take what they know of a function. What a target
// computes a function with stands with the target; each checks when it starts that it has an answer for every row.

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
	Of        Domain // the operands that it takes; the result has their type
	Eval      func(x float64) float64
	EvalAlpha func(x, alpha float64) float64 // of a function with the parameter [Unary.Alpha]
	EvalInt   func(x int64) int64            // of integers, before they wrap, and of Bools as 0 and 1
	Kink      bool                           // [Unary.AtZero] chooses the derivative at 0
	FLOPs     int64
	Grad      func(d derivative) *Node // the gradient of x: an expression of x, y and dy
	Bound     Bound
	Form      Form
	Lo, Hi    float64 // where tests draw x from, away from poles and what has no value; both 0: [−2,2)
}

// BinaryInfo is the row of a function of two variables.
type BinaryInfo struct {
	Fn       BinaryFn
	Name     string
	Doc      string // what the function is, in one line
	Of       Domain // the operands that it takes, both of one type
	Eval     func(x, y float64) float64
	EvalInt  func(x, y int64) (int64, error) // of integers, before they wrap, and of Bools as 0 and 1
	Compares bool                            // the result is a Bool, the operands need not be
	Commutes bool                            // f(x,y) = f(y,x)
	Fails    bool                            // integers may have no result, which is an error at run time
	FLOPs    int64
	// Grad gives the gradients of n's operands x and y, before they are summed for a scalar; dy is that of n.
	Grad  func(b *Builder, n, dy *Node) (dx, dz *Node)
	Bound Bound
	Form  Form
	// Where tests draw operands from, away from poles and what has no value; both 0: [−2,2).
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
		return fmt.Errorf("%v wants bool, not %v", f, t.DType)
	case of&Integers == 0:
		return fmt.Errorf("%v %w", f, wantFloat(t))
	case t.DType == Bool:
		return fmt.Errorf("%v wants numbers, not bool", f)
	}
	return fmt.Errorf("%v %w", f, wantComputed(t))
}

// Bound says how far an implementation of a function of floats may be off its value, in units of ε.
type Bound struct {
	Terms Terms
	// What values close to x do not show. Pole: infinite at 0 (of two variables, where the second is 0), with either sign.
	// Wave: an extreme may be anywhere. Overflows: infinite beyond the range of numbers, not only at a pole.
	Pole, Wave, Overflows bool
}

// Terms is the magnitude that a function's error is in proportion to.
type Terms uint8

// The magnitudes.
const (
	OfResult    Terms = iota // |f|
	OfArguments              // |x|, or |x| + |y|
	Exact                    // 0
)

// Form is how a function is written in a formula: by its name, unless Bind is greater than 0.
type Form struct {
	Sign        string  // before an operand, or between two
	After       string  // after an operand
	Bind        Binding // of the whole
	Left, Right Binding // that an operand needs, or else gets brackets; the one operand of a function of one is the right
}

// Binding is how strongly what stands in a formula is held together.
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

// derivative is what the gradient of a function of one variable is written with: y is f(x), dy its gradient.
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

// where is u where x > 0, v where x < 0, and at 0 what AtZero says.
func (d derivative) where(u, v *Node) *Node {
	switch d.op.AtZero {
	case RightSlope:
		return d.Add(Select{}, d.BinaryScalar(Ge, d.x, 0), u, v)
	case MeanSlope:
		v = d.Add(Select{}, d.BinaryScalar(Eq, d.x, 0), d.times(d.add(u, v), 0.5), v)
	}
	return d.Add(Select{}, d.BinaryScalar(Gt, d.x, 0), u, v)
}

// level is the gradient of functions that are constant between jumps: none flows.
func level(derivative) *Node { return nil }

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

// checkFunctions reports a function without a row, or whose row lacks what each has to say.
func checkFunctions(unary []UnaryInfo, binary []BinaryInfo) error {
	after := "the first"
	for i, r := range unary {
		switch {
		case r.Name == "":
			return fmt.Errorf("graph: a function of one variable (%s) has no row", after)
		case int(r.Fn) != i:
			return fmt.Errorf("graph: the row of %s is that of function %d, not %d", r.Name, r.Fn, i)
		case (r.Eval == nil) == (r.EvalAlpha == nil):
			return fmt.Errorf("graph: %s has no value, or two", r.Name)
		case r.Doc == "" || r.Of == 0 || r.FLOPs == 0:
			return fmt.Errorf("graph: the row of %s lacks what it is, what it takes or what it costs", r.Name)
		case (r.EvalInt == nil) != (r.Of&(Integers|Bools) == 0):
			return fmt.Errorf("graph: %s needs a value of integers if it takes them, and only then", r.Name)
		case (r.Grad == nil) != (r.Of&Floats == 0):
			return fmt.Errorf("graph: %s needs a gradient if it takes floats, and only then", r.Name)
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
			return fmt.Errorf("graph: the row of %s lacks what it is, what it takes, what it costs or its sign", r.Name)
		case (r.Grad == nil) != (r.Of&Floats == 0 || r.Compares):
			return fmt.Errorf("graph: %s needs a gradient if its value is a float, and only then", r.Name)
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

// Info is the function's row. It panics for a number that is no function, which no graph that keeps the type rule holds.
func (f UnaryFn) Info() *UnaryInfo { return &unaryRows[f] }

// Info is the function's row. It panics for a number that is no function, which no graph that keeps the type rule holds.
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

// EvalInt is f of an integer, or of a Bool as 0 or 1. It panics for a function that these do not have, which no graph that
// keeps the type rule holds.
func (f UnaryFn) EvalInt(x int64) int64 {
	r := f.Info()
	if r.EvalInt == nil {
		panic(fmt.Sprintf("graph: %v of an integer", f))
	}
	return r.EvalInt(x)
}

// EvalInt is f of two integers, or of Bools as 0 or 1; comparisons give 0 or 1. Quotients and powers are truncated. It
// reports a division by zero.
func (f BinaryFn) EvalInt(x, y int64) (int64, error) { return f.Info().EvalInt(x, y) }

// Compares reports whether f gives Bool from numbers.
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
