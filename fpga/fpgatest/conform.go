package fpgatest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"fusec/fpga"
	"fusec/fpga/isa"
	"fusec/fpga/link"
)

// Suite is the conformance suite for links to an overlay of a configuration.
type Suite struct {
	Config isa.Config
	// Programs is how many random programs run, of Commands each, with Options' other fields.
	Programs int
	Options  Options
	// Errors is how many of the wrong descriptors are tried; 0: all.
	Errors int
	// Watchdog is the cycles after which the tests' deadlocks end, more than the link's memory takes to answer.
	// Default: 1000.
	Watchdog uint32
	// Open opens a new link. The suite also tests closing and opening.
	Open func(t testing.TB) link.Link
	// Seed is where the random programs begin.
	Seed uint64
}

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	if s.Watchdog == 0 {
		s.Watchdog = 1000
	}
	t.Run("registers", s.registers)
	t.Run("memory", s.memory)
	t.Run("programs", s.programs)
	t.Run("errors", s.errors)
	t.Run("ends", s.ends)
}

// open opens a link that is closed with the test.
func (s Suite) open(t testing.TB) link.Link {
	t.Helper()
	l := s.Open(t)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := l.ReadReg(isa.RegID); err == nil {
			t.Error("a closed link still reads registers")
		}
	})
	return l
}

// limited is a context that ends early enough for a test to report what hung: after two minutes, not counting the time in which the
// test is stopped.
func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		defer cancel()
		const tick = time.Second
		for range 2 * time.Minute / tick {
			select {
			case <-ctx.Done():
				return
			case <-time.After(tick):
			}
		}
	}()
	return ctx
}

func (s Suite) registers(t *testing.T) {
	l := s.open(t)
	if l.Name() == "" {
		t.Error("a link without a name")
	}
	if err := l.WriteReg(isa.RegControl, isa.ControlReset); err != nil {
		t.Fatal(err)
	}
	want := map[uint32]uint32{isa.RegID: isa.ID, isa.RegVersion: isa.Version, isa.RegControl: 0, isa.RegStatus: 0,
		isa.RegError:    0,
		isa.RegWatchdog: 1 << 20, isa.RegDropped: 0}
	for i, v := range s.Config.Shape() {
		want[isa.RegShape0+4*uint32(i)] = v
	}
	for c := range isa.Counters {
		want[isa.RegCounters+8*uint32(c)] = 0
	}
	check := func() {
		t.Helper()
		for at, v := range want {
			if got, err := l.ReadReg(at); err != nil || got != v {
				t.Errorf("register %#02x reads %#x, %v, want %#x", at, got, err, v)
			}
		}
	}
	check()
	for at, v := range map[uint32]uint32{isa.RegProgram: 0x1220, isa.RegLimit: 0x8008, isa.RegWatchdog: 0x12345678} {
		if err := l.WriteReg(at, v); err != nil {
			t.Fatal(err)
		}
		want[at] = v
	}
	check()
	// Of an address's bits above AddrBits one is kept for all, by the time that a program starts; none starts there.
	const far, above = 1<<31 | 0x1220, ^uint32(0)
	stopped, err := (&Raw{At: far, Limit: far}).start(limited(t), l)
	if err != nil || stopped != (Stop{isa.ErrMemory, 0}) {
		t.Errorf("a program at %#x: %q at descriptor %d, %v", uint32(far), stopped.Code, stopped.Number, err)
	}
	for _, at := range []uint32{isa.RegProgram, isa.RegLimit} {
		if got, err := l.ReadReg(at); err != nil || got != far|above<<s.Config.AddrBits {
			t.Errorf("register %#02x reads %#x, %v, when %#x was written", at, got, err, uint32(far))
		}
	}
}

func (s Suite) memory(t *testing.T) {
	l := s.open(t)
	size := min(l.MemoryBytes(), 1<<14)
	if size < 1<<14 {
		t.Fatalf("%d bytes of memory", size)
	}
	r := rand.New(rand.NewPCG(s.Seed, 1))
	want := make([]byte, size)
	if err := l.Write(0, want); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		n := r.IntN(300) * (1 + r.IntN(10)) % int(size)
		at := r.IntN(int(size) - n + 1)
		p := want[at:][:n]
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		if err := l.Write(uint32(at), p); err != nil {
			t.Fatal(err)
		}
		n = r.IntN(2000)
		at = r.IntN(int(size) - n + 1)
		got := make([]byte, n)
		if err := l.Read(uint32(at), got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want[at:][:n]) {
			t.Fatalf("%d bytes at %#x are not what was written", n, at)
		}
	}
	m, err := fpga.Open(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 100} {
		if err := m.Write(uint32(m.MemoryBytes()-int64(n)+1), make([]byte, n)); err == nil {
			t.Error("a write behind memory's end is taken")
		}
		if err := m.Read(uint32(m.MemoryBytes()-int64(n)+1), make([]byte, n)); err == nil {
			t.Error("a read behind memory's end is taken")
		}
	}
}

func (s Suite) programs(t *testing.T) {
	l := s.open(t)
	stalls := rand.New(rand.NewPCG(s.Seed, 2))
	for i := range max(s.Programs, 1) {
		p, err := Random(s.Seed+uint64(i), s.Config, s.Options)
		if err != nil {
			t.Fatal(err)
		}
		if sim, ok := l.(link.Simulator); ok {
			m := RandomMemory(stalls)
			if err := sim.SetMemory(m); err != nil {
				t.Fatal(err)
			}
			t.Logf("seed %d, memory %+v", p.Seed, m)
		}
		if err := p.Compare(limited(t), l); err != nil {
			if !errors.As(err, new(*link.Error)) { // the link itself still works
				short := p.Shrink(func(q *Program) error { return q.Compare(limited(t), l) })
				t.Fatalf("%v\nthe shortest program that differs: %v\n%v", err, short.Compare(limited(t), l), short)
			}
			t.Fatalf("%v\n%v", err, p)
		}
	}
}

// RandomMemory draws a memory model: the ideal one, slow ones, and ones with stalls.
func RandomMemory(r *rand.Rand) link.MemoryModel {
	if r.IntN(4) == 0 {
		return link.MemoryModel{}
	}
	m := link.MemoryModel{Num: 1, Den: 1, Latency: uint32(r.IntN(100)), Burst: uint32(r.IntN(8)),
		Shared: r.IntN(2) == 0, Seed: r.Uint32()}
	if r.IntN(2) == 0 {
		m.Den = uint32(1 + r.IntN(5))
		m.Num = uint32(1 + r.IntN(int(m.Den)))
	}
	if r.IntN(2) == 0 {
		m.Stall = uint32(r.IntN(60000))
	}
	return m
}

// errors stops the overlay in every way, each time between descriptors that are right, and runs a program after it.
func (s Suite) errors(t *testing.T) {
	l := s.open(t)
	limit := uint32(min(l.MemoryBytes(), 1<<15))
	good := &isa.Load{Space: isa.SpaceX, Rows: 1, Words: 1}
	ws := wrongs(s.Config, limit)
	if s.Errors > 0 {
		rand.New(rand.NewPCG(s.Seed, 3)).Shuffle(len(ws), func(i, j int) { ws[i], ws[j] = ws[j], ws[i] })
		ws = ws[:min(s.Errors, len(ws))]
	}
	run := func(name string, r Raw, want Stop) {
		t.Helper()
		r.At = 64
		if r.Limit == 0 {
			r.Limit = limit
		}
		if r.Watchdog == 0 {
			r.Watchdog = 20 * s.Watchdog
		}
		if got, err := r.Run(limited(t), l); err != nil || got != want {
			t.Errorf("%s: %q at descriptor %d, %v, want %q at %d", name, got.Code, got.Number, err, want.Code,
				want.Number)
		}
	}
	raw := func(commands ...isa.Command) (r Raw) {
		if err := r.Encode(commands...); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, w := range ws {
		run(w.name, raw(good, &isa.Barrier{}, w.cmd, &isa.End{}), Stop{w.code, 2})
		run("after "+w.name, raw(good, &isa.Barrier{}, &isa.End{}), Stop{})
	}
	for op := isa.OpRoute + 1; op < 16; op++ {
		r := raw(good, good)
		r.Descriptors = append(r.Descriptors, byte(op))
		r.Descriptors = append(r.Descriptors, make([]byte, isa.DescBytes-1)...)
		run("no such operation", r, Stop{isa.ErrOp, 2})
	}
	var posts []isa.Command
	for range isa.SemaphoreMax + 1 {
		posts = append(posts, &isa.Barrier{Sync: isa.Sync{Post: 1 << 3}})
	}
	run("a semaphore posted by barriers", raw(append(posts, &isa.End{})...), Stop{isa.ErrSemaphore, isa.SemaphoreMax})
	for i := range posts {
		posts[i] = &isa.Load{Sync: isa.Sync{Post: 1 << 5}, Space: isa.SpaceX, Rows: 1, Words: 1}
	}
	run("a semaphore posted by loads", raw(append(posts, &isa.End{})...), Stop{isa.ErrSemaphore, isa.SemaphoreMax})
	waits := &isa.Load{Sync: isa.Sync{Wait: 1 << 2}, Space: isa.SpaceX, Rows: 1, Words: 1}
	for name, c := range map[string]isa.Command{
		"a semaphore that nothing posts": waits,
		"a store that nothing posts for": &isa.Store{Sync: isa.Sync{Wait: 1}, Addr: limit / 2, Rows: 1,
			Words: 1},
		"a product that nothing posts for":        &isa.Gemm{Sync: isa.Sync{Wait: 128}, Words: 1, Panels: 1, Tiles: 1},
		"a barrier that waits for what is behind": &isa.Barrier{Sync: isa.Sync{Wait: 2}},
	} {
		r := raw(good, c, &isa.End{})
		r.Watchdog = s.Watchdog
		want := Stop{isa.ErrWatchdog, 2}
		if c.Op() == isa.OpBarrier {
			want.Number = 1
		}
		run(name, r, want)
	}
	// Of products right behind each other the one that is wrong is to blame.
	if s.Config.XWords < 1<<16 {
		hold := isa.Gemm{Hold: true, Words: 1, Panels: 1, Tiles: 1}
		beyond := isa.Gemm{More: true, X: uint16(s.Config.XWords), Words: 1, Panels: 1, Tiles: 1}
		run("a product behind a product", raw(&hold, &beyond, &hold, &isa.End{}), Stop{isa.ErrScratch, 1})
	}
	open := raw(good, good)
	open.Limit = 64 + 2*isa.DescBytes
	run("no end", open, Stop{isa.ErrMemory, 2})
	run("after all", raw(good, &isa.End{}), Stop{})
}

// ends is how a run ends that its caller gives up, or that a descriptor stops: the machine can be used on.
func (s Suite) ends(t *testing.T) {
	l := s.open(t)
	m, err := fpga.Open(l)
	if err != nil {
		t.Fatal(err)
	}
	load := func(sync isa.Sync) isa.Command { return &isa.Load{Sync: sync, Space: isa.SpaceX, Rows: 1, Words: 1} }
	stuck, err := m.Load(0, []isa.Command{load(isa.Sync{}), load(isa.Sync{Wait: 1}), &isa.End{}})
	if err != nil {
		t.Fatal(err)
	}
	fine, err := m.Load(1024, []isa.Command{load(isa.Sync{Post: 1}), load(isa.Sync{Wait: 1}), &isa.Barrier{},
		&isa.Stamp{Addr: 4096}, &isa.End{}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		stuck.Watchdog = 1<<32 - 1
		if err := m.Run(ctx, stuck); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, isa.ErrWatchdog) {
			t.Errorf("a program that never ends: %v", err)
		}
		cancel()
		if err := m.Run(ctx, fine); !errors.Is(err, ctx.Err()) {
			t.Errorf("a context that has ended: %v", err)
		}
		if err := m.Run(limited(t), fine); err != nil {
			t.Fatal(err)
		}
		counts, err := m.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if counts[isa.CountDescriptors] != 5 || counts[isa.CountCycles] == 0 {
			t.Errorf("counters %v", counts)
		}
		cycles, _, err := m.Stamp(4096)
		if err != nil || cycles == 0 || cycles > counts[isa.CountCycles] {
			t.Errorf("a stamp at cycle %d of %d, %v", cycles, counts[isa.CountCycles], err)
		}
		stuck.Watchdog = s.Watchdog
		err = m.Run(limited(t), stuck)
		var stopped *fpga.DescriptorError
		if !errors.As(err, &stopped) || stopped.Code != isa.ErrWatchdog || stopped.Number != 2 {
			t.Errorf("a deadlock: %v", err)
		}
		if err := m.Run(limited(t), fine); err != nil {
			t.Fatal(err)
		}
	}
}
