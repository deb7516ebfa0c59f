package model

import "fusec/fpga/isa"

// head is the state of one query row: its running maximum in units of two, its sum of probabilities and its
// accumulators.
type head struct {
	max int32
	sum uint32
	acc []int64
}

// begin is the state before any key.
func (h *head) begin() {
	h.max, h.sum = isa.MaxStart, 0
	clear(h.acc)
}

// rise scales the state to a maximum that is some units higher: each unit is a factor of four.
func (h *head) rise(units int32) {
	if units == 0 {
		return
	}
	h.max += units
	if units >= isa.MaxClear {
		h.sum = 0
		clear(h.acc)
		return
	}
	h.sum >>= 2 * units
	for f := range h.acc {
		h.acc[f] >>= 2 * units
	}
}

func (m *Machine) attention(d *isa.Attention) {
	rows, cols, dim, keys := m.cfg.Rows, m.cfg.Cols, int(d.Dim)*m.cfg.WordBytes, int(d.Keys)
	heads := m.heads[:int(d.QPanels)*rows]
	if d.First {
		for i := range heads {
			heads[i].begin()
		}
	}
	scores := make([]int32, m.cfg.KeyBlock)
	probs := make([]uint32, m.cfg.KeyBlock)
	for j0 := 0; j0 < keys; j0 += m.cfg.KeyBlock {
		for i := range heads {
			n := min(keys-j0, m.cfg.KeyBlock)
			if d.Causal {
				n = int(min(int64(n), int64(i)+int64(d.Diagonal)-int64(j0)+1))
			}
			if n <= 0 {
				continue
			}
			h := &heads[i]
			q := m.row(isa.SpaceX, i%rows, int(d.X)+i/rows*int(d.QPanel), dim)
			top := h.max
			for j := range n {
				key := m.row(isa.SpaceW, (j0+j)%cols, int(d.K)+(j0+j)/cols*int(d.Dim), dim)
				scores[j] = isa.Score(dot(q, key), d.ScoreMul, d.ScoreSh)
				top = max(top, isa.RowMax(scores[j]))
			}
			h.rise(top - h.max)
			for j := range n {
				probs[j] = isa.Exp2(top<<isa.MaxUnit - scores[j])
				h.sum += probs[j]
			}
			for f := range dim {
				v := m.row(isa.SpaceW, f%cols, int(d.V)+f/cols*int(d.VPanel), keys)[j0:]
				acc := h.acc[f]
				for j, p := range probs[:n] {
					acc += int64(p) * int64(int8(v[j]))
				}
				const unused = 64 - isa.AccumulatorBits
				h.acc[f] = acc << unused >> unused
			}
		}
	}
	if !d.Last {
		return
	}
	o := &isa.Out{Wide: d.Wide, Space: d.Space, Base: d.Base, Panel: d.Panel}
	for i := range heads {
		h := &heads[i]
		r, z := isa.Reciprocal(h.sum)
		for f := range dim {
			m.out(o, i/rows, i%rows, f, isa.FinishAttention(h.acc[f], r, z, d.OutMul, d.OutSh))
		}
	}
}

// touchAttention records the accesses of an Attention.
func (m *Machine) touchAttention(t *tracker, d *isa.Attention) {
	dim := int(d.Dim) * m.cfg.WordBytes
	t.state(d.First, d.Last)
	for p := range int(d.QPanels) {
		t.words(isa.SpaceX, int(d.X)+p*int(d.QPanel), int(d.Dim), false)
	}
	t.words(isa.SpaceW, int(d.K), ((int(d.Keys)-1)/m.cfg.Cols+1)*int(d.Dim), false)
	for g := range dim / m.cfg.Cols {
		t.words(isa.SpaceW, int(d.V)+g*int(d.VPanel), (int(d.Keys)-1)/m.cfg.WordBytes+1, false)
	}
	if d.Last {
		m.touchOut(t, &isa.Out{Wide: d.Wide, Space: d.Space, Base: d.Base, Panel: d.Panel}, false, int(d.QPanels), dim)
	}
}
