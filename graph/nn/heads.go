package nn

import (
	"fmt"

	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// SplitHeads turns x [..., s, h·d] into [..., h, s, d], as [Attention] takes it.
func SplitHeads(x *gorgonia.Node, heads int) (*gorgonia.Node, error) {
	return apply(split{heads}, operand{"x", x})
}

// MergeHeads is the inverse of [SplitHeads]: x [..., h, s, d] becomes [..., s, h·d].
func MergeHeads(x *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(merge{}, operand{"x", x})
}

type split struct{ heads int }

func (d split) name() string { return fmt.Sprintf("SplitHeads(%d)", d.heads) }

func (d split) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	x := args[0]
	dims := x.Type.Shape.Slice()
	r := len(dims)
	if r < 2 || r == graph.MaxRank || d.heads < 1 || dims[r-1]%d.heads != 0 {
		return b.Fail(fmt.Errorf("%s of type %v does not split into %d heads", x.Where(), x.Type, d.heads))
	}
	dims = append(dims[:r-1], d.heads, dims[r-1]/d.heads)
	return b.Transpose(b.Reshape(x, dims...), swapped(r+1)...)
}

type merge struct{}

func (merge) name() string { return "MergeHeads" }

func (merge) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	x := args[0]
	s := x.Type.Shape
	r := s.Rank()
	if r < 3 {
		return b.Fail(fmt.Errorf("%s of type %v has no heads to merge: want [..., h, s, d]", x.Where(), x.Type))
	}
	x = b.Transpose(x, swapped(r)...)
	return b.Reshape(x, s.Drop(graph.IntsOf(r-3)).With(r-2, s.At(r-3)*s.At(r-1)).Slice()...)
}

// swapped is the permutation of r axes that exchanges the axes of heads and positions, the third and second from the
// end.
func swapped(r int) []int {
	perm := make([]int, r)
	for i := range perm {
		perm[i] = i
	}
	perm[r-3], perm[r-2] = r-2, r-3
	return perm
}
