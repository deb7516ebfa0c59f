package model

import "fusec/fpga/isa"

// cost is about how many cycles an engine is busy with a command: beats of memory behind one latency, the array's
// operands or results, whichever are more. The simulation counts; this only gives the model's engines a pace.
func (m *Machine) cost(c isa.Command) uint64 {
	latency := uint64(m.options.Latency)
	switch d := c.(type) {
	case *isa.Load:
		return latency + uint64(d.Rows)*uint64(d.Segments())*uint64(d.Words)
	case *isa.Store:
		return latency + uint64(d.Rows)*uint64(d.Words)
	case *isa.Stamp:
		return latency
	case *isa.Gemm:
		return uint64(m.panels(d))*uint64(d.Tiles)*uint64(max(int(d.Words)*m.cfg.WordBytes,
			2*m.cfg.Cols)) + uint64(m.cfg.Rows+m.cfg.Cols)
	case *isa.Attention:
		return m.multiplies(c) + uint64(m.cfg.Rows+2*m.cfg.Cols)
	case *isa.Vector:
		return uint64(d.Panels)*uint64(d.Words)*uint64(m.cfg.WordBytes) + uint64(m.cfg.Rows)
	case *isa.Route:
		return uint64(d.Rows) * uint64(d.Experts)
	}
	return 1
}

// multiplies is the number of cycles in which the array gets operands.
func (m *Machine) multiplies(c isa.Command) (n uint64) {
	switch d := c.(type) {
	case *isa.Gemm:
		return uint64(m.panels(d)) * uint64(d.Tiles) * uint64(int(d.Words)*m.cfg.WordBytes)
	case *isa.Attention:
		dim, block := int(d.Dim)*m.cfg.WordBytes, m.cfg.KeyBlock
		for p := range int(d.QPanels) {
			last := int64(d.Keys)
			if d.Causal {
				last = min(last, int64((p+1)*m.cfg.Rows)+int64(d.Diagonal))
			}
			for j := int64(0); j < last; j += int64(block) {
				keys := min(block, int(d.Keys)-int(j))
				n += uint64((keys-1)/m.cfg.Cols+1)*uint64(dim) + uint64(dim/m.cfg.Cols)*uint64(keys)
			}
		}
	}
	return n
}

// count adds a command to the counters.
func (m *Machine) count(e isa.Engine, c isa.Command, busy uint64) {
	m.counters[isa.CountMultiply] += m.multiplies(c)
	m.counters[[...]isa.Counter{isa.CountLoad, isa.CountExec, isa.CountStore}[e]] += busy
}
