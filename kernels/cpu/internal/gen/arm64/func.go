// Package arm64 writes functions in Go's assembly for Arm: with virtual registers, which it assigns, and with the vector
// instructions that Go's assembler does not know, which it encodes.
//
// Registers and places in memory are those of package avo, so that what describes a kernel for AVX2 describes it for NEON,
// too. A place has a base, and perhaps an index with a scale. An instruction's destination comes first, as in Arm's manual.
package arm64

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/mmcloughlin/avo/gotypes"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// virtual numbers the registers of all functions.
var virtual = reg.NewCollection()

// Vector returns a new vector register.
func Vector() reg.VecVirtual { return virtual.XMM() }

// General returns a new general register.
func General() reg.GPVirtual { return virtual.GP64() }

// VectorBytes is the size of a vector register.
const VectorBytes = 16

// A Func is a function that is being written.
type Func struct {
	file      *File
	name      string
	signature *gotypes.Signature
	doc       []string
	code      []instruction
	pool      reg.GPVirtual // points to the file's constants, if the function has some
	frame     int           // bytes of local variables
}

// An instruction is one line of a function.
type instruction struct {
	text string // with %[1]s and so on for registers
	// word, if set, encodes the instruction for the numbers of its registers, and text is what a disassembler prints.
	word       func(r []uint32) uint32
	registers  []reg.Register
	defs, uses []reg.Register
	label      string // that the instruction is, or else
	target     string // where it jumps
	always     bool   // it does not go on to the next one
	move       bool   // the first register becomes the second
}

func (f *Func) put(i instruction) { f.code = append(f.code, i) }

// writes adds an instruction of Go's assembler that writes d, which is the first register of its text, and reads others.
func (f *Func) writes(text string, d reg.Register, uses ...reg.Register) {
	f.put(instruction{text: text, registers: append([]reg.Register{d}, uses...), defs: []reg.Register{d}, uses: uses})
}

// reads adds one that only reads registers, and goes to a label, if that is not empty.
func (f *Func) reads(text, target string, uses ...reg.Register) {
	f.put(instruction{text: text, target: target, registers: uses, uses: uses})
}

// storesWord adds an instruction by its word that reads vector register n and the register of an address.
func (f *Func) storesWord(text string, word uint32, n operand.Op, base reg.Register) {
	all := []reg.Register{f.register(n), base}
	f.put(instruction{text: text, word: func(r []uint32) uint32 { return registers(word, r[0], r[1], 0) }, registers: all, uses: all})
}

// vector adds an instruction by its word. The first register is the destination.
func (f *Func) vector(text string, reads bool, word func(r []uint32) uint32, registers ...reg.Register) {
	uses := registers[1:]
	if reads {
		uses = registers
	}
	f.put(instruction{text: text, word: word, registers: registers, defs: registers[:1], uses: uses})
}

// Three is d = n op m, or d = d op (n, m) for the instructions that accumulate.
func (f *Func) Three(name string, a Arrangement, d, n, m operand.Op) {
	e := find(three, name, "")
	if e.sizing == logical {
		a = B16
	}
	f.vector(fmt.Sprintf("%s v%%[1]s.%s, v%%[2]s.%[2]s, v%%[3]s.%[2]s", name, a), e.reads,
		func(r []uint32) uint32 { return registers(e.word(a), r[0], r[1], r[2]) }, f.register(d), f.value(n), f.value(m))
}

// Two is d = op n.
func (f *Func) Two(name string, a Arrangement, d, n operand.Op) {
	e := find(two, name, "")
	if e.sizing == logical {
		a = B16
	}
	f.vector(fmt.Sprintf("%s v%%[1]s.%s, v%%[2]s.%[2]s", name, a), e.reads,
		func(r []uint32) uint32 { return registers(e.word(a), r[0], r[1], 0) }, f.register(d), f.value(n))
}

// Shift is d = n shifted by a number of bits.
func (f *Func) Shift(name string, a Arrangement, by uint64, d, n operand.Op) {
	word := shiftWord(name, a, uint32(by))
	f.vector(fmt.Sprintf("%s v%%[1]s.%s, v%%[2]s.%[2]s, #%d", name, a, by), false,
		func(r []uint32) uint32 { return registers(word, r[0], r[1], 0) }, f.register(d), f.value(n))
}

// Change is an instruction between arrangements; to is that of the destination.
func (f *Func) Change(name string, to Arrangement, d operand.Op, sources ...operand.Op) {
	c, ok := changes[name+"."+to.element()]
	if !ok || len(sources) != c.sources {
		panic(fmt.Sprintf("arm64: no instruction %s to %s of %d", name, to, len(sources)))
	}
	text := fmt.Sprintf("%s v%%[1]s.%s, v%%[2]s.%s", name, c.to, c.from)
	regs := []reg.Register{f.register(d), f.value(sources[0])}
	if c.sources == 2 {
		text += fmt.Sprintf(", v%%[3]s.%s", c.from)
		regs = append(regs, f.value(sources[1]))
	}
	f.vector(text, c.reads, func(r []uint32) uint32 {
		if c.sources == 1 {
			return registers(c.bits, r[0], r[1], 0)
		}
		return registers(c.bits, r[0], r[1], r[2])
	}, regs...)
}

// WidenBF16 makes numbers of S4 of the lower four of H8 that are upper halves of such, or of the upper four.
func (f *Func) WidenBF16(upper bool, d, n operand.Op) {
	name, from := "shll", H4
	if upper {
		name, from = "shll2", H8
	}
	f.vector(fmt.Sprintf("%s v%%[1]s.4s, v%%[2]s.%s, #16", name, from), false,
		func(r []uint32) uint32 { return registers(shiftLong[upper], r[0], r[1], 0) }, f.register(d), f.value(n))
}

// FromFixed converts signed integers of S4, of which so many bits are behind the point.
func (f *Func) FromFixed(point int, d, n operand.Op) {
	word := fixedWord(point)
	f.vector(fmt.Sprintf("scvtf v%%[1]s.4s, v%%[2]s.4s, #%d", point), false,
		func(r []uint32) uint32 { return registers(word, r[0], r[1], 0) }, f.register(d), f.value(n))
}

// Lookup sets each byte of d to the byte of n whose number that of m is, or to 0 if n has none.
func (f *Func) Lookup(d, n, m operand.Op) {
	f.vector("tbl v%[1]s.16b, {v%[2]s.16b}, v%[3]s.16b", false,
		func(r []uint32) uint32 { return registers(0x4e000000, r[0], r[1], r[2]) }, f.register(d), f.value(n), f.value(m))
}

// Element is d = d op (n, lane number at of m), or d = n op that.
func (f *Func) Element(name string, a Arrangement, d, n, m operand.Op, at int) {
	e := find(byElement, name, " by element")
	word := elementWord(e, a, uint32(at))
	f.vector(fmt.Sprintf("%s v%%[1]s.%s, v%%[2]s.%[2]s, v%%[3]s.%[3]s[%[4]d]", name, a, a.element(), at), e.reads,
		func(r []uint32) uint32 { return registers(word, r[0], r[1], r[2]) }, f.register(d), f.value(n), f.value(m))
}

// Dot adds to each S4 lane of d the products of four signed bytes of n and those of lane number at of m, which have a sign for
// sdot, of FEAT_DotProd, and none for sudot, of FEAT_I8MM.
func (f *Func) Dot(name string, d, n, m operand.Op, at int) {
	word := elementWord(find(dots, name, " by element"), S4, uint32(at))
	f.vector(fmt.Sprintf("%s v%%[1]s.4s, v%%[2]s.16b, v%%[3]s.4b[%d]", name, at), true,
		func(r []uint32) uint32 { return registers(word, r[0], r[1], r[2]) }, f.register(d), f.value(n), f.value(m))
}

// Dup sets all lanes of d to lane number at of n.
func (f *Func) Dup(a Arrangement, d, n operand.Op, at int) {
	word := 0x4e000400 | lane(a, uint32(at))
	f.vector(fmt.Sprintf("dup v%%[1]s.%s, v%%[2]s.%s[%d]", a, a.element(), at), false,
		func(r []uint32) uint32 { return registers(word, r[0], r[1], 0) }, f.register(d), f.value(n))
}

// DupGeneral sets all lanes of d to a general register.
func (f *Func) DupGeneral(a Arrangement, d operand.Op, n reg.Register) {
	kind := "w"
	if a == D2 {
		kind = "x"
	}
	word := 0x4e000c00 | lane(a, 0)
	f.vector(fmt.Sprintf("dup v%%[1]s.%s, %s%%[2]s", a, kind), false,
		func(r []uint32) uint32 { return registers(word, r[0], r[1], 0) }, f.register(d), n)
}

// Extract sets d to 16 bytes of n and m, from byte number at of n on.
func (f *Func) Extract(d, n, m operand.Op, at int) {
	if at < 0 || at >= VectorBytes {
		panic(fmt.Sprintf("arm64: ext from byte %d", at))
	}
	f.vector(fmt.Sprintf("ext v%%[1]s.16b, v%%[2]s.16b, v%%[3]s.16b, #%d", at), false,
		func(r []uint32) uint32 { return registers(0x6e000000|uint32(at)<<11, r[0], r[1], r[2]) }, f.register(d), f.value(n), f.value(m))
}

// Greatest sets the lowest lane of d to the greatest of the unsigned numbers in the S4 lanes of n, and the others to 0.
func (f *Func) Greatest(d, n operand.Op) {
	f.vector("umaxv s%[1]s, v%[2]s.4s", false,
		func(r []uint32) uint32 { return registers(0x6eb0a800, r[0], r[1], 0) }, f.register(d), f.value(n))
}

// Zero clears d.
func (f *Func) Zero(d operand.Op) {
	f.vector("movi v%[1]s.2d, #0x0", false, func(r []uint32) uint32 { return 0x6f00e400 | r[0] }, f.register(d))
}

// Move copies a vector register. Where both become the same, nothing is written.
func (f *Func) Move(d, n operand.Op) {
	f.vector("mov v%[1]s.16b, v%[2]s.16b", false,
		func(r []uint32) uint32 { return registers(0x4ea01c00, r[0], r[1], r[1]) }, f.register(d), f.register(n))
	f.code[len(f.code)-1].move = true
}

// register is an operand that has to be a register.
func (f *Func) register(op operand.Op) reg.Register {
	r, ok := op.(reg.Register)
	if !ok {
		panic(fmt.Sprintf("arm64: %s: %s is not a register", f.name, op.Asm()))
	}
	return r
}

// value is an operand in a register: itself, or loaded.
func (f *Func) value(op operand.Op) reg.Register {
	if _, ok := op.(operand.Mem); !ok {
		return f.register(op)
	}
	v := Vector()
	f.Load(v, op)
	return v
}

// place is a place in memory in Go's syntax, with the register that it is counted from.
func (f *Func) place(m operand.Mem) (text string, base reg.Register) {
	if m.Symbol.Name == poolName {
		if f.pool == nil {
			f.pool = General()
		}
		return fmt.Sprintf("%d(%%s)", m.Disp), f.pool
	}
	if m.Base == nil || m.Symbol.Name != "" {
		panic("arm64: no such place: " + m.Asm())
	}
	base = m.Base
	if m.Index != nil {
		at := General()
		f.AddShifted(at, m.Base, m.Index, bits.TrailingZeros8(m.Scale))
		base = at
	}
	return fmt.Sprintf("%d(%%s)", m.Disp), base
}

// transfer adds a load or a store by Go's instruction for part of a vector register or a general one.
func (f *Func) transfer(name, prefix string, r reg.Register, m operand.Mem, store bool) {
	text, base := f.place(m)
	at := fmt.Sprintf(text, "R%[2]s")
	if store {
		f.reads(fmt.Sprintf("%s %s%%[1]s, %s", name, prefix, at), "", r, base)
		return
	}
	f.writes(fmt.Sprintf("%s %s, %s%%[1]s", name, at, prefix), r, base)
}

// partNames are Go's moves of the lowest bytes of a vector register.
var partNames = map[int]string{16: "FMOVQ", 8: "FMOVD", 4: "FMOVS"}

// Load loads a vector register, or copies one.
func (f *Func) Load(d, n operand.Op) {
	if m, ok := n.(operand.Mem); ok {
		f.LoadPart(VectorBytes, d, m)
		return
	}
	f.Move(d, n)
}

// LoadPart loads the lowest 4, 8 or 16 bytes of a register and clears the others.
func (f *Func) LoadPart(bytes int, d operand.Op, m operand.Mem) {
	f.transfer(partNames[bytes], "F", f.register(d), m, false)
}

// Store stores a vector register.
func (f *Func) Store(m operand.Mem, n operand.Op) { f.StorePart(VectorBytes, m, n) }

// StorePart stores the lowest 4, 8 or 16 bytes of a register.
func (f *Func) StorePart(bytes int, m operand.Mem, n operand.Op) {
	f.transfer(partNames[bytes], "F", f.register(n), m, true)
}

// LoadPair loads two vector registers that follow one another in memory.
func (f *Func) LoadPair(d, e operand.Op, base reg.Register, at int) {
	both := []reg.Register{f.register(d), f.register(e)}
	f.put(instruction{text: fmt.Sprintf("FLDPQ %d(R%%[3]s), (F%%[1]s, F%%[2]s)", at), registers: append(both, base),
		defs: both, uses: []reg.Register{base}})
}

// StorePair stores two.
func (f *Func) StorePair(base reg.Register, at int, n, m operand.Op) {
	f.reads(fmt.Sprintf("FSTPQ (F%%[1]s, F%%[2]s), %d(R%%[3]s)", at), "", f.register(n), f.register(m), base)
}

// LoadSplat loads one number into all lanes.
func (f *Func) LoadSplat(a Arrangement, d operand.Op, m operand.Mem) {
	_, base := f.place(m)
	if m.Disp != 0 {
		at := General()
		f.AddConstant(at, base, m.Disp)
		base = at
	}
	word := 0x4d40c000 | a.size()<<10
	f.vector(fmt.Sprintf("ld1r {v%%[1]s.%s}, [x%%[2]s]", a), false,
		func(r []uint32) uint32 { return registers(word, r[0], r[1], 0) }, f.register(d), base)
}

// LoadThird loads lane 2 of an S4 register and leaves the others.
func (f *Func) LoadThird(d operand.Op, base reg.Register) {
	f.vector("ld1 {v%[1]s.s}[2], [x%[2]s]", true,
		func(r []uint32) uint32 { return registers(0x4d408000, r[0], r[1], 0) }, f.register(d), base)
}

// StoreThird stores lane 2 of an S4 register.
func (f *Func) StoreThird(base reg.Register, n operand.Op) {
	f.storesWord("st1 {v%[1]s.s}[2], [x%[2]s]", 0x4d008000, n, base)
}

// StoreUpper stores the upper half of a register.
func (f *Func) StoreUpper(base reg.Register, n operand.Op) {
	f.storesWord("st1 {v%[1]s.d}[1], [x%[2]s]", 0x4d008400, n, base)
}

// LoadGeneral and StoreGeneral move a word of 64 bits.
func (f *Func) LoadGeneral(d reg.Register, m operand.Mem)  { f.transfer("MOVD", "R", d, m, false) }
func (f *Func) StoreGeneral(m operand.Mem, n reg.Register) { f.transfer("MOVD", "R", n, m, true) }

// LoadWord loads 32 bits and clears the upper ones.
func (f *Func) LoadWord(d reg.Register, m operand.Mem) { f.transfer("MOVWU", "R", d, m, false) }

// Lowest moves the lowest bytes of a vector register, 4 or 8, to a general one.
func (f *Func) Lowest(bytes int, d reg.Register, n operand.Op) {
	f.writes(partNames[bytes]+" F%[2]s, R%[1]s", d, f.register(n))
}

// Ask asks for the line of the cache at a place, into the first level or the second.
func (f *Func) Ask(level int, m operand.Mem) {
	text, base := f.place(m)
	f.reads(fmt.Sprintf("PRFM %s, PLDL%dKEEP", fmt.Sprintf(text, "R%[1]s"), level), "", base)
}

// Constant sets d to a number.
func (f *Func) Constant(d reg.Register, v int) {
	f.writes(fmt.Sprintf("MOVD $%d, R%%[1]s", v), d)
}

// Copy copies a general register.
func (f *Func) Copy(d, n reg.Register) {
	f.writes("MOVD R%[2]s, R%[1]s", d, n)
	f.code[len(f.code)-1].move = true
}

// arithmetic is d = n op m in general registers. Any of them may be the same.
func (f *Func) arithmetic(name string, d, n, m reg.Register) {
	f.writes(name+" R%[3]s, R%[2]s, R%[1]s", d, n, m)
}

// withConstant is d = n op v.
func (f *Func) withConstant(name string, d, n reg.Register, v int) {
	f.writes(fmt.Sprintf("%s $%d, R%%[2]s, R%%[1]s", name, v), d, n)
}

// Arithmetic in general registers: d = n + m and so on.
func (f *Func) Add(d, n, m reg.Register)             { f.arithmetic("ADD", d, n, m) }
func (f *Func) Sub(d, n, m reg.Register)             { f.arithmetic("SUB", d, n, m) }
func (f *Func) Mul(d, n, m reg.Register)             { f.arithmetic("MUL", d, n, m) }
func (f *Func) AddConstant(d, n reg.Register, v int) { f.withConstant("ADD", d, n, v) }
func (f *Func) SubConstant(d, n reg.Register, v int) { f.withConstant("SUB", d, n, v) }
func (f *Func) ShiftLeft(d, n reg.Register, by int)  { f.withConstant("LSL", d, n, by) }
func (f *Func) ShiftRight(d, n reg.Register, by int) { f.withConstant("LSR", d, n, by) }
func (f *Func) AddShifted(d, n, m reg.Register, left int) { // d = n + m·2^left
	if left == 0 {
		f.Add(d, n, m)
		return
	}
	f.writes(fmt.Sprintf("ADD R%%[3]s<<%d, R%%[2]s, R%%[1]s", left), d, n, m)
}

// Least is d = min(n, m) of signed numbers. It compares.
func (f *Func) Least(d, n, m reg.Register) {
	f.Compare(n, m)
	f.writes("CSEL LT, R%[2]s, R%[3]s, R%[1]s", d, n, m)
}

// Compare compares two general registers, CompareConstant one with a number.
func (f *Func) Compare(n, m reg.Register) {
	f.reads("CMP R%[2]s, R%[1]s", "", n, m)
}
func (f *Func) CompareConstant(n reg.Register, v int) {
	f.reads(fmt.Sprintf("CMP $%d, R%%[1]s", v), "", n)
}

// Label marks a place to jump to.
func (f *Func) Label(name string) { f.put(instruction{label: name}) }

// Jump goes to a label; JumpIf does after a comparison, by Go's name of the condition: LT, LE, GT, GE, EQ, NE.
func (f *Func) Jump(label string) {
	f.put(instruction{text: "B " + label, target: label, always: true})
}
func (f *Func) JumpIf(condition, label string) {
	f.reads("B"+condition+" "+label, label)
}

// JumpIfZero and JumpUnlessZero go to a label by a general register.
func (f *Func) JumpIfZero(n reg.Register, label string) {
	f.reads("CBZ R%[1]s, "+label, label, n)
}
func (f *Func) JumpUnlessZero(n reg.Register, label string) {
	f.reads("CBNZ R%[1]s, "+label, label, n)
}

// JumpIfBit goes to a label if a bit of a general register is as given.
func (f *Func) JumpIfBit(set bool, bit int, n reg.Register, label string) {
	name := "TBZ"
	if set {
		name = "TBNZ"
	}
	f.reads(fmt.Sprintf("%s $%d, R%%[1]s, %s", name, bit, label), label, n)
}

// Return leaves the function.
func (f *Func) Return() { f.put(instruction{text: "RET", always: true}) }

// param is the place of a parameter, "x" or, of a slice, "x.base" or "x.len", or of the result, "return".
func (f *Func) param(name string) (text string, size int, float bool) {
	name, part, _ := strings.Cut(name, ".")
	var c gotypes.Component
	if c = f.signature.Params().Lookup(name); name == "return" {
		c = f.signature.Results().At(0)
	}
	switch part {
	case "base":
		c = c.Base()
	case "len":
		c = c.Len()
	}
	b, err := c.Resolve()
	if err != nil {
		panic(fmt.Sprintf("arm64: %s: %v", f.name, err))
	}
	return fmt.Sprintf("%s+%d(FP)", b.Addr.Symbol.Name, b.Addr.Disp), int(sizeof(b.Type)), isFloat(b.Type)
}

// Param loads a parameter into a general register: "x" or, of a slice, "x.base" or "x.len".
func (f *Func) Param(name string) reg.GPVirtual {
	text, size, _ := f.param(name)
	r := General()
	f.writes(map[int]string{8: "MOVD", 4: "MOVWU", 1: "MOVBU"}[size]+" "+text+", R%[1]s", r)
	return r
}

// ParamSplat loads a number into all lanes.
func (f *Func) ParamSplat(a Arrangement, name string) reg.VecVirtual {
	text, size, _ := f.param(name)
	r, v := Vector(), Vector()
	f.writes(partNames[size]+" "+text+", F%[1]s", r)
	f.Dup(a, v, r, 0)
	return v
}

// SetResult stores the lowest lane of a vector register, or a general one, as the result.
func (f *Func) SetResult(n operand.Op) {
	text, size, float := f.param("return")
	if float {
		f.reads(partNames[size]+" F%[1]s, "+text, "", f.register(n))
		return
	}
	f.reads("MOVD R%[1]s, "+text, "", f.register(n))
}

// Local returns a register that points to local variables of so many bytes. Their addresses are multiples of 16 only by
// chance.
func (f *Func) Local(bytes int) reg.GPVirtual {
	f.frame += bytes
	r := General()
	f.writes(fmt.Sprintf("MOVD $local%d-%d(SP), R%%[1]s", f.frame, f.frame), r)
	return r
}

// loadPool points to the file's constants, at the beginning of the function.
func (f *Func) loadPool() instruction {
	return instruction{text: "MOVD $" + poolName + "<>(SB), R%[1]s", registers: []reg.Register{f.pool}, defs: []reg.Register{f.pool}}
}

// Address is d = the address 16 bytes behind the start of a constant, less n.
func (f *Func) Address(d reg.Register, m operand.Mem, n reg.Register) {
	if f.pool == nil {
		f.pool = General()
	}
	f.Sub(d, f.pool, n)
	f.AddConstant(d, d, m.Disp+VectorBytes)
}

// Transposed is the transpose of a block of 4 rows of S4.
func (f *Func) Transposed(in []reg.VecVirtual) []reg.VecVirtual {
	step := func(name string, a Arrangement, n, m reg.VecVirtual) reg.VecVirtual {
		d := Vector()
		f.Three(name, a, d, n, m)
		return d
	}
	even01, odd01 := step("trn1", S4, in[0], in[1]), step("trn2", S4, in[0], in[1])
	even23, odd23 := step("trn1", S4, in[2], in[3]), step("trn2", S4, in[2], in[3])
	return []reg.VecVirtual{
		step("trn1", D2, even01, even23), step("trn1", D2, odd01, odd23),
		step("trn2", D2, even01, even23), step("trn2", D2, odd01, odd23),
	}
}
