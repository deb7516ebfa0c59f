package gemm

import (
	"math"
	"unsafe"

	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

// A Piece is a part of the reduction that is contiguous in every row of A: Len elements from the element At of the row
// on.
type Piece struct{ At, Len int }

// Pieces are those of which the rows of A consist, cut into runs. The sums of a run are in registers; those of several
// are added up, as are the blocks of the reduction of a Plan, so that rounding errors stay small.
type Pieces struct {
	list []Piece    // of lengths that are not 0
	runs []pieceRun // together all of the list
}

// gatherSteps bounds the steps of a run. Of every gatherUnroll steps of a panel, a kernel asks for gatherAhead bytes of
// the next one.
const (
	gatherSteps  = 384
	gatherUnroll = 4
	gatherAhead  = 128
)

// A pieceRun is pieces from to to, and the steps of the reduction before it and in it.
type pieceRun struct{ from, to, before, steps int }

// CutPieces cuts the pieces of a row.
func CutPieces(list []Piece) Pieces {
	var p Pieces
	for _, whole := range list {
		for part, from := tiling.CeilDiv(whole.Len, max(tiling.CeilDiv(whole.Len, gatherSteps), 1)), 0; from < whole.Len; from += part {
			next := Piece{At: whole.At + from, Len: min(part, whole.Len-from)}
			p.list = append(p.list, next)
			last := len(p.runs) - 1
			if last < 0 || p.runs[last].steps+next.Len > gatherSteps {
				p.runs = append(p.runs, pieceRun{from: len(p.list) - 1, before: p.Steps()})
				last++
			}
			p.runs[last].to = len(p.list)
			p.runs[last].steps += next.Len
		}
	}
	return p
}

// Steps is the length of the reduction.
func (p *Pieces) Steps() int {
	if len(p.runs) == 0 {
		return 0
	}
	last := p.runs[len(p.runs)-1]
	return last.before + last.steps
}

// A gatherTile computes a block of C from rows of A that lie anywhere: height rows, no more than the kernel holds in
// registers, and cols columns. Rows has an entry for each of the kernel's own rows. While it computes, it asks for a part
// of what is ahead bytes after B. If finish is not nil, it is the address of a Finish for the block.
type gatherTile[T Float] func(pieces *int, n int, rows *int, a, b *T, ahead int, c *T, ldc, height, cols int, accumulate bool,
	finish *int)

// A Finish is what follows the sums of Gather: C = min(max(Gate(A·B + Shift + Residual), Low), High). Shift is one number for
// each column, Residual rows that are Stride elements apart. What is nil is left out. A NaN stays a NaN. The assembly
// knows the order of the fields.
//
// Where [Micro.StoresBytes], Bias is added to A·B first, and these are multiplied by Scale, one number of each for each column. If
// Bytes is not nil, C is not written: its elements, rounded to the nearest with ties to even, plus Zero, go to Bytes, in rows that
// are Step apart. Low and High are such that these are numbers from 0 to 255; of a NaN it is Zero.
type Finish[T Float] struct {
	Shift, Residual *T
	Stride          int
	Low, High       T
	Gate            vec.Gate[T]
	Scale           *T
	Bytes           *byte
	Step            int
	Zero            int32
	Bias            *T
}

// Apply finishes a block of sums that lie in C.
func (f *Finish[T]) Apply(c *T, ldc, height, cols int) {
	element := func(p *T, i int) *T { return (*T)(unsafe.Add(unsafe.Pointer(p), i*int(unsafe.Sizeof(*p)))) }
	for i := range height {
		for j := range cols {
			at := element(c, i*ldc+j)
			sum := *at
			if f.Bias != nil {
				sum += *element(f.Bias, j)
			}
			if f.Scale != nil {
				sum *= *element(f.Scale, j)
			}
			if f.Shift != nil {
				sum += *element(f.Shift, j)
			}
			if f.Residual != nil {
				sum += *element(f.Residual, i*f.Stride+j)
			}
			sum = f.Gate.Of(sum)
			if sum < f.Low {
				sum = f.Low
			}
			if sum > f.High {
				sum = f.High
			}
			if f.Bytes == nil {
				*at = sum
				continue
			}
			if sum != sum {
				sum = 0
			}
			*(*byte)(unsafe.Add(unsafe.Pointer(f.Bytes), i*f.Step+j)) = byte(int32(math.RoundToEven(float64(sum))) + f.Zero)
		}
	}
}

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

// Gather computes C = A·B of height rows and cols columns, where A's rows lie anywhere in a. Row i consists of the
// pieces, that with At 0 at a[rows[i]]. The entries of rows are a multiple of GatherStep; those from height on, fewer
// than GatherStep, are any rows that exist. B is a panel of PanelOf(cols) columns, [pieces.Steps()][width]; rows of C are
// ldc elements apart. Height, columns and steps may not be 0. How the sum of an element is rounded depends on its
// operands and on the pieces, not on its place. If next is not nil, it is a panel that will be needed soon, which is
// loaded into the second-level cache. If finish is not nil, it is applied to C; its Residual and Bytes move on with the rows.
func (m Micro[T]) Gather(pieces *Pieces, height int, rows []int, a, b, next, c *T, ldc, cols int, finish *Finish[T]) {
	m.gatherPanel(cols).gather(pieces, height, rows, a, b, next, c, ldc, cols, false, finish)
}

// gather is Gather, or adds to C if accumulate.
func (p *gatherPanel[T]) gather(pieces *Pieces, height int, rows []int, a, b, next, c *T, ldc, cols int, accumulate bool,
	finish *Finish[T]) {
	size := int(unsafe.Sizeof(*c))
	steps := tiling.CeilDiv(height, p.step)
	ahead, parts := 0, 0 // the distance of next, and how many tiles load a part of it
	if next != nil {
		ahead, parts = int(uintptr(unsafe.Pointer(next))-uintptr(unsafe.Pointer(b))), gatherUnroll*p.width*size/gatherAhead
	}
	for blocks := tiling.CeilDiv(steps, len(p.tiles)); ; blocks-- {
		n := steps / blocks // blocks are of nearly equal heights
		if parts--; parts < 0 {
			ahead = 0
		}
		tile, have := p.tiles[n-1], min(n*p.step, height)
		for i := range pieces.runs {
			r := &pieces.runs[i]
			var then *Finish[T]
			if i == len(pieces.runs)-1 {
				then = finish
			}
			tile((*int)(unsafe.Pointer(&pieces.list[r.from])), r.to-r.from, &rows[0], a,
				(*T)(unsafe.Add(unsafe.Pointer(b), r.before*p.width*size)), ahead, c, ldc, have, cols, accumulate || i > 0,
				(*int)(unsafe.Pointer(then)))
		}
		if blocks == 1 {
			return
		}
		steps, height, rows, ahead = steps-n, height-have, rows[have:], ahead+gatherAhead
		c = (*T)(unsafe.Add(unsafe.Pointer(c), have*ldc*size))
		if finish != nil && finish.Residual != nil {
			finish.Residual = (*T)(unsafe.Add(unsafe.Pointer(finish.Residual), have*finish.Stride*size))
		}
		if finish != nil && finish.Bytes != nil {
			finish.Bytes = (*byte)(unsafe.Add(unsafe.Pointer(finish.Bytes), have*finish.Step))
		}
	}
}
