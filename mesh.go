package fusec

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"strings"
	"time"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/kernels/group"
	"fusec/lowering"
	"fusec/lowering/participants"
	"fusec/lowering/pipeline"
	"fusec/passes"
	cut "fusec/passes/pipeline"
)

// A program for several participants. Each of them, a process or a goroutine, compiles the same graph with the same options,
// and runs the program in step with the others. The graph is of whole values; passes make of it what one participant
// computes, and put collective operations where participants need something of each other (docs/scale.md).

// WithGroup runs the program together with the other participants of a group; package [fusec/kernels/group] makes groups of
// goroutines, and its packages mpi and rendezvous those of processes. On target cuda each participant has a GPU of its own, which
// the target names: "cuda:1". The participants stand on the mesh of [WithMesh] or of the graph, and by default on a mesh with the
// one axis "data". If nothing says how inputs are split, each is split along its first axis over the first axis of the mesh, where
// it can be: every participant computes its part of a batch, and gradients are summed over all.
//
// [Program.Set] takes whole values, of which it keeps the participant's part, or parts. Outputs are whole on every participant.
// [Program.State] is the participant's part, and [Program.Whole] what all have together. On each participant and in each run
// on the same mesh the results are the same bits. An error of one participant ends the run of all.
//
// A machine of a Gorgonia graph is data parallel: each participant gives its inputs whole values, the same on all, and the weights
// of all change alike.
func WithGroup(g *group.Group) Option {
	return option(func(c *config) {
		if g == nil {
			c.fail("WithGroup: the group is nil")
		}
		c.group = g
	})
}

// maxDevices is the most that [WithDevices] takes: more than any machine has, for each takes memory.
const maxDevices = 256

// WithDevices runs the program on several devices in this process: on the GPUs "cuda:0" and "cuda:1", or with "cpu" and "cpu" on
// two shares of the processor's cores, which is for trying. Each is a participant as with [WithGroup], and everything that is
// said there of meshes and splits holds. The program is given whole values, and gives whole values, [Program.State] as well: to
// its caller it is that of one device. Reports of memory are of all devices, and times are those of the first.
//
// A machine's inputs are nodes without a value when it is made, and those of integers; others with a value count as weights, and
// are not split.
//
// A run that fails changes no state. After it a program on processors can be run again, and one on GPUs cannot. Code of the
// user's own, such as an operation that Gorgonia alone knows, is refused.
func WithDevices(names ...string) Option {
	return option(func(c *config) {
		if len(names) == 0 || len(names) > maxDevices {
			c.fail("WithDevices: %d devices, want 1 to %d", len(names), maxDevices)
			return
		}
		c.setDevices(names)
	})
}

// setDevices names the devices.
func (c *config) setDevices(names []string) {
	c.target, c.devices = names[0], nil
	if len(names) > 1 {
		c.devices = slices.Clone(names)
	}
}

// participants is how many there are; 0 for a program that runs alone.
func (c *config) participants() int {
	if c.group != nil {
		return c.group.Size()
	}
	return len(c.devices)
}

// WithMesh arranges participants on named axes, such as "data=2,tensor=4", in place of the graph's mesh. Ranks count row-major,
// the last axis fastest. Without [WithGroup] the program can be planned, not run.
func WithMesh(mesh string) Option {
	return option(func(c *config) {
		m, err := graph.ParseMesh(mesh)
		if err != nil {
			c.fail("WithMesh: %w", err)
		}
		c.mesh = m
	})
}

// WithSplit states how an input, parameter or state is laid over the mesh: for each of its axes the name of the axis of the mesh
// along which it is split into equal parts, "" for none, or several names joined by +. A weight [d, h] that is split ["",
// "tensor"] is tensor parallel by columns. Values of which nothing is stated are split as suits those that are.
func WithSplit(name string, axes ...string) CompileOption {
	return option(func(c *config) {
		c.compile = append(c.compile, "WithSplit")
		if c.splits == nil {
			c.splits = map[string][]string{}
		}
		if _, twice := c.splits[name]; twice {
			c.fail("WithSplit(%q) is given twice", name)
		}
		c.splits[name] = slices.Clone(axes)
	})
}

// WithZeRO splits what training keeps over the axes of the mesh along which inputs are split, where every participant would
// have the same (S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv
// 1910.02054): at stage 1 the optimiser's moments, at stage 2 gradients, too, and at stage 3 parameters as well, which are
// gathered where they are used. Gradients that make a split moment are reduce-scattered at stage 1 already.
func WithZeRO(stage int) CompileOption {
	return option(func(c *config) {
		c.compile = append(c.compile, "WithZeRO")
		if stage < 1 || stage > 3 {
			c.fail("WithZeRO(%d): want a stage from 1 to 3", stage)
		}
		c.zero = stage
	})
}

// WithRoundedGradients has participants exchange gradients of float32 in bfloat16, which is half as much, as PyTorch's
// bf16_compress_hook does: each rounds its own, and sums are rounded as well. A sum over p participants is off by at most p/256 of
// the sum of the absolute values of its terms. Gradients of fewer than 16,384 elements are exchanged as they are.
func WithRoundedGradients() CompileOption {
	return option(func(c *config) {
		c.compile = append(c.compile, "WithRoundedGradients")
		c.rounded = true
	})
}

// WithPipeline cuts the program into stages, one for each participant of [WithGroup] or [WithDevices], and a batch into
// microbatches: pipeline parallelism by the schedule 1F1B (D. Narayanan et al., "Efficient Large-Scale Language Model Training
// on GPU Clusters Using Megatron-LM", arXiv 2104.04473). A participant has the parameters, the optimiser's state and the work
// of its stage alone. The result is that of the whole batch, but for the order of sums. Ends names the values with which the
// stages but the last one end; without them, stages are cut where they take about equally long and little has to be sent.
//
// On a mesh whose first axis is "stage", such as "stage=2,data=4", the participants along the other axes share the work of each
// stage: each microbatch is divided among those along the axis "data", if there is one. [WithSplit] lays parameters
// over other axes, and [WithZeRO] splits moments, or parameters, over "data".
//
// Inputs are split along their first axis, where it is a multiple, or as [WithSplit] says for the axes of the mesh and the axis
// "microbatch". An error names what cannot be cut, such as a batch norm in training, which needs all microbatches at once.
//
// In a group, [Program.State] and [Program.Set] are for what the participant's own stage has, and [Program.Whole] brings what
// another one has. Of a machine in a group [Machine.Sync] brings all weights to all participants, and [Machine.State],
// [Machine.Weights], [Machine.Save] and what sets these do so as well: all participants call them.
func WithPipeline(microbatches int, ends ...string) Option {
	return option(func(c *config) {
		if microbatches < 2 || microbatches > graph.MaxParticipants {
			c.fail("WithPipeline(%d): want at least 2 microbatches, and at most %d", microbatches, graph.MaxParticipants)
		}
		c.microbatches, c.ends = microbatches, slices.Clone(ends)
	})
}

// stages is how many stages a pipeline has, and 0 without one.
func (c *config) stages(g *graph.Graph) (int, error) {
	switch n := c.participants(); {
	case c.microbatches == 0:
		return 0, nil
	case len(g.Mesh) > 0:
		return 0, fmt.Errorf("WithPipeline: the graph has the mesh %q of its own, and a pipeline is not on a mesh", g.Mesh)
	case c.zero > 0 && len(c.shared()) == 0:
		return 0, errors.New("WithPipeline and WithZeRO: a stage's parameters and moments are on one participant: give WithMesh of " +
			"several for each stage, such as \"stage=2,data=2\"")
	case c.watched():
		return 0, errors.New("WithPipeline: launches of a pipeline are not watched or compared: leave out WithWatchNonFinite, " +
			"WithShadow and WithReference")
	case len(c.mesh) > 1 && c.mesh[0].Name != "stage":
		return 0, fmt.Errorf("WithPipeline: the first axis of the mesh %q is not \"stage\", behind which are those along which "+
			"participants share the work of a stage", c.mesh)
	case len(c.mesh) == graph.MaxMeshAxes:
		return 0, fmt.Errorf("WithPipeline: a mesh of %d axes has none left for microbatches", len(c.mesh))
	case slices.ContainsFunc(c.mesh, func(a graph.MeshAxis) bool { return a.Name == graph.Microbatch }):
		return 0, fmt.Errorf("WithPipeline: the axis %q of the mesh %q stands for what WithPipeline is told", graph.Microbatch, c.mesh)
	case n > 0 && c.mesh != nil && c.mesh.Size() != n:
		return 0, fmt.Errorf("WithPipeline: the mesh %q is for %d participants, not for %d", c.mesh, c.mesh.Size(), n)
	case c.mesh != nil && c.mesh[0].Size >= 2:
		return c.mesh[0].Size, nil
	case c.mesh != nil || n < 2:
		return 0, errors.New("WithPipeline: a pipeline has at least 2 stages: give WithDevices or WithGroup of so many")
	default:
		return n, nil
	}
}

// shared are the axes along which the participants of a stage share its work.
func (c *config) shared() graph.Mesh {
	if len(c.mesh) > 1 {
		return c.mesh[1:]
	}
	return nil
}

// planPipeline is [request.plan] for a pipeline: passes up to those that split the batch run on the whole graph, and the
// others on the programs of the stages.
func (r *request) planPipeline(device *pipeline.Device, layout passes.Layout) (*trace.Trace, *lowering.Program, error) {
	cfg := &r.cfg
	n, err := cfg.stages(r.graph)
	if err != nil {
		return nil, nil, err
	}
	stop := "simplify-again"
	if cfg.disable[stop] {
		stop = "shard"
	}
	work, tr, err := passes.Run(r.graph, passes.Config{Target: device, Verify: cfg.verify, Gradients: r.gradients,
		Optimizer: cfg.optimizer, Steps: r.steps, Disable: cfg.disable, Precision: cfg.precision, Layout: layout, Stop: stop})
	if err != nil {
		return tr, nil, err
	}
	parts := &pipeline.Parts{Microbatches: cfg.microbatches, Mesh: cfg.shared(), Index: cut.Index, Split: map[string]graph.Sharding{}}
	for _, s := range work.Sources() {
		if _, input := s.Op.(graph.Input); input && s.Sharding.Over() != 0 {
			parts.Split[s.Name] = s.Sharding
		}
	}
	if len(parts.Split) == 0 {
		return tr, nil, fmt.Errorf("WithPipeline: no input can be split into %d microbatches%s: by default they are those whose first "+
			"axis is a multiple of it", cfg.microbatches, among(cfg.shared()))
	}
	stages, err := cut.Cut(work, n, cfg.ends)
	if err != nil {
		return tr, nil, fmt.Errorf("WithPipeline: %w", err)
	}
	drawn, err := cut.Join(work.Name, stages)
	if err != nil {
		return tr, nil, err
	}
	last := trace.Stage{Name: trace.Final, Doc: "the programs of the stages, as they run"}
	start := time.Now()
	opts := cfg.lowering(device)
	parts.Stages = make([][len(cut.Kinds)]*lowering.Program, n)
	for s := range stages {
		for k, g := range []**graph.Graph{&stages[s].Before, &stages[s].Forward, &stages[s].Backward, &stages[s].Norms,
			&stages[s].Update} {
			if *g == nil {
				continue
			}
			final, of, err := passes.Run(*g, passes.Config{Target: device, Verify: cfg.verify, Disable: cfg.disable, Budget: cfg.budget,
				Precision: cfg.precision})
			if err != nil {
				return tr, nil, fmt.Errorf("%s: %w", (*g).Name, err)
			}
			program, err := lowering.Lower(final, device.Name(), opts...)
			if err != nil {
				return tr, nil, err
			}
			device.Place(program)
			*g, parts.Stages[s][k] = final, program
			for _, stage := range of.Stages {
				if stage.Numeric.Weaker(last.Numeric) {
					last.Numeric = stage.Numeric
				}
			}
		}
	}
	merged, err := cut.Join(work.Name, stages)
	if err != nil {
		return tr, nil, err
	}
	program, err := device.Whole(parts)
	if err != nil {
		return tr, nil, fmt.Errorf("WithPipeline: %w", err)
	}
	program.Name = work.Name
	for i := range program.Launches {
		program.Launches[i].Node = merged.To[program.Launches[i].Node]
	}
	last.Graph, last.Took, last.Pipeline = merged.Graph, time.Since(start), cfg.drawn(parts, stages, merged)
	staged := cfg.drawn(parts, stages, drawn)
	tr.Stages = append(tr.Stages, trace.Stage{Name: "pipeline", Doc: "the stages of the pipeline, each with programs of its own",
		Graph: drawn.Graph, Notes: notesOf(staged), Pipeline: staged}, last)
	device.Describe(tr, program)
	tr.Program = program.Trace()
	return tr, program, nil
}

// among says over what else than microbatches inputs are split.
func among(m graph.Mesh) string {
	for _, a := range m {
		if a.Name == "data" {
			return fmt.Sprintf(" on each of %d participants", a.Size)
		}
	}
	return ""
}

// drawn is what records of a compilation tell of the stages.
func (c *config) drawn(parts *pipeline.Parts, stages []cut.Stage, joined *cut.Joined) *trace.Pipeline {
	p, each := &trace.Pipeline{Microbatches: parts.Microbatches, At: joined.At}, c.shared().Size()
	for s := range stages {
		st := trace.PipelineStage{Ends: stages[s].Ends, Flight: parts.Flight(s), Sent: parts.Sent(s), Kept: parts.Kept(s)}
		switch {
		case len(c.devices) > 0:
			st.Devices = c.devices[s*each:][:each]
		case c.group != nil:
			for i := range each {
				st.Devices = append(st.Devices, fmt.Sprintf("participant %d", s*each+i))
			}
		}
		p.Stages = append(p.Stages, st)
	}
	return p
}

// notesOf tells what the stages keep and send.
func notesOf(p *trace.Pipeline) []trace.Note {
	note := func(format string, args ...any) trace.Note {
		return trace.Note{Node: -1, Text: fmt.Sprintf(format, args...)}
	}
	list := []trace.Note{note("%d stages, %d microbatches: each participant waits for %.0f %% of a step, if stages take equally long",
		len(p.Stages), p.Microbatches, 100*p.Bubble())}
	for i, s := range p.Stages {
		list = append(list, note("stage %d sends %d bytes of each microbatch, and keeps %d bytes of each of %d in work", i+1, s.Sent,
			s.Kept, s.Flight))
	}
	return list
}

// meshed says how the graph is laid over participants. It is zero for one that runs alone.
func (c *config) meshed(g *graph.Graph) (l passes.Layout, err error) {
	fail := func(format string, args ...any) (passes.Layout, error) {
		return passes.Layout{}, fmt.Errorf(format, args...)
	}
	l.Mesh = g.Mesh
	if c.mesh != nil {
		l.Mesh = c.mesh
	}
	n := c.participants()
	if stages, err := c.stages(g); err != nil {
		return fail("%w", err)
	} else if stages > 0 {
		l.Mesh, n = append(graph.Mesh{{Name: graph.Microbatch, Size: c.microbatches}}, c.shared()...), 0
	}
	if n == 0 && len(l.Mesh) == 0 {
		if len(c.splits) > 0 || c.zero > 0 || c.rounded {
			return fail("WithSplit, WithZeRO and WithRoundedGradients are for a program on a mesh: give WithMesh, WithGroup or WithDevices")
		}
		return l, nil
	}
	if len(l.Mesh) == 0 {
		l.Mesh = graph.Mesh{{Name: "data", Size: n}}
	}
	if n > 0 && l.Mesh.Size() != n {
		what := "the group"
		if c.group == nil {
			what = "WithDevices"
		}
		return fail("the mesh %q has %d participants, and %s %d", l.Mesh, l.Mesh.Size(), what, n)
	}
	if g.Parts {
		if len(c.splits) > 0 || c.zero > 0 || c.rounded || c.mesh != nil {
			return fail("the graph is what one participant computes: it is split already")
		}
		return l, nil
	}
	sources := g.SourcesByName()
	l.Split, l.ZeRO, l.Rounded = map[string]graph.Sharding{}, c.zero, c.rounded
	stated := false
	for _, n := range sources {
		if _, input := n.Op.(graph.Input); n.Sharding.Given && c.mesh == nil {
			l.Split[n.Name] = n.Sharding
			stated = stated || input
		}
	}
	for name, axes := range c.splits {
		n := sources[name]
		if n == nil {
			return fail("WithSplit(%q): the graph has no input, parameter or state of this name", name)
		}
		s, err := l.Mesh.SplitAlong(axes...)
		if err == nil && len(axes) != n.Type.Shape.Rank() {
			err = fmt.Errorf("%d axes for a value of type %v", len(axes), n.Type)
		}
		if err == nil {
			err = s.Check(l.Mesh, n.Type.Shape)
		}
		if err != nil {
			return fail("WithSplit(%q): %w", name, err)
		}
		l.Split[name] = s
		_, input := n.Op.(graph.Input)
		stated = stated || input
	}
	if stated {
		return l, nil
	}
	for _, n := range sources {
		if _, input := n.Op.(graph.Input); !input || n.Type.Shape.Rank() == 0 {
			continue
		}
		s := graph.Replicated
		s.Split[0] = 1
		for a, axis := range c.shared() {
			if c.microbatches > 0 && axis.Name == "data" {
				s.Split[0] |= 2 << a
			}
		}
		if n.Type.Shape.At(0) > 0 && s.Check(l.Mesh, n.Type.Shape) == nil {
			l.Split[n.Name] = s
		}
	}
	return l, nil
}

// agree makes sure that all participants have compiled the same program.
func (p *Program) agree() error {
	g := p.cfg.group
	if g == nil {
		return nil
	}
	h := fnv.New64a()
	if e := p.pipeline(); e != nil {
		fmt.Fprint(h, e.Parts())
	} else {
		fmt.Fprint(h, p.program.String())
	}
	mine := h.Sum(nil)
	all := make([]byte, len(mine)*g.Size())
	if err := g.All().Gather(mine, all); err != nil {
		return fmt.Errorf("comparing the participants' programs: %w", err)
	}
	for r := range g.Size() {
		if !slices.Equal(all[r*len(mine):][:len(mine)], mine) {
			return fmt.Errorf("participant %d has compiled another program than participant %d: all need the same graph and options",
				r, g.Rank())
		}
	}
	return nil
}

// part is what this participant keeps of a value that is given for a buffer. Of an input it is in memory that the next value gets.
func (p *Program) part(buffer int, t *graph.Tensor) (*graph.Tensor, error) {
	b := &p.program.Buffers[buffer]
	if p.cfg.group == nil || t.Type == b.Type || b.Sharding.Over() == 0 {
		return t, nil
	}
	whole := b.Type.Reshaped(b.Sharding.Whole(p.program.Mesh, b.Type.Shape))
	if t.Type != whole {
		return nil, fmt.Errorf("%s %q is %v, of which this participant has %v; it was given a value of type %v",
			b.Role, b.Name, whole, b.Type, t.Type)
	}
	if b.Role != lowering.Input {
		return b.Sharding.Part(p.program.Mesh, t, p.cfg.group.Rank())
	}
	part := p.parts[buffer]
	if part == nil {
		if p.parts == nil {
			p.parts = map[int]*graph.Tensor{}
		}
		part = graph.NewTensor(b.Type)
		p.parts[buffer] = part
	}
	return part, b.Sharding.Take(p.program.Mesh, t, part, p.cfg.group.Rank())
}

// Whole is the present value of a state, or of a parameter that the graph updates, with the parts of all participants, who
// all call it. The tensor is the caller's. In a program that runs alone, or by [WithDevices], it is a copy of [Program.State].
func (p *Program) Whole(name string) (*graph.Tensor, error) {
	if e := p.pipeline(); e != nil && p.cfg.group != nil {
		return e.Whole(name)
	}
	t, err := p.State(name)
	if err != nil {
		return nil, err
	}
	b := &p.program.Buffers[p.named[name]]
	if p.cfg.group == nil || b.Sharding.Over() == 0 {
		return t.Clone(), nil
	}
	if t, err = p.cfg.group.All().Whole(p.program.Mesh, b.Sharding, t); err != nil {
		return nil, fmt.Errorf("joining %q: %w", name, err)
	}
	return t, nil
}

// Piece says where this participant's part of a parameter or state lies in the whole value, so that a checkpoint of several
// participants can be written and read: package [fusec/graph/checkpoint]. The part is what [Program.State] gives; nil makes one of
// zeros, which can be filled and given to [Program.Set]. In a program that runs alone, or by [WithDevices], it is the whole value.
func (p *Program) Piece(name string, part *graph.Tensor) (graph.Piece, error) {
	i, ok := p.named[name]
	if !ok || p.program.Buffers[i].Role == lowering.Input {
		return graph.Piece{}, fmt.Errorf("the program has no parameter or state %q", name)
	}
	t := p.bound(i)
	switch {
	case part == nil:
		part = graph.NewTensor(t)
	case part.Type != t:
		return graph.Piece{}, fmt.Errorf("this participant has a part of %q of type %v, not %v", name, t, part.Type)
	}
	if p.cfg.group == nil {
		return graph.Piece{Tensor: part, Whole: t.Shape, Copies: 1}, nil
	}
	if p.pipeline() != nil {
		return graph.Piece{}, fmt.Errorf("%q is not in pieces: each stage of a pipeline has its own values, which Program.Whole brings",
			name)
	}
	return p.program.Buffers[i].Sharding.Piece(p.program.Mesh, part, p.cfg.group.Rank()), nil
}

// abort tells the other participants of an error of this one, unless it came from them.
func (p *Program) abort(err error) {
	if err != nil && p.cfg.group != nil && !group.IsLost(err) {
		p.cfg.group.Abort(err)
	}
}

// groupTarget refuses a group, or a mesh that would need one, where programs run alone.
func (c *config) groupTarget(t lowering.Target, run bool) error {
	switch {
	case c.participants() > 0 && !t.Groups:
		var grouped []string
		for _, t := range targets {
			if t.Groups {
				grouped = append(grouped, t.Name)
			}
		}
		return fmt.Errorf("target %q runs programs alone: WithGroup and WithDevices are for targets %s", t.Name,
			strings.Join(grouped, " and "))
	case c.group != nil && len(c.devices) > 0:
		return errors.New("WithGroup and WithDevices are both given: each participant of a group has one device")
	case len(c.devices) > 0 && (c.compare || c.shadow > 0):
		return errors.New("WithReference and WithShadow compare programs that run alone: leave out the other devices")
	case c.microbatches > 0 && t.Groups:
		if run && c.participants() == 0 {
			return errors.New("WithPipeline: a pipeline has at least 2 stages: give WithDevices or WithGroup of so many")
		}
	case run && c.participants() == 0 && c.mesh.Size() > 1:
		return fmt.Errorf("a program on the mesh %q runs in a group: give WithGroup or WithDevices", c.mesh)
	}
	return nil
}

// several makes a device of those that [WithDevices] names.
func (c *config) several(t lowering.Target, s lowering.Setup) (lowering.Device, error) {
	numbers, err := c.numbers(t)
	if err != nil {
		return nil, err
	}
	s.Workers = max(1, cmp.Or(s.Workers, runtime.GOMAXPROCS(0))/len(numbers))
	if !s.Run {
		return t.Open(s)
	}
	return participants.Open(len(numbers), t.InPlace, func(i int, g *group.Group) (lowering.Device, error) {
		one := s
		one.Group, one.Name, one.Number = g, c.devices[i], numbers[i]
		return t.Open(one)
	})
}

// staged makes a device of those of the stages of a pipeline, or of this participant's. Their programs exchange
// something with those of the same stage alone.
func (c *config) staged(t lowering.Target, s lowering.Setup) (lowering.Device, error) {
	numbers, err := c.numbers(t)
	if err != nil {
		return nil, err
	}
	s.Group, s.Workers = nil, max(1, cmp.Or(s.Workers, runtime.GOMAXPROCS(0))/max(1, len(numbers)))
	if !s.Run || len(numbers) == 0 {
		return pipeline.Join(c.group, c.shared().Size(), t.InPlace, func(of *group.Group) (lowering.Device, error) {
			s.Group = of
			return t.Open(s)
		})
	}
	return pipeline.Open(len(numbers), c.shared().Size(), t.InPlace, func(i int, of *group.Group) (lowering.Device, error) {
		one := s
		one.Group = of
		one.Name, one.Number = c.devices[i], numbers[i]
		return t.Open(one)
	})
}

// numbers are those of the devices that [WithDevices] names, which are all of one target.
func (c *config) numbers(t lowering.Target) ([]int, error) {
	numbers := make([]int, len(c.devices))
	for i, name := range c.devices {
		of, number, err := c.named(name)
		switch {
		case err != nil:
			return nil, err
		case of.Name != t.Name:
			return nil, fmt.Errorf("devices %q and %q are of different targets", c.devices[0], name)
		case t.Device != "" && slices.Contains(numbers[:i], number):
			return nil, fmt.Errorf("device %q is given twice", name)
		}
		numbers[i] = number
	}
	return numbers, nil
}

// together is the executable of a program on several devices of this process; or nil.
func (p *Program) together() *participants.Executable {
	e, _ := lowering.Unowned(p.exe).(*participants.Executable)
	return e
}

// pipeline is the executable of a pipeline; or nil.
func (p *Program) pipeline() *pipeline.Executable {
	e, _ := lowering.Unowned(p.exe).(*pipeline.Executable)
	return e
}

// bound is the type of the values that are bound to a buffer.
func (p *Program) bound(buffer int) graph.Type {
	if e := p.together(); e != nil {
		return e.Whole(buffer)
	}
	return p.program.Buffers[buffer].Type
}

// PipelineRun is how the steps of a pipeline went, on the first participant of each stage: what it computed, and what it waited
// for. Times are means over all runs but the first, and spans those of the last run. It is nil for other programs, and before the
// first run. All participants of a group call it; those behind the first of a stage are told of those at their own place.
func (p *Program) PipelineRun() (*trace.PipelineRun, error) {
	e := p.pipeline()
	if e == nil {
		return nil, nil
	}
	return e.Measured()
}
