package graph

import (
	"fmt"
	"slices"
)

// Fusion computes what Body computes, in one launch. Operand i is Body's i-th Input; the results are Body's outputs
// in order. Anchor is the expensive part; elementwise work around it is in the anchor's slots.
type Fusion struct {
	Anchor Anchor
	Kind   Kind
	Body   *Graph
}

// OpName implements Op.
func (Fusion) OpName() string { return "fusion" }

var fusionRow = OpInfo{
	Name: "fusion", Doc: "a body computed in one launch", Operands: "x...", Proto: Fusion{}, Class: ClassFusion,
	Strided: true, Stored: true, Fails: func(n *Node) bool { return n.Op.(Fusion).Fails() }, MaxArgs: -1, Infer: inferFusion,
	FLOPs: flopsFusion, Verb: func(op Op) string { return op.(Fusion).Kind.String() },
}

// A Fusion's body has the following form, which fuse-regions produces. Package graph/body lowers it for all targets. It
// refuses a body of another form, and so does [Verify]:
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
//   - AnchorNone: elementwise only; every value has the shape of the outputs, before store views, or is a scalar. The
//     body may consist of segments ([Fusion.Segments]) that share only inputs. Each segment has its own shape: one
//     launch does the same to many values, like an optimiser's update of its parameters. An output of a segment may
//     also be a load view: a copy.
//   - AnchorMatMul: one MatMul or PanelMatMul, whose operands are load views. [Verify] also accepts several that read only
//     inputs, for kernels of one's own: no pass makes such a body, and no target has a kernel for it.
//     Operand 0 may also be an RMSNorm of load views, or a Cast of one, which nothing else reads: see package passes/norms.
//   - AnchorConv: one Conv2D, Conv2DTranspose or SeparableConv2D, whose operands are load views. A Pool may follow, of images in
//     the same layout that the epilogue makes. Only store views read it, and it is the only output.
//   - AnchorRow: Reduce, Softmax, LogSoftmax, LayerNorm and RMSNorm over the same axes of values of one shape S.
//     Elementwise work has the shape S or the reduced shape R (with the axes kept at 1, dropped, or as a Reshape of
//     that). Reshape and Broadcast lead from R back to S; passes make such bodies only if the axes are the innermost
//     ones. Elementwise work may come first. Gamma and beta of a norm are load views, or constants of one value; where
//     S has one axis they may be values of shape S.
//   - Column sums: in addition to its elements, a launch of AnchorMatMul, of AnchorConv with images in [NHWC], or of AnchorRow
//     over the innermost axes, may compute their sums over all other axes: a Reduce of Sum, of a value of full shape, to the
//     last axis of the product, to the channels, or to the axes of the rows. In the body only store views read it. See
//     [SumsColumns].
//   - AnchorAttention: one Attention or AttentionGrad, whose operands are load views; scale, masks and dropout are part
//     of it. Its seed may be a constant. Outputs are its results, through store views. A result that is stored in 16
//     bits is cast first. The first result is always an output, others if they are read, none twice.
//   - AnchorMoE: one MoE or MoEGrad, whose operands are load views. Outputs are its results, as for an attention.
//   - AnchorMoves: each output is made of load views by at most one RoPE, then one Cast, then one UpdateSlice, between which are
//     Reshapes, and shares only inputs with the others. The other operands of these are inputs. See package graph/body.
//
// A Cast counts as elementwise and is placed like elementwise work: an operand of 16 bits is cast after its load views,
// and a result that is stored in 16 bits before its store views. Operands of contractions are not cast.
//
// Dropout counts as elementwise where it has the shape of the work around it; its seed is an input or a constant.

// Anchored returns the node of the body's anchor: the operation of the Fusion's anchor, or for AnchorRow the first that is
// not a column sum; nil for AnchorNone and AnchorMoves.
func (f Fusion) Anchored() *Node {
	if !f.Anchor.central() {
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
			return n // the first was a column sum
		}
	}
	return first
}

// checkAnchor refuses a body without an operation of the anchor, with an operation of another anchor, or with more
// operations than one launch computes. Several products that read only inputs are accepted; beside reports that there are
// some.
func (f Fusion) checkAnchor() (beside bool, err error) {
	anchored := 0
	beside = f.Anchor == AnchorMatMul // all read only inputs
	for _, n := range f.Body.Nodes {
		switch a, _ := AnchorOf(n.Op); {
		case a == AnchorNone:
		case a == f.Anchor:
			anchored++
			beside = beside && !slices.ContainsFunc(n.Args, func(a *Node) bool { return !IsSource(a.Op) })
		case f.Anchor == AnchorMatMul && isRMSNorm(n): // of an operand
			beside = false
		case f.Anchor != AnchorMatMul && f.Anchor != AnchorConv || !SumsColumns(n):
			return false, fmt.Errorf("%s has no place in a fusion of anchor %v", n.Where(), f.Anchor)
		}
	}
	switch {
	case f.Anchor.central() && anchored == 0:
		return false, fmt.Errorf("a fusion of anchor %v without one", f.Anchor)
	case f.Anchor != AnchorRow && anchored > 1 && !beside:
		return false, fmt.Errorf("a fusion of anchor %v with %d of them", f.Anchor, anchored)
	}
	return beside && anchored > 1, nil
}

func isRMSNorm(n *Node) bool { _, ok := n.Op.(RMSNorm); return ok }

// Fails reports whether an operation of the body may fail at run time.
func (f Fusion) Fails() bool { return slices.ContainsFunc(f.Body.Nodes, Fails) }

// SumsColumns reports whether n is a sum over leading axes of a value that has further axes.
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

// LaneOf is the element type in which a node of a body is computed: f32 if all operands are f32, 16-bit or masks, else
// f64, which can represent integers, too. Integers of 8 and 16 bits are numbers in lanes of f32 where they are cast. The nodes of a
// Fusion have one lane type, and kernels compute the body in it.
func LaneOf(n *Node) DType {
	op, cast := n.Op.(Cast)
	narrow := func(d DType) bool { return d.IsInt() && d.Size() <= 2 }
	if d := n.Type.DType; d == F64 || d.IsInt() && !(cast && narrow(d)) {
		return F64
	}
	readsInts := func(DType) bool { return false } // without computing with them
	switch n.Op.(type) {
	case Cast:
		readsInts = func(DType) bool { return !op.To.Is16() } // f32 would round twice
		if narrow(op.To) {
			readsInts = narrow
		}
	case Dropout, PanelMatMul, Conv2D:
		readsInts = func(DType) bool { return true }
	}
	for _, a := range n.Args {
		if a.Type.DType == F64 || a.Type.DType.IsInt() && !readsInts(a.Type.DType) {
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

// reducedAxes are the axes of a Reduce.
func reducedAxes(n *Node) Ints {
	sorted := n.Op.(Reduce).Axes.Slice()
	slices.Sort(sorted)
	return IntsOf(sorted...)
}

// lastAxis is the axis along which a norm combines elements.
func lastAxis(n *Node) Ints { return IntsOf(n.Type.Shape.Rank() - 1) }

// Reads is how many elements of each operand the body reads: all, or if it reads only slices, the elements of the
// slices, which are assumed to be disjoint.
func (f Fusion) Reads() []int64 {
	read := NewPerNode[int64](f.Body) // by the nodes that were visited
	for _, o := range f.Body.Outputs {
		read.Set(o.Node, elems(o.Node.Type))
	}
	var reads []int64
	for _, n := range slices.Backward(f.Body.Nodes) {
		for i, a := range n.Args {
			all := elems(a.Type)
			switch n.Op.(type) {
			case Slice, Reshape, Transpose:
				if i == 0 {
					all = min(all, read.Get(a)+read.Get(n))
				}
			}
			read.Set(a, all)
		}
		if _, ok := n.Op.(Input); ok {
			reads = append(reads, read.Get(n))
		}
	}
	slices.Reverse(reads)
	return reads
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
