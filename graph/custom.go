package graph

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Custom functions are elementwise functions that a program adds at run time: it registers a name, a body in Go, bodies for
// targets that compile text, and a gradient with [RegisterCustom], and uses the function by the operation [Custom]. Passes treat
// it as any other elementwise work. It is part of fusions: the CPU calls the Go body on strips of a tile, and other targets
// compile theirs into the kernel. The row of the operation is one row of the table. The row of each function is a
// [CustomInfo], as that of a function of one variable is a [UnaryInfo].

// CustomFn is the name of a custom function: a lower-case letter, and then lower-case letters, digits and underscores.
type CustomFn string

// Custom applies a custom function, elementwise. Operands have one type, F32 or F64, and one shape; some may be scalars.
type Custom struct{ Fn CustomFn }

// MaxCustomOperands is the most operands that a custom function has.
const MaxCustomOperands = 8

// CustomInfo is the row of a custom function. The functions in it are called by several goroutines at once. They have no
// effects, and one value for the same operands: an element may be computed several times, or never.
type CustomInfo struct {
	Name     CustomFn
	Doc      string // what the function is, in one line
	Operands int    // 1 to [MaxCustomOperands]
	// Eval is the function's value at operands x, which it must not keep or change. It is the meaning of the function: the
	// reference computes it, and the CPU where F32 is nil or elements are F64.
	Eval func(x []float64) float64
	// F32, which may be nil, computes a strip on the CPU: dst[i] from x[0][i], x[1][i] and so on. All have one length, at
	// least 1. Operands must not be changed, except that dst may be the very memory of an operand: element i of all operands
	// is read before dst[i] is set. F32 must not keep the slices, and should not allocate.
	F32 func(dst []float32, x [][]float32)
	// Bodies, which may be nil, are the texts that targets compile, by the target's name. That of "cuda" is the body of a
	// function of CUDA C++ with the operands x0, x1 and so on, of type T, and a result of type T, which is float or double.
	// Numbers are written as T(0.5). The functions of one and two variables of this package are there as op::exp, op::max and
	// so on, next to CUDA's own. Without it the processor computes the function for programs on GPUs.
	Bodies map[string]string
	// Grad, which may be nil, appends to b the gradient of each operand: an expression of the operands x, the result y and
	// its gradient dy, of y's type. An operand without a gradient has nil. Gradients of scalar operands are summed after
	// it. Without Grad a cost must not depend on the function's operands.
	Grad func(b *Builder, x []*Node, y, dy *Node) []*Node
	// FLOPs counts floating-point operations for each element, for reports; 0 means 1.
	FLOPs int64
}

var customs = struct {
	sync.RWMutex
	rows map[CustomFn]*CustomInfo
}{rows: map[CustomFn]*CustomInfo{}}

// RegisterCustom adds a custom function. It stays until the program ends. An error names what is wrong: the name is not one
// or is taken, there is no Go body, or the gradient, which is tried with F32 and F64, has the wrong number of nodes or nodes
// of the wrong type. It may be called at any time, also by several goroutines. Graphs use the function after it returns.
func RegisterCustom(info CustomInfo) error {
	if err := info.check(); err != nil {
		return err
	}
	customs.Lock()
	taken := customs.rows[info.Name] != nil
	if !taken {
		customs.rows[info.Name] = &info // so that the gradient may use the function itself
	}
	customs.Unlock()
	if taken {
		return fmt.Errorf("the custom function %s is registered already", info.Name)
	}
	if err := info.tryGrad(); err != nil {
		customs.Lock()
		delete(customs.rows, info.Name)
		customs.Unlock()
		return err
	}
	return nil
}

// check reports what is wrong with a row, its gradient aside.
func (i *CustomInfo) check() error {
	switch {
	case !i.Name.valid():
		return fmt.Errorf("%q is no name of a custom function: it needs a lower-case letter, and then lower-case letters, "+
			"digits and underscores, %d at most", string(i.Name), maxCustomName)
	case i.Operands < 1 || i.Operands > MaxCustomOperands:
		return fmt.Errorf("the custom function %s has %d operands: it needs 1 to %d", i.Name, i.Operands, MaxCustomOperands)
	case i.Eval == nil:
		return fmt.Errorf("the custom function %s has no Go body: set Eval", i.Name)
	case i.FLOPs < 0:
		return fmt.Errorf("the custom function %s has %d operations for each element", i.Name, i.FLOPs)
	}
	for target, text := range i.Bodies {
		if !strings.Contains(text, "return") {
			return fmt.Errorf("the body for %s of the custom function %s returns nothing", target, i.Name)
		}
	}
	return nil
}

// tryGrad builds the gradient for operands of each type.
func (i *CustomInfo) tryGrad() error {
	for _, d := range []DType{F32, F64} {
		if i.Grad == nil {
			break
		}
		b := Extend(New(""))
		x := make([]*Node, i.Operands)
		for k := range x {
			x[k] = b.Input(fmt.Sprint("x", k), TypeOf(d, 2))
		}
		y := b.Custom(i.Name, x...)
		_, err := gradCustom(b, y, []*Node{b.Input("dy", y.Type)})
		if err = cmp.Or(err, b.Err()); err != nil {
			return fmt.Errorf("the gradient of the custom function %s, of %v: %w", i.Name, d, err)
		}
	}
	return nil
}

const maxCustomName = 64

func (f CustomFn) valid() bool {
	for i, r := range f {
		if !(r >= 'a' && r <= 'z' || i > 0 && (r == '_' || r >= '0' && r <= '9')) {
			return false
		}
	}
	return f != "" && len(f) <= maxCustomName
}

// Info is the function's row, or nil if no function of the name is registered.
func (f CustomFn) Info() *CustomInfo {
	customs.RLock()
	defer customs.RUnlock()
	return customs.rows[f]
}

// CustomFns lists the registered functions by their names.
func CustomFns() []CustomFn {
	customs.RLock()
	defer customs.RUnlock()
	list := make([]CustomFn, 0, len(customs.rows))
	for name := range customs.rows {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// unknown is the error for a function that is not registered.
func (f CustomFn) unknown() error {
	text := fmt.Sprintf("no custom function %q is registered", string(f))
	if list := CustomFns(); len(list) > 0 {
		text += fmt.Sprintf(" (there is %s)", joined(list))
	}
	return fmt.Errorf("%s; the program that uses it calls graph.RegisterCustom first", text)
}

// joined lists at most eight names.
func joined(list []CustomFn) string {
	var text strings.Builder
	for i, f := range list {
		if i == 8 {
			fmt.Fprintf(&text, " and %d more", len(list)-i)
			break
		}
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(string(f))
	}
	return text.String()
}

// String gives the function's name in the text form.
func (f CustomFn) String() string { return string(f) }

// UnmarshalText implements encoding.TextUnmarshaler. The name of a function that is not registered is read, so that the
// type rule can refuse it.
func (f *CustomFn) UnmarshalText(text []byte) error {
	s := string(text)
	if strings.HasPrefix(s, `"`) {
		var err error
		if s, err = strconv.Unquote(s); err != nil {
			return err
		}
	}
	if *f = CustomFn(s); !f.valid() {
		return fmt.Errorf("%q is no name of a custom function", s)
	}
	return nil
}

// OpName implements Op.
func (Custom) OpName() string { return "custom" }

var customRow = OpInfo{
	Name: "custom", Doc: "a function that the program has registered, elementwise", Operands: "x...", Proto: Custom{},
	Class: ClassElementwise, Fuses: true, MinArgs: 1, MaxArgs: -1, Infer: inferCustom, FLOPs: flopsCustom,
	Grad: gradCustom,
	Verb: func(op Op) string { return op.(Custom).Fn.String() },
}

func inferCustom(op Op, args []Type) ([]Type, error) {
	f := op.(Custom).Fn
	info := f.Info()
	if info == nil {
		return nil, f.unknown()
	}
	if len(args) != info.Operands {
		return nil, fmt.Errorf("%s takes %d operands, not %d", f, info.Operands, len(args))
	}
	s, err := elementwiseShape(args...)
	if err != nil {
		return nil, err
	}
	for _, t := range args {
		if t.DType != args[0].DType {
			return nil, fmt.Errorf("element types %v and %v differ", args[0].DType, t.DType)
		}
	}
	if err := Floats.check(f, args[0]); err != nil {
		return nil, err
	}
	return one(args, Type{args[0].DType, s})
}

func flopsCustom(op Op, _, out []Type) int64 {
	n := int64(1)
	if info := op.(Custom).Fn.Info(); info != nil && info.FLOPs > 0 {
		n = info.FLOPs
	}
	return product(n, elems(out[0]))
}

func gradCustom(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	f := n.Op.(Custom).Fn
	info := f.Info()
	switch {
	case info == nil:
		return nil, f.unknown()
	case info.Grad == nil:
		return nil, fmt.Errorf("the custom function %s was registered without a gradient", f)
	}
	d := info.Grad(b, slices.Clone(n.Args), n, dys[0])
	if err := b.Err(); err != nil {
		return nil, err
	}
	if len(d) != len(n.Args) {
		return nil, fmt.Errorf("%d gradients of %d operands", len(d), len(n.Args))
	}
	dx := make([]*Node, len(d))
	for i, x := range n.Args {
		switch {
		case d[i] == nil:
		case d[i].Type != x.Type && d[i].Type != n.Type:
			return nil, fmt.Errorf("the gradient of operand %d is %v, not %v", i, d[i].Type, n.Type)
		default:
			dx[i] = b.SumTo(d[i], x.Type.Shape)
		}
	}
	return dx, nil
}

// Custom adds a custom function of operands of one shape, of which some may be scalars.
func (b *Builder) Custom(f CustomFn, x ...*Node) *Node { return b.add(Custom{f}, slices.Clone(x)) }
