package main

import (
	"fmt"
	"math/bits"

	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// A neonKernel multiplies a block of rows. The 32 columns of a panel are done in slices of some vectors, each of which goes over
// all octets of a block of weights, so that the sums of all rows stay in registers.
type neonKernel struct {
	format
	rows    int
	vectors int // of a slice
	steps   int // for which elements of X are in registers
	sets    int // sums for each column, to cover the latency of a multiply-add
	f       *arm64.Func
	file    *arm64.File
	q       reg.GPVirtual // the octet, from the slice on
}

// neonShapes are the kernels that each format has.
var neonShapes = []neonKernel{
	{rows: 1, vectors: 8, steps: 8, sets: 2}, {rows: 2, vectors: 8, steps: 8, sets: 1}, {rows: 4, vectors: 4, steps: 4, sets: 1},
	{rows: 8, vectors: 2, steps: 4, sets: 1},
}

// neonFile is the assembly for Arm.
func neonFile() *arm64.File {
	file := arm64.NewFile()
	for _, f := range formats {
		for _, k := range neonShapes {
			k.format, k.file = f, file
			k.generate()
		}
	}
	neonIntegerKernels(file)
	return file
}

// A neonUnpack gives the function that makes the weights of the rows from to from+steps of an octet, and calls multiply with
// row and vector for each register of them.
type neonUnpack func(k *neonKernel) func(from int, multiply func(i, v int, weights reg.VecVirtual))

const lanes = arm64.VectorBytes / 4

// bytes is the size of the weights of a row in a slice; those of four bits have 8 rows together.
func (k *neonKernel) bytes() int {
	if k.name == "i4" {
		return k.vectors * arm64.VectorBytes
	}
	return k.octet / steps * k.vectors * lanes / columns
}

// load loads the registers in which so many bytes lie, from a place of the octet on.
func (k *neonKernel) load(at, bytes int) []reg.VecVirtual {
	v := make([]reg.VecVirtual, (bytes+arm64.VectorBytes-1)/arm64.VectorBytes)
	for i := range v {
		v[i] = arm64.Vector()
	}
	for i := 0; i < len(v); i++ {
		place := Mem{Base: k.q, Disp: at + i*arm64.VectorBytes}
		switch {
		case i+1 < len(v):
			k.f.LoadPair(v[i], v[i+1], k.q, place.Disp)
			i++
		default:
			k.f.LoadPart(min(bytes, arm64.VectorBytes), v[i], place)
		}
	}
	return v
}

// tops are indices with which a lookup moves one byte of each of four words to the top of a word of its own, and clears what is
// below: byte first + l·apart goes to lane l.
func (k *neonKernel) tops(first, apart int) Mem {
	word := func(l int) uint64 { return uint64(first+l*apart)<<24 | 0xffffff }
	return k.file.Constant(word(0)|word(1)<<32, word(2)|word(3)<<32)
}

// constants loads constants. With eight rows there are no registers to keep them in: then the function that it returns loads
// them each time.
func (k *neonKernel) constants(places ...Mem) func(i int) Op {
	list := make([]Op, len(places))
	for i, m := range places {
		list[i] = m
		if k.rows < 8 {
			v := arm64.Vector()
			k.f.Load(v, m)
			list[i] = v
		}
	}
	return func(i int) Op {
		if m, ok := list[i].(Mem); ok {
			v := arm64.Vector()
			k.f.Load(v, m)
			return v
		}
		return list[i]
	}
}

// neonI4 parts the words of a vector into the even rows and the odd ones, so that each number is the upper half of a byte. A
// lookup moves that to the top of a word, where it is a number with 28 bits behind the point.
func neonI4(k *neonKernel) func(from int, multiply func(i, v int, weights reg.VecVirtual)) {
	upper := uint64(0xf0f0f0f0f0f0f0f0)
	of := k.constants(k.tops(0, 4), k.tops(1, 4), k.tops(2, 4), k.tops(3, 4), k.file.Constant(upper, upper))
	return func(from int, multiply func(i, v int, weights reg.VecVirtual)) {
		mask := of(4)
		var top []Op
		for i := from; i < from+k.steps; i += 2 {
			top = append(top, of(i/2))
		}
		for v := range k.vectors {
			words, even := arm64.Vector(), arm64.Vector()
			k.f.Load(words, Mem{Base: k.q, Disp: v * arm64.VectorBytes})
			k.f.Shift("shl", arm64.B16, 4, even, words)
			k.f.Three("and", arm64.B16, words, words, mask)
			for i := range k.steps {
				weights := arm64.Vector()
				k.f.Lookup(weights, []reg.VecVirtual{even, words}[i%2], top[i/2])
				k.f.FromFixed(28, weights, weights)
				multiply(from+i, v, weights)
			}
		}
	}
}

// neonI8 moves the bytes of four columns to the top of words, where they are numbers with 24 bits behind the point.
func neonI8(k *neonKernel) func(from int, multiply func(i, v int, weights reg.VecVirtual)) {
	var places []Mem
	for v := range min(k.vectors, lanes) {
		places = append(places, k.tops(v*lanes, 1))
	}
	of := k.constants(places...)
	return func(from int, multiply func(i, v int, weights reg.VecVirtual)) {
		top := make([]Op, len(places))
		for i := range top {
			top[i] = of(i)
		}
		for i := from; i < from+k.steps; i++ {
			bytes := k.load(i*columns, k.bytes())
			for v := range k.vectors {
				weights := arm64.Vector()
				k.f.Lookup(weights, bytes[v/lanes], top[v%lanes])
				k.f.FromFixed(24, weights, weights)
				multiply(i, v, weights)
			}
		}
	}
}

// neonHalf makes two vectors of each register of numbers of 16 bits.
func neonHalf(widen func(f *arm64.Func, upper bool, d, n Op)) neonUnpack {
	return func(k *neonKernel) func(from int, multiply func(i, v int, weights reg.VecVirtual)) {
		return func(from int, multiply func(i, v int, weights reg.VecVirtual)) {
			for i := from; i < from+k.steps; i++ {
				halves := k.load(2*i*columns, k.bytes())
				for v := range k.vectors {
					weights := arm64.Vector()
					widen(k.f, v%2 == 1, weights, halves[v/2])
					multiply(i, v, weights)
				}
			}
		}
	}
}

var (
	neonBF16 = neonHalf(func(f *arm64.Func, upper bool, d, n Op) { f.WidenBF16(upper, d, n) })
	neonF16  = neonHalf(func(f *arm64.Func, upper bool, d, n Op) {
		name := "fcvtl"
		if upper {
			name = "fcvtl2"
		}
		f.Change(name, arm64.S4, d, n)
	})
)

func (k neonKernel) generate() {
	name := fmt.Sprintf("%sx%dNEON", k.name, k.rows)
	f := k.file.Func(name, tileSignature, k.describe(name, k.rows)...)
	k.f = f
	octets, block, x, q := f.Param("octets"), f.Param("block"), f.Param("x"), f.Param("q")
	scale, lds, y := f.Param("scale"), f.Param("lds"), f.Param("y")
	f.ShiftLeft(lds, lds, 2)
	k.q = arm64.General()
	unpack := k.neon(&k)
	acc := make([][]reg.VecVirtual, k.rows*k.sets)
	for r := range acc {
		acc[r] = make([]reg.VecVirtual, k.vectors)
		for v := range acc[r] {
			acc[r][v] = arm64.Vector()
		}
	}
	height, left, at := arm64.General(), arm64.General(), arm64.General()
	slices, slice, scales, sums := arm64.General(), arm64.General(), arm64.General(), arm64.General()

	f.Label("block")
	f.Least(height, block, octets)
	f.Sub(octets, octets, height)
	f.Constant(slices, columns/lanes/k.vectors)
	f.Copy(slice, q)
	f.Copy(scales, scale)
	f.Copy(sums, y)
	f.Label("slice")
	for r := range acc {
		for v := range acc[r] {
			f.Zero(acc[r][v])
		}
	}
	f.Copy(k.q, slice)
	f.Copy(at, x)
	f.Copy(left, height)

	f.Label("octet")
	for line := 0; line < k.octet; line += 64 {
		f.Ask(1, Mem{Base: k.q, Disp: ahead + line})
	}
	for from := 0; from < steps; from += k.steps {
		xs := make([][]reg.VecVirtual, k.rows)
		for r := range xs {
			for i := 0; i < k.steps; i += lanes {
				xs[r] = append(xs[r], arm64.Vector())
			}
			if place := 4 * (r*steps + from); len(xs[r]) == 2 {
				f.LoadPair(xs[r][0], xs[r][1], at, place)
			} else {
				f.Load(xs[r][0], Mem{Base: at, Disp: place})
			}
		}
		unpack(from, func(i, v int, weights reg.VecVirtual) {
			for r := range xs {
				f.Element("fmla", arm64.S4, acc[r*k.sets+i%k.sets][v], weights, xs[r][(i-from)/lanes], i%lanes)
			}
		})
	}
	f.AddConstant(at, at, 4*k.rows*steps)
	f.AddConstant(k.q, k.q, k.octet)
	f.SubConstant(left, left, 1)
	f.JumpUnlessZero(left, "octet")

	for v := range k.vectors {
		by := arm64.Vector()
		f.Load(by, Mem{Base: scales, Disp: v * arm64.VectorBytes})
		for r := range k.rows {
			sum, to := acc[r*k.sets][v], Mem{Base: sums, Disp: 4*columns*r + v*arm64.VectorBytes}
			if k.sets == 2 {
				f.Three("fadd", arm64.S4, sum, sum, acc[1][v])
			}
			old := arm64.Vector()
			f.Load(old, to)
			f.Three("fmla", arm64.S4, old, sum, by)
			f.Store(to, old)
		}
	}
	f.AddConstant(slice, slice, k.bytes())
	f.AddConstant(scales, scales, k.vectors*arm64.VectorBytes)
	f.AddConstant(sums, sums, k.vectors*arm64.VectorBytes)
	f.SubConstant(slices, slices, 1)
	f.JumpUnlessZero(slices, "slice")
	f.Copy(x, at)
	f.AddShifted(q, q, height, bits.TrailingZeros(uint(k.octet)))
	f.Add(scale, scale, lds)
	f.JumpUnlessZero(octets, "block")
	f.Return()
}
