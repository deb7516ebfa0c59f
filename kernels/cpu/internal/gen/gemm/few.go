package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Products of a few vectors, one or four, with many rows, each of which is read once: the dot products of all of them, and sums of
// scaled rows. Attention of few queries consists of these. Rows are of float32, or have 16 or 8 bits and become that in registers.

// A few is the routines for so many vectors.
type few struct {
	width
	suffix  string
	vectors int
	rows    int // whose dot products are in registers at once
	wide    int // registers of a sum
	of      rowType
}

// A rowType is the type of the elements of rows.
type rowType struct {
	suffix string
	goType string
	bytes  int
	shift  uint64 // log2(bytes)
	load   func(from Mem, to VecVirtual)
}

var rowTypes = []rowType{
	{"F32", "float32", 4, 2, func(from Mem, to VecVirtual) { VMOVUPS(from, to) }},
	{"BF16", "uint16", 2, 1, func(from Mem, to VecVirtual) {
		VPMOVZXWD(from, to)
		VPSLLD(U8(16), to, to)
	}},
	{"F16", "uint16", 2, 1, func(from Mem, to VecVirtual) { VCVTPH2PS(from, to) }},
	{"I8", "int8", 1, 0, func(from Mem, to VecVirtual) {
		VPMOVSXBD(from, to)
		VCVTDQ2PS(to, to)
	}},
}

var fews = []few{
	{avx2, "AVX2", 1, 4, 4, rowType{}}, {avx2, "AVX2", 4, 2, 2, rowType{}},
	{avx512, "AVX512", 1, 4, 4, rowType{}}, {avx512, "AVX512", 4, 4, 4, rowType{}},
}

// name is that of a routine.
func (f few) name(what string) string {
	return fmt.Sprintf("%s%d%s%s", what, f.vectors, f.suffix, f.of.suffix)
}

// stride is the distance of rows, in bytes.
func (f few) stride() GPVirtual {
	r := param("ldx")
	if f.of.shift > 0 {
		SHLQ(U8(f.of.shift), r)
	}
	return r
}

func (f few) lanes() int { return f.bytes / 4 }

// strided are the addresses of rows, a stride in bytes apart, of which a row is base + index·scale.
type strided struct{ base, one, three GPVirtual }

// stridedBy prepares the addresses of so many rows.
func stridedBy(base, stride GPVirtual, rows int) strided {
	s := strided{base, stride, nil}
	if rows > 3 {
		s.three = GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, s.three)
	}
	return s
}

func (s strided) row(i, disp int) Mem {
	switch i {
	case 0:
		return Mem{Base: s.base, Disp: disp}
	case 3:
		return Mem{Base: s.base, Index: s.three, Scale: 1, Disp: disp}
	}
	return Mem{Base: s.base, Index: s.one, Scale: uint8(i), Disp: disp}
}

// from is the same rows from another base on.
func (s strided) from(base GPVirtual) strided { return strided{base, s.one, s.three} }

// fold gives the sums of the lanes of four registers, which it changes, in the four lanes of one.
func (f few) fold(a [4]VecVirtual) VecVirtual {
	t := f.register()
	pair := func(x, y VecVirtual, low, high func(ops ...Op)) {
		low(y, x, t)
		high(y, x, x)
		VADDPS(t, x, x)
	}
	pair(a[0], a[1], VUNPCKLPS, VUNPCKHPS)
	pair(a[2], a[3], VUNPCKLPS, VUNPCKHPS)
	pair(a[0], a[2], VUNPCKLPD, VUNPCKHPD)
	if f.bytes == avx512.bytes { // all of it in whole registers, as shorter ones beyond 15 need AVX512VL
		for _, how := range []uint64{0x4e, 0xb1} {
			VSHUFF64X2(U8(how), a[0], a[0], t)
			VADDPS(t, a[0], a[0])
		}
		return a[0]
	}
	VEXTRACTF128(U8(1), a[0].AsY(), t.AsX())
	VADDPS(t.AsX(), a[0].AsX(), a[0].AsX())
	return a[0]
}

// dots makes the dot products of the vectors with rows.
func (f few) dots() {
	name := f.name("dots")
	begin(name, fmt.Sprintf("func(n, depth int, q *float32, ldq int, x *%s, ldx int, s *float32, lds int)", f.of.goType),
		fmt.Sprintf("%s sets s[r·lds+j] to the dot product of row r of q, of %d, and row j of x, of n.", name, f.vectors),
		fmt.Sprintf("depth, the number of their elements, is a multiple of %d and not 0.", f.lanes()))
	n, depth := param("n"), param("depth")
	q := stridedBy(param("q"), strideParam("ldq", float32s), f.vectors)
	x := stridedBy(param("x"), f.stride(), f.rows)
	s := stridedBy(param("s"), strideParam("lds", float32s), f.vectors)
	qs, xs, left := GP64(), GP64(), GP64()

	block := func(label string, rows int) {
		Label(label)
		CMPQ(n, U32(rows))
		JLT(LabelRef(label + "Done"))
		acc := make([][]VecVirtual, f.vectors)
		for r := range acc {
			for range rows {
				v := f.register()
				f.zeros(float32s, v)
				acc[r] = append(acc[r], v)
			}
		}
		MOVQ(q.base, qs)
		MOVQ(x.base, xs)
		MOVQ(depth, left)
		Label(label + "Depth")
		of := make([]VecVirtual, f.vectors)
		for r := range of {
			of[r] = f.register()
			VMOVUPS(q.from(qs).row(r, 0), of[r])
		}
		row := f.register()
		for j := range rows {
			f.of.load(x.from(xs).row(j, 0), row)
			for r := range of {
				VFMADD231PS(row, of[r], acc[r][j])
			}
		}
		ADDQ(U32(f.bytes), qs)
		ADDQ(U32(f.lanes()*f.of.bytes), xs)
		SUBQ(U32(f.lanes()), left)
		JNE(LabelRef(label + "Depth"))

		var flat []VecVirtual // by vector, then row
		for r := range acc {
			flat = append(flat, acc[r]...)
		}
		for at := 0; at < len(flat); at += 4 {
			var four [4]VecVirtual
			for i := range four {
				if four[i] = flat[at]; at+i < len(flat) { // else what it gives is not stored
					four[i] = flat[at+i]
				} else {
					four[i] = f.register()
					f.zeros(float32s, four[i])
				}
			}
			all := f.fold(four)
			sums, r := all.AsX(), at/rows
			switch {
			case rows == 4 && f.bytes == avx512.bytes:
				VEXTRACTF32X4(U8(0), all, s.row(r, 0))
			case rows == 4:
				VMOVUPS(sums, s.row(r, 0))
			case rows == 2:
				VMOVLPS(sums, s.row(r, 0))
				VMOVHPS(sums, s.row(r+1, 0))
			default:
				for i := range f.vectors {
					VEXTRACTPS(U8(uint64(i)), sums, s.row(i, 0))
				}
			}
		}
		if rows == 4 {
			LEAQ(Mem{Base: x.base, Index: x.one, Scale: 4}, x.base)
		} else {
			LEAQ(Mem{Base: x.base, Index: x.one, Scale: uint8(rows)}, x.base)
		}
		ADDQ(U32(4*rows), s.base)
		SUBQ(U32(rows), n)
		JMP(LabelRef(label))
		Label(label + "Done")
	}
	block("rows", f.rows)
	block("rest", 1)
	VZEROUPPER()
	RET()
}

// sums adds scaled rows to the vectors.
func (f few) sums() {
	name := f.name("sums")
	begin(name, fmt.Sprintf("func(n, width int, p *float32, ldp int, x *%s, ldx int, y *float32, ldy int)", f.of.goType),
		fmt.Sprintf("%s adds the sum of p[r·ldp+j] times row j of x, of n, to row r of y, of %d.", name, f.vectors),
		fmt.Sprintf("width, the number of their elements, is a multiple of %d, and n is not 0.", f.lanes()))
	n, wide := param("n"), param("width")
	p := stridedBy(param("p"), strideParam("ldp", float32s), f.vectors)
	x, ldx := param("x"), f.stride()
	y := stridedBy(param("y"), strideParam("ldy", float32s), f.vectors)
	ps, xs, left := GP64(), GP64(), GP64()

	chunk := func(label string, registers int) {
		Label(label)
		CMPQ(wide, U32(registers*f.lanes()))
		JLT(LabelRef(label + "Done"))
		acc := make([][]VecVirtual, f.vectors)
		for r := range acc {
			for v := range registers {
				a := f.register()
				VMOVUPS(y.row(r, v*f.bytes), a)
				acc[r] = append(acc[r], a)
			}
		}
		MOVQ(p.base, ps)
		MOVQ(x, xs)
		MOVQ(n, left)
		Label(label + "Rows")
		row := make([]VecVirtual, registers)
		for v := range row {
			row[v] = f.register()
			f.of.load(Mem{Base: xs, Disp: v * f.lanes() * f.of.bytes}, row[v])
		}
		by := f.register()
		for r := range acc {
			VBROADCASTSS(p.from(ps).row(r, 0), by)
			for v := range row {
				VFMADD231PS(by, row[v], acc[r][v])
			}
		}
		ADDQ(U32(4), ps)
		ADDQ(ldx, xs)
		DECQ(left)
		JNE(LabelRef(label + "Rows"))
		for r := range acc {
			for v := range acc[r] {
				VMOVUPS(acc[r][v], y.row(r, v*f.bytes))
			}
		}
		ADDQ(U32(registers*f.lanes()*f.of.bytes), x)
		ADDQ(U32(registers*f.bytes), y.base)
		SUBQ(U32(registers*f.lanes()), wide)
		JMP(LabelRef(label))
		Label(label + "Done")
	}
	chunk("wide", f.wide)
	chunk("register", 1)
	VZEROUPPER()
	RET()
}
