package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/kernels/group"
	"fusec/lowering"
)

// A runner computes one stage.
type runner struct {
	parts *Parts
	stage int
	place int          // among the participants of the stage
	group *group.Group // of the participants at this place in all stages
	team  *group.Team
	row   *group.Group // of those of the stage; nil for one
	steps [programs]step
	slots [][]*graph.Tensor // of each microbatch in work: the values that programs hand over, by their number
	// What the stage sends and receives of each microbatch in the forward and in the backward pass.
	sends, gets [2]wire
	early, sums []sum // of Before, and of Forward and Backward
	joints      []joint
	index       *graph.Tensor
	told        [][]number         // by the stage that tells them
	own         []port             // of Norms to Update: what the stage tells no other
	places      map[string][]place // of the caller's values, but for inputs that are split
	mesh        graph.Mesh         // over which inputs are
	micro       graph.Mesh         // of microbatches alone
	record      record             // of the last run
}

// A step is a program of the stage.
type step struct {
	p      *lowering.Program
	exe    lowering.Executable // nil if there is nothing to compute
	ins    []port              // values that come from a microbatch's slot, and go there
	outs   []port
	inputs []input
	times  []time.Duration // of the last run, all microbatches together
}

// A port is a buffer for the value of a number.
type port struct{ buffer, value int }

// An input is one of the caller's, of which each microbatch has a part.
type input struct {
	buffer int
	name   string
	split  graph.Sharding
	part   *graph.Tensor
}

// A wire is what goes to another stage, as one message.
type wire struct {
	peer   int
	values []int
	bytes  []byte // where several are packed
}

// A place is a buffer of one of the stage's programs.
type place struct{ program, buffer int }

// A sum is a state that a program updates with each microbatch, and others read.
type sum struct {
	t  *graph.Tensor
	of place
	to []place
}

// A joint is a value of which each microbatch makes a part.
type joint struct {
	of    place
	t     *graph.Tensor
	split graph.Sharding
	to    []place
}

// A number is told to all stages.
type number struct {
	from int // the buffer in Norms of the stage that tells it
	to   int // that in Update of this stage, or -1
	t    *graph.Tensor
}

func newRunner(parts *Parts, rank int, g, row *group.Group, compile func(*lowering.Program) (lowering.Executable, error)) (*runner,
	error) {
	stage := rank / parts.each()
	r := &runner{parts: parts, stage: stage, place: rank % parts.each(), group: g, team: g.All(), row: row,
		places: map[string][]place{}, index: graph.NewTensor(graph.TypeOf(graph.I64)), told: make([][]number, len(parts.Stages)),
		mesh: parts.mesh(), micro: parts.mesh()[:1]}
	values := parts.values()
	number := make(map[string]int, len(values))
	for i, v := range values {
		number[v.name] = i
	}
	for range parts.Flight(stage) {
		slot := make([]*graph.Tensor, len(values))
		for i, v := range values {
			if v.stays(stage) {
				slot[i] = graph.NewTensor(v.typ)
			}
		}
		r.slots = append(r.slots, slot)
	}
	for i, v := range values {
		d := 0
		from, next := stage, stage+1
		if v.back {
			d, next = 1, stage-1
		}
		if v.crosses(from) {
			r.sends[d].peer, r.sends[d].values = next, append(r.sends[d].values, i)
		}
		if last := 2*stage - next; last >= 0 && last < len(parts.Stages) && v.crosses(last) {
			r.gets[d].peer, r.gets[d].values = last, append(r.gets[d].values, i)
		}
	}
	for d := range 2 {
		for _, w := range []*wire{&r.sends[d], &r.gets[d]} {
			if len(w.values) > 1 {
				n := 0
				for _, i := range w.values {
					n += len(r.slots[0][i].Bytes())
				}
				w.bytes = make([]byte, n)
			}
		}
	}
	for k, q := range parts.Stages[stage] {
		if q == nil {
			continue
		}
		s := &r.steps[k]
		s.p, s.times = q, make([]time.Duration, len(q.Launches))
		var err error
		if s.exe, err = compile(q); err != nil {
			return nil, errors.Join(err, r.close())
		}
	}
	if err := r.connect(number); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// connect finds where each buffer's value comes from.
func (r *runner) connect(values map[string]int) error {
	handed := r.parts.handed()
	for k := range programs {
		s := &r.steps[k]
		if s.exe == nil {
			continue
		}
		for i, b := range s.p.Buffers {
			v, isValue := values[b.Name]
			split, isSplit := r.parts.Split[b.Name]
			switch source := b.Role == lowering.Input || b.Role == lowering.Param || b.Role == lowering.State; {
			case !source:
			case b.Name == r.parts.Index && b.Role == lowering.Input:
				if err := s.exe.Bind(i, r.index); err != nil {
					return err
				}
			case handed[b.Name] && k < Norms && isValue:
				s.ins = append(s.ins, port{i, v})
			case handed[b.Name]: // a sum, a joint or a number, which follow
			case isSplit && k < Norms:
				s.inputs = append(s.inputs, input{i, b.Name, split, graph.NewTensor(b.Type)})
			default:
				r.places[b.Name] = append(r.places[b.Name], place{k, i})
			}
		}
		if k >= Norms {
			continue
		}
		for _, o := range s.p.Outputs {
			if v := values[o.Name]; r.slots[0][v] != nil {
				s.outs = append(s.outs, port{o.Buffer, v})
			}
			if to := r.readers(o.Name, lowering.Input); len(to) > 0 {
				j := joint{of: place{k, o.Buffer}, to: to, split: graph.Replicated}
				whole := r.steps[to[0].program].p.Buffers[to[0].buffer].Type
				axis := 0
				for d := range whole.Shape.Rank() {
					if whole.Shape.At(d) != s.p.Buffers[o.Buffer].Type.Shape.At(d) {
						axis = d
					}
				}
				j.split.Split[axis] = 1
				j.t = graph.NewTensor(whole)
				r.joints = append(r.joints, j)
			}
		}
		for _, u := range s.p.Updates {
			b := &s.p.Buffers[u.Target]
			t := sum{t: graph.NewTensor(b.Type), of: place{k, u.Target}, to: r.readers(b.Name, lowering.State)}
			if k == Before {
				r.early = append(r.early, t)
				continue
			}
			r.sums = append(r.sums, t)
		}
	}
	for from, stage := range r.parts.Stages {
		if q := stage[Norms]; q != nil {
			for _, o := range q.Outputs {
				if q.Buffers[o.Buffer].Type.Shape.Elems() != 1 {
					if from == r.stage {
						r.own = append(r.own, port{o.Buffer, buffer(r.steps[Update].p, o.Name, lowering.Input)})
					}
					continue
				}
				n := number{from: o.Buffer, to: -1, t: graph.NewTensor(q.Buffers[o.Buffer].Type)}
				if r.steps[Update].exe != nil {
					n.to = buffer(r.steps[Update].p, o.Name, lowering.Input)
				}
				r.told[from] = append(r.told[from], n)
			}
		}
	}
	return nil
}

// readers are the buffers of a name that programs read and do not update: of Norms and Update, and of sums in all but Before.
func (r *runner) readers(name string, role lowering.Role) (list []place) {
	for k := Forward; k < programs; k++ {
		if r.steps[k].exe != nil {
			if i := buffer(r.steps[k].p, name, role); i >= 0 && (k >= Norms || role == lowering.State && !updates(r.steps[k].p, i)) {
				list = append(list, place{k, i})
			}
		}
	}
	return list
}

func (r *runner) bind(at place, t *graph.Tensor) error {
	return r.steps[at.program].exe.Bind(at.buffer, t)
}

// microbatch runs a program on one of the microbatches.
func (r *runner) microbatch(k, i int, given map[string]*graph.Tensor) error {
	s := &r.steps[k]
	if s.exe == nil {
		return nil
	}
	defer r.record.spent(works[k], i+1, time.Now())
	fail := func(err error) error {
		return fmt.Errorf("stage %d, %s of microbatch %d: %w", r.stage+1, kinds[k], i+1, err)
	}
	r.index.SetInt(0, int64(i))
	slot := r.slots[i%len(r.slots)]
	for _, in := range s.inputs {
		whole := given[in.name]
		if whole == nil {
			return fmt.Errorf("input %q has no value", in.name)
		}
		if err := in.split.Take(r.mesh, whole, in.part, i*r.parts.each()+r.place); err != nil {
			return fail(err)
		}
		if err := s.exe.Bind(in.buffer, in.part); err != nil {
			return fail(err)
		}
	}
	for _, in := range s.ins {
		if err := s.exe.Bind(in.buffer, slot[in.value]); err != nil {
			return fail(err)
		}
	}
	for _, out := range s.outs {
		if _, err := s.exe.BindOutput(out.buffer, slot[out.value]); err != nil {
			return fail(err)
		}
	}
	if err := r.exec(k); err != nil {
		return fail(err)
	}
	for _, out := range s.outs {
		if t := s.exe.Output(out.buffer); t != slot[out.value] {
			slot[out.value].CopyFrom(t)
		}
	}
	for _, j := range r.joints {
		if j.of.program == k {
			if err := j.split.Join(r.micro, j.t, s.exe.Output(j.of.buffer), i); err != nil {
				return fail(err)
			}
		}
	}
	return nil
}

// once runs a program that follows the microbatches, if there is one.
func (r *runner) once(k int) error {
	if r.steps[k].exe != nil {
		defer r.record.spent(works[k], 0, time.Now())
	}
	if err := r.exec(k); err != nil {
		return fmt.Errorf("stage %d, %s: %w", r.stage+1, kinds[k], err)
	}
	return nil
}

// exec runs a program, if there is one.
func (r *runner) exec(k int) error {
	s := &r.steps[k]
	if s.exe == nil {
		return nil
	}
	if err := s.exe.Run(); err != nil {
		return err
	}
	for i, t := range s.exe.Times() {
		s.times[i] += t
	}
	return nil
}

// What a stage sends of the microbatch of a number, or receives; -1 for nothing.
type exchange struct{ sendForward, sendBackward, getForward, getBackward int }

var nothing = exchange{-1, -1, -1, -1}

// waits says what the exchange waits for, and the number of the microbatch that comes, or else goes.
func (e exchange) waits() (what trace.PipelineWork, microbatch int) {
	if e.sendForward >= 0 || e.getBackward >= 0 {
		return trace.WaitNext, cmp.Or(e.getBackward+1, e.sendForward+1)
	}
	return trace.WaitPrevious, cmp.Or(e.getForward+1, e.sendBackward+1)
}

// swap makes an exchange with the stages before and behind.
func (r *runner) swap(e exchange) error {
	start := time.Now()
	var sends, gets []group.Message
	each := func(w *wire, i int, f func(w *wire, slot []*graph.Tensor)) {
		if i >= 0 && len(w.values) > 0 {
			f(w, r.slots[i%len(r.slots)])
		}
	}
	message := func(w *wire, slot []*graph.Tensor) group.Message {
		if w.bytes == nil {
			return group.Message{Peer: w.peer, Bytes: slot[w.values[0]].Bytes()}
		}
		return group.Message{Peer: w.peer, Bytes: w.bytes}
	}
	send := func(w *wire, slot []*graph.Tensor) {
		at := 0
		for _, v := range w.values {
			if w.bytes != nil {
				at += copy(w.bytes[at:], slot[v].Bytes())
			}
		}
		sends = append(sends, message(w, slot))
	}
	get := func(w *wire, slot []*graph.Tensor) { gets = append(gets, message(w, slot)) }
	each(&r.sends[0], e.sendForward, send)
	each(&r.sends[1], e.sendBackward, send)
	each(&r.gets[0], e.getForward, get)
	each(&r.gets[1], e.getBackward, get)
	nonempty := func(m group.Message) bool { return len(m.Bytes) == 0 }
	sends, gets = slices.DeleteFunc(sends, nonempty), slices.DeleteFunc(gets, nonempty)
	if len(sends)+len(gets) == 0 {
		return nil
	}
	if err := r.group.Exchange(sends, gets); err != nil {
		return err
	}
	unpack := func(w *wire, slot []*graph.Tensor) {
		at := 0
		for _, v := range w.values {
			if w.bytes != nil {
				at += copy(slot[v].Bytes(), w.bytes[at:])
			}
		}
	}
	each(&r.gets[0], e.getForward, unpack)
	each(&r.gets[1], e.getBackward, unpack)
	what, microbatch := e.waits()
	r.record.spent(what, microbatch, start)
	return nil
}

// run computes all microbatches, and then what follows them. Given are the caller's values.
func (r *runner) run(given map[string]*graph.Tensor) error {
	r.record.begin()
	for k := range r.steps {
		clear(r.steps[k].times)
	}
	for _, s := range slices.Concat(r.early, r.sums) {
		clear(s.t.Bytes())
		if err := r.bind(s.of, s.t); err != nil {
			return err
		}
	}
	for i := range r.parts.Microbatches {
		if err := r.microbatch(Before, i, given); err != nil {
			return err
		}
	}
	if err := r.hand(r.early); err != nil {
		return err
	}
	if err := r.schedule(func(backward bool, i int) error {
		if backward {
			return r.microbatch(Backward, i, given)
		}
		return r.microbatch(Forward, i, given)
	}, r.swap); err != nil {
		return err
	}
	if err := r.hand(r.sums); err != nil {
		return err
	}
	for _, j := range r.joints {
		for _, to := range j.to {
			if err := r.bind(to, j.t); err != nil {
				return err
			}
		}
	}
	if err := r.once(Norms); err != nil {
		return err
	}
	for _, o := range r.own {
		if err := r.steps[Update].exe.Bind(o.value, r.steps[Norms].exe.Output(o.buffer)); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := r.tell(); err != nil {
		return err
	}
	r.record.meet(start)
	return r.once(Update)
}

// hand gives sums over microbatches to the programs that read them.
func (r *runner) hand(sums []sum) error {
	for _, s := range sums {
		for _, to := range s.to {
			from := r.steps[s.of.program].exe
			taken, err := r.steps[to.program].exe.TakeState(to.buffer, from, s.of.buffer)
			if err == nil && !taken {
				if err = from.Sync(s.of.buffer); err == nil {
					err = r.bind(to, s.t)
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// schedule runs the microbatches in the order 1F1B: as many forward passes as there are stages behind, then one forward and one
// backward pass in turn, and at last the backward passes that are left. Without a backward pass all are forward.
func (r *runner) schedule(pass func(backward bool, i int) error, swap func(exchange) error) error {
	m, ahead := r.parts.Microbatches, len(r.parts.Stages)-1-r.stage
	if !r.parts.trains() {
		ahead = m
	}
	ahead = min(ahead, m)
	get, send, none := nothing, nothing, nothing
	for i := range ahead {
		get.getForward, send.sendForward = i, i
		if err := first(swap(get), func() error { return pass(false, i) }, func() error { return swap(send) }); err != nil {
			return err
		}
	}
	if !r.parts.trains() {
		return nil
	}
	if get.getForward = ahead; ahead < m {
		if err := swap(get); err != nil {
			return err
		}
	}
	for i := ahead; i < m; i++ {
		j := i - ahead
		down, up := none, none
		down.sendForward, down.getBackward = i, j
		up.sendBackward = j
		if i+1 < m {
			up.getForward = i + 1
		}
		if err := first(pass(false, i), func() error { return swap(down) }, func() error { return pass(true, j) },
			func() error { return swap(up) }); err != nil {
			return err
		}
	}
	for j := m - ahead; j < m; j++ {
		down, up := none, none
		down.getBackward, up.sendBackward = j, j
		if err := first(swap(down), func() error { return pass(true, j) }, func() error { return swap(up) }); err != nil {
			return err
		}
	}
	return nil
}

// first is the first error; what follows it is not done.
func first(err error, next ...func() error) error {
	for _, f := range next {
		if err != nil {
			return err
		}
		err = f()
	}
	return err
}

// tell gives all stages the numbers of all, after which each of them has computed all microbatches: none changes state if another
// one has failed.
func (r *runner) tell() error {
	if r.row != nil { // all of the stage have come
		if err := r.row.All().Gather([]byte{1}, make([]byte, r.row.Size())); err != nil {
			return err
		}
	}
	size := func(list []number) int {
		n := 1 // that it has come
		for _, t := range list {
			n += len(t.t.Bytes())
		}
		return n
	}
	own := make([]byte, 0, size(r.told[r.stage]))
	for _, n := range r.told[r.stage] {
		n.t.CopyFrom(r.steps[Norms].exe.Output(n.from))
		own = append(own, n.t.Bytes()...)
	}
	own = append(own, 1)
	send, get := make([][]byte, len(r.told)), make([][]byte, len(r.told))
	for s := range r.told {
		send[s], get[s] = own, make([]byte, size(r.told[s]))
	}
	if err := r.team.Swap(send, get); err != nil {
		return err
	}
	for s, list := range r.told {
		at := 0
		for _, n := range list {
			at += copy(n.t.Bytes(), get[s][at:])
			if n.to >= 0 {
				if err := r.steps[Update].exe.Bind(n.to, n.t); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// rank is the participant's number among all.
func (r *runner) rank() int { return r.stage*r.parts.each() + r.place }

func (r *runner) close() error {
	var errs []error
	for k := range r.steps {
		if exe := r.steps[k].exe; exe != nil {
			errs = append(errs, exe.Close())
		}
	}
	return errors.Join(errs...)
}

var kinds = [programs]string{"before", "forward", "backward", "norms", "update"}

// works are what programs do, as the record has it.
var works = [programs]trace.PipelineWork{trace.StageSums, trace.StageForward, trace.StageBackward,
	trace.StageUpdate, trace.StageUpdate}
