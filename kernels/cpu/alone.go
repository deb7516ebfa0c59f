package cpu

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// A compileFunc makes the kernel of an operation that is a launch of its own.
type compileFunc = func(op graph.Op, args, results []Operand, env *Env) (Kernel, error)

// answers are the CPU's. The file of a kernel adds it. Elementwise operations and those along rows without a kernel are bodies of
// one operation, for which emit has the instructions.
var answers = graph.NewAnswers[compileFunc]("the CPU")

var _ = answers.Add("fusion", compile).Add("copy", copied).
	Add("matmul", fused).Add("matmul_panels", fused).Add("conv2d", fused).Add("conv2d_transpose", fused).
	Add("separable_conv2d", fused).Add("attention", fused).Add("attention_grad", fused).Add("moe", fused).Add("moe_grad", fused).
	Add(own(func(op graph.Cast, args, results []Operand, env *Env) (Kernel, error) {
		if op.To == args[0].DType {
			return copied(op, args, results, env)
		}
		return fused(op, args, results, env)
	}))

func init() {
	answers.AddBodies(fused)
	answers.RefuseNotLaunched()
	if err := answers.Check(); err != nil {
		panic(err)
	}
}

// Refuses is the reason why op, which may consist of simpler operations, has no kernel, or nil if it has one.
func Refuses(op graph.Op) error {
	switch op.(type) {
	case graph.Conv2DTranspose, graph.Conv2DFilterGrad:
		if l := op.(graph.ImageOp).ImageLayout(); l != graph.NHWC {
			return fmt.Errorf("%s in %v is computed as products of patches", op.OpName(), l)
		}
	}
	if graph.ClassOf(op) == graph.ClassComposite {
		_, err := answers.Of(op)
		return err
	}
	return nil
}

// own is a kernel for operations of type O, with their name.
func own[O graph.Op](f func(op O, args, results []Operand, env *Env) (Kernel, error)) (string, compileFunc) {
	var of O
	return of.OpName(), func(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
		return f(op.(O), args, results, env)
	}
}

// moves is a kernel that can always be made.
func moves[O graph.Op](f func(op O, args, results []Operand, env *Env) Kernel) (string, compileFunc) {
	return own(func(op O, args, results []Operand, env *Env) (Kernel, error) { return f(op, args, results, env), nil })
}

// floats is a kernel in two variants, by the type of the first operand.
func floats[O graph.Op](f32, f64 func(op O, args, results []Operand, env *Env) (Kernel, error)) (string, compileFunc) {
	return own(func(op O, args, results []Operand, env *Env) (Kernel, error) {
		return byFloat(args[0].DType, f32, f64)(op, args, results, env)
	})
}

// compileAlone makes the kernel of an operation that stands alone.
func compileAlone(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
	in, out := args, results
	if readsStrides(op, args, results) || graph.Elementwise(op) {
		in, out = contiguous(args), contiguous(results)
	}
	if err := graph.CheckOperands(op, in, out); err != nil {
		return nil, err
	}
	kernel, err := answers.Of(op)
	if err != nil {
		return nil, err
	}
	return kernel(op, args, results, env)
}

// contiguous are operands as they would be if their elements stood side by side.
func contiguous(list []Operand) []Operand {
	list = slices.Clone(list)
	for i := range list {
		list[i].Layout = graph.Contiguous(list[i].Layout.Shape)
	}
	return list
}

func copied(_ graph.Op, args, results []Operand, env *Env) (Kernel, error) {
	args, results = graph.BytesOf(args), graph.BytesOf(results)
	return newMove(results[0], env, []part{copyPart(0, args[0], results[0])}), nil
}

// byFloat picks the variant for an element type that the type rule has found to be a float.
func byFloat[F any](d graph.DType, f32, f64 F) F {
	if d == graph.F64 {
		return f64
	}
	return f32
}

// fused compiles a body of the one operation, which hands out all its results.
func fused(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
	f, err := graph.Alone(op, args, len(results))
	if err != nil {
		return nil, err
	}
	return compile(f, args, results, env)
}

// compileBody compiles the graph of a builder as a fusion.
func compileBody(b *graph.Builder, anchor graph.Anchor, args, results []Operand, env *Env) (Kernel, error) {
	body, err := b.Graph()
	if err != nil {
		return nil, err
	}
	return compile(graph.Fusion{Anchor: anchor, Body: body}, args, results, env)
}

// numbers is the elements of a contiguous operand in its buffer, and with strides the buffer from its first one on.
func numbers[T float](m Memory, o Operand) []T {
	if !o.Layout.IsContiguous() {
		return elems[T](m)[o.Layout.Offset:]
	}
	return elems[T](m)[o.Layout.Offset:][:o.Layout.Shape.Elems()]
}
