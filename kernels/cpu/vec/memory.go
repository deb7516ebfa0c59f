package vec

// Gather sets dst[i] = x[i·stride] for all of dst. It panics if the stride is
// negative or x too short.
func Gather[E any](dst, x []E, stride int) {
	if stride == 1 {
		copy(dst, x[:len(dst)])
		return
	}
	for i, at := 0, 0; i < len(dst); i, at = i+1, at+stride {
		dst[i] = x[at]
	}
}

// Scatter sets dst[i·stride] = x[i] for all of x. It panics if the stride is
// negative or dst too short.
func Scatter[E any](dst []E, stride int, x []E) {
	if stride == 1 {
		copy(dst[:len(x)], x)
		return
	}
	at := 0
	for _, v := range x {
		dst[at] = v
		at += stride
	}
}

// transposeTile is the side of the square that Transpose moves at a time, so
// that the lines of both matrices stay in the first-level cache.
const transposeTile = 64

// Transpose sets dst[j·ldDst + i] = src[i·ldSrc + j] for i < rows and j < cols:
// src is a rows×cols matrix whose rows start ldSrc apart, dst a cols×rows one
// whose rows start ldDst apart. It panics if either slice is too short. The two
// must not overlap.
func (k *Kernels[T]) Transpose(dst []T, ldDst int, src []T, ldSrc, rows, cols int) {
	if rows <= 0 || cols <= 0 {
		return
	}
	dst = dst[:(cols-1)*ldDst+rows]
	src = src[:(rows-1)*ldSrc+cols]
	if whole := cols &^ (lineRows - 1); rows == 3 && ldDst == 3 && whole > 0 && k.interleave != nil {
		k.interleave(&dst[0], &src[0], ldSrc, whole)
		transposeElements(dst, ldDst, src, ldSrc, 0, rows, whole, cols)
		return
	}
	for i := 0; i < rows; i += transposeTile {
		for j := 0; j < cols; j += transposeTile {
			k.transposeInCache(dst[j*ldDst+i:], ldDst, src[i*ldSrc+j:], ldSrc,
				min(transposeTile, rows-i), min(transposeTile, cols-j))
		}
	}
}

// The rows and columns of the blocks that transposeLines moves: a row of the
// result is a line of the cache.
const lineRows, lineCols = 16, 4

// transposeInCache is Transpose for one tile: whole blocks by their kernels,
// the edges element by element.
func (k *Kernels[T]) transposeInCache(dst []T, ldDst int, src []T, ldSrc, rows, cols int) {
	if r, c := rows&^(lineRows-1), cols&^(lineCols-1); k.transposeLines != nil && r > 0 && c > 0 {
		k.transposeLines(&dst[0], ldDst, &src[0], ldSrc, r, c)
		transposeElements(dst, ldDst, src, ldSrc, 0, r, c, cols)
		if r == rows {
			return
		}
		dst, src, rows = dst[r:], src[r*ldSrc:], rows-r
	}
	wholeRows, wholeCols := rows&^7, cols&^7
	if k.transposeBlocks == nil || wholeRows == 0 || wholeCols == 0 {
		transposeElements(dst, ldDst, src, ldSrc, 0, rows, 0, cols)
		return
	}
	k.transposeBlocks(&dst[0], ldDst, &src[0], ldSrc, wholeRows, wholeCols)
	transposeElements(dst, ldDst, src, ldSrc, 0, wholeRows, wholeCols, cols)
	transposeElements(dst, ldDst, src, ldSrc, wholeRows, rows, 0, cols)
}

// transposeElements transposes the rows [r0, r1) and columns [c0, c1) of src.
func transposeElements[T Float](dst []T, ldDst int, src []T, ldSrc, r0, r1, c0, c1 int) {
	for i := r0; i < r1; i++ {
		for j := c0; j < c1; j++ {
			dst[j*ldDst+i] = src[i*ldSrc+j]
		}
	}
}
