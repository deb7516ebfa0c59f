package cpu

import (
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// A unit is what an element is to code that only moves it: so many bytes.
type unit interface {
	uint8 | uint16 | uint32 | uint64
}

// bySize is the function of four that moves elements of type d.
func bySize[F any](d graph.DType, one, two, four, eight F) F {
	switch d.Size() {
	case 1:
		return one
	case 2:
		return two
	case 4:
		return four
	}
	return eight
}

// recast gives elements another type of the same size.
func recast[E, S any](s []S) []E {
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

// transposeSide is the side of the squares that a transposing copy is cut into: one has [grain] elements.
const transposeSide = 128

// A box is a set of elements to be copied between two strided places of one shape. The innermost axes form planes of
// rows and columns, in the order in which they stand in the destination; the other axes number the planes. The work is
// cut into items by shape alone: groups of small planes, or blocks of large ones.
type box struct {
	src, dst         int   // the first element
	dims, srcs, dsts []int // of the axes that number the planes: sizes and strides
	planes           int
	rows, cols       int
	srcRow, srcCol   int
	dstRow, dstCol   int
	transposes       bool // rows stand side by side in the source, columns in the destination

	group                int // planes per item
	rowStep, colStep     int // rows and columns per item
	rowBlocks, colBlocks int
	items                int
}

// newBox merges the axes that both places allow to be merged and chooses the planes.
func newBox(src, dst graph.Layout) box {
	b := box{src: src.Offset, dst: dst.Offset, planes: 1, rows: 1}
	if src.Shape.Elems() == 0 {
		return b
	}
	from, to := access{layout: src}, access{layout: dst}
	d := newDomain(src.Shape, 0, []*access{&from, &to})
	last := len(d.inner) - 1
	b.cols, b.srcCol, b.dstCol = d.inner[last], from.inner[last], to.inner[last]
	row := last - 1
	if b.srcCol > 1 && b.dstCol == 1 {
		for i, s := range from.inner[:last] {
			if s == 1 {
				row, b.transposes = i, true
			}
		}
	}
	for i := range last {
		if i == row {
			b.rows, b.srcRow, b.dstRow = d.inner[i], from.inner[i], to.inner[i]
			continue
		}
		b.dims = append(b.dims, d.inner[i])
		b.srcs = append(b.srcs, from.inner[i])
		b.dsts = append(b.dsts, to.inner[i])
		b.planes *= d.inner[i]
	}
	b.cut()
	return b
}

// cut decides the items.
func (b *box) cut() {
	b.colStep = min(b.cols, grain)
	b.rowStep = min(b.rows, max(grain/b.colStep, 1))
	if b.transposes {
		b.colStep, b.rowStep = min(b.cols, transposeSide), min(b.rows, transposeSide)
		const square = transposeSide * transposeSide
		switch { // a narrow one is cut into longer pieces
		case b.colStep < transposeSide:
			b.rowStep = min(b.rows, square/b.colStep&^(transposeSide-1))
		case b.rowStep < transposeSide:
			b.colStep = min(b.cols, square/b.rowStep&^(transposeSide-1))
		}
	}
	b.group = max(grain/(b.rows*b.cols), 1)
	b.rowBlocks, b.colBlocks = chunks(b.rows, b.rowStep), chunks(b.cols, b.colStep)
	b.items = chunks(b.planes, b.group) * b.rowBlocks * b.colBlocks
}

// copyItem copies one item of a box whose first elements are moved by srcShift and dstShift.
func copyItem[E unit](b *box, item int, dst, src []E, dstShift, srcShift int) {
	col := item % b.colBlocks * b.colStep
	row := item / b.colBlocks % b.rowBlocks * b.rowStep
	plane := item / b.colBlocks / b.rowBlocks * b.group
	end := min(plane+b.group, b.planes)
	rows, cols := min(b.rowStep, b.rows-row), min(b.colStep, b.cols-col)
	from := b.src + srcShift + row*b.srcRow + col*b.srcCol
	to := b.dst + dstShift + row*b.dstRow + col*b.dstCol
	var at [graph.MaxRank]int
	for i, rest := len(b.dims)-1, plane; i >= 0; i-- {
		at[i] = rest % b.dims[i]
		rest /= b.dims[i]
		from += at[i] * b.srcs[i]
		to += at[i] * b.dsts[i]
	}
	for {
		copyPlane(b, dst[to:], src[from:], rows, cols)
		if plane++; plane == end {
			return
		}
		for i := len(b.dims) - 1; ; i-- {
			at[i]++
			from += b.srcs[i]
			to += b.dsts[i]
			if at[i] < b.dims[i] {
				break
			}
			at[i] = 0
			from -= b.dims[i] * b.srcs[i]
			to -= b.dims[i] * b.dsts[i]
		}
	}
}

// shortRun is the length below which a loop beats a call of copy.
const shortRun = 8

// copyPlane copies rows and columns of a plane from the starts of src and dst.
func copyPlane[E unit](b *box, dst, src []E, rows, cols int) {
	side := b.srcCol == 1 && b.dstCol == 1 && cols >= shortRun
	switch {
	case b.transposes:
		transpose(dst, b.dstRow, src, b.srcCol, cols, rows)
		return
	case b.srcCol == 0 && b.dstCol == 1:
		for i := range rows {
			fillUnits(dst[i*b.dstRow:][:cols], src[i*b.srcRow])
		}
		return
	}
	if b.srcCol == 1 && b.dstCol == 1 && cols == 3 { // colours
		for i := range rows {
			d, s := dst[i*b.dstRow:][:3], src[i*b.srcRow:][:3]
			d[0], d[1], d[2] = s[0], s[1], s[2]
		}
		return
	}
	for i := range rows {
		d, s := dst[i*b.dstRow:], src[i*b.srcRow:]
		if side {
			copy(d[:cols], s[:cols])
			continue
		}
		for j, x, y := 0, 0, 0; j < cols; j, x, y = j+1, x+b.dstCol, y+b.srcCol {
			d[x] = s[y]
		}
	}
}

// transpose is [vec.Kernels.Transpose] for units.
func transpose[E unit](dst []E, ldDst int, src []E, ldSrc, rows, cols int) {
	if rows == 3 && ldDst < shortRun { // colours
		a, b, c := src[:cols], src[ldSrc:][:cols], src[2*ldSrc:][:cols]
		for i := range a {
			d := dst[i*ldDst:][:3]
			d[0], d[1], d[2] = a[i], b[i], c[i]
		}
		return
	}
	switch any(dst).(type) {
	case []uint32:
		vec.F32().Transpose(recast[float32](dst), ldDst, recast[float32](src), ldSrc, rows, cols)
	case []uint64:
		transposeTiles(dst, ldDst, src, ldSrc, rows, cols, 8)
	default:
		transposeTiles(dst, ldDst, src, ldSrc, rows, cols, 32)
	}
}

// transposeTiles transposes squares small enough that their lines stay in the first-level cache even where the rows
// are a power of two apart.
func transposeTiles[E unit](dst []E, ldDst int, src []E, ldSrc, rows, cols, side int) {
	for i := 0; i < rows; i += side {
		for j := 0; j < cols; j += side {
			n := min(side, rows-i)
			for x := j; x < min(j+side, cols); x++ {
				d, at := dst[x*ldDst+i:][:n], i*ldSrc+x
				for y := range d {
					d[y] = src[at]
					at += ldSrc
				}
			}
		}
	}
}

// fillUnits sets all elements of dst, at least one. Doubling what is filled already leaves the work to copy.
func fillUnits[E unit](dst []E, v E) {
	dst[0] = v
	for n := 1; n < len(dst); n *= 2 {
		copy(dst[n:], dst[:n])
	}
}
