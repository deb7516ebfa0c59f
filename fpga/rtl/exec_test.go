package rtl_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fusec/fpga/isa"
	"fusec/fpga/sim"
	"fusec/fpga/testtools"
)

// execConfigs are the overlays whose engine EXEC is tried alone.
func execConfigs() []isa.Config {
	return []isa.Config{
		{Name: "8x8", Rows: 8, Cols: 8, WordBytes: 8, XWords: 256, WWords: 256, YWords: 256, Params: 128, Tables: 2, AccBits: 32,
			AddrBits: 24},
		{Name: "4x4 serial", Rows: 4, Cols: 4, WordBytes: 4, XWords: 256, WWords: 128, YWords: 256, Params: 64, Tables: 1, AccBits: 24,
			SerialMul: true, AddrBits: 20},
		{Name: "2x2", Rows: 2, Cols: 2, WordBytes: 2, XWords: 128, WWords: 128, YWords: 128, Params: 32, AccBits: 32, AddrBits: 20},
		{Name: "8x4", Rows: 8, Cols: 4, WordBytes: 4, XWords: 128, WWords: 256, YWords: 128, Params: 64, Tables: 1, AccBits: 32,
			AddrBits: 20},
		{Name: "2x8 serial", Rows: 2, Cols: 8, WordBytes: 2, XWords: 256, WWords: 256, YWords: 256, Params: 64, AccBits: 32,
			SerialMul: true, AddrBits: 20},
		{Name: "2x16", Rows: 2, Cols: 16, WordBytes: 16, XWords: 128, WWords: 128, YWords: 128, Params: 128, Tables: 4, AccBits: 32,
			AddrBits: 24},
	}
}

// buildExec makes the program of testdata/exec.cpp for a configuration.
func buildExec(t testing.TB, c isa.Config) (program string) {
	t.Helper()
	if c.Rows*c.Cols > 16 || c.KeyBlock > 0 && c.WWords > 4096 {
		testtools.Long(t) // to build
	}
	source, err := os.ReadFile(filepath.Join("testdata", "exec.cpp"))
	if err != nil {
		t.Fatal(err)
	}
	b := sim.Bench{Top: "fx_exec", Main: source, Verilator: []string{"--x-assign", "unique"}}
	for name, v := range map[string]int{"ROWS": c.Rows, "COLS": c.Cols, "WORD_BYTES": c.WordBytes, "X_WORDS": c.XWords,
		"W_WORDS": c.WWords, "Y_WORDS": c.YWords} {
		b.Compiler = append(b.Compiler, fmt.Sprintf("-D%s=%d", name, v))
	}
	slices.Sort(b.Compiler)
	return simulated(t, c, b)
}

// memories are what EXEC holds, as a model: of each lane its bytes.
type memories struct {
	c       isa.Config
	x, w, y [][]byte
	records []isa.Record
	tables  [][256]int8
	sums    [][]int32 // what a Gemm with Hold left
	script  bytes.Buffer
}

func (m *memories) space(s isa.Space) [][]byte { return [][][]byte{m.y, m.x, m.w}[s] }

// newMemories fills everything with random bytes, and records that make of most sums values within their range.
func newMemories(c isa.Config, r *rand.Rand) *memories {
	m := &memories{c: c}
	fill := func(lanes, words int) [][]byte {
		all := make([][]byte, lanes)
		for l := range all {
			all[l] = make([]byte, words*c.WordBytes)
			for i := range all[l] {
				all[l][i] = byte(r.Uint32())
			}
		}
		return all
	}
	m.x, m.w, m.y = fill(c.Rows, c.XWords), fill(c.Cols, c.WWords), fill(c.Rows, c.YWords)
	for s, lanes := range [][][]byte{m.y, m.x, m.w} {
		for l, b := range lanes {
			m.load(isa.Space(s), l, b)
		}
	}
	var b []byte
	for range c.Params {
		rec := isa.Record{Bias: int32(r.Uint32()) >> 8, Mul: int16(r.Uint32()), Shift: uint8(r.IntN(48))}
		if r.IntN(4) > 0 {
			rec.Mul, rec.Shift = int16(r.IntN(1<<15)), uint8(20+r.IntN(6))
			rec.Bias >>= 6
		}
		m.records = append(m.records, rec)
		b = append(b, byte(rec.Bias), byte(rec.Bias>>8), byte(rec.Bias>>16), byte(rec.Bias>>24), byte(rec.Mul), byte(rec.Mul>>8),
			rec.Shift, 0)
	}
	m.load(isa.SpaceParams, 0, b)
	m.tables = make([][256]int8, c.Tables)
	b = nil
	for i := range m.tables {
		for j := range m.tables[i] {
			m.tables[i][j] = int8(r.Uint32())
			b = append(b, byte(m.tables[i][j]))
		}
	}
	m.load(isa.SpaceTables, 0, b)
	m.sums = make([][]int32, c.Rows)
	for i := range m.sums {
		m.sums[i] = make([]int32, c.Cols)
	}
	return m
}

// load writes a lane from its first word on.
func (m *memories) load(s isa.Space, lane int, b []byte) {
	for i := 0; i < len(b); i += m.c.WordBytes {
		fmt.Fprintf(&m.script, "l %d %d %d %x\n", s, lane, i/m.c.WordBytes, b[i:i+m.c.WordBytes])
	}
}

// command puts a descriptor into the script.
func (m *memories) command(t testing.TB, c isa.Command) {
	b, err := isa.Encode(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&m.script, "c %x\n", b)
}

// wrap is a sum of AccBits bits.
func (m *memories) wrap(v int32) int32 { return v << (32 - m.c.AccBits) >> (32 - m.c.AccBits) }

// gemm is what a Gemm does.
func (m *memories) gemm(g *isa.Gemm) {
	wb, k := m.c.WordBytes, int(g.Words)*m.c.WordBytes
	size := 1
	if g.Wide {
		size = 2
	}
	for p := range int(g.Panels) {
		for n := range int(g.Tiles) {
			for i := range m.c.Rows {
				for j := range m.c.Cols {
					if !g.More {
						m.sums[i][j] = 0
					}
					x := m.x[i][(int(g.X)+p*int(g.XPanel))*wb:][:k]
					w := m.w[j][(int(g.W)+n*int(g.WPanel))*wb:][:k]
					for e := range x {
						m.sums[i][j] += int32(int8(x[e])) * int32(int8(w[e]))
					}
					m.sums[i][j] = m.wrap(m.sums[i][j])
					if g.Hold {
						continue
					}
					rec := int(g.Param) + n*m.c.Cols + j
					if g.RowParam {
						rec = int(g.Param) + p*m.c.Rows + i
					}
					t := m.records[rec].Scale(m.sums[i][j])
					column := n*m.c.Cols + j
					if g.Residual {
						t += isa.Residual(int8(m.y[i][(int(g.Res)+p*int(g.ResPanel))*wb+column]), g.ResMul)
					}
					to := m.space(g.Space)[i][(int(g.Base)+p*int(g.Panel))*wb+size*column:]
					if g.Wide {
						v := isa.FinishWide(t, g.ReLU, g.Zero)
						to[0], to[1] = byte(v), byte(v>>8)
						continue
					}
					var table *[256]int8
					if g.Table > 0 {
						table = &m.tables[g.Table-1]
					}
					to[0] = byte(isa.Finish(t, g.ReLU, g.Zero, table))
				}
			}
		}
	}
}

// random makes a Gemm that reads words [read, read+span) of X, W and Y and writes words [write, write+span) of its space.
func (m *memories) random(r *rand.Rand, read, write, span int) *isa.Gemm {
	c := m.c
	bit := func(n int) bool { return r.IntN(n) == 0 }
	g := &isa.Gemm{}
	g.Words = uint16(1 + r.IntN(min(span, 12)))
	g.Panels, g.Tiles = uint8(1+r.IntN(3)), uint8(1+r.IntN(3))
	g.Residual, g.ReLU, g.Wide, g.RowParam = bit(3), bit(3), bit(3), bit(4)
	g.Zero, g.ResMul = int8(r.Uint32()), uint16(r.Uint32())
	if bit(2) {
		g.ResMul >>= 3
	}
	if !g.Wide {
		g.Table = uint8(r.IntN(c.Tables + 1))
	}
	g.Space = []isa.Space{isa.SpaceY, isa.SpaceX, isa.SpaceW}[r.IntN(3)]
	if c.Rows != c.Cols && g.Space == isa.SpaceW {
		g.Space = isa.SpaceY
	}
	// place finds a base and a step for n parts of size words each.
	place := func(from, n, size int) (base, step uint16) {
		for {
			s := r.IntN(span)
			if left := span - size - (n-1)*s; left >= 0 {
				return uint16(from + r.IntN(left+1)), uint16(s)
			}
		}
	}
	width := c.Cols / c.WordBytes
	if g.Wide {
		width *= 2
	}
	for int(g.Tiles)*c.Cols > c.Params || int(g.Tiles)*width > span {
		g.Tiles--
	}
	for int(g.Panels)*c.Rows > c.Params {
		g.Panels--
	}
	g.X, g.XPanel = place(read, int(g.Panels), int(g.Words))
	g.W, g.WPanel = place(read, int(g.Tiles), int(g.Words))
	g.Base, g.Panel = place(write, int(g.Panels), int(g.Tiles)*width)
	g.Res, g.ResPanel = place(read, int(g.Panels), int(g.Tiles)*c.Cols/c.WordBytes)
	records := int(g.Tiles) * c.Cols
	if g.RowParam {
		records = int(g.Panels) * c.Rows
	}
	g.Param = uint16(r.IntN(c.Params - records + 1))
	return g
}

// play runs the script and gives its output's lines.
func (m *memories) play(t testing.TB, program string) []string {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Stdin = bytes.NewReader(m.script.Bytes())
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.Bytes())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestGemm runs batches of random Gemms, each reading one half of the scratchpads and writing the other, with noise: gaps
// between descriptors, and LOAD and STORE at work on the last quarter.
func TestGemm(t *testing.T) {
	for _, c := range execConfigs() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			program := buildExec(t, c)
			for seed := range uint64(6) {
				r := rand.New(rand.NewPCG(seed, 1))
				m := newMemories(c, r)
				limit := min(c.XWords, c.WWords, c.YWords) * 3 / 4
				noise := 0
				if seed%2 == 1 {
					noise = limit
				}
				fmt.Fprintf(&m.script, "n %d %d\n", seed, noise)
				var listed []string
				for batch := range 20 {
					read, write := batch%2*(limit/2), (1-batch%2)*(limit/2)
					for range 1 + r.IntN(8) {
						g := m.random(r, read, write, limit/2)
						for parts := r.IntN(4) - 2; parts > 0; parts-- { // the first parts of a long sum
							h := m.random(r, read, write, limit/2)
							h.Hold, h.More, h.Panels, h.Tiles = true, g.More, 1, 1
							g.More, g.Panels, g.Tiles = r.IntN(6) > 0, 1, 1 // else a sum that nothing finishes
							m.command(t, h)
							m.gemm(h)
							listed = append(listed, isa.Text(h))
						}
						m.command(t, g)
						m.gemm(g)
						listed = append(listed, isa.Text(g))
					}
					m.script.WriteString("w\n")
					listed = append(listed, "")
				}
				m.check(t, program, limit, listed)
				if t.Failed() {
					return
				}
			}
		})
	}
}

// check plays the script, then reads Y and X up to limit and compares. W is copied to Y through the array: it cannot be read.
func (m *memories) check(t *testing.T, program string, limit int, listed []string) {
	t.Helper()
	for s, lanes := range [][][]byte{m.y, m.x} {
		for l := range lanes {
			for a := range limit {
				fmt.Fprintf(&m.script, "s %d %d %d\n", s, l, a)
			}
		}
	}
	out := m.play(t, program)
	for len(out) > 0 && !strings.HasPrefix(out[0], "done") && len(out[0]) != 2*m.c.WordBytes {
		t.Fatalf("%s\n%s", out[0], strings.Join(listed, "\n"))
	}
	for len(out) > 0 && strings.HasPrefix(out[0], "done") {
		out = out[1:]
	}
	for s, lanes := range [][][]byte{m.y, m.x} {
		for l := range lanes {
			for a := range limit {
				got, _ := hex.DecodeString(out[0])
				out = out[1:]
				if want := lanes[l][a*m.c.WordBytes:][:m.c.WordBytes]; !bytes.Equal(got, want) {
					t.Errorf("%v, lane %d, word %d: %x, want %x", isa.Space(s), l, a, got, want)
					if !t.Failed() {
						t.Log(strings.Join(listed, "\n"))
					}
				}
			}
		}
	}
}

// TestGemmErrors gives the engine descriptors that go beyond the end of a memory: what came before is done, then it stops with
// ErrScratch; after a reset it works again.
func TestGemmErrors(t *testing.T) {
	c := execConfigs()[3]
	program := buildExec(t, c)
	good := isa.Gemm{Words: 4, Panels: 2, Tiles: 2, XPanel: 4, WPanel: 4, Out: isa.Out{Base: 100, Panel: 2}}
	for _, tc := range []struct {
		name  string
		wrong func(g *isa.Gemm)
	}{
		{"X", func(g *isa.Gemm) { g.X = uint16(c.XWords - 7) }},
		{"XPanel", func(g *isa.Gemm) { g.XPanel = uint16(c.XWords - 3) }},
		{"XPanel far", func(g *isa.Gemm) { g.XPanel = 0xffff }},
		{"W", func(g *isa.Gemm) { g.W = uint16(c.WWords) }},
		{"WPanel", func(g *isa.Gemm) { g.WPanel = uint16(c.WWords - 2) }},
		{"Base", func(g *isa.Gemm) { g.Base = uint16(c.YWords - 3) }},
		{"Base wide", func(g *isa.Gemm) { g.Base, g.Panel, g.Wide = uint16(c.YWords-5), 2, true }},
		{"Base far", func(g *isa.Gemm) { g.Base = 0x8000 }},
		{"Panel", func(g *isa.Gemm) { g.Panel = 0xff00 }},
		{"Res", func(g *isa.Gemm) { g.Residual, g.Res = true, uint16(c.YWords-1) }},
		{"ResPanel", func(g *isa.Gemm) { g.Residual, g.ResPanel = true, uint16(c.YWords) }},
		{"Param", func(g *isa.Gemm) { g.Param = uint16(c.Params - 7) }},
		{"Param of rows", func(g *isa.Gemm) { g.RowParam, g.Param = true, uint16(c.Params-15) }},
		{"Space", func(g *isa.Gemm) { g.Space = isa.SpaceParams }},
		{"Space W of an array that is not square", func(g *isa.Gemm) { g.Space = isa.SpaceW }},
		{"Table", func(g *isa.Gemm) { g.Table = uint8(c.Tables + 1) }},
	} {
		for before := range 3 {
			m := newMemories(c, rand.New(rand.NewPCG(3, 4)))
			bad := good
			tc.wrong(&bad)
			for range before {
				m.command(t, &good)
			}
			m.command(t, &bad)
			m.command(t, &good)
			m.script.WriteString("w\nr\n")
			m.command(t, &good)
			m.script.WriteString("w\n")
			out := m.play(t, program)
			if want := fmt.Sprintf("error %d %d", isa.ErrScratch, before); out[0] != want || !strings.HasPrefix(out[1], "done") {
				t.Errorf("%s after %d others: %q, want %q and then done", tc.name, before, out, want)
			}
		}
	}
	// The last words and records themselves are no error.
	m := newMemories(c, rand.New(rand.NewPCG(5, 6)))
	m.command(t, &isa.Gemm{X: uint16(c.XWords - 8), W: uint16(c.WWords - 8), Words: 4, Panels: 2, Tiles: 2, XPanel: 4, WPanel: 4,
		Out: isa.Out{Residual: true, Base: uint16(c.YWords - 4), Panel: 2, Res: uint16(c.YWords - 4), ResPanel: 2,
			Param: uint16(c.Params - 8)}})
	m.script.WriteString("w\n")
	if out := m.play(t, program); !strings.HasPrefix(out[0], "done") {
		t.Errorf("at the end of all memories: %q", out)
	}
}

// TestGemmCycles counts how much of the time the array multiplies while the operands are on the chip.
func TestGemmCycles(t *testing.T) {
	for _, c := range execConfigs() {
		if c.Cols != 8 && c.Cols != 16 || c.SerialMul {
			continue
		}
		program := buildExec(t, c)
		for _, k := range []int{64, 128} {
			for _, tiles := range []int{1, 4} { // tiles of a descriptor
				m := newMemories(c, rand.New(rand.NewPCG(1, 2)))
				for i := range 64 / tiles {
					m.command(t, &isa.Gemm{Words: uint16(k / c.WordBytes), Panels: 1, Tiles: uint8(tiles), WPanel: uint16(k / c.WordBytes),
						X: uint16(i % 8), Out: isa.Out{ReLU: i/16%2 == 0, Base: uint16(i)}})
				}
				m.script.WriteString("w\n")
				var cycles, multiply int
				if out := m.play(t, program)[0]; must(fmt.Sscanf(out, "done %d %d", &cycles, &multiply)) != 2 {
					t.Fatal(out)
				}
				if multiply != 64*k {
					t.Errorf("%s, %d elements: multiplied in %d cycles, not %d", c.Name, k, multiply, 64*k)
				}
				share := float64(multiply) / float64(cycles)
				t.Logf("%s, %d elements, %d tiles a descriptor: %.3f", c.Name, k, tiles, share)
				if share < 0.98 {
					t.Errorf("%s, %d elements: the array multiplies in %.3f of the cycles", c.Name, k, share)
				}
			}
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
