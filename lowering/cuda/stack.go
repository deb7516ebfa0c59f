package cuda

import (
	"errors"
	"fmt"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
)

// StacksWeights implements stack.Stacker: one product fills the GPU better than several, one after the other.
func (d *Device) StacksWeights(int, []graph.Type) error { return nil }

// StreamsWeights implements panels.Streamer: where contractions round to 16 bits, products of few rows read weights of few bits
// as they are stored.
func (d *Device) StreamsWeights(rows int, weights graph.Type, as graph.DType, block int) (graph.DType, error) {
	to, most := d.cfg.Precision.Half(), d.cfg.PanelRows(weights)
	switch {
	case to == graph.Invalid:
		return to, fmt.Errorf("in precision %v the other operand is of f32", d.cfg.Precision)
	case d.cfg.Chip.Arch < kernels.LeastPanels:
		return to, fmt.Errorf("%s has no tensor cores for them", d.cfg.Chip.Target())
	case most == 0:
		return to, errors.New("products of few rows read weights of 16 bits as they lie")
	case rows > most:
		return to, fmt.Errorf("of more than %d rows, such as its %d, other products are faster", most, rows)
	}
	return to, kernels.CheckPanelBlock(block)
}
