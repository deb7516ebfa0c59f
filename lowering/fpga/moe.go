package fpga

import (
	"errors"
	"fmt"

	"fusec/fpga/isa"
	"fusec/graph"
)

// moeCut says how a mixture is cut: how many tokens are routed at once, how many panels of an expert's tokens are
// computed with one load of its weights, and how many tiles of those are loaded at a time.
type moeCut struct{ tokens, panels, up, down int }

// cutMoE chooses it.
func cutMoE(c isa.Config, e *experts) (moeCut, error) {
	d := e.dims
	// Words of a token, of its values between the products, and of a result.
	kw, hw := ceil(d.Width, c.WordBytes), ceil(up(d.Hidden, c.Cols), c.WordBytes)
	ow := ceil(up(d.Result, c.Cols), c.WordBytes)
	cut := moeCut{tokens: min(up(d.Tokens, c.Rows), c.Tokens, c.ListLen)}
	hidden := hw
	if e.op.Gated {
		hidden *= 2
	}
	for p := min(ceil(cut.tokens, c.Rows), 16); p >= 1; p /= 2 {
		y := ow
		if e.op.Gated {
			y += hw
		}
		if 2*p*(kw+hidden) <= c.XWords && p*y <= c.YWords {
			cut.panels = p
			break
		}
	}
	cut.up = min(ceil(d.Hidden, c.Cols), c.WWords/(4*kw), c.Params/(4*c.Cols), 255)
	cut.down = min(ceil(d.Result, c.Cols), c.WWords/(4*hw), c.Params/(4*c.Cols), 255)
	// The slots of the last step: topK of them a panel.
	switch {
	case cut.panels == 0 || cut.up == 0 || cut.down == 0:
		return cut, fmt.Errorf("experts of %d×%d×%d: the overlay %s does not hold a panel of such tokens",
			d.Width, d.Hidden, d.Result, c.Name)
	case 2*e.topK*ow > c.XWords || 2*ow > c.YWords:
		return cut, fmt.Errorf("results of %d elements from %d experts: the overlay %s does not hold a panel of them",
			d.Result, e.topK, c.Name)
	case ceil(2*e.op.Experts, c.WordBytes)*2 > c.XWords:
		return cut, errors.New("logits of more experts than X holds")
	}
	return cut, nil
}

// fitsMoE refuses a mixture that the scratchpads do not hold.
func (m *partition) fitsMoE(e *experts) error {
	_, err := cutMoE(m.cfg, e)
	return err
}

// moe emits a mixture of experts: some tokens are routed; each expert's tokens are gathered and go through its
// products, the values between them staying in X; the results are scattered to slots, one for each token and rank;
// then the slots are combined by the gates. What an expert does with no token costs next to nothing.
func (a *assembler) moe(t *task) {
	e, c := t.experts, a.cfg
	cut, err := cutMoE(c, e)
	if err != nil {
		a.err = err
		return
	}
	table := a.table(e.codes.table)
	for from := 0; from < e.dims.Tokens; from += cut.tokens {
		n := min(cut.tokens, e.dims.Tokens-from)
		a.route(t, from, n)
		for k := range e.op.Experts {
			for start := 0; start < ceil(n, c.Rows); start += cut.panels {
				a.expert(t, cut, k, from, start, min(cut.panels, ceil(n, c.Rows)-start), n, table)
			}
		}
		a.combine(t, from, n)
	}
}

// route sends n tokens, the from-th of all being token 0 of the lists.
func (a *assembler) route(t *task, from, n int) {
	c, e := a.cfg, t.experts
	words := ceil(2*e.op.Experts, c.WordBytes)
	logits := a.in(e.logits)
	block := max(1, min(ceil(n, c.Rows), c.XWords/(4*words)))
	for at := 0; at < ceil(n, c.Rows); at += block {
		row := at * c.Rows
		rowsN := min(block*c.Rows, n-row)
		x := a.take(isa.SpaceX, ceil(rowsN, c.Rows)*words)
		a.load(isa.SpaceX, logits, from+row, rowsN, 0, words, x, words)
		a.emit(&isa.Route{First: at == 0, Renormalise: e.renorm, X: uint16(x), XPanel: uint16(words),
			Rows:    uint16(rowsN),
			Experts: uint16(e.op.Experts), TopK: uint8(e.topK), Token: uint16(row)})
		a.steps[len(a.steps)-1].Loads = e.loads(from+row, rowsN)
	}
}

// expert takes some panels of expert k's tokens through its products.
func (a *assembler) expert(t *task, cut moeCut, k, from, start, panels, tokens int, table uint8) {
	c, e := a.cfg, t.experts
	d := e.dims
	wb := c.WordBytes
	kw, hw := a.words(d.Width), a.words(up(d.Hidden, c.Cols))
	first := uint16(start * c.Rows)
	in := a.in(t.x)
	x := a.take(isa.SpaceX, panels*kw)
	base := in.addr + int64(from)*in.step
	a.emit(&isa.Load{Gather: true, Skip: true, Space: isa.SpaceX, Addr: uint32(base), Stride: uint32(in.step),
		Rows: uint16(panels * c.Rows), Words: uint16(kw), Base: uint16(x), Panel: uint16(kw), List: uint8(k), Start: first},
		region{spaceMemory, base, base + int64(tokens-1)*in.step + int64(kw*wb)})
	// stage is one product of the tokens, tile by tile.
	stage := func(w graph.MoEWeight, x, words, n, tiles int, to func(tile, tiles int) isa.Out,
		done func(tile, tiles int, o isa.Out)) {
		code := e.codes.of[w][k]
		m := a.constant(code.weights, code.weights.rows, words*wb)
		for tile := 0; tile < ceil(n, c.Cols); tile += tiles {
			nt := min(tiles, ceil(n, c.Cols)-tile)
			at := a.take(isa.SpaceW, nt*words)
			a.skipped(&isa.Load{Space: isa.SpaceW, Addr: uint32(m.addr + int64(tile*c.Cols)*m.step), Stride: uint32(m.step),
				Rows: uint16(nt * c.Cols), Words: uint16(words), Base: uint16(at), Panel: uint16(words)}, k, first)
			records := a.take(isa.SpaceParams, nt*c.Cols)
			from := code.records.addr + int64(tile*c.Cols*isa.RecordBytes)
			a.skipped(&isa.Load{Space: isa.SpaceParams, Addr: uint32(from), Rows: 1,
				Words: uint16(nt * c.Cols * isa.RecordBytes / wb), Base: uint16(records)}, k, first)
			o := to(tile, nt)
			o.Param = uint16(records)
			a.emit(&isa.Gemm{Out: o, Listed: true, List: uint8(k), Start: uint8(start), X: uint16(x), XPanel: uint16(words),
				W: uint16(at), WPanel: uint16(words), Words: uint16(words), Panels: uint8(panels), Tiles: uint8(nt)})
			if done != nil {
				done(tile, nt, o)
			}
		}
	}
	hidden := a.take(isa.SpaceX, panels*hw)
	stage(graph.MoEW1, x, kw, d.Hidden, cut.up, func(tile, _ int) isa.Out {
		return isa.Out{ReLU: e.act.relu, Table: table, Zero: e.codes.preZero, Space: isa.SpaceX,
			Base: uint16(hidden + tile*c.Cols/wb), Panel: uint16(hw)}
	}, nil)
	if e.op.Gated {
		second := a.take(isa.SpaceY, panels*hw)
		stage(graph.MoEW3, x, kw, d.Hidden, cut.up, func(tile, _ int) isa.Out {
			return isa.Out{Space: isa.SpaceY, Base: uint16(second + tile*c.Cols/wb), Panel: uint16(hw)}
		}, nil)
		acted := hidden
		hidden = a.take(isa.SpaceX, panels*hw)
		record := a.records(e.codes.product, 0, 1)
		out := isa.Out{Space: isa.SpaceX, Base: uint16(hidden), Panel: uint16(hw), Res: uint16(second), ResPanel: uint16(hw),
			Param: uint16(record), Zero: e.codes.hiddenZero}
		a.emit(&isa.Vector{Out: out, Kind: isa.VectorMul, OneParam: true, X: uint16(acted), XPanel: uint16(hw),
			Words: uint16(hw), Panels: uint8(panels)})
	}
	slots := a.in(whole(e.slots))
	to := slots.addr + int64(from*e.topK)*slots.step
	slotsAt := region{spaceMemory, to, to + int64(tokens*e.topK)*slots.step}
	stage(graph.MoEW2, hidden, hw, d.Result, cut.down, func(tile, tiles int) isa.Out {
		width := tiles * c.Cols / wb
		return isa.Out{Space: isa.SpaceY, Base: uint16(a.take(isa.SpaceY, panels*width)), Panel: uint16(width)}
	}, func(tile, tiles int, o isa.Out) {
		at := tile * c.Cols / wb
		words := min(tiles*c.Cols/wb, a.words(d.Result)-at)
		a.emit(&isa.Store{Scatter: true, Space: isa.SpaceY, Addr: uint32(to + int64(at*wb)), Stride: uint32(slots.step),
			Rows: uint16(panels * c.Rows), Words: uint16(words), Base: o.Base, Panel: o.Panel, List: uint8(k),
			TopK: uint8(e.topK), Start: first}, slotsAt)
	})
}

// skipped emits a load that is left out if a list has no entry from the first on.
func (a *assembler) skipped(l *isa.Load, list int, first uint16) {
	l.Skip, l.List, l.Start = true, uint8(list), first
	a.emit(l)
}

// combine adds up the slots of n tokens by their gates.
func (a *assembler) combine(t *task, from, n int) {
	c, e := a.cfg, t.experts
	slots, to := a.in(whole(e.slots)), a.in(t.out)
	words, bytes := a.words(e.dims.Result), t.out.v.bytes()
	record := a.records(e.codes.combine, 0, 1)
	block := max(1, min(ceil(n, c.Rows), c.XWords/(3*words*e.topK), c.YWords/(3*words*bytes)))
	for at := 0; at < ceil(n, c.Rows); at += block {
		panels := min(block, ceil(n, c.Rows)-at)
		row := at * c.Rows
		rowsN := min(panels*c.Rows, n-row)
		x := a.take(isa.SpaceX, panels*e.topK*words)
		for r := range e.topK {
			rank := rows{addr: slots.addr + int64(r)*slots.step, step: slots.step * int64(e.topK), n: e.dims.Tokens, cols: slots.cols}
			a.load(isa.SpaceX, rank, from+row, rowsN, 0, words, x+r*words, e.topK*words)
		}
		y := a.take(isa.SpaceY, panels*words*bytes)
		out := isa.Out{Wide: t.out.v.wide, Zero: t.codes.zero, Space: isa.SpaceY, Base: uint16(y),
			Panel: uint16(words * bytes), Param: uint16(record)}
		a.emit(&isa.Vector{Out: out, Kind: isa.VectorCombine, OneParam: true, X: uint16(x), XPanel: uint16(words),
			Words: uint16(words), Panels: uint8(panels), TopK: uint8(e.topK), Count: uint16(row)})
		a.store(to, from+row, rowsN, 0, a.words(e.dims.Result*bytes), y, words*bytes)
	}
}
