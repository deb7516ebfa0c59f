package fpgatest

import (
	"slices"

	"fusec/fpga/isa"
)

// upTo is a number from 1 to n, small ones more often.
func (g *generator) upTo(n int) int {
	if n > 8 && g.IntN(2) == 0 {
		n = 8
	}
	return 1 + g.IntN(max(n, 1))
}

// some is true once in n times.
func (g *generator) some(n int) bool { return g.IntN(n) == 0 }

// place is where n words may begin among size, often at either end.
func (g *generator) place(size, n int) uint16 {
	room := size - n
	switch {
	case room <= 0 || g.some(4):
		return 0
	case g.some(3):
		return uint16(min(room, 1<<16-1))
	}
	return uint16(g.IntN(min(room, 1<<16-1) + 1))
}

// panels places n panels of words among size: the start of the first, and the step to the next. Panels that are only
// read may overlap.
func (g *generator) panels(size, n, words int, apart bool) (base, step uint16) {
	most := (size - words) / max(n-1, 1)
	low := 0
	if apart {
		low = words
	}
	if n == 1 || most < low {
		return g.place(size, words), uint16(g.IntN(1 << 16))
	}
	s := low
	if most > low && g.some(2) {
		s += g.IntN(min(most-low, 3*words) + 1)
	}
	return g.place(size, (n-1)*s+words), uint16(s)
}

// source is an address from which n bytes can be loaded.
func (g *generator) source(n int) int {
	w := g.cfg.WordBytes
	return g.data.at + g.IntN((g.data.end-g.data.at-n)/w+1)*w
}

// list draws a list and an entry of it to begin at.
func (g *generator) list() (list uint8, start uint16) {
	return uint8(g.IntN(g.cfg.Experts)), uint16(g.IntN(3) * g.IntN(g.cfg.ListLen))
}

func (g *generator) load() isa.Command {
	c := g.cfg
	d := &isa.Load{Space: isa.Space(g.IntN(5))}
	switch d.Space {
	case isa.SpaceParams:
		n := min(g.upTo(c.Params), 512) * isa.RecordBytes / c.WordBytes
		if n == 0 {
			return nil
		}
		d.Rows, d.Words, d.Base = 1, uint16(n), g.place(c.Params, (n*c.WordBytes+isa.RecordBytes-1)/isa.RecordBytes)
		if c.WordBytes > isa.RecordBytes {
			d.Base &^= 1
		}
		at := g.IntN((g.records.end-g.records.at-n*c.WordBytes)/max(isa.RecordBytes, c.WordBytes) + 1)
		d.Addr = uint32(g.records.at + at*max(isa.RecordBytes, c.WordBytes))
		return d
	case isa.SpaceTables:
		if c.Tables == 0 {
			return nil
		}
		d.Rows, d.Words, d.Base, d.Addr = 1, uint16(256/c.WordBytes), uint16(g.IntN(c.Tables)), uint32(g.source(256))
		return d
	}
	lanes, words := c.Lanes(d.Space), g.upTo(min(c.Words(d.Space), 256))
	panels := g.upTo(max(1, min(c.Words(d.Space)/words, 6)))
	rows := max(1, panels*lanes-g.IntN(2)*g.IntN(lanes))
	d.Rows, d.Words = uint16(rows), uint16(words)
	d.Base, d.Panel = g.panels(c.Words(d.Space), panels, words, true)
	bytes := words * c.WordBytes
	if c.Patches && g.some(2) {
		return g.patches(d)
	}
	from := rows
	if c.Router() && !g.some(3) {
		d.List, d.Start = g.list()
		d.Gather, d.Skip = !g.some(3), g.some(2)
		if d.Gather {
			from = c.Tokens
		}
	}
	stride := 0
	if from > 1 {
		stride = g.IntN(min((g.data.end-g.data.at-bytes)/(from-1)/c.WordBytes, 2*words) + 1)
	}
	d.Stride = uint32(stride * c.WordBytes)
	d.Addr = uint32(g.source(bytes + (from-1)*stride*c.WordBytes))
	return d
}

// patches makes a Load's rows begin in any lane, and gives them several segments.
func (g *generator) patches(d *isa.Load) isa.Command {
	c := g.cfg
	lanes, words := c.Lanes(d.Space), c.Words(d.Space)
	d.Lane = uint8(g.IntN(lanes))
	d.Taps = uint8(g.IntN(min(6, words) + 1))
	d.Words = uint16(g.upTo(min(24, words/d.Segments())))
	most := words / (int(d.Words) * d.Segments())
	d.WordStep = uint8(g.IntN(min(most, 9) + 1))
	if d.Taps > 1 {
		// Segments one behind the other, between one another's words, or apart.
		rest := words - (int(d.Words)-1)*max(1, int(d.WordStep)) - 1
		d.TapStep = uint16(g.IntN(rest/(int(d.Taps)-1) + 1))
		if step := int(d.Words) * max(1, int(d.WordStep)); step*d.Segments() <= words && g.some(2) {
			d.TapStep = uint16(step)
		}
		d.TapStride = uint32(g.IntN(12) * c.WordBytes)
	}
	panels := g.upTo(max(1, min(words/d.Span(), 4)))
	d.Rows = uint16(max(1, panels*lanes-int(d.Lane)-g.IntN(2)*g.IntN(lanes)))
	d.Base, d.Panel = g.panels(words, d.Panels(lanes), d.Span(), true)
	bytes := int(d.Words)*c.WordBytes + (d.Segments()-1)*int(d.TapStride)
	if room := g.data.end - g.data.at - bytes; room < 0 {
		return nil
	} else if d.Rows > 1 {
		d.Stride = uint32(g.IntN(min(room/(int(d.Rows)-1)/c.WordBytes, 40)+1) * c.WordBytes)
	}
	d.Addr = uint32(g.source(bytes + (int(d.Rows)-1)*int(d.Stride)))
	return d
}

func (g *generator) store() isa.Command {
	c := g.cfg
	d := &isa.Store{Space: isa.Space(g.IntN(2))}
	words := g.upTo(min(c.Words(d.Space), 64))
	panels := g.upTo(max(1, min(c.Words(d.Space)/words, 4)))
	rows := max(1, panels*c.Rows-g.IntN(2)*g.IntN(c.Rows))
	to := rows
	if c.Router() && g.some(2) {
		d.Scatter, d.TopK = true, uint8(c.TopK)
		d.List, d.Start = g.list()
		to = c.Tokens * c.TopK
	}
	size := g.out.end - g.out.at
	if most := size / to / c.WordBytes; words > most {
		if words = most; words == 0 {
			return nil
		}
	}
	stride := words + g.IntN(max(1, min(size/to/c.WordBytes-words+1, 4)))
	room := size/c.WordBytes - to*stride
	d.Rows, d.Words, d.Stride = uint16(rows), uint16(words), uint32(stride*c.WordBytes)
	d.Addr = uint32(g.out.at + g.IntN(room+1)*c.WordBytes)
	d.Base, d.Panel = g.panels(c.Words(d.Space), panels, words, false)
	return d
}

func (g *generator) stamp() isa.Command {
	size := g.p.stamps.end - g.p.stamps.at
	return &isa.Stamp{Addr: uint32(g.p.stamps.at + 16*g.stamped%size)}
}

// out draws where results go: n panels of rows of cols elements. records is how many records there have to be.
func (g *generator) outOf(n, cols, records int, residual bool) isa.Out {
	c := g.cfg
	o := isa.Out{Residual: residual, ReLU: g.some(3), Wide: g.some(3), Space: isa.Space(g.IntN(3)),
		ResMul: uint16(g.Uint32()),
		Zero:   int8(g.Uint32()), Param: g.place(c.Params, records)}
	if g.some(3) {
		o.Zero = [...]int8{-128, 127, 0}[g.IntN(3)]
	}
	if c.Rows != c.Cols {
		o.Space %= isa.SpaceW
	}
	words := cols / c.WordBytes
	if !o.Wide {
		o.Table = uint8(g.IntN(c.Tables + 1))
	} else {
		words *= 2
	}
	o.Base, o.Panel = g.panels(c.Words(o.Space), n, words, true)
	if o.Space == isa.SpaceY && !o.Wide && g.some(2) {
		o.Res, o.ResPanel = o.Base, o.Panel
	} else {
		o.Res, o.ResPanel = g.panels(c.YWords, n, cols/c.WordBytes, false)
	}
	return o
}

func (g *generator) gemm() isa.Command { return g.product(g.some(5) || g.large) }

// product is a Gemm; a single one is of one panel and tile, so that it can have Hold and More.
func (g *generator) product(single bool) *isa.Gemm {
	c := g.cfg
	d := &isa.Gemm{}
	words := g.upTo(min(c.XWords, c.WWords, 128))
	panels := g.upTo(min(16, c.Params/c.Rows))
	tiles := g.upTo(min(16, c.Params/c.Cols, c.YWords*c.WordBytes/c.Cols))
	work := words * c.WordBytes * c.Rows * c.Cols
	panels = max(1, min(panels, g.MaxWork/work))
	tiles = max(1, min(tiles, g.MaxWork/work/panels))
	if single {
		panels, tiles, d.Hold = 1, 1, g.some(2)
		if g.large {
			words, d.Hold = min(c.XWords, c.WWords, 128), !g.some(4)
		}
	}
	if c.Router() && !single && g.some(3) {
		d.Listed, d.List = true, uint8(g.IntN(c.Experts))
		d.Start = uint8(g.IntN(2) * g.IntN(4))
	}
	records := tiles * c.Cols
	rowParam := g.some(3)
	if rowParam {
		records = panels * c.Rows
	}
	d.Out = g.outOf(panels, tiles*c.Cols, records, g.some(2))
	d.RowParam = rowParam
	d.Words, d.Panels, d.Tiles = uint16(words), uint8(panels), uint8(tiles)
	d.X, d.XPanel = g.panels(c.XWords, panels, words, false)
	d.W, d.WPanel = g.panels(c.WWords, tiles, words, false)
	return d
}

// more continues a Gemm that has Hold.
func (g *generator) more() isa.Command {
	d := g.product(true)
	d.More = true
	return d
}

func (g *generator) attention() isa.Command {
	c := g.cfg
	d := &isa.Attention{First: true, Last: !g.some(4), Wide: g.some(2), Causal: g.some(2),
		ScoreMul: uint16(1 + g.IntN(32767)),
		OutMul:   uint16(g.Uint32()), OutSh: uint8(17 + g.IntN(14)), Space: isa.Space(g.IntN(3))}
	unit := max(1, c.Cols/c.WordBytes)
	d.Dim, d.QPanels = uint8(unit*g.upTo(c.HeadDim/c.Cols)), uint8(g.upTo(c.QPanels))
	if g.open != nil && !g.some(6) {
		d.First, d.Dim, d.QPanels = false, g.open.Dim, g.open.QPanels
	}
	dim := int(d.Dim) * c.WordBytes
	// A dot product is about 2^13·√dim; scores take 20 bits: from those that saturate to those that are all alike.
	d.ScoreSh = uint8(8 + g.IntN(12))
	keys := 1 + g.IntN(4*c.KeyBlock)
	work := int(d.QPanels) * c.Rows * dim
	keys = max(1, min(keys, 4*g.MaxWork/work, c.WWords/int(d.Dim)*c.Cols, c.WWords*c.WordBytes))
	if g.some(4) {
		keys = g.upTo(min(keys, c.KeyBlock))
	}
	d.Keys = uint16(keys)
	d.Diagonal = int32(g.IntN(keys+int(d.QPanels)*c.Rows+2) - int(d.QPanels)*c.Rows - 1)
	if g.some(8) {
		d.Diagonal = int32(g.Uint32())
	}
	if g.some(3) {
		d.OutMul, d.OutSh = 65535, 19
	}
	d.X, d.QPanel = g.panels(c.XWords, int(d.QPanels), int(d.Dim), false)
	d.K = g.place(c.WWords, ((keys-1)/c.Cols+1)*int(d.Dim))
	d.V, d.VPanel = g.panels(c.WWords, dim/c.Cols, (keys-1)/c.WordBytes+1, false)
	words := int(d.Dim)
	if d.Wide {
		words *= 2
	}
	d.Base, d.Panel = g.panels(c.Words(d.Space), int(d.QPanels), words, true)
	return d
}

func (g *generator) vector() isa.Command {
	c := g.cfg
	var kinds []isa.VectorOp
	for _, k := range g.vectors() {
		if (k != isa.VectorLayerNorm && k != isa.VectorRMSNorm || c.Norms) && (k != isa.VectorCombine || c.Router()) {
			kinds = append(kinds, k)
		}
	}
	d := &isa.Vector{Kind: kinds[g.IntN(len(kinds))], OneParam: g.some(2)}
	words := g.upTo(min(c.XWords, c.YWords, 64))
	if !d.OneParam {
		words = min(words, c.Params/c.WordBytes)
	}
	if words == 0 {
		return nil
	}
	panels := g.upTo(16)
	panels = max(1, min(panels, g.MaxWork/(words*c.WordBytes*c.Rows)))
	slots := 1
	switch d.Kind {
	case isa.VectorLayerNorm, isa.VectorRMSNorm:
		d.Count = uint16(g.upTo(min(words*c.WordBytes, isa.MaxNorm)))
		if g.some(2) {
			d.Count = uint16(min(words*c.WordBytes, isa.MaxNorm))
		}
		d.Eps = g.Uint32() >> g.IntN(32)
	case isa.VectorCombine:
		var first int
		if first, panels, slots = g.tokens(panels); panels == 0 {
			return nil
		}
		d.Count, d.TopK = uint16(first), uint8(slots)
	}
	records := words * c.WordBytes
	if d.OneParam {
		records = 1
	}
	mul := d.Kind == isa.VectorMul || d.Kind == isa.VectorCombine
	d.Out = g.outOf(panels, words*c.WordBytes, records, !mul && g.some(2))
	d.Words, d.Panels = uint16(words), uint8(panels)
	d.X, d.XPanel = g.panels(c.XWords, panels*slots, words, false)
	if d.Space == isa.SpaceX && !d.Wide && d.Kind != isa.VectorCombine && g.some(2) {
		d.X, d.XPanel = d.Base, d.Panel
	}
	return d
}

// tokens finds up to n panels of tokens that have gates, and how many each of them has at least; no panel if there are
// none.
func (g *generator) tokens(n int) (first, panels, slots int) {
	rows := g.cfg.Rows
	start := g.IntN(g.cfg.Tokens)
	for i := range g.cfg.Tokens {
		first = (start + i) % g.cfg.Tokens
		slots = g.cfg.TopK
		for panels = 0; panels < n && first+(panels+1)*rows <= g.cfg.Tokens; panels++ {
			least := slices.Min(g.routed[first+panels*rows:][:rows])
			if least == 0 {
				break
			}
			slots = min(slots, least)
		}
		if panels > 0 {
			break
		}
	}
	return first, panels, 1 + g.IntN(slots)
}

// vectors are the kinds of Vector to draw from.
func (g *generator) vectors() []isa.VectorOp {
	if len(g.Vectors) > 0 {
		return g.Vectors
	}
	return []isa.VectorOp{isa.VectorAffine, isa.VectorMul, isa.VectorLayerNorm, isa.VectorRMSNorm, isa.VectorCombine}
}

func (g *generator) route() isa.Command {
	c := g.cfg
	d := &isa.Route{First: g.some(4) || !g.anyRouted(), Renormalise: g.some(2)}
	rows := min(g.upTo(8)*c.Rows-g.IntN(2)*g.IntN(c.Rows), c.Tokens)
	most := min(c.Experts, c.XWords*c.WordBytes/2)
	d.Experts = uint16(1 + g.IntN(most))
	d.TopK = uint8(1 + g.IntN(min(c.TopK, int(d.Experts))))
	words := (2*int(d.Experts)-1)/c.WordBytes + 1
	rows = max(1, min(rows, g.MaxWork/int(d.Experts)))
	panels := (rows-1)/c.Rows + 1
	d.Rows, d.Token = uint16(rows), uint16(g.IntN(c.Tokens-rows+1))
	if g.some(2) {
		d.Token = 0
	}
	d.X, d.XPanel = g.panels(c.XWords, panels, words, false)
	return d
}

// anyRouted is whether a Route has been done.
func (g *generator) anyRouted() bool {
	for _, n := range g.routed {
		if n > 0 {
			return true
		}
	}
	return false
}
