package graph

import (
	"fmt"
	"path"
	"runtime"
	"slices"
	"strconv"
)

// Builder makes or extends a graph. The first error is kept and returned by [Builder.Err] and [Builder.Graph]; after
// it, methods return a node that may be passed on but means nothing.
type Builder struct {
	g      *Graph
	err    error
	origin []Origin
	phase  Phase
	lines  bool
	bad    *Node
}

// NewBuilder starts an empty graph. Nodes remember the Go file and line that called the builder.
func NewBuilder(name string) *Builder { return &Builder{g: New(name), lines: true} }

// Extend appends to an existing graph. New nodes carry the given origins.
func Extend(g *Graph, origin ...Origin) *Builder { return &Builder{g: g, origin: origin} }

// From makes the builder give new nodes the origins of the given nodes and the latest of their phases, and returns it.
func (b *Builder) From(nodes ...*Node) *Builder {
	b.origin, b.phase = MergeOrigins(nodes...), Forward
	for _, n := range nodes {
		b.phase = max(b.phase, n.Phase)
	}
	return b
}

// In makes the builder give new nodes a phase, and returns it.
func (b *Builder) In(p Phase) *Builder {
	b.phase = p
	return b
}

// Err is the first error.
func (b *Builder) Err() error { return b.err }

// Graph returns the graph, verified, or the first error.
func (b *Builder) Graph() (*Graph, error) {
	if b.err != nil {
		return nil, b.err
	}
	if err := b.g.Tidy(); err != nil {
		return nil, err
	}
	if err := Verify(b.g); err != nil {
		return nil, err
	}
	return b.g, nil
}

// Fail records an error unless there is one already.
func (b *Builder) Fail(err error) *Node {
	if b.err == nil {
		b.err = err
	}
	if b.bad == nil {
		b.bad = &Node{ID: -1, Op: Const{Scalar(F32, 0)}, Type: TypeOf(F32)}
	}
	return b.bad
}

// Add appends a node.
func (b *Builder) Add(op Op, args ...*Node) *Node { return b.add(op, slices.Clone(args)) }

// add is Add with a list of operands that the node keeps.
func (b *Builder) add(op Op, args []*Node) *Node {
	if b.err != nil || b.bad != nil && slices.Contains(args, b.bad) {
		return b.Fail(b.err)
	}
	n, err := b.g.add(op, args)
	if err != nil {
		if pos := b.caller(); pos != "" {
			err = fmt.Errorf("%s: %w", pos, err)
		}
		return b.Fail(err)
	}
	n.Origin, n.Phase = b.origin, b.phase
	if b.lines {
		n.Origin = []Origin{{Pos: b.caller()}}
	}
	return n
}

// caller finds the first frame outside this package.
func (b *Builder) caller() string {
	if !b.lines {
		return ""
	}
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	const here = "fusec/graph.(*Builder)."
	for {
		f, more := frames.Next()
		if len(f.Function) < len(here) || f.Function[:len(here)] != here {
			return path.Base(f.File) + ":" + strconv.Itoa(f.Line)
		}
		if !more {
			return ""
		}
	}
}

// Named gives a node the user's name and returns it.
func (b *Builder) Named(n *Node, name string) *Node {
	n.Name = name
	if len(n.Origin) == 1 && n.Origin[0].Name == "" {
		n.Origin = []Origin{{Name: name, Pos: n.Origin[0].Pos}}
	}
	return n
}

// Input declares a value that the caller sets for each run.
func (b *Builder) Input(name string, t Type) *Node { return b.Named(b.add(Input{t}, nil), name) }

// Param declares a weight.
func (b *Builder) Param(name string, t Type) *Node { return b.Named(b.add(Param{t}, nil), name) }

// State declares a value that persists between runs.
func (b *Builder) State(name string, t Type) *Node { return b.Named(b.add(State{t}, nil), name) }

// Const adds a constant tensor.
func (b *Builder) Const(t *Tensor) *Node { return b.add(Const{t}, nil) }

// Scalar adds a constant of rank 0.
func (b *Builder) Scalar(d DType, v float64) *Node { return b.add(Const{Scalar(d, v)}, nil) }

// Output declares a result of the graph under a name.
func (b *Builder) Output(name string, n *Node) {
	if n == nil {
		b.Fail(fmt.Errorf("output %q has no node", name))
	}
	b.g.Outputs = append(b.g.Outputs, Output{name, n})
}

// Update declares that a successful run writes value into the state or parameter target.
func (b *Builder) Update(target, value *Node) {
	if target == nil || value == nil {
		b.Fail(fmt.Errorf("update of %v with %v", target, value))
	}
	b.g.Updates = append(b.g.Updates, Update{target, value})
}

// Cache declares a state that keeps rows of many runs, such as keys of a decoder: of the type of rows, except that the axis has
// the length capacity. Each run writes rows to it from position, an integer of rank 0, on. The result is the state after that.
func (b *Builder) Cache(name string, axis, capacity int, rows, position *Node) *Node {
	if b.err != nil {
		return rows
	}
	cache := b.State(name, rows.Type.Reshaped(rows.Type.Shape.With(axis, capacity)))
	y := b.Add(UpdateSlice{Axis: axis}, cache, rows, position)
	b.Update(cache, y)
	return y
}

// Unary adds an elementwise function of one variable.
func (b *Builder) Unary(f UnaryFn, x *Node) *Node { return b.add(Unary{Fn: f}, []*Node{x}) }

// Binary adds an elementwise function of two variables; x and y have one shape or one of them is a scalar.
func (b *Builder) Binary(f BinaryFn, x, y *Node) *Node { return b.add(Binary{f}, []*Node{x, y}) }

// BinaryScalar adds f(x, v) with the constant v of x's element type.
func (b *Builder) BinaryScalar(f BinaryFn, x *Node, v float64) *Node {
	return b.add(Binary{f}, []*Node{x, b.Scalar(x.Type.DType, v)})
}

// CastTo converts x to an element type; it returns x itself if it has that already.
func (b *Builder) CastTo(d DType, x *Node) *Node {
	if x.Type.DType == d {
		return x
	}
	return b.add(Cast{d}, []*Node{x})
}

// MatMul adds x·y over the last two axes, each transposed first on request.
func (b *Builder) MatMul(x, y *Node, transX, transY bool) *Node {
	return b.add(MatMul{transX, transY}, []*Node{x, y})
}

// Reduce adds a reduction along axes.
func (b *Builder) Reduce(f ReduceFn, x *Node, keep bool, axes ...int) *Node {
	return b.add(Reduce{f, IntsOf(axes...), keep}, []*Node{x})
}

// Reshape gives x another shape; it returns x itself if it has that shape already.
func (b *Builder) Reshape(x *Node, dims ...int) *Node {
	s := ShapeOf(dims...)
	if x.Type.Shape == s {
		return x
	}
	return b.add(Reshape{s}, []*Node{x})
}

// Transpose permutes axes; it returns x itself for the identity.
func (b *Builder) Transpose(x *Node, perm ...int) *Node {
	for i, p := range perm {
		if p != i {
			return b.add(Transpose{IntsOf(perm...)}, []*Node{x})
		}
	}
	return x
}

// Broadcast repeats x to shape s; it returns x itself if it has that shape already.
func (b *Builder) Broadcast(x *Node, s Shape) *Node {
	if x.Type.Shape == s {
		return x
	}
	return b.add(Broadcast{s}, []*Node{x})
}

// Slice takes size elements, step apart, along axis from the constant index start.
func (b *Builder) Slice(x *Node, axis, start, size, step int) *Node {
	return b.add(Slice{axis, size, step}, []*Node{x, b.Scalar(I64, float64(start))})
}

// SumTo undoes a broadcast from shape s: it sums the axes along which s was repeated. It is the gradient of
// [Builder.Broadcast].
func (b *Builder) SumTo(x *Node, s Shape) *Node {
	if x.Type.Shape == s {
		return x
	}
	var axes []int
	lead := x.Type.Shape.Rank() - s.Rank()
	for i := range x.Type.Shape.Rank() {
		if i < lead || s.At(i-lead) == 1 && x.Type.Shape.At(i) != 1 {
			axes = append(axes, i)
		}
	}
	if len(axes) > 0 {
		x = b.Reduce(Sum, x, false, axes...)
	}
	return b.Reshape(x, s.Slice()...)
}

// Expand broadcasts the result of a reduction of axes, with Keep or without, back to shape s.
func (b *Builder) Expand(x *Node, axes Ints, s Shape) *Node {
	keep := s
	for i := range axes.Len() {
		keep = keep.With(axes.At(i), 1)
	}
	return b.Broadcast(b.Reshape(x, keep.Slice()...), s)
}

// Inline appends the nodes of body, with its i-th Input replaced by args[i], and returns its outputs. Nodes of body
// without an origin get the builder's.
func (b *Builder) Inline(body *Graph, args []*Node) []*Node {
	m := make(map[*Node]*Node, len(body.Nodes))
	next := 0
	for _, n := range body.Nodes {
		if _, ok := n.Op.(Input); ok {
			if next == len(args) {
				b.Fail(fmt.Errorf("inlining a body with more inputs than the %d operands", len(args)))
				return nil
			}
			m[n] = args[next]
			next++
			continue
		}
		in := make([]*Node, len(n.Args))
		for i, a := range n.Args {
			in[i] = m[a]
		}
		k := b.add(n.Op, in)
		if k != b.bad {
			k.Name, k.Phase = n.Name, max(k.Phase, n.Phase)
			if len(n.Origin) > 0 {
				k.Origin = n.Origin
			}
		}
		m[n] = k
	}
	out := make([]*Node, len(body.Outputs))
	for i, o := range body.Outputs {
		out[i] = m[o.Node]
	}
	return out
}
