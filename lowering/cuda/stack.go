package cuda

import "fusec/graph"

// StacksWeights implements stack.Stacker: one product fills the GPU better than several, one after the other.
func (d *Device) StacksWeights(int, []graph.Type) error { return nil }
