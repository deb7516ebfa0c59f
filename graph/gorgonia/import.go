package gorgonia

import (
	"errors"
	"fmt"
	"slices"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Options steer [Import]. The zero value suits a machine.
type Options struct {
	// Kind decides what becomes of an input node of Gorgonia's. Nil means [DefaultKind].
	Kind func(*gorg.Node) Kind
	// Gorgonia makes the graph mean what Gorgonia v0.9.18 computes, also where that is wrong, as far as it can be imitated:
	// see [Divergences]. Machines then take derivatives as gorgonia.Grad built them.
	Gorgonia bool
	// DynamicSlices makes where slices start an input that is read again before each run. Without it only slices of
	// the user's own types are so; for the others, [Imported.Stale] tells when one was replaced.
	DynamicSlices bool
	// Replaced are slices that are read so even without DynamicSlices; see [Imported.Replaced].
	Replaced map[*gorg.Node]bool
	// Counter holds the counter of the random operations between runs, so that a graph that is imported again goes on
	// drawing where it was. Nil is a counter of the import's own that starts at 0.
	Counter *int64
	// Unverified leaves it to the caller to verify the graph.
	Unverified bool
}

// Kind is what an input node of Gorgonia's becomes.
type Kind uint8

// The kinds. Auto leaves the choice to [DefaultKind].
const (
	Auto Kind = iota
	AsInput
	AsParam
)

// DefaultKind tells weights from data, which Gorgonia does not. A node is a parameter if a gradient with respect to it
// exists or is bound to it; or if it has a value of floating-point type when the graph is imported. All other nodes are
// inputs: those of integers or bools, and those without a value. Data that was bound before the import therefore counts
// as a parameter unless the caller says otherwise; as values are read again before each run, this matters to what is
// saved as weights and not to what is computed.
func DefaultKind(n *gorg.Node) Kind {
	if n.Deriv() != nil || HasDual(n) {
		return AsParam
	}
	v := n.Value()
	if v == nil {
		return AsInput
	}
	if d, err := DTypeOf(v.Dtype()); err != nil || !d.IsFloat() {
		return AsInput
	}
	return AsParam
}

// Imported is a graph made from one of Gorgonia's and what ties the two together.
type Imported struct {
	// Graph holds what Gorgonia's graph holds, its backward pass included. Its outputs are the values of Roots and
	// Reads and the gradients that the user asked for. It is verified, unless Options.Unverified; nodes that no output needs
	// are still in it. Its notes tell what stayed on the host and why, where it means something else than Gorgonia computes,
	// and what looks wrong in Gorgonia's graph as it was built.
	Graph *graph.Graph
	// Sources are the inputs and parameters whose values are those of Gorgonia's nodes.
	Sources []Source
	// Fills are inputs that come from elsewhere than the value of a node.
	Fills []Fill
	// States are the state nodes and who owns their values.
	States []State
	// Roots are Gorgonia's roots outside its backward pass, and the costs.
	Roots []Root
	// Reads are the values that gorgonia.Read asks for.
	Reads []Read
	// Grads are the derivatives that gorgonia.Grad added.
	Grads []Grad
	// Opaques are the nodes, by the tokens that stand for them, for whose elements fusec has no type.
	Opaques map[*graph.Node]*Opaque

	at     *positions    // of Gorgonia's nodes, operands first
	values []*graph.Node // that stand for them
	source map[*graph.Node]*gorg.Node
	stale  []staleness
}

// A staleness check tells what was changed since the import. Its slice is nil if it is about something else.
type staleness struct {
	slice *gorg.Node
	check func() error
}

// Source is an Input or Param and the node whose value it has.
type Source struct {
	Node  *gorg.Node
	Value *graph.Node
}

// Fill is an input that is computed before each run.
type Fill struct {
	Value *graph.Node
	Fill  func(*graph.Tensor) error
}

// State is a state node. Load gives its value before a run; Store takes the new one when the run has succeeded. Where
// Held is not nil it is the value itself, for runs to read and change in its place.
type State struct {
	Value *graph.Node
	Held  *graph.Tensor
	Load  func(*graph.Tensor) error
	Store func(*graph.Tensor) error
}

// Root is a node whose value is bound to it after a run.
type Root struct {
	Node  *gorg.Node
	Value *graph.Node
}

// Read is a value that goes into a variable of the user's after a run.
type Read struct {
	Into  *gorg.Value
	Node  *gorg.Node
	Value *graph.Node
}

// Grad is a derivative: Node.Deriv() as a node of the graph.
type Grad struct {
	Node *gorg.Node
	graph.GradMark
}

// Node is the node that stands for n, or nil: statements have none.
func (im *Imported) Node(n *gorg.Node) *graph.Node {
	if i := im.at.of(n); i >= 0 {
		return im.values[i]
	}
	return nil
}

// stand makes v the node that stands for n, a node of the order.
func (im *Imported) stand(n *gorg.Node, v *graph.Node) { im.values[im.at.of(n)] = v }

// Source is the node of Gorgonia's whose value v has, or nil.
func (im *Imported) Source(v *graph.Node) *gorg.Node { return im.source[v] }

// Marks are the derivatives in terms of the graph alone.
func (im *Imported) Marks() []graph.GradMark {
	m := make([]graph.GradMark, len(im.Grads))
	for i, g := range im.Grads {
		m[i] = g.GradMark
	}
	return m
}

// Stale reports what was changed in Gorgonia's graph since it was imported so that it has to be imported again: a
// training mode, or a slice. Nil means that nothing was.
func (im *Imported) Stale() error {
	for i := range im.stale {
		if err := im.stale[i].check(); err != nil {
			return err
		}
	}
	return nil
}

// Replaced lists the slices that were replaced since the graph was imported.
func (im *Imported) Replaced() []*gorg.Node {
	var list []*gorg.Node
	for _, s := range im.stale {
		if s.slice != nil && s.check() != nil {
			list = append(list, s.slice)
		}
	}
	return list
}

// Weights are the values of the parameters and states by name, as graph.Save takes them.
func (im *Imported) Weights() (map[string]*graph.Tensor, error) {
	return im.valuesOf(func(n *graph.Node) bool { _, input := n.Op.(graph.Input); return !input })
}

// Values are the present values of all sources by name.
func (im *Imported) Values() (map[string]*graph.Tensor, error) {
	return im.valuesOf(func(*graph.Node) bool { return true })
}

// valuesOf are the values of some sources by name.
func (im *Imported) valuesOf(which func(*graph.Node) bool) (map[string]*graph.Tensor, error) {
	values := map[string]*graph.Tensor{}
	var errs []error
	add := func(n *graph.Node, load func(*graph.Tensor) error) {
		if !which(n) {
			return
		}
		t := graph.NewTensor(n.Type)
		if err := load(t); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", n.Where(), err))
			return
		}
		values[n.Name] = t
	}
	for _, s := range im.Sources {
		add(s.Value, func(t *graph.Tensor) error { return Load(t, s.Node.Value()) })
	}
	for _, f := range im.Fills {
		add(f.Value, f.Fill)
	}
	for _, s := range im.States {
		add(s.Value, s.Load)
	}
	return values, errors.Join(errs...)
}

// Import makes a graph.Graph of g, which it does not change.
func Import(g *gorg.ExprGraph, o Options) (*Imported, error) {
	l, err := layout()
	if err != nil {
		return nil, err
	}
	if g == nil {
		return nil, fmt.Errorf("the Gorgonia graph is nil")
	}
	im := &importer{
		layout: l,
		opts:   o,
		names:  map[string]bool{},
		shared: map[any][2]*graph.Node{},
		Imported: &Imported{
			Graph:   graph.New(graphName(g)),
			Opaques: map[*graph.Node]*Opaque{},

			source: map[*graph.Node]*gorg.Node{},
		},
	}
	if err := im.run(g); err != nil {
		return nil, err
	}
	return im.Imported, nil
}

func graphName(g *gorg.ExprGraph) string {
	f := fieldsOf(g)
	return f.string("name")
}

// importer is an import under way.
type importer struct {
	*Imported
	layout nodeLayout
	opts   Options
	users  [][]*gorg.Node // by position
	// misshapen holds what derivatives are derivatives of where Gorgonia inferred another size for them.
	misshapen map[*gorg.Node]*gorg.Node
	names     map[string]bool
	call      call // the one under way: nothing keeps it
	// Operands and origins of calls are allocated several at a time.
	operands []*graph.Node
	origins  []graph.Origin
	builder  graph.Builder // of the call under way
	// shared holds the nodes of hidden state that operations share with their derivative, or with each other: of a value
	// that is held the state and what it is after the operations so far.
	shared map[any][2]*graph.Node
	seed   *graph.Node // the counter of random operations
	draws  int         // how many random operations there are
}

func (im *importer) children(n *gorg.Node) []*gorg.Node {
	return nodeField[gorg.Nodes](n, im.layout.children)
}

// nameOf is the name that the user gave a node, or "" if there is none.
func nameOf(n *gorg.Node) string {
	l, err := layout()
	if err != nil {
		return n.Name()
	}
	return nodeField[string](n, l.name)
}

func (im *importer) run(g *gorg.ExprGraph) error {
	order, err := im.order(g)
	if err != nil {
		return err
	}
	im.at = newPositions(order)
	for _, n := range order {
		im.at.add(n)
	}
	im.values = make([]*graph.Node, len(order))
	im.Graph.Nodes = make([]*graph.Node, 0, len(order)+len(order)/4)
	im.findUsers()
	im.findMisshapen(order)
	for _, n := range order {
		if err := im.node(n); err != nil {
			return err
		}
	}
	im.advanceSeed()
	im.grads(order)
	im.outputs(order)
	im.warn(order)
	if im.opts.Unverified {
		return nil
	}
	if err := graph.Verify(im.Graph); err != nil {
		return fmt.Errorf("importing a Gorgonia graph: %w", err)
	}
	return nil
}

// findUsers lists the users of every node.
func (im *importer) findUsers() {
	counts, total := make([]int, len(im.at.nodes)), 0
	for _, n := range im.at.nodes {
		for _, c := range im.children(n) {
			counts[im.at.of(c)]++
			total++
		}
	}
	im.users = make([][]*gorg.Node, len(im.at.nodes))
	all := make([]*gorg.Node, total)
	for i, k := range counts {
		im.users[i], all = all[:0:k], all[k:]
	}
	for _, n := range im.at.nodes {
		for _, c := range im.children(n) {
			i := im.at.of(c)
			im.users[i] = append(im.users[i], n)
		}
	}
}

// findMisshapen finds the derivatives for which Gorgonia inferred another number of elements than that of what they are
// derivatives of, as it does for those behind the gradient of an outer product.
func (im *importer) findMisshapen(order []*gorg.Node) {
	fits := func(n *gorg.Node) bool { return elems(nodeShape(n)) == elems(nodeShape(n.Deriv())) }
	for _, n := range order {
		if n.Deriv() != nil && !fits(n) {
			if im.misshapen == nil {
				im.misshapen = map[*gorg.Node]*gorg.Node{}
			}
			im.misshapen[n.Deriv()] = n
		}
	}
	if im.misshapen == nil {
		return
	}
	for _, n := range order {
		if n.Deriv() != nil && fits(n) {
			delete(im.misshapen, n.Deriv())
		}
	}
}

// usersOf lists the nodes that read n, a node of the order, as often as they do.
func (im *importer) usersOf(n *gorg.Node) []*gorg.Node { return im.users[im.at.of(n)] }

// order lists the nodes, operands first: depth first in the order in which they were made. Nodes that are reachable
// but were dropped from the graph by one of Gorgonia's rewrites come too.
func (im *importer) order(g *gorg.ExprGraph) ([]*gorg.Node, error) {
	const (
		unseen = iota
		open
		done
	)
	type frame struct {
		n *gorg.Node
		i int
	}
	seen := newPositions(g.AllNodes())
	mark := make([]uint8, 0, len(g.AllNodes())) // of nodes that were seen
	state := func(n *gorg.Node) uint8 {
		if i := seen.of(n); i >= 0 {
			return mark[i]
		}
		return unseen
	}
	begin := func(n *gorg.Node) {
		seen.add(n)
		mark = append(mark, open)
	}
	out := make([]*gorg.Node, 0, len(g.AllNodes()))
	for _, root := range g.AllNodes() {
		if state(root) != unseen {
			continue
		}
		begin(root)
		stack := []frame{{root, 0}}
		for len(stack) > 0 {
			f := &stack[len(stack)-1]
			c := im.children(f.n)
			if f.i == len(c) {
				mark[seen.of(f.n)] = done
				out = append(out, f.n)
				stack = stack[:len(stack)-1]
				continue
			}
			next := c[f.i]
			f.i++
			switch state(next) {
			case open:
				return nil, fmt.Errorf("the Gorgonia graph has a cycle through %v", next)
			case unseen:
				begin(next)
				stack = append(stack, frame{next, 0})
			}
		}
	}
	return out, nil
}

// unique gives a source a name that no other has.
func (im *importer) unique(name string) string {
	base := name
	for i := 2; im.names[name]; i++ {
		name = fmt.Sprintf("%s#%d", base, i)
	}
	im.names[name] = true
	return name
}

// note leaves a remark about n, which may be nil.
func (im *importer) note(n *graph.Node, format string, a ...any) {
	im.Graph.Notes = append(im.Graph.Notes, graph.Note{Text: fmt.Sprintf(format, a...), Node: n})
}

// originOf names a node of Gorgonia's, which does not know where in the program it was made.
func originOf(n *gorg.Node) graph.Origin {
	if name := nameOf(n); name != "" {
		return graph.Origin{Name: name}
	}
	if op := n.Op(); op != nil {
		return graph.Origin{Name: describe(op)}
	}
	return graph.Origin{Name: fmt.Sprintf("input %d", n.ID())}
}

// Named reports whether the user gave the node a name.
func Named(n *gorg.Node) bool { return nameOf(n) != "" }

// Called is what messages call a node: the user's name for it, or else its operation.
func Called(n *gorg.Node) string { return originOf(n).Name }

// TypeOf is the type of a node's value.
func TypeOf(n *gorg.Node) (graph.Type, error) {
	var t graph.Type
	d, err := nodeDtype(n)
	if err == nil {
		t.DType, err = DTypeOf(d)
	}
	if err == nil {
		shape := nodeShape(n)
		if v := n.Value(); v != nil && len(shape) == 0 && n.Op() == nil {
			shape = v.Shape()
		}
		if len(shape) == 0 && n.Op() == nil && !n.IsScalar() {
			err = errors.New("the node has no shape: give it one with WithShape, or a value")
		} else {
			t.Shape, err = shapeOf(shape)
		}
	}
	if err != nil {
		return t, fmt.Errorf("%s: %w", originOf(n).Name, err)
	}
	return t, nil
}

// nodeShape is n.Shape(), which copies it. Nobody may change the result.
func nodeShape(n *gorg.Node) tensor.Shape {
	l, err := layout()
	if err != nil {
		return n.Shape()
	}
	return nodeField[tensor.Shape](n, l.shape)
}

// roomAtOnce is how many elements of a list are allocated together, about.
const roomAtOnce = 64

// begin makes the builder of a call.
func (c *call) begin() {
	c.origins = append(room(c.origins, 1), c.from)
	c.builder = *graph.Extend(c.Graph, slices.Clip(c.origins[len(c.origins)-1:])...)
	if c.Backward(c.n) {
		c.builder.In(graph.Backward)
	}
	c.b = &c.builder
}

// room is list, or a new one if list has no room for n more.
func room[T any](list []T, n int) []T {
	if cap(list)-len(list) < n {
		return make([]T, 0, roomAtOnce+n)
	}
	return list
}

// Rank is len(n.Shape()).
func Rank(n *gorg.Node) int { return len(nodeShape(n)) }

// node imports one node whose operands have been imported.
func (im *importer) node(n *gorg.Node) error {
	op := n.Op()
	if op == nil {
		return im.input(n)
	}
	if x, ok := op.(*gorg.ExternalOp); ok {
		op = x.Op
	}
	switch typeName(op) {
	case "readOp":
		return im.read(n)
	case "letOp":
		im.note(nil, "%s: gorgonia.Set has no effect, as on a TapeMachine", originOf(n).Name)
		return nil
	}
	want, err := opaqueType, error(nil)
	if !strange(n) {
		if want, err = TypeOf(n); err != nil {
			return err
		}
		if of := im.misshapen[n]; of != nil {
			if want.Shape, err = shapeOf(nodeShape(of)); err != nil {
				return err
			}
		}
	}
	im.call = call{importer: im, n: n, op: op, fields: fieldsIn(op), want: want, from: originOf(n)}
	c := &im.call
	c.f = &c.fields
	c.begin()
	children := im.children(n)
	im.operands = room(im.operands, len(children))
	first := len(im.operands)
	for _, k := range children {
		a := im.Node(k)
		if a == nil {
			return fmt.Errorf("%s: operand %s has no value", originOf(n).Name, originOf(k).Name)
		}
		im.operands = append(im.operands, a)
	}
	c.args = slices.Clip(im.operands[first:])
	v, err := c.decode()
	if err != nil {
		return fmt.Errorf("importing %s: %w", originOf(n).Name, err)
	}
	im.stand(n, v)
	c.tell(v)
	if name := nameOf(n); name != "" && v.Name == "" {
		if _, isConst := v.Op.(graph.Const); !isConst {
			v.Name = name
		}
	}
	return nil
}

// input imports a node without an operation.
func (im *importer) input(n *gorg.Node) error {
	if strange(n) {
		return im.opaqueInput(n)
	}
	t, err := TypeOf(n)
	if err != nil {
		return err
	}
	kind := Auto
	if im.opts.Kind != nil {
		kind = im.opts.Kind(n)
	}
	if kind == Auto {
		kind = DefaultKind(n)
	}
	name := nameOf(n)
	if name == "" {
		name = fmt.Sprintf("input%d", n.ID())
	}
	b := graph.Extend(im.Graph, originOf(n))
	name = im.unique(name)
	var v *graph.Node
	if kind == AsParam {
		v = b.Param(name, t)
	} else {
		v = b.Input(name, t)
	}
	if err := b.Err(); err != nil {
		return err
	}
	im.stand(n, v)
	im.source[v] = n
	im.Sources = append(im.Sources, Source{n, v})
	return nil
}

func (im *importer) read(n *gorg.Node) error {
	f := fieldsOf(n.Op())
	into := value[*gorg.Value](f, "into")
	c := im.children(n)
	if f.err != nil || into == nil || len(c) != 1 {
		return fmt.Errorf("%s: cannot tell what to read: %w", originOf(n).Name, f.err)
	}
	im.Reads = append(im.Reads, Read{into, c[0], im.Node(c[0])})
	return nil
}

// outputs names the values that the graph hands out.
func (im *importer) outputs(order []*gorg.Node) {
	costs := map[*graph.Node]bool{}
	for _, g := range im.Grads {
		if g.Cost != nil {
			costs[g.Cost] = true
		}
	}
	out := map[*graph.Node]bool{}
	names := map[string]bool{}
	add := func(v *graph.Node, name string) {
		if v == nil || out[v] {
			return
		}
		base := name
		for i := 2; names[name]; i++ {
			name = fmt.Sprintf("%s#%d", base, i)
		}
		out[v], names[name] = true, true
		im.Graph.Outputs = append(im.Graph.Outputs, graph.Output{Name: name, Node: v})
	}
	for _, n := range order {
		v := im.Node(n)
		if v == nil || n.Op() == nil {
			continue
		}
		if im.isRoot(n) && !im.Backward(n) || costs[v] {
			if _, isConst := v.Op.(graph.Const); isConst && !costs[v] {
				continue // a constant that nothing reads
			}
			name := nameOf(n)
			if name == "" {
				name = fmt.Sprintf("out%d", len(im.Roots))
			}
			im.Roots = append(im.Roots, Root{n, v})
			add(v, name)
		}
	}
	for i, r := range im.Reads {
		name := r.Value.Name
		if name == "" {
			name = fmt.Sprintf("read%d", i)
		}
		add(r.Value, name)
	}
	for _, g := range im.Grads {
		if g.Wanted {
			name := g.Of.Name
			if name == "" {
				name = fmt.Sprint(g.Of.ID)
			}
			add(g.Value, "grad/"+name)
		}
	}
}

// isRoot reports whether no operation reads n; statements do not count.
func (im *importer) isRoot(n *gorg.Node) bool {
	for _, u := range im.usersOf(n) {
		switch typeName(u.Op()) {
		case "readOp", "letOp":
		default:
			return false
		}
	}
	return true
}
