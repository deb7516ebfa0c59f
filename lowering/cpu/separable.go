package cpu

import "fusec/graph"

// separableBytes is how large a value between the convolutions is at least, for the choice of one launch: smaller ones stay in the
// cache.
const separableBytes = 512 << 10

// FusesSeparable implements separable.Chooser.
func (d *Device) FusesSeparable(op graph.SeparableConv2D, args []graph.Type, result graph.Type) bool {
	x, filters := args[graph.SeparableImage], args[graph.SeparableDepthwise].Shape
	between := graph.Type{DType: x.DType, Shape: x.Shape.With(3, filters.At(3))}
	return between.Bytes() >= separableBytes && result.Shape.Elems() > 0
}
