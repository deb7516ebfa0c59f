package graph

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Graph is a computation: nodes in topological order, its outputs, its updates of state, and what training asks for.
type Graph struct {
	Name    string
	Nodes   []*Node // operands before users
	Outputs []Output
	Updates []Update
	Notes   []Note // from the front end
	// Gradients are the derivatives among the nodes, and those that a compilation is to make.
	Gradients []GradMark
	Training  *Training // the optimiser: what a run changes parameters by, or nil
	Mesh      Mesh      // on which several participants run the program; empty for one
	// Parts says that the graph is what one participant computes: values are its parts of whole values, and the shardings of
	// sources say which.
	Parts bool

	nextID int
}

// Node is one operation and its value.
type Node struct {
	ID    int // unique in its graph, stable across passes
	Op    Op
	Args  []*Node
	Type  Type   // of the value; of result 0 if the operation has several results
	Name  string // the user's name, or empty
	Phase Phase
	// Sharding says how the value of a source is laid over the mesh, if that is stated.
	Sharding Sharding
	// Origin lists the user's nodes from which this node was made. Every rewrite keeps it.
	Origin []Origin
}

// Origin names one node of the program that the graph was made from.
type Origin struct {
	Name string // the user's name for it, or a description of its operation
	Pos  string // file:line that built it, or empty if unknown
}

// Output is a result of the graph.
type Output struct {
	Name string
	Node *Node
}

// Update writes the value of a node into a State or Param at the end of a successful run.
type Update struct {
	Target *Node // a State or Param
	Value  *Node // of the same type
}

// Like gives n the name, the origins and the phase of a node that it replaces.
func (n *Node) Like(of *Node) { n.Name, n.Origin, n.Phase = of.Name, of.Origin, of.Phase }

// New makes an empty graph.
func New(name string) *Graph { return &Graph{Name: name} }

// String is the node's name if it has one, and else %ID.
func (n *Node) String() string {
	if n == nil {
		return "nil node"
	}
	if n.Name != "" {
		return fmt.Sprintf("%q", n.Name)
	}
	return fmt.Sprintf("%%%d", n.ID)
}

// Where describes the node for an error message, as [Node.Describe] does, with the place where the user built it, if
// that is known: log %4 of "x" and "w" (model.graph:7).
func (n *Node) Where() string { return n.WhereIn(nil) }

// WhereIn is [Node.Where] for a node of a body; outside maps the body's inputs to nodes outside.
func (n *Node) WhereIn(outside map[*Node]*Node) string {
	s := n.describe(outside)
	if n != nil {
		for _, o := range n.Origin {
			if o.Pos != "" {
				return s + " (" + o.Pos + ")"
			}
		}
	}
	return s
}

// Describe names a node by its computation. For a node without a name it lists the named values from which it is
// computed, the nearest first: exp %4 of "scores".
func (n *Node) Describe() string { return n.describe(nil) }

func (n *Node) describe(outside map[*Node]*Node) string {
	if n == nil || n.Op == nil {
		return fmt.Sprintf("%v without an operation", n)
	}
	var b strings.Builder
	verb := Verb(n.Op)
	if ClassOf(n.Op) == ClassFusion { // by its operation: what it is made of has a place of its own in messages
		verb = n.Op.OpName()
	}
	b.WriteString(verb)
	if i := InfoOf(n.Op); i != nil && i.Detail != nil {
		b.WriteString(" " + i.Detail(n.Op))
	}
	fmt.Fprintf(&b, " %v", n)
	if n.Name == "" {
		if names := n.namesBefore(outside); len(names) > 0 {
			last := len(names) - 1
			b.WriteString(" of " + strings.Join(names[:last], ", "))
			if last > 0 {
				b.WriteString(" and ")
			}
			b.WriteString(names[last])
		}
	}
	return b.String()
}

// namesBefore are the names of the values from which n is computed, the nearest first.
func (n *Node) namesBefore(outside map[*Node]*Node) (names []string) {
	const most, far = 4, 64 // names, and operands to look at
	seen := []*Node{n}
	for next, looked := n.Args, 0; len(next) > 0; {
		var further []*Node
		for _, a := range next {
			if looked++; looked > far {
				return names
			}
			if o := outside[a]; o != nil {
				a = o
			}
			if a == nil || slices.Contains(seen, a) {
				continue
			}
			seen = append(seen, a)
			if a.Name == "" {
				further = append(further, a.Args[:min(far, len(a.Args))]...)
			} else if names = append(names, a.String()); len(names) == most {
				return names
			}
		}
		next = further
	}
	return names
}

// Arg is operand i.
func (n *Node) Arg(i int) *Node { return n.Args[i] }

// Add appends a node after checking its operands with the operation's type rule.
func (g *Graph) Add(op Op, args ...*Node) (*Node, error) { return g.add(op, slices.Clone(args)) }

// add is Add with a list of operands that the node keeps.
func (g *Graph) add(op Op, args []*Node) (*Node, error) {
	t, err := resultType(op, args)
	if err != nil {
		return nil, err
	}
	n := &Node{ID: g.nextID, Op: op, Args: args, Type: t}
	g.nextID++
	g.Nodes = append(g.Nodes, n)
	return n, nil
}

// Types are the types of nodes.
func Types(nodes []*Node) []Type {
	types := make([]Type, len(nodes))
	for i, n := range nodes {
		types[i] = n.Type
	}
	return types
}

// ResultTypes applies op's type rule to the operands. The error names the operation and the operands.
func ResultTypes(op Op, args []*Node) ([]Type, error) {
	return resultTypes(op, args, make([]Type, 0, len(args)+1))
}

// typeLists are reusable lists for the types of operands.
var typeLists = sync.Pool{New: func() any { return new([]Type) }}

// resultType is the first of [ResultTypes].
func resultType(op Op, args []*Node) (Type, error) {
	list := typeLists.Get().(*[]Type)
	defer typeLists.Put(list)
	*list = slices.Grow((*list)[:0], len(args)+1)
	types, err := resultTypes(op, args, *list)
	if err != nil {
		return Type{}, err
	}
	return types[0], nil
}

// resultTypes is ResultTypes with a list for the types of operands, whose memory the results may share.
func resultTypes(op Op, args []*Node, types []Type) ([]Type, error) {
	info := InfoOf(op)
	if info == nil {
		return nil, fmt.Errorf("operation %T is not in the table", op)
	}
	if len(args) < info.MinArgs || (info.MaxArgs >= 0 && len(args) > info.MaxArgs) {
		return nil, fmt.Errorf("%s takes %s, not %d", info.Name, info.arity(), len(args))
	}
	for i, a := range args {
		if a == nil {
			return nil, fmt.Errorf("%s: operand %d is missing", info.Name, i)
		}
		types = append(types, a.Type)
	}
	// Result is the only operation whose type depends on more than its operand's first type.
	if r, ok := op.(Result); ok {
		if f, ok := args[0].Op.(Fusion); ok && f.Body != nil && r.Index >= 1 && r.Index < len(f.Body.Outputs) {
			return append(types[:0], f.Body.Outputs[r.Index].Node.Type), nil // without inferring all others
		}
		all, err := ResultTypes(args[0].Op, args[0].Args)
		if err != nil {
			return nil, err
		}
		if r.Index < 1 || r.Index >= len(all) {
			return nil, fmt.Errorf("result: %s has %d results; index %d is outside 1..%d", args[0].Where(), len(all), r.Index, len(all)-1)
		}
		return []Type{all[r.Index]}, nil
	}
	out, err := info.infer(op, types)
	if err != nil {
		names := make([]string, len(args))
		for i, a := range args {
			names[i] = fmt.Sprintf("%v %v", a, a.Type)
		}
		return nil, fmt.Errorf("%s of (%s): %w", info.Name, strings.Join(names, ", "), err)
	}
	for _, t := range out {
		if err := t.Shape.Check(); err != nil {
			return nil, fmt.Errorf("%s: %w", info.Name, err)
		}
	}
	return out, nil
}

// Results is the number of results of n's operation.
func (n *Node) Results() int {
	list := typeLists.Get().(*[]Type)
	defer typeLists.Put(list)
	*list = slices.Grow((*list)[:0], len(n.Args))
	t, err := resultTypes(n.Op, n.Args, *list)
	if err != nil {
		return 1
	}
	return len(t)
}

// Users lists, for every node, the nodes that read it, in graph order; a node that reads it twice is listed twice.
func (g *Graph) Users() map[*Node][]*Node {
	u := make(map[*Node][]*Node, len(g.Nodes))
	for _, n := range g.Nodes {
		for _, a := range n.Args {
			u[a] = append(u[a], n)
		}
	}
	return u
}

// Ancestors are the given nodes and all nodes from which they are computed.
func Ancestors(of ...*Node) map[*Node]bool {
	seen := make(map[*Node]bool)
	var stack []*Node
	push := func(nodes []*Node) {
		for _, n := range nodes {
			if !seen[n] {
				seen[n] = true
				stack = append(stack, n)
			}
		}
	}
	push(of)
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		push(n.Args)
	}
	return seen
}

// Escapes reports, for every node that is an output or takes part in an update, that it is read from outside.
func (g *Graph) Escapes() map[*Node]bool {
	e := make(map[*Node]bool, len(g.Outputs)+2*len(g.Updates))
	for _, o := range g.Outputs {
		e[o.Node] = true
	}
	for _, u := range g.Updates {
		e[u.Target], e[u.Value] = true, true
	}
	return e
}

// Replace makes every reader of a key of the map read its value instead, outputs and updates' values included.
// Chains (a→b, b→c) are followed. Call [Graph.Tidy] afterwards.
func (g *Graph) Replace(with map[*Node]*Node) {
	if len(with) > 0 {
		g.Redirect(func(n *Node) *Node {
			for {
				m, ok := with[n]
				if !ok || m == n {
					return n
				}
				n = m
			}
		})
	}
}

// Redirect makes every reader of a node n read to(n), outputs and updates' values included. Call [Graph.Tidy]
// afterwards.
func (g *Graph) Redirect(to func(*Node) *Node) {
	for _, n := range g.Nodes {
		for i, a := range n.Args {
			n.Args[i] = to(a)
		}
	}
	for i := range g.Outputs {
		g.Outputs[i].Node = to(g.Outputs[i].Node)
	}
	for i := range g.Updates {
		g.Updates[i].Value = to(g.Updates[i].Value)
	}
	g.trainingNodes(func(at **Node) {
		if *at != nil {
			*at = to(*at)
		}
	})
}

// Tidy drops the nodes that no output or update needs and puts the rest in topological order, and keeps the current
// order if it is already topological. Inputs, parameters and state stay even if nothing reads them: they are the
// graph's signature. Notes stay, but lose references to dropped nodes. A cycle is an error.
func (g *Graph) Tidy() error {
	const (
		unseen = iota
		open
		done
	)
	mark := NewPerNode[uint8](g)
	sorted := make([]*Node, 0, len(g.Nodes))
	live := g.live()
	type frame struct {
		n *Node
		i int
	}
	var stack []frame
	for _, root := range g.Nodes {
		if !live.Get(root) || mark.Get(root) != unseen {
			continue
		}
		stack = append(stack[:0], frame{root, 0})
		mark.Set(root, open)
		for len(stack) > 0 {
			f := &stack[len(stack)-1]
			if f.i == len(f.n.Args) {
				mark.Set(f.n, done)
				sorted = append(sorted, f.n)
				stack = stack[:len(stack)-1]
				continue
			}
			a := f.n.Args[f.i]
			f.i++
			switch mark.Get(a) {
			case open:
				return fmt.Errorf("the graph has a cycle through %s", a.Where())
			case unseen:
				mark.Set(a, open)
				stack = append(stack, frame{a, 0})
			}
		}
	}
	g.Nodes = sorted
	for i := range g.Notes {
		if n := g.Notes[i].Node; n != nil && !live.Get(n) {
			g.Notes[i].Node = nil
		}
	}
	return nil
}

func (g *Graph) live() PerNode[bool] {
	live := NewPerNode[bool](g)
	var stack []*Node
	push := func(n *Node) {
		if !live.Get(n) {
			live.Set(n, true)
			stack = append(stack, n)
		}
	}
	for _, o := range g.Outputs {
		push(o.Node)
	}
	for _, u := range g.Updates {
		push(u.Target)
		push(u.Value)
	}
	g.trainingNodes(func(at **Node) {
		if *at != nil {
			push(*at)
		}
	})
	for _, n := range g.Nodes {
		if IsSource(n.Op) {
			push(n)
		}
	}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, a := range n.Args {
			push(a)
		}
	}
	return live
}

// closeGaps numbers the nodes from 0 if their IDs are far larger than their number, because passes keep arrays by ID.
func (g *Graph) closeGaps() {
	if g.nextID <= 1<<16+64*len(g.Nodes) {
		return
	}
	for i, n := range g.Nodes {
		n.ID = i
	}
	g.nextID = len(g.Nodes)
}

// IsSource reports whether op is an Input, Param or State: a part of the graph's signature.
func IsSource(op Op) bool {
	switch op.(type) {
	case Input, Param, State:
		return true
	}
	return false
}

// Sources lists the Input, Param and State nodes in order.
func (g *Graph) Sources() []*Node {
	var s []*Node
	for _, n := range g.Nodes {
		if IsSource(n.Op) {
			s = append(s, n)
		}
	}
	return s
}

// Lookup returns the source node of the given name, or nil.
func (g *Graph) Lookup(name string) *Node {
	for _, n := range g.Nodes {
		if IsSource(n.Op) && n.Name == name {
			return n
		}
	}
	return nil
}

// SourcesByName is [Graph.Lookup] for all names.
func (g *Graph) SourcesByName() map[string]*Node {
	m := map[string]*Node{}
	for _, n := range slices.Backward(g.Nodes) {
		if IsSource(n.Op) {
			m[n.Name] = n
		}
	}
	return m
}

// Clone copies the graph. Nodes keep their IDs; bodies of fusions are copied too; tensors and Host implementations
// are shared. The map gives the new node of each old one.
func (g *Graph) Clone() (*Graph, map[*Node]*Node) {
	c := &Graph{Name: g.Name, Mesh: g.Mesh, Parts: g.Parts, nextID: g.nextID, Nodes: make([]*Node, len(g.Nodes))}
	m := make(map[*Node]*Node, len(g.Nodes))
	for i, n := range g.Nodes {
		k := *n
		k.Args = make([]*Node, len(n.Args))
		for j, a := range n.Args {
			k.Args[j] = m[a]
		}
		k.Origin = slices.Clone(n.Origin)
		if f, ok := n.Op.(Fusion); ok {
			f.Body, _ = f.Body.Clone()
			k.Op = f
		}
		m[n] = &k
		c.Nodes[i] = &k
	}
	for _, o := range g.Outputs {
		c.Outputs = append(c.Outputs, Output{o.Name, m[o.Node]})
	}
	for _, u := range g.Updates {
		c.Updates = append(c.Updates, Update{m[u.Target], m[u.Value]})
	}
	for _, n := range g.Notes {
		n.Node = m[n.Node]
		c.Notes = append(c.Notes, n)
	}
	c.cloneTraining(g, m)
	return c, m
}

// MergeOrigins joins the origins of several nodes without duplicates. The slice may be that of one of the nodes and
// must not be changed.
func MergeOrigins(nodes ...*Node) []Origin {
	var first *Node // the first that has origins, as long as all others have the same
	for _, n := range nodes {
		if len(n.Origin) == 0 || first != nil && sameOrigins(n.Origin, first.Origin) {
			continue
		}
		if first != nil {
			return mergeOrigins(nodes)
		}
		first = n
	}
	if first == nil {
		return nil
	}
	if len(first.Origin) > 1 && !fewDiffer(first.Origin) {
		return mergeOrigins([]*Node{first})
	}
	return slices.Clip(first.Origin)
}

// sameOrigins reports whether two lists share memory, or consist of the same single origin.
func sameOrigins(a, b []Origin) bool {
	return len(a) == len(b) && (&a[0] == &b[0] || len(a) == 1 && a[0] == b[0])
}

// fewDiffer reports whether there are only a few origins, all different.
func fewDiffer(os []Origin) bool {
	for i, o := range os {
		if i == 8 || slices.Contains(os[:i], o) {
			return false
		}
	}
	return true
}

func mergeOrigins(nodes []*Node) []Origin {
	most := 0
	for _, n := range nodes {
		most += len(n.Origin)
	}
	r := make([]Origin, 0, most)
	if most <= 8 {
		for _, n := range nodes {
			for _, o := range n.Origin {
				if !slices.Contains(r, o) {
					r = append(r, o)
				}
			}
		}
		return slices.Clip(r)
	}
	seen := make(map[Origin]bool, most)
	var last []Origin
	for _, n := range nodes {
		if len(n.Origin) == 0 || len(last) > 0 && sameOrigins(n.Origin, last) {
			continue
		}
		last = n.Origin
		for _, o := range n.Origin {
			if !seen[o] {
				seen[o] = true
				r = append(r, o)
			}
		}
	}
	return slices.Clip(r)
}
