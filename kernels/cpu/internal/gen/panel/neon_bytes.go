package main

import (
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// A neonBytes multiplies a block of rows of unsigned bytes, in slices of a panel's columns. SUDOT does so as they are. For SDOT
// 128 is taken from each byte of x, and 128 times the sums of the columns is added in the end.
type neonBytes struct {
	rows   int
	slices []int // the vectors of each
	dot    string
}

var neonByteShapes = []neonBytes{{rows: 1, slices: []int{8}}, {rows: 2, slices: []int{8}}, {rows: 4, slices: []int{4, 4}}}

func neonByteKernels(file *arm64.File) {
	for _, dot := range []string{"sdot", "sudot"} {
		for _, k := range neonByteShapes {
			k.dot = dot
			k.generate(file)
		}
	}
}

func (k neonBytes) generate(file *arm64.File) {
	name := fmt.Sprintf("i8Bytesx%d%s", k.rows, strings.ToUpper(k.dot))
	f := file.Func(name, byteSignature, describeBytes(name, k.rows)...)
	octets, x, ldx, q, y, ldy := f.Param("octets"), f.Param("x"), f.Param("ldx"), f.Param("q"), f.Param("y"), f.Param("ldy")
	registers := func(n int) []reg.VecVirtual {
		v := make([]reg.VecVirtual, n)
		for i := range v {
			v[i] = arm64.Vector()
		}
		return v
	}
	biased := k.dot == "sdot"
	var flip, ones reg.VecVirtual // bits of signs, and bytes of 1
	if biased {
		flip, ones = arm64.Vector(), arm64.Vector()
		f.Load(flip, file.Constant(0x8080808080808080, 0x8080808080808080))
		f.Load(ones, file.Constant(0x0101010101010101, 0x0101010101010101))
	}
	first := 0
	for i, vectors := range k.slices {
		label := fmt.Sprintf("octet%d", i)
		acc := make([][]reg.VecVirtual, k.rows, k.rows+1)
		for r := range acc {
			acc[r] = registers(vectors)
		}
		var sums []reg.VecVirtual // of the columns
		if biased {
			sums = registers(vectors)
		}
		for _, row := range append(acc, sums) {
			for _, v := range row {
				f.Zero(v)
			}
		}
		at, from, left := make([]reg.GPVirtual, k.rows), arm64.General(), arm64.General()
		for r := range at {
			if at[r] = arm64.General(); r == 0 {
				f.Copy(at[0], x)
			} else {
				f.Add(at[r], at[r-1], ldx)
			}
		}
		f.AddConstant(from, q, first*arm64.VectorBytes)
		f.Copy(left, octets)
		f.Label(label)
		numbers := registers(k.rows)
		for r, v := range numbers {
			f.LoadPart(steps, v, Mem{Base: at[r]})
			f.AddConstant(at[r], at[r], steps)
			if biased {
				f.Three("eor", arm64.B16, v, v, flip)
			}
		}
		for half := range 2 {
			for v := 0; v < vectors; v += 2 {
				w := registers(2)
				f.LoadPair(w[0], w[1], from, half*4*columns+v*arm64.VectorBytes)
				for i, weights := range w {
					for r := range acc {
						f.Dot(k.dot, acc[r][v+i], weights, numbers[r], half)
					}
					if biased {
						f.Dot(k.dot, sums[v+i], weights, ones, 0)
					}
				}
			}
		}
		f.AddConstant(from, from, 8*columns)
		f.SubConstant(left, left, 1)
		f.JumpUnlessZero(left, label)

		for _, v := range sums {
			f.Shift("shl", arm64.S4, 7, v, v)
		}
		to := arm64.General()
		f.AddConstant(to, y, first*arm64.VectorBytes)
		for r := range acc {
			for i, v := range acc[r] {
				if biased {
					f.Three("add", arm64.S4, v, v, sums[i])
				}
				f.Two("scvtf", arm64.S4, v, v)
				f.Store(Mem{Base: to, Disp: i * arm64.VectorBytes}, v)
			}
			if r < k.rows-1 {
				f.Add(to, to, ldy)
			}
		}
		first += vectors
	}
	f.Return()
}
