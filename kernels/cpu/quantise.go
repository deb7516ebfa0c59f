package cpu

import (
	"fmt"
	"unsafe"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/panel"
)

// A quantised kernel stores numbers in few bits, or is the reverse. Programs have it for types that are only stored; others
// consist of simpler operations.
type quantised[T float] struct {
	env                       *Env
	d                         graph.DType // what is stored
	n                         int
	scale                     func(i int) int
	get                       func(m Memory, i int) float64
	set                       func(m Memory, i int, v float64)
	pack                      bool // numbers become what is stored
	zero                      int  // argument, or −1
	stored, numbers, scaleOff int  // first elements
	zeroOff                   int

	args    []Memory
	results []Memory
}

var _ = answers.Add(moves(func(op graph.Quantize, args, results []Operand, env *Env) Kernel {
	return byFloat(args[0].DType, newQuantize[float32], newQuantize[float64])(op, args, results, env)
}))

func newQuantize[T float](op graph.Quantize, args, results []Operand, env *Env) Kernel {
	k := newQuantised[T](op.Axis, op.Block, results[0], args[1:], env)
	k.pack, k.numbers = true, args[0].Layout.Offset
	return k
}

var _ = answers.Add(moves(newDequantize)).Add(moves(newPackWeights))

func newDequantize(op graph.Dequantize, args, results []Operand, env *Env) Kernel {
	if results[0].DType == graph.F64 {
		return dequantizes[float64](op, args, results, env)
	}
	return dequantizes[float32](op, args, results, env)
}

func dequantizes[T float](op graph.Dequantize, args, results []Operand, env *Env) Kernel {
	k := newQuantised[T](op.Axis, op.Block, args[0], args[1:], env)
	k.numbers = results[0].Layout.Offset
	return k
}

func newQuantised[T float](axis, block int, stored Operand, scales []Operand, env *Env) *quantised[T] {
	l := stored.Layout
	k := &quantised[T]{env: env, d: stored.DType, n: l.Shape.Elems(), stored: l.Offset, zero: -1, scaleOff: scales[0].Layout.Offset,
		scale: graph.ScaleIndex(axis, block, l.Shape, scales[0].Layout.Shape)}
	k.get, k.set = storedMoves(k.d)
	if len(scales) > 1 {
		k.zero, k.zeroOff = 2, scales[1].Layout.Offset
	}
	return k
}

// storedMoves read and write element i of a type that numbers are stored in.
func storedMoves(d graph.DType) (get func(m Memory, i int) float64, set func(m Memory, i int, v float64)) {
	switch {
	case d == graph.I4:
		return func(m Memory, i int) float64 { return float64(graph.Nibble(m, i)) },
			func(m Memory, i int, v float64) { graph.SetNibble(m, i, int8(v)) }
	case d.IsStored():
		values := d.Values8()
		return func(m Memory, i int) float64 { return float64(values[m[i]]) },
			func(m Memory, i int, v float64) { m[i] = d.Bits8(v) }
	}
	return byInteger(d, getStored[int8], getStored[int16], getStored[int32], getStored[int64],
			getStored[uint8], getStored[uint16], getStored[uint32], getStored[uint64]),
		byInteger(d, setStored[int8], setStored[int16], setStored[int32], setStored[int64],
			setStored[uint8], setStored[uint16], setStored[uint32], setStored[uint64])
}

func getStored[E graph.Integer](m Memory, i int) float64 { return float64(elems[E](m)[i]) }

func setStored[E graph.Integer](m Memory, i int, v float64) { elems[E](m)[i] = E(v) }

// Run implements [Kernel].
func (k *quantised[T]) Run(args, results []Memory) error {
	k.args, k.results = args, results
	k.env.Pool.Run(chunks(k.n, grain), k)
	k.args, k.results = nil, nil
	return nil
}

// Do computes one item, of an even number of elements unless it is the last; see pool.Task.
func (k *quantised[T]) Do(_, item int) {
	stored, wide := k.args[0], k.results[0]
	if k.pack {
		stored, wide = wide, stored
	}
	numbers := elems[T](wide)[k.numbers:]
	scales := elems[T](k.args[1])[k.scaleOff:]
	for i := item * grain; i < min((item+1)*grain, k.n); i++ {
		at, zero := k.scale(i), 0.0
		if k.zero >= 0 {
			zero = k.get(k.args[k.zero], k.zeroOff+at)
		}
		if k.pack {
			k.set(stored, k.stored+i, k.d.Quantised(float64(numbers[i]/scales[at]), zero))
		} else {
			numbers[i] = T(k.get(stored, k.stored+i)-zero) * scales[at]
		}
	}
	if k.pack && k.d == graph.I4 && k.n%2 == 1 && (item+1)*grain >= k.n {
		graph.SetNibble(stored, k.n, 0)
	}
}

// packWeights arranges weights in panels: those of each operand behind those of the ones before.
type packWeights []packed

type packed struct {
	packer   *panel.Packer
	from, to int // first bytes
}

func newPackWeights(op graph.PackWeights, args, results []Operand, env *Env) Kernel {
	var list packWeights
	to := results[0].DType
	at := int64(results[0].Layout.Offset)
	each := int64(results[0].Layout.Shape.Elems() / max(results[0].Layout.Shape.At(0), 1)) // elements of a panel
	for _, a := range args {
		k, n := op.Matrix(a.Layout.Shape)
		list = append(list, packed{panel.NewPacker(k, n, op, a.DType, to, env.Pool), int(a.DType.Span(int64(a.Layout.Offset))),
			int(to.Span(at))})
		at += int64(n/graph.PanelColumns) * each
	}
	return list
}

// Run implements [Kernel].
func (k packWeights) Run(args, results []Memory) error {
	for i, p := range k {
		p.packer.Pack(args[i][p.from:], results[0][p.to:])
	}
	return nil
}

// A panelProduct multiplies by weights in panels, and runs a program over each tile of the result.
type panelProduct struct {
	epilogue[float32]
	plan     *panel.Plan
	panels   int // argument
	first    int // byte of it
	x, scale *rowMajor[float32]
	offset   *rowMajor[float32]
	bf16     *rowMajor[uint16] // in place of x
	u8       *rowMajor[uint8]  // in place of x
	halves   int               // the argument that has scales of F16 in panels, or -1
	half     int               // first element of it
}

// A rowMajor is an operand in row-major order: where it lies, or copied.
type rowMajor[E float32 | uint16 | uint8] struct {
	arg, offset int
	copied      []E
	move        Kernel // nil if it is read where it lies
	to          [1]Memory
}

// gathered is an operand of type d, whose elements are of type E.
func gathered[E float32 | uint16 | uint8](o body.Operand, d graph.DType, env *Env) *rowMajor[E] {
	g := &rowMajor[E]{arg: o.Arg, offset: o.Layout.Offset}
	if !o.Layout.IsContiguous() {
		from, to := Operand{DType: d, Layout: o.Layout}, Contiguous(graph.Type{DType: d, Shape: o.Layout.Shape})
		g.copied, g.move = make([]E, o.Layout.Shape.Elems()), newMove(to, env, []part{copyPart(0, from, to)})
	}
	return g
}

// of is the operand; nil where there is none.
func (g *rowMajor[E]) of(args []Memory) ([]E, error) {
	switch {
	case g == nil:
		return nil, nil
	case g.move == nil:
		return elems[E](args[g.arg])[g.offset:], nil
	}
	g.to[0] = memoryOf(g.copied)
	return g.copied, g.move.Run(args[g.arg:][:1], g.to[:])
}

func (g *rowMajor[E]) bytes() int64 {
	if g == nil {
		return 0
	}
	return int64(unsafe.Sizeof(*new(E))) * int64(len(g.copied))
}

// matrixOf describes a layout as a matrix whose rows are all axes but the last: the rows' elements lie side by side, and the rows
// ld apart, or with trans the columns' elements do, and the columns lie ld apart. A layout that is neither has the ld of its rows
// when they are copied, and ok is false.
func matrixOf(l graph.Layout) (ld int, trans, ok bool) {
	last := l.Shape.Rank() - 1
	inner := l.Shape.At(last)
	row, rows := 0, 1 // their distance and number
	for i := last - 1; i >= 0; i-- {
		switch n := l.Shape.At(i); {
		case n == 1:
		case rows == 1:
			row, rows = l.Stride[i], n
		case l.Stride[i] != row*rows:
			return inner, false, false
		default:
			rows *= n
		}
	}
	col := l.Stride[last]
	switch {
	case (inner <= 1 || col == 1) && (rows == 1 || row >= inner):
		return max(row, inner), false, true
	case (rows == 1 || row == 1) && col >= rows:
		return col, true, true
	}
	return inner, false, false
}

// newPanelMatMul compiles a Fusion anchored on a PanelMatMul.
func newPanelMatMul(b *body.Program, results []Operand, env *Env) (Kernel, error) {
	op := b.Anchor.Op.(graph.PanelMatMul)
	x, w := b.Operands[0], b.Operands[1]
	if op.Deep {
		return nil, fmt.Errorf("the CPU has no products with deep panels, such as those of %s", b.Anchor.Where())
	}
	if !w.Layout.IsContiguous() {
		return nil, fmt.Errorf("the panels of %s are not contiguous", b.Anchor.Where())
	}
	k := &panelProduct{epilogue: epilogue[float32]{env: env}, panels: w.Arg,
		first: int(b.Anchor.Args[1].Type.DType.Span(int64(w.Layout.Offset))), halves: -1}
	of := b.Anchor.Args[0].Type.DType // of x
	last := b.Space.Rank() - 1
	inner := x.Layout.Shape.At(last)
	ldx, trans := inner, false
	switch of {
	case graph.BF16:
		ok := false
		if ldx, trans, ok = matrixOf(x.Layout); ok {
			k.bf16 = &rowMajor[uint16]{arg: x.Arg, offset: x.Layout.Offset}
		} else {
			k.bf16 = gathered[uint16](x, of, env)
		}
	case graph.U8:
		k.u8 = gathered[uint8](x, of, env)
	default:
		k.x = gathered[float32](x, of, env)
	}
	switch {
	case len(b.Operands) == 2:
	case b.Anchor.Args[2].Type.DType == graph.F32:
		k.scale = gathered[float32](b.Operands[2], graph.F32, env)
	case !b.Operands[2].Layout.IsContiguous():
		return nil, fmt.Errorf("the scales of %s are not contiguous", b.Anchor.Where())
	default:
		k.halves, k.half = b.Operands[2].Arg, b.Operands[2].Layout.Offset
	}
	if len(b.Operands) > 3 {
		k.offset = gathered[float32](b.Operands[3], graph.F32, env)
	}
	if err := k.compile(b, last, results, graph.Layout.IsContiguous); err != nil {
		return nil, err
	}
	cfg := panel.Config{M: b.Space.Elems() / max(op.Columns, 1), N: op.Columns, K: inner, Block: op.Block,
		Type: b.Anchor.Args[1].Type.DType, Scaled: len(b.Operands) > 2, Offset: k.offset != nil, Integers: op.Integers && of != graph.U8,
		BF16: of == graph.BF16, Bytes: of == graph.U8, LDX: ldx, Trans: trans, LDC: op.Columns,
		Workspace: env.gemm}
	if op.Columns == 0 {
		cfg.M = 0
	}
	var err error
	if k.plan, err = panel.New(cfg, env.Pool); err != nil {
		return nil, err
	}
	k.cut(chunksOf(cfg.M, k.plan.TileRows()))
	return k, nil
}

// Run implements [Kernel].
func (k *panelProduct) Run(args, results []Memory) error {
	x, err := k.x.of(args)
	if err != nil {
		return err
	}
	bf16, err := k.bf16.of(args)
	if err != nil {
		return err
	}
	u8, err := k.u8.of(args)
	if err != nil {
		return err
	}
	scale, err := k.scale.of(args)
	if err != nil {
		return err
	}
	offset, err := k.offset.of(args)
	if err != nil {
		return err
	}
	c := k.begin(args, results)
	defer k.done()
	var after panel.Epilogue
	if k.p != nil {
		after = k
	}
	panels := args[k.panels][k.first:]
	k.plan.Offsets(offset)
	switch {
	case k.bf16 != nil:
		err = k.plan.RunBF16(bf16, panels, c, after)
	case k.u8 != nil:
		err = k.plan.RunBytes(u8, panels, c, after)
	case k.halves >= 0:
		err = k.plan.RunHalves(x, panels, elems[uint16](args[k.halves])[k.half:], c, after)
	default:
		err = k.plan.Run(x, panels, scale, c, after)
	}
	if err != nil || k.p == nil {
		return err
	}
	return k.end()
}

// Tile runs the epilogue over a finished tile; see panel.Epilogue.
func (k *panelProduct) Tile(worker, _, row, col, rows, cols int) {
	k.tile(worker, row/k.plan.TileRows(), row, col, rows, cols)
}

func (k *panelProduct) bytes() int64 {
	return k.epilogue.bytes() + k.plan.Bytes() + k.x.bytes() + k.bf16.bytes() + k.u8.bytes() + k.scale.bytes() + k.offset.bytes()
}
