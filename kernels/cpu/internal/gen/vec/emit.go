package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// vec is a value of a kernel's body: one register for each vector that an
// iteration works on. Instructions on a vec are emitted for all of them in
// turn, so an unrolled body is interleaved by construction.
type vec []reg.VecVirtual

// splat is an operand that is the same for all vectors of an iteration: a
// constant in memory or in a register, or a broadcast argument.
type splat struct{ op Op }

// arg is a vec or a splat.
type arg interface{ at(i int) Op }

func (v vec) at(i int) Op    { return v[i] }
func (s splat) at(int) Op    { return s.op }
func (s splat) memory() bool { _, ok := s.op.(Mem); return ok }

// generator owns what the kernels of one output file share: the constants.
type generator struct {
	pool   map[string]Mem
	tables tables
	widths []*width // of float32 and float64

	// Of NEON: the file and the function that are being written, and how many labels the function has.
	file   *arm64.File
	fn     *arm64.Func
	labels int
}

// newGenerator starts an output file for a processor by its Go name.
func newGenerator(arch string) *generator {
	g := &generator{pool: map[string]Mem{}, tables: tables{}, widths: []*width{f32, f64}}
	if arch == "arm64" {
		g.file = arm64.NewFile()
		g.widths = []*width{g.neonWidth(f32, arm64.S4), g.neonWidth(f64, arm64.D2)}
		return g
	}
	ConstraintExpr("amd64")
	return g
}

// f32 and f64 are the widths of the processor.
func (g *generator) f32() *width { return g.widths[0] }
func (g *generator) f64() *width { return g.widths[1] }

// constant returns a register's width of read-only data that repeat a bit pattern.
func (g *generator) constant(w *width, bits uint64) Mem {
	if w.neon {
		if w.size == 4 {
			bits |= bits << 32
		}
		return g.file.Constant(bits, bits)
	}
	name := fmt.Sprintf("splat%s_%0*x", w.suffix, 2*w.size, bits)
	m, ok := g.pool[name]
	if !ok {
		m = GLOBL(name, attr.RODATA|attr.NOPTR)
		for i := range w.lanes {
			if w.size == 4 {
				DATA(4*i, U32(bits))
			} else {
				DATA(8*i, U64(bits))
			}
		}
		g.pool[name] = m
	}
	return m
}

// tailMasks returns eight words of ones followed by eight of zeros. The 32 bytes
// that start 32 − k bytes into it are a mask of the first k bytes.
func (g *generator) tailMasks() Mem {
	m, ok := g.pool["tailmasks"]
	if !ok {
		m = GLOBL("tailmasks", attr.RODATA|attr.NOPTR)
		for i := range 16 {
			word := U32(0)
			if i < 8 {
				word = U32(0xffffffff)
			}
			DATA(4*i, word)
		}
		g.pool["tailmasks"] = m
	}
	return m
}

// emitter emits the body of one kernel over u vectors at a time.
type emitter struct {
	*generator
	w       *width
	u       int
	hoisted map[uint64]reg.VecVirtual
	opmask  reg.Register // of the lanes that count in the tail, with ZMM registers

	// again loads the given source once more. A body that needs its input at the
	// end can thus leave the registers in between to more vectors.
	again func(source int) vec
}

// hoist loads constants into registers that stay theirs for the whole kernel.
func (e *emitter) hoist(values []float64) {
	for _, v := range values {
		b := e.w.bits(v)
		if _, ok := e.hoisted[b]; ok {
			continue
		}
		r := e.w.register()
		switch {
		case b == 0 && e.w.neon:
			e.fn.Zero(r)
		case b == 0:
			VXORPS(r, r, r)
		default:
			e.w.load(e.constant(e.w, b), r)
		}
		e.hoisted[b] = r
	}
}

// c is the constant v: its hoisted register, or else memory.
func (e *emitter) c(v float64) splat { return e.pattern(e.w.bits(v)) }

// pattern is the constant with the given bits: its hoisted register, or memory.
func (e *emitter) pattern(bits uint64) splat {
	if r, ok := e.hoisted[bits]; ok {
		return splat{r}
	}
	return splat{e.constant(e.w, bits)}
}

// shared returns a itself or, if it is in memory and the body works on several
// vectors at once, a register holding it: two 32-byte loads a cycle are all that
// there is, and a load for every use of every constant would take most of them.
func (e *emitter) shared(a arg) arg {
	if e.u == 1 && !e.w.neon {
		return a
	}
	return e.inRegister(a)
}

// inRegister returns a itself, or a register holding it if it is in memory.
func (e *emitter) inRegister(a arg) arg {
	if s, ok := a.(splat); ok && s.memory() {
		r := e.w.register()
		e.w.load(s.op, r)
		return splat{r}
	}
	return a
}

// new returns u fresh registers.
func (e *emitter) new() vec {
	v := make(vec, e.u)
	for i := range v {
		v[i] = e.w.register()
	}
	return v
}

// copy returns a in registers of its own.
func (e *emitter) copy(a arg) vec {
	if !e.w.neon { // where an instruction overwrites a copy, it may as well be loaded
		a = e.shared(a)
	}
	d := e.new()
	for i := range d {
		e.w.load(a.at(i), d[i])
	}
	return d
}

// two emits d = a op b; b may be in memory, a is loaded if it is.
func (e *emitter) two(op instr, a, b arg) vec {
	a, b = e.inRegister(a), e.shared(b)
	d := e.new()
	for i := range d {
		op(b.at(i), a.at(i), d[i])
	}
	return d
}

// one emits d = op a.
func (e *emitter) one(op instr, a arg) vec {
	d := e.new()
	for i := range d {
		op(a.at(i), d[i])
	}
	return d
}

// imm emits d = op(a, n) for an instruction with an immediate operand.
func (e *emitter) imm(op instr, n uint64, a arg) vec {
	d := e.new()
	for i := range d {
		op(Imm(n), a.at(i), d[i])
	}
	return d
}

func (e *emitter) add(a, b arg) vec  { return e.two(e.w.add, a, b) }
func (e *emitter) sub(a, b arg) vec  { return e.two(e.w.sub, a, b) }
func (e *emitter) mul(a, b arg) vec  { return e.two(e.w.mul, a, b) }
func (e *emitter) div(a, b arg) vec  { return e.two(e.w.div, a, b) }
func (e *emitter) and(a, b arg) vec  { return e.two(e.w.and, a, b) }
func (e *emitter) or(a, b arg) vec   { return e.two(e.w.or, a, b) }
func (e *emitter) xor(a, b arg) vec  { return e.two(e.w.xor, a, b) }
func (e *emitter) sqrt(a arg) vec    { return e.one(e.w.sqrt, a) }
func (e *emitter) signBit(a arg) vec { return e.and(a, e.pattern(e.w.sign)) }

// abs is |a|, neg is −a.
func (e *emitter) abs(a arg) vec {
	if e.w.neon {
		return e.neonTwo("fabs", a)
	}
	return e.and(a, e.pattern(e.w.sign-1))
}

func (e *emitter) neg(a arg) vec {
	if e.w.neon {
		return e.neonTwo("fneg", a)
	}
	return e.xor(a, e.pattern(e.w.sign))
}

// atLeast is max(x, bound); a NaN in x stays a NaN, since VMAXPS and VMINPS
// return their second source when the comparison is unordered.
func (e *emitter) atLeast(x vec, bound arg) vec { return e.two(e.w.max, bound, x) }

// atMost is min(x, bound); a NaN in x stays a NaN.
func (e *emitter) atMost(x vec, bound arg) vec { return e.two(e.w.min, bound, x) }

// mulAdd changes x to x·y + c.
func (e *emitter) mulAdd(x vec, y, c arg) {
	y = e.inRegister(y)
	if e.w.neon { // FMLA overwrites what it adds to
		sum := e.copy(c)
		for i := range x {
			e.w.fma231(y.at(i), x[i], sum[i])
			x[i] = sum[i]
		}
		return
	}
	c = e.shared(c)
	for i := range x {
		e.w.fma213(c.at(i), y.at(i), x[i])
	}
}

// addMul changes acc to acc + a·b.
func (e *emitter) addMul(acc vec, a, b arg) {
	b = e.shared(b)
	for i := range acc {
		e.w.fma231(b.at(i), a.at(i), acc[i])
	}
}

// subMul changes acc to acc − a·b.
func (e *emitter) subMul(acc vec, a, b arg) {
	b = e.shared(b)
	for i := range acc {
		e.w.fnma231(b.at(i), a.at(i), acc[i])
	}
}

// fma returns a·b + c in fresh registers.
func (e *emitter) fma(a, b, c arg) vec {
	d := e.copy(a)
	e.mulAdd(d, b, c)
	return d
}

// poly returns the polynomial with the given coefficients, highest power
// first, at x, by Horner's rule.
func (e *emitter) poly(x vec, coefficients ...float64) vec {
	p := e.copy(e.c(coefficients[0]))
	for _, c := range coefficients[1:] {
		e.mulAdd(p, x, e.c(c))
	}
	return p
}

// Predicates of VCMPPS and VCMPPD, quiet ones.
const (
	predEQ    = 0x00
	predUnord = 0x03
	predNE    = 0x04 // true for unordered
	predNGE   = 0x19 // a < b or unordered
	predGE    = 0x1d
	predGT    = 0x1e
	predLT    = 0x11
	predLE    = 0x12
	predNLE   = 0x16 // a > b or unordered
	predOrd   = 0x07
)

// cmp returns all ones in the lanes where a pred b, zeros elsewhere.
func (e *emitter) cmp(pred uint64, a, b arg) vec {
	a, b = e.inRegister(a), e.shared(b)
	d := e.new()
	for i := range d {
		e.w.cmp(Imm(pred), b.at(i), a.at(i), d[i])
	}
	return d
}

// choose returns yes in the lanes whose mask is set, all bits of it, no elsewhere.
func (e *emitter) choose(mask vec, yes, no arg) vec {
	no, yes = e.inRegister(no), e.shared(yes)
	d := e.new()
	for i := range d {
		e.w.blend(mask[i], yes.at(i), no.at(i), d[i])
	}
	return d
}

// topBit makes a mask of the lanes of 32 bits whose top bit is set. AVX2 looks at nothing else.
func (e *emitter) topBit(a vec) vec {
	if e.w.neon {
		return e.imm(e.w.shiftRight, 31, a)
	}
	return a
}

// bool01 turns a mask into ones and zeros.
func (e *emitter) bool01(mask vec) vec { return e.and(mask, e.c(1)) }

// Rounding modes of VROUNDPS, with the inexact exception suppressed.
const (
	roundEven  = 0x08
	roundFloor = 0x09
	roundCeil  = 0x0a
	roundTrunc = 0x0b
)

// round returns a rounded to an integer.
func (e *emitter) round(mode uint64, a vec) vec {
	d := e.new()
	for i := range d {
		e.w.round(Imm(mode), a[i], d[i])
	}
	return d
}
