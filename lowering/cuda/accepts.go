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
	if _, ok := graph.AnchorOf(op); ok {
		types, err := info.Infer(op, args)
		if err != nil {
			return err
		}
		if op, err = graph.Alone(op, contiguous(args), len(types)); err != nil {
			return err
		}
	}
	_, err := d.compile(op, contiguous(args), contiguous(results), d.cfg)
	return err
}

// contiguous are operands of these types.
func contiguous(types []graph.Type) (list []kernels.Operand) {
	for _, t := range types {
		list = append(list, kernels.Operand{DType: t.DType, Layout: graph.Contiguous(t.Shape)})
	}
	return list
}

// JoinsMoves implements moves.Joiner.
func (d *Device) JoinsMoves() bool { return true }

// NormsProduct implements norms.Normer.
func (d *Device) NormsProduct(f graph.Fusion, args, results []graph.Type) error {
	return kernels.NormsRows(f, contiguous(args), contiguous(results), d.cfg)
}

// TakesMoments implements fuse.MomentsTaker.
func (d *Device) TakesMoments() bool { return true }
