package training

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/examples/train"
	"fusec/graph/report"
	"fusec/graph/trace"
)

// trainReport is what fusec train did, and its JSON form.
type trainReport struct {
	Schema      string        `json:"schema"` // fusec.train/1
	Example     string        `json:"example"`
	Steps       int           `json:"steps"`
	Batch       int           `json:"batch"`
	Rate        float64       `json:"lr"`
	Seed        uint64        `json:"seed"`
	Resumed     int           `json:"resumed_at,omitempty"` // the step of the checkpoint
	Parameters  int           `json:"parameters"`
	Launches    int           `json:"launches"` // of a step
	MemoryBytes int64         `json:"memory_bytes"`
	Skipped     int64         `json:"skipped_steps"`  // whose gradients were not finite
	Loss        *cli.Number   `json:"loss,omitempty"` // of the last step; absent if none was left to do
	Scores      []train.Score `json:"eval"`
	Seconds     float64       `json:"time_s"`
	Speed       float64       `json:"samples_per_s"`
	Waited      *float64      `json:"data_wait_s,omitempty"` // how long steps waited for data; absent for the examples
	DataBytes   int64         `json:"data_bytes,omitempty"`  // read
	Pipeline    *pipelineRun  `json:"pipeline,omitempty"`
	Saved       string        `json:"saved,omitempty"`
}

// pipelineRun is how the steps of a pipeline went, beside what was predicted.
type pipelineRun struct {
	trace.PipelineRun
	Predicted float64 `json:"predicted"` // what participants wait for, as a part of a step, if stages take equally long

	microbatches int
}

// pipelineOf brings what stages have measured, and has it in the trace. All participants of a group call it. It is nil for others.
func pipelineOf(vm train.Machine) (*pipelineRun, error) {
	run, err := vm.Program().PipelineRun()
	if run == nil || err != nil {
		return nil, err
	}
	stages := vm.Trace().Stages
	p := stages[len(stages)-1].Pipeline
	p.Measured = run
	rep := &pipelineRun{*run, p.Bubble(), p.Microbatches}
	rep.Stages = slices.Clone(run.Stages)
	for i := range rep.Stages {
		rep.Stages[i].Spans = nil
	}
	return rep, nil
}

// text prints for what stages waited.
func (p *pipelineRun) text() string {
	t := cli.NewTable(">stage", ">a step", ">passes", ">optimiser", ">waits for previous", ">for next", ">for all", ">in all")
	for i, s := range p.Stages {
		t.Row(strconv.Itoa(i+1), cli.HumanTime(s.Step), cli.HumanTime(s.Passes), cli.HumanTime(s.Update), cli.HumanTime(s.Previous),
			cli.HumanTime(s.Next), cli.HumanTime(s.All), cli.Percent(s.Waited()))
	}
	return fmt.Sprintf("pipeline of %s, %s: participants waited for %s of a step, %s if stages took equally long\n%s",
		cli.Plural(len(p.Stages), "stage", "stages"), cli.Plural(p.microbatches, "microbatch", "microbatches"), cli.Percent(p.Waited),
		cli.Percent(p.Predicted), t)
}

// finish writes what was asked for and prints the result.
func (t *trainer) finish(e *cli.Env, r *train.Run, took time.Duration) error {
	pipeline, err := pipelineOf(r.Machine())
	if err != nil {
		return err
	}
	if t.last.Step == 0 { // the checkpoint was the last
		scores, err := t.task.Evaluate()
		if err != nil {
			return err
		}
		t.last.Scores = scores
	}
	if err := t.keep(r.Machine()); err != nil {
		return err
	}
	if t.curve != "" {
		var b bytes.Buffer
		if err := drawCurve(&b, t.curveTo, t.example.Name, t.history); err != nil {
			return err
		}
		if err := cli.WriteFile(t.curve, b.Bytes()); err != nil {
			return err
		}
	}
	vm := r.Machine()
	if err := t.writePage(vm); err != nil {
		return err
	}
	rep := &trainReport{Schema: "fusec.train/1", Example: t.example.Name, Steps: t.set.Steps, Batch: t.set.Batch,
		Rate: t.set.Rate, Seed: t.set.Seed, Resumed: t.resumed, Parameters: t.parameters(), Launches: len(vm.Fusions()),
		MemoryBytes: vm.Program().Bytes(), Skipped: vm.StepStats().Skipped, Scores: t.last.Scores,
		Seconds: took.Seconds(), Speed: float64((r.Step()-t.resumed)*t.set.Batch) / took.Seconds(), Saved: t.save, Pipeline: pipeline}
	if t.last.Step > 0 {
		loss := cli.Number(t.last.Loss)
		rep.Loss = &loss
	}
	if t.model != nil {
		stats := t.model.data.Stats()
		waited := stats.Waited.Seconds()
		rep.Waited, rep.DataBytes = &waited, stats.Bytes
	}
	if t.json {
		return cli.WriteJSON(e.Out, rep)
	}
	return e.Print(rep.text())
}

// measuredSteps is of how many steps a launch's time in the page is the median: the last ones.
const measuredSteps = 50

// keep writes the trained model if asked to.
func (t *trainer) keep(vm train.Machine) error {
	switch {
	case t.save == "":
		return nil
	case t.model != nil:
		return t.model.save(t.save, vm)
	}
	return fusec.Save(t.save, t.task.Forward.Graph, t.task.Forward.Inputs...)
}

// parameters is how many numbers are learnt.
func (t *trainer) parameters() int {
	if t.model != nil {
		return t.model.parameters()
	}
	return t.task.Model.Parameters()
}

// keepTimes keeps the times of the step that was done last, if there will be a page.
func (t *trainer) keepTimes(p *fusec.Program) {
	if t.report == "" {
		return
	}
	if len(t.steps) == measuredSteps {
		t.steps = append(t.steps[:0], t.steps[1:]...)
	}
	t.steps = append(t.steps, slices.Clone(p.Times()))
}

// writePage writes the page on the training step if asked to.
func (t *trainer) writePage(vm train.Machine) error {
	if t.report == "" {
		return nil
	}
	tr := vm.Trace()
	for i := range tr.Program.Launches {
		var each []float64
		for _, s := range t.steps {
			if i < len(s) {
				each = append(each, s[i].Seconds())
			}
		}
		if len(each) > 0 {
			tr.Program.Launches[i].Measured = time.Duration(bench.Median(each) * 1e9)
		}
	}
	about := modelio.AboutHere(t.example.Name, fmt.Sprintf("--batch %d", t.set.Batch))
	return report.WriteAbout(t.report, tr, about)
}

// text prints the report for people.
func (rep *trainReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s: ", rep.Example)
	switch {
	case len(rep.Scores) > 0:
		b.WriteString(scoresText(rep.Scores))
	case rep.Loss != nil:
		fmt.Fprintf(&b, "loss %.4f", *rep.Loss)
	default:
		b.WriteString("trained")
	}
	if rep.Loss != nil {
		fmt.Fprintf(&b, " in %s, %s samples/s", cli.HumanTime(time.Duration(rep.Seconds*1e9)), cli.Digits(rep.Speed))
	}
	switch {
	case rep.Loss == nil:
		fmt.Fprintf(&b, "; all %d steps were done before", rep.Steps)
	case rep.Resumed > 0:
		fmt.Fprintf(&b, ", resumed after step %d", rep.Resumed)
	}
	parameters := "parameters"
	if rep.Parameters == 1 {
		parameters = "parameter"
	}
	fmt.Fprintf(&b, "\n%s %s, %s a step, memory %s, seed %d\n", grouped(rep.Parameters), parameters,
		cli.Plural(rep.Launches, "launch", "launches"), cli.HumanBytes(rep.MemoryBytes), rep.Seed)
	if rep.Skipped > 0 {
		fmt.Fprintf(&b, "%s with gradients that were not finite changed nothing\n", cli.Plural(int(rep.Skipped), "step", "steps"))
	}
	if rep.Waited != nil && rep.Loss != nil {
		fmt.Fprintf(&b, "data: %s read, %s of the time waited for it\n", cli.HumanBytes(rep.DataBytes),
			cli.Percent(*rep.Waited/rep.Seconds))
	}
	if rep.Pipeline != nil {
		b.WriteString(rep.Pipeline.text())
	}
	if rep.Saved != "" {
		fmt.Fprintf(&b, "saved as %s\n", rep.Saved)
	}
	return b.String()
}

// grouped prints a whole number, its digits in groups of three.
func grouped(n int) string {
	s := strconv.Itoa(n)
	var groups []string
	for len(s) > 3 {
		groups = append(groups, s[len(s)-3:])
		s = s[:len(s)-3]
	}
	groups = append(groups, s)
	slices.Reverse(groups)
	return strings.Join(groups, ",")
}

// scoresText prints scores; those that are shares as percentages.
func scoresText(scores []train.Score) string {
	var parts []string
	for _, s := range scores {
		value := strconv.FormatFloat(s.Value, 'f', 3, 64)
		if strings.Contains(s.Name, "accuracy") {
			value = cli.Percent(s.Value)
		}
		parts = append(parts, s.Name+" "+value)
	}
	return strings.Join(parts, ", ")
}
