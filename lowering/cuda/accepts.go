package cuda

import (
	"fmt"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
)

// Accepts implements lowering.Device: the error says why there is no kernel. Operations that reach a GPU only inside
// fusions are asked for as a fusion of one.
func (d *Device) Accepts(op graph.Op, args, results []graph.Type) error {
	if graph.InfoOf(op) == nil {
		return fmt.Errorf("CUDA does not know %s", op.OpName())
	}
	if anchor, ok := anchorOf(op); ok {
		f, err := alone(op, anchor, args)
		if err != nil {
			return err
		}
		op = f
	}
	operands := func(types []graph.Type) (o []kernels.Operand) {
		for _, t := range types {
			o = append(o, kernels.Operand{DType: t.DType, Layout: graph.Contiguous(t.Shape)})
		}
		return
	}
	_, err := d.compile(op, operands(args), operands(results), d.cfg)
	return err
}

// anchorOf is the anchor of the fusions in which an operation is computed.
func anchorOf(op graph.Op) (graph.Anchor, bool) {
	switch op.(type) {
	case graph.MatMul:
		return graph.AnchorMatMul, true
	case graph.Conv2D:
		return graph.AnchorConv, true
	case graph.Reduce, graph.Softmax, graph.LogSoftmax, graph.LayerNorm, graph.RMSNorm:
		return graph.AnchorRow, true
	case graph.Attention, graph.AttentionGrad:
		return graph.AnchorAttention, true
	case graph.MoE, graph.MoEGrad:
		return graph.AnchorMoE, true
	case graph.Dropout:
		return graph.AnchorNone, true
	}
	return graph.AnchorNone, graph.Elementwise(op)
}

// alone is the fusion of one operation.
func alone(op graph.Op, anchor graph.Anchor, args []graph.Type) (graph.Fusion, error) {
	b := graph.NewBuilder(op.OpName())
	var in []*graph.Node
	for i, t := range args {
		in = append(in, b.Input(fmt.Sprintf("operand %d", i), t))
	}
	n := b.Add(op, in...)
	b.Output("result 0", n)
	types, err := graph.ResultTypes(op, in)
	if err != nil {
		return graph.Fusion{}, err
	}
	for i := 1; i < len(types); i++ {
		b.Output(fmt.Sprintf("result %d", i), b.Add(graph.Result{Index: i}, n))
	}
	g, err := b.Graph()
	return graph.Fusion{Anchor: anchor, Body: g}, err
}
