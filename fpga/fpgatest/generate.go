package fpgatest

import (
	"math/rand/v2"
	"slices"

	"fusec/fpga/isa"
	"fusec/fpga/model"
)

// Options are the options of random programs.
type Options struct {
	// Commands is how many the body has. Default: 60.
	Commands int
	// Ops are the operations of the body; empty: all that the configuration has.
	Ops []isa.Op
	// Vectors are the kinds of Vector; empty: all that the configuration has.
	Vectors []isa.VectorOp
	// MaxWork bounds the products of one command, so that slow links stay quick. Default: 1 << 16.
	MaxWork int
}

// generator makes a program. It executes each command immediately on a model, so that it knows the lists and the
// accessed words.
type generator struct {
	Options
	*rand.Rand
	cfg     isa.Config
	p       *Program
	m       *model.Machine
	order   model.Orderer
	data    span // memory for Load and Store: random bytes and stored results
	out     span // the part of data that Store writes
	records span

	held    bool           // the last Gemm has Hold: one with More has to follow on EXEC
	open    *isa.Attention // has no Last: more keys may follow
	routed  []int          // how many gates of each token are known
	credit  bool           // the free semaphore has been posted by a Barrier
	large   bool           // the program makes large sums: long ones, of operands that are mostly the least ones
	stamped int
}

// free is the semaphore that the Orderer leaves alone.
const free = 7

// Random makes a valid program for a configuration.
func Random(seed uint64, cfg isa.Config, o Options) (*Program, error) {
	if o.Commands == 0 {
		o.Commands = 60
	}
	if o.MaxWork == 0 {
		o.MaxWork = 1 << 16
	}
	g := &generator{Options: o, Rand: rand.New(rand.NewPCG(seed, 0xf05ec)), cfg: cfg, routed: make([]int, cfg.Tokens)}
	g.order.Late = func(first, last int) int {
		if g.IntN(2) == 0 {
			return first
		}
		return first + g.IntN(last-first+1)
	}
	g.large = g.IntN(5) == 0
	g.layout(seed)
	var err error
	if g.m, err = model.New(cfg, model.Options{Memory: int64(len(g.p.Memory))}); err != nil {
		return nil, err
	}
	if err := g.m.Write(0, g.p.Memory); err != nil {
		return nil, err
	}
	g.prologue()
	g.p.body = len(g.p.Commands)
	makers := g.makers()
	for len(g.p.Commands)-g.p.body < o.Commands {
		g.try(makers[g.IntN(len(makers))]())
	}
	for g.held {
		g.try(g.more())
	}
	g.p.end = len(g.p.Commands)
	g.p.Commands = append(g.p.Commands, g.p.epilogue()...)
	return g.p, nil
}

// layout divides memory: records, data, results, stamps, the program and, last, the results of the epilogue.
func (g *generator) layout(seed uint64) {
	c := g.cfg
	largest := c.WordBytes * max(c.XWords, c.WWords, c.YWords)
	at := 0
	take := func(n int) span {
		s := span{at, at + (n+63)&^63}
		at = s.end
		return s
	}
	g.records = take(2 * isa.RecordBytes * c.Params)
	g.data = take(2*largest + 1024)
	g.out = take(max(largest, 1024, 2*c.WordBytes*c.Tokens*c.TopK))
	g.data.end = g.out.end
	g.p = &Program{Config: c, Seed: seed, stamps: take(1024)}
	g.p.At = uint32(take((g.Commands + 64) * isa.DescBytes).at)
	g.p.dump = uint32(take(c.WordBytes * c.Rows * (c.XWords + c.YWords)).at)
	g.p.Memory = make([]byte, at)
	for i := range at / 64 {
		g.block(g.p.Memory[i*64:][:64])
	}
	for i := g.records.at; i < g.records.end; i += isa.RecordBytes {
		copy(g.p.Memory[i:], g.record().Append(nil))
	}
	clear(g.p.Memory[g.p.stamps.at:g.p.stamps.end])
}

// block fills a block with bytes of one kind: any, extreme, small, few that are often equal, or the least.
func (g *generator) block(b []byte) {
	kind := g.IntN(4)
	if g.large && g.IntN(8) > 0 {
		kind = 4
	}
	for i := range b {
		switch kind {
		case 0:
			b[i] = byte(g.Uint32())
		case 1:
			b[i] = [...]byte{0x80, 0x7f, 0, 1, 0xff, 0x81}[g.IntN(6)]
		case 2:
			b[i] = byte(g.IntN(17) - 8)
		case 3:
			b[i] = byte(g.IntN(2) * 3)
		case 4:
			b[i] = 0x80
		}
	}
}

// record draws a record: mostly of results in range, sometimes fine, of the last bit of small sums, and sometimes
// extreme.
func (g *generator) record() isa.Record {
	if g.IntN(4) == 0 {
		return isa.Record{Bias: int32(g.IntN(512) - 256), Mul: int16(g.IntN(128) - 64), Shift: uint8(g.IntN(4))}
	}
	r := isa.Record{Bias: int32(g.IntN(1<<16) - 1<<15), Mul: int16(g.Uint32()), Shift: uint8(4 + g.IntN(20))}
	if g.IntN(4) == 0 {
		r.Bias = [...]int32{-1 << 23, 1<<23 - 1, 0, int32(g.Uint32()) >> 8}[g.IntN(4)]
	}
	if g.IntN(4) == 0 {
		r.Mul = [...]int16{-1 << 15, 1<<15 - 1, 0, 1, -1}[g.IntN(5)]
	}
	if g.IntN(8) == 0 {
		r.Shift = uint8(g.IntN(48))
	}
	return r
}

// prologue fills all that can be loaded.
func (g *generator) prologue() {
	c := g.cfg
	for _, s := range []isa.Space{isa.SpaceX, isa.SpaceW, isa.SpaceY} {
		words := c.Words(s)
		for base := 0; base < words; base += 1 << 15 {
			n := min(words-base, 1<<15)
			rows := c.Lanes(s)
			stride := 0
			if rows > 1 {
				stride = min((g.data.end-g.data.at-n*c.WordBytes)/(rows-1)/c.WordBytes, 1+g.IntN(40)) * c.WordBytes
			}
			g.must(&isa.Load{Space: s, Addr: uint32(g.data.at), Stride: uint32(stride), Rows: uint16(rows),
				Words: uint16(n), Base: uint16(base)})
		}
	}
	for base := 0; base < c.Params; base += 4096 {
		n := min(c.Params-base, 4096) * isa.RecordBytes
		// Parameter memories of one record are smaller than a word of 16 bytes: their record is never loaded.
		if n >= c.WordBytes {
			g.must(&isa.Load{Space: isa.SpaceParams, Addr: uint32(g.records.at + base*isa.RecordBytes), Rows: 1,
				Words: uint16(n / c.WordBytes),
				Base:  uint16(base)})
		}
	}
	for t := range c.Tables {
		g.must(&isa.Load{Space: isa.SpaceTables, Addr: uint32(g.source(256)), Rows: 1,
			Words: uint16(256 / c.WordBytes), Base: uint16(t)})
	}
}

// must adds a command that is right by construction.
func (g *generator) must(c isa.Command) {
	if !g.try(c) {
		panic("fpgatest: " + isa.Text(c))
	}
}

// try adds a command if it is valid and writes nothing that it has yet to read.
func (g *generator) try(c isa.Command) bool {
	if c == nil {
		return false
	}
	touched, err := g.m.Step(c)
	if err != nil {
		return false
	}
	g.order.Add(c, touched)
	if g.credit {
		if _, engine := isa.EngineOf(c.Op()); engine {
			c.Syncs().Wait |= 1 << free
			g.credit = false
		}
	}
	if b, ok := c.(*isa.Barrier); ok && !g.credit && g.IntN(2) == 0 {
		b.Post, g.credit = 1<<free, true
	}
	g.p.Commands = append(g.p.Commands, c)
	g.after(c)
	return true
}

// after records what later commands depend on.
func (g *generator) after(c isa.Command) {
	switch d := c.(type) {
	case *isa.Gemm:
		g.held = d.Hold
	case *isa.Attention:
		if g.open = d; d.Last {
			g.open = nil
		}
	case *isa.Route:
		for i := range int(d.Rows) {
			t := &g.routed[int(d.Token)+i]
			*t = max(*t, int(d.TopK))
		}
	case *isa.Stamp:
		g.stamped++
	}
}

// makers are the functions that make a random command, the common ones more often.
func (g *generator) makers() (ms []func() isa.Command) {
	exec := func(f func() isa.Command) func() isa.Command {
		return func() isa.Command {
			if g.held {
				return g.more()
			}
			return f()
		}
	}
	for _, m := range []struct {
		op     isa.Op
		has    bool
		times  int
		random func() isa.Command
	}{
		{isa.OpLoad, true, 4, g.load},
		{isa.OpStore, true, 3, g.store},
		{isa.OpStamp, true, 1, g.stamp},
		{isa.OpBarrier, true, 1, func() isa.Command { return &isa.Barrier{} }},
		{isa.OpGemm, true, 6, exec(g.gemm)},
		{isa.OpAttention, g.cfg.Attention(), 4, exec(g.attention)},
		{isa.OpVector, true, 4, exec(g.vector)},
		{isa.OpRoute, g.cfg.Router(), 3, exec(g.route)},
	} {
		if m.has && (len(g.Ops) == 0 || slices.Contains(g.Ops, m.op)) {
			ms = append(ms, slices.Repeat([]func() isa.Command{m.random}, m.times)...)
		}
	}
	return ms
}
