package fpga

import (
	"fusec/fpga/isa"
	"fusec/graph"
)

// patches are the rows of a convolution's first operand: the pixels of a window for each pixel of the result, some words
// of each. They are in no memory: LOAD makes their addresses.
type patches struct {
	*window
	image       int64 // the address of the first pixel
	pixel       int   // words
	word, words int   // that are read of each pixel: the first, and how many
	apart       bool  // the patch is sorted by words of a pixel, not by pixels
	fill        int64 // the address of words that stand for pixels outside the image
}

// rows is the patches as a matrix.
func (p *patches) rows(wordBytes int) rows {
	return rows{n: p.pixels(), cols: p.taps() * p.words * wordBytes, patches: p}
}

// valid is the range of k in which 0 ≤ at+k·step < size, k < n.
func valid(at, step, size, n int) (from, to int) {
	for from < n && at+from*step < 0 {
		from++
	}
	for to = from; to < n && at+to*step < size; to++ {
	}
	return from, to
}

// patches loads words first to first+words of n patches, from pixel from of the result on, to panels of X. Words of a
// patch are those of its pixels, row by row of the window.
func (a *assembler) patches(p *patches, from, n, first, words, base, panel int) {
	for i := 0; i < n; {
		at := from + i
		x, y, image := at%p.ow, at/p.ow%p.oh, at/(p.ow*p.oh)
		run := min(n-i, p.ow-x)
		l := patchLoad{a: a, p: p, first: first, end: first + words, base: base, panel: panel}
		l.rowOf(i, run, image, y, x)
		i += run
	}
}

// patchLoad loads the patches of pixels in one row of an image.
type patchLoad struct {
	a           *assembler
	p           *patches
	first, end  int // words of each patch
	base, panel int
	lane, n     int   // pixels, counted from the first of the block
	addr        int64 // of the first pixel's upper left corner, which may lie outside
}

// rowOf loads n patches of row y of an image, from pixel x on.
func (l patchLoad) rowOf(lane, n, image, y, x int) {
	p := l.p
	wb := int64(l.a.cfg.WordBytes)
	top := y*p.strideH - p.top
	above, below := valid(top, p.dilateH, p.h, p.kh)
	segment := p.kw * p.words
	l.lane, l.n = lane, n
	if p.apart {
		l.fillRows(0, above)
		l.fillRows(below, p.kh)
	} else {
		l.fill(0, above, 0, segment)
		l.fill(below, p.kh, 0, segment)
	}
	if above >= below {
		return
	}
	for k := 0; k < n; {
		left := (x+k)*p.strideW - p.left
		before, behind := valid(left, p.dilateW, p.w, p.kw)
		same := k + 1
		for same < n {
			b, e := valid((x+same)*p.strideW-p.left, p.dilateW, p.w, p.kw)
			if b != before || e != behind {
				break
			}
			same++
		}
		l.lane, l.n = lane+k, same-k
		l.addr = p.image + int64(((image*p.h+top)*p.w+left)*p.pixel+p.word)*wb
		if p.apart {
			l.columns(above, below, before, behind)
			k = same
			continue
		}
		l.fill(above, below, 0, before*p.words)
		l.fill(above, below, behind*p.words, segment)
		if p.dilateW == 1 && p.words == p.pixel {
			l.load(above, below, before*p.words, behind*p.words, int64(before*p.pixel)*wb)
		} else {
			for q := before; q < behind; q++ {
				l.load(above, below, q*p.words, (q+1)*p.words, int64(q*p.dilateW*p.pixel)*wb)
			}
		}
		k = same
	}
}

// load loads words lo to hi of rows from to to of the window. At is where the first of them lies in the first row, from addr.
func (l patchLoad) load(from, to, lo, hi int, at int64) {
	p := l.p
	wb := l.a.cfg.WordBytes
	pitch := p.dilateH * p.w * p.pixel * wb
	l.segments(from, to, lo, hi, func(row, skip int) isa.Load {
		return isa.Load{Addr: uint32(l.addr + at + int64(row*pitch+skip*wb)), Stride: uint32(p.strideW * p.pixel * wb),
			TapStride: uint32(pitch)}
	})
}

// fill loads what stands for pixels outside the image.
func (l patchLoad) fill(from, to, lo, hi int) {
	l.segments(from, to, lo, hi, func(int, int) isa.Load { return isa.Load{Addr: uint32(l.p.fill)} })
}

// fillRows loads what stands for rows of the window outside the image, of a patch whose words are apart.
func (l patchLoad) fillRows(from, to int) {
	if from < to {
		l.emit(from*l.p.kw, isa.Load{Addr: uint32(l.p.fill), Words: uint16((to - from) * l.p.kw), Taps: uint8(l.p.words),
			TapStep: uint16(l.p.taps())})
	}
}

// columns loads rows from to to of the window, column by column, of a patch whose words are apart: columns before to behind
// lie inside the image.
func (l patchLoad) columns(from, to, before, behind int) {
	p, wb := l.p, l.a.cfg.WordBytes
	for q := range p.kw {
		d := isa.Load{Addr: uint32(p.fill), Words: uint16(p.words), WordStep: uint8(p.taps()), Taps: uint8(to - from),
			TapStep: uint16(p.kw)}
		if q >= before && q < behind {
			pitch := p.dilateH * p.w * p.pixel * wb
			d.Addr, d.Stride = uint32(l.addr+int64(from*pitch+q*p.dilateW*p.pixel*wb)), uint32(p.strideW*p.pixel*wb)
			d.TapStride = uint32(pitch)
		}
		l.emit(from*p.kw+q, d)
	}
}

// emit emits a Load of all pixels to a word of their patches.
func (l patchLoad) emit(word int, d isa.Load) {
	lanes := l.a.cfg.Rows
	d.Space, d.Lane, d.Rows = isa.SpaceX, uint8(l.lane%lanes), uint16(l.n)
	d.Base, d.Panel = uint16(l.base+l.lane/lanes*l.panel+word), uint16(l.panel)
	if d.Taps == 1 {
		d.Taps, d.TapStep, d.TapStride = 0, 0, 0
	}
	if d.Words == 1 {
		d.WordStep = 0
	}
	if l.n == 1 {
		d.Stride = 0
	}
	l.a.emit(&d)
}

// segments emits the Loads of words lo to hi of rows from to to of the window, as far as they are among those that are
// wanted: as many rows as are wanted alike are one Load.
func (l patchLoad) segments(from, to, lo, hi int, source func(row, skip int) isa.Load) {
	segment := l.p.kw * l.p.words
	part := func(row int) (int, int) {
		return max(lo, l.first-row*segment), min(hi, l.end-row*segment)
	}
	for row := from; row < to; {
		b, e := part(row)
		n := 1
		for ; row+n < to && n < 255; n++ {
			if nb, ne := part(row + n); nb != b || ne != e {
				break
			}
		}
		if b < e {
			d := source(row, b-lo)
			d.Words, d.Taps, d.TapStep = uint16(e-b), uint8(n), uint16(segment)
			l.emit(row*segment+b-l.first, d)
		}
		row += n
	}
}

// part is some columns of a matrix in external memory, so many bytes each.
func (r rows) part(first, n, bytes int) rows {
	r.addr += int64(first * bytes)
	r.cols = n
	return r
}

// patchesOf are the patches that a task reads of some words of each pixel.
func (a *assembler) patchesOf(t *task, word, words int) *patches {
	x := a.in(t.x)
	p := &patches{window: t.window, image: x.addr, pixel: int(x.step) / a.cfg.WordBytes, word: word, words: words}
	if t.codes.fill != nil {
		p.fill = t.codes.fill.addr
	}
	return p
}

// conv emits a convolution: a product for each of its units.
func (a *assembler) conv(t *task) {
	c, w := a.cfg, t.window
	out := a.out(t)
	to := a.in(t.out)
	stride := int64(t.codes.weights.size / t.codes.weights.rows)
	if w.apart(c) {
		a.grouped(t, out)
		return
	}
	for _, u := range w.units(c.Cols, c.WordBytes) {
		p := product{to: to.part(u.first, u.n, t.out.v.bytes()), out: out,
			records: &blob{addr: t.codes.records.addr + int64(u.first*isa.RecordBytes), size: up(u.n, c.Cols) * isa.RecordBytes}}
		x := a.patchesOf(t, u.word, u.words)
		k := w.taps() * u.words * c.WordBytes
		switch {
		case x.words == x.pixel && w.whole():
			p.x = rows{addr: x.image, step: int64(k), n: w.images, cols: k}
		case x.words == x.pixel && w.point():
			p.x = rows{addr: x.image, step: int64(k), n: w.pixels(), cols: k}
		default:
			p.x = x.rows(c.WordBytes)
		}
		p.w = rows{addr: t.codes.weights.addr + int64(u.first)*stride, step: stride, n: u.n, cols: k}
		if t.res != nil {
			r := a.in(*t.res).part(u.first, u.n, 1)
			p.residual = &r
		}
		a.product(p)
	}
}

// grouped emits a convolution whose patches are stored word by word of a pixel: some units at a time, which share the
// Loads of patches and the Stores of results.
func (a *assembler) grouped(t *task, out isa.Out) {
	c, w, units := a.cfg, t.window, t.window.units(a.cfg.Cols, a.cfg.WordBytes)
	bytes := t.out.v.bytes()
	weights := t.codes.weights
	for len(units) > 0 {
		u := units[0]
		tiles, words := ceil(u.n, c.Cols), u.words*w.taps()
		width := tiles * c.Cols * bytes / c.WordBytes // words of a unit's results
		n := 1
		for n < len(units) && units[n].words == u.words {
			span := units[n].word + units[n].words - u.word
			if span > 255 || 6*span*w.taps() > c.XWords || 2*(n+1)*tiles*words > c.WWords || 8*(n+1)*width > c.YWords ||
				2*(n+1)*tiles*c.Cols > c.Params {
				break
			}
			n++
		}
		last := units[n-1]
		cols := last.first + last.n - u.first
		p := a.patchesOf(t, u.word, last.word+last.words-u.word)
		p.apart = true
		patch := p.words * w.taps()
		rows := min(n*tiles*c.Cols, weights.rows-u.first)
		at := a.take(isa.SpaceW, n*tiles*words)
		a.load(isa.SpaceW, a.constant(weights, weights.rows, words*c.WordBytes), u.first, rows, 0, words, at, words)
		records := a.records(t.codes.records, u.first, rows)
		to := a.in(t.out).part(u.first, cols, bytes)
		factor := c.Cols * tiles / c.WordBytes // words of a unit's residuals
		panels := ceil(w.pixels(), c.Rows)
		block := max(1, min(panels, 255, c.XWords/(2*patch), c.YWords/(4*n*width)))
		for from := 0; from < panels; from += block {
			count := min(block, panels-from)
			row := from * c.Rows
			rowsN := min(count*c.Rows, w.pixels()-row)
			x := a.take(isa.SpaceX, count*patch)
			a.patches(p, row, rowsN, 0, patch, x, patch)
			o := out
			if t.res != nil {
				r := a.in(*t.res).part(u.first, cols, 1)
				o.Res, o.ResPanel = uint16(a.take(isa.SpaceY, count*n*factor)), uint16(n*factor)
				a.load(isa.SpaceY, r, row, rowsN, 0, a.words(cols), int(o.Res), n*factor)
			}
			o.Base, o.Panel = uint16(a.take(isa.SpaceY, count*n*width)), uint16(n*width)
			base := int(o.Base)
			for i, v := range units[:n] {
				g := isa.Gemm{Out: o, X: uint16(x + (v.word-u.word)*w.taps()), XPanel: uint16(patch), W: uint16(at + i*tiles*words),
					WPanel: uint16(words), Words: uint16(words), Panels: uint8(count), Tiles: uint8(ceil(v.n, c.Cols))}
				g.Base, g.Res, g.Param = o.Base+uint16(i*width), o.Res+uint16(i*factor), uint16(records+i*tiles*c.Cols)
				a.emit(&g)
			}
			a.store(to, row, rowsN, 0, a.words(cols*bytes), base, n*width)
		}
		units = units[n:]
	}
}

// maximum emits the maximum of each window: of two pixels it is the second plus what the first is more than it, if it is
// more. The difference of two numbers of 8 bits, at least 0, has 8 bits again when its zero is −128.
func (a *assembler) maximum(t *task) {
	c, w := a.cfg, t.window
	x, to := a.in(t.x), a.in(t.out)
	pixel := int(x.step) / c.WordBytes
	words := min(pixel, max(1, min(c.XWords/(2*w.taps()), c.YWords/4)))
	records := a.records(t.codes.records, 0, t.codes.records.count())
	panels := ceil(w.pixels(), c.Rows)
	for word := 0; word < pixel; word += words {
		n := min(words, pixel-word)
		p := a.patchesOf(t, word, n)
		step := w.taps() * n
		block := max(1, min(panels, 32, c.XWords/(2*step), c.YWords/(4*n)))
		for from := 0; from < panels; from += block {
			count := min(block, panels-from)
			row := from * c.Rows
			rowsN := min(count*c.Rows, w.pixels()-row)
			at := a.take(isa.SpaceX, count*step)
			a.patches(p, row, rowsN, 0, step, at, step)
			// vector computes from tap k, and from the block of results res if there is one.
			vector := func(k, record, res int, out isa.Out) int {
				out.Base, out.Panel = uint16(a.take(isa.SpaceY, count*n)), uint16(n)
				out.Param = uint16(records + record)
				if res >= 0 {
					out.Residual, out.Res, out.ResPanel, out.ResMul = true, uint16(res), uint16(n), 4096
				}
				a.emit(&isa.Vector{Out: out, OneParam: true, X: uint16(at + k*n), XPanel: uint16(step), Words: uint16(n),
					Panels: uint8(count), Kind: isa.VectorAffine})
				return int(out.Base)
			}
			most := vector(0, recordSame, -1, isa.Out{})
			for k := 1; k < w.taps(); k++ {
				more := vector(k, recordMinus, most, isa.Out{ReLU: true, Zero: -128})
				most = vector(k, recordPlus, more, isa.Out{})
			}
			a.store(to.part(word*c.WordBytes, n*c.WordBytes, 1), row, rowsN, 0, n, most, n)
		}
	}
}

// The records of a maximum.
const (
	recordSame  = iota // the number itself
	recordMinus        // its negative
	recordPlus         // plus 128
	maxRecords
)

// quantiseMax fills a maximum's codes: its results have the quantisation of its operand.
func (t *task) quantiseMax() {
	t.out.v.quant = t.x.v.quant
	t.codes.records.put([]isa.Record{recordOf(256, 0), recordOf(-256, 0), recordOf(256, 128*256)})
	t.codes.fill.data = repeated(-128, t.codes.fill.size)
}

// repeated is a byte, n times.
func repeated(b int8, n int) []byte {
	list := make([]byte, n)
	for i := range list {
		list[i] = byte(b)
	}
	return list
}

// quantiseConv fills the weights and records of a convolution. Words of patches hold pixels' channels, some of which
// belong to other groups, and their weights are zero, like those of what is behind a pixel's last channel.
func (t *task) quantiseConv(bound []*graph.Tensor, config isa.Config, chain func(int) (float64, float64)) error {
	w, x := t.window, t.x.v.quant
	at, err := t.filters(bound)
	if err != nil {
		return err
	}
	c, o := w.c/w.groups, w.o/w.groups
	units := w.units(config.Cols, config.WordBytes)
	of := 0
	apart := w.apart(config)
	step, sum := t.codes.weights.weights(func(n, k int) float64 {
		for n >= units[of].first+units[of].n {
			of++
		}
		u := units[of]
		if k >= w.taps()*u.words*config.WordBytes {
			return 0
		}
		tap, channel := w.place(config.WordBytes, apart, u, k)
		if channel -= n / o * c; channel < 0 || channel >= c {
			return 0
		}
		return at(n, channel, tap/w.kw, tap%w.kw)
	}, w.o, t.codes.weights.size/t.codes.weights.rows)
	t.scale(w.o, func(c int) (float64, float64) {
		f, b := chain(c)
		f *= x.step * step[c]
		return f, b - f*float64(x.zero)*sum[c]
	})
	if f := t.codes.fill; f != nil {
		f.data = repeated(int8(x.zero), f.size)
	}
	return nil
}
