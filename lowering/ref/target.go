package ref

import (
	"fmt"

	"fusec/graph/precision"
	"fusec/lowering"
)

// Target is the reference. It has no options.
var Target = lowering.Target{Name: "ref", Open: func(s lowering.Setup) (lowering.Device, error) {
	if s.Precision != precision.F32 {
		return nil, fmt.Errorf("target %q computes in float64; precision %v requires target cuda", s.Name, s.Precision)
	}
	return Device{}, nil
}}
