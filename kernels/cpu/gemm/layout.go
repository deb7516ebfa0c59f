package gemm

import (
	"fmt"
	"math"
)

// A Layout describes the positions of the matrices of a batch in a slice: element (i, j) of matrix number b is at
//
//	Offsets[b] + i·RowStride + j·ColStride
//
// counted in elements. Strides of A and B are not negative; zero repeats a row
// or column. A transpose is a Layout with the strides exchanged.
type Layout struct {
	RowStride, ColStride int
	// Offsets has one entry for each matrix of the batch, or is nil when all
	// of them are the one at offset 0.
	Offsets []int
}

// RowMajor is the layout of one contiguous matrix with the given number of
// columns, used by every member of a batch.
func RowMajor(cols int) Layout { return Layout{RowStride: cols, ColStride: 1} }

// Transposed is the layout of the transpose of the matrices described by l.
func (l Layout) Transposed() Layout {
	l.RowStride, l.ColStride = l.ColStride, l.RowStride
	return l
}

// Offsets lists the offsets of a batch with several dimensions: for every
// index into dims, the last one fastest, the sum of index·stride. Stride 0
// broadcasts.
func Offsets(dims, strides []int) ([]int, error) {
	if len(dims) != len(strides) {
		return nil, fmt.Errorf("gemm: %d batch dimensions but %d strides", len(dims), len(strides))
	}
	offsets := []int{0}
	for d, size := range dims {
		if size < 0 {
			return nil, fmt.Errorf("gemm: batch dimension %d is %d", d, size)
		}
		next := make([]int, 0, len(offsets)*size)
		for _, o := range offsets {
			for i := range size {
				next = append(next, o+i*strides[d])
			}
		}
		offsets = next
	}
	return offsets, nil
}

// at returns the offset of matrix number batch.
func (l Layout) at(batch int) int {
	if l.Offsets == nil {
		return 0
	}
	return l.Offsets[batch]
}

// extent checks the layout of a batch of rows×cols matrices and returns how
// many elements the slice must have.
func (l Layout) extent(name string, batch, rows, cols int) (int, error) {
	if l.Offsets != nil && len(l.Offsets) != batch {
		return 0, fmt.Errorf("gemm: %s has %d offsets for a batch of %d", name, len(l.Offsets), batch)
	}
	if l.RowStride < 0 || l.ColStride < 0 {
		return 0, fmt.Errorf("gemm: %s has strides %d, %d; they may not be negative", name, l.RowStride, l.ColStride)
	}
	if batch == 0 || rows == 0 || cols == 0 {
		return 0, nil
	}
	last := 0
	for b, o := range l.Offsets {
		if o < 0 {
			return 0, fmt.Errorf("gemm: %s has offset %d for matrix %d", name, o, b)
		}
		last = max(last, o)
	}
	// In floating point, because the product of sizes may not fit an int.
	if float64(last)+float64(rows-1)*float64(l.RowStride)+float64(cols-1)*float64(l.ColStride) > math.MaxInt/64 {
		return 0, fmt.Errorf("gemm: %s (%d×%d, strides %d, %d) is too large", name, rows, cols, l.RowStride, l.ColStride)
	}
	return last + (rows-1)*l.RowStride + (cols-1)*l.ColStride + 1, nil
}
