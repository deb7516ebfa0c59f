package cuda

import (
	"fmt"

	"fusec/graph"
)

// A compileFunc makes the kernel of an operation that is a launch of its own.
type compileFunc = func(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error)

var answers graph.Answers[compileFunc]

func init() {
	refused := graph.NotLaunched()
	refused["host"] = "its code runs on the host"
	for _, name := range []string{"quantize", "dequantize"} {
		refused[name] = "its elements of i4 and f8 are unpacked on the host; those of other types are computed by simpler operations"
	}
	var err error
	answers, err = graph.NewAnswers("CUDA", map[string]compileFunc{
		"fusion": compile,
		"copy":   copied,

		"all_reduce": collective, "reduce_scatter": collective, "all_gather": collective, "all_to_all": collective,
		"part": collective, "permute": collective, "broadcast_from": collective,

		"unary": fused, "binary": fused, "select": fused, "custom": fused, "dropout": fused,
		"softmax": fused, "log_softmax": fused, "layer_norm": fused, "rms_norm": fused,
		"matmul": fused, "matmul_panels": fused, "pack_weights": checkedOp(compilePackWeights),
		"conv2d": fused, "conv2d_transpose": fused,
		"attention": fused, "attention_grad": fused, "moe": fused, "moe_grad": fused,
		"cast":   fusedUnless(func(op graph.Cast, x Operand) bool { return op.To == x.DType }),
		"reduce": fusedUnless(func(op graph.Reduce, _ Operand) bool { return op.Axes.Len() == 0 }),

		"slice": checkedOp(compileSlice), "unslice": checkedOp(compileUnslice), "update_slice": checkedOp(compileUpdateSlice),
		"gather": checkedOp(compileGather), "pad": checkedOp(compilePad), "scatter_add": checkedOp(compileScatterAdd),
		"conv2d_filter_grad": own(compileFilterGrad), "im2col": plain(compileIm2Col), "col2im": plain(compileCol2Im),
		"pool": plain(compilePool), "pool_grad": plain(compilePoolGrad),
		"sample": plain(compileSample),
		"random": plain(compileRandom), "rope": own(compileRoPE), "top_k": plain(compileTopK), "route": plain(compileRoute),
		"squared_norm": plain(func(_ graph.SquaredNorm, args, results []Operand) *Kernel { return compileSquaredNorm(args, results) }),
		"concat":       own(compileConcat), "batch_norm": own(compileBatchNorm), "group_norm": own(compileGroupNorm),
	}, refused)
	if err != nil {
		panic(err)
	}
}

// own is a kernel for operations of type O.
func own[O graph.Op](f func(op O, args, results []Operand, cfg Config) (*Kernel, error)) compileFunc {
	return func(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
		return f(op.(O), args, results, cfg)
	}
}

// checkedOp is a kernel that is the same for all chips, and may be refused.
func checkedOp[O graph.Op](f func(op O, args, results []Operand) (*Kernel, error)) compileFunc {
	return own(func(op O, args, results []Operand, _ Config) (*Kernel, error) { return f(op, args, results) })
}

// plain is a kernel that is the same for all chips.
func plain[O graph.Op](f func(op O, args, results []Operand) *Kernel) compileFunc {
	return own(func(op O, args, results []Operand, _ Config) (*Kernel, error) { return f(op, args, results), nil })
}

// fusedUnless is a fusion of one, unless the operation changes nothing.
func fusedUnless[O graph.Op](nothing func(op O, x Operand) bool) compileFunc {
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
