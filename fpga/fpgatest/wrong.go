package fpgatest

import (
	"fusec/fpga/isa"
)

// wrong is a descriptor that stops the machine.
type wrong struct {
	name string
	cmd  isa.Command
	code isa.Error
}

// wrongs are descriptors with one thing wrong, of every kind that a configuration has; limit is memory's end.
func wrongs(c isa.Config, limit uint32) (ws []wrong) {
	add := func(name string, code isa.Error, cmd isa.Command) { ws = append(ws, wrong{name, cmd, code}) }
	load := func(name string, code isa.Error, change func(*isa.Load)) {
		d := &isa.Load{Space: isa.SpaceX, Rows: 2, Words: 1, Stride: uint32(c.WordBytes), Panel: 1}
		change(d)
		add("load with "+name, code, d)
	}
	store := func(name string, code isa.Error, change func(*isa.Store)) {
		d := &isa.Store{Rows: 2, Words: 1, Stride: uint32(c.WordBytes), Addr: limit / 2, Panel: 1}
		change(d)
		add("store with "+name, code, d)
	}
	gemm := func(name string, code isa.Error, change func(*isa.Gemm)) {
		d := &isa.Gemm{Words: 1, Panels: 1, Tiles: 1}
		change(d)
		add("gemm with "+name, code, d)
	}
	vector := func(name string, code isa.Error, change func(*isa.Vector)) {
		d := &isa.Vector{Words: 1, Panels: 1, OneParam: true}
		change(d)
		add("vector with "+name, code, d)
	}
	load("no rows", isa.ErrCount, func(d *isa.Load) { d.Rows = 0 })
	load("no words", isa.ErrCount, func(d *isa.Load) { d.Words = 0 })
	load("an odd address", isa.ErrMemory, func(d *isa.Load) { d.Addr = 1 })
	load("an odd stride", isa.ErrMemory, func(d *isa.Load) { d.Stride = uint32(c.WordBytes) + 1 })
	load("a row behind memory", isa.ErrMemory, func(d *isa.Load) { d.Addr = limit - uint32(c.WordBytes) })
	load("an address far behind memory", isa.ErrMemory, func(d *isa.Load) { d.Addr, d.Rows = -uint32(c.WordBytes), 1 })
	load("a stride round memory", isa.ErrMemory, func(d *isa.Load) { d.Stride = -uint32(c.WordBytes) })
	load("words behind a lane", isa.ErrScratch, func(d *isa.Load) { d.Base, d.Words = uint16(c.XWords-1), 2 })
	load("a panel behind a lane", isa.ErrScratch, func(d *isa.Load) {
		d.Rows, d.Panel = uint16(c.Rows+1), uint16(min(c.XWords, 1<<16-1))
		d.Base = uint16(c.XWords - int(d.Panel))
		if d.Base == 0 && c.XWords > 1<<16-1 {
			d.Base = 1
		}
	})
	load("no such space", isa.ErrScratch, func(d *isa.Load) { d.Space = 6 })
	load("a table behind the last", isa.ErrScratch, func(d *isa.Load) {
		d.Space, d.Rows, d.Words, d.Base = isa.SpaceTables, 1, uint16(256/c.WordBytes), uint16(c.Tables)
	})
	load("half a table", isa.ErrCount, func(d *isa.Load) {
		d.Space, d.Rows, d.Words, d.Base = isa.SpaceTables, 1, uint16(128/c.WordBytes), 0
	})
	load("two rows of records", isa.ErrCount, func(d *isa.Load) { d.Space = isa.SpaceParams })
	load("records behind the last", isa.ErrScratch, func(d *isa.Load) {
		d.Space, d.Rows, d.Words = isa.SpaceParams, 1, uint16(2*max(1, isa.RecordBytes/c.WordBytes))
		d.Base = uint16(c.Params - max(1, c.WordBytes/isa.RecordBytes))
	})
	if c.Patches {
		far := func(d *isa.Load) { d.Lane, d.Taps, d.Rows = 1, 2, 1 }
		load("a lane behind the last", isa.ErrScratch, func(d *isa.Load) { far(d); d.Lane = uint8(c.Rows) })
		load("segments at an odd distance", isa.ErrMemory, func(d *isa.Load) { far(d); d.TapStride = 1 })
		load("a segment behind memory", isa.ErrMemory, func(d *isa.Load) { far(d); d.TapStride = limit })
		load("a segment round memory", isa.ErrMemory, func(d *isa.Load) { far(d); d.TapStride = -uint32(c.WordBytes) })
		if c.AddrBits < 32 {
			load("a segment far behind memory", isa.ErrMemory, func(d *isa.Load) { far(d); d.TapStride = 1 << c.AddrBits })
		}
		load("a segment behind a lane", isa.ErrScratch, func(d *isa.Load) { far(d); d.TapStep = uint16(c.XWords - 1); d.Base = 1 })
		load("words apart behind a lane", isa.ErrScratch, func(d *isa.Load) {
			d.WordStep, d.Words, d.Rows = 2, 2, 1
			d.Base = uint16(c.XWords - 2)
		})
		load("a panel of one row behind a lane", isa.ErrScratch, func(d *isa.Load) {
			d.Lane, d.Base, d.Panel = uint8(c.Rows-1), uint16(c.XWords-1), 1
		})
		load("records of several segments", isa.ErrOp, func(d *isa.Load) { far(d); d.Space, d.Lane = isa.SpaceParams, 0 })
		load("records behind the first lane", isa.ErrOp, func(d *isa.Load) { far(d); d.Space, d.Taps = isa.SpaceParams, 0 })
	}
	store("no rows", isa.ErrCount, func(d *isa.Store) { d.Rows = 0 })
	store("no words", isa.ErrCount, func(d *isa.Store) { d.Words = 0 })
	store("an odd address", isa.ErrMemory, func(d *isa.Store) { d.Addr = uint32(c.WordBytes) / 2 })
	store("an odd stride", isa.ErrMemory, func(d *isa.Store) { d.Stride = uint32(c.WordBytes) / 2 })
	store("a row behind memory", isa.ErrMemory, func(d *isa.Store) { d.Addr = limit - uint32(c.WordBytes) })
	store("W as its space", isa.ErrScratch, func(d *isa.Store) { d.Space = isa.SpaceW })
	store("words behind a lane", isa.ErrScratch, func(d *isa.Store) { d.Base, d.Words = uint16(c.YWords-1), 2 })
	add("stamp behind memory", isa.ErrMemory, &isa.Stamp{Addr: limit})
	add("stamp at an odd address", isa.ErrMemory, &isa.Stamp{Addr: limit/2 + 1})
	gemm("no words", isa.ErrCount, func(d *isa.Gemm) { d.Words = 0 })
	gemm("no panels", isa.ErrCount, func(d *isa.Gemm) { d.Panels = 0 })
	gemm("no tiles", isa.ErrCount, func(d *isa.Gemm) { d.Tiles = 0 })
	gemm("Hold and two panels", isa.ErrCount, func(d *isa.Gemm) { d.Hold, d.Panels = true, 2 })
	gemm("More and two tiles", isa.ErrCount, func(d *isa.Gemm) { d.More, d.Tiles = true, 2 })
	gemm("X behind a lane", isa.ErrScratch, func(d *isa.Gemm) { d.X, d.Words = uint16(c.XWords-1), 2 })
	gemm("W behind a lane", isa.ErrScratch, func(d *isa.Gemm) {
		d.Tiles, d.WPanel = 2, uint16(c.WWords-1)
		d.W = 1
	})
	gemm("results behind a lane", isa.ErrScratch, func(d *isa.Gemm) {
		d.Panels, d.Panel, d.Base = 2,
			uint16(c.YWords-1), 1
	})
	if c.YWords < 1<<15 {
		gemm("a panel far behind a lane", isa.ErrScratch, func(d *isa.Gemm) {
			d.Panels, d.Panel = 2,
				-uint16(c.YWords)
		})
	}
	gemm("records behind the last", isa.ErrScratch, func(d *isa.Gemm) { d.Param = uint16(c.Params - c.Cols + 1) })
	gemm("residuals behind a lane", isa.ErrScratch, func(d *isa.Gemm) {
		d.Residual, d.Res = true,
			uint16(c.YWords-c.Cols/c.WordBytes+1)
	})
	vector("no words", isa.ErrCount, func(d *isa.Vector) { d.Words = 0 })
	vector("no panels", isa.ErrCount, func(d *isa.Vector) { d.Panels = 0 })
	vector("no such kind", isa.ErrOp, func(d *isa.Vector) { d.Kind = 5 })
	vector("X behind a lane", isa.ErrScratch, func(d *isa.Vector) { d.X, d.Words = uint16(c.XWords-1), 2 })
	if c.Attention() {
		attention := func(name string, code isa.Error, change func(*isa.Attention)) {
			d := &isa.Attention{First: true, Last: true, Dim: uint8(max(1, c.Cols/c.WordBytes)), QPanels: 1, Keys: 1}
			change(d)
			add("attention with "+name, code, d)
		}
		attention("no dim", isa.ErrCount, func(d *isa.Attention) { d.Dim = 0 })
		attention("heads too large", isa.ErrCount,
			func(d *isa.Attention) { d.Dim = uint8(2 * c.HeadDim / c.WordBytes) })
		attention("no panels", isa.ErrCount, func(d *isa.Attention) { d.QPanels = 0 })
		attention("too many panels", isa.ErrCount, func(d *isa.Attention) { d.QPanels = uint8(c.QPanels + 1) })
		attention("no keys", isa.ErrCount, func(d *isa.Attention) { d.Keys = 0 })
		attention("keys behind a lane", isa.ErrScratch, func(d *isa.Attention) {
			d.K, d.Keys = uint16(c.WWords-1),
				uint16(2*c.Cols)
		})
		attention("results behind a lane", isa.ErrScratch, func(d *isa.Attention) {
			d.Wide, d.Base = true,
				uint16(c.YWords-1)
		})
	} else {
		add("attention", isa.ErrOp, &isa.Attention{First: true, Last: true, Dim: 1, QPanels: 1, Keys: 1})
	}
	if c.Norms {
		vector("a norm of nothing", isa.ErrCount, func(d *isa.Vector) { d.Kind = isa.VectorLayerNorm })
		vector("a norm of too much", isa.ErrCount, func(d *isa.Vector) {
			d.Kind, d.Count = isa.VectorRMSNorm,
				uint16(c.WordBytes+1)
		})
	} else {
		vector("a norm", isa.ErrOp, func(d *isa.Vector) { d.Kind, d.Count = isa.VectorLayerNorm, 1 })
	}
	if c.Router() {
		route := func(name string, code isa.Error, change func(*isa.Route)) {
			d := &isa.Route{First: true, Rows: 1, Experts: uint16(c.Experts), TopK: 1}
			change(d)
			add("route with "+name, code, d)
		}
		route("no rows", isa.ErrCount, func(d *isa.Route) { d.Rows = 0 })
		route("no experts", isa.ErrCount, func(d *isa.Route) { d.Experts = 0 })
		route("too many experts", isa.ErrCount, func(d *isa.Route) { d.Experts = uint16(c.Experts + 1) })
		route("no gates", isa.ErrCount, func(d *isa.Route) { d.TopK = 0 })
		route("too many gates", isa.ErrCount, func(d *isa.Route) { d.TopK = uint8(c.TopK + 1) })
		route("tokens behind the last", isa.ErrScratch, func(d *isa.Route) { d.Token = uint16(min(c.Tokens, 1<<16-1)) })
		if c.Experts < 256 {
			load("a list behind the last", isa.ErrScratch, func(d *isa.Load) {
				d.Gather, d.List = true,
					uint8(c.Experts)
			})
			store("a list behind the last", isa.ErrScratch, func(d *isa.Store) {
				d.Scatter, d.TopK, d.List = true, 1,
					uint8(c.Experts)
			})
		}
		store("no gates", isa.ErrCount, func(d *isa.Store) { d.Scatter = true })
		vector("sums of no experts", isa.ErrCount, func(d *isa.Vector) { d.Kind = isa.VectorCombine })
	} else {
		add("route", isa.ErrOp, &isa.Route{First: true, Rows: 1, Experts: 1, TopK: 1})
		load("a list", isa.ErrOp, func(d *isa.Load) { d.Gather = true })
		load("a list to skip by", isa.ErrOp, func(d *isa.Load) { d.Skip = true })
		store("a list", isa.ErrOp, func(d *isa.Store) { d.Scatter, d.TopK = true, 1 })
		gemm("a list", isa.ErrOp, func(d *isa.Gemm) { d.Listed = true })
		vector("sums of experts", isa.ErrOp, func(d *isa.Vector) { d.Kind, d.TopK = isa.VectorCombine, 1 })
	}
	return ws
}
