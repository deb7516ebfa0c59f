package trace

import "time"

// PipelineRun is how steps of a pipeline went, as they were measured.
type PipelineRun struct {
	// Steps is of how many steps the times of stages are means: of all but the first, if there are several.
	Steps int `json:"steps"`
	// Waited is the bubble: the part of a step for which a participant waits, the mean over stages.
	Waited float64    `json:"waited"`
	Stages []StageRun `json:"stages"`
}

// StageRun is what a participant of a stage does in a step, by the clock of its processor. A wait is the time of an exchange: until
// the other is there, and of the copies. What is left of the step is other work of the host.
type StageRun struct {
	Step   time.Duration `json:"step_ns"`
	Passes time.Duration `json:"passes_ns"` // it computes forward and backward passes
	Update time.Duration `json:"update_ns"` // it computes the optimiser's step
	// Previous and Next are waits for the stage before it and for the one behind it, and All those for all of them: before the
	// optimiser's step, which none begins before all have computed all microbatches, and at the end.
	Previous time.Duration `json:"previous_ns"`
	Next     time.Duration `json:"next_ns"`
	All      time.Duration `json:"all_ns"`
	// Spans are the last step, in order.
	Spans []PipelineSpan `json:"spans,omitempty"`
}

// Waited is the part of the step for which the participant waits.
func (s *StageRun) Waited() float64 {
	return float64(s.Previous+s.Next+s.All) / float64(max(s.Step, 1))
}

// PipelineSpan is what a stage does for a while.
type PipelineSpan struct {
	What       PipelineWork  `json:"what"`
	Microbatch int           `json:"microbatch,omitempty"` // from 1; of a wait the one that comes, or else goes; 0 for none
	Start      time.Duration `json:"start_ns"`             // since the first stage began
	Length     time.Duration `json:"length_ns"`
}

// PipelineWork is what a stage does, or what it waits for.
type PipelineWork string

// What stages do.
const (
	StageSums     PipelineWork = "sums" // of all inputs, which microbatches need
	StageForward  PipelineWork = "forward"
	StageBackward PipelineWork = "backward"
	StageUpdate   PipelineWork = "update"
	WaitPrevious  PipelineWork = "wait for previous"
	WaitNext      PipelineWork = "wait for next"
	WaitAll       PipelineWork = "wait for all"
)

// Add adds a span to the times of the step.
func (s *StageRun) Add(x PipelineSpan) {
	switch x.What {
	case WaitPrevious:
		s.Previous += x.Length
	case WaitNext:
		s.Next += x.Length
	case WaitAll:
		s.All += x.Length
	case StageUpdate:
		s.Update += x.Length
	default:
		s.Passes += x.Length
	}
}
