//go:build amd64 || arm64

package gemm

import "unsafe"

// A transpose is an assembly kernel that turns rows of blocks·columns elements
// into as many short rows.
type transpose[T Float] func(blocks int, src *T, srcStride int, dst *T, dstStride int)

func packF32(dst []float32, width, k, n int, src []float32, kStride, nStride int) {
	packVector(dst, width, k, n, src, kStride, nStride, transposedBytes/4, transpose4F32, transpose2F32)
}

func packF64(dst []float64, width, k, n int, src []float64, kStride, nStride int) {
	packVector(dst, width, k, n, src, kStride, nStride, transposedBytes/8, transpose4F64, transpose2F64)
}

// packVector packs with vector instructions where one of the strides is 1.
// four and two transpose that many rows, columns elements at a time.
func packVector[T Float](dst []T, width, k, n int, src []T, kStride, nStride, columns int, four, two transpose[T]) {
	switch {
	case nStride == 1:
		packRows(dst, width, k, n, src, kStride)
	case kStride == 1 && k >= columns:
		for n0 := 0; n0 < n; n0 += width {
			packColumns(dst[n0*k:][:width*k], width, k, min(width, n-n0), src[n0*nStride:], nStride, columns, four, two)
		}
	default:
		packPortable(dst, width, k, n, src, kStride, nStride)
	}
}

// packRows packs an operand that is contiguous across the panels.
func packRows[T Float](dst []T, width, k, n int, src []T, kStride int) {
	size := int(unsafe.Sizeof(dst[0]))
	panels := n / width
	copyRows := rowCopier(width * size)
	if copyRows == nil {
		panels = 0
	}
	if panels > 0 {
		copyRows(k, panels, (*byte)(unsafe.Pointer(&src[0])), kStride*size,
			(*byte)(unsafe.Pointer(&dst[0])), k*width*size)
	}
	if done := panels * width; done < n {
		packPortable(dst[done*k:], width, k, n-done, src[done:], kStride, 1)
	}
}

// packColumns packs one panel of n rows or columns, each of which is
// contiguous along the reduction.
func packColumns[T Float](dst []T, width, k, n int, src []T, nStride, columns int, four, two transpose[T]) {
	blocks := k / columns
	done := 0
	for ; n-done >= 4; done += 4 {
		four(blocks, &src[done*nStride], nStride, &dst[done], width)
	}
	if n-done >= 2 {
		two(blocks, &src[done*nStride], nStride, &dst[done], width)
		done += 2
	}
	if done < n || n < width {
		fillPanel(dst, width, blocks*columns, n, done, src, nStride)
	}
	packPanel(dst, width, blocks*columns, k, n, src, 1, nStride)
}

// fillPanel packs the last of n rows or columns, if only done of them are packed, and zeros after it.
func fillPanel[T Float](dst []T, width, k, n, done int, src []T, nStride int) {
	for p := range k {
		row := dst[p*width:][:width]
		if done < n {
			row[done] = src[done*nStride+p]
		}
		if n < width {
			clear(row[n:])
		}
	}
}
