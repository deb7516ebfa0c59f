package sim

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"
	"testing/fstest"

	"fusec/fpga/isa"
)

// configs are small overlays of every width of a word.
var configs = []isa.Config{
	{Name: "2 bytes", Rows: 4, Cols: 4, WordBytes: 2, XWords: 64, WWords: 64, YWords: 64, Params: 16, Tables: 1,
		AccBits:   24,
		SerialMul: true, AddrBits: 17},
	{Name: "4 bytes", Rows: 2, Cols: 8, WordBytes: 4, XWords: 512, WWords: 64, YWords: 64, Params: 16,
		Tables: 1, AccBits: 32, AddrBits: 17},
	{Name: "8 bytes", Rows: 8, Cols: 8, WordBytes: 8, XWords: 1024, WWords: 256, YWords: 128, Params: 64,
		Tables: 2, AccBits: 32, AddrBits: 20},
	{Name: "16 bytes", Rows: 4, Cols: 16, WordBytes: 16, XWords: 128, WWords: 64, YWords: 64, Params: 16,
		Tables: 1, AccBits: 32, AddrBits: 32},
}

// around are the options of a simulator whose EXEC is the stand-in in testdata, with busy scratchpads or without.
func around(t *testing.T, busy bool) Options {
	t.Helper()
	files, err := sources(nil)
	if err != nil {
		t.Fatal(err)
	}
	stand, err := os.ReadFile("testdata/fx_exec.sv")
	if err != nil {
		t.Fatal(err)
	}
	files["fx_exec.sv"] = stand
	all := fstest.MapFS{}
	for name, text := range files {
		all[name] = &fstest.MapFile{Data: text}
	}
	o := Options{Sources: all, Check: true}
	if busy {
		o.Defines = []string{"FX_TEST_STALLS"}
	}
	return o
}

// models are memories from ideal to miserable.
var models = []memoryModel{
	{beats: 1, cycles: 1, latency: 1},
	{beats: 1, cycles: 1, latency: 40},
	{beats: 2, cycles: 3, latency: 17, extra: 3, shared: 1},
	{beats: 1, cycles: 1, latency: 5, stall: 20000, seed: 7},
	{beats: 1, cycles: 4, latency: 90, stall: 30000, seed: 9, shared: 1},
}

// TestCopies copies random blocks of rows from memory to X or Y and back to other places.
func TestCopies(t *testing.T) {
	for _, c := range configs {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, uint64(c.WordBytes)))
			h := startHost(t, c, around(t, true), 3)
			const half = 1 << 14 // source below, destination above it
			memory := make([]byte, 2*half)
			for round := range 40 {
				h.setMemory(models[round%len(models)])
				for i := range memory {
					memory[i] = byte(r.Uint32())
				}
				h.write(0, memory)
				var commands []isa.Command
				for k := range 1 + r.IntN(4) {
					load, store := randomCopy(r, c, half)
					if k > 0 {
						load.Wait = 2 // the words may be those of the copy before
					}
					commands = append(commands, load, store)
					copyRows(c, memory, load, store)
				}
				commands = append(commands, &isa.End{})
				h.good(commands...)
				if got := h.read(0, len(memory)); !bytes.Equal(got, memory) {
					i := 0
					for got[i] == memory[i] {
						i++
					}
					t.Fatalf("round %d: byte %#x is %d, want %d after\n%s\n%s", round, i, got[i], memory[i],
						isa.Text(commands[0]), isa.Text(commands[1]))
				}
			}
		})
	}
}

// randomCopy is a Load and a Store of the same rows: semaphore 0 counts what is loaded, semaphore 1 what is stored.
func randomCopy(r *rand.Rand, c isa.Config, half int) (*isa.Load, *isa.Store) {
	space, depth := isa.SpaceX, c.XWords
	if r.IntN(2) == 0 {
		space, depth = isa.SpaceY, c.YWords
	}
	for {
		rows, words := 1+r.IntN(3*c.Rows), 1+r.IntN(20)
		if r.IntN(8) == 0 {
			rows, words = 1+r.IntN(2), 1+r.IntN(depth) // more than one burst, where a lane holds it
		}
		panels := (rows + c.Rows - 1) / c.Rows
		panel := words + r.IntN(3)
		base := r.IntN(depth)
		stride := (words + r.IntN(4)) * c.WordBytes
		if base+(panels-1)*panel+words > depth || rows*stride > half/2 {
			continue
		}
		room := (half - (rows-1)*stride - words*c.WordBytes) / c.WordBytes
		load := &isa.Load{Sync: isa.Sync{Post: 1}, Space: space, Addr: uint32(r.IntN(room) * c.WordBytes),
			Stride: uint32(stride),
			Rows:   uint16(rows), Words: uint16(words), Base: uint16(base), Panel: uint16(panel)}
		store := &isa.Store{Sync: isa.Sync{Wait: 1, Post: 2}, Space: space,
			Addr: uint32(half + r.IntN(room)*c.WordBytes), Stride: uint32(stride),
			Rows: uint16(rows), Words: uint16(words), Base: uint16(base), Panel: uint16(panel)}
		return load, store
	}
}

// copyRows does to memory what the two commands do.
func copyRows(c isa.Config, memory []byte, load *isa.Load, store *isa.Store) {
	n := int(load.Words) * c.WordBytes
	for i := range int(load.Rows) {
		from, to := int(load.Addr)+i*int(load.Stride), int(store.Addr)+i*int(store.Stride)
		copy(memory[to:to+n], memory[from:from+n])
	}
}

// TestStream measures LOAD: rows of 64 bytes at 40 cycles' latency come at a beat a cycle, within one command and from
// one to the next.
func TestStream(t *testing.T) {
	c := configs[2]
	h := startHost(t, c, around(t, false), 1)
	h.setMemory(memoryModel{beats: 1, cycles: 1, latency: 40})
	load := func() *isa.Load { return &isa.Load{Space: isa.SpaceX, Stride: 64, Rows: 64, Words: 8, Panel: 8} }
	one := h.good(load(), &isa.End{})
	five := h.good(load(), load(), load(), load(), load(), &isa.End{})
	t.Logf("512 beats: %d cycles; 2560 beats: %d", one, five)
	if one > 512+130 { // the program's and the rows' latencies, and what goes before and after
		t.Errorf("one load of 512 beats takes %d cycles", one)
	}
	if more := five - one; more > 4*(512+4) { // a descriptor has four beats
		t.Errorf("four more loads of 512 beats take %d cycles", more)
	}
	if got := h.counter(isa.CountReadBeats); got < 5*512+6*4 {
		t.Errorf("%d beats read", got)
	}
}

// TestStamp stores the counters.
func TestStamp(t *testing.T) {
	for _, c := range configs {
		h := startHost(t, c, around(t, false), 1)
		cycles := h.good(&isa.Load{Stride: 64, Rows: 4, Words: 8, Panel: 8}, &isa.Barrier{},
			&isa.Stamp{Addr: 0x100}, &isa.Stamp{Addr: 0x110}, &isa.End{})
		var at [4]uint64
		for i, b := 0, h.read(0x100, 32); i < 4; i++ {
			for j := range 8 {
				at[i] |= uint64(b[8*i+j]) << (8 * j)
			}
		}
		if at[0] < 32 || at[2] <= at[0] || at[2] > cycles || at[1] != 0 || at[3] != 0 ||
			h.counter(isa.CountCycles) > cycles {
			t.Errorf("%s: stamps %d in a program of %d cycles", c.Name, at, cycles)
		}
	}
}
