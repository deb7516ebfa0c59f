package cpu

import (
	"fmt"

	"fusec/graph"
)

// An answer is how the CPU computes an operation that is a launch of its own, or why it does not.
type answer struct {
	kernel  func(op graph.Op, args, results []Operand, env *Env) (Kernel, error)
	refused string
}

// answers has one for each operation of the table, by name.
var answers map[string]answer

func init() {
	inFusion := answer{kernel: fused}
	copies := answer{kernel: copied} // a program on the CPU is a group of one
	value := answer{refused: "it is a value, not a launch"}
	view := answer{refused: "it is a view, which its readers take by strides"}
	answers = map[string]answer{
		"input": value, "param": value, "state": value, "const": value, "result": value,
		"reshape": view, "transpose": view, "broadcast": view,
		"fusion": {kernel: compile},
		"copy":   copies, "all_reduce": copies,

		"unary": inFusion, "binary": inFusion, "select": inFusion, "dropout": inFusion,
		"matmul": inFusion, "conv2d": inFusion, "layer_norm": inFusion, "rms_norm": inFusion,
		"attention": inFusion, "attention_grad": inFusion, "moe": inFusion, "moe_grad": inFusion,
		"cast": {kernel: func(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
			if op.(graph.Cast).To == args[0].DType {
				return copied(op, args, results, env)
			}
			return fused(op, args, results, env)
		}},

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

		"top_k": floats(newTopK[float32], newTopK[float64]), "route": floats(newRoute[float32], newRoute[float64]),
		"pool": floats(newPool[float32], newPool[float64]), "pool_grad": floats(newPoolGrad[float32], newPoolGrad[float64]),
		"batch_norm": floats(newBatchNorm[float32], newBatchNorm[float64]), "group_norm": floats(newGroupNorm[float32], newGroupNorm[float64]),
		"rope": floats(newRoPE[float32], newRoPE[float64]),
	}
	if err := graph.CheckAnswers("the CPU", answers); err != nil {
		panic(err)
	}
}

// own is a kernel for operations of type O.
func own[O graph.Op](f func(op O, args, results []Operand, env *Env) (Kernel, error)) answer {
	return answer{kernel: func(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
		return f(op.(O), args, results, env)
	}}
}

// moves is a kernel that can always be made.
func moves[O graph.Op](f func(op O, args, results []Operand, env *Env) Kernel) answer {
	return own(func(op O, args, results []Operand, env *Env) (Kernel, error) { return f(op, args, results, env), nil })
}

// floats is a kernel in two variants, by the type of the first operand.
func floats[O graph.Op](f32, f64 func(op O, args, results []Operand, env *Env) (Kernel, error)) answer {
	return own(func(op O, args, results []Operand, env *Env) (Kernel, error) {
		return byFloat(args[0].DType, f32, f64)(op, args, results, env)
	})
}

// compileAlone makes the kernel of an operation that stands alone.
func compileAlone(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
	if err := graph.CheckOperands(op, args, results); err != nil {
		return nil, err
	}
	a := answers[op.OpName()]
	if a.kernel == nil {
		return nil, fmt.Errorf("the CPU has no kernel for %s: %s", op.OpName(), a.refused)
	}
	return a.kernel(op, args, results, env)
}

func copied(_ graph.Op, args, results []Operand, env *Env) (Kernel, error) {
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

// numbers is the elements of a contiguous operand in its buffer.
func numbers[T float](m *Memory, o Operand) []T {
	return lanes[T](m)[o.Layout.Offset:][:o.Layout.Shape.Elems()]
}
