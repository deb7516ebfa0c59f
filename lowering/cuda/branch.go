package cuda

import (
	"errors"
	"slices"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cuda/driver"
)

// The graph of a run has branches beside its main one: launches whose results are not needed for a while, such as the products that
// make the gradients of weights, and the last steps of launches, which add the parts of sums over columns. They are recorded on
// streams of their own, and wait only for what they depend on, so that the GPU runs them where the main branch leaves room. Who
// depends on whom follows from the memory that launches read and write. Only programs that train have branches.

const (
	// DefaultBranches is the number of branches beside the main one.
	DefaultBranches = 3
	// soon is how many launches of the main branch must not use the results of a launch for it to be in another.
	soon = 2
	// keptFor is for how many launches the operands of launches that may be in a branch keep their memory.
	keptFor = 8
	// private is how many bytes of scratch memory launches with steps in several branches have to themselves in all, or where that is
	// more, the memory of the temporary values divided by privatePart.
	private, privatePart = 64 << 20, 16
	// window is how many tasks before a task are compared with it, one by one. It waits for all that are earlier than these.
	window = 256
)

// Branches gives the graph of a training step so many branches beside its main one. With 0 launches run one after another.
func Branches(n int) Option { return func(d *Device) { d.branches = n } }

// Lowering implements lowering.Device: attention writes values that are joined where they stand in the result, and in programs
// with branches, launches come early and the operands of those that may be in a branch keep their memory for a while.
func (d *Device) Lowering() []lowering.Option {
	list := []lowering.Option{lowering.Strides(d.strided)}
	if d.branching() > 0 {
		list = append(list, lowering.Beside(keptFor))
	}
	return list
}

// strided reports whether a launch reads and writes operands with these strides as fast as contiguous ones: attention does, as far
// as it is made of the same steps.
func (d *Device) strided(op graph.Op, args, results []graph.Operand) bool {
	f, ok := op.(graph.Fusion)
	if !ok || f.Anchor != graph.AnchorAttention {
		return false
	}
	entries := func(args, results []graph.Operand) (list []string) {
		k, err := d.generate(op, args, results, d.cfg)
		if err != nil {
			return nil
		}
		for _, s := range k.Steps {
			list = append(list, s.Entry)
		}
		return list
	}
	contiguous := func(list []graph.Operand) (o []graph.Operand) {
		for _, v := range list {
			o = append(o, graph.Operand{DType: v.DType, Layout: graph.Contiguous(v.Layout.Shape)})
		}
		return o
	}
	got := entries(args, results)
	return got != nil && slices.Equal(got, entries(contiguous(args), contiguous(results)))
}

// branching is how many branches programs have. Exchanges run beside launches by themselves.
func (d *Device) branching() int {
	if d.each || d.group != nil {
		return 0
	}
	return d.branches
}

// A task is a launch, or some of its steps, in a branch.
type task struct {
	launch        int
	steps         []int
	branch        int // 0 is the main one
	reads, writes []lowering.View
	waits         []int        // for tasks of other branches
	ended         driver.Event // if another task waits for it
}

// A schedule is the tasks of the parts that are recorded.
type schedule struct {
	parts    [][]task // by part
	branch   []int    // by launch: where it runs
	apart    []bool   // by launch: some steps run elsewhere, and the scratch memory is not shared with other launches
	branches int      // beside the main one
	streams  []driver.Stream
	begun    driver.Event   // a part
	ended    []driver.Event // its branches

	next int   // how many tasks are in branches, which take turns
	left int64 // of the memory that launches have to themselves
}

// newSchedule plans the branches of a program; nil if there are none.
func newSchedule(p *lowering.Program, parts []part, list []*kernels.Kernel, branches int) *schedule {
	n := len(p.Launches)
	s := &schedule{parts: make([][]task, len(parts)), branch: make([]int, n), apart: make([]bool, n), branches: branches,
		left: max(private, p.RunningBytes/privatePart)}
	update, mixtures := firstUpdate(p), mixturesOf(p)
	if update < 0 {
		update = n
	}
	for k, t := range parts {
		if !t.host && branches > 0 && p.Trains() {
			s.parts[k] = s.tasks(p, t, list, mixtures, update)
			planWaits(p, s.parts[k], branches, update)
		}
	}
	if s.next == 0 {
		return nil
	}
	return s
}

// beside is the next branch.
func (s *schedule) beside() int {
	s.next++
	return 1 + s.next%s.branches
}

// split reports whether a launch may have steps in several branches, and takes the scratch memory for that.
func (s *schedule) split(i int, k *kernels.Kernel) bool {
	if !s.apart[i] {
		if k.Scratch > s.left {
			return false
		}
		s.left -= k.Scratch
		s.apart[i] = true
	}
	return true
}

// tasks makes the tasks of a part.
func (s *schedule) tasks(p *lowering.Program, t part, list []*kernels.Kernel, mixtures []int, update int) (tasks []task) {
	few := min(t.to, update) - 2 // launches from there on have hardly anything beside them
	whole := make([]bool, t.to-t.from)
	for i := few - 1; i >= t.from; i-- {
		whole[i-t.from] = mayBranch(p, i, p.Launches[i].Results, whole, t.from)
	}
	for i := t.from; i < t.to; i++ {
		l, k := &p.Launches[i], list[i]
		main := task{launch: i, reads: l.Args, writes: l.Results}
		if m := mixtures[i]; m >= 0 { // which has written hidden values
			main.reads = slices.Concat(l.Args, p.Launches[m].Results)
		}
		for j := range k.Steps {
			main.steps = append(main.steps, j)
		}
		n := len(main.steps)
		switch made := lastMade(l, k); {
		case whole[i-t.from]:
			main.branch = s.beside()
			s.branch[i] = main.branch
		case n > 2 && k.Steps[len(k.Steps)-1].Beside && s.split(i, k): // the last two run beside each other, after the others
			before, one := main, main
			before.steps, one.steps, one.waits = main.steps[:n-2], main.steps[n-2:n-1], nil
			main.steps, main.branch, main.waits = main.steps[n-1:], s.beside(), []int{len(tasks)}
			tasks = append(tasks, before, one)
		case n > 1 && made != nil && i < few && mayBranch(p, i, made, whole, t.from) && s.split(i, k):
			others := main
			others.steps = main.steps[:n-1]
			others.writes = slices.DeleteFunc(slices.Clone(l.Results), func(v lowering.View) bool { return slices.Contains(made, v) })
			main = task{launch: i, steps: main.steps[n-1:], branch: s.beside(), writes: made, waits: []int{len(tasks)}}
			tasks = append(tasks, others)
		}
		tasks = append(tasks, main)
	}
	return tasks
}

// lastMade is the results that the last step makes by itself; nil if there is no such step.
func lastMade(l *lowering.Launch, k *kernels.Kernel) (made []lowering.View) {
	for _, r := range k.Last {
		made = append(made, l.Results[r])
	}
	return made
}

// mayBranch reports whether what makes some results of a launch may run beside the launches that follow: they are temporary values
// or outputs, and the next few launches of the main branch do not use them. Whole are the launches of other branches, from launch
// `from` on.
func mayBranch(p *lowering.Program, i int, made []lowering.View, whole []bool, from int) bool {
	for _, v := range made {
		if r := p.Buffers[v.Buffer].Role; r != lowering.Temp && r != lowering.Output {
			return false
		}
	}
	uses := func(views []lowering.View) bool {
		return slices.ContainsFunc(views, func(v lowering.View) bool {
			return slices.ContainsFunc(made, func(m lowering.View) bool { return m.Buffer == v.Buffer })
		})
	}
	for j, left := i+1, soon; j < from+len(whole) && left > 0; j++ {
		if whole[j-from] {
			continue
		}
		if l := &p.Launches[j]; uses(l.Args) || uses(l.Results) {
			return false
		}
		left--
	}
	return true
}

// planWaits finds for which tasks of other branches each has to wait: for the last one of each branch on which it depends, unless
// an earlier task of its own branch has waited for that. Those of its own launch it names itself. The launch of the first update
// waits for all, as reports are collected before it.
func planWaits(p *lowering.Program, tasks []task, branches, update int) {
	known := make([][]int, branches+1) // by branch: the last task of each other that has been waited for
	old := make([]int, branches+1)     // the last task of each before the window
	for b := range known {
		known[b] = slices.Repeat([]int{-1}, branches+1)
		old[b] = -1
	}
	for i := range tasks {
		t := &tasks[i]
		if i > window {
			old[tasks[i-window-1].branch] = i - window - 1
		}
		need := slices.Clone(old)
		for _, j := range t.waits {
			need[tasks[j].branch] = max(need[tasks[j].branch], j)
		}
		t.waits = nil
		for j := i - 1; j >= max(0, i-window); j-- {
			u := &tasks[j]
			b := u.branch
			if b == t.branch || j <= max(known[t.branch][b], need[b]) {
				continue
			}
			if t.launch == update || u.launch != t.launch && depends(p, t, u) {
				need[b] = j
			}
		}
		for b, j := range need {
			if b != t.branch && j > known[t.branch][b] {
				t.waits = append(t.waits, j)
				known[t.branch][b] = j
			}
		}
	}
}

// depends reports whether a task has to wait for an earlier one.
func depends(p *lowering.Program, later, earlier *task) bool {
	return overlap(p, later.reads, earlier.writes) || overlap(p, later.writes, earlier.writes) ||
		overlap(p, later.writes, earlier.reads)
}

// open makes the streams of the branches, and the events.
func (s *schedule) open(gpu driver.GPU) (err error) {
	s.streams, s.ended = make([]driver.Stream, s.branches), make([]driver.Event, s.branches)
	events := []*driver.Event{&s.begun}
	for b := range s.streams {
		if s.streams[b], err = gpu.NewStream(); err != nil {
			return err
		}
		events = append(events, &s.ended[b])
	}
	for _, tasks := range s.parts {
		for _, t := range tasks {
			for _, j := range t.waits {
				events = append(events, &tasks[j].ended)
			}
		}
	}
	for _, v := range events {
		if *v == nil {
			if *v, err = gpu.NewEvent(); err != nil {
				return err
			}
		}
	}
	return nil
}

// close releases them.
func (s *schedule) close() error {
	var errs []error
	events := append(s.ended, s.begun)
	for _, tasks := range s.parts {
		for _, t := range tasks {
			events = append(events, t.ended)
		}
	}
	for _, v := range events {
		if v != nil {
			errs = append(errs, v.Close())
		}
	}
	for _, on := range s.streams {
		if on != nil {
			errs = append(errs, on.Close())
		}
	}
	return errors.Join(errs...)
}

// queueBranches queues part i on the streams of its branches.
func (e *executable) queueBranches(i int) error {
	s := e.schedule
	forked := make([]bool, len(s.streams))
	if err := e.stream.Record(s.begun); err != nil {
		return err
	}
	for k := range s.parts[i] {
		t := &s.parts[i][k]
		if err := e.queueTask(t, s.parts[i], forked); err != nil {
			return e.inLaunch(t.launch, err)
		}
	}
	for b, has := range forked {
		if has {
			if err := errors.Join(s.streams[b].Record(s.ended[b]), e.stream.Wait(s.ended[b])); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *executable) queueTask(t *task, tasks []task, forked []bool) error {
	on := e.stream
	if t.branch > 0 {
		on = e.schedule.streams[t.branch-1]
		if !forked[t.branch-1] && len(t.waits) == 0 {
			if err := on.Wait(e.schedule.begun); err != nil {
				return err
			}
		}
		forked[t.branch-1] = true
	}
	for _, j := range t.waits {
		if err := on.Wait(tasks[j].ended); err != nil {
			return err
		}
	}
	if t.launch == e.update {
		if err := e.queue(&e.collect); err != nil {
			return err
		}
	}
	for _, j := range t.steps {
		if err := queue(on, e.launches[t.launch].steps[j:j+1], nil); err != nil {
			return err
		}
	}
	if t.ended == nil {
		return nil
	}
	return on.Record(t.ended)
}
