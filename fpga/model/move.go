package model

import (
	"encoding/binary"

	"fusec/fpga/isa"
)

// listed is entry i of a list, ok if there is one.
func (m *Machine) listed(t *tracker, list uint8, i int) (token, bool) {
	t.touch(Lists, int64(list), 1, false)
	l := m.router.lists[list]
	if i >= len(l) {
		return token{}, false
	}
	return l[i], true
}

// words is n words of memory at an address that a list may have given.
func (m *Machine) words(at int64, n int) ([]byte, isa.Error) {
	if n *= m.cfg.WordBytes; at+int64(n) <= m.end() {
		return m.memory[at:][:n], isa.ErrNone
	}
	return nil, isa.ErrMemory
}

func (m *Machine) load(t *tracker, d *isa.Load) isa.Error {
	if d.Skip {
		if _, ok := m.listed(t, d.List, int(d.Start)); !ok {
			return isa.ErrNone
		}
	}
	for i := range int(d.Rows) {
		row := i
		if d.Gather {
			e, ok := m.listed(t, d.List, int(d.Start)+i)
			if !ok {
				break
			}
			row = int(e.number)
		}
		for s := range d.Segments() {
			at := int64(d.Addr) + int64(row)*int64(d.Stride) + int64(s)*int64(d.TapStride)
			from, code := m.words(at, int(d.Words))
			if code != isa.ErrNone {
				return code
			}
			t.memory(at, len(from), false)
			m.counters[isa.CountReadBeats] += uint64(d.Words)
			if code := m.segment(t, d, i, s, from); code != isa.ErrNone {
				return code
			}
		}
	}
	return isa.ErrNone
}

// segment writes segment s of row i of a Load.
func (m *Machine) segment(t *tracker, d *isa.Load, i, s int, from []byte) isa.Error {
	switch d.Space {
	case isa.SpaceParams:
		t.touch(Params, int64(d.Base), int64(len(from)-1)/isa.RecordBytes+1, true)
		copy(m.params[int(d.Base)*isa.RecordBytes:], from)
		return isa.ErrNone
	case isa.SpaceTables:
		t.touch(Tables, int64(d.Base), 1, true)
		for k, v := range from {
			m.tables[d.Base][k] = int8(v)
		}
		return isa.ErrNone
	}
	lanes := m.cfg.Lanes(d.Space)
	lane, panel := (int(d.Lane)+i)%lanes, (int(d.Lane)+i)/lanes
	word, step := int(d.Base)+panel*int(d.Panel)+s*int(d.TapStep), max(1, int(d.WordStep))
	if word+(int(d.Words)-1)*step+1 > m.cfg.Words(d.Space) {
		return isa.ErrScratch
	}
	first := i == 0 || lane == 0
	if step == 1 {
		if first {
			t.words(d.Space, word, int(d.Words), true)
		}
		copy(m.row(d.Space, lane, word, len(from)), from)
		return isa.ErrNone
	}
	for j := range int(d.Words) {
		if first {
			t.words(d.Space, word+j*step, 1, true)
		}
		copy(m.row(d.Space, lane, word+j*step, m.cfg.WordBytes), from[j*m.cfg.WordBytes:][:m.cfg.WordBytes])
	}
	return isa.ErrNone
}

func (m *Machine) store(t *tracker, d *isa.Store) isa.Error {
	for i := range int(d.Rows) {
		row := i
		if d.Scatter {
			e, ok := m.listed(t, d.List, int(d.Start)+i)
			if !ok {
				break
			}
			row = int(e.number)*int(d.TopK) + int(e.rank)
		}
		at := int64(d.Addr) + int64(row)*int64(d.Stride)
		to, code := m.words(at, int(d.Words))
		if code != isa.ErrNone {
			return code
		}
		word := int(d.Base) + i/m.cfg.Rows*int(d.Panel)
		if word+int(d.Words) > m.cfg.Words(d.Space) {
			return isa.ErrScratch
		}
		if i%m.cfg.Rows == 0 {
			t.words(d.Space, word, int(d.Words), false)
		}
		t.memory(at, len(to), true)
		m.counters[isa.CountWriteBeats] += uint64(d.Words)
		copy(to, m.row(d.Space, i%m.cfg.Rows, word, len(to)))
	}
	return isa.ErrNone
}

func (m *Machine) stamp(t *tracker, d *isa.Stamp) {
	t.memory(int64(d.Addr), 16, true)
	m.counters[isa.CountWriteBeats] += uint64(16 / m.cfg.WordBytes)
	binary.LittleEndian.PutUint64(m.memory[d.Addr:], m.counters[isa.CountCycles])
	binary.LittleEndian.PutUint64(m.memory[d.Addr+8:], m.counters[isa.CountMultiply])
}
