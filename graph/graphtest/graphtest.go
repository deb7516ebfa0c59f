// Package graphtest makes random graphs, and values for them, for tests.
package graphtest

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"fusec/graph"
	_ "fusec/graph/graphtest/untuned"
)

// Options say what a random graph may contain.
type Options struct {
	// Nodes is the approximate number of operations; 0 means 20.
	Nodes int
	// Allow, if not nil, decides which operations of the table may appear. Inputs, parameters and constants always may.
	Allow func(name string) bool
	// Floats, if set, is the only floating-point type of the graph; else f32 and f64 both appear.
	Floats graph.DType
	// Halves lets values of 16 bits appear: as sources, cast, moved and contracted.
	Halves bool
	// Wide also draws what programs rarely have: axes of no elements, of one element and longer than vectors,
	// arithmetic of integers and Bools, indices and starts that are inputs, constants with equal elements as any
	// operand, results read in every combination, equal nodes, and outputs that are also read. Values with which it
	// does not fail come from [Fit]. Host operations have code.
	Wide bool
	// FewBits lets values stored in few bits appear: quantized constants, and products with weights in panels.
	FewBits bool
	// Sizes are those of axes, equally likely; nil for mostly odd ones up to 7.
	Sizes []int
	// Steps lets recurrences and draws of tokens appear.
	Steps bool
	// Draw is the kind of values of the constants of a Wide graph.
	Draw Draw
}

// Random makes a valid graph. The same state of r gives the same graph. Axes have sizes from 1 to 7, mostly odd. It
// runs without failure for all values: indices, starts and seeds are constants that fit, and integers are never
// divided. Values may become infinite or NaN. A host operation has no code.
func Random(r *rand.Rand, o Options) *graph.Graph {
	g := newGenerator(r, o)
	allowed := g.allowed()
	g.input(g.float())
	for range g.o.Nodes {
		if len(allowed) > 0 {
			allowed[r.IntN(len(allowed))](g)
		}
	}
	return g.finish()
}

// allowed lists the makers of the operations that may appear.
func (g *generator) allowed() []func(*generator) {
	var l []func(*generator)
	for _, info := range graph.Ops() { // not the map: its order changes
		if fewBits[info.Name] && !g.o.FewBits || ofSteps(info.Name) && !g.o.Steps {
			continue
		}
		if m := makers[info.Name]; m != nil && (g.o.Allow == nil || g.o.Allow(info.Name)) {
			l = append(l, m)
			if g.o.Wide && (info.Class == graph.ClassElementwise || info.Class == graph.ClassReduce) { // the many functions
				l = append(l, m, m)
			}
		}
	}
	return l
}

// ofSteps reports whether an operation goes through sequences step by step.
func ofSteps(name string) bool { return strings.HasPrefix(name, "recurrence") || name == "sample" }

func newGenerator(r *rand.Rand, o Options) *generator {
	whole := graph.New("random")
	g := &generator{r: r, o: o, graph: whole, b: graph.Extend(whole), sizes: []int{1, 1, 2, 3, 3, 4, 5, 7}}
	if o.Nodes == 0 {
		g.o.Nodes = 20
	}
	if o.Sizes != nil {
		g.sizes = o.Sizes
	} else if o.Wide {
		g.sizes = wideSizes[r.IntN(len(wideSizes))]
	}
	return g
}

// Values makes a random tensor for every Input, Param and State of g, by name: floats from a normal distribution,
// integers from 0 to 2.
func Values(r *rand.Rand, g *graph.Graph) map[string]*graph.Tensor {
	m := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		m[n.Name] = Tensor(r, n.Type)
	}
	return m
}

// Weights is [Values] without the Inputs.
func Weights(r *rand.Rand, g *graph.Graph) map[string]*graph.Tensor {
	m := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		if _, ok := n.Op.(graph.Input); !ok {
			m[n.Name] = Tensor(r, n.Type)
		}
	}
	return m
}

// Tensor makes a random tensor as [Values] does.
func Tensor(r *rand.Rand, t graph.Type) *graph.Tensor {
	x := graph.NewTensor(t)
	for i := range t.Shape.Elems() {
		if t.DType.IsReal() {
			x.SetFloat(i, r.NormFloat64())
		} else {
			x.SetFloat(i, float64(r.IntN(3)))
		}
	}
	return x
}

// generator makes one graph.
type generator struct {
	r     *rand.Rand
	o     Options
	graph *graph.Graph
	b     *graph.Builder
	nodes []*graph.Node // what may be read
	names int
	sizes []int // of axes, equally likely
	tame  bool  // functions are smooth and values of moderate size; see [Hostile]
}

// maxElems bounds the size of values.
const maxElems = 1 << 12

// add adds a node to those that others may read.
func (g *generator) add(n *graph.Node) *graph.Node {
	g.check(g.b.Err())
	if g.r.IntN(8) == 0 {
		g.b.Named(n, g.name("n"))
	}
	g.nodes = append(g.nodes, n)
	return n
}

// op appends an operation whose operands are known to fit, and sometimes an equal one.
func (g *generator) op(op graph.Op, args ...*graph.Node) *graph.Node {
	if g.rarely(12) {
		g.add(g.b.Add(op, args...))
	}
	return g.add(g.b.Add(op, args...))
}

// name makes a name that is not used yet; some need quotes.
func (g *generator) name(prefix string) string {
	g.names++
	if g.r.IntN(10) == 0 {
		prefix += " \"ü\" "
	}
	return fmt.Sprintf("%s%d", prefix, g.names)
}

func (g *generator) coin() bool { return g.r.IntN(2) == 0 }

// dim is the size of an axis.
func (g *generator) dim() int { return g.sizes[g.r.IntN(len(g.sizes))] }

func (g *generator) dims(rank int) []int {
	d := make([]int, rank)
	for i, elems := 0, 1; i < rank; i++ {
		d[i] = g.dim()
		if g.o.Wide && elems*d[i] > maxElems/4 {
			d[i] = 1
		}
		elems *= max(d[i], 1)
	}
	return d
}

func (g *generator) floatType() graph.DType {
	switch {
	case g.o.Floats != graph.Invalid:
		return g.o.Floats
	case g.coin():
		return graph.F32
	}
	return graph.F64
}

// float is a floating-point type of some rank up to 4.
func (g *generator) float() graph.Type { return graph.TypeOf(g.floatType(), g.dims(g.r.IntN(5))...) }

// source is the type of a source: of floats, or sometimes of 16 bits.
func (g *generator) source() graph.Type {
	t := g.float()
	if g.o.Halves && g.coin() {
		t.DType = g.halfType()
	}
	return t
}

func (g *generator) input(t graph.Type) *graph.Node {
	return g.add(g.b.Input(g.name("x"), t))
}

func (g *generator) param(t graph.Type) *graph.Node {
	return g.add(g.b.Param(g.name("layer/w."), t))
}

// find returns a node that satisfies want, or makes a source or constant of type other.
func (g *generator) find(want func(graph.Type) bool, other graph.Type) *graph.Node {
	for range 8 {
		n := g.nodes[g.r.IntN(len(g.nodes))]
		if want(n.Type) {
			return n
		}
	}
	switch g.r.IntN(4) {
	case 0:
		return g.param(other)
	case 1:
		return g.constant(other)
	}
	return g.input(other)
}

// of returns a node of exactly the type t.
func (g *generator) of(t graph.Type) *graph.Node {
	return g.find(func(u graph.Type) bool { return u == t }, t)
}

// ofRank returns a floating-point node with rank from lo to hi.
func (g *generator) ofRank(lo, hi int) *graph.Node {
	rank := lo + g.r.IntN(min(hi, 4)-lo+1)
	return g.find(func(t graph.Type) bool {
		return t.DType.IsFloat() && t.Shape.Rank() >= lo && t.Shape.Rank() <= hi
	}, graph.TypeOf(g.floatType(), g.dims(rank)...))
}

// half returns x, or sometimes its value in 16 bits if Halves is set.
func (g *generator) half(x *graph.Node) *graph.Node {
	if !g.o.Halves || !g.coin() {
		return x
	}
	return g.op(graph.Cast{To: g.halfType()}, x)
}

func (g *generator) halfType() graph.DType {
	if g.coin() {
		return graph.BF16
	}
	return graph.F16
}

// any returns a node of numbers of any rank.
func (g *generator) any() *graph.Node { return g.ofRank(0, graph.MaxRank) }

// like returns an operand for an elementwise operation on n: of the same type, or sometimes a scalar.
func (g *generator) like(n *graph.Node) *graph.Node {
	if g.r.IntN(4) == 0 {
		return g.b.Scalar(n.Type.DType, g.r.NormFloat64())
	}
	return g.of(n.Type)
}

// i64 is a constant scalar, or an input for which [Fit] finds a value.
func (g *generator) i64(v int) *graph.Node {
	if g.rarely(2) {
		return g.input(graph.TypeOf(graph.I64))
	}
	return g.b.Scalar(graph.I64, float64(v))
}

// axis picks an axis of n.
func (g *generator) axis(n *graph.Node) int { return g.r.IntN(n.Type.Shape.Rank()) }

// axes picks some axes of n, in order.
func (g *generator) axes(n *graph.Node) graph.Ints {
	var l []int
	for i := range n.Type.Shape.Rank() {
		if g.coin() {
			l = append(l, i)
		}
	}
	return graph.IntsOf(l...)
}

// finish makes outputs of the nodes that nothing reads, adds updates, and verifies.
func (g *generator) finish() *graph.Graph {
	read := map[*graph.Node]bool{}
	for _, n := range g.nodes {
		for _, a := range n.Args {
			read[a] = true
		}
	}
	for _, n := range g.nodes {
		if !read[n] || g.r.IntN(16) == 0 || g.rarely(5) {
			g.b.Output(g.name("y"), n)
		}
		if _, ok := n.Op.(graph.State); ok {
			g.b.Update(n, g.update(n))
		}
	}
	got, err := g.b.Graph()
	g.check(err)
	line := 0
	setOrigins(got, &line)
	return got
}

// update is a new value for a state: itself with a part overwritten if there is such a value, else any.
func (g *generator) update(state *graph.Node) *graph.Node {
	for _, n := range g.nodes {
		if _, ok := n.Op.(graph.UpdateSlice); ok && n.Args[0] == state {
			return n
		}
	}
	return g.of(state.Type)
}

// setOrigins gives every node a different position, and a phase.
func setOrigins(g *graph.Graph, line *int) {
	for _, n := range g.Nodes {
		*line++
		n.Origin = []graph.Origin{{Name: n.Name, Pos: fmt.Sprintf("random.go:%d", *line)}}
		n.Phase = graph.Phase(*line % 3)
		if f, ok := n.Op.(graph.Fusion); ok {
			setOrigins(f.Body, line)
		}
	}
}

// check panics: an error means that a maker is wrong.
func (g *generator) check(err error) {
	if err != nil {
		panic(fmt.Sprintf("graphtest: %v", err))
	}
}
