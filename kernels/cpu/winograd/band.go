package winograd

import "fusec/kernels/cpu/vec"

// A band is a part of the tiles.
type band struct {
	image, images int
	y, rows       int
	x, cols       int
}

func (b *band) tiles() int { return b.images * b.rows * b.cols }

func (k *Plan) band(i int) (b band) {
	part := func(i int, a *axis) (from, n int) {
		from = i * a.band
		return from, min(a.band, a.tiles-from)
	}
	across, down := k.width.bands(), k.height.bands()
	b.x, b.cols = part(i%across, &k.width)
	b.y, b.rows = part(i/across%down, &k.height)
	b.image = i / across / down * k.batch
	b.images = min(k.batch, k.images-b.image)
	return b
}

// each calls f for each tile of a band with its number, its image, and the first pixel of the result.
func (k *Plan) each(b *band, f func(i, image, y, x int)) {
	i := 0
	for n := range b.images {
		for y := range b.rows {
			for x := range b.cols {
				f(i, b.image+n, (b.y+y)*k.tile, (b.x+x)*k.tile)
				i++
			}
		}
	}
}

// bandTask computes some panels of a band. Successive items share the band.
type bandTask Plan

func (t *bandTask) Do(number, item int) {
	k := (*Plan)(t)
	part, id := item%k.split, item/k.split
	b := k.band(id)
	w, f := &k.workers[number], k.cfg.Filters
	scratch := k.scratch[number*k.room:][:k.room]
	if w.band != id {
		w.band = id
		k.transform(scratch, &b)
		for i := range w.rows {
			w.rows[i] = 0
			if i < b.tiles() {
				w.rows[i] = i * k.pixel
			}
		}
	}
	from, to := f.panels()*part/k.split, f.panels()*(part+1)/k.split
	for panel := from; panel < to; panel++ {
		k.multiply(scratch, panel, b.tiles(), w.rows)
		k.transformBack(scratch, panel, &b)
	}
	if k.epilogue != nil {
		k.finish(number, id, &b, from*f.micro.NR, min(to*f.micro.NR, f.out))
	}
}

// transform makes v of a band.
func (k *Plan) transform(scratch []float32, b *band) {
	x, patch := &k.cfg.X, scratch[k.patch:k.out]
	row, col := x.Stride[1], x.Stride[2]
	input := k.kern.input[k.tile/2-1]
	vectors := (k.cfg.Filters.channels + k.kern.lanes - 1) / k.kern.lanes
	if vectors == 0 {
		return
	}
	whole := x.Stride[3] == 1 && vectors*k.kern.lanes == x.Shape.At(3)
	k.each(b, func(i, image, y, x0 int) {
		y, x0 = y-k.height.pad, x0-k.width.pad
		v := &scratch[i*k.pixel]
		if whole && y >= 0 && x0 >= 0 && y+k.points <= k.height.in && x0+k.points <= k.width.in {
			input(vectors, &k.x[x.Offset+image*x.Stride[0]+y*row+x0*col], row, col, v, k.vPoint)
			return
		}
		k.copyPatch(patch, x.Offset+image*x.Stride[0], y, x0)
		input(vectors, &patch[0], k.points*k.pixel, k.pixel, v, k.vPoint)
	})
}

// copyPatch copies a patch of the image that begins at element from of x, with zeros where there are no pixels.
func (k *Plan) copyPatch(dst []float32, from, y, x int) {
	l, n := &k.cfg.X, k.cfg.X.Shape.At(3)
	for r := range k.points {
		for c := range k.points {
			to := dst[(r*k.points+c)*k.pixel:][:k.pixel]
			if y+r < 0 || y+r >= k.height.in || x+c < 0 || x+c >= k.width.in {
				clear(to)
				continue
			}
			vec.Gather(to[:n], k.x[from+(y+r)*l.Stride[1]+(x+c)*l.Stride[2]:], l.Stride[3])
			clear(to[n:])
		}
	}
}

// multiply makes m of a panel, of so many tiles.
func (k *Plan) multiply(scratch []float32, panel, tiles int, rows []int) {
	f := k.cfg.Filters
	_, width := f.panel(panel)
	m := scratch[f.points()*k.vPoint:]
	u, step := f.data[f.at(panel):], f.channels*width
	if step == 0 { // a sum of nothing
		clear(m[:f.points()*k.mPoint])
		return
	}
	for p := range f.points() {
		var next *float32
		if 4*step >= nextBytes && (p+1)*step < len(u) {
			next = &u[(p+1)*step]
		}
		f.micro.Gather(&k.pieces, tiles, rows, &scratch[p*k.vPoint], &u[p*step], next, &m[p*k.mPoint], width, width, nil)
	}
}

// transformBack writes the columns of a panel.
func (k *Plan) transformBack(scratch []float32, panel int, b *band) {
	f, ldc := k.cfg.Filters, k.cfg.RowStride
	cols, width := f.panel(panel)
	m, out := scratch[f.points()*k.vPoint:], scratch[k.out:]
	output := k.kern.output[k.tile/2-1]
	k.each(b, func(i, image, y, x int) {
		to := k.y[((image*k.height.out+y)*k.width.out+x)*ldc+panel*f.micro.NR:]
		rows, pixels := min(k.tile, k.height.out-y), min(k.tile, k.width.out-x)
		if rows == k.tile && pixels == k.tile && cols%k.kern.lanes == 0 {
			output(cols/k.kern.lanes, &m[i*width], k.mPoint, &to[0], k.width.out*ldc, ldc)
			return
		}
		output(width/k.kern.lanes, &m[i*width], k.mPoint, &out[0], k.tile*width, width)
		for r := range rows {
			for c := range pixels {
				copy(to[(r*k.width.out+c)*ldc:][:cols], out[(r*k.tile+c)*width:])
			}
		}
	})
}

// finish runs the epilogue over columns of a band, in blocks of successive rows of the result.
func (k *Plan) finish(worker, id int, b *band, from, to int) {
	oh, ow := k.height.out, k.width.out
	top, lines := b.y*k.tile, min(b.rows*k.tile, oh-b.y*k.tile)
	left, pixels := b.x*k.tile, min(b.cols*k.tile, ow-b.x*k.tile)
	if k.segments == 1 {
		k.epilogue.Tile(worker, id, (b.image*oh+top)*ow, from, b.images*lines*ow, to-from)
		return
	}
	for i := range b.images * lines {
		row := ((b.image+i/lines)*oh+top+i%lines)*ow + left
		k.epilogue.Tile(worker, id*k.segments+i, row, from, pixels, to-from)
	}
}
