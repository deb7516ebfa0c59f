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
// node: which elements fall follows from it and from their places alone, so that the gradient drops the same and a
// run can be repeated, on whatever machine. [Seeds] hands out seeds that differ from run to run. In evaluation
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

// still implements drawer.
func (d dropout) still() definition { return dropout{} }

// Seeds hands out seeds for random operations: each a node of its own, with a value that differs from all others' and
// from run to run, and is the same again in another process. The runs are counted by the node itself, on Gorgonia's
// machines when they compute it and on fusec's when a run has succeeded; so a graph draws the same numbers on both.
type Seeds struct {
	g     *gorgonia.ExprGraph
	seed  int64
	count int64
}

// NewSeeds starts a sequence of seeds for operations of g. Two sequences of one number are the same.
func NewSeeds(g *gorgonia.ExprGraph, seed int64) *Seeds { return &Seeds{g: g, seed: seed} }

// Next makes the node of another seed.
func (s *Seeds) Next() *gorgonia.Node {
	s.count++
	o := &seedOp{seed: s.seed, number: s.count}
	return gorgonia.NewUniqueNode(gorgonia.WithType(o.Type()), gorgonia.WithOp(o), gorgonia.In(s.g), gorgonia.WithShape())
}

// A seedOp gives a number that follows from its seed and its number, and one more each time it is run.
type seedOp struct {
	seed, number int64
	steps        int64 // how often it has run
}

var _ fgorgonia.Stepper = (*seedOp)(nil)

// first is the value of the first run: a word of the generator, so that those of two operations do not meet.
func (o *seedOp) first() int64 {
	w := graph.Philox(uint64(o.seed), uint64(o.number))
	return int64(uint64(w[0])<<32 | uint64(w[1]))
}

// Steps implements the importer's Stepper.
func (o *seedOp) Steps() *int64 { return &o.steps }

// Build implements the importer's Builder.
func (o *seedOp) Build(b *graph.Builder, args []*graph.Node) (*graph.Node, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("%s wants its count as the one operand, not %d", o, len(args))
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
