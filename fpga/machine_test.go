package fpga_test

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"fusec/fpga"
	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/model"
)

// small is the tests' overlay.
var small = isa.Config{Name: "small", Rows: 4, Cols: 4, WordBytes: 4, XWords: 64, WWords: 64, YWords: 64, Params: 32,
	Tables: 1, AccBits: 32,
	Experts: 4, ListLen: 16, Tokens: 32, TopK: 2, AddrBits: 16}

// odd is the model with registers that read otherwise, and what Wait says.
type odd struct {
	link.Link
	registers map[uint32]uint32
	status    uint32
	err       error
}

func (o *odd) ReadReg(at uint32) (uint32, error) {
	if v, ok := o.registers[at]; ok {
		return v, o.err
	}
	return o.Link.ReadReg(at)
}

func (o *odd) Wait(context.Context) (uint32, error) { return o.status, o.err }

func newModel(t testing.TB) *model.Machine {
	t.Helper()
	m, err := model.New(small, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func open(t testing.TB, l link.Link) *fpga.Machine {
	t.Helper()
	m, err := fpga.Open(l)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func want(t testing.TB, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %q", err, text)
	}
}

func TestOpen(t *testing.T) {
	for text, registers := range map[string]map[uint32]uint32{
		"model: no overlay of fusec's answers: its ID reads 0xffffffff and not 0x66786f31": {isa.RegID: 1<<32 - 1},
		"the overlay is of version 9, this program knows version 1":                        {isa.RegVersion: 9},
		"make no sense: overlay \"\": Rows":                                                {isa.RegShape0: 0},
		"AddrBits: want 16 to 32":                                                          {isa.RegShape1: 0},
	} {
		_, err := fpga.Open(&odd{Link: newModel(t), registers: registers})
		want(t, err, text)
	}
	died := errors.New("the link died")
	for _, at := range []uint32{isa.RegID, isa.RegVersion, isa.RegShape3} {
		value, err := newModel(t).ReadReg(at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fpga.Open(&odd{Link: newModel(t), registers: map[uint32]uint32{at: value},
			err: died}); err != died {
			t.Errorf("register %#x: %v", at, err)
		}
	}
	m := open(t, newModel(t))
	c := small
	if c.Name = "model"; m.Config() != c || m.MemoryBytes() != 1<<16 {
		t.Errorf("%+v", m.Config())
	}
}

// load is a Load of one word.
func load(s isa.Sync) *isa.Load { return &isa.Load{Sync: s, Space: isa.SpaceX, Rows: 1, Words: 1} }

func TestLoad(t *testing.T) {
	m := open(t, newModel(t))
	for text, c := range map[string][]isa.Command{
		"a program of no descriptors": nil,
		"descriptor 1 (load Space=X Rows=1 Words=1): a program ends with its only end": {load(isa.Sync{}),
			load(isa.Sync{})},
		"descriptor 0 (end): a program ends with its only end": {&isa.End{}, &isa.End{}},
		"descriptor 0 (load Space=X Words=1): Rows: a count is zero": {&isa.Load{Space: isa.SpaceX,
			Words: 1}, &isa.End{}},
		"descriptor 0 (attention Space=Y): Attention: the operation is not one": {&isa.Attention{}, &isa.End{}},
		"descriptor 0: store: TopK = 9: more than 3 bits": {&isa.Store{TopK: 9, Rows: 1,
			Words: 1}, &isa.End{}},
	} {
		_, err := m.Load(0, c)
		want(t, err, text)
	}
	_, err := m.Load(16, []isa.Command{&isa.End{}})
	want(t, err, "a program at 0x10: want a multiple of 32")
	_, err = m.Load(1<<16-32, []isa.Command{load(isa.Sync{}), &isa.End{}})
	want(t, err, "64 bytes at 0xffe0: memory has 65536")
	p, err := m.Load(64, []isa.Command{load(isa.Sync{}), &isa.End{}})
	if err != nil || p.At() != 64 || p.Bytes() != 64 || len(p.Commands()) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestRun stops the machine in ways that Load cannot see, and runs other programs after it.
func TestRun(t *testing.T) {
	m := open(t, newModel(t))
	ctx := context.Background()
	run := func(c ...isa.Command) error {
		t.Helper()
		p, err := m.Load(1024, append(c, &isa.End{}))
		if err != nil {
			t.Fatal(err)
		}
		return m.Run(ctx, p)
	}
	stopped := func(err error, code isa.Error, number int, text string) {
		t.Helper()
		var d *fpga.DescriptorError
		if !errors.As(err, &d) || !errors.Is(err, code) || d.Number != number || err.Error() != text {
			t.Errorf("error %v, want %q", err, text)
		}
		if err := run(load(isa.Sync{Post: 1}), load(isa.Sync{Wait: 1})); err != nil {
			t.Errorf("after it: %v", err)
		}
	}
	stopped(run(load(isa.Sync{Wait: 2})), isa.ErrWatchdog, 1,
		"the overlay stopped after descriptor 1 (end) was fetched: no progress: "+
			"a semaphore that nothing posts, or memory that does not answer")
	var posts []isa.Command
	for range 256 {
		posts = append(posts, &isa.Barrier{Sync: isa.Sync{Post: 4}})
	}
	stopped(run(posts...), isa.ErrSemaphore, 255,
		"the overlay stopped at descriptor 255 (barrier Post=2): a semaphore was posted too often")
	var logits [8]byte
	binary.LittleEndian.PutUint16(logits[4:], 100)
	if err := m.Write(0, logits[:]); err != nil {
		t.Fatal(err)
	}
	route := []isa.Command{&isa.Load{Sync: isa.Sync{Post: 1}, Space: isa.SpaceX, Stride: 8, Rows: 1, Words: 2},
		&isa.Route{Sync: isa.Sync{Wait: 1, Post: 2}, First: true, Rows: 1, Experts: 4, TopK: 1, Token: 7}}
	stopped(run(append(route, &isa.Load{Sync: isa.Sync{Wait: 2}, Gather: true, Space: isa.SpaceW, Addr: 1024,
		Stride: 1 << 14, Rows: 1, Words: 1, List: 2})...),
		isa.ErrMemory, 2, "the overlay stopped at descriptor 2 (load Wait=1 Gather Space=W Addr=0x400 "+
			"Stride=16384 Rows=1 Words=1 List=2): "+
			"an address lies outside the program's memory or is not aligned")
	if err := run(route...); err != nil {
		t.Fatal(err)
	}
	for e, want := range []int{0, 0, 1, 0} {
		if n, err := m.Tokens(e); n != want || err != nil {
			t.Errorf("expert %d has %d tokens, %v", e, n, err)
		}
	}
	if n, err := m.Dropped(); n != 0 || err != nil {
		t.Errorf("%d dropped, %v", n, err)
	}
	if err := run(&isa.Gemm{Words: 4, Panels: 2, Tiles: 3, Out: isa.Out{Panel: 3}}, &isa.Barrier{}, &isa.Stamp{
		Addr: 64}); err != nil {
		t.Fatal(err)
	}
	counts, err := m.Counters()
	if err != nil || counts[isa.CountMultiply] != 6*16 || counts[isa.CountDescriptors] != 4 ||
		counts[isa.CountWriteBeats] != 4 || counts[isa.CountReadBeats] != 32 {
		t.Errorf("counters %v, %v", counts, err)
	}
	cycles, multiply, err := m.Stamp(64)
	if err != nil || multiply != 96 || cycles < 96 || cycles > counts[isa.CountCycles] {
		t.Errorf("a stamp of %d cycles, %d multiplying, %v", cycles, multiply, err)
	}
}

// TestRunNonsense has machines that answer what none does, and links that die.
func TestRunNonsense(t *testing.T) {
	o := &odd{Link: newModel(t)}
	m := open(t, o)
	p, err := m.Load(0, []isa.Command{load(isa.Sync{}), &isa.End{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	o.status = 0
	want(t, m.Run(ctx, p), "model: the status register reads 0x0 after a run: neither done nor error")
	o.status, o.registers = isa.StatusError, map[uint32]uint32{isa.RegError: 3, isa.RegErrorAt: 77}
	want(t, m.Run(ctx, p), "the overlay reports error 3 at descriptor 77 of 2, which makes no sense")
	o.registers = map[uint32]uint32{isa.RegError: 99, isa.RegErrorAt: 0}
	want(t, m.Run(ctx, p), "the overlay stopped at descriptor 0 (load Space=X Rows=1 Words=1): error 99")
	died := errors.New("the link died")
	if o.err = died; m.Run(ctx, p) != died {
		t.Error("a link that dies")
	}
	cancel()
	if o.err = ctx.Err(); !errors.Is(m.Run(ctx, p), context.Canceled) {
		t.Error("a context that has ended")
	}
}

// TestRunAllocates checks that a run allocates nothing.
func TestRunAllocates(t *testing.T) {
	o := &odd{Link: newModel(t), status: isa.StatusDone}
	m := open(t, o)
	p, err := m.Load(0, []isa.Command{&isa.End{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	own := testing.AllocsPerRun(10, func() { o.WriteReg(isa.RegControl, isa.ControlStart) })
	if n := testing.AllocsPerRun(10, func() {
		if err := m.Run(ctx, p); err != nil {
			t.Fatal(err)
		}
	}); n > own {
		t.Errorf("%v allocations in a run, %v of them the model's", n, own)
	}
}
