package fusec

import (
	"fmt"

	"gorgonia.org/gorgonia"
)

// Where values are current. On the CPU runs read and change weights and state where they stand, so nothing here has
// anything to do. A device has memory of its own: weights that an optimiser changes and the state of operations stay
// there from run to run. Everything that a run hands out, and the counters of [StepStats], comes back with the run.

// Sync brings the weights that an optimiser changes, and all state, back from the device to their nodes and operations.
// From then until the next run they may be changed in place, and the next run takes them up again. [Machine.State],
// [Machine.Save] and [Machine.Close] sync by themselves.
func (m *Machine) Sync() error {
	if m.err != nil {
		return m.err
	}
	if err := m.program.Sync(); err != nil {
		return err
	}
	for i := range m.inputs {
		m.inputs[i].synced = true
	}
	m.synced = true
	return nil
}

// Value is the present value of a node of the graph: of a weight, an input, or of what a run has computed. It is what
// Node.Value gives, after a weight that an optimiser changes on a device has been brought back, and a plain value where
// that is an [UnstoredTensor] or [UnstoredScalar].
func (m *Machine) Value(n *gorgonia.Node) (gorgonia.Value, error) {
	if err := m.has(n); err != nil {
		return nil, err
	}
	for i := range m.inputs {
		if in := &m.inputs[i]; in.node == n && in.steps {
			if err := m.program.sync(in.name); err != nil {
				return nil, err
			}
			in.synced = true
		}
	}
	if n.Value() == nil {
		return nil, fmt.Errorf("node %v has no value: runs hand out roots, gradients and what gorgonia.Read asks for", n)
	}
	return plain(n.Value())
}

// bindHeld hands the program the state that it has been lent, if that may have changed.
func (m *Machine) bindHeld() error {
	if !m.synced {
		return nil
	}
	for name, t := range m.held {
		if err := m.program.lend(name, t); err != nil {
			return err
		}
	}
	m.synced = false
	return nil
}
