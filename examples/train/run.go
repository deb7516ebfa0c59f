package train

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorgonia.org/gorgonia"

	"fusec"
	"fusec/graph"
	"fusec/graph/checkpoint"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/trace"
)

// Run is a task in training. One goroutine uses it at a time.
type Run struct {
	task     *Task
	settings Settings
	vm       Machine
	loss     func() (float64, error) // of the last step
	step     int
	began    time.Time
}

// Participants are the options for how several share the work.
func (s Settings) Participants() (opts []fusec.Option) {
	if s.Group != nil {
		opts = append(opts, fusec.WithGroup(s.Group))
	}
	if s.Mesh != "" {
		opts = append(opts, fusec.WithMesh(s.Mesh))
	}
	if s.Microbatches > 0 {
		var ends []string
		if s.Ends != "" {
			ends = strings.Split(s.Ends, ",")
		}
		opts = append(opts, fusec.WithPipeline(s.Microbatches, ends...))
	}
	return opts
}

// unbind takes inputs their values, so that a machine does not take them for weights, which are not split into microbatches, and
// gives what puts them back.
func unbind(inputs gorgonia.Nodes) (rebind func() error) {
	values := make([]gorgonia.Value, len(inputs))
	for i, n := range inputs {
		if values[i] = n.Value(); values[i] != nil {
			fgorgonia.Unbind(n)
		}
	}
	return func() error {
		for i, n := range inputs {
			if values[i] == nil {
				continue
			}
			if err := gorgonia.Let(n, values[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// Machine does the steps of a run: a [fusec.Machine], or what stands in for one.
type Machine interface {
	RunAll() error // a step
	Reset()
	Sync() error
	Close() error
	StepStats() fusec.StepStats
	Weights() (map[string]*graph.Tensor, error)
	SetWeights(weights map[string]*graph.Tensor) error
	State() (map[string]*graph.Tensor, error)
	SetState(state map[string]*graph.Tensor) error
	Program() *fusec.Program
	Trace() *trace.Trace
	Fusions() []fusec.Fusion
}

// New is a run of a machine whose steps are made elsewhere; of the task, Fill and Evaluate are used. loss is that of the last step.
func New(vm Machine, t *Task, s Settings, loss func() (float64, error)) (*Run, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	return &Run{task: t, settings: s, vm: vm, loss: loss}, nil
}

// Record describes one step.
type Record struct {
	Step    int     `json:"step"` // counted from 1
	Loss    float64 `json:"loss"` // of the batch, before the step
	Rate    float64 `json:"lr"`
	Speed   float64 `json:"samples_per_s"` // of this step
	Seconds float64 `json:"time_s"`        // since the run was started or resumed
	Scores  []Score `json:"eval,omitempty"`
	// Loads are the tokens of the batch that go to each expert of each mixture, by the weights after the step. Like
	// Scores they are there when the model has been evaluated.
	Loads []Load `json:"loads,omitempty"`
}

// Load is how many tokens go to each expert of a mixture.
type Load struct {
	Name   string `json:"name"`
	Tokens []int  `json:"tokens"`
}

// Start differentiates the task's cost and compiles it, with the optimiser's step, into one program. From then on steps
// change the learnables in place.
func Start(t *Task, s Settings) (*Run, error) {
	if err := errors.Join(t.check(), s.Check()); err != nil {
		return nil, err
	}
	var cost gorgonia.Value
	r := &Run{task: t, settings: s, loss: func() (float64, error) { return scalar(cost) }}
	gorgonia.Read(t.Model.Cost, &cost)
	if _, err := gorgonia.Grad(t.Model.Cost, t.Model.Learnables...); err != nil {
		return nil, err
	}
	opts := []gorgonia.VMOpt{fusec.WithOptimizer(t.Optimizer), fusec.WithSeed(int64(s.Seed)), fusec.WithPrecision(s.Precision)}
	if s.Target != "" {
		opts = append(opts, fusec.WithTarget(s.Target))
	}
	if s.Workers > 0 {
		opts = append(opts, fusec.WithWorkers(s.Workers))
	}
	for _, o := range s.Participants() {
		opts = append(opts, o)
	}
	rebind := func() error { return nil }
	if s.Microbatches > 0 {
		rebind = unbind(t.Model.Inputs)
	}
	vm := fusec.NewMachine(t.Model.Graph, opts...)
	if err := rebind(); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	if err := vm.Err(); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	r.vm = vm
	return r, nil
}

// Machine does the steps; it is for drawings and reports.
func (r *Run) Machine() Machine { return r.vm }

// Step is the number of steps done.
func (r *Run) Step() int { return r.step }

// Next does one step. A step whose loss or gradients are not finite changes no weight; [fusec.Machine.StepStats] counts
// it.
func (r *Run) Next() (Record, error) {
	start := time.Now()
	if r.began.IsZero() {
		r.began = start
	}
	if err := r.task.Fill(r.step); err != nil {
		return Record{}, fmt.Errorf("the batch of step %d: %w", r.step+1, err)
	}
	if err := r.vm.RunAll(); err != nil {
		return Record{}, fmt.Errorf("step %d: %w", r.step+1, err)
	}
	r.vm.Reset()
	r.step++
	loss, err := r.loss()
	now := time.Now()
	return Record{
		Step: r.step, Loss: loss, Rate: r.vm.StepStats().Rate,
		Speed: float64(r.settings.Batch) / now.Sub(start).Seconds(), Seconds: now.Sub(r.began).Seconds(),
	}, err
}

// scalar is the one number that a value holds.
func scalar(v gorgonia.Value) (float64, error) {
	t, err := fgorgonia.ToTensor(v)
	if err != nil {
		return 0, err
	}
	if n := t.Type.Shape.Elems(); n != 1 {
		return 0, fmt.Errorf("the cost has %d elements, not one", n)
	}
	return t.Float(0), nil
}

// loads counts the tokens of each expert in the values of the gates.
func (r *Run) loads() ([]Load, error) {
	var list []Load
	if r.task.Model == nil {
		return nil, nil
	}
	for _, g := range r.task.Model.Gates {
		t, err := fgorgonia.ToTensor(g.Node.Value())
		if err != nil {
			return nil, fmt.Errorf("the gate of %s: %w", g.Name, err)
		}
		l := Load{g.Name, make([]int, t.Type.Shape.At(1))}
		for i, w := range t.Floats() {
			if w != 0 {
				l.Tokens[i%len(l.Tokens)]++
			}
		}
		list = append(list, l)
	}
	return list, nil
}

// Close releases the program. The weights stay in the model's nodes.
func (r *Run) Close() error { return r.vm.Close() }

// Checkpoint has all that is needed to resume the run: weights, optimiser, step, seed and settings. Name is the task's
// name.
func (r *Run) Checkpoint(name string) (*checkpoint.State, error) {
	s := &checkpoint.State{Step: int64(r.step), Position: int64(r.step), Seed: r.settings.Seed, Meta: r.settings.meta(name)}
	var err error
	if s.Params, err = r.vm.Weights(); err == nil {
		s.State, err = r.vm.State()
	}
	return s, err
}

// Restore sets the run to the state of a [Run.Checkpoint]. If something does not fit, nothing is changed.
func (r *Run) Restore(s *checkpoint.State) error {
	now, err := r.Checkpoint("")
	if err != nil {
		return err
	}
	if err := s.Restore(now.Params, now.State); err != nil {
		return err
	}
	if err := r.vm.SetState(now.State); err != nil {
		return err
	}
	if err := r.vm.SetWeights(now.Params); err != nil {
		return err
	}
	r.step = int(s.Step)
	return nil
}

// Keys of a checkpoint's notes.
const (
	metaName  = "example"
	metaSteps = "steps"
	metaBatch = "batch"
	metaRate  = "lr"

	metaPrecision = "precision" // absent in f32
)

// meta are the settings that determine the result, as stored in a checkpoint; the seed is stored separately.
func (s Settings) meta(name string) map[string]string {
	m := map[string]string{
		metaName: name, metaSteps: strconv.Itoa(s.Steps), metaBatch: strconv.Itoa(s.Batch),
		metaRate: strconv.FormatFloat(s.Rate, 'g', -1, 64),
	}
	if s.Precision != fusec.F32 {
		m[metaPrecision] = s.Precision.String()
	}
	return m
}

// SettingsOf reads the task's name and the settings from a checkpoint. The number of workers, which does not affect
// results, the target, and how participants share the work are not stored.
func SettingsOf(c *checkpoint.State) (name string, s Settings, err error) {
	number := func(key string) int {
		n, e := strconv.Atoi(c.Meta[key])
		err = errors.Join(err, e)
		return n
	}
	s = Settings{Steps: number(metaSteps), Batch: number(metaBatch), Seed: c.Seed}
	rate, e := strconv.ParseFloat(c.Meta[metaRate], 64)
	s.Rate = rate
	if p, ok := c.Meta[metaPrecision]; ok {
		var e error
		s.Precision, e = fusec.ParsePrecision(p)
		err = errors.Join(err, e)
	}
	if err = errors.Join(err, e); err != nil {
		return "", s, fmt.Errorf("it is not a checkpoint of a training run: its notes are %v: %w",
			slices.Sorted(maps.Keys(c.Meta)), err)
	}
	return c.Meta[metaName], s, nil
}
