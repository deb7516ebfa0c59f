package main

import (
	"fmt"
	"math/bits"

	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// A neonFew is the routines of [few] for so many vectors. A step is neonFewStep elements of a row.
type neonFew struct {
	vectors int
	rows    []int // whose dot products are in registers at once, the most first
	wide    int   // registers of a sum
	of      rowType
	f       *arm64.Func
}

// neonFewStep is two registers of float32, or one of 16 bits.
const neonFewStep = 8

// neonFews has sums that cover the latency of FMLA. All of them add the products of an element in the same order.
var neonFews = []neonFew{{vectors: 1, rows: []int{8, 1}, wide: 8}, {vectors: 4, rows: []int{4, 1}, wide: 4}}

// neonFewKernels emits the routines for rows of every type.
func neonFewKernels(file *arm64.File) {
	for _, of := range rowTypes {
		if of.bytes == 1 {
			continue // 8 bits are converted before they are multiplied
		}
		for _, k := range neonFews {
			k.of = of
			k.dots(file)
			k.sums(file)
		}
	}
}

// name is that of a routine.
func (k neonFew) name(what string) string {
	return fmt.Sprintf("%s%dNEON%s", what, k.vectors, k.of.suffix)
}

// load loads elements of a row, a multiple of neonFewStep that fill so many registers.
func (k neonFew) load(base reg.Register, registers int) []reg.VecVirtual {
	v := vectors(registers)
	if k.of.bytes == 4 {
		neonLoad(k.f, v, base, 0)
		return v
	}
	for i := 0; i < registers; i += 2 {
		half := arm64.Vector()
		k.f.Load(half, Mem{Base: base, Disp: i / 2 * arm64.VectorBytes})
		if k.of.suffix == "BF16" {
			k.f.WidenBF16(false, v[i], half)
			k.f.WidenBF16(true, v[i+1], half)
		} else {
			k.f.Change("fcvtl", arm64.S4, v[i], half)
			k.f.Change("fcvtl2", arm64.S4, v[i+1], half)
		}
	}
	return v
}

// apart returns pointers to so many rows, stride bytes apart.
func (k neonFew) apart(base, stride reg.Register, rows int) []reg.GPVirtual {
	p := make([]reg.GPVirtual, rows)
	for i := range p {
		if p[i] = arm64.General(); i == 0 {
			k.f.Copy(p[0], base)
		} else {
			k.f.Add(p[i], p[i-1], stride)
		}
	}
	return p
}

// dots is [few.dots].
func (k neonFew) dots(file *arm64.File) {
	name := k.name("dots")
	f := file.Func(name, fmt.Sprintf("func(n, depth int, q *float32, ldq int, x *%s, ldx int, s *float32, lds int)", k.of.goType),
		fmt.Sprintf("%s sets s[r·lds+j] to the dot product of row r of q, of %d, and row j of x, of n.", name, k.vectors),
		fmt.Sprintf("depth, the number of their elements, is a multiple of %d and not 0.", neonFewStep))
	k.f = f
	n, depth, q, ldq := f.Param("n"), f.Param("depth"), f.Param("q"), neonStride(f, "ldq", float32s)
	x, ldx := f.Param("x"), f.Param("ldx")
	f.ShiftLeft(ldx, ldx, int(k.of.shift))
	s, lds := f.Param("s"), neonStride(f, "lds", float32s)
	for _, rows := range k.rows {
		label := fmt.Sprintf("rows%d", rows)
		f.Label(label)
		f.CompareConstant(n, rows)
		f.JumpIf("LT", label+"Done")
		acc := make([][]reg.VecVirtual, k.vectors)
		for r := range acc {
			acc[r] = vectors(rows)
			for _, v := range acc[r] {
				f.Zero(v)
			}
		}
		qs, xs, left := k.apart(q, ldq, k.vectors), k.apart(x, ldx, rows), arm64.General()
		f.Copy(left, depth)
		f.Label(label + "Depth")
		of := make([][]reg.VecVirtual, k.vectors)
		for r := range of {
			of[r] = vectors(2)
			neonLoad(f, of[r], qs[r], 0)
			f.AddConstant(qs[r], qs[r], 2*arm64.VectorBytes)
		}
		for j := range rows {
			row := k.load(xs[j], 2)
			f.AddConstant(xs[j], xs[j], neonFewStep*k.of.bytes)
			for half, v := range row {
				for r := range of {
					f.Three("fmla", arm64.S4, acc[r][j], v, of[r][half])
				}
			}
		}
		f.SubConstant(left, left, neonFewStep)
		f.JumpUnlessZero(left, label+"Depth")
		to := arm64.General()
		f.Copy(to, s)
		for r := range acc {
			pair := func(a, b reg.VecVirtual) { f.Three("faddp", arm64.S4, a, a, b) }
			for j := 0; j < rows; j += 4 {
				if rows == 1 {
					pair(acc[r][0], acc[r][0])
					pair(acc[r][0], acc[r][0])
					f.StorePart(4, Mem{Base: to}, acc[r][0])
					continue
				}
				a := acc[r][j:]
				pair(a[0], a[1])
				pair(a[2], a[3])
				pair(a[0], a[2])
				f.Store(Mem{Base: to, Disp: 4 * j}, a[0])
			}
			if r < len(acc)-1 {
				f.Add(to, to, lds)
			}
		}
		f.AddShifted(x, x, ldx, bits.TrailingZeros(uint(rows)))
		f.AddConstant(s, s, 4*rows)
		f.SubConstant(n, n, rows)
		f.Jump(label)
		f.Label(label + "Done")
	}
	f.Return()
}

// sums is [few.sums].
func (k neonFew) sums(file *arm64.File) {
	name := k.name("sums")
	f := file.Func(name, fmt.Sprintf("func(n, width int, p *float32, ldp int, x *%s, ldx int, y *float32, ldy int)", k.of.goType),
		fmt.Sprintf("%s adds the sum of p[r·ldp+j] times row j of x, of n, to row r of y, of %d.", name, k.vectors),
		fmt.Sprintf("width, the number of their elements, is a multiple of %d, and n is not 0.", neonFewStep))
	k.f = f
	n, width, p, ldp := f.Param("n"), f.Param("width"), f.Param("p"), neonStride(f, "ldp", float32s)
	x, ldx := f.Param("x"), f.Param("ldx")
	f.ShiftLeft(ldx, ldx, int(k.of.shift))
	y, ldy := f.Param("y"), neonStride(f, "ldy", float32s)
	const together = 4 // rows whose scales are in one register
	for _, registers := range []int{k.wide, neonFewStep / 4} {
		label := fmt.Sprintf("registers%d", registers)
		f.Label(label)
		f.CompareConstant(width, 4*registers)
		f.JumpIf("LT", label+"Done")
		acc, to := make([][]reg.VecVirtual, k.vectors), k.apart(y, ldy, k.vectors)
		for r := range acc {
			acc[r] = vectors(registers)
			neonLoad(f, acc[r], to[r], 0)
		}
		ps, xs, left := k.apart(p, ldp, k.vectors), arm64.General(), arm64.General()
		f.Copy(xs, x)
		add := func(rows int) {
			by := vectors(k.vectors)
			for r := range by {
				f.LoadPart(4*rows, by[r], Mem{Base: ps[r]})
				f.AddConstant(ps[r], ps[r], 4*rows)
			}
			for j := range rows {
				row := k.load(xs, registers)
				f.Add(xs, xs, ldx)
				for r := range acc {
					for i, v := range row {
						f.Element("fmla", arm64.S4, acc[r][i], v, by[r], j)
					}
				}
			}
			f.SubConstant(left, left, rows)
		}
		f.SubConstant(left, n, together)
		f.CompareConstant(left, 0)
		f.JumpIf("LT", label+"Rest")
		f.Label(label + "Rows")
		add(together)
		f.CompareConstant(left, 0)
		f.JumpIf("GE", label+"Rows")
		f.Label(label + "Rest")
		f.AddConstant(left, left, together)
		f.JumpIfZero(left, label+"Store")
		f.Label(label + "Row")
		add(1)
		f.JumpUnlessZero(left, label+"Row")
		f.Label(label + "Store")
		for r := range acc {
			neonStore(f, to[r], 0, acc[r])
		}
		f.AddConstant(x, x, 4*registers*k.of.bytes)
		f.AddConstant(y, y, registers*arm64.VectorBytes)
		f.SubConstant(width, width, 4*registers)
		f.Jump(label)
		f.Label(label + "Done")
	}
	f.Return()
}
