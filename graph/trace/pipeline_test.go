package trace

import (
	"testing"
	"time"
)

// TestStageRun sums up what a stage does, and for what part of the step it waits.
func TestStageRun(t *testing.T) {
	s := StageRun{Step: 100}
	for i, what := range []PipelineWork{StageSums, StageForward, StageBackward, StageUpdate, WaitPrevious, WaitNext, WaitAll} {
		s.Add(PipelineSpan{What: what, Length: time.Duration(1 << i)})
	}
	if s.Passes != 7 || s.Update != 8 || s.Previous != 16 || s.Next != 32 || s.All != 64 || s.Waited() != 1.12 {
		t.Errorf("%+v, of which it waits for %v", s, s.Waited())
	}
	if none := new(StageRun); none.Waited() != 0 {
		t.Errorf("nothing waits for %v", none.Waited())
	}
}
