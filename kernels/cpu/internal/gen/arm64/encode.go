package arm64

import "fmt"

// Go's assembler has no names for most vector instructions on floating-point numbers. This file encodes those that the
// generators use, as the Arm Architecture Reference Manual for A-profile gives them (section C7.2), all for 128-bit
// registers. Instructions are written as objdump prints them.

// An Arrangement is how a vector register is divided into lanes.
type Arrangement uint8

// The arrangements. S4 and D2 hold floating-point numbers or integers.
const (
	B16 Arrangement = iota
	H8
	S4
	D2
	// B8, H4 and S2 are lower halves.
	B8
	H4
	S2
)

func (a Arrangement) String() string {
	return [...]string{"16b", "8h", "4s", "2d", "8b", "4h", "2s"}[a]
}

// element is the letter of a lane.
func (a Arrangement) element() string { return [...]string{"b", "h", "s", "d", "b", "h", "s"}[a] }

// size is log2 of a lane's bytes.
func (a Arrangement) size() uint32 { return [...]uint32{0, 1, 2, 3, 0, 1, 2}[a] }

// bits is the number of a lane's bits.
func (a Arrangement) bits() uint32 { return 8 << a.size() }

// A sizing says where an instruction has its arrangement.
type sizing uint8

const (
	logical  sizing = iota // nowhere: all bits are alike
	floating               // bit 22 is set for D2
	integer                // bits 22 and 23 are the size
)

// An encoding is an instruction without its operands.
type encoding struct {
	bits   uint32
	sizing sizing
	reads  bool // the destination is an operand, too
}

func (e encoding) word(a Arrangement) uint32 {
	switch e.sizing {
	case floating:
		return e.bits | (a.size()-2)<<22
	case integer:
		return e.bits | a.size()<<22
	}
	return e.bits
}

// find is the encoding of an instruction in a table of those of its form, which errors add to the name.
func find[E any](table map[string]E, name, form string) E {
	e, ok := table[name]
	if !ok {
		panic("arm64: no instruction " + name + form)
	}
	return e
}

// three has the instructions with two sources, which have the arrangement of the destination.
var three = map[string]encoding{
	"fadd":   {0x4e20d400, floating, false},
	"fsub":   {0x4ea0d400, floating, false},
	"fmul":   {0x6e20dc00, floating, false},
	"fdiv":   {0x6e20fc00, floating, false},
	"fmla":   {0x4e20cc00, floating, true},
	"fmls":   {0x4ea0cc00, floating, true},
	"fmax":   {0x4e20f400, floating, false},
	"fmin":   {0x4ea0f400, floating, false},
	"fmaxnm": {0x4e20c400, floating, false},
	"addp":   {0x4e20bc00, integer, false},
	"faddp":  {0x6e20d400, floating, false},
	"fcmeq":  {0x4e20e400, floating, false},
	"fcmge":  {0x6e20e400, floating, false},
	"fcmgt":  {0x6ea0e400, floating, false},
	"add":    {0x4e208400, integer, false},
	"sub":    {0x6e208400, integer, false},
	"smax":   {0x4e206400, integer, false},
	"umin":   {0x6e206c00, integer, false},
	"cmeq":   {0x6e208c00, integer, false},
	"cmtst":  {0x4e208c00, integer, false},
	"and":    {0x4e201c00, logical, false},
	"bic":    {0x4e601c00, logical, false},
	"orr":    {0x4ea01c00, logical, false},
	"eor":    {0x6e201c00, logical, false},
	"bsl":    {0x6e601c00, logical, true},
	"bit":    {0x6ea01c00, logical, true},
	"zip1":   {0x4e003800, integer, false},
	"zip2":   {0x4e007800, integer, false},
	"uzp1":   {0x4e001800, integer, false},
	"uzp2":   {0x4e005800, integer, false},
	"trn1":   {0x4e002800, integer, false},
	"trn2":   {0x4e006800, integer, false},
}

// two has the instructions with one source, of the destination's arrangement.
var two = map[string]encoding{
	"fabs":   {0x4ea0f800, floating, false},
	"fneg":   {0x6ea0f800, floating, false},
	"fsqrt":  {0x6ea1f800, floating, false},
	"frintn": {0x4e218800, floating, false},
	"frintm": {0x4e219800, floating, false},
	"frintp": {0x4ea18800, floating, false},
	"scvtf":  {0x4e21d800, floating, false},
	"ucvtf":  {0x6e21d800, floating, false},
	"fcvtns": {0x4e21a800, floating, false},
	"fcvtzs": {0x4ea1b800, floating, false},
	"mvn":    {0x6e205800, logical, false},
}

// shifts has the shifts by a number of bits.
var shifts = map[string]uint32{"shl": 0x4f005400, "sshr": 0x4f000400, "ushr": 0x6f000400}

// A change is an instruction whose destination has another arrangement than its sources.
type change struct {
	bits    uint32
	to      Arrangement
	from    Arrangement
	sources int
	reads   bool
}

// changes has those, by name and the letter of the destination's lanes.
var changes = map[string]change{
	"fcvtl.d":  {0x0e617800, D2, S2, 1, false},
	"fcvtl2.d": {0x4e617800, D2, S4, 1, false},
	"fcvtn.s":  {0x0e616800, S2, D2, 1, false},
	"fcvtn2.s": {0x4e616800, S4, D2, 1, true},
	"fcvtn.h":  {0x0e216800, H4, S4, 1, false},
	"fcvtn2.h": {0x4e216800, H8, S4, 1, true},
	"fcvtl.s":  {0x0e217800, S4, H4, 1, false},
	"fcvtl2.s": {0x4e217800, S4, H8, 1, false},
	"sqxtn.b":  {0x0e214800, B8, H8, 1, false},
	"sqxtn.h":  {0x0e614800, H4, S4, 1, false},
	"sqxtn2.h": {0x4e614800, H8, S4, 1, true},
	"sqxtun.b": {0x2e212800, B8, H8, 1, false},
	"sadalp.s": {0x4e606800, S4, H8, 1, true},
	"smmla.s":  {0x4e80a400, S4, B16, 2, true},
	"smull.h":  {0x0e20c000, H8, B8, 2, false},
	"smull2.h": {0x4e20c000, H8, B16, 2, false},
	"xtn.b":    {0x0e212800, B8, H8, 1, false},
	"xtn.h":    {0x0e612800, H4, S4, 1, false},
	"xtn2.h":   {0x4e612800, H8, S4, 1, true},
	"uxtl.h":   {0x2f08a400, H8, B8, 1, false},
	"uxtl.s":   {0x2f10a400, S4, H4, 1, false},
	"uxtl2.s":  {0x6f10a400, S4, H8, 1, false},
	"uxtl.d":   {0x2f20a400, D2, S2, 1, false},
	"sxtl.h":   {0x0f08a400, H8, B8, 1, false},
	"sxtl.s":   {0x0f10a400, S4, H4, 1, false},
	"sxtl2.s":  {0x4f10a400, S4, H8, 1, false},
	"sxtl.d":   {0x0f20a400, D2, S2, 1, false},
	"uxtl2.d":  {0x6f20a400, D2, S4, 1, false},
	"umull.d":  {0x2ea0c000, D2, S2, 2, false},
	"umull2.d": {0x6ea0c000, D2, S4, 2, false},
}

// shiftLong has the shifts to lanes twice as wide, by the bits of a source's lane, which is of 16.
var shiftLong = map[bool]uint32{false: 0x2e613800, true: 0x6e613800}

// fixedWord converts signed integers with so many bits behind the point, from 1 to 32.
func fixedWord(point int) uint32 {
	if point < 1 || point > 32 {
		panic(fmt.Sprintf("arm64: scvtf with %d bits behind the point", point))
	}
	return 0x4f00e400 | uint32(64-point)<<16
}

// byElement has the instructions whose second source is one lane of a register.
var byElement = map[string]encoding{
	"fmla": {0x4f801000, floating, true},
}

// dots has the dot products with four bytes of an element.
var dots = map[string]encoding{"sdot": {bits: 0x4f80e000}, "sudot": {bits: 0x4f00f000}}

// registers puts the numbers of registers into an instruction.
func registers(word, d, n, m uint32) uint32 { return word | m<<16 | n<<5 | d }

// shiftWord is a shift by a number of bits, from 1 to the lane's less 1, or 0 to the left.
func shiftWord(name string, a Arrangement, by uint32) uint32 {
	if by >= a.bits() || name != "shl" && by == 0 {
		panic(fmt.Sprintf("arm64: %s by %d of %s", name, by, a))
	}
	code := a.bits() + by
	if name != "shl" {
		code = 2*a.bits() - by
	}
	return find(shifts, name, "") | code<<16
}

// elementWord is an instruction on lane number lane of its second source.
func elementWord(e encoding, a Arrangement, lane uint32) uint32 {
	switch {
	case a == S4 && lane < 4:
		return e.word(a) | lane&1<<21 | lane>>1<<11
	case a == D2 && lane < 2:
		return e.word(a) | lane<<11
	}
	panic(fmt.Sprintf("arm64: lane %d of %s", lane, a))
}

// lane is the field imm5 of instructions that name one lane.
func lane(a Arrangement, i uint32) uint32 { return (i<<1 | 1) << a.size() << 16 }
