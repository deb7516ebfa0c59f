package ref

import (
	"fusec/graph/precision"
	"fusec/lowering"
)

// Target is the reference. It has no options.
var Target = lowering.Target{Name: "ref", Synonyms: []string{"reference"}, Untimed: true, Reference: true,
	Open: func(s lowering.Setup) (lowering.Device, error) {
		if s.Precision != precision.F32 {
			return nil, s.Refuses("float64")
		}
		return Device{}, nil
	}}
