package rtl_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/fpga/isa"
)

// attentionConfigs are the overlays whose attention is tried.
func attentionConfigs() []isa.Config {
	return []isa.Config{
		{Name: "attention 8x8", Rows: 8, Cols: 8, WordBytes: 8, XWords: 512, WWords: 2048, YWords: 1024, Params: 128,
			Tables: 1, AccBits: 32, KeyBlock: 64, HeadDim: 64, QPanels: 4, AddrBits: 24},
		{Name: "attention 4x4", Rows: 4, Cols: 4, WordBytes: 4, XWords: 256, WWords: 1024, YWords: 512, Params: 64,
			AccBits: 32, KeyBlock: 8, HeadDim: 16, QPanels: 1, AddrBits: 20},
	}
}

// head is the state of a query row of attention.
type head struct {
	max int32
	sum uint32
	acc []int64
}

// attention is what an Attention does; heads are the state of the overlay's rows.
func (m *memories) attention(heads []head, d *isa.Attention) {
	c, dim := m.c, int(d.Dim)*m.c.WordBytes
	for i := range int(d.QPanels) * c.Rows {
		h := &heads[i]
		if d.First {
			*h = head{max: isa.MaxStart, acc: make([]int64, c.HeadDim)}
		}
		q := m.x[i%c.Rows][(int(d.X)+i/c.Rows*int(d.QPanel))*c.WordBytes:]
		for from := 0; from < int(d.Keys); from += c.KeyBlock {
			var scores []int32
			top := h.max
			for j := from; j < min(from+c.KeyBlock, int(d.Keys)); j++ {
				if d.Causal && j > i+int(d.Diagonal) {
					break
				}
				k := m.w[j%c.Cols][(int(d.K)+j/c.Cols*int(d.Dim))*c.WordBytes:]
				var dot int32
				for e := range dim {
					dot += int32(int8(q[e])) * int32(int8(k[e]))
				}
				score := isa.Score(dot, d.ScoreMul, d.ScoreSh)
				scores = append(scores, score)
				top = max(top, isa.RowMax(score))
			}
			rise := uint(top - h.max)
			h.max = top
			if rise >= isa.MaxClear {
				h.sum = 0
				clear(h.acc)
			}
			h.sum >>= 2 * rise
			for f := range h.acc {
				h.acc[f] >>= 2 * rise
			}
			for j, score := range scores {
				p := isa.Exp2(top<<isa.MaxUnit - score)
				h.sum += p
				for f := range dim {
					v := m.w[f%c.Cols][(int(d.V)+f/c.Cols*int(d.VPanel))*c.WordBytes+from+j]
					h.acc[f] += int64(p) * int64(int8(v))
				}
			}
		}
		if !d.Last {
			continue
		}
		r, z := isa.Reciprocal(h.sum)
		to := m.space(d.Space)[i%c.Rows][(int(d.Base)+i/c.Rows*int(d.Panel))*c.WordBytes:]
		for f := range dim {
			t := isa.FinishAttention(h.acc[f], r, z, d.OutMul, d.OutSh)
			if d.Wide {
				y := isa.FinishWide(t, false, 0)
				to[2*f], to[2*f+1] = byte(y), byte(y>>8)
			} else {
				to[f] = byte(isa.Finish(t, false, 0, nil))
			}
		}
	}
}

// randomAttention makes an Attention that reads words [read, read+span) of X, [readW, readW+spanW) of W and writes
// words [write, write+span) of its space. One that is not a head's first goes on as the one before, `last`, began.
func (m *memories) randomAttention(r *rand.Rand, last *isa.Attention, read, readW, write, span, spanW int) *isa.Attention {
	c := m.c
	bit := func(n int) bool { return r.IntN(n) == 0 }
	// place finds a base and a step for n parts of size words each.
	place := func(from, span, n, size int) (base, step uint16) {
		for {
			s := size + r.IntN(4)
			if n == 1 {
				s = r.IntN(65536)
			}
			if left := span - size - (n-1)*s; left >= 0 {
				return uint16(from + r.IntN(left+1)), uint16(s)
			}
		}
	}
	d := &isa.Attention{First: last == nil || !bit(3), Last: !bit(3), Causal: bit(2), Wide: bit(3)}
	d.Dim, d.QPanels = uint8((1+r.IntN(c.HeadDim/c.Cols))*c.Cols/c.WordBytes), uint8(1+r.IntN(c.QPanels))
	if !d.First {
		d.Dim, d.QPanels = last.Dim, last.QPanels
	}
	dim := int(d.Dim)
	width := dim
	if d.Wide {
		width *= 2
	}
	for {
		d.Keys = uint16(1 + r.IntN(300))
		if bit(2) {
			d.Keys = uint16(1 + r.IntN(2*c.KeyBlock))
		}
		keys := (int(d.Keys)-1)/c.Cols*dim + dim
		values := (int(d.Keys)-1)/c.WordBytes + 1
		features := dim * c.WordBytes / c.Cols
		if keys+features*(values+3) <= spanW {
			d.K, _ = place(readW, spanW, 1, keys)
			d.V, d.VPanel = place(readW, spanW, features, values)
			break
		}
	}
	d.X, d.QPanel = place(read, span, int(d.QPanels), dim)
	d.Base, d.Panel = place(write, span, int(d.QPanels), width)
	d.Space = []isa.Space{isa.SpaceY, isa.SpaceX, isa.SpaceW}[r.IntN(3)]
	switch r.IntN(8) {
	case 0:
		d.Diagonal = int32(r.Uint32())
	case 1:
		d.Diagonal = -int32(r.IntN(100))
	default:
		d.Diagonal = int32(r.IntN(int(d.Keys)+c.Rows)) - int32(c.Rows)
	}
	d.ScoreMul, d.ScoreSh = uint16(r.IntN(32768)), uint8(12+r.IntN(12))
	switch r.IntN(6) {
	case 0:
		d.ScoreMul = 0 // all scores are equal
	case 1:
		d.ScoreMul, d.ScoreSh = 32767, uint8(r.IntN(6)) // and here most of them as large as can be
	}
	d.OutMul, d.OutSh = uint16(r.IntN(65536)), uint8(22+r.IntN(6))
	return d
}

// climb makes the scores of each block of keys larger than those of the block before: the queries are all one, the
// keys constant.
func (m *memories) climb() {
	for l := range m.x {
		for i := range m.x[l] {
			m.x[l][i] = 1
		}
		m.load(isa.SpaceX, l, m.x[l])
	}
	for l := range m.w {
		for i := range m.w[l] {
			m.w[l][i] = byte(i*255/len(m.w[l]) - 128)
		}
		m.load(isa.SpaceW, l, m.w[l])
	}
}

// TestAttention runs batches of random Attentions with Gemms between them, as TestGemm does.
func TestAttention(t *testing.T) {
	for _, c := range attentionConfigs() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			program := buildExec(t, c)
			for seed := range uint64(5) {
				r := rand.New(rand.NewPCG(seed, 3))
				m := newMemories(c, r)
				limit := min(c.XWords, c.WWords, c.YWords) * 3 / 4
				noise := 0
				if seed%2 == 1 {
					noise = limit
				}
				if seed == 4 {
					m.climb()
				}
				fmt.Fprintf(&m.script, "n %d %d\n", seed, noise)
				heads := make([]head, c.QPanels*c.Rows)
				for i := range heads {
					heads[i] = head{max: isa.MaxStart, acc: make([]int64, c.HeadDim)}
				}
				var last *isa.Attention
				var listed []string
				for batch := range 7 {
					read, write := batch%2*(limit/2), (1-batch%2)*(limit/2)
					// Keys and values may lie behind what Gemms use, if LOAD leaves that alone.
					readW, spanW := read, limit/2
					if noise == 0 && batch%3 == 0 {
						readW, spanW = limit, c.WWords-limit
					}
					for range 1 + r.IntN(8) {
						if r.IntN(3) == 0 {
							g := m.random(r, read, write, limit/2)
							m.command(t, g)
							m.gemm(g)
							listed = append(listed, isa.Text(g))
							continue
						}
						last = m.randomAttention(r, last, read, readW, write, limit/2, spanW)
						m.command(t, last)
						m.attention(heads, last)
						listed = append(listed, isa.Text(last))
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

// TestAttentionErrors gives addresses behind the end of a scratchpad: the commands before are done, and no more.
func TestAttentionErrors(t *testing.T) {
	c := attentionConfigs()[0]
	program := buildExec(t, c)
	good := isa.Attention{First: true, Last: true, Dim: 8, QPanels: 2, QPanel: 8, Keys: 70, V: 512, VPanel: 16, Panel: 8,
		ScoreMul: 100, OutMul: 1000}
	for name, change := range map[string]func(d *isa.Attention){
		"X":        func(d *isa.Attention) { d.X = 512 - 8 - 7 },
		"QPanel":   func(d *isa.Attention) { d.QPanel = 65535 },
		"K":        func(d *isa.Attention) { d.K = 2048 - 71 },
		"V":        func(d *isa.Attention) { d.V = 65535 },
		"VPanel":   func(d *isa.Attention) { d.VPanel = 2000 },
		"Base":     func(d *isa.Attention) { d.Base = 1024 - 8 - 7 },
		"Panel":    func(d *isa.Attention) { d.Panel = 1020 },
		"of X":     func(d *isa.Attention) { d.Space, d.Base = isa.SpaceX, 505 },
		"one wide": func(d *isa.Attention) { d.Wide, d.QPanels, d.Base = true, 1, 1024-15 },
	} {
		bad := good
		change(&bad)
		m := newMemories(c, rand.New(rand.NewPCG(1, 1)))
		for _, d := range []*isa.Attention{&good, &good, &bad, &good} {
			m.command(t, d)
		}
		m.script.WriteString("w\n")
		if out := m.play(t, program); out[0] != "error 3 2" {
			t.Errorf("%s: %s, want the error of the third", name, out[0])
		}
	}
}

// TestAttentionCycles counts how much of the time the array multiplies while the operands are on the chip, and the
// cycles over the ideal.
func TestAttentionCycles(t *testing.T) {
	for _, size := range []int{8, 16} {
		c := isa.Config{Name: fmt.Sprintf("attention cycles %d", size), Rows: size, Cols: size, WordBytes: 8, XWords: 512,
			WWords: 4096, YWords: 512, Params: 32, AccBits: 32, KeyBlock: 64, HeadDim: 64, QPanels: 4, AddrBits: 24}
		program := buildExec(t, c)
		// run gives the cycles of some heads, one command each, and those in which the array multiplies.
		run := func(heads, keys int, causal bool) (cycles, multiply int) {
			m := newMemories(c, rand.New(rand.NewPCG(1, 2)))
			for i := range heads {
				m.command(t, &isa.Attention{First: true, Last: true, Causal: causal, Diagonal: int32(keys - 4*size), Dim: 8,
					QPanels: 4, QPanel: 8, Keys: uint16(keys), V: 2048, VPanel: uint16(keys / 8), Panel: 8, Base: uint16(i * 32),
					ScoreMul: 1000, ScoreSh: 10, OutMul: 65535, OutSh: 27})
			}
			m.script.WriteString("w\n")
			if out := m.play(t, program)[0]; must(fmt.Sscanf(out, "done %d %d", &cycles, &multiply)) != 2 {
				t.Fatal(out)
			}
			return
		}
		for _, heads := range []int{1, 4} {
			for _, keys := range []int{256, 512} {
				cycles, _ := run(heads, keys, false)
				over := float64(cycles) / float64(heads*2*4*keys*64/size)
				t.Logf("%dx%d, %d heads, %d keys: %.3f of the ideal cycles", size, size, heads, keys, over)
				if over > 1.01 {
					t.Errorf("%dx%d, %d heads, %d keys: %.3f of the ideal cycles", size, size, heads, keys, over)
				}
				cycles, multiply := run(heads, keys, true)
				share := float64(multiply) / float64(cycles)
				t.Logf("%dx%d, %d heads, %d keys, causal: multiplying in %.3f of the cycles", size, size, heads, keys, share)
				if share < 0.97 {
					t.Errorf("%dx%d, %d heads, %d keys, causal: multiplying in %.3f of the cycles", size, size, heads, keys, share)
				}
			}
		}
	}
}

// TestAttentionAccuracy compares with softmax in float64: at most half a step of int8, and 3e-3 of the root mean
// square for int16.
func TestAttentionAccuracy(t *testing.T) {
	c := attentionConfigs()[0]
	c.WWords, c.XWords = 8192, 64
	const dim = 64
	for _, keys := range []int{256, 1024, 2048} {
		for _, spread := range []float64{0.5, 2, 6} { // of the scores, in units of e
			r := rand.New(rand.NewPCG(uint64(keys), 5))
			m := newMemories(c, r)
			for _, lanes := range [][][]byte{m.x, m.w} {
				for _, b := range lanes {
					for i := range b {
						b[i] = byte(int8(max(-127, min(127, math.Round(r.NormFloat64()*32)))))
					}
				}
			}
			// A product of two normal vectors of deviation 32 has 8·32².
			factor := spread / (math.Sqrt(dim) * 32 * 32) * math.Log2E * (1 << isa.ScoreFrac)
			shift := 0
			for factor < 16384 {
				factor, shift = factor*2, shift+1
			}
			d := &isa.Attention{First: true, Last: true, Wide: true, Dim: dim / 8, QPanels: 1, Keys: uint16(keys), V: 4096,
				VPanel: uint16(keys / 8), ScoreMul: uint16(factor), ScoreSh: uint8(shift), OutMul: 65535, OutSh: 19}
			heads := make([]head, c.QPanels*c.Rows)
			m.attention(heads, d)
			scale := float64(d.ScoreMul) / math.Ldexp(1<<isa.ScoreFrac, shift)
			var errs, squares, most float64
			for i := range c.Rows {
				var sum float64
				y := make([]float64, dim)
				for j := range keys {
					var dot float64
					for e := range dim {
						dot += float64(int8(m.x[i][e])) * float64(int8(m.w[j%c.Cols][j/c.Cols*dim+e]))
					}
					p := math.Exp2(dot * scale)
					sum += p
					for f := range dim {
						y[f] += p * float64(int8(m.w[f%c.Cols][(int(d.V)+f/c.Cols*int(d.VPanel))*8+j]))
					}
				}
				for f := range dim {
					got := float64(int16(uint16(m.y[i][2*f])|uint16(m.y[i][2*f+1])<<8)) / 256
					e := got - y[f]/sum
					errs += e * e
					squares += y[f] / sum * y[f] / sum
					most = max(most, math.Abs(e))
				}
			}
			rms := math.Sqrt(errs / squares)
			text := fmt.Sprintf("%d keys, scores of deviation %v: at most %.4f of a step, relative root mean square %.2e", keys, spread,
				most, rms)
			t.Log(text)
			if most > 0.5 || rms > 3e-3 {
				t.Error(text)
			}
		}
	}
}
