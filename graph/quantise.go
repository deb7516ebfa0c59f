package graph

import (
	"fmt"
	"math"
	"strings"
)

// Quantize stores numbers in few bits, in the form that ONNX has: element i is
//
//	y = round(x ÷ scale) + zero
//
// rounded to nearest, ties to even, and limited to the range of To. Of NaN it is what 0 becomes; F8E4M3 and F8E5M2 keep NaN.
//
// Operands are x, of F32 or F64, the scale, of the same type, and for types of integers optionally the zero point, of type To.
// Scale and zero point have the same shape:
//
//   - []: one scale for all elements.
//   - [d], where axis Axis of x has d elements and Block is 0: one for each of them, such as a channel.
//   - the shape of x with ⌈d/Block⌉ in place of d: one for each block of Block elements along the axis; the last may be shorter.
//
// It has no gradient.
type Quantize struct {
	To    DType
	Axis  int `attr:"optional"`
	Block int `attr:"optional"`
}

// Dequantize is (q − zero)·scale, of the scale's type, F32 or F64. Its operands are q, of a type that [Quantize] makes or I32,
// the scale, and for types of integers optionally the zero point, of q's type. Their shapes are those of Quantize. It has no
// gradient.
type Dequantize struct {
	Axis  int `attr:"optional"`
	Block int `attr:"optional"`
}

// OpName implements Op.
func (Quantize) OpName() string { return "quantize" }

// OpName implements Op.
func (Dequantize) OpName() string { return "dequantize" }

var quantizeRow = OpInfo{
	Name: "quantize", Doc: "numbers stored in few bits, as multiples of a scale", Operands: "x, scale, zero", Proto: Quantize{},
	Class: ClassMove, Stored: true, MinArgs: 2, MaxArgs: 3, Infer: inferQuantize, FLOPs: times(4), Lower: lowerQuantize,
}

var dequantizeRow = OpInfo{
	Name: "dequantize", Doc: "the numbers that quantize stored", Operands: "q, scale, zero", Proto: Dequantize{}, Class: ClassMove,
	Stored: true, MinArgs: 2, MaxArgs: 3, Infer: inferDequantize, FLOPs: times(2), Lower: lowerDequantize,
}

// Quantizes reports whether d is a type that [Quantize] makes.
func (d DType) Quantizes() bool { return d.IsStored() || d.IsInt() && d.Size() <= 2 }

func inferQuantize(op Op, args []Type) ([]Type, error) {
	q := op.(Quantize)
	if q.To == Invalid || q.To >= endDType || !q.To.Quantizes() {
		return nil, fmt.Errorf("to %v: it makes i4, i8, u8, i16, u16, f8e4m3 and f8e5m2", q.To)
	}
	if err := wantFloat(args[0]); err != nil {
		return nil, err
	}
	if err := checkScales(q.Axis, q.Block, args[0].Shape, q.To, args[1:]); err != nil {
		return nil, err
	}
	if args[1].DType != args[0].DType {
		return nil, fmt.Errorf("a scale of %v for %v", args[1].DType, args[0].DType)
	}
	return one(args, args[0].With(q.To))
}

func inferDequantize(op Op, args []Type) ([]Type, error) {
	q := op.(Dequantize)
	if d := args[0].DType; !d.Quantizes() && d != I32 {
		return nil, fmt.Errorf("of %v: it reads i4, i8, u8, i16, u16, i32, f8e4m3 and f8e5m2", d)
	}
	if err := wantFloat(args[1]); err != nil {
		return nil, fmt.Errorf("scale: %w", err)
	}
	if err := checkScales(q.Axis, q.Block, args[0].Shape, args[0].DType, args[1:]); err != nil {
		return nil, err
	}
	return one(args, args[0].With(args[1].DType))
}

// checkScales checks scale and zero point of a value of shape s stored as d.
func checkScales(axis, block int, s Shape, d DType, scales []Type) error {
	scale := scales[0].Shape
	if scale.Rank() > 0 || block != 0 {
		if err := checkAxes(IntsOf(axis), s.Rank()); err != nil {
			return err
		}
		want := ShapeOf(s.At(axis))
		switch {
		case block < 0:
			return fmt.Errorf("blocks of %d", block)
		case block > 0:
			want = s.With(axis, blocksOf(s.At(axis), block))
		}
		if scale != want {
			return fmt.Errorf("scales %v for %v; requires %v", scale, s, want)
		}
	}
	if len(scales) == 1 {
		return nil
	}
	switch zero := scales[1]; {
	case zero.DType != d:
		return fmt.Errorf("a zero point of %v for %v", zero.DType, d)
	case zero.Shape != scale:
		return fmt.Errorf("zero points %v for scales %v", zero.Shape, scale)
	case d.IsStored() && d != I4:
		return fmt.Errorf("%v has no zero point", d)
	}
	return nil
}

// blocksOf is the number of blocks that d elements make.
func blocksOf(d, block int) int { return d/block + min(d%block, 1) }

// ScaleIndex gives, for a value of shape s with scales of shape scale, the function from an element's row-major number to that
// of its scale.
func ScaleIndex(axis, block int, s, scale Shape) func(i int) int {
	if scale.Rank() == 0 {
		return func(int) int { return 0 }
	}
	_, d, inner := s.Around(axis, 1)
	if block == 0 {
		return func(i int) int { return i / inner % d }
	}
	blocks := scale.At(axis)
	return func(i int) int { return (i/inner/d*blocks+i/inner%d/block)*inner + i%inner }
}

// spreadScale repeats a scale or a zero point for each element of shape s.
func spreadScale(b *Builder, v *Node, axis, block int, s Shape) *Node {
	scale := v.Type.Shape
	switch {
	case scale.Rank() == 0 || scale == s:
		return v
	case block == 0:
		dims := make([]int, s.Rank()-axis)
		for i := range dims {
			dims[i] = 1
		}
		dims[0] = s.At(axis)
		return b.Broadcast(b.Reshape(v, dims...), s)
	}
	outer, blocks, inner := scale.Around(axis, 1)
	wide := b.Broadcast(b.Reshape(v, outer, blocks, 1, inner), ShapeOf(outer, blocks, block, inner))
	wide = b.Reshape(wide, outer, blocks*block, inner)
	if blocks*block != s.At(axis) {
		wide = b.Slice(wide, 1, 0, s.At(axis), 1)
	}
	return b.Reshape(wide, s.Slice()...)
}

// lowerQuantize computes types of integers elementwise.
func lowerQuantize(b *Builder, op Op, args []*Node) []*Node {
	q, x := op.(Quantize), args[0]
	if q.To.IsStored() {
		return nil
	}
	s := x.Type.Shape
	y := b.Unary(Round, b.Binary(Div, x, spreadScale(b, args[1], q.Axis, q.Block, s)))
	if len(args) > 2 {
		y = b.Binary(Add, y, spreadScale(b, b.CastTo(x.Type.DType, args[2]), q.Axis, q.Block, s))
	}
	lo, hi := q.To.Limits()
	return []*Node{b.CastTo(q.To, b.BinaryScalar(Max, b.BinaryScalar(Min, y, float64(hi)), float64(lo)))}
}

// lowerDequantize computes types of integers elementwise.
func lowerDequantize(b *Builder, op Op, args []*Node) []*Node {
	q, x, scale := op.(Dequantize), args[0], args[1]
	if x.Type.DType.IsStored() {
		return nil
	}
	s, d := x.Type.Shape, scale.Type.DType
	y := b.CastTo(d, wholeNumbers(x))
	if len(args) > 2 {
		y = b.Binary(Sub, y, spreadScale(b, b.CastTo(d, args[2]), q.Axis, q.Block, s))
	}
	return []*Node{b.Binary(Mul, y, spreadScale(b, scale, q.Axis, q.Block, s))}
}

// wholeNumbers is what n, the result of [lowerQuantize], casts: whole numbers in the range of n's type, or NaN. It is n itself if
// n is something else.
func wholeNumbers(n *Node) *Node {
	if _, ok := n.Op.(Cast); ok && n.Args[0].Type.DType.IsReal() && n.Args[0].IsWhole(n.Type.DType) {
		return n.Args[0]
	}
	return n
}

// IsWhole reports whether n's numbers are whole and in the range of d, a type of integers, or NaN: n is cast from integers, and may
// be moved by one, or it is rounded, moved by integers and limited. It looks through views and the largest of several.
func (n *Node) IsWhole(d DType) bool {
	lo, hi := d.Limits()
	within := func(a, b float64) bool {
		return a >= d.Real(lo) && b <= d.Real(hi) && a == math.Trunc(a) && b == math.Trunc(b)
	}
	moved := 0.
	of := n
	if n.Op == Op(Binary{Fn: Add}) {
		if v, ok := n.Args[1].ConstScalar(); ok {
			moved, of = v, n.Args[0]
		}
	}
	if _, ok := of.Op.(Cast); ok {
		from := of.Args[0].Type.DType
		if !from.IsInt() {
			return false
		}
		a, b := from.Limits()
		return within(from.Real(a)+moved, from.Real(b)+moved)
	}
	switch op := n.Op.(type) {
	case Pool:
		return op.Fn == MaxPool && n.Args[0].IsWhole(d)
	}
	if IsView(n.Op) {
		return n.Args[0].IsWhole(d)
	}
	least, most := 0., 0.
	below, ok := limitedBy(n, Max, &least)
	if !ok {
		return false
	}
	y, ok := limitedBy(below, Min, &most)
	if !ok || !within(least, most) {
		return false
	}
	if y.Op == Op(Binary{Fn: Add}) && fromIntegers(y.Args[1]) {
		y = y.Args[0]
	}
	return y.Op == Op(Unary{Fn: Round})
}

// limitedBy is the operand of a function of it and a constant, whose value it sets.
func limitedBy(n *Node, fn BinaryFn, v *float64) (of *Node, ok bool) {
	if op, ok := n.Op.(Unary); ok && op.Fn == Relu && fn == Max {
		*v = 0
		return n.Args[0], true
	}
	if n.Op != Op(Binary{Fn: fn}) {
		return nil, false
	}
	*v, ok = n.Args[1].ConstScalar()
	return n.Args[0], ok
}

// fromIntegers reports whether n's numbers are those of an integer type, which views may bring to another shape.
func fromIntegers(n *Node) bool {
	for IsView(n.Op) {
		n = n.Args[0]
	}
	if v, ok := n.ConstScalar(); ok {
		return v == math.Trunc(v)
	}
	_, ok := n.Op.(Cast)
	return ok && n.Args[0].Type.DType.IsInt()
}

// Quantised is the element of d, as a number, that x ÷ scale is stored as with a zero point.
func (d DType) Quantised(x, zero float64) float64 {
	switch {
	case d == I4:
		if x != x {
			x = 0
		}
		return max(-8, min(math.RoundToEven(x)+zero, 7))
	case d.IsStored():
		return float64(d.Values8()[d.Bits8(x)])
	case x != x:
		x = 0
	}
	lo, hi := d.Limits()
	return max(float64(lo), min(math.RoundToEven(x)+zero, float64(hi)))
}

// PanelColumns is the number of columns of a panel of [PackWeights].
const PanelColumns = 32

// panelSteps is the multiple that a panel's rows are filled up to.
const panelSteps = 8

// PackWeights arranges weights [k, n], or with Trans [n, k], in the order in which a processor reads them for a product of few
// rows: panels of 32 columns. The elements that are missing to a multiple of 32 columns and of 8 rows are 0. The result has
// element type To, or that of the operand where To is invalid, and the shape
//
//	[⌈n/32⌉, ⌈k/8⌉·8, 32]        element (p, i, j) is row i of column 32p+j
//	[⌈n/32⌉, ⌈k/8⌉, 32, 8]       of I4: element (p, i, j, l) is row 8i+l of column 32p+j
//
// With Quads, four rows of a column of I8 stand side by side, as processors multiply integers: the shape is
// [⌈n/32⌉, ⌈k/8⌉·2, 32, 4].
//
// With Deep, elements have the order in which the threads of a GPU read them, 16 bytes at a time: eight rows of c columns, where c
// is 4 for I4, 2 for 8 bits and 1 for 16. Panels have a multiple of 32 rows, and the shape is
//
//	[⌈n/32⌉, ⌈k/32⌉, 32/c, 4, c, 8]        element (p, i, q, t, j, l) is row 32i+8t+l of column 32p+c·q+j
//
// Further operands, weights [k, ni] of the same type, or [ni, k], stand behind the first, as the further columns of one matrix. All
// of them but the last have whole panels: a multiple of 32 columns.
//
// To is BF16 or F16, of operands of F32.
type PackWeights struct {
	Trans bool
	To    DType `attr:"optional"`
	Deep  bool  `attr:"optional"`
	Quads bool  `attr:"optional"`
}

// PanelMatMul multiplies x [..., m, k] of F32 by weights [k, n] in panels, as [PackWeights] makes them of I4, I8, BF16 or F16.
// Columns is n. The optional third operand has scales [⌈k/Block⌉, n] of F32, one for each block of Block rows of a column; the
// weights are its products with what the panels hold. Block is a multiple of 8, or 0 for one scale for each column. The result
// [..., m, n] is of F32, and so are the sums. Scales of F16 are in panels themselves: those that PackWeights makes of them.
//
// The optional fourth operand has an offset [⌈k/Block⌉, n] of F32 for each scale: the weights are what the panels hold times the
// scale, plus the offset. A zero point z brings −z·scale. Neither Integers nor Deep has offsets.
//
// With Integers, x is rounded to 8 bits, and the sums of each block are integers: of Block elements of a row of x, or of all if
// Block is 0, the scale is max |x| ÷ 127, as [RoundRows] writes it out. The panels are of I4, or of I8 with Quads.
//
// Panels of BF16 without scales multiply x of BF16, too. Processors have instructions for that, which add two products at a time.
//
// With Integers, an operand x of U8 is multiplied as it is, by panels of I8 with Quads, without scales. The result is the sums,
// which are exact in 32 bits before they become F32.
//
// With Deep the panels are in the order of that name, and x is of BF16 or F16. They may be of F8E4M3 and F8E5M2, too; if they are
// of 16 bits, they have the type of x.
type PanelMatMul struct {
	Columns  int
	Block    int  `attr:"optional"`
	Deep     bool `attr:"optional"`
	Integers bool `attr:"optional"`
}

// OpName implements Op.
func (PackWeights) OpName() string { return "pack_weights" }

// OpName implements Op.
func (PanelMatMul) OpName() string { return "matmul_panels" }

var packWeightsRow = OpInfo{
	Name: "pack_weights", Doc: "weights in panels, for products of few rows", Operands: "w...", Proto: PackWeights{}, Class: ClassMove,
	Stored: true, MinArgs: 1, MaxArgs: -1, Infer: inferPackWeights, FLOPs: free,
}

var panelMatMulRow = OpInfo{
	Name: "matmul_panels", Doc: "matrix product with weights of few bits in panels", Operands: "x, panels, scale, offset",
	Proto: PanelMatMul{}, Class: ClassContraction, Fuses: true, Anchor: AnchorMatMul, Kind: KindMatMul, Stored: true, MinArgs: 2,
	MaxArgs: 4,
	Infer:   inferPanelMatMul, FLOPs: flopsPanelMatMul,
}

// panelTypes are the element types that panels have.
var panelTypes = []DType{I4, I8, BF16, F16}

// CheckPanels refuses element types that panels do not have.
func CheckPanels(d DType) error {
	names := make([]string, len(panelTypes))
	for i, e := range panelTypes {
		if d == e {
			return nil
		}
		names[i] = e.String()
	}
	return fmt.Errorf("panels of %v: they are of %s", d, strings.Join(names, ", "))
}

// CheckDeep refuses element types that deep panels do not have.
func CheckDeep(d DType) error {
	if d != I8 && !d.IsStored() && !d.Is16() {
		return fmt.Errorf("deep panels of %v: they are of i4, i8, f8e4m3, f8e5m2, bf16, f16", d)
	}
	return nil
}

// checkPanels is [CheckDeep] of deep panels, [CheckPanels] of others.
func checkPanels(d DType, deep bool) error {
	if deep {
		return CheckDeep(d)
	}
	return CheckPanels(d)
}

// PanelShape is the shape of the panels of weights [k, n] of type d.
func PanelShape(d DType, k, n int) Shape {
	if d == I4 {
		return ShapeOf(blocksOf(n, PanelColumns), blocksOf(k, panelSteps), PanelColumns, panelSteps)
	}
	return ShapeOf(blocksOf(n, PanelColumns), blocksOf(k, panelSteps)*panelSteps, PanelColumns)
}

// deepRows is the multiple that the rows of a deep panel are filled up to.
const deepRows = 32

// DeepShape is the shape of the deep panels of weights [k, n] of type d.
func DeepShape(d DType, k, n int) Shape {
	c := deepColumns(d)
	return ShapeOf(blocksOf(n, PanelColumns), blocksOf(k, deepRows), PanelColumns/c, deepRows/panelSteps, c, panelSteps)
}

// deepColumns is how many columns have eight rows in 16 bytes.
func deepColumns(d DType) int { return 16 / int(d.Span(panelSteps)) }

// DeepIndex is where the element of a row and a column stands in a deep panel of type d: in that of the column, whose number in the
// panel col is.
func DeepIndex(d DType, row, col int) int {
	c := deepColumns(d)
	piece := (row/deepRows*(PanelColumns/c)+col/c)*(deepRows/panelSteps) + row%deepRows/panelSteps
	return (piece*c+col%c)*panelSteps + row%panelSteps
}

// QuadShape is the shape of the panels of weights [k, n] of I8 in quads.
func QuadShape(k, n int) Shape {
	return ShapeOf(blocksOf(n, PanelColumns), blocksOf(k, panelSteps)*(panelSteps/4), PanelColumns, 4)
}

// panelShape is [DeepShape] of deep panels, [QuadShape] of quads, [PanelShape] of others.
func panelShape(d DType, deep, quads bool, k, n int) Shape {
	switch {
	case deep:
		return DeepShape(d, k, n)
	case quads:
		return QuadShape(k, n)
	}
	return PanelShape(d, k, n)
}

func inferPackWeights(op Op, args []Type) ([]Type, error) {
	p, w := op.(PackWeights), args[0]
	if err := wantRank(w.Shape, 2); err != nil {
		return nil, err
	}
	d := w.DType
	if p.To != Invalid {
		if !p.To.Is16() || d != F32 {
			return nil, fmt.Errorf("from %v to %v: it converts f32 to bf16 and f16", d, p.To)
		}
		d = p.To
	}
	if err := checkPanels(d, p.Deep); err != nil {
		return nil, err
	}
	if p.Quads && (d != I8 || p.Deep) {
		return nil, fmt.Errorf("quads of %v: they are of i8, and not deep", d)
	}
	k, n := p.Matrix(w.Shape)
	for i, v := range args[1:] {
		switch {
		case v.DType != w.DType || v.Shape.Rank() != 2:
			return nil, fmt.Errorf("%v and %v are not matrices of one type", w, v)
		}
		rows, columns := p.Matrix(v.Shape)
		switch {
		case rows != k:
			return nil, fmt.Errorf("%v and %v have %d and %d rows", w, v, k, rows)
		case n%PanelColumns != 0:
			return nil, fmt.Errorf("operands 0 to %d have %d columns, and another follows: they fill no panels of %d", i, n, PanelColumns)
		case columns > MaxElems-n:
			return nil, fmt.Errorf("more than %d columns", MaxElems)
		}
		n += columns
	}
	return one(args, Type{d, panelShape(d, p.Deep, p.Quads, k, n)})
}

// Matrix is the number of rows and of columns of the weights in an operand of shape s, which has rank 2.
func (p PackWeights) Matrix(s Shape) (rows, columns int) {
	if p.Trans {
		return s.At(1), s.At(0)
	}
	return s.At(0), s.At(1)
}

func inferPanelMatMul(op Op, args []Type) ([]Type, error) {
	p, x, w := op.(PanelMatMul), args[0], args[1]
	switch {
	case p.Deep && (!x.DType.Is16() || x.Shape.Rank() < 2):
		return nil, fmt.Errorf("deep panels need an operand of 16 bits of rank 2 or more, not %v", x)
	case x.DType == U8 && (!p.Integers || w.DType != I8 || len(args) > 2):
		return nil, fmt.Errorf("an operand %v is multiplied as integers, by panels of i8 without scales", x)
	case !p.Deep && x.DType != F32 && x.DType != U8 && (x.DType != BF16 || w.DType != BF16 || len(args) > 2) || x.Shape.Rank() < 2:
		return nil, fmt.Errorf("needs an operand of f32 or u8 of rank 2 or more, or of bf16 as panels without scales, not %v", x)
	}
	if err := checkPanels(w.DType, p.Deep); err != nil {
		return nil, err
	}
	last := x.Shape.Rank() - 1
	k := x.Shape.At(last)
	switch {
	case p.Deep && w.DType.Is16() && w.DType != x.DType:
		return nil, fmt.Errorf("panels of %v for an operand of %v", w.DType, x.DType)
	case p.Columns < 0 || p.Columns > MaxElems:
		return nil, fmt.Errorf("%d columns", p.Columns)
	case p.Block < 0 || p.Block%panelSteps != 0:
		return nil, fmt.Errorf("blocks of %d: they have a multiple of %d rows", p.Block, panelSteps)
	case p.Block > 0 && len(args) == 2:
		return nil, fmt.Errorf("blocks of %d without scales", p.Block)
	case p.Integers:
		if err := p.checkIntegers(w.DType, k); err != nil {
			return nil, err
		}
	}
	if s := panelShape(w.DType, p.Deep, p.Integers && w.DType == I8, k, p.Columns); w.Shape != s {
		return nil, fmt.Errorf("panels %v for weights [%d,%d]; requires %v", w.Shape, k, p.Columns, s)
	}
	if len(args) > 2 {
		want := TypeOf(F32, p.Blocks(k), p.Columns)
		if args[2].DType == F16 && !p.Deep {
			want = Type{F16, PanelShape(F16, p.Blocks(k), p.Columns)}
		}
		if args[2] != want {
			return nil, fmt.Errorf("scales %v; requires %v", args[2], want)
		}
	}
	if len(args) > 3 {
		switch want := TypeOf(F32, p.Blocks(k), p.Columns); {
		case p.Deep || p.Integers:
			return nil, fmt.Errorf("offsets %v of weights in deep panels, or in a product of integers", args[3])
		case args[3] != want:
			return nil, fmt.Errorf("offsets %v; requires %v", args[3], want)
		}
	}
	return one(args, Type{F32, x.Shape.With(last, p.Columns)})
}

// MaxIntegerRows is how many rows of weights may share a scale where sums are integers, so that these have room in 32 bits.
const MaxIntegerRows = 1 << 16

// checkIntegers refuses what products of integers do not read.
func (p PanelMatMul) checkIntegers(w DType, k int) error {
	switch {
	case p.Deep || w != I8 && w != I4:
		return fmt.Errorf("products of integers with panels of %v: they are of i4 or i8, and not deep", w)
	case (p.Block == 0 || p.Block > MaxIntegerRows) && k > MaxIntegerRows:
		return fmt.Errorf("more than %d rows share a scale: the sums of integers do not fit into 32 bits", MaxIntegerRows)
	}
	return nil
}

// RoundRows rounds x [..., k] of F32 to 8 bits, and gives the numbers that remain: of block elements of a row, or of all if block
// is 0, the scale is max |x| ÷ 127. Block divides k. Products with weights of few bits that read it sum integers, where a target
// has instructions for that: there x is rounded in the product (T. Dettmers et al., LLM.int8(), arXiv 2208.07339, quantise each
// row of x so).
func (b *Builder) RoundRows(x *Node, block int) *Node {
	last := x.Type.Shape.Rank() - 1
	if b.err == nil && (last < 0 || x.Type.DType != F32 || block < 0 || block > 0 && x.Type.Shape.At(last)%block != 0) {
		return b.Fail(fmt.Errorf("rows of %v are not rounded in blocks of %d", x.Type, block))
	}
	if b.err != nil {
		return x
	}
	q, scale, block := b.quantizedRows(x, block)
	return b.Add(Dequantize{Axis: last, Block: block}, q, scale)
}

// QuantizeRows stores x [..., k] of F32 or F64, k > 0, as I8 with one scale for each row, max |x| ÷ 127, of the shape [..., 1]: as
// an [Attention] with HasScales reads keys and values. A row of zeros has a scale of 0.
func (b *Builder) QuantizeRows(x *Node) (q, scale *Node) {
	if last := x.Type.Shape.Rank() - 1; b.err == nil && (!x.Type.DType.IsFloat() || last < 0 || x.Type.Shape.At(last) == 0) {
		x = b.Fail(fmt.Errorf("rows of %v are not quantised", x.Type))
	}
	if b.err != nil {
		return x, x
	}
	q, scale, _ = b.quantizedRows(x, 0)
	return q, scale
}

// quantizedRows stores block elements of a row, or all if block is 0, with one scale. It gives the size of a block, too.
func (b *Builder) quantizedRows(x *Node, block int) (q, scale *Node, size int) {
	last := x.Type.Shape.Rank() - 1
	k := x.Type.Shape.At(last)
	if block == 0 {
		block = max(k, 1)
	}
	scales := x.Type.Shape.With(last, k/block).Slice()
	sizes := b.Reduce(MaxOf, b.Reshape(b.Unary(Abs, x), append(scales[:last+1:last+1], block)...), false, last+1)
	scale = b.BinaryScalar(Div, sizes, 127)
	return b.Add(Quantize{To: I8, Axis: last, Block: block}, x, scale), scale, block
}

// RoundedRows tells what [Builder.RoundRows] made n of, and in what blocks.
func RoundedRows(n *Node) (x *Node, block int, ok bool) {
	d, ok := n.Op.(Dequantize)
	if !ok || len(n.Args) != 2 || n.Type.DType != F32 {
		return nil, 0, false
	}
	q := n.Args[0]
	if op, ok := q.Op.(Quantize); !ok || op != (Quantize{To: I8, Axis: d.Axis, Block: d.Block}) || d.Block == 0 ||
		d.Axis != n.Type.Shape.Rank()-1 || len(q.Args) != 2 || q.Args[1] != n.Args[1] {
		return nil, 0, false
	}
	x = q.Args[0]
	under := func(n *Node) *Node { // a reshape
		for {
			if _, ok := n.Op.(Reshape); !ok {
				return n
			}
			n = n.Args[0]
		}
	}
	by := under(n.Args[1])
	if op, ok := by.Op.(Binary); !ok || op.Fn != Div {
		return nil, 0, false
	}
	if v, ok := by.Args[1].ConstScalar(); !ok || v != 127 {
		return nil, 0, false
	}
	sizes := under(by.Args[0])
	op, ok := sizes.Op.(Reduce)
	if !ok || op.Fn != MaxOf || op.Axes != IntsOf(sizes.Args[0].Type.Shape.Rank()-1) ||
		sizes.Args[0].Type.Shape.At(op.Axes.At(0)) != d.Block {
		return nil, 0, false
	}
	abs := under(sizes.Args[0])
	if fn, ok := abs.Op.(Unary); !ok || fn.Fn != Abs || under(abs.Args[0]) != under(x) {
		return nil, 0, false
	}
	return x, d.Block, true
}

// Blocks is the number of rows of scales of weights with k rows.
func (p PanelMatMul) Blocks(k int) int {
	if p.Block == 0 {
		return 1
	}
	return blocksOf(k, p.Block)
}

func flopsPanelMatMul(op Op, args, out []Type) int64 {
	s := args[0].Shape
	return product(2*int64(s.At(s.Rank()-1)), elems(out[0]))
}
