package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// A product is a matrix product as the templates see it (src/gemm.cuh): C[m,n] = Σ_k A[m,k]·B[k,n] for each matrix of a
// batch. Batch axes that only A has, and that follow its rows in memory, are taken as further rows: a batch of sequences
// times one matrix of weights is one product.
type product struct {
	name    string // of the Problem in the text
	batch   int    // matrices
	m, n, k int
	a, b    factor
	acc     graph.DType // F32 or F64
	w       int         // columns that the body takes at once

	space     graph.Shape // of the anchor's result
	rows      []int       // its axes that make up m, outermost first
	column    int         // its axis n
	batchAxes []int
	// inBody, if set, turns coordinates in space into those of the body's iteration space, of which the last goes with n.
	inBody func([]string) []string
	// wide is the axis of the body's space that goes with n, if that is not the last; 0 is the last.
	wide int
	// filled, if not 0, is how many rows of each space.At(2) of them are in the result; the others come from channels of zeros.
	filled int
	// filledTaps are, then, how many of each space.At(1) of them are in the result, from number shift on.
	filledTaps, shift int
	// norm, if set, makes operand a of its argument's rows.
	norm *body.Norm
	// panels, if set, are how operand b has its elements.
	panels *panels
	// convolves says that the product is a convolution or a gradient of one.
	convolves bool
}

// A factor is an operand of a product.
type factor struct {
	arg    int
	dtype  graph.DType
	outer  int   // stride along m of A, n of B
	k      int   // stride along k
	batch  []int // strides along the batch axes
	offset int
	listed axis // along which elements are those that a list names
	// patches, if set, say where the elements are; outer and k are 0.
	patches *patches
	// taps, if set, are those of filters: k counts them, outermost, and channels, and is the stride of channels alone.
	taps *taps
	// made, if not empty, is the C++ expression of where an earlier step puts the factor, at byte at of the scratch memory.
	made string
	at   int64
}

// pointer is the C++ expression of the start of the buffer that the factor is in, base the same as a parameter.
func (u *unit) pointer(f factor) string {
	if f.made != "" {
		return f.made
	}
	return u.arg(f.arg)
}

func (f *factor) base() Param {
	byte := int64(f.offset * f.dtype.Size())
	if f.made != "" {
		return Scratch(f.at + byte)
	}
	return Arg(f.arg, byte)
}

// An axis is one of the two of a factor's matrices.
type axis uint8

const (
	noAxis axis = iota
	outerAxis
	kAxis
)

// newProduct describes the anchor's product. The roles of A and B are swapped, and the result transposed with them,
// where the results' elements stand side by side along m, not n, or where n is 1: bodies work along the columns.
func newProduct(b *body.Program) *product {
	anchor := b.Anchor
	p := &product{name: "Problem", space: b.Space, acc: graph.F32}
	if anchor.Type.DType == graph.F64 {
		p.acc = graph.F64
	}
	rank := p.space.Rank()
	p.rows, p.column = []int{rank - 2}, rank-1
	p.m, p.n = p.space.At(rank-2), p.space.At(rank-1)
	switch op := anchor.Op.(type) {
	case graph.PanelMatMul:
		p.a, p.k = newFactor(b.Operands[0], p.space, true)
		p.setPanels(op, b)
	case graph.MatMul:
		p.a, p.k = newFactor(b.Operands[0], p.space, !op.TransA)
		p.b, _ = newFactor(b.Operands[1], p.space, op.TransB)
		if transposed(b) && !b.Norms() {
			p.a, p.b, p.m, p.n = p.b, p.a, p.n, p.m
			p.rows[0], p.column = p.column, p.rows[0]
		}
	}
	p.norm = b.Operands[0].Norm
	p.mergeRows()
	p.batch = 1
	for _, i := range p.batchAxes {
		p.batch *= p.space.At(i)
	}
	return p
}

// newFactor describes an operand of a product of shape space; last says that its last axis is k.
func newFactor(o body.Operand, space graph.Shape, last bool) (f factor, k int) {
	l := o.Layout
	r := l.Shape.Rank()
	outer, inner := r-2, r-1
	if !last {
		outer, inner = inner, outer
	}
	f = factor{arg: o.Arg, dtype: o.Node.Type.DType, offset: l.Offset, batch: make([]int, space.Rank()-2)}
	stride := func(axis int) int {
		if l.Shape.At(axis) == 1 {
			return 0
		}
		return l.Stride[axis]
	}
	f.outer, f.k = stride(outer), stride(inner)
	for i := range r - 2 {
		f.batch[len(f.batch)-(r-2)+i] = stride(i)
	}
	return f, l.Shape.At(inner)
}

// transposed reports whether the product should be computed as Cᵀ = Bᵀ·Aᵀ. Column sums need their columns, and dropout
// draws along the last axis.
func transposed(p *body.Program) bool {
	if p.Draws() || p.SumsColumns() {
		return false
	}
	rank := p.Space.Rank()
	m, n := rank-2, rank-1
	along := p.Space.At(n) == 1 && p.Space.At(m) > 1
	for i := range p.Stores {
		stride := p.Stores[i].Layout.Stride
		if p.Space.At(n) == 1 {
			continue
		}
		if stride[n] == 1 {
			return false
		}
		along = along || p.Space.At(m) > 1 && stride[m] == 1
	}
	return along
}

// mergeRows takes batch axes as rows where strides allow.
func (p *product) mergeRows() {
	merged := len(p.a.batch)
	for i := merged - 1; i >= 0; i-- {
		if d := p.space.At(i); d != 1 {
			if p.m == 1 {
				p.a.outer = p.a.batch[i] // rows of one matrix: any stride will do
			}
			if p.b.batch[i] != 0 || p.a.batch[i] != p.a.outer*p.m {
				break
			}
			p.m *= d
			p.rows = append([]int{i}, p.rows...)
		}
		merged = i
	}
	for i := range merged {
		if p.space.At(i) != 1 {
			p.batchAxes = append(p.batchAxes, i)
		}
	}
}

// pieces tells how a factor is read: kInner whether k is the axis whose elements stand side by side, else m or n is, and
// how many elements, a power of two of at most 16 bytes, make up an aligned piece of them. What a list names does not
// stand side by side.
func (p *product) pieces(f factor, outer int) (kInner bool, vec int) {
	if f.patches != nil {
		return f.patches.kInner, f.patches.vec()
	}
	abs := func(x int) int { return max(x, -x) }
	kInner = f.k == 1 || f.outer != 1 && (abs(f.k) < abs(f.outer) || outer == 1)
	if f.listed != noAxis {
		kInner = f.listed == outerAxis
	}
	inner, side, other := outer, f.outer, f.k
	if kInner {
		inner, side, other = p.k, f.k, f.outer
	}
	if side != 1 {
		return kInner, 1
	}
	steps := inner | other | f.offset
	for _, i := range p.batchAxes {
		steps |= f.batch[i]
	}
	for vec = 1; 2*vec*f.dtype.Size() <= 16 && steps%(2*vec) == 0; {
		vec *= 2
	}
	return kInner, vec
}

// columns sets how many columns the body takes at once: at most limit, a power of two.
func (p *product) columns(limit int) {
	for p.w = 1; 2*p.w <= limit && p.n > 0 && p.n%(2*p.w) == 0; {
		p.w *= 2
	}
}

// coords are the C++ expressions of the coordinates in the iteration space; lines declare what they need, given the
// variables batch, m and n.
func (p *product) coords() (coords, lines []string) {
	coords = make([]string, p.space.Rank())
	for i := range coords {
		coords[i] = "0"
	}
	coords[p.column] = "n"
	split := func(from string, axes []int) {
		size := 1
		for i := len(axes) - 1; i >= 0; i-- {
			d := p.space.At(axes[i])
			if d == 1 {
				continue
			}
			expr := from
			if size > 1 {
				expr += fmt.Sprintf(" / %d", size)
			}
			if !allOnes(p.space, axes[:i]) {
				expr += fmt.Sprintf(" %% %d", d)
			}
			size *= d
			if expr == from {
				coords[axes[i]] = from
				continue
			}
			coords[axes[i]] = fmt.Sprintf("c%d", axes[i])
			lines = append(lines, fmt.Sprintf("const int c%d = %s;", axes[i], expr))
		}
	}
	split("m", p.rows)
	split("batch", p.batchAxes)
	return coords, lines
}

// allOnes reports whether the axes of s have one element each.
func allOnes(s graph.Shape, axes []int) bool {
	return !slices.ContainsFunc(axes, func(i int) bool { return s.At(i) != 1 })
}

// write prints the product as the Problem of the templates.
func (p *product) write(u *unit) {
	aInner, aVec := p.pieces(p.a, p.m)
	bInner, bVec := p.pieces(p.b, p.n)
	if p.panels != nil {
		bInner, bVec = true, 1
	}
	u.printf("struct %s {\n  typedef %s A;\n  typedef %s B;\n  typedef %s Acc;\n", p.name,
		ctype(p.a.dtype), ctype(p.b.dtype), lane(p.acc))
	u.printf("  static constexpr int BATCH = %d, M = %d, N = %d, K = %d, W = %d, A_VEC = %d, B_VEC = %d;\n",
		p.batch, p.m, p.n, p.k, p.w, aVec, bVec)
	u.printf("  static constexpr i64 A_M = %d, A_K = %d, B_K = %d, B_N = %d;\n", p.a.outer, p.a.k, p.b.k, p.b.outer)
	u.printf("  static constexpr bool A_KINNER = %v, B_KINNER = %v, GATHER = %v, PATCHES = %v;\n", aInner, bInner,
		p.a.listed != noAxis, p.a.patches != nil)
	for _, f := range []*factor{&p.a, &p.b} {
		if f.patches != nil {
			f.patches.write(u)
		}
	}
	if p.panels != nil {
		p.panels.write(u)
	}
	u.printf("  DEVICE static i64 a_at(int batch) { return %s; }\n", p.place(p.a))
	u.printf("  DEVICE static i64 b_at(int batch) { return %s; }\n};\n\n", p.place(p.b))
}

// place is the C++ expression of where a factor's matrix begins.
func (p *product) place(f factor) string {
	terms := []string{fmt.Sprintf("%dll", f.offset)}
	size := 1
	for i := len(p.batchAxes) - 1; i >= 0; i-- {
		axis := p.batchAxes[i]
		if s := f.batch[axis]; s != 0 {
			t := "batch"
			if size > 1 {
				t += fmt.Sprintf(" / %d", size)
			}
			if i > 0 {
				t += fmt.Sprintf(" %% %d", p.space.At(axis))
			}
			terms = append(terms, fmt.Sprintf("i64(%s) * %d", t, s))
		}
		size *= p.space.At(axis)
	}
	return strings.Join(terms, " + ")
}
