package gemm

import "unsafe"

// A Piece is a part of the reduction that is contiguous in every row of A: Len elements, not 0, from the element At of
// the row on.
type Piece struct{ At, Len int }

// A gatherTile computes a block of C from rows of A that lie anywhere: height rows, no more than the kernel holds in
// registers and one less at most, and cols columns. Rows has an entry for each of the kernel's own rows.
type gatherTile[T Float] func(pieces *int, n int, rows *int, a, b, c *T, ldc, height, cols int, accumulate bool)

// A gatherPanel is the gatherTiles for panels of B of one width.
type gatherPanel[T Float] struct {
	width int
	step  int             // the difference of the tiles' heights
	tiles []gatherTile[T] // of step rows, 2·step, …
}

// PanelOf returns the width of the panel of B in which Gather takes so many columns: NR, or less if they are few.
func (m Micro[T]) PanelOf(cols int) int { return m.gatherPanel(cols).width }

// gatherPanel returns the narrowest panel for so many columns, no more than NR. The list begins with the widest.
func (m Micro[T]) gatherPanel(cols int) *gatherPanel[T] {
	p := &m.gather[0]
	for i := range m.gather {
		if next := &m.gather[i]; next.width >= cols {
			p = next
		}
	}
	return p
}

// GatherHeight is the number of rows of C that Gather holds in registers, GatherStep what the number of rows that it is
// given is a multiple of.
func (m Micro[T]) GatherHeight() int { return len(m.gather[0].tiles) * m.gather[0].step }
func (m Micro[T]) GatherStep() int   { return m.gather[0].step }

// Gather computes C = A·B, or C += A·B if accumulate, of height rows and cols columns, where A's rows lie anywhere in a.
// Row i consists of the pieces, that with At 0 at a[rows[i]]. The entries of rows are a multiple of GatherStep; those
// from height on, fewer than GatherStep, are any rows that exist. B is a panel of PanelOf(cols) columns, [elements of
// all pieces][width]; rows of C are ldc elements apart. Nothing may be 0. How the sum of an element is rounded depends
// on its operands and on the pieces, not on its place.
func (m Micro[T]) Gather(pieces []Piece, height int, rows []int, a, b, c *T, ldc, cols int, accumulate bool) {
	p := m.gatherPanel(cols)
	list := (*int)(unsafe.Pointer(unsafe.SliceData(pieces)))
	steps := ceilDiv(height, p.step)
	for blocks := ceilDiv(steps, len(p.tiles)); blocks > 0; blocks-- {
		n := steps / blocks // blocks are of nearly equal heights
		have := min(n*p.step, height)
		p.tiles[n-1](list, len(pieces), &rows[0], a, b, c, ldc, have, cols, accumulate)
		if blocks > 1 {
			steps, height, rows = steps-n, height-have, rows[have:]
			c = (*T)(unsafe.Add(unsafe.Pointer(c), have*ldc*int(unsafe.Sizeof(*c))))
		}
	}
}
