package fusec

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/lowering"
	"fusec/lowering/participants"
	"fusec/passes"
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
func WithMesh(mesh string) CompileOption {
	return option(func(c *config) {
		c.compile = append(c.compile, "WithMesh")
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
	if n == 0 && len(l.Mesh) == 0 {
		if len(c.splits) > 0 || c.zero > 0 {
			return fail("WithSplit and WithZeRO are for a program on a mesh: give WithMesh, WithGroup or WithDevices")
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
		if len(c.splits) > 0 || c.zero > 0 || c.mesh != nil {
			return fail("the graph is what one participant computes: it is split already")
		}
		return l, nil
	}
	sources := g.SourcesByName()
	l.Split, l.ZeRO = map[string]graph.Sharding{}, c.zero
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
	fmt.Fprint(h, p.program.String())
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
	t, err := p.State(name)
	if err != nil {
		return nil, err
	}
	b := &p.program.Buffers[p.named[name]]
	if p.cfg.group == nil || b.Sharding.Over() == 0 {
		return t.Clone(), nil
	}
	g, m := p.cfg.group, p.program.Mesh
	whole := graph.NewTensor(b.Type.Reshaped(b.Sharding.Whole(m, b.Type.Shape)))
	all := make([]byte, len(t.Bytes())*g.Size())
	if err := g.All().Gather(t.Bytes(), all); err != nil {
		return nil, fmt.Errorf("joining %q: %w", name, err)
	}
	part := graph.NewTensor(t.Type)
	for r := range g.Size() {
		copy(part.Bytes(), all[r*len(part.Bytes()):])
		if err := b.Sharding.Join(m, whole, part, r); err != nil {
			return nil, err
		}
	}
	return whole, nil
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
	return p.program.Buffers[i].Sharding.Piece(p.program.Mesh, part, p.cfg.group.Rank()), nil
}

// abort tells the other participants of an error of this one, unless it came from them.
func (p *Program) abort(err error) {
	if err == nil || p.cfg.group == nil {
		return
	}
	var lost *group.LostError
	if !errors.As(err, &lost) {
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
	case run && c.participants() == 0 && c.mesh.Size() > 1:
		return fmt.Errorf("a program on the mesh %q runs in a group: give WithGroup or WithDevices", c.mesh)
	}
	return nil
}

// several makes a device of those that [WithDevices] names, which are all of one target.
func (c *config) several(t lowering.Target, s lowering.Setup) (lowering.Device, error) {
	numbers := make([]int, len(c.devices))
	for i, name := range c.devices {
		of, number, err := c.named(name)
		switch {
		case err != nil:
			return nil, err
		case of.Name != t.Name:
			return nil, fmt.Errorf("devices %q and %q are of different targets", c.devices[0], name)
		case t.Numbered && slices.Contains(numbers[:i], number):
			return nil, fmt.Errorf("device %q is given twice", name)
		}
		numbers[i] = number
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

// together is the executable of a program on several devices of this process; or nil.
func (p *Program) together() *participants.Executable {
	if o, ok := p.exe.(*lowering.Owned); ok {
		e, _ := o.Executable.(*participants.Executable)
		return e
	}
	return nil
}

// bound is the type of the values that are bound to a buffer.
func (p *Program) bound(buffer int) graph.Type {
	if e := p.together(); e != nil {
		return e.Whole(buffer)
	}
	return p.program.Buffers[buffer].Type
}
