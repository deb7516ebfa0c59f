package fpga

import (
	"testing"

	"fusec/graph"
)

// TestAnswers checks that what the overlay takes is taken in one way.
func TestAnswers(t *testing.T) {
	took := 0
	for _, info := range graph.Ops() {
		how, err := answers.Of(info.Proto)
		if err != nil {
			continue
		}
		took++
		set := 0
		for _, is := range []bool{how.launch != nil, how.alone != nil, how.value != nil} {
			if is {
				set++
			}
		}
		if set != 1 {
			t.Errorf("%s: one of launch, alone and value must be set", info.Name)
		}
		if a, _ := graph.AnchorOf(info.Proto); how.launch != nil && a == graph.AnchorNone {
			t.Errorf("%s is taken as a launch, and is the anchor of none", info.Name)
		}
	}
	if took == 0 {
		t.Error("the overlay takes nothing")
	}
}
