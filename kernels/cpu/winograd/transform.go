package winograd

import (
	"unsafe"

	"fusec/graph"
)

// pointA and pointB are the points of F(4×4, 3×3) besides 0 and infinity, each with both signs; see [graph.WinogradOf]. The
// generator of the assembly has them, too.
const pointA, pointB = 5. / 8, 3. / 2

// maxPoints is the most points that a tile has along a side.
const maxPoints = 6

// An inputs transforms patches: it sets v to Bᵀ·d·B, for so many vectors of channels. Strides are in elements: row and col
// from pixel to pixel of x, point from one of the tile's products to the next.
type inputs = func(vectors int, x *float32, row, col int, v *float32, point int)

// An outputs transforms back: it sets y to Aᵀ·d·A of the tile of products at m.
type outputs = func(vectors int, m *float32, point int, y *float32, row, col int)

// A kernel is the transforms of one instruction set, those of F(2×2, 3×3) before those of F(4×4, 3×3). They stand in the order
// of gemm.Micros. A filter is transformed as a patch is, to G·g·Gᵀ; its strides may be negative.
type kernel struct {
	lanes  int // of a vector
	input  [2]inputs
	output [2]outputs
	filter [2]inputs
}

var kernels = append(native(), kernel{1,
	[2]inputs{inputPortable(input2, 4, 4), inputPortable(input4, 6, 6)},
	[2]outputs{outputPortable(output2, 4), outputPortable(output4, 6)},
	[2]inputs{inputPortable(filterStep(2), 3, 4), inputPortable(filterStep(4), 3, 6)}})

// at is the element n elements after p.
func at(p *float32, n int) *float32 { return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*n)) }

// A line is the elements of a tile along a side.
type line [maxPoints]float32

func inputPortable(step func(d line) line, in, points int) inputs {
	return func(vectors int, x *float32, row, col int, v *float32, point int) {
		for i := range vectors {
			twoSided(step, in, points, at(x, i), row, col, at(v, i), points*point, point)
		}
	}
}

// filterStep is G·g.
func filterStep(tile int) func(g line) line {
	algorithm, _ := graph.WinogradOf(tile)
	return func(g line) (r line) {
		for i, row := range algorithm.G {
			r[i] = float32(row[0])*g[0] + float32(row[1])*g[1] + float32(row[2])*g[2]
		}
		return r
	}
}

func outputPortable(step func(m line) line, points int) outputs {
	return func(vectors int, m *float32, point int, y *float32, row, col int) {
		for i := range vectors {
			twoSided(step, points, points-2, at(m, i), points*point, point, at(y, i), row, col)
		}
	}
}

// twoSided applies step to the columns of a square, and then to the rows of what comes out.
func twoSided(step func(line) line, points, out int, x *float32, row, col int, y *float32, yRow, yCol int) {
	var mid [maxPoints]line
	for c := range points {
		var d line
		for r := range points {
			d[r] = *at(x, r*row+c*col)
		}
		d = step(d)
		for r := range out {
			mid[r][c] = d[r]
		}
	}
	for r := range out {
		d := step(mid[r])
		for c := range out {
			*at(y, r*yRow+c*yCol) = d[c]
		}
	}
}

func input2(d line) line { return line{d[2] - d[0], d[1] + d[2], d[2] - d[1], d[3] - d[1]} }

func input4(d line) line {
	const a, b = pointA, pointB
	const sum, product = a*a + b*b, a * a * b * b
	evenA, oddA := d[4]-b*b*d[2], a*(d[3]-b*b*d[1])
	evenB, oddB := d[4]-a*a*d[2], b*(d[3]-a*a*d[1])
	return line{product*d[0] - sum*d[2] + d[4], evenA + oddA, evenA - oddA, evenB + oddB, evenB - oddB,
		product*d[1] - sum*d[3] + d[5]}
}

func output2(m line) line { return line{m[0] + (m[1] + m[2]), m[1] - m[2] + m[3]} }

func output4(m line) line {
	const a, b = pointA, pointB
	s, t, u, v := m[1]+m[2], m[1]-m[2], m[3]+m[4], m[3]-m[4]
	return line{m[0] + (s + u), a*t + b*v, a*a*s + b*b*u, a*a*a*t + b*b*b*v + m[5]}
}
