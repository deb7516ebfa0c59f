package model

import "fusec/fpga/isa"

func (m *Machine) vector(d *isa.Vector) {
	cols, slots := int(d.Words)*m.cfg.WordBytes, 1
	if d.Kind == isa.VectorCombine {
		slots = int(d.TopK)
	}
	accs := make([]int32, cols)
	for p := range int(d.Panels) {
		for i := range m.cfg.Rows {
			m.rowOf(accs, d, p, i, slots)
			for k, acc := range accs {
				record := int(d.Param) + k
				if d.OneParam {
					record = int(d.Param)
				}
				m.out(&d.Out, p, i, k, m.record(record).Scale(acc))
			}
		}
	}
}

// rowOf computes the sums of row i of panel p.
func (m *Machine) rowOf(accs []int32, d *isa.Vector, p, i, slots int) {
	x := m.row(isa.SpaceX, i, int(d.X)+p*slots*int(d.XPanel), len(accs))
	switch d.Kind {
	case isa.VectorAffine:
		for k := range accs {
			accs[k] = int32(int8(x[k]))
		}
	case isa.VectorMul:
		y := m.row(isa.SpaceY, i, int(d.Res)+p*int(d.ResPanel), len(accs))
		for k := range accs {
			accs[k] = int32(int8(x[k])) * int32(int8(y[k]))
		}
	case isa.VectorLayerNorm, isa.VectorRMSNorm:
		var sum, squares int64
		for _, v := range x[:d.Count] {
			if d.Kind == isa.VectorLayerNorm {
				sum += int64(int8(v))
			}
			squares += int64(int8(v)) * int64(int8(v))
		}
		norm := isa.NewNorm(int(d.Count), sum, squares, d.Eps)
		for k := range accs {
			accs[k] = norm.Element(int8(x[k]))
		}
	case isa.VectorCombine:
		gates := m.router.gates[int(d.Count)+p*m.cfg.Rows+i][:slots]
		var at [4]int8
		for k := range accs {
			for r := range slots {
				at[r] = int8(m.row(isa.SpaceX, i, int(d.X)+(p*slots+r)*int(d.XPanel), len(accs))[k])
			}
			accs[k] = isa.Combine(gates, at[:slots])
		}
	}
}

// touchVector records the accesses of a Vector.
func (m *Machine) touchVector(t *tracker, d *isa.Vector) {
	cols, slots := int(d.Words)*m.cfg.WordBytes, 1
	if d.Kind == isa.VectorCombine {
		slots = int(d.TopK)
		t.touch(Gates, int64(d.Count), int64(d.Panels)*int64(m.cfg.Rows), false)
	}
	for s := range int(d.Panels) * slots {
		t.words(isa.SpaceX, int(d.X)+s*int(d.XPanel), int(d.Words), false)
		if d.Kind != isa.VectorCombine {
			t.tagged(s + 1)
		}
	}
	records := cols
	if d.OneParam {
		records = 1
	}
	t.touch(Params, int64(d.Param), int64(records), false)
	m.touchOut(t, &d.Out, d.Residual || d.Kind == isa.VectorMul, int(d.Panels), cols)
}
