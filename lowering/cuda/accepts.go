package cuda

import (
	"fmt"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
)

// Accepts implements lowering.Device: the error says why there is no kernel. Operations that reach a GPU only inside
// fusions are asked for as a fusion of one.
func (d *Device) Accepts(op graph.Op, args, results []graph.Type) error {
	info := graph.InfoOf(op)
	if info == nil {
		return fmt.Errorf("CUDA does not know %s", op.OpName())
	}
	operands := func(types []graph.Type) (o []kernels.Operand) {
		for _, t := range types {
			o = append(o, kernels.Operand{DType: t.DType, Layout: graph.Contiguous(t.Shape)})
		}
		return
	}
	if _, ok := graph.AnchorOf(op); ok {
		types, err := info.Infer(op, args)
		if err != nil {
			return err
		}
		if op, err = graph.Alone(op, operands(args), len(types)); err != nil {
			return err
		}
	}
	_, err := d.compile(op, operands(args), operands(results), d.cfg)
	return err
}

// JoinsMoves implements moves.Joiner.
func (d *Device) JoinsMoves() bool { return true }

// TakesMoments implements fuse.MomentsTaker.
func (d *Device) TakesMoments() bool { return true }
