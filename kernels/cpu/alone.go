package cpu

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// A compileFunc makes the kernel of an operation that is a launch of its own.
type compileFunc = func(op graph.Op, args, results []Operand, env *Env) (Kernel, error)

var answers graph.Answers[compileFunc]

func init() {
	var err error
	answers, err = graph.NewAnswers("the CPU", map[string]compileFunc{
		"fusion": compile,
		"copy":   copied,

		"all_reduce": collective, "reduce_scatter": collective, "all_gather": collective, "all_to_all": collective,
		"part": collective, "permute": collective, "broadcast_from": collective,

		"unary": fused, "binary": fused, "select": fused, "custom": fused, "dropout": fused,
		"matmul": fused, "conv2d": fused, "conv2d_transpose": fused, "separable_conv2d": fused, "layer_norm": fused, "rms_norm": fused,
		"attention": fused, "attention_grad": fused, "moe": fused, "moe_grad": fused,
		"cast": func(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
			if op.(graph.Cast).To == args[0].DType {
				return copied(op, args, results, env)
			}
			return fused(op, args, results, env)
		},

		"slice": moves(newSlice), "unslice": moves(newUnslice), "update_slice": moves(newUpdateSlice), "concat": moves(newConcat),
		"pad": moves(newPad), "im2col": moves(newIm2Col), "gather": moves(newGather),
		"col2im": own(newCol2Im), "scatter_add": own(newScatterAdd), "reduce": own(compileReduce),
		"softmax": own(func(op graph.Softmax, args, results []Operand, env *Env) (Kernel, error) {
			return compileSoftmax(op, op.Axis, false, args, results, env)
		}),
		"log_softmax": own(func(op graph.LogSoftmax, args, results []Operand, env *Env) (Kernel, error) {
			return compileSoftmax(op, op.Axis, true, args, results, env)
		}),
		"random": own(func(op graph.Random, args, results []Operand, env *Env) (Kernel, error) {
			return byFloat(op.Type.DType, newRandom[float32], newRandom[float64])(op, args, results, env)
		}),
		"squared_norm": own(func(_ graph.SquaredNorm, args, results []Operand, env *Env) (Kernel, error) {
			return newSquaredNorm(args, results[0], env), nil
		}),
		"host": own(func(op graph.Host, args, results []Operand, _ *Env) (Kernel, error) {
			return newHost(op, args, results)
		}),

		"matmul_panels": fused, "pack_weights": moves(newPackWeights), "dequantize": moves(newDequantize),
		"quantize": own(func(op graph.Quantize, args, results []Operand, env *Env) (Kernel, error) {
			return byFloat(args[0].DType, newQuantize[float32], newQuantize[float64])(op, args, results, env), nil
		}),

		"top_k": floats(newTopK[float32], newTopK[float64]), "route": floats(newRoute[float32], newRoute[float64]),
		"sample": floats(newSample[float32], newSample[float64]),
		"pool":   floats(newPool[float32], newPool[float64]), "pool_grad": floats(newPoolGrad[float32], newPoolGrad[float64]),
		"batch_norm":         floats(newBatchNorm[float32], newBatchNorm[float64]),
		"group_norm":         floats(newGroupNorm[float32], newGroupNorm[float64]),
		"conv2d_filter_grad": floats(newFilterGrad[float32], newFilterGrad[float64]),
		"rope":               floats(newRoPE[float32], newRoPE[float64]),
		"recurrence":         floats(newRecurrence[float32], newRecurrence[float64]),
		"recurrence_grad":    floats(newRecurrenceGrad[float32], newRecurrenceGrad[float64]),
	}, graph.NotLaunched())
	if err != nil {
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

// own is a kernel for operations of type O.
func own[O graph.Op](f func(op O, args, results []Operand, env *Env) (Kernel, error)) compileFunc {
	return func(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
		return f(op.(O), args, results, env)
	}
}

// moves is a kernel that can always be made.
func moves[O graph.Op](f func(op O, args, results []Operand, env *Env) Kernel) compileFunc {
	return own(func(op O, args, results []Operand, env *Env) (Kernel, error) { return f(op, args, results, env), nil })
}

// floats is a kernel in two variants, by the type of the first operand.
func floats[O graph.Op](f32, f64 func(op O, args, results []Operand, env *Env) (Kernel, error)) compileFunc {
	return own(func(op O, args, results []Operand, env *Env) (Kernel, error) {
		return byFloat(args[0].DType, f32, f64)(op, args, results, env)
	})
}

// compileAlone makes the kernel of an operation that stands alone.
func compileAlone(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
	in, out := args, results
	if readsStrides(op) || graph.Elementwise(op) {
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
