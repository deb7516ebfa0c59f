package cuda

import (
	"fmt"

	"fusec/graph"
)

// compileAlone makes the kernel of an operation that stands alone: one that moves elements, indexes, draws or pools by
// a kernel of its own, any other as a fusion of one.
func compileAlone(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	if err := graph.CheckOperands(op, args, results); err != nil {
		return nil, err
	}
	switch op := op.(type) {
	case graph.Copy, graph.AllReduce: // of one participant
		return copied(args, results, cfg)
	case graph.Cast:
		if op.To == args[0].DType {
			return copied(args, results, cfg)
		}
		return fused(op, graph.AnchorNone, args, results, cfg)
	case graph.Unary, graph.Binary, graph.Select, graph.Dropout:
		return fused(op, graph.AnchorNone, args, results, cfg)
	case graph.Reduce:
		if op.Axes.Len() == 0 {
			return copied(args, results, cfg)
		}
		return fused(op, graph.AnchorRow, args, results, cfg)
	case graph.Slice:
		return compileSlice(op, args, results)
	case graph.Unslice:
		return compileUnslice(op, args, results)
	case graph.UpdateSlice:
		return compileUpdateSlice(op, args, results)
	case graph.Gather:
		return compileGather(op, args, results)
	case graph.Pad:
		return compilePad(op, args, results)
	case graph.Concat:
		return compileConcat(op, args, results, cfg)
	case graph.Im2Col:
		return compileIm2Col(op, args, results), nil
	case graph.Col2Im:
		return compileCol2Im(op, args, results), nil
	case graph.Pool:
		return compilePool(op, args, results), nil
	case graph.PoolGrad:
		return compilePoolGrad(op, args, results), nil
	case graph.Random:
		return compileRandom(op, args, results), nil
	case graph.RoPE:
		return compileRoPE(op, args, results), nil
	case graph.BatchNorm:
		return compileBatchNorm(op, args, results, cfg)
	case graph.GroupNorm:
		return compileGroupNorm(op, args, results, cfg)
	case graph.ScatterAdd:
		return compileScatterAdd(op, args, results)
	case graph.TopK:
		return compileTopK(op, args, results), nil
	case graph.Route:
		return compileRoute(op, args, results), nil
	case graph.SquaredNorm:
		return compileSquaredNorm(args, results), nil
	case graph.Softmax, graph.LogSoftmax, graph.LayerNorm, graph.RMSNorm:
		return fused(op, graph.AnchorRow, args, results, cfg)
	case graph.MatMul:
		return fused(op, graph.AnchorMatMul, args, results, cfg)
	case graph.Conv2D:
		return fused(op, graph.AnchorConv, args, results, cfg)
	case graph.Attention, graph.AttentionGrad:
		return fused(op, graph.AnchorAttention, args, results, cfg)
	case graph.MoE, graph.MoEGrad:
		return fused(op, graph.AnchorMoE, args, results, cfg)
	}
	return nil, fmt.Errorf("CUDA has no kernel for %s", op.OpName())
}

// fused compiles a body of the one operation, which hands out all its results.
func fused(op graph.Op, anchor graph.Anchor, args, results []Operand, cfg Config) (*Kernel, error) {
	f, err := graph.Alone(op, anchor, args, len(results))
	if err != nil {
		return nil, err
	}
	return Compile(f, args, results, cfg)
}

// copied compiles a copy of the first operand, whatever the layouts are.
func copied(args, results []Operand, cfg Config) (*Kernel, error) {
	return compileBody(graph.AnchorNone, args[:1], results, cfg, func(b *graph.Builder, in []*graph.Node) {
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
	return Compile(graph.Fusion{Anchor: anchor, Body: body}, args, results, cfg)
}
