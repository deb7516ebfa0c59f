package sim

import (
	"bytes"
	"testing"

	"fusec/fpga/isa"
)

// routed is an overlay with everything that fetch may check.
var routed = isa.Config{Name: "routed", Rows: 4, Cols: 4, WordBytes: 4, XWords: 256, WWords: 64, YWords: 64,
	Params: 16, Tables: 1, AccBits: 32,
	KeyBlock: 8, HeadDim: 16, QPanels: 2, Norms: true, Experts: 16, ListLen: 64, Tokens: 64, TopK: 2, AddrBits: 20}

// TestGather loads rows that a list names and scatters them again; rows behind the list's end stay where they are.
func TestGather(t *testing.T) {
	h := startHost(t, routed, around(t, true), 1)
	const stride, words = 24, 5
	for _, list := range []uint8{0, 1, 2, 7, 15} {
		for _, start := range []uint16{0, 1, 3, 14, 20} {
			source, target := make([]byte, 0x2000), make([]byte, 0x2000)
			for i := range source {
				source[i], target[i] = byte(i*7+i>>8), 0xaa
			}
			h.write(0, source)
			h.write(0x2000, target)
			h.good(
				&isa.Load{Sync: isa.Sync{Post: 1}, Gather: true, Space: isa.SpaceX, Stride: stride, Rows: 6,
					Words: words, Panel: words, List: list, Start: start},
				&isa.Store{Sync: isa.Sync{Wait: 1}, Scatter: true, Space: isa.SpaceX, Addr: 0x2000,
					Stride: stride, Rows: 6, Words: words, Panel: words,
					List: list, TopK: 2, Start: start},
				&isa.End{})
			for i := int(start); i < min(int(start)+6, int(list)); i++ {
				token, rank := 3*i+int(list), i%2
				copy(target[(2*token+rank)*stride:][:words*4], source[token*stride:])
			}
			if got := h.read(0x2000, len(target)); !bytes.Equal(got, target) {
				t.Fatalf("list %d from entry %d: memory differs", list, start)
			}
		}
	}
}

// TestSkip leaves out a Load whose list has no entry, and does it whole where there is one.
func TestSkip(t *testing.T) {
	h := startHost(t, routed, around(t, true), 1)
	h.write(0, bytes.Repeat([]byte{1}, 64))
	h.write(64, bytes.Repeat([]byte{2}, 64))
	for list, want := range map[uint8]byte{3: 1, 4: 2} {
		h.good(
			&isa.Load{Sync: isa.Sync{Post: 1}, Space: isa.SpaceY, Addr: 0, Stride: 16, Rows: 4, Words: 4},
			&isa.Load{Sync: isa.Sync{Wait: 1, Post: 2}, Skip: true, Space: isa.SpaceY, Addr: 64, Stride: 16,
				Rows: 4, Words: 4, List: list, Start: 3},
			&isa.Store{Sync: isa.Sync{Wait: 2}, Space: isa.SpaceY, Addr: 128, Stride: 16, Rows: 4, Words: 4},
			&isa.End{})
		if got := h.read(128, 64); !bytes.Equal(got, bytes.Repeat([]byte{want}, 64)) {
			t.Errorf("list of %d entries, entry 3: % x", list, got[:8])
		}
	}
}

// good descriptors, which the cases below spoil.
func load() *isa.Load {
	return &isa.Load{Space: isa.SpaceX, Addr: 0x40, Stride: 16, Rows: 8, Words: 4, Panel: 4}
}
func store() *isa.Store {
	return &isa.Store{Space: isa.SpaceX, Addr: 0x4000, Stride: 16, Rows: 8, Words: 4, Panel: 4}
}
func gemm() *isa.Gemm { return &isa.Gemm{Words: 5, Panels: 1, Tiles: 1} }
func attention() *isa.Attention {
	return &isa.Attention{Dim: 4, QPanels: 1, Keys: 8}
}
func vector() *isa.Vector { return &isa.Vector{Words: 4, Panels: 1} }
func route() *isa.Route   { return &isa.Route{Rows: 4, Experts: 8, TopK: 2} }

// with changes a command and gives it.
func with[C isa.Command](c C, change func(C)) isa.Command {
	change(c)
	return c
}

// bad are descriptors with an error each.
var bad = []struct {
	name    string
	code    isa.Error
	command isa.Command
}{
	{"load of no rows", isa.ErrCount, with(load(), func(c *isa.Load) { c.Rows = 0 })},
	{"load of no words", isa.ErrCount, with(load(), func(c *isa.Load) { c.Words = 0 })},
	{"load of half a word's address", isa.ErrMemory, with(load(), func(c *isa.Load) { c.Addr += 2 })},
	{"load of half a word's stride", isa.ErrMemory, with(load(), func(c *isa.Load) { c.Stride += 2 })},
	{"load behind the limit", isa.ErrMemory, with(load(), func(c *isa.Load) { c.Addr = limitAt - 8*16 + 4 })},
	{"load behind the address bits", isa.ErrMemory, with(load(), func(c *isa.Load) { c.Addr = 1 << 20 })},
	{"load with a stride beyond the address bits", isa.ErrMemory,
		with(load(), func(c *isa.Load) { c.Stride = 0xfffffff0 })},
	{"load behind X", isa.ErrScratch, with(load(), func(c *isa.Load) { c.Base = 256 - 7 })},
	{"load behind X by its panels", isa.ErrScratch, with(load(), func(c *isa.Load) { c.Panel = 253 })},
	{"load behind Y", isa.ErrScratch, with(load(), func(c *isa.Load) { c.Space, c.Base = isa.SpaceY, 57 })},
	{"load behind W", isa.ErrScratch, with(load(), func(c *isa.Load) { c.Space, c.Base = isa.SpaceW, 57 })},
	{"load behind the parameters", isa.ErrScratch,
		with(load(), func(c *isa.Load) { c.Space, c.Rows, c.Base = isa.SpaceParams, 1, 15 })},
	{"load of parameters by rows", isa.ErrCount, with(load(), func(c *isa.Load) { c.Space = isa.SpaceParams })},
	{"load of half a table", isa.ErrCount,
		with(load(), func(c *isa.Load) { c.Space, c.Rows, c.Words = isa.SpaceTables, 1, 32 })},
	{"load of a table too many", isa.ErrScratch,
		with(load(), func(c *isa.Load) { c.Space, c.Rows, c.Words, c.Base = isa.SpaceTables, 1, 64, 1 })},
	{"load of a far table", isa.ErrScratch,
		with(load(), func(c *isa.Load) { c.Space, c.Rows, c.Words, c.Base = isa.SpaceTables, 1, 64, 1024 })},
	{"load to no space", isa.ErrScratch, with(load(), func(c *isa.Load) { c.Space = 6 })},
	{"gather of no list", isa.ErrScratch, with(load(), func(c *isa.Load) { c.Gather, c.List = true, 16 })},
	{"skip by no list", isa.ErrScratch, with(load(), func(c *isa.Load) { c.Skip, c.List = true, 255 })},
	{"gather behind the limit", isa.ErrMemory,
		with(load(), func(c *isa.Load) { c.Gather, c.List, c.Stride = true, 15, 0x1000 })},
	{"store of no rows", isa.ErrCount, with(store(), func(c *isa.Store) { c.Rows = 0 })},
	{"store of no words", isa.ErrCount, with(store(), func(c *isa.Store) { c.Words = 0 })},
	{"store of half a word's address", isa.ErrMemory, with(store(), func(c *isa.Store) { c.Addr += 3 })},
	{"store behind the limit", isa.ErrMemory, with(store(), func(c *isa.Store) { c.Addr = limitAt - 16 })},
	{"store of W", isa.ErrScratch, with(store(), func(c *isa.Store) { c.Space = isa.SpaceW })},
	{"store behind X", isa.ErrScratch, with(store(), func(c *isa.Store) { c.Base = 253 })},
	{"scatter with no ranks", isa.ErrCount, with(store(), func(c *isa.Store) { c.Scatter = true })},
	{"scatter with too many ranks", isa.ErrCount, with(store(), func(c *isa.Store) { c.Scatter, c.TopK = true, 3 })},
	{"scatter by no list", isa.ErrScratch,
		with(store(), func(c *isa.Store) { c.Scatter, c.TopK, c.List = true, 2, 16 })},
	{"stamp at no word", isa.ErrMemory, &isa.Stamp{Addr: 0x4001}},
	{"stamp behind the limit", isa.ErrMemory, &isa.Stamp{Addr: limitAt - 12}},
	{"gemm of no words", isa.ErrCount, with(gemm(), func(c *isa.Gemm) { c.Words = 0 })},
	{"gemm of no panels", isa.ErrCount, with(gemm(), func(c *isa.Gemm) { c.Panels = 0 })},
	{"gemm of no tiles", isa.ErrCount, with(gemm(), func(c *isa.Gemm) { c.Tiles = 0 })},
	{"gemm that holds two tiles", isa.ErrCount, with(gemm(), func(c *isa.Gemm) { c.Hold, c.Tiles = true, 2 })},
	{"gemm with more of two panels", isa.ErrCount, with(gemm(), func(c *isa.Gemm) { c.More, c.Panels = true, 2 })},
	{"gemm of no list", isa.ErrScratch, with(gemm(), func(c *isa.Gemm) { c.Listed, c.List = true, 16 })},
	{"gemm with wide results from a table", isa.ErrOp, with(gemm(), func(c *isa.Gemm) { c.Wide, c.Table = true, 1 })},
	{"gemm that EXEC refuses", isa.ErrScratch, with(gemm(), func(c *isa.Gemm) { c.Param = 65535 })},
	{"attention of no width", isa.ErrCount, with(attention(), func(c *isa.Attention) { c.Dim = 0 })},
	{"attention that is too wide", isa.ErrCount, with(attention(), func(c *isa.Attention) { c.Dim = 5 })},
	{"attention of no panels", isa.ErrCount, with(attention(), func(c *isa.Attention) { c.QPanels = 0 })},
	{"attention of too many panels", isa.ErrCount, with(attention(), func(c *isa.Attention) { c.QPanels = 3 })},
	{"attention of no keys", isa.ErrCount, with(attention(), func(c *isa.Attention) { c.Keys = 0 })},
	{"attention with a large factor", isa.ErrCount, with(attention(), func(c *isa.Attention) { c.ScoreMul = 32768 })},
	{"vector of no words", isa.ErrCount, with(vector(), func(c *isa.Vector) { c.Words = 0 })},
	{"vector of no panels", isa.ErrCount, with(vector(), func(c *isa.Vector) { c.Panels = 0 })},
	{"vector of no kind", isa.ErrOp, with(vector(), func(c *isa.Vector) { c.Kind = 5 })},
	{"vector with wide results from a table", isa.ErrOp,
		with(vector(), func(c *isa.Vector) { c.Wide, c.Table = true, 1 })},
	{"product with a residual", isa.ErrOp,
		with(vector(), func(c *isa.Vector) { c.Kind, c.Residual = isa.VectorMul, true })},
	{"norm of nothing", isa.ErrCount, with(vector(), func(c *isa.Vector) { c.Kind = isa.VectorRMSNorm })},
	{"norm of too much", isa.ErrCount, with(vector(),
		func(c *isa.Vector) { c.Kind, c.Count = isa.VectorLayerNorm, 4097 })},
	{"combine of nothing", isa.ErrCount, with(vector(), func(c *isa.Vector) { c.Kind = isa.VectorCombine })},
	{"combine of too many", isa.ErrCount,
		with(vector(), func(c *isa.Vector) { c.Kind, c.TopK = isa.VectorCombine, 3 })},
	{"route of no tokens", isa.ErrCount, with(route(), func(c *isa.Route) { c.Rows = 0 })},
	{"route to nobody", isa.ErrCount, with(route(), func(c *isa.Route) { c.Experts = 0 })},
	{"route to too many", isa.ErrCount, with(route(), func(c *isa.Route) { c.Experts = 17 })},
	{"route to no rank", isa.ErrCount, with(route(), func(c *isa.Route) { c.TopK = 0 })},
	{"route to more ranks than experts", isa.ErrCount, with(route(), func(c *isa.Route) { c.Experts = 1 })},
}

// limitAt is where the memory of the programs that stop ends.
const limitAt = programAt + 300*isa.DescBytes

// stops runs a program that must stop with an error at a descriptor, resets the machine, and runs a good program.
func (h *host) stops(name string, code isa.Error, at uint32, program ...isa.Command) {
	h.t.Helper()
	h.setReg(isa.RegLimit, limitAt)
	h.setReg(isa.RegWatchdog, 2000)
	status, _ := h.run(1e5, program...)
	if status != isa.StatusError {
		h.t.Errorf("%s: status %#x", name, status)
	}
	if got, where := isa.Error(h.reg(isa.RegError)), h.reg(isa.RegErrorAt); got != code || where != at {
		h.t.Errorf("%s: %v at descriptor %d, want %v at %d", name, got, where, code, at)
	}
	h.setReg(isa.RegControl, isa.ControlStart) // only a reset continues
	if s := h.reg(isa.RegStatus); s != isa.StatusError {
		h.t.Errorf("%s: status %#x after a start", name, s)
	}
	h.setReg(isa.RegControl, isa.ControlReset)
	if s, e := h.reg(isa.RegStatus), h.reg(isa.RegError); s != 0 || e != 0 {
		h.t.Errorf("%s: status %#x, error %d after a reset", name, s, e)
	}
	rows := make([]byte, 128)
	for i := range rows {
		rows[i] = byte(i) ^ byte(len(name))
	}
	h.write(0x40, rows)
	h.write(0x4000, make([]byte, 128))
	l, s := load(), store()
	l.Post, s.Wait = 4, 4
	h.good(l, s, gemm(), &isa.End{})
	if !bytes.Equal(h.read(0x4000, 128), rows) {
		h.t.Errorf("%s: a program after the reset gives other bytes", name)
	}
}

// TestErrors: the machine stops at each bad descriptor, at any position, and recovers.
func TestErrors(t *testing.T) {
	h := startHost(t, routed, around(t, true), 1)
	for i, b := range bad {
		h.setMemory(models[i%len(models)])
		h.stops(b.name, b.code, 0, b.command, &isa.End{})
		h.stops(b.name+" later", b.code, 4, load(), gemm(), &isa.Barrier{}, load(), b.command, load(), &isa.End{})
	}
}

// TestLacking refuses what a small overlay does not have.
func TestLacking(t *testing.T) {
	h := startHost(t, configs[1], around(t, true), 1)
	h.setReg(isa.RegWatchdog, 2000)
	for _, c := range []isa.Command{attention(), route(), with(load(), func(c *isa.Load) { c.Gather = true }),
		with(load(), func(c *isa.Load) { c.Skip = true }),
		with(store(), func(c *isa.Store) { c.Scatter, c.TopK = true, 1 }),
		with(vector(), func(c *isa.Vector) { c.Kind, c.Count = isa.VectorRMSNorm, 4 }),
		with(vector(), func(c *isa.Vector) { c.Kind, c.Count = isa.VectorLayerNorm, 4 }),
		with(vector(), func(c *isa.Vector) { c.Kind, c.TopK = isa.VectorCombine, 1 }),
		with(gemm(), func(c *isa.Gemm) { c.Listed = true })} {
		h.stops(isa.Text(c), isa.ErrOp, 1, gemm(), c, &isa.End{})
	}
}

// TestPrograms are errors of whole programs.
func TestPrograms(t *testing.T) {
	h := startHost(t, routed, around(t, true), 1)
	// Posting a semaphore 256 times.
	var posts []isa.Command
	for range 256 {
		posts = append(posts, &isa.Barrier{Sync: isa.Sync{Post: 0x81}})
	}
	h.stops("too many posts by barriers", isa.ErrSemaphore, 255, append(posts, &isa.End{})...)
	for i := range 10 {
		posts[246+i] = with(load(), func(c *isa.Load) { c.Post = 1 })
	}
	h.stops("too many posts by loads", isa.ErrSemaphore, 255, append(posts, &isa.End{})...)
	// A semaphore that nothing posts: the watchdog.
	h.stops("a wait for nothing", isa.ErrWatchdog, 2, load(), with(store(), func(c *isa.Store) { c.Wait = 1 }),
		&isa.End{})
	h.stops("a barrier that waits for nothing", isa.ErrWatchdog, 1, load(),
		&isa.Barrier{Sync: isa.Sync{Wait: 1}}, &isa.End{})
	h.setReg(isa.RegProgram, 0x8010)
	h.setReg(isa.RegControl, isa.ControlStart)
	h.ask(0, opRun, 0, 100, nil)
	if s := h.reg(isa.RegStatus); s != isa.StatusError || isa.Error(h.reg(isa.RegError)) != isa.ErrMemory ||
		h.reg(isa.RegErrorAt) != 0 {
		t.Errorf("a program at 0x8010: status %#x, error %d", s, h.reg(isa.RegError))
	}
	h.setReg(isa.RegControl, isa.ControlReset)
	// A program without End runs to the end of its memory.
	var long []isa.Command
	for range (limitAt - programAt) / isa.DescBytes {
		long = append(long, &isa.Barrier{})
	}
	h.stops("a program without end", isa.ErrMemory, uint32(len(long)), long...)
	// A descriptor of no operation.
	p, err := isa.Encode(nil, load())
	if err != nil {
		t.Fatal(err)
	}
	p[0] |= 15
	h.write(programAt, p)
	h.setReg(isa.RegLimit, limitAt)
	h.setReg(isa.RegProgram, programAt)
	h.setReg(isa.RegControl, isa.ControlStart)
	h.ask(0, opRun, 0, 1000, nil)
	if e, at := isa.Error(h.reg(isa.RegError)), h.reg(isa.RegErrorAt); e != isa.ErrOp || at != 0 {
		t.Errorf("operation 15: %v at %d", e, at)
	}
}

// TestWatchdog sets the watchdog while a program waits for nothing: it has that many cycles from then on.
func TestWatchdog(t *testing.T) {
	h := startHost(t, routed, around(t, true), 1)
	h.setReg(isa.RegWatchdog, 0)
	status, _ := h.run(5000, with(store(), func(c *isa.Store) { c.Wait = 1 }), &isa.End{})
	if status != isa.StatusBusy {
		t.Errorf("without a watchdog: status %#x", status)
	}
	h.setReg(isa.RegWatchdog, 1000)
	for _, c := range []struct {
		cycles uint64
		status uint32
	}{{900, isa.StatusBusy}, {200, isa.StatusError}} {
		if s, _ := h.ask(0, opRun, 0, c.cycles, nil); uint32(s) != c.status {
			t.Errorf("%d cycles later: status %#x, want %#x", c.cycles, s, c.status)
		}
	}
}

// TestReset stops a machine in the middle of its work, at every cycle of a program, and runs a program after it.
func TestReset(t *testing.T) {
	h := startHost(t, routed, around(t, true), 1)
	for n := uint64(1); n < 260; n += 7 {
		h.setMemory(models[n%uint64(len(models))])
		l, s := load(), store()
		l.Post, s.Wait = 1, 1
		if status, _ := h.run(n, l, load(), s, gemm(), &isa.Barrier{}, &isa.Stamp{Addr: 0x5000}, load(),
			&isa.End{}); status&isa.StatusError != 0 {
			t.Fatalf("status %#x after %d cycles", status, n)
		}
		h.setReg(isa.RegControl, isa.ControlReset)
		if got := h.reg(isa.RegWatchdog); got != 1<<20 {
			t.Fatalf("the watchdog is %d after a reset", got)
		}
		rows := make([]byte, 128)
		for i := range rows {
			rows[i] = byte(i) + byte(n)
		}
		h.write(0x40, rows)
		h.good(l, s, &isa.End{})
		if !bytes.Equal(h.read(0x4000, 128), rows) {
			t.Fatalf("wrong bytes after a reset at cycle %d", n)
		}
	}
}

// TestOrder has many descriptors of all engines wait for each other, more than a queue holds.
func TestOrder(t *testing.T) {
	h := startHost(t, routed, around(t, true), 1)
	rows := make([]byte, 128)
	for i := range rows {
		rows[i] = byte(3 * i)
	}
	h.write(0x40, rows)
	// Each round takes the rows one place further: LOAD, then EXEC, then STORE, then the next round's LOAD.
	var program []isa.Command
	const rounds = 20
	for i := range uint32(rounds) {
		l, g, s := load(), gemm(), store()
		l.Addr, s.Addr = 0x40+128*i, 0x40+128*(i+1)
		l.Post, g.Wait, g.Post, s.Wait, s.Post = 1, 1, 2, 2, 4
		if i > 0 {
			l.Wait = 4
		}
		program = append(program, l, g, s)
	}
	cycles := h.good(append(program, &isa.End{})...)
	if !bytes.Equal(h.read(0x40+128*rounds, 128), rows) {
		t.Error("the rows did not arrive")
	}
	for _, c := range []struct {
		counter   isa.Counter
		low, high uint64
	}{
		{isa.CountCycles, cycles - 4, cycles + 2}, {isa.CountMultiply, 5 * rounds, 5 * rounds},
		{isa.CountExec, 5 * rounds, 40 * rounds},
		{isa.CountExecWaits, 1, cycles}, {isa.CountLoad, 32 * rounds, cycles}, {isa.CountLoadStalls, 1, cycles},
		{isa.CountStore, 32 * rounds, cycles},
		{isa.CountStoreStalls, 1, cycles}, {isa.CountReadBeats, 32*rounds + 8*(3*rounds+1), 32*rounds + 8*(3*rounds+5)},
		{isa.CountWriteBeats, 32 * rounds, 32 * rounds}, {isa.CountDescriptors, 3*rounds + 1, 3*rounds + 1},
	} {
		if got := h.counter(c.counter); got < c.low || got > c.high {
			t.Errorf("%v: %d, want %d to %d", c.counter, got, c.low, c.high)
		}
	}
	h.setReg(isa.RegStatus, isa.StatusDone)
	if s := h.reg(isa.RegStatus); s != 0 {
		t.Errorf("status %#x when done was cleared", s)
	}
}

// TestBackToBack gives EXEC one descriptor after the other.
func TestBackToBack(t *testing.T) {
	h := startHost(t, routed, around(t, false), 1)
	const n, busy = 30, 64
	program := make([]isa.Command, n, n+1)
	for i := range program {
		program[i] = with(gemm(), func(c *isa.Gemm) { c.Words = busy })
	}
	cycles := h.good(append(program, &isa.End{})...)
	if want := uint64(n*(busy+4) + 150); cycles > want {
		t.Errorf("%d descriptors of %d cycles take %d cycles, more than %d", n, busy, cycles, want)
	}
}

// TestShape reads the configuration from the registers.
func TestShape(t *testing.T) {
	h := startHost(t, routed, around(t, true), 1)
	if id, v := h.reg(isa.RegID), h.reg(isa.RegVersion); id != isa.ID || v != isa.Version {
		t.Errorf("ID %#x, version %d", id, v)
	}
	var shape [4]uint32
	for i := range shape {
		shape[i] = h.reg(isa.RegShape0 + 4*uint32(i))
	}
	c, err := isa.FromShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name = routed.Name; c != routed {
		t.Errorf("%+v, want %+v", c, routed)
	}
	h.setReg(isa.RegExpert, 5)
	if n := h.reg(isa.RegCount); n != 5 {
		t.Errorf("list 5 has %d entries", n)
	}
	if n := h.reg(isa.RegDropped); n != 7 {
		t.Errorf("%d dropped", n)
	}
}
