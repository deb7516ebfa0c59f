package main

import (
	"fmt"
	"math/bits"

	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// A neonIntegers multiplies a block of rows of integers. It goes over the columns of a panel in slices, as [neonKernel] does.
type neonIntegers struct {
	integers
	rows   int
	slices []int // the vectors of each
	by     neonMultiplier
	f      *arm64.Func
	file   *arm64.File
	q      reg.GPVirtual // the octet, from the slice on
	upper  Op            // a mask of the upper halves of bytes
}

// A neonMultiplier is the instructions that multiply, and the end of a kernel's name.
type neonMultiplier string

const (
	neonPairs neonMultiplier = "NEON"  // products, their sums in pairs, and these in pairs: four instructions for 16 products
	neonDot   neonMultiplier = "SDOT"  // of FEAT_DotProd: one instruction for them
	neonTiles neonMultiplier = "SMMLA" // of FEAT_I8MM: one for 32, two rows of X times two columns
)

// neonIntegerShapes are the kernels that each format has. With SDOT and eight rows, of 32 registers 24 are sums. SMMLA reads
// weights of which eight rows of a column stand side by side; only from four rows of X on it is worth to arrange them so.
var neonIntegerShapes = []neonIntegers{
	{rows: 1, slices: []int{8}, by: neonDot}, {rows: 2, slices: []int{8}, by: neonDot}, {rows: 4, slices: []int{4, 4}, by: neonDot},
	{rows: 8, slices: []int{3, 3, 2}, by: neonDot},
	{rows: 1, slices: []int{8}, by: neonPairs}, {rows: 2, slices: []int{4, 4}, by: neonPairs},
	{rows: 4, slices: []int{4, 4}, by: neonPairs}, {rows: 8, slices: []int{2, 2, 2, 2}, by: neonPairs},
	{rows: 4, slices: []int{4, 4}, by: neonTiles}, {rows: 8, slices: []int{2, 2, 2, 2}, by: neonTiles},
}

// neonIntegerKernels emits the products of integers for Arm, and what they need.
func neonIntegerKernels(file *arm64.File) {
	for _, f := range integerFormats {
		for _, k := range neonIntegerShapes {
			k.integers, k.file = f, file
			k.generate()
		}
	}
	neonByteKernels(file)
	neonRoundRow(file)
}

func (k neonIntegers) generate() {
	name := fmt.Sprintf("%sIntegersx%d%s", k.name, k.rows, k.by)
	f := k.file.Func(name, integerSignature, append(k.describe(name, k.rows), "Here sums begin with 0.")...)
	k.f = f
	octets, block, x, xs, q := f.Param("octets"), f.Param("block"), f.Param("x"), f.Param("xs"), f.Param("q")
	scale, lds, y := f.Param("scale"), f.Param("lds"), f.Param("y")
	f.ShiftLeft(lds, lds, 2)
	k.q = arm64.General()
	if k.name == "i4" {
		k.upper = arm64.Vector()
		mask := uint64(0xf0f0f0f0f0f0f0f0)
		f.Load(k.upper, k.file.Constant(mask, mask))
	}
	height, left, at := arm64.General(), arm64.General(), arm64.General()

	f.Label("block")
	f.Least(height, block, octets)
	f.Sub(octets, octets, height)
	first := 0
	for i, vectors := range k.slices {
		k.slice(fmt.Sprintf("octet%d", i), first, vectors, height, left, at, x, q, xs, scale, y)
		first += vectors
	}
	f.Copy(x, at)
	f.AddShifted(q, q, height, bits.TrailingZeros(uint(k.octet)))
	f.AddConstant(xs, xs, 2*4*k.rows)
	f.Add(scale, scale, lds)
	f.JumpUnlessZero(octets, "block")
	f.Return()
}

// slice multiplies some columns of a block of octets, from vector first on.
func (k *neonIntegers) slice(label string, first, vectors int, height, left, at, x, q, xs, scale, y reg.GPVirtual) {
	f := k.f
	sets := 1
	if k.rows == 1 && k.by == neonDot {
		sets = 2 // to cover the latency
	}
	acc := make([][]reg.VecVirtual, k.rows*sets)
	for r := range acc {
		for range vectors {
			v := arm64.Vector()
			f.Zero(v)
			acc[r] = append(acc[r], v)
		}
	}
	f.AddConstant(k.q, q, first*arm64.VectorBytes)
	f.Copy(at, x)
	f.Copy(left, height)

	f.Label(label)
	for line := 0; line < k.octet; line += 64 {
		f.Ask(1, Mem{Base: k.q, Disp: ahead + line})
	}
	var numbers []reg.VecVirtual
	if k.rows == 1 {
		numbers = append(numbers, arm64.Vector())
		f.LoadPart(steps, numbers[0], Mem{Base: at})
	} else {
		numbers = k.load(at, 0, k.rows/2)
	}
	k.weights(vectors, func(half int, w []reg.VecVirtual, v int) {
		if k.by == neonTiles { // weights of four columns, in two registers
			for r := range k.rows {
				f.Change("smmla", arm64.S4, acc[r][v], numbers[r/2], w[r%2])
			}
			return
		}
		for r := range k.rows {
			sums := acc[r*sets+half%sets][v:]
			k.multiply(sums[:len(w)], w, numbers[r/2], r%2*2+half)
		}
	})
	f.AddConstant(at, at, steps*k.rows)
	f.AddConstant(k.q, k.q, k.octet)
	f.SubConstant(left, left, 1)
	f.JumpUnlessZero(left, label)

	if k.by == neonTiles { // a register has two columns of two rows
		for r := 0; r < k.rows; r += 2 {
			for v := range vectors {
				upper, left, right := arm64.Vector(), acc[r][v], acc[r+1][v]
				f.Three("trn1", arm64.D2, upper, left, right)
				f.Three("trn2", arm64.D2, right, left, right)
				acc[r][v] = upper
			}
		}
	}
	place := func(base reg.Register, r int) Mem {
		return Mem{Base: base, Disp: 4*columns*r + first*arm64.VectorBytes}
	}
	by := k.load(scale, first*arm64.VectorBytes, vectors)
	for r := range k.rows {
		of := arm64.Vector()
		f.LoadSplat(arm64.S4, of, Mem{Base: xs, Disp: 4 * r})
		for v, sum := range acc[r*sets] {
			if sets == 2 {
				f.Three("add", arm64.S4, sum, sum, acc[1][v])
			}
			if k.name == "i4" { // the weights are 16 times as large
				f.FromFixed(4, sum, sum)
			} else {
				f.Two("scvtf", arm64.S4, sum, sum)
			}
			factor, old, to := arm64.Vector(), arm64.Vector(), place(y, r)
			to.Disp += v * arm64.VectorBytes
			f.Three("fmul", arm64.S4, factor, of, by[v])
			f.Load(old, to)
			f.Three("fmla", arm64.S4, old, sum, factor)
			f.Store(to, old)
		}
	}
}

// load loads registers that follow one another.
func (k *neonIntegers) load(base reg.Register, at, n int) []reg.VecVirtual {
	v := make([]reg.VecVirtual, n)
	for i := range v {
		v[i] = arm64.Vector()
	}
	for i := 0; i < n; i++ {
		place := Mem{Base: base, Disp: at + i*arm64.VectorBytes}
		switch {
		case i+1 < n:
			k.f.LoadPair(v[i], v[i+1], base, place.Disp)
			i++
		default:
			k.f.Load(v[i], place)
		}
	}
	return v
}

// weights makes registers with four rows of four columns each, of the first half of an octet and of the second, of I4 of the even
// rows and of the odd ones, times 16. It calls multiply with some that begin with vector v; for SMMLA with both halves of two
// columns and of the next two.
func (k *neonIntegers) weights(vectors int, multiply func(half int, w []reg.VecVirtual, v int)) {
	f := k.f
	pass := func(first, second []reg.VecVirtual, v int) {
		if k.by != neonTiles {
			multiply(0, first, v)
			multiply(1, second, v)
			return
		}
		for i := range first {
			left := arm64.Vector()
			f.Three("zip1", arm64.S4, left, first[i], second[i])
			f.Three("zip2", arm64.S4, second[i], first[i], second[i])
			multiply(0, []reg.VecVirtual{left, second[i]}, v+i)
		}
	}
	if k.name == "i8" {
		if k.by == neonTiles {
			pass(k.load(k.q, 0, vectors), k.load(k.q, 4*columns, vectors), 0)
			return
		}
		for half := range 2 { // the registers of the first are free for the second
			multiply(half, k.load(k.q, half*4*columns, vectors), 0)
		}
		return
	}
	split := func(words reg.VecVirtual) (even reg.VecVirtual) {
		even = arm64.Vector()
		f.Shift("shl", arm64.B16, 4, even, words)
		f.Three("and", arm64.B16, words, words, k.upper)
		return even
	}
	if k.by == neonPairs { // a row's numbers are spread once for all vectors
		odd := k.load(k.q, 0, vectors)
		var even []reg.VecVirtual
		for _, words := range odd {
			even = append(even, split(words))
		}
		pass(even, odd, 0)
		return
	}
	together := vectors // that are loaded before they are split
	if vectors == 3 {
		together = 1
	}
	for v := 0; v < vectors; v += together {
		for i, words := range k.load(k.q, v*arm64.VectorBytes, together) {
			pass([]reg.VecVirtual{split(words)}, []reg.VecVirtual{words}, v+i)
		}
	}
}

// multiply adds to sums the products of weights and four numbers of a row, element number at of x. Two products have room in 16
// bits, as those numbers are −127 at least.
func (k *neonIntegers) multiply(sums, w []reg.VecVirtual, x reg.VecVirtual, at int) {
	f := k.f
	if k.by == neonDot {
		for v := range w {
			f.Dot("sdot", sums[v], w[v], x, at)
		}
		return
	}
	of, low, high := arm64.Vector(), arm64.Vector(), arm64.Vector()
	f.Dup(arm64.S4, of, x, at)
	for v := range w {
		f.Change("smull", arm64.H8, low, w[v], of)
		f.Change("smull2", arm64.H8, high, w[v], of)
		f.Three("addp", arm64.H8, low, low, high)
		f.Change("sadalp", arm64.S4, sums[v], low)
	}
}

// neonRoundRow is roundRow.
func neonRoundRow(file *arm64.File) {
	const name = "roundRowNEON"
	f := file.Func(name, roundSignature, append(describeRound(name), "Here offset has no effect: sums begin with 0.")...)
	octets, block, x, q, stride := f.Param("octets"), f.Param("block"), f.Param("x"), f.Param("q"), f.Param("stride")
	scales, gap := f.Param("scales"), f.Param("gap")
	order, most, zero := arm64.Vector(), arm64.Vector(), arm64.Vector()
	f.Load(order, Mem{Base: f.Param("order")})
	f.Load(most, file.Constant(0x42fe000042fe0000, 0x42fe000042fe0000)) // 127
	f.Zero(zero)
	height, left, from := arm64.General(), arm64.General(), arm64.General()

	f.Label("block")
	f.Least(height, block, octets)
	f.Sub(octets, octets, height)
	largest := arm64.Vector()
	f.Zero(largest)
	f.Copy(from, x)
	f.Copy(left, height)
	f.Label("largest")
	low, high := arm64.Vector(), arm64.Vector()
	pair := func(base reg.Register) {
		f.LoadPair(low, high, base, 0)
		f.AddConstant(base, base, 4*steps)
	}
	pair(from)
	for _, v := range []reg.VecVirtual{low, high} {
		f.Two("fabs", arm64.S4, v, v)
		f.Three("smax", arm64.S4, largest, largest, v) // the order of the bits is that of the numbers; NaN is above all
	}
	f.SubConstant(left, left, 1)
	f.JumpUnlessZero(left, "largest")
	f.Greatest(largest, largest)
	scale, isZero := arm64.Vector(), arm64.Vector()
	f.Dup(arm64.S4, scale, largest, 0)
	f.Three("fdiv", arm64.S4, scale, scale, most)
	f.StorePart(4, Mem{Base: scales}, scale)
	f.StorePart(4, Mem{Base: scales, Index: gap, Scale: 1}, zero)
	f.Three("fcmeq", arm64.S4, isZero, scale, zero) // 0 ÷ 0 is 0 here

	f.Copy(left, height)
	f.Label("round")
	pair(x)
	for _, v := range []reg.VecVirtual{low, high} {
		f.Three("fdiv", arm64.S4, v, v, scale)
		f.Three("bic", arm64.B16, v, v, isZero)
		f.Two("fcvtns", arm64.S4, v, v)
	}
	f.Change("sqxtn", arm64.H4, low, low)
	f.Change("sqxtn2", arm64.H8, low, high)
	f.Change("sqxtn", arm64.B8, low, low)
	f.Lookup(low, low, order)
	f.StorePart(8, Mem{Base: q}, low)
	f.Add(q, q, stride)
	f.SubConstant(left, left, 1)
	f.JumpUnlessZero(left, "round")
	f.AddShifted(scales, scales, gap, 1)
	f.JumpUnlessZero(octets, "block")
	f.Return()
}
