package conv

import (
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/vec"
)

// A band is a part of the result: rows of the images, or a part of one row.
type band struct {
	image, images int
	y, rows       int
	x, cols       int
}

// band returns band number i, and the number of its first row of the result.
func (k *Plan[T]) band(i int) (b band, row int) {
	across, down := k.w.bands(), k.h.bands()
	b.x, b.cols = k.w.at(i % across)
	b.y, b.rows = k.h.at(i / across % down)
	b.image = i / across / down * k.batch
	b.images = min(k.batch, k.images-b.image)
	return b, (b.image*k.h.out+b.y)*k.w.out + b.x
}

// bandTask computes some panels of a band, which may be of several groups. Successive items share the band.
type bandTask[T gemm.Float] Plan[T]

func (t *bandTask[T]) Do(worker, item int) {
	k := (*Plan[T])(t)
	part, number := item%k.split, item/k.split
	b, row := k.band(number)
	all := k.shape.groups * k.shape.panels
	from, to := all*part/k.split, all*(part+1)/k.split
	first, end := k.compute(worker, number, &b, row, k.run.y[k.at(b.image, b.y, b.x):], from, to)
	if k.run.epilogue != nil {
		k.run.epilogue.Tile(worker, number, row, first, b.images*b.rows*b.cols, end-first)
	}
}

// compute makes panels from to to of band number id, whose first row of the result is row and goes to y. It returns the columns
// that they are, first to end.
func (k *Plan[T]) compute(worker, id int, b *band, row int, y []T, from, to int) (first, end int) {
	patches, group := k.patches(worker, id, b)
	for panel := from; panel < to; panel++ {
		g := panel / k.shape.panels
		at, col, cols, _ := k.shape.panel(g, panel%k.shape.panels)
		col += g * k.shape.out
		if panel == from {
			first = col
		}
		end = col + cols
		finish := k.run.finish.At(&k.workers[worker].finish, row, col)
		lines, pixels := 1, b.images*b.rows*b.cols
		if k.cfg.Line > 0 {
			lines, pixels = b.images*b.rows, b.cols
		}
		for line := range lines {
			c := y[k.at(line/b.rows, line%b.rows, 0)+col:]
			if patches == nil { // a sum of nothing
				for i := range pixels {
					clear(c[i*k.cfg.RowStride:][:cols])
				}
				if finish != nil {
					finish.Apply(&c[0], k.cfg.RowStride, pixels, cols)
				}
				continue
			}
			k.micro.Gather(&k.pieces, pixels, k.workers[worker].rows[line*pixels:], &patches[g*group], &k.run.packed[at],
				k.next(panel), &c[0], k.cfg.RowStride, cols, finish)
		}
	}
	return first, end
}

// next is the panel of filters that a worker most likely needs after one; nil if it is small, or in the cache already.
func (k *Plan[T]) next(panel int) *T {
	if panel++; panel >= k.shape.groups*k.shape.panels || k.shape.steps()*k.micro.NR*k.size < nextBytes {
		return nil
	}
	at, _, _, _ := k.shape.panel(panel/k.shape.panels, panel%k.shape.panels)
	return &k.run.packed[at]
}

// patches returns the memory in which the patches of a band lie, nil if they are empty, and how far apart those of one
// group are from the next one's. It sets the worker's table of where each begins.
func (k *Plan[T]) patches(number, id int, b *band) (patches []T, group int) {
	if k.pieces.Steps() == 0 {
		return nil, 0
	}
	w := &k.workers[number]
	fresh := w.band != id
	if w.band = id; fresh {
		k.place(w.rows, b)
	}
	if !k.copies {
		return k.run.x[k.cfg.X.Offset:], k.shape.ch * k.cfg.X.Stride[3]
	}
	scratch := k.run.scratch[number*k.room:][:k.room]
	if fresh {
		k.copyBand(scratch, b)
	}
	return scratch, k.shape.ch
}

// place lists where the patches of a band begin.
func (k *Plan[T]) place(rows []int, b *band) {
	image, line, pixel := k.copied(), k.h.outStep*k.line, k.w.outStep*k.pixel
	at := 0
	if x := &k.cfg.X; !k.copies {
		image, line, pixel = x.Stride[0], k.h.stride*x.Stride[1], k.w.stride*x.Stride[2]
		at = b.image*image + b.y*line + b.x*pixel - k.h.pad*x.Stride[1] - k.w.pad*x.Stride[2]
	}
	i := 0
	for n := range b.images {
		for y := range b.rows {
			for x := range b.cols {
				rows[i] = at + n*image + y*line + x*pixel
				i++
			}
		}
	}
	for ; i < len(rows); i++ {
		rows[i] = rows[0]
	}
}

// copyBand copies what a band reads, and zeros where that is outside of the image.
func (k *Plan[T]) copyBand(dst []T, b *band) {
	x := &k.cfg.X
	lines, columns := k.h.span(b.rows), k.w.span(b.cols)
	for n := range b.images {
		at := x.Offset + (b.image+n)*x.Stride[0]
		for slot := range lines {
			to := dst[n*k.copied()+slot*k.line:][:columns*k.pixel]
			if y := k.h.source(b.y, slot); y >= 0 && y < k.h.in && k.w.in > 0 {
				k.copyLine(to, k.run.x[at+y*x.Stride[1]:], b.x)
			} else {
				clear(to)
			}
		}
	}
}

// copyLine copies a line of the image from the band's column from on.
func (k *Plan[T]) copyLine(dst, src []T, from int) {
	x, n := &k.cfg.X, k.cfg.X.Shape.At(3)
	if k.w.dense() {
		for slot := 0; len(dst) > 0; slot++ {
			if at := k.w.source(from, slot); at >= 0 && at < k.w.in {
				vec.Gather(dst[:n], src[at*x.Stride[2]:], x.Stride[3])
			} else {
				clear(dst[:n])
			}
			dst = dst[k.pixel:]
		}
		return
	}
	at := k.w.source(from, 0)
	slots := len(dst) / k.pixel
	before := min(max(-at, 0), slots)
	inside := min(max(k.w.in-at, before), slots)
	clear(dst[:before*k.pixel])
	if before < inside {
		src = src[(at+before)*x.Stride[2]:]
		switch {
		case x.Stride[3] == 1 && x.Stride[2] == k.pixel:
			copy(dst[before*k.pixel:inside*k.pixel], src)
		case x.Stride[2] == 1: // channels are planes
			vec.Of[T]().Transpose(dst[before*k.pixel:], k.pixel, src, x.Stride[3], n, inside-before)
		default:
			for i := range inside - before {
				vec.Gather(dst[(before+i)*k.pixel:][:n], src[i*x.Stride[2]:], x.Stride[3])
			}
		}
	}
	clear(dst[inside*k.pixel:])
}
