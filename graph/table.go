package graph

import (
	"fmt"
	"math"
)

// opTable is the operation table: the one place that knows what operations there are.
var opTable = []OpInfo{
	{Name: "input", Doc: "a value given for each run", Proto: Input{}, Class: ClassSource,
		Infer: func(op Op, args []Type) ([]Type, error) { return declared(args, op.(Input).Type) }, FLOPs: free},
	{Name: "param", Doc: "a weight", Proto: Param{}, Class: ClassSource,
		Infer: func(op Op, args []Type) ([]Type, error) { return declared(args, op.(Param).Type) }, FLOPs: free},
	{Name: "state", Doc: "a value that persists between runs", Proto: State{}, Class: ClassSource,
		Infer: func(op Op, args []Type) ([]Type, error) { return declared(args, op.(State).Type) }, FLOPs: free},
	{Name: "const", Doc: "a constant", Proto: Const{}, Class: ClassSource, Infer: inferConst, FLOPs: free},

	{Name: "unary", Doc: "a function of one variable, elementwise", Operands: "x", Proto: Unary{}, Class: ClassElementwise, Fuses: true,
		MinArgs: 1, MaxArgs: 1, Infer: inferUnary, FLOPs: flopsUnary, Grad: gradUnary},
	{Name: "binary", Doc: "a function of two variables, elementwise", Operands: "x, y", Proto: Binary{}, Class: ClassElementwise, Fuses: true, Fails: func(n *Node) bool { return n.Op.(Binary).Fn.Info().Fails && n.Type.DType.IsInt() },
		MinArgs: 2, MaxArgs: 2, Infer: inferBinary, FLOPs: flopsBinary, Grad: gradBinary},
	{Name: "select", Doc: "cond ? a : b, elementwise", Operands: "cond, a, b", Proto: Select{}, Class: ClassElementwise, Fuses: true,
		MinArgs: 3, MaxArgs: 3, Infer: inferSelect, Grad: gradSelect},
	{Name: "cast", Doc: "conversion to another element type", Operands: "x", Proto: Cast{}, Class: ClassElementwise, Fuses: true,
		MinArgs: 1, MaxArgs: 1, Infer: inferCast, FLOPs: free, Grad: gradCast},

	{Name: "matmul", Doc: "matrix product over the last two axes, batched over the others", Operands: "a, b", Proto: MatMul{},
		Class: ClassContraction, Fuses: true, Anchor: AnchorMatMul, Kind: KindMatMul, MinArgs: 2, MaxArgs: 2, Infer: inferMatMul, FLOPs: flopsMatMul, Grad: gradMatMul},
	{Name: "conv2d", Doc: "two-dimensional convolution, NCHW", Operands: "x, w", Proto: Conv2D{}, Class: ClassContraction, Fuses: true, Anchor: AnchorConv, Kind: KindConv,
		MinArgs: 2, MaxArgs: 2, Infer: inferConv2D, FLOPs: flopsConv2D, Grad: gradConv2D},

	{Name: "reduce", Doc: "elements combined along axes", Operands: "x", Proto: Reduce{}, Class: ClassReduce, Fuses: true, Anchor: AnchorRow, RowAxes: reducedAxes, Kind: KindReduce,
		MinArgs: 1, MaxArgs: 1, Infer: inferReduce, FLOPs: perOperand, Grad: gradReduce},

	{Name: "reshape", Doc: "the elements in another shape", Operands: "x", Proto: Reshape{}, Class: ClassView,
		MinArgs: 1, MaxArgs: 1, Infer: inferReshape, FLOPs: free, Grad: gradReshape},
	{Name: "transpose", Doc: "axes permuted", Operands: "x", Proto: Transpose{}, Class: ClassView,
		MinArgs: 1, MaxArgs: 1, Infer: inferTranspose, FLOPs: free, Grad: gradTranspose},
	{Name: "broadcast", Doc: "elements repeated to a larger shape", Operands: "x", Proto: Broadcast{}, Class: ClassView,
		MinArgs: 1, MaxArgs: 1, Infer: inferBroadcast, FLOPs: free, Grad: gradBroadcast},
	{Name: "slice", Doc: "part of one axis", Operands: "x, start", Proto: Slice{}, Class: ClassView, Fails: func(n *Node) bool { _, ok := n.Op.(Slice).ConstStart(n); return !ok },
		MinArgs: 2, MaxArgs: 2, Infer: inferSlice, FLOPs: free, Grad: gradSlice},
	{Name: "unslice", Doc: "zeros with the operand put into part of one axis", Operands: "x, start", Proto: Unslice{}, Class: ClassMove, Fails: always,
		MinArgs: 2, MaxArgs: 2, Infer: inferUnslice, FLOPs: free, Grad: gradUnslice},
	{Name: "update_slice", Doc: "the operand with another written over part of one axis", Operands: "x, update, start",
		Proto: UpdateSlice{}, Class: ClassMove, Fails: always, MinArgs: 3, MaxArgs: 3, Infer: inferUpdateSlice, FLOPs: free,
		Grad: gradUpdateSlice},
	{Name: "concat", Doc: "operands joined along an axis", Operands: "x...", Proto: Concat{}, Class: ClassMove,
		MinArgs: 1, MaxArgs: -1, Infer: inferConcat, FLOPs: free, Grad: gradConcat},
	{Name: "pad", Doc: "the operand surrounded by a value", Operands: "x", Proto: Pad{}, Class: ClassMove,
		MinArgs: 1, MaxArgs: 1, Infer: inferPad, FLOPs: free, Grad: gradPad},
	{Name: "im2col", Doc: "the patches of an image as rows", Operands: "x", Proto: Im2Col{}, Class: ClassMove,
		MinArgs: 1, MaxArgs: 1, Infer: inferIm2Col, FLOPs: free, Grad: gradIm2Col},
	{Name: "col2im", Doc: "patches summed into an image", Operands: "cols", Proto: Col2Im{}, Class: ClassMove,
		MinArgs: 1, MaxArgs: 1, Infer: inferCol2Im, FLOPs: perOperand, Grad: gradCol2Im},
	{Name: "copy", Doc: "a contiguous copy", Operands: "x", Proto: Copy{}, Class: ClassMove, Strided: true,
		MinArgs: 1, MaxArgs: 1, Infer: inferSame, FLOPs: free, Grad: gradCopy},

	{Name: "all_reduce", Doc: "values of all participants combined; of one, the operand", Operands: "x", Proto: AllReduce{},
		Class: ClassMove, MinArgs: 1, MaxArgs: 1, Infer: inferAllReduce, FLOPs: free, Grad: gradAllReduce},

	{Name: "gather", Doc: "slices of x picked by indices", Operands: "x, indices", Proto: Gather{}, Class: ClassIndex, Fails: always,
		MinArgs: 2, MaxArgs: 2, Infer: inferGather, FLOPs: free, Grad: gradGather},
	{Name: "scatter_add", Doc: "updates added where indices say", Operands: "indices, updates", Proto: ScatterAdd{}, Class: ClassIndex, Fails: always,
		MinArgs: 2, MaxArgs: 2, Infer: inferScatterAdd, FLOPs: perUpdate, Grad: gradScatterAdd},

	{Name: "top_k", Doc: "the largest elements of each row; results values, indices", Operands: "x", Proto: TopK{}, Class: ClassIndex,
		MinArgs: 1, MaxArgs: 1, Infer: inferTopK, FLOPs: perOperand, Grad: gradTopK},
	{Name: "route", Doc: "which token goes to which expert; results mask, dropped choices", Operands: "scores", Proto: Route{},
		Class: ClassIndex, MinArgs: 1, MaxArgs: 1, Infer: inferRoute, FLOPs: perOperand, Grad: gradRoute},

	{Name: "dropout", Doc: "elements zeroed at random, the others scaled", Operands: "x, seed", Proto: Dropout{}, Class: ClassRandom, Fuses: true,
		MinArgs: 2, MaxArgs: 2, Infer: inferDropout, Grad: gradDropout},
	{Name: "random", Doc: "a tensor drawn from a distribution", Operands: "seed", Proto: Random{}, Class: ClassRandom,
		MinArgs: 1, MaxArgs: 1, Infer: inferRandom},

	{Name: "softmax", Doc: "exponentials along an axis, normalised to sum 1", Operands: "x", Proto: Softmax{}, Class: ClassComposite, Fuses: true, Anchor: AnchorRow, Kind: KindSoftmax,
		RowAxes: func(n *Node) Ints { return IntsOf(n.Op.(Softmax).Axis) },
		MinArgs: 1, MaxArgs: 1, Infer: inferSoftmax, FLOPs: times(16), Decompose: decomposeSoftmax, Grad: gradSoftmax},
	{Name: "log_softmax", Doc: "logarithm of softmax", Operands: "x", Proto: LogSoftmax{}, Class: ClassComposite, Fuses: true, Anchor: AnchorRow, Kind: KindSoftmax,
		RowAxes: func(n *Node) Ints { return IntsOf(n.Op.(LogSoftmax).Axis) },
		MinArgs: 1, MaxArgs: 1, Infer: inferSoftmax, FLOPs: times(16), Decompose: decomposeLogSoftmax, Grad: gradLogSoftmax},
	{Name: "layer_norm", Doc: "last axis normalised to mean 0 and variance 1, scaled and shifted", Operands: "x, gamma, beta",
		Proto: LayerNorm{}, Class: ClassComposite, Fuses: true, Anchor: AnchorRow, RowAxes: lastAxis, Kind: KindNorm, MinArgs: 3, MaxArgs: 3, Infer: inferNorm, FLOPs: times(8), Decompose: decomposeLayerNorm,
		Grad: gradLayerNorm},
	{Name: "rms_norm", Doc: "last axis divided by its root mean square, scaled", Operands: "x, gamma",
		Proto: RMSNorm{}, Class: ClassComposite, Fuses: true, Anchor: AnchorRow, RowAxes: lastAxis, Kind: KindNorm, MinArgs: 2, MaxArgs: 2, Infer: inferNorm, FLOPs: times(4), Decompose: decomposeRMSNorm,
		Grad: gradRMSNorm},
	{Name: "batch_norm", Doc: "channels normalised over the batch; results y, running mean, running variance",
		Operands: "x, gamma, beta, mean, variance", Proto: BatchNorm{}, Class: ClassComposite, Kind: KindNorm, MinArgs: 5, MaxArgs: 5,
		Infer: inferBatchNorm, FLOPs: times(8), Decompose: decomposeBatchNorm, Grad: gradBatchNorm},
	{Name: "group_norm", Doc: "groups of channels normalised", Operands: "x, gamma, beta", Proto: GroupNorm{}, Class: ClassComposite, Kind: KindNorm,
		MinArgs: 3, MaxArgs: 3, Infer: inferGroupNorm, FLOPs: times(8), Decompose: decomposeGroupNorm, Grad: gradGroupNorm},
	{Name: "attention", Doc: "softmax of scaled, masked products of queries and keys, times values; results y, log-sum-exp",
		Operands: "q, k, v, mask?, lengths?, table?, seed?", Proto: Attention{}, Class: ClassComposite,
		Fails: func(n *Node) bool { return n.Op.(Attention).Page != 0 }, Fuses: true, Anchor: AnchorAttention, Kind: KindAttention, MinArgs: 3, MaxArgs: 7,
		Infer: inferAttention, FLOPs: flopsAttention, Decompose: decomposeAttention, Grad: gradAttention},
	{Name: "rope", Doc: "pairs of elements turned by angles that grow with the position", Operands: "x, start",
		Proto: RoPE{}, Class: ClassComposite, Strided: true, MinArgs: 2, MaxArgs: 2, Infer: inferRoPE, FLOPs: flopsRoPE,
		Decompose: decomposeRoPE, Grad: gradRoPE},
	{Name: "attention_grad", Doc: "gradient of attention, from its results; results dq, dk, dv",
		Operands: "q, k, v, mask?, lengths?, seed?, out, lse, dout, dlse?", Proto: AttentionGrad{}, Class: ClassComposite, Fuses: true, Anchor: AnchorAttention, Kind: KindAttention,
		MinArgs: 6, MaxArgs: 10, Infer: inferAttentionGrad, FLOPs: flopsAttentionGrad, Decompose: decomposeAttentionGrad},
	{Name: "squared_norm", Doc: "sum of the squares of all operands' elements, in f64", Operands: "x...", Proto: SquaredNorm{},
		Class: ClassComposite, Kind: KindReduce, MinArgs: 1, MaxArgs: -1, Infer: inferSquaredNorm, FLOPs: flopsSquaredNorm, Decompose: decomposeSquaredNorm,
		Grad: gradSquaredNorm},
	{Name: "moe", Doc: "a mixture of experts: the tokens of each expert through its feed-forward network, weighted; results y, loads",
		Operands: "x, gates, weights...", Proto: MoE{}, Class: ClassComposite, Fuses: true, Anchor: AnchorMoE, Kind: KindMoE, MinArgs: 4, MaxArgs: -1,
		Infer: inferMoE, FLOPs: flopsMoE, Decompose: decomposeMoE, Grad: gradMoE},
	{Name: "moe_grad", Doc: "gradient of moe; results those of its operands", Operands: "x, gates, weights..., dy", Proto: MoEGrad{},
		Class: ClassComposite, Fuses: true, Anchor: AnchorMoE, Kind: KindMoE, MinArgs: 5, MaxArgs: -1, Infer: inferMoEGrad, FLOPs: flopsMoEGrad, Decompose: decomposeMoEGrad},
	{Name: "pool", Doc: "maximum or mean of each window", Operands: "x", Proto: Pool{}, Class: ClassReduce, Kind: KindPool,
		MinArgs: 1, MaxArgs: 1, Infer: inferPool, FLOPs: flopsPool, Grad: gradPool},
	{Name: "pool_grad", Doc: "gradient of pool", Operands: "x, dy", Proto: PoolGrad{}, Class: ClassMove, Kind: KindPool,
		MinArgs: 2, MaxArgs: 2, Infer: inferPoolGrad, FLOPs: perOperand, Grad: gradPoolGrad},

	{Name: "result", Doc: "a further result of an operation that has several", Operands: "node", Proto: Result{}, Class: ClassFusion,
		MinArgs: 1, MaxArgs: 1, Infer: func(Op, []Type) ([]Type, error) { return nil, fmt.Errorf("result needs its node") }, FLOPs: free},
	{Name: "fusion", Doc: "a body computed in one launch", Operands: "x...", Proto: Fusion{}, Class: ClassFusion, Strided: true, Fails: func(n *Node) bool { return n.Op.(Fusion).Fails() },
		MaxArgs: -1, Infer: inferFusion, FLOPs: flopsFusion},
	{Name: "host", Doc: "an opaque operation run by its own code", Operands: "x...", Proto: Host{}, Class: ClassFusion, Fails: always,
		MaxArgs: -1, Infer: func(op Op, args []Type) ([]Type, error) { return declared(args, op.(Host).Type) }, FLOPs: free,
		Grad: gradHost},
}

func always(*Node) bool { return true }

// ---- cost rules ----

func free(Op, []Type, []Type) int64 { return 0 }

// product multiplies counts; a product too large for an int64 becomes the largest.
func product(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

func elems(t Type) int64 { return int64(t.Shape.Elems()) }

func perOperand(_ Op, args, _ []Type) int64 { return elems(args[0]) }

func perUpdate(_ Op, args, _ []Type) int64 { return elems(args[1]) }

func times(k int64) func(Op, []Type, []Type) int64 {
	return func(_ Op, args, _ []Type) int64 { return k * elems(args[0]) }
}

func flopsUnary(op Op, _, out []Type) int64 { return op.(Unary).Fn.Info().FLOPs * elems(out[0]) }

func flopsBinary(op Op, _, out []Type) int64 { return op.(Binary).Fn.Info().FLOPs * elems(out[0]) }

func flopsMatMul(op Op, args, out []Type) int64 {
	_, _, k, _ := op.(MatMul).Dims(args[0].Shape, args[1].Shape)
	return 2 * int64(k) * elems(out[0])
}

func flopsConv2D(_ Op, args, out []Type) int64 {
	w := args[1].Shape
	return product(2*elems(out[0]), int64(w.At(1)*w.At(2)*w.At(3)))
}

func flopsPool(op Op, _, out []Type) int64 {
	k := op.(Pool).Kernel
	return product(elems(out[0]), int64(k.At(0)*k.At(1)))
}

func flopsFusion(op Op, _, _ []Type) int64 {
	var sum int64
	for _, n := range op.(Fusion).Body.Nodes {
		sum += CostOf(n).FLOPs
	}
	return sum
}
