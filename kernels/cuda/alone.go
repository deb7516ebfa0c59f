package cuda

import (
	"fmt"

	"fusec/graph"
)

// A compileFunc makes the kernel of an operation that is a launch of its own.
type compileFunc = func(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error)

// answers are CUDA's. The file of a kernel adds it. Elementwise operations and those along rows without a kernel are bodies of one
// operation.
var answers = graph.NewAnswers[compileFunc]("CUDA")

var _ = answers.Add("fusion", compile).Add("copy", copied).
	Add("matmul", fused).Add("matmul_panels", fused).Add("conv2d", fused).Add("conv2d_transpose", fused).
	Add("attention", fused).Add("attention_grad", fused).Add("moe", fused).Add("moe_grad", fused).
	Add(fusedUnless(func(op graph.Cast, x Operand) bool { return op.To == x.DType })).
	Add(fusedUnless(func(op graph.Reduce, _ Operand) bool { return op.Axes.Len() == 0 }))

func init() {
	answers.AddBodies(fused)
	answers.RefuseNotLaunched()
	answers.Refuse("its code runs on the host", "host")
	answers.Refuse("its elements of i4 and f8 are unpacked on the host; those of other types are computed by simpler operations",
		"quantize", "dequantize")
	if err := answers.Check(); err != nil {
		panic(err)
	}
}

// own is a kernel for operations of type O, with their name.
func own[O graph.Op](f func(op O, args, results []Operand, cfg Config) (*Kernel, error)) (string, compileFunc) {
	var of O
	return of.OpName(), func(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
		return f(op.(O), args, results, cfg)
	}
}

// checkedOp is a kernel that is the same for all chips, and may be refused.
func checkedOp[O graph.Op](f func(op O, args, results []Operand) (*Kernel, error)) (string, compileFunc) {
	return own(func(op O, args, results []Operand, _ Config) (*Kernel, error) { return f(op, args, results) })
}

// plain is a kernel that is the same for all chips.
func plain[O graph.Op](f func(op O, args, results []Operand) *Kernel) (string, compileFunc) {
	return own(func(op O, args, results []Operand, _ Config) (*Kernel, error) { return f(op, args, results), nil })
}

// fusedUnless is a fusion of one, unless the operation changes nothing.
func fusedUnless[O graph.Op](nothing func(op O, x Operand) bool) (string, compileFunc) {
	return own(func(op O, args, results []Operand, cfg Config) (*Kernel, error) {
		if nothing(op, args[0]) {
			return copied(op, args, results, cfg)
		}
		return fused(op, args, results, cfg)
	})
}

// compileAlone makes the kernel of an operation that stands alone.
func compileAlone(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	if err := graph.CheckOperands(op, args, results); err != nil {
		return nil, err
	}
	kernel, err := answers.Of(op)
	if err != nil {
		return nil, err
	}
	return kernel(op, args, results, cfg)
}

// fused compiles a body of the one operation, which hands out all its results.
func fused(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	f, err := graph.Alone(op, args, len(results))
	if err != nil {
		return nil, err
	}
	return compile(f, args, results, cfg)
}

// copied compiles a copy of the first operand, whatever the layouts are.
func copied(_ graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	args, results = graph.BytesOf(args[:1]), graph.BytesOf(results)
	return compileBody(graph.AnchorNone, args, results, cfg, func(b *graph.Builder, in []*graph.Node) {
		b.Output("0", b.Reshape(in[0], results[0].Layout.Shape.Slice()...))
	})
}

// compileBody compiles the body that build makes of inputs for the operands.
func compileBody(anchor graph.Anchor, args, results []Operand, cfg Config,
	build func(*graph.Builder, []*graph.Node)) (*Kernel, error) {
	b := graph.Extend(graph.New(""))
	in := make([]*graph.Node, len(args))
	for i, a := range args {
		in[i] = b.Input(fmt.Sprintf("x%d", i), a.Type())
	}
	build(b, in)
	body, err := b.Graph()
	if err != nil {
		return nil, err
	}
	return compile(graph.Fusion{Anchor: anchor, Body: body}, args, results, cfg)
}
