package model

import (
	"context"
	"errors"
	"strings"
	"testing"

	"fusec/fpga/isa"
)

// small is the overlay of the tests: everything, 4 × 4.
var small = isa.Config{Name: "small", Rows: 4, Cols: 4, WordBytes: 4, XWords: 256, WWords: 256, YWords: 256,
	Params: 64, Tables: 2, AccBits: 32,
	KeyBlock: 16, HeadDim: 32, QPanels: 4, Norms: true, Experts: 8, ListLen: 16, Tokens: 64, TopK: 2, AddrBits: 20}

// machine is a new one with a megabyte of memory that looks for races.
func machine(t testing.TB, c isa.Config) *Machine {
	t.Helper()
	m, err := New(c, Options{Memory: 1 << min(c.AddrBits, 20), Races: true})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// programAt is the address of the tests' programs.
const programAt = 1 << 14

// execute runs commands, End behind them, and gives how the machine stopped, or the race.
func execute(t testing.TB, m *Machine, commands ...isa.Command) (isa.Error, uint32, error) {
	t.Helper()
	var b []byte
	for _, c := range append(append([]isa.Command(nil), commands...), &isa.End{}) {
		var err error
		if b, err = isa.Encode(b, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Write(programAt, b); err != nil {
		t.Fatal(err)
	}
	for _, w := range [][2]uint32{{isa.RegControl, isa.ControlReset}, {isa.RegProgram, programAt}, {isa.RegControl,
		isa.ControlStart}} {
		if err := m.WriteReg(w[0], w[1]); err != nil {
			t.Fatal(err)
		}
	}
	_, err := m.Wait(context.Background())
	code, _ := m.ReadReg(isa.RegError)
	number, _ := m.ReadReg(isa.RegErrorAt)
	return isa.Error(code), number, err
}

// must runs commands that are right.
func must(t testing.TB, m *Machine, commands ...isa.Command) {
	t.Helper()
	if code, number, err := execute(t, m, commands...); code != isa.ErrNone || err != nil {
		t.Fatalf("%v at %d, %v", code, number, err)
	}
}

// TestRaces has pairs of descriptors that touch the same words: without an order each is a race, with one none.
func TestRaces(t *testing.T) {
	loadX := func(s isa.Sync) isa.Command { return &isa.Load{Sync: s, Space: isa.SpaceX, Rows: 4, Words: 2} }
	storeX := func(s isa.Sync) isa.Command {
		return &isa.Store{Sync: s, Space: isa.SpaceX, Addr: 4096, Stride: 8, Rows: 4, Words: 2, Base: 1}
	}
	gemm := func(s isa.Sync) isa.Command {
		return &isa.Gemm{Sync: s, Out: isa.Out{Base: 8, Panel: 1}, X: 1, Words: 2, Panels: 1, Tiles: 1}
	}
	again := func(s isa.Sync) isa.Command {
		return &isa.Gemm{Sync: s, Out: isa.Out{Base: 9, Residual: true, Res: 8}, X: 20, W: 20, Words: 2, Panels: 1,
			Tiles: 1}
	}
	storeY := func(s isa.Sync) isa.Command {
		return &isa.Store{Sync: s, Addr: 4096, Stride: 4, Rows: 4, Words: 1, Base: 8}
	}
	back := func(s isa.Sync) isa.Command {
		return &isa.Load{Sync: s, Space: isa.SpaceW, Addr: 4100, Rows: 1, Words: 1}
	}
	params := func(s isa.Sync) isa.Command {
		return &isa.Load{Sync: s, Space: isa.SpaceParams, Rows: 1, Words: 2, Base: 3}
	}
	route := func(s isa.Sync) isa.Command {
		return &isa.Route{Sync: s, First: true, X: 40, XPanel: 4, Rows: 4, Experts: 4, TopK: 2}
	}
	gather := func(s isa.Sync) isa.Command {
		return &isa.Load{Sync: s, Gather: true, Space: isa.SpaceW, Rows: 1, Words: 1, Base: 99}
	}
	combine := func(s isa.Sync) isa.Command {
		return &isa.Vector{Sync: s, Out: isa.Out{Base: 99}, OneParam: true, X: 60, XPanel: 1, Words: 1, Panels: 1,
			Kind: isa.VectorCombine, TopK: 2}
	}
	type make func(isa.Sync) isa.Command
	for _, c := range []struct {
		first, second make
		where         string
	}{
		{loadX, gemm, "writes word 1 of X"}, {gemm, loadX, "reads word 1 of X"}, {gemm, storeY, "word 8 of Y"},
		{storeY, gemm, "word 8 of Y"},
		{loadX, storeX, "word 1 of X"}, {storeX, loadX, "word 1 of X"}, {storeY, back, "word 1025 of memory"}, {back,
			storeY, "word 1025 of memory"},
		{params, gemm, "record 3"}, {gemm, params, "record 3"}, {gemm, again, "word 8 of Y"}, {route, gather,
			"the list of expert 0"},
		{gather, route, "the list of expert 0"}, {route, combine, "the gates of token 0"},
	} {
		m := machine(t, small)
		_, _, err := execute(t, m, c.first(isa.Sync{}), c.second(isa.Sync{}))
		var race *Race
		if !errors.As(err, &race) || race.First != 0 || race.Second != 1 || !strings.Contains(err.Error(), c.where) {
			t.Errorf("error %v, want %q", err, c.where)
		}
		must(t, m, c.first(isa.Sync{Post: 16}), c.second(isa.Sync{Wait: 16}))
		must(t, m, c.first(isa.Sync{}), &isa.Barrier{}, c.second(isa.Sync{}))
	}
	// By way of a third engine; and not by way of the wrong one.
	must(t, machine(t, small), loadX(isa.Sync{Post: 1}), gemm(isa.Sync{Wait: 1, Post: 2}), storeX(isa.Sync{Wait: 2}))
	for name, c := range map[string][]isa.Command{
		// The semaphore may have been posted by the other poster.
		"two posters": {loadX(isa.Sync{Post: 1}), storeY(isa.Sync{Post: 1}), gemm(isa.Sync{Wait: 1, Post: 2}),
			storeY(isa.Sync{Wait: 2})},
		// One post was there before.
		"a credit": {&isa.Barrier{Sync: isa.Sync{Post: 1}}, loadX(isa.Sync{Post: 1}), gemm(isa.Sync{Wait: 1})},
		// A descriptor's Wait says nothing of what its engine does before.
		"too late": {loadX(isa.Sync{Post: 1}), gemm(isa.Sync{}), again(isa.Sync{Wait: 1})},
	} {
		if _, _, err := execute(t, machine(t, small), c...); err == nil || !strings.Contains(err.Error(), "race: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, machine(t, small), &isa.Barrier{Sync: isa.Sync{Post: 1}}, loadX(isa.Sync{Post: 1}), &isa.Barrier{},
		gemm(isa.Sync{Wait: 1}))
	// What one engine does in order, and words of the same number in other memories, are no races.
	must(t, machine(t, small), loadX(isa.Sync{}), loadX(isa.Sync{}), &isa.Load{Space: isa.SpaceW, Rows: 4, Words: 2},
		&isa.Store{Addr: 4096, Stride: 4, Rows: 4, Words: 1}, &isa.Store{Addr: 4096, Stride: 4, Rows: 4, Words: 1})
}

// TestOverwrites has descriptors that write what they have yet to read, and ones that work in place.
func TestOverwrites(t *testing.T) {
	for _, bad := range []isa.Command{
		&isa.Gemm{Out: isa.Out{Space: isa.SpaceX, Base: 3}, X: 2, Words: 2, Panels: 1, Tiles: 1},
		&isa.Gemm{Out: isa.Out{Space: isa.SpaceX}, Words: 1, Panels: 1, Tiles: 1},
		&isa.Gemm{Out: isa.Out{Space: isa.SpaceW, Base: 1}, Words: 2, Panels: 1, Tiles: 1},
		&isa.Gemm{Out: isa.Out{Residual: true, Res: 1}, Words: 2, Panels: 1, Tiles: 2},
		&isa.Gemm{Out: isa.Out{Residual: true, Panel: 1, Res: 1, ResPanel: 1}, Words: 1, Panels: 2, Tiles: 1},
		&isa.Gemm{Out: isa.Out{Residual: true, Wide: true}, Words: 1, Panels: 1, Tiles: 1},
		&isa.Attention{First: true, Last: true, Space: isa.SpaceX, Dim: 2, QPanels: 1, Keys: 4, V: 50},
		&isa.Vector{Out: isa.Out{Space: isa.SpaceX, Base: 1}, OneParam: true, Words: 2, Panels: 1},
		&isa.Vector{Out: isa.Out{Space: isa.SpaceX, Wide: true}, OneParam: true, Words: 2, Panels: 1},
	} {
		_, _, err := execute(t, machine(t, small), bad)
		var race *Race
		if !errors.As(err, &race) || race.First != race.Second || !strings.Contains(err.Error(),
			"before it has read it") {
			t.Errorf("%s: %v", isa.Text(bad), err)
		}
	}
	for _, good := range []isa.Command{
		&isa.Gemm{Out: isa.Out{Residual: true, Base: 5, Panel: 2, Res: 5, ResPanel: 2}, Words: 2, Panels: 2, Tiles: 2},
		&isa.Vector{Out: isa.Out{Space: isa.SpaceX, Base: 5, Panel: 2}, OneParam: true, X: 5, XPanel: 2, Words: 2,
			Panels: 2, Kind: isa.VectorLayerNorm, Count: 8},
		&isa.Vector{Out: isa.Out{Base: 5, Panel: 2, Res: 5, ResPanel: 2}, OneParam: true, Words: 2, Panels: 2,
			Kind: isa.VectorMul, XPanel: 2},
	} {
		must(t, machine(t, small), good)
	}
}

func TestMisuse(t *testing.T) {
	gemm := func(more, hold bool) isa.Command {
		return &isa.Gemm{More: more, Hold: hold, Words: 1, Panels: 1, Tiles: 1}
	}
	attention := func(first, last bool) isa.Command {
		return &isa.Attention{First: first, Last: last, Dim: 1, QPanels: 1, Keys: 1, K: 9, V: 9, Base: 9}
	}
	for want, c := range map[string][]isa.Command{
		"descriptor 0 (gemm Space=Y More Words=1 Panels=1 Tiles=1): More, but": {gemm(true, false)},
		"descriptor 1 (gemm Space=Y Words=1 Panels=1 Tiles=1): no More, but the array": {gemm(false, true), gemm(false,
			false)},
		"descriptor 1 (attention First Last": {gemm(false, true),
			attention(true, true)},
		"no Attention with First": {attention(false, true)},
	} {
		_, _, err := execute(t, machine(t, small), c...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	must(t, machine(t, small), gemm(false, true), gemm(true, true), gemm(true, false), attention(true, false),
		attention(false, false),
		attention(false, true))
}

// TestQueues fills an engine's queue: what is behind QueueDepth waiting descriptors is not fetched.
func TestQueues(t *testing.T) {
	store := &isa.Store{Sync: isa.Sync{Wait: 1}, Addr: 4096, Rows: 1, Words: 1}
	post := &isa.Gemm{Sync: isa.Sync{Post: 1}, Out: isa.Out{Base: 9}, Words: 1, Panels: 1, Tiles: 1}
	program := func(n int) (c []isa.Command) {
		for range n {
			c = append(c, store)
		}
		for range n {
			c = append(c, post)
		}
		return c
	}
	must(t, machine(t, small), program(isa.QueueDepth)...)
	if code, number, err := execute(t, machine(t, small), program(isa.QueueDepth+1)...); code != isa.ErrWatchdog ||
		number != isa.QueueDepth || err != nil {
		t.Errorf("%v at %d, %v", code, number, err)
	}
	m := machine(t, small)
	wait := &isa.Load{Sync: isa.Sync{Wait: 4}, Space: isa.SpaceX, Rows: 1, Words: 1}
	if code, number, err := execute(t, m, wait); code != isa.ErrWatchdog || number != 1 || err != nil {
		t.Errorf("%v at %d, %v", code, number, err)
	}
	if err := m.WriteReg(isa.RegControl, isa.ControlStart); err != nil || m.status != isa.StatusError {
		t.Errorf("a start after an error: status %d, %v", m.status, err)
	}
	// Without a watchdog the machine waits for ever; the caller need not.
	for _, w := range [][2]uint32{{isa.RegControl, isa.ControlReset}, {isa.RegProgram, programAt}, {isa.RegWatchdog,
		0}, {isa.RegControl, isa.ControlStart}} {
		if err := m.WriteReg(w[0], w[1]); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if status, err := m.Wait(ctx); status != isa.StatusBusy || !errors.Is(err, context.Canceled) {
		t.Errorf("status %d, %v", status, err)
	}
}

// TestNew has what a machine cannot be made with.
func TestNew(t *testing.T) {
	if _, err := New(isa.Config{Name: "none"}, Options{}); err == nil || !strings.Contains(err.Error(),
		`overlay "none": Rows`) {
		t.Error(err)
	}
	if _, err := New(small, Options{Memory: 1<<20 + 1}); err == nil || !strings.Contains(err.Error(),
		"addresses of 20 bits reach 1048576") {
		t.Error(err)
	}
	m := machine(t, small)
	if err := m.Read(1<<20-1, make([]byte, 2)); err == nil || !strings.Contains(err.Error(), "memory has 1048576") {
		t.Error(err)
	}
}

// TestStep executes single commands and checks their accesses.
func TestStep(t *testing.T) {
	m := machine(t, small)
	touched, err := m.Step(&isa.Gemm{Sync: isa.Sync{Wait: 1}, Out: isa.Out{Base: 8, Table: 1}, X: 1, W: 2, Words: 3,
		Panels: 1, Tiles: 1})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range touched {
		got = append(got, a.String())
	}
	want := "reads 3 from word 1 of X; reads 3 from word 2 of W; " +
		"reads 4 from record 0; reads 1 from table 0; writes 1 from word 8 of Y"
	if s := strings.Join(got, "; "); s != want {
		t.Errorf("%s, want %s", s, want)
	}
	var fault *isa.Fault
	if _, err := m.Step(&isa.Gemm{}); !errors.As(err, &fault) || fault.Field != "Words" {
		t.Error(err)
	}
	var misuse *Misuse
	if _, err := m.Step(&isa.Gemm{More: true, Words: 1, Panels: 1, Tiles: 1}); !errors.As(err, &misuse) {
		t.Error(err)
	}
}
