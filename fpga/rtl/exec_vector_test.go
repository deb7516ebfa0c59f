package rtl_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/fpga/isa"
)

// finish puts the result of column k of row i of panel p where it belongs.
func (m *memories) finish(o *isa.Out, p, i, k int, t int32) {
	wb, size := m.c.WordBytes, 1
	if o.Wide {
		size = 2
	}
	if o.Residual {
		t += isa.Residual(int8(m.y[i][(int(o.Res)+p*int(o.ResPanel))*wb+k]), o.ResMul)
	}
	to := m.space(o.Space)[i][(int(o.Base)+p*int(o.Panel))*wb+size*k:]
	if o.Wide {
		v := isa.FinishWide(t, o.ReLU, o.Zero)
		to[0], to[1] = byte(v), byte(v>>8)
		return
	}
	var table *[256]int8
	if o.Table > 0 {
		table = &m.tables[o.Table-1]
	}
	to[0] = byte(isa.Finish(t, o.ReLU, o.Zero, table))
}

// vector is what a Vector does, with the gates of all tokens.
func (m *memories) vector(v *isa.Vector, gates [][]uint16) {
	wb := m.c.WordBytes
	slots := 1
	if v.Kind == isa.VectorCombine {
		slots = int(v.TopK)
	}
	for p := range int(v.Panels) {
		for i := range m.c.Rows {
			x := func(slot, k int) int8 { return int8(m.x[i][(int(v.X)+(p*slots+slot)*int(v.XPanel))*wb+k]) }
			var sum, squares int64
			for k := range int(v.Count) {
				if v.Kind == isa.VectorLayerNorm || v.Kind == isa.VectorRMSNorm {
					sum += int64(x(0, k))
					squares += int64(x(0, k)) * int64(x(0, k))
				}
			}
			if v.Kind == isa.VectorRMSNorm {
				sum = 0
			}
			norm := isa.NewNorm(int(v.Count), sum, squares, v.Eps)
			for k := range int(v.Words) * wb {
				acc := int32(x(0, k))
				switch v.Kind {
				case isa.VectorMul:
					acc *= int32(int8(m.y[i][(int(v.Res)+p*int(v.ResPanel))*wb+k]))
				case isa.VectorLayerNorm, isa.VectorRMSNorm:
					acc = norm.Element(x(0, k))
				case isa.VectorCombine:
					row := make([]int8, slots)
					for s := range row {
						row[s] = x(s, k)
					}
					acc = isa.Combine(gates[int(v.Count)+p*m.c.Rows+i][:slots], row)
				}
				rec := int(v.Param)
				if !v.OneParam {
					rec += k
				}
				m.finish(&v.Out, p, i, k, m.records[rec].Scale(acc))
			}
		}
	}
}

// randomVector makes a Vector that reads words [read, read+span) of X and Y and writes words [write, write+span) of its
// space.
func (m *memories) randomVector(r *rand.Rand, read, write, span int) *isa.Vector {
	c := m.c
	kinds := []isa.VectorOp{isa.VectorAffine, isa.VectorMul}
	if c.Norms {
		kinds = append(kinds, isa.VectorLayerNorm, isa.VectorRMSNorm)
	}
	if c.Router() {
		kinds = append(kinds, isa.VectorCombine)
	}
	bit := func(n int) bool { return r.IntN(n) == 0 }
	v := &isa.Vector{Kind: kinds[r.IntN(len(kinds))], OneParam: bit(3)}
	g := m.random(r, read, write, span)
	v.ReLU, v.Wide, v.Zero, v.ResMul, v.Table, v.Space = g.ReLU, g.Wide, g.Zero, g.ResMul, g.Table, g.Space
	slots, size := 1, 1
	if v.Kind == isa.VectorCombine {
		v.TopK = uint8(1 + r.IntN(c.TopK))
		slots = int(v.TopK)
	}
	v.Residual = v.Kind != isa.VectorMul && v.Kind != isa.VectorCombine && bit(3)
	if v.Wide {
		size = 2
	}
	v.Words, v.Panels = uint16(1+r.IntN(min(span/max(size, slots), 10))), uint8(1+r.IntN(3))
	if !v.OneParam {
		v.Words = min(v.Words, uint16(c.Params/c.WordBytes))
	}
	for int(v.Panels)*int(v.Words)*max(slots, size) > span {
		v.Panels--
	}
	place := func(from, n, size int) (base, step uint16) {
		s := size
		if n > 1 {
			s += r.IntN((span-size)/(n-1) - size + 1)
		}
		return uint16(from + r.IntN(span-size-(n-1)*s+1)), uint16(s)
	}
	v.X, v.XPanel = place(read, int(v.Panels)*slots, int(v.Words))
	v.Base, v.Panel = place(write, int(v.Panels), int(v.Words)*size)
	v.Res, v.ResPanel = place(read, int(v.Panels), int(v.Words))
	records := int(v.Words) * c.WordBytes
	if v.OneParam {
		records = 1
	}
	v.Param = uint16(r.IntN(c.Params - records + 1))
	switch v.Kind {
	case isa.VectorLayerNorm, isa.VectorRMSNorm:
		v.Count = uint16(1 + r.IntN(int(v.Words)*c.WordBytes))
		v.Eps = r.Uint32() >> r.IntN(33)
	case isa.VectorCombine:
		v.Count = uint16(r.IntN(c.Tokens - int(v.Panels)*c.Rows + 1))
	}
	return v
}

// TestVectorOnExec runs batches of random Vectors, Routes and Gemms on the whole engine, with noise as in TestGemm.
// Combines have the gates that the Routes before them left.
func TestVectorOnExec(t *testing.T) {
	for _, c := range []isa.Config{execConfigs()[0], execConfigs()[2]} { // fpgatest has others
		c.Norms = !c.SerialMul
		if !c.SerialMul {
			c.Experts, c.ListLen, c.Tokens, c.TopK = 8, 16, 64, 1+c.Rows%3
			if c.Rows == 2 {
				c.TopK = 4
			}
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			program := buildExec(t, c)
			for seed := range uint64(3) {
				r := rand.New(rand.NewPCG(seed, 2))
				m := newMemories(c, r)
				state := &routed{config: c, gates: map[[2]int]uint16{}}
				limit := min(c.XWords, c.WWords, c.YWords) * 3 / 4
				noise := 0
				if seed%2 == 1 {
					noise = limit
				}
				fmt.Fprintf(&m.script, "n %d %d\n", seed, noise)
				var listed []string
				do := func(d isa.Command) {
					m.command(t, d)
					listed = append(listed, isa.Text(d))
				}
				route := func(read int, first, all bool) {
					d := &isa.Route{First: first, Renormalise: r.IntN(2) == 0, X: uint16(read), TopK: uint8(1 + r.IntN(c.TopK)),
						Experts: uint16(c.TopK + r.IntN(c.Experts-c.TopK+1)), Rows: uint16(1 + r.IntN(min(c.Tokens, 3*c.Rows)))}
					if all { // every gate of every token
						d.TopK, d.Experts, d.Rows = uint8(c.TopK), uint16(c.Experts), uint16(c.Tokens)
					}
					words := (2*int(d.Experts) + c.WordBytes - 1) / c.WordBytes
					d.Rows = min(d.Rows, uint16(limit/2/words*c.Rows))
					d.XPanel = uint16(words)
					if all { // the same panel again and again
						d.Rows, d.XPanel = uint16(c.Tokens), 0
					}
					d.Token = uint16(r.IntN(c.Tokens - int(d.Rows) + 1))
					var logits [][]int16
					for i := range int(d.Rows) {
						x := m.x[i%c.Rows][(int(d.X)+i/c.Rows*int(d.XPanel))*c.WordBytes:]
						row := make([]int16, d.Experts)
						for e := range row {
							row[e] = int16(uint16(x[2*e]) | uint16(x[2*e+1])<<8)
						}
						logits = append(logits, row)
					}
					do(d)
					state.route(d, logits)
				}
				if c.Router() {
					route(0, true, true)
					m.script.WriteString("w\n")
				}
				for batch := range 16 {
					read, write := batch%2*(limit/2), (1-batch%2)*(limit/2)
					gates := make([][]uint16, c.Tokens)
					for i := range gates {
						for k := range c.TopK {
							gates[i] = append(gates[i], state.gates[[2]int{i, k}])
						}
					}
					routes := c.Router() && r.IntN(3) == 0 // a batch of Routes and Gemms, or of Vectors and Gemms
					for range 1 + r.IntN(8) {
						switch {
						case r.IntN(4) == 0:
							g := m.random(r, read, write, limit/2)
							do(g)
							m.gemm(g)
						case routes:
							route(read, r.IntN(3) == 0, false)
						default:
							v := m.randomVector(r, read, write, limit/2)
							do(v)
							m.vector(v, gates)
						}
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
