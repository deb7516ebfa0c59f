package pipeline

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/kernels/group"
	"fusec/lowering"
)

// Executable is a program on all devices, or this participant's part of it.
type Executable struct {
	lowering.ExecutableDefaults
	p       *lowering.Program
	parts   *Parts
	all     []*runner
	local   []group.Transport
	group   *group.Group
	inPlace bool
	errs    []error
	bound   map[string]*graph.Tensor   // by name of the caller's values
	stale   map[string]bool            // another one was bound
	copies  []map[string]*graph.Tensor // by runner: its part of a value, or its own copy of what several update
	outputs []output
	ties    []tie
	homes   map[string]int  // by what an update changes: the first stage that does it
	several map[string]bool // of these, what several stages update alike
}

// An output is a result of the program.
type output struct {
	buffer int           // of the program
	stage  int           // that makes it
	in     int           // the buffer there
	t      *graph.Tensor // on other participants of a group
}

// A tie is a parameter that one stage updates, and others read: tied weights.
type tie struct {
	name string
	from int
	to   []int
}

// outline finds outputs and ties.
func (e *Executable) outline() {
	for _, o := range e.p.Outputs {
		for s, stage := range e.parts.Stages {
			if i := buffer(stage[Update], o.Name, lowering.Output); i >= 0 {
				out := output{buffer: o.Buffer, stage: s, in: i}
				if e.runner(s) == nil {
					out.t = graph.NewTensor(stage[Update].Buffers[i].Type)
				}
				e.outputs = append(e.outputs, out)
			}
		}
	}
	e.homes, e.several = map[string]int{}, map[string]bool{}
	for s, stage := range e.parts.Stages {
		if stage[Update] == nil {
			continue
		}
		for _, u := range stage[Update].Updates {
			name := stage[Update].Buffers[u.Target].Name
			if _, known := e.homes[name]; known {
				e.several[name] = true
				continue
			}
			e.homes[name] = s
			t := tie{name: name, from: s}
			for r, other := range e.parts.Stages {
				reads := slices.ContainsFunc(other[:], func(q *lowering.Program) bool {
					return buffer(q, name, lowering.Param, lowering.State) >= 0
				})
				if i := buffer(other[Update], name, lowering.Param, lowering.State); r != s && reads && (i < 0 || !updates(other[Update], i)) {
					t.to = append(t.to, r)
				}
			}
			if len(t.to) > 0 {
				e.ties = append(e.ties, t)
			}
		}
	}
	e.copies = make([]map[string]*graph.Tensor, len(e.all))
	for i := range e.copies {
		e.copies[i] = map[string]*graph.Tensor{}
	}
}

// updates reports whether a program updates a buffer.
func updates(q *lowering.Program, buffer int) bool {
	return slices.ContainsFunc(q.Updates, func(u lowering.Update) bool { return u.Target == buffer })
}

// Parts are the stages.
func (e *Executable) Parts() *Parts { return e.parts }

// runner is that of the first participant of a stage, or of this one of a group, if it is here.
func (e *Executable) runner(stage int) *runner {
	for _, r := range e.all {
		if r.stage == stage {
			return r
		}
	}
	return nil
}

// Bind implements [lowering.Executable].
func (e *Executable) Bind(buffer int, t *graph.Tensor) error {
	if err := e.p.MayBind(buffer, t); err != nil {
		return err
	}
	name := e.p.Buffers[buffer].Name
	e.bound[name], e.stale[name] = t, true
	return nil
}

// split is how the participants of a stage have a value in parts, if they do and this process gives them these.
func (e *Executable) split(r *runner, name string) (s graph.Sharding, ok bool) {
	if e.group != nil || len(e.parts.Mesh) == 0 || len(r.places[name]) == 0 {
		return s, false
	}
	at := r.places[name][0]
	s = r.steps[at.program].p.Buffers[at.buffer].Sharding
	return s, e.parts.Mesh.Parts(s.Over()) > 1
}

// ready binds the caller's values to the programs of all stages.
func (e *Executable) ready() error {
	for _, t := range e.ties { // the parts of a value that another stage reads are joined
		if r := e.runner(t.from); r != nil && e.bound[t.name] != nil && !e.stale[t.name] {
			if _, parts := e.split(r, t.name); parts {
				if err := e.Sync(e.number(t.name)); err != nil {
					return err
				}
			}
		}
	}
	for i, r := range e.all {
		for name, places := range r.places {
			t := e.bound[name]
			if t == nil {
				continue // a program says so
			}
			home, updated := e.Home(name), false
			if q := r.steps[Update].p; q != nil {
				for _, at := range places {
					updated = updated || at.program == Update && updates(q, at.buffer)
				}
			}
			own, last := e.copies[i][name], t
			s, parts := e.split(r, name)
			copied := updated && e.group == nil && !parts && (home != r.stage || r.place > 0)
			if (parts || copied) && own == nil {
				own = graph.NewTensor(r.steps[places[0].program].p.Buffers[places[0].buffer].Type)
				e.copies[i][name] = own
			}
			switch each := home < 0 && !e.p.Frozen || home >= 0 && !updated; {
			case parts: // of which the participant has changed its own, if it has
				if e.stale[name] || each {
					if err := s.Take(e.parts.Mesh, t, own, r.place); err != nil {
						return err
					}
				}
				last = own
			case copied: // several update it alike, and each needs one of its own
				if e.stale[name] || e.inPlace || home != r.stage {
					own.CopyFrom(t)
				}
				last = own
			}
			t = last
			for _, at := range places {
				keeps := at.program == Update && updated && (!copied || !e.inPlace && home == r.stage) // and changes it by itself
				if e.stale[name] || home >= 0 && !keeps || copied && !keeps {
					if err := r.bind(at, t); err != nil {
						return group.Of(r.rank(), err)
					}
				}
			}
		}
	}
	clear(e.stale)
	return nil
}

// Run implements [lowering.Executable].
func (e *Executable) Run() error {
	if err := e.ready(); err != nil {
		return err
	}
	group.Together(e.all, e.errs, func(_ int, r *runner) error {
		err := r.run(e.bound)
		if err == nil {
			err = e.after(r)
		}
		if e.group == nil && err != nil && !group.IsLost(err) {
			r.group.Abort(err)
		}
		r.record.left = time.Now()
		return err
	})
	if err := e.ended(); err != nil {
		return err
	}
	for _, r := range e.all {
		r.record.end()
	}
	return nil
}

// Start implements [lowering.Executable]: it does all the work.
func (e *Executable) Start() error { return e.Run() }

// ended looks at the errors of a run. That of the participant that has failed by itself is the run's.
func (e *Executable) ended() error {
	at := group.Origin(e.errs)
	if at < 0 {
		return nil
	}
	if e.group == nil {
		group.Renew(e.local)
		return group.Of(e.all[at].rank(), e.errs[at])
	}
	return e.errs[at]
}

// after brings what a run has changed to where it is read: ties and outputs.
func (e *Executable) after(r *runner) error {
	for _, t := range e.ties {
		if t.from == r.stage && (r.place == 0 || e.group != nil) {
			if err := e.sync(r, t.name); err != nil {
				return err
			}
		}
	}
	for name, places := range r.places { // other programs read what the update has changed, or other stages update it alike
		if e.Home(name) == r.stage && (len(places) > 1 || e.group == nil && e.several[name] && r.place == 0) {
			if err := e.sync(r, name); err != nil {
				return err
			}
		}
	}
	if e.group == nil {
		return nil
	}
	n := len(e.parts.Stages)
	send, get := make([][]byte, n), make([][]byte, n)
	var got []*graph.Tensor // in the order in which they were sent
	var from []int
	for _, t := range e.ties {
		b := e.bound[t.name]
		for _, to := range t.to {
			switch r.stage {
			case t.from:
				send[to] = append(send[to], b.Bytes()...)
			case to:
				got, from = append(got, b), append(from, t.from)
			}
		}
	}
	for _, o := range e.outputs {
		if o.stage != r.stage {
			got, from = append(got, o.t), append(from, o.stage)
			continue
		}
		b := r.steps[Update].exe.Output(o.in).Bytes()
		for to := range n {
			if to != r.stage {
				send[to] = append(send[to], b...)
			}
		}
	}
	for i, t := range got {
		get[from[i]] = append(get[from[i]], t.Bytes()...)
	}
	start := time.Now()
	if err := r.team.Swap(send, get); err != nil {
		return err
	}
	r.record.spent(trace.WaitAll, 0, start)
	at := make([]int, n)
	for i, t := range got {
		at[from[i]] += copy(t.Bytes(), get[from[i]][at[from[i]]:])
	}
	return nil
}

// sync brings a value that the stage's update has changed to the caller's tensor.
func (e *Executable) sync(r *runner, name string) error {
	if i := buffer(r.steps[Update].p, name, lowering.Param, lowering.State); i >= 0 {
		return r.steps[Update].exe.Sync(i)
	}
	return nil
}

// Sync implements [lowering.Executable].
func (e *Executable) Sync(buffers ...int) error {
	for _, u := range e.p.Updates {
		name := e.p.Buffers[u.Target].Name
		if len(buffers) > 0 && !slices.Contains(buffers, u.Target) || e.bound[name] == nil || e.stale[name] {
			continue
		}
		stage := e.Home(name)
		if e.group != nil && e.several[name] {
			stage = e.all[0].stage
		}
		for i, r := range e.all {
			if r.stage != stage {
				continue
			}
			s, parts := e.split(r, name)
			if r.place > 0 && !parts && e.group == nil {
				continue // all have the same
			}
			if err := e.sync(r, name); err != nil {
				return group.Of(r.rank(), err)
			}
			if parts {
				if err := s.Join(e.parts.Mesh, e.bound[name], e.copies[i][name], r.place); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// number is the buffer of a parameter or state.
func (e *Executable) number(name string) int {
	return buffer(e.p, name, lowering.Param, lowering.State)
}

// Home is the first stage that updates a state or parameter, or -1.
func (e *Executable) Home(name string) int {
	if s, ok := e.homes[name]; ok {
		return s
	}
	return -1
}

// Kept are the names of all that stages update, in order, and whether each is a state.
func (e *Executable) Kept() (names []string, state []bool) {
	names = slices.Sorted(maps.Keys(e.homes))
	for _, name := range names {
		state = append(state, buffer(e.parts.Stages[e.homes[name]][Update], name, lowering.State) >= 0)
	}
	return names, state
}

// Whole is the present value of a state, or of a parameter that is updated, from the participant of a group that has it. All
// call it.
func (e *Executable) Whole(name string) (*graph.Tensor, error) {
	home := e.Home(name)
	if home < 0 {
		return nil, fmt.Errorf("the program keeps no state %q", name)
	}
	q := e.parts.Stages[home][Update]
	b := &q.Buffers[buffer(q, name, lowering.Param, lowering.State)]
	t := graph.NewTensor(b.Type)
	r := e.all[0]
	if r.stage == home {
		if e.bound[name] == nil {
			return nil, fmt.Errorf("%q has no value", name)
		}
		if !e.stale[name] {
			if err := e.sync(r, name); err != nil {
				return nil, group.Of(r.rank(), err)
			}
		}
		t.CopyFrom(e.bound[name])
	}
	if err := r.team.Broadcast(t.Bytes(), home); err != nil {
		return nil, fmt.Errorf("bringing %q: %w", name, err)
	}
	if e.parts.Mesh.Parts(b.Sharding.Over()) == 1 {
		return t, nil
	}
	whole, err := r.row.All().Whole(e.parts.Mesh, b.Sharding, t)
	if err != nil {
		return nil, fmt.Errorf("joining %q: %w", name, err)
	}
	return whole, nil
}

// Watch implements [lowering.Executable]: nothing watches a pipeline.
func (e *Executable) Watch(func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error) {
}

// Output implements [lowering.Executable].
func (e *Executable) Output(buffer int) *graph.Tensor {
	for _, o := range e.outputs {
		if o.buffer == buffer {
			if o.t != nil {
				return o.t
			}
			return e.runner(o.stage).steps[Update].exe.Output(o.in)
		}
	}
	return nil
}

// Profile implements [lowering.Executable].
func (e *Executable) Profile(on bool) {
	for _, r := range e.all {
		for k := range r.steps {
			if exe := r.steps[k].exe; exe != nil {
				exe.Profile(on)
			}
		}
	}
}

// Times implements [lowering.Executable]: they are those of all microbatches together.
func (e *Executable) Times() []time.Duration {
	var list []time.Duration
	for _, r := range e.all {
		for k := range r.steps {
			list = append(list, r.steps[k].times...)
		}
	}
	return list
}

// Memory implements [lowering.Executable]: it is that of all stages that are here, with what is handed over, and with sums.
func (e *Executable) Memory() (m lowering.Memory) {
	for _, r := range e.all {
		for k := range r.steps {
			if exe := r.steps[k].exe; exe != nil {
				m.Add(exe.Memory())
			}
		}
		for _, slot := range r.slots {
			for _, t := range slot {
				if t != nil {
					m.Arena += t.Type.Bytes()
				}
			}
		}
		for _, s := range slices.Concat(r.early, r.sums) {
			m.Arena += s.t.Type.Bytes()
		}
	}
	return m
}

// Close implements [lowering.Executable].
func (e *Executable) Close() error {
	var errs []error
	for _, r := range e.all {
		if err := r.close(); err != nil {
			errs = append(errs, group.Of(r.rank(), err))
		}
	}
	return errors.Join(errs...)
}
