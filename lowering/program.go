package lowering

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/trace"
)

// Program is a lowered graph, as plain data.
type Program struct {
	Name     string
	Target   string
	Buffers  []Buffer
	Launches []Launch
	Outputs  []Binding
	// Mesh is that of the participants that run the program together; empty for one that runs alone.
	Mesh    graph.Mesh
	Updates []Update
	// Frozen says that parameters without an update change only through [Executable.Bind].
	Frozen bool
	// Frugal says that memory counts more than time.
	Frugal bool
	// Prepared is the number of launches of the prepared part, which come first: they depend on constants and, if Frozen
	// is set, on parameters without an update, and nothing else. They run before the first run, and again before the first
	// run after one of these parameters was bound. Their results that the other launches read are Prepared buffers. What
	// is an output, or the value of an update, is made in each run.
	Prepared int
	// ArenaBytes is the size of the arena for temporary buffers; BufferBytes is the sum of their sizes.
	ArenaBytes, BufferBytes int64
	// RunningBytes is the part of the arena, from its start, that the launches after the prepared part use; PreparingBytes
	// is that of the temporary buffers of the prepared part, which nothing else reads.
	RunningBytes, PreparingBytes int64
	// PreparedBytes is the size of the Prepared buffers together.
	PreparedBytes int64
	// ScratchBytes is what kernels use besides, as far as [Device.Place] knows it.
	ScratchBytes int64
	// Stages are those of a pipeline, whose launches follow one another; none for other programs.
	Stages       []Stage
	Microbatches int // of a pipeline
	// Refusal is why the target cannot run the program, as [Device.Place] finds it; empty if it can.
	Refusal string
}

// A Stage is what one participant of a pipeline computes.
type Stage struct {
	Launches int // how many are its
	Each     int // how many of them, the first ones, run for each microbatch
	// Sent is what it sends to other stages for each microbatch, and Memory what its participant keeps: parameters, state, values of
	// the programs, and those of microbatches in work, which on a device are in the host's memory. Both are in bytes.
	Sent, Memory int64
}

// Role gives the owner and the lifetime of a buffer.
type Role uint8

// The roles.
const (
	Input    Role = iota // bound for each run
	Param                // bound by the owner of the weights
	State                // kept between runs
	Const                // part of the program
	Temp                 // in the arena, between its first and last launch
	Output               // returned after a run
	Prepared             // made by the prepared part, and kept
)

var roles = [...]string{"input", "param", "state", "const", "temp", "output", "prepared"}

// String gives the role's name.
func (r Role) String() string { return roles[r] }

// Buffer is memory for one contiguous value.
type Buffer struct {
	Name  string // of the source or output; of a Temp the node's, for readers
	Role  Role
	Type  graph.Type
	Value *graph.Tensor // of a Const
	// Sharding says of an Input, Param or State how the whole value, of which this is a part, is laid over the mesh.
	Sharding graph.Sharding
	Offset   int64 // of a Temp, in the arena; of a Prepared, among the Prepared buffers
	// First and Last are the first launch that writes the buffer, and the last one that uses it. A Temp holds its value
	// between them.
	First, Last int
}

// View is a value in a buffer with a layout.
type View struct {
	Buffer int
	DType  graph.DType
	Layout graph.Layout
}

// Launch computes one operation.
type Launch struct {
	Op      graph.Op
	Node    *graph.Node // of the lowered graph
	Args    []View
	Results []View
	FLOPs   int64
	Bytes   int64 // of the buffers read and written, each part once
	// Ahead is the number, from 1 on, of the bucket of gathers that begin together before they are needed; 0 for all others.
	Ahead int
	// Device is the device of the launch if it is not the program's target, and Reason why it does not run on the
	// target.
	Device, Reason string
	// Company is with which launch it runs, where the target has launches run at the same time.
	trace.Company
	// Way is how the device computes the launch, where a measurement of fusec tune says so.
	Way string
	// Source is the generated source of the launch, on targets that have it.
	Source string
	// Estimates are what the target estimates of the launch.
	Estimates trace.Measures
}

// Operands describes the launch for kernels: its arguments, and its results with the arguments that they overwrite.
func (l *Launch) Operands() (args, results []graph.Operand) {
	_, joins := l.Op.(graph.Concat)
	for _, v := range l.Args {
		within := joins && v.Buffer == l.Results[0].Buffer
		args = append(args, graph.Operand{DType: v.DType, Layout: v.Layout, Within: within})
	}
	for _, v := range l.Results {
		over := 1 + slices.IndexFunc(l.Args, func(a View) bool { return a.Buffer == v.Buffer && a.Layout == v.Layout })
		results = append(results, graph.Operand{DType: v.DType, Layout: v.Layout, Over: over})
	}
	return args, results
}

// Binding is a buffer with its name.
type Binding struct {
	Name   string
	Buffer int
}

// Update copies the value in buffer Value to the State or Param in buffer Target when a run has succeeded. If both are
// the same buffer, launches write the value in place. Elementwise fusions among them come last, cannot fail, and read
// an element only to compute its new value. Writes of an UpdateSlice are undone if the run fails.
type Update struct{ Target, Value int }

// Sources lists the buffers of a role with their names.
func (p *Program) Sources(r Role) []Binding {
	var s []Binding
	for i, b := range p.Buffers {
		if b.Role == r {
			s = append(s, Binding{b.Name, i})
		}
	}
	return s
}

// MayBind refuses a tensor that cannot be bound to a buffer.
func (p *Program) MayBind(buffer int, t *graph.Tensor) error {
	b := &p.Buffers[buffer]
	switch {
	case t == nil:
		return fmt.Errorf("%s %q was given no value", b.Role, b.Name)
	case t.Type != b.Type:
		return fmt.Errorf("%s %q is %v; it was given a value of type %v", b.Role, b.Name, b.Type, t.Type)
	case b.Role != Input && b.Role != Param && b.Role != State:
		return fmt.Errorf("buffer %q cannot be bound: its role is %s", b.Name, b.Role)
	}
	return nil
}

// Trace describes the program for reports and drawings.
func (p *Program) Trace() *trace.Program {
	t := &trace.Program{Target: p.Target, Refusal: p.Refusal, ArenaBytes: p.ArenaBytes, BufferBytes: p.BufferBytes,
		PreparedBytes: p.PreparedBytes, Buffers: make([]trace.Buffer, 0, len(p.Buffers)),
		Launches: make([]trace.Launch, 0, len(p.Launches))}
	for i, b := range p.Buffers {
		if b.Role == Param || b.Role == Const {
			t.ParamBytes += b.Type.Bytes()
		}
		t.Buffers = append(t.Buffers, trace.Buffer{Name: p.bufferName(i), Role: b.Role.String(), Type: b.Type, Offset: b.Offset,
			First: b.First, Last: b.Last})
	}
	var scopes graph.Scopes
	for i, l := range p.Launches {
		r := trace.Launch{Prepared: i < p.Prepared, Node: l.Node.ID, Kernel: cmp.Or(l.Way, l.Algorithm(), l.Op.OpName()), Kind: l.Kind(),
			Name:   l.Node.Name,
			Device: cmp.Or(l.Device, p.Target), Reason: l.Reason,
			Company: l.Company, Source: l.Source, Estimates: l.Estimates, FLOPs: l.FLOPs, Bytes: l.Bytes,
			Origin: l.Node.Origin,
			Phase:  l.Node.Phase, Scope: scopes.Of(l.Node)}
		for _, v := range l.Args {
			r.Reads = append(r.Reads, v.Buffer)
		}
		for _, v := range l.Results {
			r.Writes = append(r.Writes, v.Buffer)
		}
		t.Launches = append(t.Launches, r)
	}
	return t
}

// Kind is the launch's class for users: a fusion's kind, or the operation's name.
func (l *Launch) Kind() string {
	if f, ok := l.Op.(graph.Fusion); ok {
		return f.Kind.String()
	}
	return l.Op.OpName()
}

// Algorithm names the algorithm of a launch that may compute other sums than those of its definition; empty for all others.
func (l *Launch) Algorithm() string {
	op := l.Op
	if f, ok := op.(graph.Fusion); ok {
		if f.Anchor != graph.AnchorConv {
			return ""
		}
		op = f.Anchored().Op
	}
	if tile := graph.WinogradTile(op); tile != 0 {
		return fmt.Sprintf("winograd %d×%[1]d", tile)
	}
	return ""
}

func (p *Program) bufferName(i int) string {
	if b := p.Buffers[i]; b.Name != "" {
		return b.Name
	}
	return fmt.Sprintf("b%d", i)
}

// String lists the buffers and the launches. In texts launches count from 1.
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "program %q for %s: %d launches, arena %d bytes (%d without sharing)", p.Name, p.Target, len(p.Launches),
		p.ArenaBytes, p.BufferBytes)
	if p.Prepared > 0 {
		fmt.Fprintf(&b, ", launches 1 to %d prepared once, %d bytes", p.Prepared, p.PreparedBytes)
	}
	b.WriteByte('\n')
	for i, u := range p.Buffers {
		fmt.Fprintf(&b, "  b%-4d %-8s %-18v", i, u.Role, u.Type)
		if u.Role == Temp {
			fmt.Fprintf(&b, " @%-9d launches %d to %d", u.Offset, u.First+1, u.Last+1)
		}
		if u.Name != "" {
			fmt.Fprintf(&b, "  %q", u.Name)
		}
		b.WriteByte('\n')
	}
	for i, l := range p.Launches {
		fmt.Fprintf(&b, "  %3d: %-12s", i+1, l.Kind())
		for _, v := range l.Args {
			fmt.Fprintf(&b, " %s", v)
		}
		b.WriteString(" →")
		for _, v := range l.Results {
			fmt.Fprintf(&b, " %s", v)
		}
		fmt.Fprintf(&b, "  # %s, %d flops, %d bytes\n", l.Node, l.FLOPs, l.Bytes)
	}
	return b.String()
}

// String gives the view as b3[2,4], with its strides if the value is not contiguous.
func (v View) String() string {
	s := fmt.Sprintf("b%d%v", v.Buffer, v.Layout.Shape)
	if !v.Layout.IsContiguous() || v.Layout.Offset != 0 {
		s += fmt.Sprintf("+%d/%v", v.Layout.Offset, v.Layout.Stride[:v.Layout.Shape.Rank()])
	}
	return s
}
