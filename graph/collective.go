package graph

import "fmt"

// A Group says which participants a collective operation joins: those that differ along some axes of the mesh only. Each
// participant runs the same program, and comes to the operation with a value of its own. The group counts its participants
// row-major along the axes, from 0.
type Group struct {
	Over  string // the axes, joined by +, as [Mesh.Names] writes them; empty: all participants
	Parts int    `attr:"optional"` // the number of participants
}

// Of is the group, of which an operation is a collective.
func (g Group) Of() Group { return g }

// check reports a number of participants that no group has. AllReduce alone need not know it.
func (g Group) check() error {
	if g.Parts < 1 || g.Parts > MaxParticipants {
		return fmt.Errorf("a group of %d participants: parts is from 1 to %d", g.Parts, MaxParticipants)
	}
	return nil
}

// Axes are the axes of the group in a mesh. The error says what does not fit.
func (g Group) Axes(m Mesh) (MeshAxes, error) {
	axes := m.All()
	if g.Over != "" {
		var err error
		if axes, err = m.Axes(g.Over); err != nil {
			return 0, err
		}
	}
	if n := m.Parts(axes); g.Parts != 0 && g.Parts != n {
		return 0, fmt.Errorf("a group of %d participants, of which the mesh %q has %d", g.Parts, m, n)
	}
	return axes, nil
}

// Collective is an operation whose result depends on the values of other participants, or on which of them computes it.
type Collective interface {
	Op
	Of() Group
}

// ReduceScatter combines the values of x of all participants of a group, as AllReduce does, and gives participant i the
// i-th of Parts equal parts of the result along Axis (MPI_Reduce_scatter_block).
type ReduceScatter struct {
	Fn   ReduceFn
	Axis int
	Group
}

// AllGather joins the values of x of all participants of a group along Axis, in their order (MPI_Allgather).
type AllGather struct {
	Axis int
	Group
}

// AllToAll cuts x into Parts equal parts along Split and gives the i-th to participant i, which joins what it gets along
// Join, in the order of the participants (MPI_Alltoall).
type AllToAll struct {
	Split, Join int
	Group
}

// Part is the participant's own part of x, which all participants of a group have whole: the i-th of Parts equal parts along
// Axis. Nothing is sent. Operands behind x are not read: what reads the part runs after those that make them.
type Part struct {
	Axis int
	Group
}

// Permute gives participant i the x of participant i − Shift, modulo Parts: each sends its own and receives one
// (MPI_Sendrecv on a ring). Operands behind x are not read: the exchange begins once they are there, so that what it brings does
// not take memory earlier.
type Permute struct {
	Shift int
	Group
}

// Reads is how many of n operands, the first ones, an operation reads: a Permute or Part waits for the others.
func Reads(op Op, n int) int {
	switch op.(type) {
	case Permute, Part:
		return 1
	}
	return n
}

// BroadcastFrom gives all participants of a group the x of participant Root (MPI_Bcast).
type BroadcastFrom struct {
	Root int
	Group
}

// OpName implements Op.
func (ReduceScatter) OpName() string { return "reduce_scatter" }

// OpName implements Op.
func (AllGather) OpName() string { return "all_gather" }

// OpName implements Op.
func (AllToAll) OpName() string { return "all_to_all" }

// OpName implements Op.
func (Part) OpName() string { return "part" }

// OpName implements Op.
func (Permute) OpName() string { return "permute" }

// OpName implements Op.
func (BroadcastFrom) OpName() string { return "broadcast_from" }

var reduceScatterRow = OpInfo{
	Name: "reduce_scatter", Doc: "values of all participants combined, of which each gets a part", Operands: "x",
	Proto: ReduceScatter{}, Class: ClassCollective, MinArgs: 1, MaxArgs: 1, Infer: inferReduceScatter, FLOPs: combined,
	Sent: sentShares,
	Grad: func(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
		op := n.Op.(ReduceScatter)
		if op.Fn != Sum && op.Fn != Mean {
			return nil, fmt.Errorf("%v has none: it is for sum and mean", op.Fn)
		}
		dx := b.Add(AllGather{op.Axis, op.Group}, dys[0])
		if op.Fn == Mean {
			dx = b.BinaryScalar(Mul, dx, 1/float64(op.Parts))
		}
		return []*Node{dx}, nil
	},
}

var allGatherRow = OpInfo{
	Name: "all_gather", Doc: "values of all participants joined along an axis", Operands: "x", Proto: AllGather{},
	Class: ClassCollective, MinArgs: 1, MaxArgs: 1, Infer: inferAllGather, FLOPs: free, Moves: first,
	Sent: func(bytes, participants int64) int64 { return bytes * (participants - 1) },
	Grad: func(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
		op := n.Op.(AllGather)
		return []*Node{b.Add(ReduceScatter{Sum, op.Axis, op.Group}, dys[0])}, nil
	},
}

var allToAllRow = OpInfo{
	Name: "all_to_all", Doc: "a part of x for each participant, and theirs joined", Operands: "x", Proto: AllToAll{},
	Class: ClassCollective, MinArgs: 1, MaxArgs: 1, Infer: inferAllToAll, FLOPs: free, Moves: first, Sent: sentShares,
	Grad: func(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
		op := n.Op.(AllToAll)
		return []*Node{b.Add(AllToAll{Split: op.Join, Join: op.Split, Group: op.Group}, dys[0])}, nil
	},
}

var partRow = OpInfo{
	Name: "part", Doc: "the participant's own part of x; it waits for its further operands", Operands: "x, after...",
	Proto: Part{}, Class: ClassCollective, MinArgs: 1, MaxArgs: -1, Infer: inferPart, FLOPs: free, Grad: gradPart,
	Moves: first, Sent: func(_, _ int64) int64 { return 0 },
}

var permuteRow = OpInfo{
	Name: "permute", Doc: "the x of another participant, around a ring; it begins after its further operands", Operands: "x, after...",
	Proto: Permute{}, Class: ClassCollective, MinArgs: 1, MaxArgs: -1, Infer: inferPermute, FLOPs: free, Sent: sentOnce,
	Moves: first,
	Grad: func(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
		op, grads := n.Op.(Permute), make([]*Node, len(n.Args))
		grads[0] = b.Add(Permute{-op.Shift, op.Group}, dys[0])
		return grads, nil
	},
}

var broadcastFromRow = OpInfo{
	Name: "broadcast_from", Doc: "the x of one participant, for all", Operands: "x", Proto: BroadcastFrom{},
	Class: ClassCollective, MinArgs: 1, MaxArgs: 1, Infer: inferBroadcastFrom, FLOPs: free, Grad: gradBroadcastFrom, Sent: sentOnce,
	Moves: first,
}

// gradPart writes dy to where x was read, in a tensor of zeros. Which part is the participant's own follows from its part
// of the indices 0, 1, ….
func gradPart(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op := n.Op.(Part)
	size := n.Args[0].Type.Shape.At(op.Axis)
	own, grads := b.Add(Part{0, op.Group}, b.Const(indices(I64, size, size))), make([]*Node, len(n.Args))
	grads[0] = b.Add(ScatterAdd{op.Axis, size}, own, dys[0])
	return grads, nil
}

// gradBroadcastFrom is the sum of all gradients for participant Root, and 0 for the others.
func gradBroadcastFrom(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op := n.Op.(BroadcastFrom)
	own := b.Reshape(b.Add(Part{0, op.Group}, b.Const(indices(I64, op.Parts, op.Parts))))
	mine := b.Add(Cast{To: dys[0].Type.DType}, b.BinaryScalar(Eq, own, float64(op.Root)))
	return []*Node{b.Binary(Mul, b.Add(AllReduce{Fn: Sum, Group: op.Group}, dys[0]), mine)}, nil
}

// combined counts the sums of a reduction of a group.
func combined(_ Op, args, _ []Type) int64 { return elems(args[0]) }

// checkCombined reports what the participants of a group cannot combine.
func checkCombined(f ReduceFn, t Type) error {
	if f >= endReduce {
		return fmt.Errorf("unknown reduction %d", f)
	}
	if !f.Info().OfGroup {
		return fmt.Errorf("%v is not a reduction of a group: want sum, mean, max or min", f)
	}
	if t.DType.Is16() && f.Info().Join == Add { // in f32, rounded once or after each term
		return nil
	}
	if err := wantComputed(t); err != nil {
		return fmt.Errorf("%v %w", f, err)
	}
	if !f.Info().Of.Has(t.DType) {
		return fmt.Errorf("%v of %v", f, t.DType)
	}
	return nil
}

// checkAxis reports what makes an axis of a type unfit to be cut or joined.
func (g Group) checkAxis(t Type, axis int) error {
	if err := g.check(); err != nil {
		return err
	}
	if t.DType == I4 {
		return fmt.Errorf("elements of %v share bytes, and are not divided", t.DType)
	}
	if axis < 0 || axis >= t.Shape.Rank() {
		return fmt.Errorf("axis %d of a tensor of rank %d", axis, t.Shape.Rank())
	}
	return nil
}

// parted is a type with axis cut into the group's parts.
func (g Group) parted(t Type, axis int) (Type, error) {
	if err := g.checkAxis(t, axis); err != nil {
		return t, err
	}
	if t.Shape.At(axis)%g.Parts != 0 {
		return t, fmt.Errorf("axis %d of %v is not a multiple of %d participants", axis, t.Shape, g.Parts)
	}
	return t.Reshaped(t.Shape.With(axis, t.Shape.At(axis)/g.Parts)), nil
}

// joined is a type with the group's parts joined along axis.
func (g Group) joined(t Type, axis int) (Type, error) {
	if err := g.checkAxis(t, axis); err != nil {
		return t, err
	}
	if t.Shape.At(axis) > MaxElems/g.Parts {
		return t, fmt.Errorf("%d times axis %d of %v is too large", g.Parts, axis, t.Shape)
	}
	return t.Reshaped(t.Shape.With(axis, t.Shape.At(axis)*g.Parts)), nil
}

func inferReduceScatter(op Op, args []Type) ([]Type, error) {
	o := op.(ReduceScatter)
	if err := checkCombined(o.Fn, args[0]); err != nil {
		return nil, err
	}
	t, err := o.parted(args[0], o.Axis)
	if err != nil {
		return nil, err
	}
	return one(args, t)
}

func inferAllGather(op Op, args []Type) ([]Type, error) {
	o := op.(AllGather)
	t, err := o.joined(args[0], o.Axis)
	if err != nil {
		return nil, err
	}
	return one(args, t)
}

func inferAllToAll(op Op, args []Type) ([]Type, error) {
	o := op.(AllToAll)
	t, err := o.parted(args[0], o.Split)
	if err == nil {
		t, err = o.joined(t, o.Join)
	}
	if err != nil {
		return nil, err
	}
	return one(args, t)
}

func inferPart(op Op, args []Type) ([]Type, error) {
	o := op.(Part)
	t, err := o.parted(args[0], o.Axis)
	if err != nil {
		return nil, err
	}
	return one(args, t)
}

func inferPermute(op Op, args []Type) ([]Type, error) {
	if err := op.(Permute).check(); err != nil {
		return nil, err
	}
	return one(args, args[0])
}

func inferBroadcastFrom(op Op, args []Type) ([]Type, error) {
	o := op.(BroadcastFrom)
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Root < 0 || o.Root >= o.Parts {
		return nil, fmt.Errorf("root %d of %d participants", o.Root, o.Parts)
	}
	return one(args, args[0])
}

// LinkBytes is how many bytes a participant sends, at least, where n is a collective operation of a group of the given
// number of participants; else 0. The counts are those of algorithms that are optimal in bandwidth (R. Thakur, R. Rabenseifner,
// W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005).
func LinkBytes(n *Node, parts int) int64 {
	if parts < 2 {
		return 0
	}
	if _, ok := n.Op.(Collective); !ok {
		return 0
	}
	return InfoOf(n.Op).Sent(n.Args[0].Type.Bytes(), int64(parts))
}

// sentShares is [OpInfo.Sent] where each participant sends the others their shares of x.
func sentShares(bytes, participants int64) int64 { return bytes / participants * (participants - 1) }

// sentOnce is [OpInfo.Sent] where a participant sends x once.
func sentOnce(bytes, _ int64) int64 { return bytes }
