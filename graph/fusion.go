package graph

import (
	"fmt"
	"slices"
)

// Fusion computes what Body computes, in one launch. Operand i is Body's i-th Input; the results are Body's outputs
// in order. Anchor is the expensive part; the elementwise work around it sits in the anchor's slots.
type Fusion struct {
	Anchor Anchor
	Kind   Kind
	Body   *Graph
}

// OpName implements Op.
func (Fusion) OpName() string { return "fusion" }

var fusionRow = OpInfo{
	Name: "fusion", Doc: "a body computed in one launch", Operands: "x...", Proto: Fusion{}, Class: ClassFusion,
	Strided: true, Fails: func(n *Node) bool { return n.Op.(Fusion).Fails() }, MaxArgs: -1, Infer: inferFusion,
	FLOPs: flopsFusion,
}

// A Fusion's body obeys one form, which fuse-regions makes. Package graph/body lowers it for all targets, and
// refuses a body that breaks it:
//
//	inputs ─► load views ─► anchor ─► epilogue ─► store views ─► outputs
//
//   - Inputs come first, in the order of the operands.
//   - A load view is a chain of Reshape, Transpose, Broadcast and Slice (with constant start) on an input. It costs
//     nothing: the kernel reads through strides.
//   - The epilogue is elementwise. Its values have the shape of the anchor's result, or are scalars; their other operands
//     are load views or constants of one value.
//   - A store view is a chain of Reshape and Transpose on the way to an output, such that the output's row-major
//     buffer, seen through the inverse, has strides. Nothing else reads it.
//
// By anchor:
//
//   - AnchorNone: elementwise only; every value has the one shape of the outputs, before store views, or is a scalar. The
//     body may fall into segments ([Fusion.Segments]) that share nothing but inputs, each with a shape of its own: one
//     launch that does the same to many values, as an optimiser does to its parameters. A segment may also hand out a
//     load view: a copy.
//   - AnchorMatMul: one MatMul, whose operands are load views. [Verify] also passes several that read nothing but inputs:
//     no pass makes such a body, and no target has a kernel for it.
//   - AnchorConv: one Conv2D, whose operands are load views.
//   - AnchorRow: Reduce, Softmax, LogSoftmax, LayerNorm and RMSNorm over the same axes of values of one shape S, which
//     also the elementwise work has; or of the reduced shape R (with the axes kept at 1, dropped, or as a Reshape of
//     that); Reshape and Broadcast lead from R back to S. If the axes are not the innermost ones, passes make no body in
//     which something leads back. Elementwise work may come first. Gamma and beta of a norm are load views, or constants
//     of one value; where S has one axis they may be values of shape S.
//   - Column sums: next to its elements, a launch of AnchorMatMul, or of AnchorRow over the innermost axes, may hand out
//     their sums over all other axes: a Reduce of Sum, of a value of full shape, to the last axis of the product or to
//     the axes of the rows. Nothing in the body but store views reads it. See [Fusion.ColumnSum].
//   - AnchorAttention: one Attention or AttentionGrad, whose operands are load views; scale, masks and dropout are its
//     own. Its seed may be a constant. Outputs are its results, through store views, each cast to 16 bits first where it
//     is kept so: the first always, others where they are read, none twice.
//   - AnchorMoE: one MoE or MoEGrad, whose operands are load views. Outputs are its results, as for an attention.
//
// A Cast counts as elementwise, and stands where elementwise work does: an operand of 16 bits is cast after its load views,
// and what is kept in 16 bits before its store views. Operands of contractions have their types as they come.
//
// Dropout counts as elementwise where it has the shape of the work around it; its seed is an input or a constant.

// Anchored returns the node of the body's anchor: the operation of the Fusion's anchor, or for AnchorRow the first that is
// not a column sum; nil for AnchorNone.
func (f Fusion) Anchored() *Node {
	if f.Anchor == AnchorNone {
		return nil
	}
	var first *Node
	for _, n := range f.Body.Nodes {
		if a, _ := AnchorOf(n.Op); a != f.Anchor {
			continue
		}
		if f.Anchor != AnchorRow {
			return n
		}
		if first == nil {
			first = n
		}
		if axes, _ := RowAxes(n); SumsColumns(first) && !Leading(n.Args[0].Type.Shape, axes) {
			return n // and the first was a column sum beside it
		}
	}
	return first
}

// checkAnchor refuses a body that holds no operation of the anchor, more than one where a launch computes one, or one of
// another anchor. Products side by side pass.
func (f Fusion) checkAnchor() error {
	anchored, beside := 0, true // beside: all read inputs alone
	for _, n := range f.Body.Nodes {
		switch a, _ := AnchorOf(n.Op); {
		case a == AnchorNone:
		case a == f.Anchor:
			anchored++
			beside = beside && f.Anchor == AnchorMatMul && !slices.ContainsFunc(n.Args, func(a *Node) bool { return !IsSource(a.Op) })
		case f.Anchor != AnchorMatMul || !SumsColumns(n):
			return fmt.Errorf("%s has no place in a fusion of anchor %v", n.Where(), f.Anchor)
		}
	}
	switch {
	case f.Anchor != AnchorNone && anchored == 0:
		return fmt.Errorf("a fusion of anchor %v without one", f.Anchor)
	case f.Anchor != AnchorRow && anchored > 1 && !beside:
		return fmt.Errorf("a fusion of anchor %v with %d of them", f.Anchor, anchored)
	}
	return nil
}

// Fails reports whether an operation of the body may find at run time that it has no result.
func (f Fusion) Fails() bool { return slices.ContainsFunc(f.Body.Nodes, Fails) }

// ColumnSum reports whether n, a node of the body, is a column sum: not the anchor's way of combining elements, but a
// sum across the rows that the anchor makes.
func (f Fusion) ColumnSum(n *Node) bool {
	switch f.Anchor {
	case AnchorMatMul:
		return SumsColumns(n)
	case AnchorRow:
		along, _ := RowAxes(f.Anchored())
		across, _ := RowAxes(n)
		return SumsColumns(n) && across != along
	}
	return false
}

// SumsColumns reports whether n is a sum over leading axes, of a value that has further ones.
func SumsColumns(n *Node) bool {
	op, ok := n.Op.(Reduce)
	if !ok || op.Fn != Sum {
		return false
	}
	axes, _ := RowAxes(n)
	return Leading(n.Args[0].Type.Shape, axes)
}

// Leading reports whether the given, sorted, axes are the first ones of s, and not all.
func Leading(s Shape, axes Ints) bool {
	for i := range axes.Len() {
		if axes.At(i) != i {
			return false
		}
	}
	return axes.Len() > 0 && axes.Len() < s.Rank()
}

// LaneOf is the element type that a computing node of a body needs: f32 where only f32, 16 bits and masks meet, else f64, which
// has room for integers too. Fusions gather nodes of one lane type, and kernels compute a body in it.
func LaneOf(n *Node) DType {
	if n.Type.DType == F64 || n.Type.DType.IsInt() {
		return F64
	}
	readsInts := false // without computing with them
	switch n.Op.(type) {
	case Cast:
		readsInts = !n.Type.DType.Is16() // which f32 would round twice
	case Dropout:
		readsInts = true
	}
	for _, a := range n.Args {
		if a.Type.DType == F64 || a.Type.DType.IsInt() && !readsInts {
			return F64
		}
	}
	return F32
}

// RowAxes returns the axes along which an operation of an AnchorRow combines elements, in ascending order; ok is false
// for other operations.
func RowAxes(n *Node) (axes Ints, ok bool) {
	if i := InfoOf(n.Op); i != nil && i.RowAxes != nil {
		return i.RowAxes(n), true
	}
	return Ints{}, false
}

// reducedAxes are those of a Reduce.
func reducedAxes(n *Node) Ints {
	sorted := n.Op.(Reduce).Axes.Slice()
	slices.Sort(sorted)
	return IntsOf(sorted...)
}

// lastAxis is that along which a norm combines elements.
func lastAxis(n *Node) Ints { return IntsOf(n.Type.Shape.Rank() - 1) }

// Reads is how many elements of each operand the body reads: all, or where it reads only slices of one, those of the
// slices, which are taken to be disjoint.
func (f Fusion) Reads() []int64 {
	uses := f.Body.Uses()
	read := map[*Node]int64{}
	var reads []int64
	for _, n := range slices.Backward(f.Body.Nodes) {
		all, parts, whole := elems(n.Type), int64(0), uses.Escapes(n)
		for _, u := range uses.Readers(n) {
			switch u.Op.(type) {
			case Slice, Reshape, Transpose:
				whole = whole || u.Args[0] != n
				parts += read[u]
			default:
				whole = true
			}
		}
		read[n] = min(all, parts)
		if whole {
			read[n] = all
		}
		if _, ok := n.Op.(Input); ok {
			reads = append(reads, read[n])
		}
	}
	slices.Reverse(reads)
	return reads
}

// IsStoreView reports whether n is a view on the way from a computed value of a body to an output.
func IsStoreView(n *Node) bool {
	switch n.Op.(type) {
	case Reshape, Transpose:
		return IsComputed(n.Args[0])
	}
	return false
}

// IsComputed reports whether n, a node of a body, is neither an input or constant nor a view of one.
func IsComputed(n *Node) bool {
	for IsView(n.Op) {
		n = n.Args[0]
	}
	switch n.Op.(type) {
	case Input, Const:
		return false
	}
	return true
}

func inferFusion(op Op, args []Type) ([]Type, error) {
	f := op.(Fusion)
	if f.Body == nil {
		return nil, fmt.Errorf("has no body")
	}
	i := 0
	for _, n := range f.Body.Nodes {
		if _, ok := n.Op.(Input); !ok {
			continue
		}
		if i == len(args) {
			return nil, fmt.Errorf("body has more inputs than the %d operands", len(args))
		}
		if n.Type != args[i] {
			return nil, fmt.Errorf("operand %d is %v, the body's input is %v", i, args[i], n.Type)
		}
		i++
	}
	if i != len(args) {
		return nil, fmt.Errorf("body has %d inputs for %d operands", i, len(args))
	}
	if len(f.Body.Outputs) == 0 || len(f.Body.Updates) > 0 {
		return nil, fmt.Errorf("body has %d outputs and %d updates", len(f.Body.Outputs), len(f.Body.Updates))
	}
	out := make([]Type, len(f.Body.Outputs))
	for j, o := range f.Body.Outputs {
		out[j] = o.Node.Type
	}
	return out, nil
}

func flopsFusion(op Op, _, _ []Type) int64 {
	var sum int64
	for _, n := range op.(Fusion).Body.Nodes {
		sum += CostOf(n).FLOPs
	}
	return sum
}
