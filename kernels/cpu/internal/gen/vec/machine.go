package main

import (
	"math/bits"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// The arithmetic of addresses and loops, for kernels that are described once for both processors. An operand is a general
// register, a place in memory, or a number; what changes comes last.

// start starts a function.
func (g *generator) start(name, signature string, doc ...string) {
	if g.file != nil {
		g.begin(name, signature, doc...)
		return
	}
	TEXT(name, attr.NOSPLIT, signature)
	Pragma("noescape")
	Doc(doc...)
}

// finish ends it.
func (g *generator) finish() {
	if g.file != nil {
		g.fn.Return()
		return
	}
	VZEROUPPER()
	RET()
}

// general is a new general register.
func (g *generator) general() reg.GPVirtual {
	if g.file != nil {
		return arm64.General()
	}
	return GP64()
}

// local is a variable, on the stack where registers are few.
func (g *generator) local() Op {
	if g.file != nil {
		return arm64.General()
	}
	return AllocLocal(8)
}

// inGeneral is an operand in a register, for NEON.
func (g *generator) inGeneral(op Op) reg.Register {
	switch op := op.(type) {
	case reg.Register:
		return op
	case Mem:
		r := arm64.General()
		g.fn.LoadGeneral(r, op)
		return r
	}
	r := arm64.General()
	g.fn.Constant(r, number(op))
	return r
}

// number is an operand that is a number.
func number(op Op) int {
	switch op := op.(type) {
	case U8:
		return int(op)
	case U32:
		return int(op)
	case I32:
		return int(op)
	}
	panic("vec: not a number: " + op.Asm())
}

// set is to = from; one of them is a register.
func (g *generator) set(from, to Op) {
	switch m, ok := to.(Mem); {
	case g.file == nil:
		MOVQ(from, to)
	case ok:
		g.fn.StoreGeneral(m, from.(reg.Register))
	default:
		if m, ok := from.(Mem); ok {
			g.fn.LoadGeneral(to.(reg.Register), m)
			return
		}
		g.fn.Copy(to.(reg.Register), g.inGeneral(from))
	}
}

// clear is r = 0.
func (g *generator) clear(r reg.Register) {
	if g.file != nil {
		g.fn.Constant(r, 0)
		return
	}
	XORQ(r, r)
}

// increase is to += x, decrease to −= x. To is a register or a local variable.
func (g *generator) increase(x, to Op) {
	if g.file != nil {
		g.fn.Add(to.(reg.Register), to.(reg.Register), g.inGeneral(x))
		return
	}
	ADDQ(x, to)
}

func (g *generator) decrease(x, to Op) {
	if g.file != nil {
		g.fn.Sub(to.(reg.Register), to.(reg.Register), g.inGeneral(x))
		return
	}
	SUBQ(x, to)
}

// times is r *= n.
func (g *generator) times(n int, r reg.Register) {
	if g.file != nil {
		g.fn.Mul(r, r, g.inGeneral(U32(n)))
		return
	}
	IMUL3Q(U32(n), r, r)
}

// halve is r >>= n, of a number that is not negative.
func (g *generator) halve(n uint64, r reg.Register) {
	if g.file != nil {
		g.fn.ShiftRight(r, r, int(n))
		return
	}
	SHRQ(Imm(n), r)
}

// double is r <<= n.
func (g *generator) double(n uint64, r reg.Register) {
	if g.file != nil {
		g.fn.ShiftLeft(r, r, int(n))
		return
	}
	SHLQ(Imm(n), r)
}

// address is r = the address of m.
func (g *generator) address(m Mem, r reg.Register) {
	if g.file == nil {
		LEAQ(m, r)
		return
	}
	if m.Index != nil {
		g.fn.AddShifted(r, m.Base, m.Index, bits.TrailingZeros8(m.Scale))
		m.Base = r
	}
	if m.Disp != 0 || m.Index == nil {
		g.fn.AddConstant(r, m.Base, m.Disp)
	}
}

// mark names a place to jump to, jump goes there.
func (g *generator) mark(name string) {
	if g.file != nil {
		g.fn.Label(name)
		return
	}
	Label(name)
}

func (g *generator) jump(label string) {
	if g.file != nil {
		g.fn.Jump(label)
		return
	}
	JMP(LabelRef(label))
}

// jumpIfLess and jumpIfGreater compare two operands, and jump.
func (g *generator) jumpIfLess(a, b Op, label string) {
	if g.file != nil {
		g.fn.Compare(g.inGeneral(a), g.inGeneral(b))
		g.fn.JumpIf("LT", label)
		return
	}
	CMPQ(a, b)
	JLT(LabelRef(label))
}

func (g *generator) jumpIfGreater(a, b Op, label string) {
	if g.file != nil {
		g.fn.Compare(g.inGeneral(a), g.inGeneral(b))
		g.fn.JumpIf("GT", label)
		return
	}
	CMPQ(a, b)
	JGT(LabelRef(label))
}

// jumpIfZero jumps if an operand is 0.
func (g *generator) jumpIfZero(a Op, label string) {
	if g.file != nil {
		g.fn.JumpIfZero(g.inGeneral(a), label)
		return
	}
	if r, ok := a.(reg.Register); ok {
		TESTQ(r, r)
	} else {
		CMPQ(a, Imm(0))
	}
	JE(LabelRef(label))
}

// decreaseJumpIfNone is to −= x, and a jump if nothing is left.
func (g *generator) decreaseJumpIfNone(x, to Op, label string) {
	g.decrease(x, to)
	if g.file != nil {
		g.fn.CompareConstant(to.(reg.Register), 0)
		g.fn.JumpIf("LE", label)
		return
	}
	JLE(LabelRef(label))
}

// countDown is r−−, and a jump unless r is 0.
func (g *generator) countDown(r reg.Register, label string) {
	if g.file != nil {
		g.fn.SubConstant(r, r, 1)
		g.fn.JumpUnlessZero(r, label)
		return
	}
	DECQ(r)
	JNE(LabelRef(label))
}
