package lowering

import (
	"fmt"

	"fusec/graph"
)

// Option configures [Lower].
type Option func(*lowerer)

// CopyUpdates lets no launch write into a State or Param: all updates are copied when the run has succeeded, so that a
// run can be abandoned even after its last launch.
func CopyUpdates() Option { return func(l *lowerer) { l.copyUpdates = true } }

// CannotUndo is for a device that cannot undo a launch's writes: only launches that run after all launches that can
// fail write into a State or Param.
func CannotUndo() Option { return func(l *lowerer) { l.cannotUndo = true } }

// Frozen declares that parameters without an update change only through [Executable.Bind], so that what follows from
// them is computed once.
func Frozen() Option { return func(l *lowerer) { l.p.Frozen = true } }

// Frugal declares that memory counts more than time: nothing is kept for launches that may run beside others, and devices keep
// nothing that they can compute again.
func Frugal() Option { return func(l *lowerer) { l.beside, l.p.Frugal = 0, true } }

// Lower makes the program of a graph, in which every computation is an operation that the target can launch. The
// graph's nodes stay referenced by the launches.
func Lower(g *graph.Graph, target string, opts ...Option) (*Program, error) {
	l := &lowerer{p: &Program{Name: g.Name, Target: target, Mesh: g.Mesh}, at: graph.NewPerNode[int32](g),
		launched: graph.NewPerNode[int32](g)}
	l.p.Launches = make([]Launch, 0, launches(g))
	l.p.Buffers = make([]Buffer, 0, len(g.Nodes))
	l.views = make([]View, 0, len(g.Nodes))
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("option %d is nil", i)
		}
		o(l)
	}
	if len(g.Mesh) > 0 {
		l.uses = g.Uses()
	}
	nodes := g.Nodes
	if !l.copyUpdates {
		l.inPlace = findInPlace(g)
		nodes = l.inPlace.order(g)
	}
	for _, n := range nodes {
		if err := l.node(n); err != nil {
			return nil, fmt.Errorf("lowering %s: %w", n.Where(), err)
		}
	}
	for _, o := range g.Outputs {
		b, err := l.keep(o.Node)
		if err != nil {
			return nil, err
		}
		l.p.Buffers[b].Name = o.Name
		l.p.Outputs = append(l.p.Outputs, Binding{o.Name, b})
	}
	for _, u := range g.Updates {
		if t := l.view(u.Target).Buffer; l.view(u.Value).Buffer == t && !graph.IsSource(u.Value.Op) {
			l.p.Updates = append(l.p.Updates, Update{t, t})
			continue
		}
		b, err := l.keep(u.Value)
		if err != nil {
			return nil, err
		}
		l.p.Updates = append(l.p.Updates, Update{l.view(u.Target).Buffer, b})
	}
	if !l.cannotUndo {
		updateInPlace(l.p)
	}
	l.p.prepare(graph.Frozen(g, l.p.Frozen))
	if l.strided != nil {
		l.p.joinInPlace(l.strided)
	}
	if !l.p.Trains() {
		l.beside = 0
	}
	if l.beside > 0 {
		l.p.hasten(l.beside)
	}
	l.p.gatherAhead()
	plan(l.p, l.beside)
	return l.p, nil
}

// launches is the number of nodes of g that may become launches.
func launches(g *graph.Graph) (count int) {
	for _, n := range g.Nodes {
		switch graph.ClassOf(n.Op) {
		case graph.ClassSource, graph.ClassView:
		default:
			count++
		}
	}
	return count
}

type lowerer struct {
	p        *Program
	views    []View
	at       graph.PerNode[int32] // of every node: the index of its view
	launched graph.PerNode[int32] // of a launched node: its launch

	copyUpdates bool
	cannotUndo  bool
	strided     func(op graph.Op, args, results []graph.Operand) bool // see [Strides], or nil
	beside      int                                                   // see [Beside]
	inPlace     inPlace
	uses        *graph.Uses // of a graph on a mesh
}

// view is the location of n's value.
func (l *lowerer) view(n *graph.Node) View { return l.views[l.at.Get(n)] }

// locate records the location of n's value.
func (l *lowerer) locate(n *graph.Node, v View) {
	l.at.Set(n, int32(len(l.views)))
	l.views = append(l.views, v)
}

func (l *lowerer) buffer(role Role, name string, t graph.Type) View {
	l.p.Buffers = append(l.p.Buffers, Buffer{Name: name, Role: role, Type: t})
	return View{len(l.p.Buffers) - 1, t.DType, graph.Contiguous(t.Shape)}
}

func (l *lowerer) node(n *graph.Node) error {
	if graph.IsSource(n.Op) {
		defer func() { l.p.Buffers[l.view(n).Buffer].Sharding = n.Sharding }()
	}
	switch op := n.Op.(type) {
	case graph.Input:
		l.locate(n, l.buffer(Input, n.Name, n.Type))
	case graph.Param:
		l.locate(n, l.buffer(Param, n.Name, n.Type))
	case graph.State:
		l.locate(n, l.buffer(State, n.Name, n.Type))
	case graph.Const:
		l.locate(n, l.buffer(Const, n.Name, n.Type))
		l.p.Buffers[len(l.p.Buffers)-1].Value = op.Value
	case graph.Result:
		v := l.p.Launches[l.launched.Get(n.Args[0])].Results[op.Index]
		l.locate(n, v)
		if b := &l.p.Buffers[v.Buffer]; b.Role == Temp {
			b.Name = n.Name
		}
	default:
		if graph.IsView(n.Op) {
			return l.strides(n)
		}
		return l.launch(n)
	}
	return nil
}

// strides makes the value of a view node: strides if they express it, else a copy.
func (l *lowerer) strides(n *graph.Node) error {
	from := l.view(n.Args[0])
	if at, ok := from.Layout.View(n); ok {
		from.Layout = at
		l.locate(n, from)
		return nil
	}
	if _, isSlice := n.Op.(graph.Slice); isSlice { // with a start from an operand, or out of range
		return l.launch(n)
	}
	return fmt.Errorf("strides cannot express it; pass place should have inserted a copy")
}

// launch appends the launch of a node that computes.
func (l *lowerer) launch(n *graph.Node) error {
	types, err := graph.ResultTypes(n.Op, n.Args)
	if err != nil {
		return err
	}
	if op, ok := n.Op.(graph.UpdateSlice); ok {
		if err := op.CheckStart(n); err != nil {
			return err
		}
	}
	la := Launch{Op: n.Op, Node: n, FLOPs: graph.CostOf(n).FLOPs, Args: make([]View, 0, len(n.Args)),
		Results: make([]View, 0, len(types))}
	strided := graph.ReadsStrides(n.Op)
	for _, a := range n.Args {
		v := l.view(a)
		if !strided && (!v.Layout.IsContiguous() || v.Layout.Offset != 0) {
			return fmt.Errorf("operand %v is not contiguous; pass place should have inserted a copy", a)
		}
		la.Args = append(la.Args, v)
	}
	la.Bytes = traffic(n.Op, la.Args)
	name := n.Name
	targets := l.inPlace.target[n]
	for i, t := range types {
		if targets != nil && targets[i] != nil {
			la.Results = append(la.Results, l.view(targets[i]))
		} else if l.overwrites(n) {
			la.Results = append(la.Results, View{la.Args[0].Buffer, t.DType, graph.Contiguous(t.Shape)})
		} else {
			la.Results = append(la.Results, l.buffer(Temp, name, t))
		}
		name = "" // of a further result, until its node is lowered
		la.Bytes += t.Bytes()
	}
	l.locate(n, la.Results[0])
	l.launched.Set(n, int32(len(l.p.Launches)))
	l.p.Launches = append(l.p.Launches, la)
	return nil
}

// overwrites reports whether n is an all-reduce that writes its result over its operand, which nothing else reads: it may run for
// long beside other launches, and takes no further memory meanwhile.
func (l *lowerer) overwrites(n *graph.Node) bool {
	if _, ok := n.Op.(graph.AllReduce); !ok || len(l.p.Mesh) == 0 || l.copyUpdates {
		return false
	}
	a := n.Args[0]
	for {
		if len(l.uses.Readers(a)) != 1 || l.uses.Escapes(a) || graph.IsSource(a.Op) {
			return false
		}
		if !graph.IsView(a.Op) {
			break
		}
		a = a.Args[0]
	}
	v := l.view(n.Args[0])
	b := &l.p.Buffers[v.Buffer]
	return b.Role == Temp && v.Layout.IsContiguous() && v.Layout.Offset == 0 && b.Type == n.Type.Reshaped(b.Type.Shape)
}

// keep returns a buffer of role Output that has n's value after the run.
func (l *lowerer) keep(n *graph.Node) (int, error) {
	v := l.view(n)
	b := &l.p.Buffers[v.Buffer]
	if b.Role == Temp && v.Layout.IsContiguous() && v.Layout.Shape.Elems() == b.Type.Shape.Elems() {
		b.Role = Output
		b.Type.Shape = v.Layout.Shape
		return v.Buffer, nil
	}
	return 0, fmt.Errorf("output %s is in memory of another value; pass place should have inserted a copy", n.Where())
}
