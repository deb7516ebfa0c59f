package fpga

import (
	"fmt"
	"math"

	"fusec/graph"
	"fusec/lowering"
)

// A value is a matrix of numbers between two steps, in the overlay's external memory: a buffer of the lowered program,
// or an internal value of a launch. It is stored row by row, each row aligned to a word. Its transpose is stored in the
// same way if something reads it.
type value struct {
	name       string
	buffer     int // of the lowered program, or −1
	rows, cols int
	shaped     bool // rows and cols are settled
	pixels     int  // of images, whose pixels are the rows: those of each image; else 0
	planar     bool // the buffer has their channels one after the other

	first, last int  // launches between which it lives
	made        bool // by the overlay
	hosted      bool // read or made by the host
	plain       bool // stored without transposition
	turned      bool // and its transpose
	symmetric   bool // some reader needs the zero point 0
	narrow      bool // some reader needs int8
	logits      bool // the router reads it: int16 in units of log2

	wide    bool
	quant   quant
	calibre calibre // the range of its numbers
	addr    [2]int64
}

// quant is the meaning of a value's integers: q means (q − zero)·step.
type quant struct {
	step float64
	zero int
}

func (q quant) real(v int) float64 { return float64(v-q.zero) * q.step }

// of is the integer for x, rounded half up and saturated to n bits.
func (q quant) of(x float64, bits int) int {
	limit := 1 << (bits - 1)
	v := math.Floor(x/q.step+0.5) + float64(q.zero)
	return int(max(float64(-limit), min(float64(limit-1), v))) // NaN becomes −limit
}

// calibre is the range that a value's numbers had.
type calibre struct {
	lo, hi float64
	known  bool
}

// add widens the range to hold x.
func (c *calibre) add(x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return
	}
	if !c.known {
		c.lo, c.hi, c.known = x, x, true
	}
	c.lo, c.hi = min(c.lo, x), max(c.hi, x)
}

// span is the range's width, with zero in it.
func (c calibre) span() float64 { return max(c.hi, 0) - min(c.lo, 0) }

// The image of a value: as it is, or transposed.
const (
	plain = iota
	turned
)

// bytes is the size of an element.
func (v *value) bytes() int {
	if v.wide {
		return 2
	}
	return 1
}

// stride is the bytes from one row of an image to the next.
func (v *value) stride(image, wordBytes int) int {
	if image == turned {
		return up(v.rows*v.bytes(), wordBytes)
	}
	return up(v.cols*v.bytes(), wordBytes)
}

// size is the bytes of an image.
func (v *value) size(image, wordBytes int) int64 {
	if image == turned {
		return int64(v.cols) * int64(v.stride(image, wordBytes))
	}
	return int64(v.rows) * int64(v.stride(image, wordBytes))
}

// newValue is the value of a buffer.
func newValue(p *lowering.Program, buffer int) *value {
	b := p.Buffers[buffer]
	s := b.Type.Shape
	v := &value{name: b.Name, buffer: buffer, rows: 1, cols: 1, first: -1, last: -1}
	if v.name == "" {
		v.name = fmt.Sprintf("b%d", buffer)
	}
	if s.Rank() > 0 {
		v.cols = s.At(s.Rank() - 1)
		v.rows = s.Elems() / max(v.cols, 1)
	}
	return v
}

// matrix is a part of a value that looks like a matrix: row i begins at element start + i·step, and its elements are
// contiguous. If image is turned, it is the transpose of that: row i of the matrix is column i of the part.
type matrix struct {
	v          *value
	start      int
	step       int
	rows, cols int // as the overlay sees them
	image      int
}

// whole is all of a value.
func whole(v *value) matrix { return matrix{v, 0, v.cols, v.rows, v.cols, plain} }

// turn is the transpose of a matrix, read from the transpose of its value.
func (m matrix) turn() matrix {
	m.rows, m.cols, m.image = m.cols, m.rows, plain+turned-m.image
	return m
}

// matrixOf is the matrix of rows × cols that a layout shows of a value, rows being all its axes but the last.
func matrixOf(v *value, l graph.Layout, rows, cols int) (matrix, error) {
	if v.planar {
		return matrix{}, fmt.Errorf("%s is seen as images and otherwise", v.name)
	}
	if !v.shaped && l.IsContiguous() && l.Offset == 0 && rows*cols == v.rows*v.cols {
		v.rows, v.cols = rows, cols // as those see it who read or make it first
	}
	v.shaped = true
	flat, ok := l.Reshape(graph.ShapeOf(rows, cols))
	if !ok {
		return matrix{}, fmt.Errorf("the rows of %s, seen as %v, do not follow one another at one distance", v.name,
			l.Shape)
	}
	if cols > 1 && flat.Stride[1] != 1 {
		return matrix{}, fmt.Errorf("the elements of a row of %s, seen as %v, do not lie side by side", v.name, l.Shape)
	}
	m := matrix{v, flat.Offset, flat.Stride[0], rows, cols, plain}
	if rows == 1 {
		m.step = v.cols
	}
	if rows > 1 && m.step == 0 {
		return matrix{}, fmt.Errorf("a row of %s is repeated", v.name)
	}
	return m, nil
}

// place is the position of a matrix in its image: its first byte, and the bytes from one row to the next. The error
// says why it is not aligned to words.
func (m matrix) place(wordBytes int) (start, step int64, err error) {
	v, b := m.v, m.v.bytes()
	stride := v.stride(m.image, wordBytes)
	r, c, dr, dc := m.start/v.cols, m.start%v.cols, m.step/v.cols, m.step%v.cols
	rows, cols := m.rows, m.cols
	if m.image == turned {
		rows, cols = cols, rows
	}
	switch dense := stride == v.cols*b; {
	case m.image == plain && dense:
		start, step = int64(m.start*b), int64(m.step*b)
	case dc != 0 && rows > 1 || c+cols > v.cols:
		return 0, 0, fmt.Errorf("rows of %d elements of %s do not lie in its rows of %d", cols, v.name, v.cols)
	case m.image == plain:
		start, step = int64(r*stride+c*b), int64(dr*stride)
	case dr != 1 && rows > 1:
		return 0, 0, fmt.Errorf("the rows of %s that are read as columns do not follow one another", v.name)
	default: // element (i, k) of the part is element r+i of row c+k of the transpose
		start, step = int64(c*stride+r*b), int64(stride)
	}
	if start%int64(wordBytes) != 0 || step%int64(wordBytes) != 0 && m.rows > 1 {
		return 0, 0, fmt.Errorf("a part of %s does not begin with a word of %d bytes", v.name, wordBytes)
	}
	return start, step, nil
}
