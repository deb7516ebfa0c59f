package fpga

import (
	"fusec/fpga/isa"
)

// vector emits a task that works row by row: an affine map, a product of elements or a norm.
func (a *assembler) vector(t *task) {
	c := a.cfg
	x, to := a.in(t.x), a.in(t.out)
	out := a.out(t)
	words, bytes := a.words(t.x.cols), t.out.v.bytes()
	kind, _ := t.norm()
	if t.kind == taskMul {
		kind = isa.VectorMul
	}
	var second *rows
	if t.kind == taskMul {
		r := a.in(t.y)
		second = &r
	} else if t.res != nil {
		r := a.in(*t.res)
		second = &r
	}
	all := ceil(t.x.rows, c.Rows)
	block := min(all, 32, c.XWords/(3*words), c.YWords/(4*words*bytes))
	block = max(1, block)
	one := t.codes.records.count() <= max(1, c.WordBytes/isa.RecordBytes)
	out.Param = uint16(a.records(t.codes.records, 0, t.codes.records.count()))
	for from := 0; from < all; from += block {
		n := min(block, all-from)
		row := from * c.Rows
		rowsN := min(n*c.Rows, t.x.rows-row)
		at := a.take(isa.SpaceX, n*words)
		a.load(isa.SpaceX, x, row, rowsN, 0, words, at, words)
		if second != nil {
			out.Res, out.ResPanel = uint16(a.take(isa.SpaceY, n*words)), uint16(words)
			a.load(isa.SpaceY, *second, row, rowsN, 0, words, int(out.Res), words)
		}
		out.Base, out.Panel = uint16(a.take(isa.SpaceY, n*words*bytes)), uint16(words*bytes)
		v := &isa.Vector{Out: out, OneParam: one, X: uint16(at), XPanel: uint16(words), Words: uint16(words),
			Panels: uint8(n), Kind: kind}
		if t.kind == taskNorm {
			v.Count, v.Eps = uint16(t.x.cols), t.codes.eps
		}
		a.emit(v)
		a.store(to, row, rowsN, 0, a.words(t.x.cols*bytes), int(out.Base), int(out.Panel))
	}
}
