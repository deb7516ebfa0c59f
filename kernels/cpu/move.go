package cpu

import (
	"fmt"

	"fusec/graph"
)

// compileMove makes the kernel of an operation that stands alone: one that moves elements, indexes, draws, pools or
// normalises by a kernel of its own, any other as a fusion of one.
func compileMove(op graph.Op, args, results []Operand, env *Env) (Kernel, error) {
	if err := graph.CheckOperands(op, args, results); err != nil {
		return nil, err
	}
	switch op := op.(type) {
	case graph.Copy, graph.AllReduce: // a program on the CPU is a group of one
		return newMove(results[0], env, []part{copyPart(0, args[0], results[0])}), nil
	case graph.Slice:
		return newSlice(op, args, results, env), nil
	case graph.Unslice:
		return newUnslice(op, args, results, env), nil
	case graph.UpdateSlice:
		return newUpdateSlice(op, args, results, env), nil
	case graph.Concat:
		return newConcat(op, args, results, env), nil
	case graph.Pad:
		return newPad(op, args, results, env), nil
	case graph.Im2Col:
		return newIm2Col(op, args, results, env), nil
	case graph.Col2Im:
		return newCol2Im(op, args, results, env)
	case graph.Gather:
		return newGather(op, args, results, env), nil
	case graph.ScatterAdd:
		return newScatterAdd(op, args, results, env)
	case graph.TopK:
		return byFloat(args[0].DType, newTopK[float32], newTopK[float64])(op, args, results, env)
	case graph.Route:
		return byFloat(args[0].DType, newRoute[float32], newRoute[float64])(op, args, results, env)
	case graph.Random:
		return byFloat(op.Type.DType, newRandom[float32], newRandom[float64])(op, args, results, env)
	case graph.Pool:
		return byFloat(args[0].DType, newPool[float32], newPool[float64])(op, args, results, env)
	case graph.PoolGrad:
		return byFloat(args[0].DType, newPoolGrad[float32], newPoolGrad[float64])(op, args, results, env)
	case graph.BatchNorm:
		return byFloat(args[0].DType, newBatchNorm[float32], newBatchNorm[float64])(op, args, results, env)
	case graph.GroupNorm:
		return byFloat(args[0].DType, newGroupNorm[float32], newGroupNorm[float64])(op, args, results, env)
	case graph.Reduce:
		return compileReduce(op, args, results, env)
	case graph.Cast:
		if op.To == args[0].DType {
			return newMove(results[0], env, []part{copyPart(0, args[0], results[0])}), nil
		}
		return fused(op, graph.AnchorNone, args, results, env)
	case graph.Unary, graph.Binary, graph.Select, graph.Dropout:
		return fused(op, graph.AnchorNone, args, results, env)
	case graph.MatMul:
		return fused(op, graph.AnchorMatMul, args, results, env)
	case graph.Attention, graph.AttentionGrad:
		return fused(op, graph.AnchorAttention, args, results, env)
	case graph.RoPE:
		return byFloat(args[0].DType, newRoPE[float32], newRoPE[float64])(op, args, results, env)
	case graph.MoE, graph.MoEGrad:
		return fused(op, graph.AnchorMoE, args, results, env)
	case graph.Conv2D:
		return fused(op, graph.AnchorConv, args, results, env)
	case graph.Softmax:
		return compileSoftmax(op, op.Axis, false, args, results, env)
	case graph.LogSoftmax:
		return compileSoftmax(op, op.Axis, true, args, results, env)
	case graph.LayerNorm, graph.RMSNorm:
		return fused(op, graph.AnchorRow, args, results, env)
	case graph.SquaredNorm:
		return newSquaredNorm(args, results[0], env), nil
	case graph.Host:
		return newHost(op, args, results)
	}
	return nil, fmt.Errorf("the CPU has no kernel for %s", op.OpName())
}

// byFloat picks the variant for an element type that the type rule has found to be a float.
func byFloat[F any](d graph.DType, f32, f64 F) F {
	if d == graph.F64 {
		return f64
	}
	return f32
}

// fused compiles a body of the one operation, which hands out all its results.
func fused(op graph.Op, anchor graph.Anchor, args, results []Operand, env *Env) (Kernel, error) {
	f, err := graph.Alone(op, anchor, args, len(results))
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
