package cuda

import (
	"strings"
)

// hopperRows is how many rows of slots a tile has that Hopper's own instructions take.
const hopperRows = 128

// groupedHopper writes the product of all experts on the instructions of Hopper or Blackwell, if the copy engine can read the
// operands: x after a step gather, which puts the rows of the wave's slots side by side. ok is false if it cannot.
func (x *mixture) groupedHopper(name string, a factor, source string, b weightView, n, k int,
	body func(w int) (string, error)) (ok bool, err error) {
	cols := 8 // 16 bytes of a result of 16 bits
	if name != "hidden" {
		cols = 16 / x.acc.Size()
	}
	if !x.cfg.asynchronous() || !x.elem.Is16() || x.rows != hopperRows || b.expert == 0 || n%cols != 0 || k%8 != 0 ||
		min(n, k) < hopperLeast {
		return false, nil
	}
	fa := hopperFactor{factor: factor{dtype: x.elem, outer: k, k: 1}, rows: x.capacity, pitch: k, kInner: true}
	fb := hopperFactor{factor: factor{arg: b.arg, dtype: x.elem, outer: b.col, k: b.row, offset: b.offset}, rows: n,
		stride: [2]int{b.expert, 0}, kInner: b.row == 1}
	if !fb.readable(k) {
		return false, nil
	}
	at := x.at.h
	if a.arg < 0 && !x.gathered {
		return false, nil // nobody has cleared what lies behind the rows
	}
	if a.arg >= 0 {
		if a.k != 1 || x.dims.Hidden%8 != 0 || a.outer%8 != 0 || a.offset%8 != 0 {
			return false, nil
		}
		at = x.at.x
		x.gather(a, source, k)
	}
	t := hopperTile{bm: hopperRows, bn: 256, stages: 4, cm: 1, cn: 1, splits: 1}
	if waste := roundUp(n, 256) - n; waste*8 > n {
		t.bn, t.stages = 128, 6
	}
	each := batches{x.op.Experts, 1}
	mapA := x.field(Param{Kind: MapParam, Map: fa.tensorMap(k, t.bm, each, at)}, "TensorMap ", name+"_a")
	mapB := x.field(Param{Kind: MapParam, Map: fb.tensorMap(k, t.bn, each, 0)}, "TensorMap ", name+"_b")
	title := strings.ToUpper(name[:1]) + name[1:]
	p := &product{name: title + "Problem", batch: x.op.Experts, m: x.capacity, n: n, k: k, a: fa.factor, b: fb.factor,
		acc: x.acc, w: cols}
	text, err := body(p.w)
	if err != nil {
		return false, err
	}
	p.write(x.unit)
	x.writeBody(title, n, text)
	t.write(x.unit, title+"Tile", ctype(x.elem), &fa, &fb, each)
	x.printf("KERNEL(%s, %d, 1) {\n  typedef Listed<%s, %sTile, %d> Work;\n", name, hopperThreads, p.name, title, x.tiles)
	template, templates, shared := x.cfg.hopperTemplate(t)
	x.printf("  %s<%s, %sBody, %sTile>(%sBody{p}, &%s, &%s, Work{p.tiles + p.wave * %d, p.wave * %d}, (float "+
		"*)nullptr);\n}\n\n",
		template, p.name, title, title, title, mapA, mapB, x.tiles, x.capacity)
	grid := min(x.cfg.Chip.SMs, x.tiles*ceilDiv(n, t.bn))
	x.step(Step{Entry: name, Grid: [3]int{grid, 1, 1}, Block: hopperThreads, Shared: shared}, true)
	x.use(templates)
	x.fast = x.cfg.Precision != F32
	return true, nil
}

// gather writes the step that puts the rows of x of a wave's slots side by side; once.
func (x *mixture) gather(a factor, source string, width int) {
	if x.gathered {
		return
	}
	x.gathered = true
	x.printf("KERNEL(gather, 256, 1) {\n  gather_rows<Mixture, %d, %d, %d>(%s, %s, %s, p.order, p.starts, p.counts, p.wave);\n}\n\n",
		width, x.dims.Hidden, a.outer, x.scratch(ctype(x.elem), "x", x.at.x), x.scratch(ctype(x.elem), "h", x.at.h), source)
	x.step(Step{Entry: "gather", Grid: [3]int{ceilDiv(x.capacity, 8), 1, 1}, Block: 256}, true)
}
