package lowering

import (
	"fmt"

	"fusec/graph"
)

// Option configures [Lower].
type Option func(*lowerer)

// CopyUpdates lets no launch write into a State or Param: all updates are copied when the run has succeeded, so that a
// run can still be given up after its last launch.
func CopyUpdates() Option { return func(l *lowerer) { l.copyUpdates = true } }

// CannotUndo is for a device that cannot take back what a launch has written: only launches that run after all that can
// fail write into a State or Param.
func CannotUndo() Option { return func(l *lowerer) { l.cannotUndo = true } }

// Lower makes the program of a graph, in which every computation is an operation that the target can launch. The
// graph's nodes stay referenced by the launches.
func Lower(g *graph.Graph, target string, opts ...Option) (*Program, error) {
	l := &lowerer{p: &Program{Name: g.Name, Target: target}, at: map[*graph.Node]View{}, results: map[*graph.Node][]View{}}
	for _, o := range opts {
		o(l)
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
		if t := l.at[u.Target].Buffer; l.at[u.Value].Buffer == t && !graph.IsSource(u.Value.Op) {
			l.p.Updates = append(l.p.Updates, Update{t, t})
			continue
		}
		b, err := l.keep(u.Value)
		if err != nil {
			return nil, err
		}
		l.p.Updates = append(l.p.Updates, Update{l.at[u.Target].Buffer, b})
	}
	if !l.cannotUndo {
		updateInPlace(l.p)
	}
	plan(l.p)
	return l.p, nil
}

type lowerer struct {
	p       *Program
	at      map[*graph.Node]View   // of every node
	results map[*graph.Node][]View // of a node that is launched, all results

	copyUpdates bool
	cannotUndo  bool
	inPlace     inPlace
}

func (l *lowerer) buffer(role Role, name string, t graph.Type) View {
	l.p.Buffers = append(l.p.Buffers, Buffer{Name: name, Role: role, Type: t})
	return View{len(l.p.Buffers) - 1, t.DType, graph.Contiguous(t.Shape)}
}

func (l *lowerer) node(n *graph.Node) error {
	switch op := n.Op.(type) {
	case graph.Input:
		l.at[n] = l.buffer(Input, n.Name, n.Type)
	case graph.Param:
		l.at[n] = l.buffer(Param, n.Name, n.Type)
	case graph.State:
		l.at[n] = l.buffer(State, n.Name, n.Type)
	case graph.Const:
		l.at[n] = l.buffer(Const, n.Name, n.Type)
		l.p.Buffers[l.at[n].Buffer].Value = op.Value
	case graph.Result:
		l.at[n] = l.results[n.Args[0]][op.Index]
		if b := &l.p.Buffers[l.at[n].Buffer]; b.Role == Temp {
			b.Name = n.Name
		}
	default:
		if graph.IsView(n.Op) {
			return l.view(n)
		}
		return l.launch(n)
	}
	return nil
}

// view makes the value of a view node: strides where they can say it, else a copy.
func (l *lowerer) view(n *graph.Node) error {
	from := l.at[n.Args[0]]
	if at, ok := from.Layout.View(n); ok {
		from.Layout = at
		l.at[n] = from
		return nil
	}
	if _, isSlice := n.Op.(graph.Slice); isSlice { // from where an operand says, or out of range
		return l.launch(n)
	}
	return fmt.Errorf("strides cannot say it; pass place should have inserted a copy")
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
	la := Launch{Op: n.Op, Node: n, FLOPs: graph.CostOf(n).FLOPs}
	strided := graph.ReadsStrides(n.Op)
	for _, a := range n.Args {
		v := l.at[a]
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
			la.Results = append(la.Results, l.at[targets[i]])
		} else {
			la.Results = append(la.Results, l.buffer(Temp, name, t))
		}
		name = "" // of a further result, until its node comes
		la.Bytes += t.Bytes()
	}
	l.at[n], l.results[n] = la.Results[0], la.Results
	l.p.Launches = append(l.p.Launches, la)
	return nil
}

// keep returns a buffer of role Output that holds n's value when the run is over.
func (l *lowerer) keep(n *graph.Node) (int, error) {
	v := l.at[n]
	b := &l.p.Buffers[v.Buffer]
	if b.Role == Temp && v.Layout.IsContiguous() && v.Layout.Shape.Elems() == b.Type.Shape.Elems() {
		b.Role = Output
		b.Type.Shape = v.Layout.Shape
		return v.Buffer, nil
	}
	return 0, fmt.Errorf("%s is handed out from memory that is not its own; pass place should have inserted a copy", n.Where())
}
