package pipeline

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"fusec/graph/trace"
	"fusec/kernels/group"
)

// A record is what a runner did in its last run, and sums over runs.
type record struct {
	began time.Time
	met   time.Duration // since then, until all stages had computed all microbatches
	left  time.Time     // when the runner had nothing left to do
	spans []trace.PipelineSpan
	runs  int            // that have ended well
	total trace.StageRun // of the steps
}

func (d *record) begin() {
	d.began, d.spans = time.Now(), d.spans[:0]
}

// spent notes what the time since start was spent on.
func (d *record) spent(what trace.PipelineWork, microbatch int, start time.Time) {
	d.spans = append(d.spans, trace.PipelineSpan{What: what, Microbatch: microbatch, Start: start.Sub(d.began),
		Length: time.Since(start)})
}

// meet notes that all stages have computed all microbatches, for which this one has waited since start.
func (d *record) meet(start time.Time) {
	d.spent(trace.WaitAll, 0, start)
	d.met = time.Since(d.began)
}

// steps is how many runs count: all but the first, which is slower, if there are several.
func (d *record) steps() int { return max(d.runs-1, min(d.runs, 1)) }

// end counts a run, at the end of which the runner has waited for others of this process.
func (d *record) end() {
	d.spent(trace.WaitAll, 0, d.left)
	if d.runs == 1 {
		d.total = trace.StageRun{}
	}
	d.runs++
	d.total.Step += time.Since(d.began)
	for _, s := range d.spans {
		d.total.Add(s)
	}
}

// told is what a stage tells the others of its record.
type told struct {
	Steps int            `json:"steps"`
	Met   time.Duration  `json:"met_ns"`
	Run   trace.StageRun `json:"run"`
}

// told has means of a step.
func (d *record) told() told {
	p := told{d.steps(), d.met, d.total}
	for _, t := range []*time.Duration{&p.Run.Step, &p.Run.Passes, &p.Run.Update, &p.Run.Previous, &p.Run.Next, &p.Run.All} {
		*t /= time.Duration(max(p.Steps, 1))
	}
	p.Run.Spans = slices.Clone(d.spans)
	return p
}

// Measured is how runs went, on the first participant of each stage, or in a group on those at this one's place; nil before the
// first run. All participants of a group call it.
func (e *Executable) Measured() (*trace.PipelineRun, error) {
	var all []told
	if e.group == nil {
		for s := range e.parts.Stages {
			all = append(all, e.runner(s).record.told())
		}
	} else {
		r := e.all[0]
		text, err := json.Marshal(r.record.told())
		if err != nil {
			return nil, err
		}
		texts, err := gather(r.team, text)
		if err != nil {
			return nil, fmt.Errorf("bringing the times of stages: %w", err)
		}
		all = make([]told, len(texts))
		for i, text := range texts {
			if err := json.Unmarshal(text, &all[i]); err != nil {
				return nil, err
			}
		}
	}
	run := &trace.PipelineRun{Steps: all[0].Steps}
	if run.Steps == 0 {
		return nil, nil
	}
	// Stages have clocks of their own, which agree on when all had computed all microbatches.
	met := slices.MaxFunc(all, func(a, b told) int { return int(a.Met - b.Met) }).Met
	for _, p := range all {
		for i := range p.Run.Spans {
			p.Run.Spans[i].Start += met - p.Met
		}
		run.Waited += p.Run.Waited() / float64(len(all))
		run.Stages = append(run.Stages, p.Run)
	}
	return run, nil
}

// gather brings the bytes of each participant of a team to all.
func gather(team *group.Team, mine []byte) ([][]byte, error) {
	n := team.Size()
	sizes := make([]byte, 8*n)
	if err := team.Gather(binary.LittleEndian.AppendUint64(nil, uint64(len(mine))), sizes); err != nil {
		return nil, err
	}
	most := uint64(0)
	for i := range n {
		most = max(most, binary.LittleEndian.Uint64(sizes[8*i:]))
	}
	all := make([]byte, int(most)*n)
	if err := team.Gather(append(slices.Clip(mine), make([]byte, int(most)-len(mine))...), all); err != nil {
		return nil, err
	}
	list := make([][]byte, n)
	for i := range list {
		list[i] = all[i*int(most):][:binary.LittleEndian.Uint64(sizes[8*i:])]
	}
	return list, nil
}
