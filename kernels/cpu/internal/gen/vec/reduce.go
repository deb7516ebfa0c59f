package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// reduction describes a kernel that makes one number of its sources.
//
// It runs over blocks of blockVectors vectors with several accumulators. After
// each block these are combined pairwise and go to the total: sums of
// float32 are kept in float64 there, so that the error of a sum is that of one
// block however long the slice. The order of the operations depends on the
// length alone.
type reduction struct {
	name    string
	doc     string
	srcs    []string
	scalars []string
	unroll  int     // accumulators, a power of two
	neutral float64 // of combine
	sum     bool    // combine is addition and the total of a float32 is a float64
	combine func(e *emitter, a, b arg) vec

	// step combines the terms of some vectors with acc, in place. fill replaces
	// the lanes beyond the end of the slice by the neutral value; zeros need no
	// filling in a sum. If stores is set, step leaves the terms in in[0].
	step   func(e *emitter, acc vec, in []vec, s []splat, fill func(vec) vec)
	stores bool // the terms are written to dst, the first source

	// nan says that a NaN in the first source must come out although combine
	// may lose it.
	nan bool
}

// blockVectors is the length of a block in vectors.
const blockVectors = 32

// emit writes the kernel for elements of width w.
func (k reduction) emit(g *generator, w *width) {
	name := k.name + w.suffix
	signature := fmt.Sprintf("func(%s []%s", strings.Join(k.srcs, ", "), w.goType)
	if len(k.scalars) > 0 {
		signature += fmt.Sprintf(", %s %s", strings.Join(k.scalars, ", "), w.goType)
	}
	signature += ") " + w.goType
	if w.neon {
		k.neon(g, w, name, signature)
		return
	}
	TEXT(name, attr.NOSPLIT, signature)
	Pragma("noescape")
	Doc(name + " " + k.doc)

	base := make([]reg.Register, len(k.srcs))
	n := GP64()
	for i, s := range k.srcs {
		base[i] = Load(Param(s).Base(), GP64())
		shortest(i == 0, s, n)
	}
	e := &emitter{generator: g, w: w, hoisted: map[uint64]reg.VecVirtual{}}
	scalars := loadScalars(w, k.scalars)
	total := k.newTotal(e)
	var sawNaN vec
	if k.nan {
		sawNaN = vec{YMM()}
		VXORPS(sawNaN[0], sawNaN[0], sawNaN[0])
	}
	acc := make(vec, k.unroll)
	for j := range acc {
		acc[j] = YMM()
	}

	i, left := GP64(), GP64()
	XORQ(i, i)
	step := func(mask vec) {
		in := make([]vec, 0, len(base))
		for j, b := range base {
			if k.stores && j == 0 {
				continue
			}
			v := e.new()
			for u := range v {
				e.loadAt(b, i, u, mask, v[u])
			}
			in = append(in, v)
		}
		if k.nan {
			for _, flag := range e.cmp(predUnord, in[0], in[0]) {
				w.or(flag, sawNaN[0], sawNaN[0])
			}
		}
		fill := func(v vec) vec { return v }
		if mask != nil {
			fill = func(v vec) vec { return e.choose(mask, v, e.c(k.neutral)) }
		}
		k.step(e, acc[:e.u], in, scalars, fill)
		if k.stores {
			for u := range e.u {
				e.storeAt(in[0][u], mask, base[0], i, u)
			}
		}
	}
	perStep := k.unroll * w.lanes

	Label("block")
	for _, a := range acc {
		if k.neutral == 0 {
			VXORPS(a, a, a)
		} else {
			w.load(e.c(k.neutral).op, a)
		}
	}
	MOVQ(U32(blockVectors*w.lanes), left)
	CMPQ(n, left)
	CMOVQLT(n, left)
	SUBQ(left, n)
	SUBQ(U32(perStep), left)
	JLT(LabelRef("tail"))
	Label("loop")
	e.u = k.unroll
	step(nil)
	ADDQ(U32(32*k.unroll), i)
	SUBQ(U32(perStep), left)
	JGE(LabelRef("loop"))
	Label("tail")
	ADDQ(U32(perStep), left)
	JE(LabelRef("combine"))
	Label("masked")
	e.u = 1
	step(vec{e.tailMask(left)})
	ADDQ(U32(32), i)
	SUBQ(U32(w.lanes), left)
	JG(LabelRef("masked"))
	Label("combine")
	e.u = 1
	for len(acc) > 1 {
		half := len(acc) / 2
		for j := range half {
			acc[j] = k.combine(e, vec{acc[j]}, vec{acc[half+j]})[0]
		}
		acc = acc[:half]
	}
	k.addToTotal(e, total, acc)
	TESTQ(n, n)
	JNE(LabelRef("block"))
	k.finish(e, total, sawNaN)
}

// wide says whether the total is a float64 while the elements are not.
func (k reduction) wide(w *width) bool { return k.sum && w.size == 4 }

// newTotal returns the registers of the total, holding the neutral value: one,
// or two if the total is wider than the elements.
func (k reduction) newTotal(e *emitter) vec {
	total := vec{YMM()}
	if k.wide(e.w) {
		total = append(total, YMM())
	}
	for _, t := range total {
		if k.neutral == 0 {
			VXORPS(t, t, t)
		} else {
			e.w.load(e.c(k.neutral).op, t)
		}
	}
	return total
}

// addToTotal combines one vector, the result of a block, with the total.
func (k reduction) addToTotal(e *emitter, total, v vec) {
	if !k.wide(e.w) {
		e.w.load(k.combine(e, vec{total[0]}, v)[0], total[0])
		return
	}
	low, high, upper := YMM(), YMM(), XMM()
	VEXTRACTF128(Imm(1), v[0], upper)
	VCVTPS2PD(v[0].AsX(), low)
	VCVTPS2PD(upper, high)
	VADDPD(low, total[0], total[0])
	VADDPD(high, total[1], total[1])
}

// finish combines the lanes of the total and returns the result.
func (k reduction) finish(e *emitter, total, sawNaN vec) {
	w := e.w
	v := vec{total[0]}
	if k.wide(w) {
		e = &emitter{generator: e.generator, w: f64, u: 1}
		v = e.add(vec{total[0]}, vec{total[1]})
	}
	swapped := vec{YMM()}
	VPERM2F128(Imm(1), v[0], v[0], swapped[0])
	v = k.combine(e, v, swapped)
	if e.w == f32 {
		v = k.combine(e, v, e.imm(VPERMILPS, 0x4e, v))
		v = k.combine(e, v, e.imm(VPERMILPS, 0xb1, v))
	} else {
		v = k.combine(e, v, e.imm(VPERMILPD, 0x5, v))
	}
	if k.nan {
		flags := GP32()
		e.w.moveMask(sawNaN[0], flags)
		TESTL(flags, flags)
		JE(LabelRef("store"))
		w.load(e.c(math.NaN()).op, v[0])
		Label("store")
	}
	if k.wide(w) {
		VCVTSD2SS(v[0].AsX(), v[0].AsX(), v[0].AsX())
	}
	Store(v[0].AsX(), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// reductions are the kernels for both widths.
var reductions = []reduction{
	{
		name: "sum", doc: "returns Σ x[i].", srcs: []string{"x"}, sum: true, combine: (*emitter).add,
		step: func(e *emitter, acc vec, in []vec, _ []splat, _ func(vec) vec) { e.accumulate(e.w.add, acc, in[0]) },
	},
	{
		name: "sumSquares", doc: "returns Σ x[i]².", srcs: []string{"x"}, sum: true, combine: (*emitter).add,
		step: func(e *emitter, acc vec, in []vec, _ []splat, _ func(vec) vec) { e.addMul(acc, in[0], in[0]) },
	},
	{
		name: "sumSquaredDeviations", doc: "returns Σ (x[i] − c)².",
		srcs: []string{"x"}, scalars: []string{"c"}, sum: true, combine: (*emitter).add,
		step: func(e *emitter, acc vec, in []vec, s []splat, fill func(vec) vec) {
			d := fill(e.sub(in[0], s[0]))
			e.addMul(acc, d, d)
		},
	},
	{
		name: "dot", doc: "returns Σ a[i]·b[i].", srcs: []string{"a", "b"}, sum: true, combine: (*emitter).add,
		step: func(e *emitter, acc vec, in []vec, _ []splat, _ func(vec) vec) { e.addMul(acc, in[0], in[1]) },
	},
	{
		name: "prod", doc: "returns Π x[i].", srcs: []string{"x"}, neutral: 1, combine: (*emitter).mul,
		step: func(e *emitter, acc vec, in []vec, _ []splat, fill func(vec) vec) {
			e.accumulate(e.w.mul, acc, fill(in[0]))
		},
	},
	{
		name: "maxOf", doc: "returns the greatest x[i], NaN if there is one, −Inf of none.",
		srcs: []string{"x"}, neutral: math.Inf(-1), nan: true,
		combine: func(e *emitter, a, b arg) vec { return e.two(e.w.max, a, b) },
		step: func(e *emitter, acc vec, in []vec, _ []splat, fill func(vec) vec) {
			e.accumulate(e.w.max, acc, fill(in[0]))
		},
	},
	{
		name: "minOf", doc: "returns the least x[i], NaN if there is one, +Inf of none.",
		srcs: []string{"x"}, neutral: math.Inf(1), nan: true,
		combine: func(e *emitter, a, b arg) vec { return e.two(e.w.min, a, b) },
		step: func(e *emitter, acc vec, in []vec, _ []splat, fill func(vec) vec) {
			e.accumulate(e.w.min, acc, fill(in[0]))
		},
	},
}

// accumulate changes acc to acc op v. VMAXPS and VMINPS return their second
// source if one is NaN; that is acc, so a NaN in v does not wipe it out.
func (e *emitter) accumulate(op instr, acc, v vec) {
	for i := range acc {
		op(acc[i], v[i], acc[i])
	}
}

// reduceFamily emits the reductions for both widths, and for float32 the row
// pass of a softmax.
func reduceFamily(g *generator) {
	for _, w := range g.widths {
		for _, k := range reductions {
			k.unroll = 4
			k.emit(g, w)
		}
	}
	reduction{
		name: "expSubSum", doc: "sets dst[i] = e^(x[i] − c) and returns the sum of them.",
		srcs: []string{"dst", "x"}, scalars: []string{"c"}, unroll: 2, sum: true, stores: true, combine: (*emitter).add,
		step: func(e *emitter, acc vec, in []vec, s []splat, fill func(vec) vec) {
			y := exp(e, e.sub(in[0], s[0]))
			in[0] = y
			e.accumulate(e.w.add, acc, fill(y))
		},
	}.emit(g, g.f32())
}
