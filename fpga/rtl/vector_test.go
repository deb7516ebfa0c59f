package rtl_test

import (
	"encoding/binary"
	"fmt"
	"math/rand"
	"testing"

	"fusec/fpga/isa"
)

// unitConfig is a small overlay with everything, of four lanes.
func unitConfig() isa.Config {
	return isa.Config{Name: "units", Rows: 4, Cols: 4, WordBytes: 4, XWords: 1024, WWords: 256, YWords: 1024, Params: 64,
		AccBits: 32, Norms: true, Experts: 64, ListLen: 32, Tokens: 64, TopK: 4, AddrBits: 20}
}

// vectorBench drives testdata/vector_bench.sv: the memories of its lanes, and the cycles of its next run.
type vectorBench struct {
	rnd    *rand.Rand
	x, y   [4][]int8
	gates  [64][4]uint16
	cycles [][]uint64
	stalls int // per cent of cycles
}

// cycle adds a cycle with a command or a write.
func (b *vectorBench) cycle(rst, valid uint64, cmd []byte, wr ...uint64) {
	in := make([]uint64, 11)
	in[0], in[1] = rst, valid
	for i := range len(cmd) / 8 {
		in[2+i] = binary.LittleEndian.Uint64(cmd[8*i:])
	}
	if b.rnd.Intn(100) < b.stalls {
		in[6] = 1
	}
	copy(in[7:], wr)
	b.cycles = append(b.cycles, in)
}

// fill gives all memories new contents.
func (b *vectorBench) fill() {
	bytes := func(rnd *rand.Rand) []int8 {
		p := make([]int8, 4096)
		for row := 0; row < len(p); {
			n := min(1+rnd.Intn(600), len(p)-row)
			kind, low, span := rnd.Intn(6), rnd.Intn(256)-128, 1+rnd.Intn(256)
			for i := row; i < row+n; i++ {
				switch kind {
				case 0:
					p[i] = int8(low)
				case 1:
					p[i] = -128
				case 2:
					p[i] = [2]int8{-128, 127}[i&1]
				default:
					p[i] = int8(max(-128, min(127, low+rnd.Intn(span))))
				}
			}
			row += n
		}
		return p
	}
	word := func(p []int8, i int) uint64 {
		return uint64(uint8(p[4*i])) | uint64(uint8(p[4*i+1]))<<8 | uint64(uint8(p[4*i+2]))<<16 | uint64(uint8(p[4*i+3]))<<24
	}
	for r := range b.x {
		b.x[r], b.y[r] = bytes(b.rnd), bytes(b.rnd)
		for i := range 1024 {
			b.cycle(0, 0, nil, 1, uint64(r), uint64(i), word(b.x[r], i))
			b.cycle(0, 0, nil, 2, uint64(r), uint64(i), word(b.y[r], i))
		}
	}
	for i := range b.gates {
		for k := range b.gates[i] {
			b.gates[i][k] = uint16([]int{0, 65535, b.rnd.Intn(65536)}[b.rnd.Intn(3)])
			b.cycle(0, 0, nil, 3, 0, uint64(4*i+k), uint64(b.gates[i][k]))
		}
	}
}

// want is what the lanes inject for a command: panel by panel, lane by lane, column by column.
func (b *vectorBench) want(v *isa.Vector) (panels [][4][]int32) {
	slots := 1
	if v.Kind == isa.VectorCombine {
		slots = int(v.TopK)
	}
	for p := range int(v.Panels) {
		var panel [4][]int32
		for lane := range panel {
			at := func(mem []int8, base, n int) int8 { return mem[4*base+n] }
			x := func(slot, n int) int8 { return at(b.x[lane], int(v.X)+(p*slots+slot)*int(v.XPanel), n) }
			var norm isa.Norm
			if v.Kind == isa.VectorLayerNorm || v.Kind == isa.VectorRMSNorm {
				var sum, squares int64
				for k := range int(v.Count) {
					sum += int64(x(0, k))
					squares += int64(x(0, k)) * int64(x(0, k))
				}
				if v.Kind == isa.VectorRMSNorm {
					sum = 0
				}
				norm = isa.NewNorm(int(v.Count), sum, squares, v.Eps)
			}
			for k := range 4 * int(v.Words) {
				var acc int32
				switch v.Kind {
				case isa.VectorAffine:
					acc = int32(x(0, k))
				case isa.VectorMul:
					acc = int32(x(0, k)) * int32(at(b.y[lane], int(v.Res)+p*int(v.ResPanel), k))
				case isa.VectorLayerNorm, isa.VectorRMSNorm:
					acc = norm.Element(x(0, k))
				case isa.VectorCombine:
					token := int(v.Count) + 4*p + lane
					elements := make([]int8, slots)
					for s := range elements {
						elements[s] = x(s, k)
					}
					acc = isa.Combine(b.gates[token][:slots], elements)
				}
				panel[lane] = append(panel[lane], acc)
			}
		}
		panels = append(panels, panel)
	}
	return
}

// random is a command that fits the memories.
func (b *vectorBench) random(kinds []isa.VectorOp) *isa.Vector {
	r := b.rnd
	v := &isa.Vector{Kind: kinds[r.Intn(len(kinds))], OneParam: r.Intn(2) == 0}
	v.Param = uint16(r.Intn(64))
	v.Panels, v.Words = uint8(1+r.Intn(3)), uint16(1+r.Intn(40))
	if r.Intn(8) == 0 {
		v.Panels, v.Words = 1, uint16([]int{1, 256, 1 + r.Intn(1024), 1024}[r.Intn(4)])
	}
	slots := 1
	if v.Kind == isa.VectorCombine {
		v.TopK = uint8(1 + r.Intn(4))
		slots = int(v.TopK)
		v.Words = min(v.Words, 1024/uint16(slots))
		v.Count = uint16(r.Intn(64 - 4*int(v.Panels) + 1))
	}
	step := func(n int) (base, panel uint16) {
		if n > 1 {
			panel = uint16(r.Intn((1024-int(v.Words))/(n-1) + 1))
		}
		return uint16(r.Intn(1024 - int(v.Words) - (n-1)*int(panel) + 1)), panel
	}
	v.X, v.XPanel = step(int(v.Panels) * slots)
	v.Res, v.ResPanel = step(int(v.Panels))
	v.Base, v.Panel = step(int(v.Panels))
	if v.Kind == isa.VectorLayerNorm || v.Kind == isa.VectorRMSNorm {
		v.Count = uint16(1 + r.Intn(4*int(v.Words)))
		if r.Intn(2) == 0 {
			v.Count = 4 * v.Words
		}
		v.Eps = []uint32{0, 0, 1, r.Uint32() >> r.Intn(32), 1<<32 - 1}[r.Intn(5)]
	}
	return v
}

// TestVector compares what fx_vector and the lanes' units inject with the functions of isa, for random commands and
// rows (constant, extreme, alternating), with a feed that stalls.
func TestVector(t *testing.T) {
	all := []isa.VectorOp{isa.VectorAffine, isa.VectorMul, isa.VectorLayerNorm, isa.VectorRMSNorm, isa.VectorCombine}
	serial := unitConfig()
	serial.Norms, serial.Experts, serial.SerialMul = false, 0, true
	for _, c := range []struct {
		name   string
		config isa.Config
		kinds  []isa.VectorOp
	}{
		{"all", unitConfig(), all},
		{"serial", serial, all[:2]},
	} {
		t.Run(c.name, func(t *testing.T) { t.Parallel(); testVector(t, c.config, c.kinds) })
	}
}

func testVector(t *testing.T, config isa.Config, kinds []isa.VectorOp) {
	in := []port{{"rst", 1}, {"cmd_valid", 1}, {"cmd0", 64}, {"cmd1", 64}, {"cmd2", 64}, {"cmd3", 64}, {"stall", 1},
		{"wr", 2}, {"wr_lane", 2}, {"wr_addr", 10}, {"wr_data", 32}}
	out := []port{{"done", 1}, {"err_valid", 1}, {"segment", 1}, {"dst", 11}, {"par", 7}, {"one", 1},
		{"valid", 4}, {"acc01", 64}, {"acc23", 64}}
	bench := newBench(t, "vector_bench", in, out, config)
	b := &vectorBench{rnd: rand.New(rand.NewSource(1))}
	b.cycle(1, 0, nil)
	type expectation struct {
		v      *isa.Vector
		panels [][4][]int32
		start  int
		end    int
	}
	var want []expectation
	for fill := range 2 {
		b.fill()
		b.stalls = fill * 20
		for range 20 {
			v := b.random(kinds)
			if config.SerialMul {
				v.Words = min(v.Words, 20)
			}
			desc, err := isa.Encode(nil, v)
			if err != nil {
				t.Fatal(err)
			}
			e := expectation{v: v, panels: b.want(v), start: len(b.cycles)}
			b.cycle(0, 1, desc)
			slots := max(1, int(v.TopK))
			n := 300 + int(v.Panels)*(200+int(v.Words)*4*slots*(1+bit(config.Norms))*(1+16*bit(config.SerialMul))*5/4)
			for range n {
				b.cycle(0, 0, nil)
			}
			e.end = len(b.cycles)
			want = append(want, e)
		}
	}
	got := bench.run(t, b.cycles)
	ideal := map[isa.VectorOp]int{isa.VectorLayerNorm: 2, isa.VectorRMSNorm: 2}
	for _, e := range want {
		name := fmt.Sprint(isa.Text(e.v))
		var lanes [4][]int32
		var segments, dones, at int
		for i := e.start; i < e.end; i++ {
			o := got[i]
			if o[1] != 0 {
				t.Fatalf("%s: an error", name)
			}
			if o[2] != 0 {
				want := [3]uint64{uint64(int(e.v.Base) + segments*int(e.v.Panel)), uint64(e.v.Param), uint64(bit(e.v.OneParam))}
				if want != [3]uint64(o[3:6]) {
					t.Fatalf("%s: segment %d: at %d, record %d, one %d", name, segments, o[3], o[4], o[5])
				}
				if n := segments*4*int(e.v.Words) - 2; len(lanes[0]) < n { // two are injected and not yet there
					t.Fatalf("%s: segment %d after %d results", name, segments, len(lanes[0]))
				}
				segments++
			}
			for r := range lanes {
				if o[6]>>r&1 != 0 {
					lanes[r] = append(lanes[r], int32(o[7+r/2]>>(32*(r%2))))
				}
			}
			if o[0] != 0 {
				dones++
				at = i - e.start
			}
		}
		if dones != 1 || segments != int(e.v.Panels) {
			t.Fatalf("%s: done %d times, %d segments", name, dones, segments)
		}
		for r := range lanes {
			n := 4 * int(e.v.Words)
			if len(lanes[r]) != n*int(e.v.Panels) {
				t.Fatalf("%s: lane %d: %d results", name, r, len(lanes[r]))
			}
			for i, y := range lanes[r] {
				if w := e.panels[i/n][r][i%n]; y != w {
					t.Fatalf("%s: panel %d, lane %d, column %d: %d, want %d", name, i/n, r, i%n, y, w)
				}
			}
		}
		if e.v.Panels == 1 && e.v.Words >= 256 {
			n := int(e.v.Words) * 4 * max(1, int(e.v.TopK), ideal[e.v.Kind])
			t.Logf("%s: %d cycles of %d", name, at, n)
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
