package gemm

import (
	"fmt"

	"fusec/kernels/cpu/tiling"
)

// A Packer provides an operand in packed form instead of a strided matrix in a slice, for example the patches of a
// convolution, or a matrix with an elementwise function applied. Its methods are called by several workers at the same
// time, for different blocks, possibly more than once for the same block.
type Packer[T Float] interface {
	// Pack fills dst with a block of the operand in panel layout. The length
	// of dst is PackedLen(at.Width, at.K, at.N).
	Pack(worker int, dst []T, at Block)
}

// A Block is the part of an operand that a Packer is asked for: K steps of the
// reduction, from K0, by N rows of A or columns of B, from N0, of one matrix
// of the batch.
//
// Panel layout: the N rows or columns are cut into panels of Width, which
// follow one another. A panel holds its elements reduction index first:
// reduction step k0+k and row or column n0+n is at
//
//	dst[(n/Width*K + k)*Width + n%Width]
//
// The last panel is filled up with zeros.
type Block struct {
	Batch int
	K0, K int
	N0, N int
	Width int
}

// PackedLen is the number of elements of a k×n block in panels of a width.
func PackedLen(width, k, n int) int { return tiling.RoundUp(n, width) * k }

// Pack packs a k×n block whose element (k, n) is src[k·kStride + n·nStride]
// into panels, in the layout described at Block. It is for Packers that have
// computed rows or columns of a block into scratch: for A, n counts rows.
func Pack[T Float](dst []T, width, k, n int, src []T, kStride, nStride int) {
	if k <= 0 || n <= 0 {
		return
	}
	if need := PackedLen(width, k, n); len(dst) < need {
		panic(fmt.Sprintf("gemm: Pack of %d×%d in panels of %d needs %d elements, dst has %d", k, n, width, need, len(dst)))
	}
	if need := (k-1)*kStride + (n-1)*nStride + 1; kStride < 0 || nStride < 0 || len(src) < need {
		panic(fmt.Sprintf("gemm: Pack of %d×%d with strides %d, %d needs %d elements, src has %d", k, n, kStride, nStride, need,
			len(src)))
	}
	kernels[T]()[0].pack(dst, width, k, n, src, kStride, nStride)
}

// PutRow writes reduction step k of a block of kc steps into panels: row holds
// one element for each row of A or column of B in the block.
func PutRow[T Float](dst []T, width, kc, k int, row []T) {
	for panel := k * width; len(row) > 0; panel += kc * width {
		n := copy(dst[panel:panel+width], row)
		clear(dst[panel+n : panel+width])
		row = row[n:]
	}
}

// packPortable packs any strides, element by element where they are not
// contiguous across the panels.
func packPortable[T Float](dst []T, width, k, n int, src []T, kStride, nStride int) {
	if nStride == 1 {
		for p := range k {
			PutRow(dst, width, k, p, src[p*kStride:][:n])
		}
		return
	}
	for n0 := 0; n0 < n; n0 += width {
		packPanel(dst[n0*k:][:width*k], width, 0, k, min(width, n-n0), src[n0*nStride:], kStride, nStride)
	}
}

// packPanel packs steps from to k of one panel that has n rows or columns.
func packPanel[T Float](dst []T, width, from, k, n int, src []T, kStride, nStride int) {
	for p := from; p < k; p++ {
		row := dst[p*width:][:width]
		for i := range n {
			row[i] = src[p*kStride+i*nStride]
		}
		clear(row[n:])
	}
}
