package gemm

import "unsafe"

// A spreadTile computes a block of C of rows rows and columns columns, or fewer, from a panel of A and rows of B that lie anywhere.
// Columns that are missing are neither read nor written. If finish is not nil, it is the address of a Finish for the block, whose
// Shift has a number for each of the rows.
type spreadTile[T Float] struct {
	rows, columns int
	run           func(at *int, steps int, a, b, c *T, ldc, height, cols int, accumulate bool, finish *int)
}

// SpreadRows is the number of rows of the panels of A that Spread takes, and SpreadColumns the number of columns of C that it
// holds in registers. They are 0 if this processor has no such kernel.
func (m Micro[T]) SpreadRows() int {
	if len(m.spread) == 0 {
		return 0
	}
	return m.spread[0].rows
}

// SpreadColumns is explained at SpreadRows.
func (m Micro[T]) SpreadColumns() int {
	if len(m.spread) == 0 {
		return 0
	}
	return m.spread[0].columns
}

// Spread computes C = A·B of height rows and cols columns, where B's rows lie anywhere in b: row k begins at b[at[k]]. A is
// panels of SpreadRows rows, [len(at)][rows] each, the last of which is filled up; rows of C are ldc elements apart. Height,
// columns and steps may not be 0. How the sum of an element is rounded depends on its operands, not on its place. If finish is
// not nil, it is applied to C: its Shift has a number for each row, up to a multiple of SpreadRows; it moves on with the rows,
// as Residual does.
func (m Micro[T]) Spread(at []int, height int, a, b, c *T, ldc, cols int, finish *Finish[T]) {
	size, rows := int(unsafe.Sizeof(*c)), m.spread[0].rows
	after := func(p *T, elements int) *T { return (*T)(unsafe.Add(unsafe.Pointer(p), elements*size)) }
	for {
		have := min(height, rows)
		residual := (*T)(nil)
		if finish != nil {
			residual = finish.Residual
		}
		for col := 0; col < cols; {
			tile := &m.spread[0]
			for i := range m.spread {
				if next := &m.spread[i]; next.columns >= cols-col {
					tile = next
				}
			}
			n := min(tile.columns, cols-col)
			for from := 0; from < len(at); from += gatherSteps {
				steps, then := min(gatherSteps, len(at)-from), (*Finish[T])(nil)
				if from+steps == len(at) && finish != nil {
					if then = finish; residual != nil {
						then.Residual = after(residual, col)
					}
				}
				tile.run(&at[from], steps, after(a, from*rows), after(b, col), after(c, col), ldc, have, n, from > 0,
					(*int)(unsafe.Pointer(then)))
			}
			col += n
		}
		if height -= have; height == 0 {
			return
		}
		a, c = after(a, len(at)*rows), after(c, rows*ldc)
		if finish != nil {
			if residual != nil {
				finish.Residual = after(residual, rows*finish.Stride)
			}
			if finish.Shift != nil {
				finish.Shift = after(finish.Shift, rows)
			}
		}
	}
}
