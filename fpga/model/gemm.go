package model

import (
	"encoding/binary"

	"fusec/fpga/isa"
)

// dot is Σ x·w over signed bytes, wrapping round at 32 bits.
func dot(x, w []byte) (sum int32) {
	w = w[:len(x)]
	for k, a := range x {
		sum += int32(int8(a)) * int32(int8(w[k]))
	}
	return sum
}

// record is a record of the parameter memory.
func (m *Machine) record(i int) isa.Record { return isa.RecordFrom(m.params[i*isa.RecordBytes:]) }

// wrap keeps the bits of a sum that the configuration's accumulators have.
func (m *Machine) wrap(acc int32) int32 { return acc << (32 - m.cfg.AccBits) >> (32 - m.cfg.AccBits) }

// out finishes element col of a lane's row of a panel: residual, rounding, table, and the write.
func (m *Machine) out(o *isa.Out, panel, lane, col int, t int32) {
	if o.Residual {
		at := (int(o.Res)+panel*int(o.ResPanel))*m.cfg.WordBytes + col
		t += isa.Residual(int8(m.spaces[isa.SpaceY][lane][at]), o.ResMul)
	}
	at := m.spaces[o.Space][lane][(int(o.Base)+panel*int(o.Panel))*m.cfg.WordBytes:]
	if o.Wide {
		binary.LittleEndian.PutUint16(at[2*col:], uint16(isa.FinishWide(t, o.ReLU, o.Zero)))
		return
	}
	var table *[256]int8
	if o.Table > 0 {
		table = &m.tables[o.Table-1]
	}
	at[col] = byte(isa.Finish(t, o.ReLU, o.Zero, table))
}

// touchOut records the accesses of out: n panels of rows of cols elements. With readsY it also reads factors or
// residuals from Y.
func (m *Machine) touchOut(t *tracker, o *isa.Out, readsY bool, n, cols int) {
	if o.Table > 0 {
		t.touch(Tables, int64(o.Table-1), 1, false)
	}
	bytes := cols
	if o.Wide {
		bytes *= 2
	}
	for p := range n {
		if readsY {
			t.words(isa.SpaceY, int(o.Res)+p*int(o.ResPanel), cols/m.cfg.WordBytes, false)
			t.tagged(p + 1)
		}
		t.words(o.Space, int(o.Base)+p*int(o.Panel), bytes/m.cfg.WordBytes, true)
		t.tagged(p + 1)
	}
}

// panels is how many panels a Gemm computes: with Listed those that have an entry of the list.
func (m *Machine) panels(d *isa.Gemm) int {
	if !d.Listed {
		return int(d.Panels)
	}
	left := len(m.router.lists[d.List]) - int(d.Start)*m.cfg.Rows
	return max(0, min(int(d.Panels), (left+m.cfg.Rows-1)/m.cfg.Rows))
}

func (m *Machine) gemm(d *isa.Gemm) {
	rows, cols, bytes, panels := m.cfg.Rows, m.cfg.Cols, int(d.Words)*m.cfg.WordBytes, m.panels(d)
	for p := range panels {
		for n := range int(d.Tiles) {
			for i := range rows {
				x := m.row(isa.SpaceX, i, int(d.X)+p*int(d.XPanel), bytes)
				for j := range cols {
					acc := dot(x, m.row(isa.SpaceW, j, int(d.W)+n*int(d.WPanel), bytes))
					if d.More {
						acc += m.held[i*cols+j]
					}
					if d.Hold {
						m.held[i*cols+j] = acc
						continue
					}
					record := int(d.Param) + n*cols + j
					if d.RowParam {
						record = int(d.Param) + p*rows + i
					}
					m.out(&d.Out, p, i, n*cols+j, m.record(record).Scale(m.wrap(acc)))
				}
			}
		}
	}
}

// touchGemm records the accesses of a Gemm.
func (m *Machine) touchGemm(t *tracker, d *isa.Gemm) {
	rows, cols, panels := m.cfg.Rows, m.cfg.Cols, m.panels(d)
	if d.Listed {
		t.touch(Lists, int64(d.List), 1, false)
	}
	for p := range panels {
		t.words(isa.SpaceX, int(d.X)+p*int(d.XPanel), int(d.Words), false)
	}
	for n := range int(d.Tiles) {
		t.words(isa.SpaceW, int(d.W)+n*int(d.WPanel), int(d.Words), false)
	}
	t.hold(d.More, d.Hold)
	if !d.Hold {
		records := int64(d.Tiles) * int64(cols)
		if d.RowParam {
			records = int64(panels) * int64(rows)
		}
		t.touch(Params, int64(d.Param), records, false)
		m.touchOut(t, &d.Out, d.Residual, panels, int(d.Tiles)*cols)
	}
}
