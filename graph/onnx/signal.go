package onnx

import (
	"math"

	"fusec/graph"
)

func init() {
	declare(
		operator{name: "DFT", min: 1, max: 3, build: buildDFT, attrs: []attr{{name: "axis", def: int64(1), until: 19},
			intAttr("inverse", 0), intAttr("onesided", 0)}},
		operator{name: "STFT", min: 2, max: 4, build: buildSTFT, attrs: []attr{intAttr("onesided", 1)}},
	)
}

// A fourier is a discrete Fourier transform as a product with a matrix: from numbers of in parts, 1 if they are real and 2
// if they are complex, to such of out parts.
type fourier struct {
	n        int // its length
	from, to int // how many numbers there are and become
	in, out  int
	inverse  bool
}

// matrix is [from·in, to·out].
func (c *call) matrix(f fourier) *graph.Tensor {
	rows, columns := f.from*f.in, f.to*f.out
	if f.n < 1 || rows > 0 && columns > maxMade/rows {
		c.refuse("a Fourier transform of %d numbers to %d", f.from, f.to)
	}
	c.made(rows * columns)
	t := graph.NewTensor(graph.TypeOf(graph.F64, rows, columns))
	for j := range f.from {
		// Where the inverse has one side of a spectrum, the other has the conjugates.
		weight, sign := 1., -1.
		if f.inverse {
			weight, sign = 1/float64(f.n), 1
			if f.from < f.n && f.out == 1 && j > 0 && 2*j != f.n {
				weight *= 2
			}
		}
		for k := range f.to {
			sin, cos := math.Sincos(2 * math.Pi * float64(j*k%f.n) / float64(f.n))
			sin, cos = sin*sign*weight, cos*weight
			part := [2][2]float64{{cos, sin}, {-sin, cos}} // of the real and the imaginary part
			for p := range f.in {
				for q := range f.out {
					t.SetFloat((j*f.in+p)*columns+k*f.out+q, part[p][q])
				}
			}
		}
	}
	return t
}

// buildDFT transforms an axis of x [...,1] or [...,2], whose last axis has the parts of a number. A real result is that of the
// inverse of one side of a spectrum.
func buildDFT(c *call) []*value {
	x := c.node(0)
	s := x.Type.Shape
	r := s.Rank()
	if r < 2 || s.At(r-1) < 1 || s.At(r-1) > 2 || !x.Type.DType.IsFloat() {
		c.refuse("it takes [...,1] or [...,2], not %v", x.Type)
	}
	axis := -2
	if c.entry("axis") != nil {
		axis = c.int("axis")
	} else if c.there(2) {
		axis = c.knownInt(2)
	}
	if axis = c.axis(axis, r); axis == r-1 {
		c.refuse("the axis %d has the parts of a number", axis)
	}
	f := fourier{n: s.At(axis), in: s.At(r - 1), out: 2, inverse: c.flag("inverse")}
	half := c.flag("onesided")
	real := half && f.inverse
	if real {
		f.n, f.out = 2*(s.At(axis)-1), 1
	}
	if c.there(1) {
		f.n = c.knownInt(1)
	}
	if f.n < 1 || f.n > maxMade {
		c.refuse("a Fourier transform of %d numbers", f.n)
	}
	f.from, f.to = f.n, f.n
	switch {
	case real:
		f.from = f.n/2 + 1
	case half:
		f.to = f.n/2 + 1
	}
	// The axis comes last but one, as long as the transform takes it.
	var perm []int
	for i := range r - 1 {
		if i != axis {
			perm = append(perm, i)
		}
	}
	x = c.transpose(x, append(perm, axis, r-1)...)
	if n := x.Type.Shape.At(r - 2); n > f.from {
		x = c.slice(x, r-2, 0, f.from, 1)
	} else {
		hi := make([]int, r)
		hi[r-2] = f.from - n
		x = c.pad(x, make([]int, r), hi, 0)
	}
	outer := dims(x)[:r-2]
	y := c.transformed(c.reshape(x, append(outer, f.from*f.in)...), f)
	back := make([]int, 0, r)
	for i := range r {
		switch {
		case i == axis:
			back = append(back, r-2)
		case i > axis && i < r-1:
			back = append(back, i-1)
		default:
			back = append(back, i)
		}
	}
	return one(c.transpose(c.reshape(y, append(outer, f.to, f.out)...), back...))
}

// transformed is the product of x [...,from·in] with the matrix of a transform.
func (c *call) transformed(x *graph.Node, f fourier) *graph.Node {
	return c.matmul(x, c.cast(c.constant(c.matrix(f)), x.Type.DType), false, false)
}

// buildSTFT transforms frames of a signal [B,L] or [B,L,1] or [B,L,2], each times a window.
func buildSTFT(c *call) []*value {
	x, step := c.node(0), c.knownInt(1)
	s := x.Type.Shape
	if s.Rank() == 2 {
		x = c.reshape(x, s.At(0), s.At(1), 1)
		s = x.Type.Shape
	}
	if s.Rank() != 3 || s.At(2) < 1 || s.At(2) > 2 || !x.Type.DType.IsFloat() {
		c.refuse("it takes [B,L,1] or [B,L,2], not %v", x.Type)
	}
	var n int
	switch {
	case c.there(3):
		n = c.knownInt(3)
	case c.there(2):
		n = c.node(2).Type.Shape.Elems()
	default:
		c.refuse("neither the length of a frame nor a window is given")
	}
	if n < 1 || step < 1 || n > s.At(1) {
		c.refuse("frames of %d numbers, %d apart, of %v", n, step, x.Type)
	}
	f := fourier{n: n, from: n, to: n, in: s.At(2), out: 2}
	if c.flag("onesided") {
		f.to = n/2 + 1
	}
	frames := (s.At(1)-n)/step + 1
	if frames > maxMade/n {
		c.refuse("%d frames of %d numbers", frames, n)
	}
	at := make([]int, 0, frames*n)
	for i := range frames {
		for j := range n {
			at = append(at, i*step+j)
		}
	}
	x = c.reshape(c.gather(x, c.vector(at...), 1), s.At(0), frames, n, f.in)
	if c.there(2) {
		x = c.mul(x, c.reshape(c.cast(c.node(2), x.Type.DType), n, 1))
	}
	y := c.transformed(c.reshape(x, s.At(0), frames, n*f.in), f)
	return one(c.reshape(y, s.At(0), frames, f.to, 2))
}
