package nn

import (
	"fmt"
	"hash"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Dropout zeroes each element of x with probability p in [0,1) and divides the others by 1−p. The seed is a scalar int
// node. The dropped elements depend only on the seed and their positions, so that the gradient drops the same elements
// and a run can be repeated on any machine. [Seeds] makes seeds that differ from run to run. In evaluation
// (gorgonia.EvalMode) nothing is dropped.
func Dropout(x *gorgonia.Node, p float64, seed *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(dropout{p}, operand{"x", x}, operand{"seed", seed})
}

type dropout struct{ p float64 }

func (d dropout) name() string { return single{graph.Dropout{P: d.p}, "Dropout"}.name() }

func (d dropout) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	if d.p == 0 {
		return args[0]
	}
	return b.Add(graph.Dropout{P: d.p}, args...)
}

// still implements modal.
func (d dropout) still() definition { return dropout{} }

// Seeds makes seeds for random operations. Each is a separate node, whose value differs from all others and from run to
// run, and is the same in another process. The node counts the runs itself: on Gorgonia's machines when they compute
// it, and on fusec's at the end of a successful run. So a graph draws the same numbers on both.
type Seeds struct {
	g     *gorgonia.ExprGraph
	seed  int64
	count int64
}

// NewSeeds starts a sequence of seeds for operations of g. Two sequences with the same seed are equal.
func NewSeeds(g *gorgonia.ExprGraph, seed int64) *Seeds { return &Seeds{g: g, seed: seed} }

// Next makes the node of the next seed.
func (s *Seeds) Next() *gorgonia.Node {
	s.count++
	o := &seedOp{seed: s.seed, number: s.count}
	return gorgonia.NewUniqueNode(gorgonia.WithType(o.Type()), gorgonia.WithOp(o), gorgonia.In(s.g), gorgonia.WithShape())
}

// A seedOp returns a number that follows from its seed and its index, plus the number of runs so far.
type seedOp struct {
	seed, number int64
	steps        int64 // how often it has run
}

var _ fgorgonia.Stepper = (*seedOp)(nil)

// first is the value of the first run: a word of the generator, so that the values of two operations do not coincide.
func (o *seedOp) first() int64 {
	w := graph.Philox(uint64(o.seed), uint64(o.number))
	return int64(uint64(w[0])<<32 | uint64(w[1]))
}

// Steps implements the importer's Stepper.
func (o *seedOp) Steps() *int64 { return &o.steps }

// Build implements the importer's Builder.
func (o *seedOp) Build(b *graph.Builder, args []*graph.Node) (*graph.Node, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("%s needs its count as its only operand, not %d", o, len(args))
	}
	first := &graph.Tensor{Type: graph.TypeOf(graph.I64), Data: []int64{o.first()}}
	return b.Binary(graph.Add, args[0], b.Const(first)), b.Err()
}

// Do implements gorgonia.Op.
func (o *seedOp) Do(...gorgonia.Value) (gorgonia.Value, error) {
	o.steps++
	return gorgonia.NewI(int(o.first() + o.steps - 1)), nil
}

// Arity implements gorgonia.Op.
func (o *seedOp) Arity() int { return 0 }

// Type implements gorgonia.Op.
func (o *seedOp) Type() hm.Type { return tensor.Int }

// InferShape implements gorgonia.Op.
func (o *seedOp) InferShape(...gorgonia.DimSizer) (tensor.Shape, error) {
	return tensor.ScalarShape(), nil
}

// ReturnsPtr implements gorgonia.Op.
func (o *seedOp) ReturnsPtr() bool { return false }

// CallsExtern implements gorgonia.Op.
func (o *seedOp) CallsExtern() bool { return false }

// OverwritesInput implements gorgonia.Op.
func (o *seedOp) OverwritesInput() int { return -1 }

// WriteHash implements gorgonia.Op.
func (o *seedOp) WriteHash(h hash.Hash) {
	fmt.Fprintf(h, "fusec/graph/nn seed %d %d", o.seed, o.number)
}

// Hashcode implements gorgonia.Op.
func (o *seedOp) Hashcode() uint32 { return hashOf(o) }

// String implements gorgonia.Op.
func (o *seedOp) String() string { return fmt.Sprintf("Seed(%d, %d)", o.seed, o.number) }
