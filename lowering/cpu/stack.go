package cpu

import (
	"errors"

	"fusec/graph"
)

// Several products become one if the time that it takes to start them counts. Of one row, the weights are read where they
// lie, and a product of wider ones is not faster. Within the limits, and beyond them if they are raised, the gain is timed by
//
//	go test -run xxx -bench Stacked .
const (
	stackFlops  = 1 << 22   // of one of the products
	stackPanels = 1 << 25   // the same where weights are in panels, since each product packs the rows
	stackBytes  = 256 << 10 // of all weights, where there is one row
)

// StacksWeights implements stack.Stacker.
func (d *Device) StacksWeights(rows int, weights []graph.Type) error {
	elems, bytes, most := 0, int64(0), stackFlops
	if !weights[0].DType.IsReal() || weights[0].DType.Is16() {
		most = stackPanels
	}
	for _, w := range weights {
		elems += w.Shape.Elems()
		bytes += w.Bytes()
	}
	switch {
	case rows == 1 && bytes > stackBytes:
		return errors.New("one row takes as long as reading the weights, and stacked ones are a copy")
	case 2*rows*(elems/len(weights)) > most:
		return errors.New("what is saved by starting one launch is little beside the products")
	}
	return nil
}
