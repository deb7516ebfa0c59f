// Command panel generates the assembly of package kernels/cpu/panel for amd64, or with -arch=arm64 for Arm: products of a block
// of rows and a panel of weights of few bits, which are unpacked in registers.
//
// The output depends on nothing but this program, so it can be regenerated and compared.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const (
	columns = 32   // of a panel
	steps   = 8    // rows of the weights in an octet
	ahead   = 2048 // bytes by which weights are asked for before they are read
)

// A width is a vector register width.
type width struct {
	name     string
	bytes    int
	register func() VecVirtual
	rows     []int // of the blocks that there are kernels for
}

var (
	avx2   = width{"AVX2", 32, YMM, []int{1, 2}}
	avx512 = width{"AVX512", 64, ZMM, []int{1, 2, 4, 8}}
)

func (w width) lanes() int   { return w.bytes / 4 }
func (w width) vectors() int { return columns / w.lanes() }

// A format is how weights are stored in a panel.
type format struct {
	name  string
	octet int // bytes of 8 rows of a panel
	doc   string
	// unpack gives the function that makes vector v of row i of an octet, at q, as numbers of float32 in a register.
	unpack func(w width, q GPVirtual) func(i, v int, to VecVirtual)
	// neon does the same for Arm.
	neon neonUnpack
}

var formats = []format{
	{"i4", 4 * columns, "four bits, eight rows of a column in a word", unpackI4, neonI4},
	{"i8", 8 * columns, "eight bits", unpackI8, neonI8},
	{"bf16", 16 * columns, "bfloat16", unpackBF16, neonBF16},
	{"f16", 16 * columns, "binary16", unpackF16, neonF16},
}

// nibbles has the numbers of four bits, made once.
var nibbles Mem

// unpackI4 looks the numbers up: a permutation takes the lowest four bits of its indices only. With AVX2 it shifts the sign to
// the top and back.
func unpackI4(w width, q GPVirtual) func(i, v int, to VecVirtual) {
	if w.bytes == avx2.bytes {
		return func(i, v int, to VecVirtual) {
			VMOVDQU(Mem{Base: q, Disp: v * w.bytes}, to)
			if i < 7 {
				VPSLLD(U8(uint64(28-4*i)), to, to)
			}
			VPSRAD(U8(28), to, to)
			VCVTDQ2PS(to, to)
		}
	}
	if nibbles.Base == nil {
		nibbles = GLOBL("nibbles", RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, F32(float32((i^8)-8)))
		}
	}
	values := ZMM()
	VMOVUPS(nibbles, values)
	words := make([]VecVirtual, w.vectors())
	for v := range words {
		words[v] = ZMM()
	}
	return func(i, v int, to VecVirtual) {
		index := to
		if i == 0 {
			VMOVDQU32(Mem{Base: q, Disp: v * w.bytes}, words[v])
			index = words[v]
		} else {
			VPSRLD(U8(uint64(4*i)), words[v], to)
		}
		VPERMPS(values, index, to)
	}
}

func unpackI8(w width, q GPVirtual) func(i, v int, to VecVirtual) {
	return func(i, v int, to VecVirtual) {
		VPMOVSXBD(Mem{Base: q, Disp: i*columns + v*w.lanes()}, to)
		VCVTDQ2PS(to, to)
	}
}

func unpackBF16(w width, q GPVirtual) func(i, v int, to VecVirtual) {
	return func(i, v int, to VecVirtual) {
		VPMOVZXWD(Mem{Base: q, Disp: 2 * (i*columns + v*w.lanes())}, to)
		VPSLLD(U8(16), to, to)
	}
}

func unpackF16(w width, q GPVirtual) func(i, v int, to VecVirtual) {
	return func(i, v int, to VecVirtual) {
		VCVTPH2PS(Mem{Base: q, Disp: 2 * (i*columns + v*w.lanes())}, to)
	}
}

func zero(w width, r VecVirtual) {
	if w.bytes == avx512.bytes {
		VPXORD(r, r, r) // VXORPS on ZMM needs AVX512DQ
	} else {
		VXORPS(r, r, r)
	}
}

const tileSignature = "func(octets, block int, x *float32, q *byte, scale *float32, lds int, y *float32)"

// describe is the documentation of the kernel for a block of rows.
func (f format) describe(name string, rows int) []string {
	return []string{
		fmt.Sprintf("%s adds the product of %d rows and a panel of weights to y [%[2]d][32].", name, rows),
		fmt.Sprintf("The weights, octets of 8 rows, are stored in %s. x is [octets][%d][8].", f.doc, rows),
		"Each block of octets has 32 scales, those of the next block lds elements on. The last block may be shorter.",
	}
}

// start begins a function.
func start(name, signature string, doc ...string) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(doc...)
}

// param loads a parameter of the function.
func param(name string) GPVirtual { return Load(Param(name), GP64()).(GPVirtual) }

// scales are how a kernel reads the scales of a block.
type scales struct {
	infix, goType string
	shift         uint64 // log2 of their bytes
}

var wholeScales, halfScales = scales{"", "float32", 2}, scales{"Halves", "uint16", 1}

// signed is a signature with scales of that type.
func (s scales) signed(signature string) string {
	return strings.Replace(signature, "scale *float32", "scale *"+s.goType, 1)
}

// described adds to the documentation of a kernel of what type the scales are.
func (s scales) described(doc []string) []string {
	if s == halfScales {
		doc = append(doc, "The scales are of binary16.")
	}
	return doc
}

// load loads vector v of scales.
func (s scales) load(w width, scale GPVirtual, v int, to VecVirtual) {
	if s == halfScales {
		VCVTPH2PS(Mem{Base: scale, Disp: v * w.bytes / 2}, to)
		return
	}
	VMOVUPS(Mem{Base: scale, Disp: v * w.bytes}, to)
}

// sums are registers for rows of sums of the columns of a panel.
func (w width) sums(rows int) [][]VecVirtual {
	acc := make([][]VecVirtual, rows)
	for r := range acc {
		acc[r] = make([]VecVirtual, w.vectors())
		for v := range acc[r] {
			acc[r][v] = w.register()
		}
	}
	return acc
}

// beginOctets takes the octets of a block from those that are left, and begins the loop over them. Weights of an octet have so
// many bytes.
func beginOctets(octets, block, left, q GPVirtual, bytes int) {
	MOVQ(block, left)
	CMPQ(octets, left)
	CMOVQLT(octets, left)
	SUBQ(left, octets)

	Label("octet")
	for line := 0; line < bytes; line += 64 {
		PREFETCHT0(Mem{Base: q, Disp: ahead + line})
	}
}

// endOctets ends the loop with that label, after an octet whose elements of x have xBytes.
func endOctets(label string, x, q, left GPVirtual, xBytes, bytes int) {
	ADDQ(U32(xBytes), x)
	ADDQ(U32(bytes), q)
	DECQ(left)
	JNE(LabelRef(label))
}

// endBlocks ends the loop over blocks, and the function.
func endBlocks(octets GPVirtual) {
	TESTQ(octets, octets)
	JNE(LabelRef("block"))
	VZEROUPPER()
	RET()
}

// generate makes the kernel for a block of rows. One row has two sums for each column, to cover the latency of a multiply-add.
func (f format) generate(w width, rows int, by scales) {
	name := fmt.Sprintf("%s%sx%d%s", f.name, by.infix, rows, w.name)
	start(name, by.signed(tileSignature), by.described(f.describe(name, rows))...)
	octets := param("octets")
	block := param("block")
	x := param("x")
	q := param("q")
	scale := param("scale")
	lds := param("lds")
	y := param("y")
	SHLQ(U8(by.shift), lds)

	sets := 1
	if rows == 1 {
		sets = 2
	}
	acc := w.sums(rows * sets)
	unpack := f.unpack(w, q)
	weights := w.register()
	var xs []VecVirtual
	if w.bytes == avx2.bytes {
		for range rows {
			xs = append(xs, w.register())
		}
	}
	left := GP64()

	Label("block")
	for r := range acc {
		for v := range acc[r] {
			zero(w, acc[r][v])
		}
	}
	beginOctets(octets, block, left, q, f.octet)
	for i := range steps {
		at := func(r int) Mem { return Mem{Base: x, Disp: 4 * (r*steps + i)} }
		for r := range xs {
			VBROADCASTSS(at(r), xs[r])
		}
		for v := range w.vectors() {
			unpack(i, v, weights)
			for r := range rows {
				to := acc[r*sets+i%sets][v]
				if xs != nil {
					VFMADD231PS(xs[r], weights, to)
				} else {
					VFMADD231PS_BCST(at(r), weights, to)
				}
			}
		}
	}
	endOctets("octet", x, q, left, 4*rows*steps, f.octet)

	for v := range w.vectors() {
		by.load(w, scale, v, weights)
		for r := range rows {
			sum := acc[r*sets][v]
			if sets == 2 {
				VADDPS(acc[1][v], sum, sum)
			}
			to := Mem{Base: y, Disp: 4*columns*r + v*w.bytes}
			VFMADD213PS(to, weights, sum)
			VMOVUPS(sum, to)
		}
	}
	ADDQ(lds, scale)
	endBlocks(octets)
}

// unpackTo makes the function that gives the weights of a block of octets the form of numbers of float32.
func (f format) unpackTo(w width) {
	name := fmt.Sprintf("%sUnpack%s", f.name, w.name)
	start(name, "func(octets int, q *byte, scale, offset *float32, y *float32, row, half int)",
		fmt.Sprintf("%s sets y to the weights of a panel, octets of 8 rows that are stored in %s, times 32 scales,", name, f.doc),
		"plus 32 offsets. The rows of y are row bytes apart, and the second 16 columns half bytes after the first.")
	octets := param("octets")
	q := param("q")
	scale, offset := param("scale"), param("offset")
	y, second := param("y"), param("half")
	row := param("row")
	ADDQ(y, second)
	unpack := f.unpack(w, q)
	weights := w.register()
	scales, offsets := make([]VecVirtual, w.vectors()), make([]VecVirtual, w.vectors())
	for v := range scales {
		scales[v], offsets[v] = w.register(), w.register()
		VMOVUPS(Mem{Base: scale, Disp: v * w.bytes}, scales[v])
		VMOVUPS(Mem{Base: offset, Disp: v * w.bytes}, offsets[v])
	}
	Label("octet")
	for line := 0; line < f.octet; line += 64 {
		PREFETCHT0(Mem{Base: q, Disp: ahead + line})
	}
	for i := range steps {
		for v := range scales {
			unpack(i, v, weights)
			VFMADD213PS(offsets[v], scales[v], weights)
			to, at := y, v*w.bytes
			if v >= w.vectors()/2 {
				to, at = second, at-2*columns
			}
			VMOVUPS(weights, Mem{Base: to, Disp: at})
		}
		ADDQ(row, y)
		ADDQ(row, second)
	}
	ADDQ(U32(f.octet), q)
	DECQ(octets)
	JNE(LabelRef("octet"))
	VZEROUPPER()
	RET()
}

func main() {
	arch := flag.String("arch", "amd64", "the processor: amd64 or arm64")
	flag.Parse()
	if *arch == "arm64" {
		if err := neonFile().Write(); err != nil {
			fmt.Fprintf(os.Stderr, "panel: %v\n", err)
			os.Exit(1)
		}
		return
	}
	for _, f := range formats {
		for _, w := range []width{avx2, avx512} {
			for _, rows := range w.rows {
				f.generate(w, rows, wholeScales)
			}
			if f.octet < 16*columns { // numbers of 16 bits have no scales
				f.generate(w, 1, halfScales)
			}
			switch f.name {
			case "f16": // whose conversion takes as long as two multiplications
			case "bf16":
				if w.bytes == avx2.bytes { // others have no offsets
					f.unpackTo(w)
				}
			default:
				f.unpackTo(w)
			}
		}
	}
	generateIntegers()
	for _, rows := range avx512.rows {
		generatePairs(rows)
	}
	generateTranspose()
	Generate()
}
