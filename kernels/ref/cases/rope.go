package cases

import "fusec/graph"

func (m *maker) rope() {
	start := integer(graph.I64, 0, 50)
	for _, interleaved := range []bool{false, true} {
		for _, inverse := range []bool{false, true} {
			label := map[bool]string{false: "halves", true: "interleaved"}[interleaved]
			if inverse {
				label += "_inverse"
			}
			op := graph.RoPE{Base: 10000, Interleaved: interleaved, Inverse: inverse}
			m.add(label+"_2d", op, m.real(5, 6), start)
			m.add(label+"_4d", op, m.real(2, 3, 1, 8), start)
			divisors := Arg{Type: graph.TypeOf(graph.F64, 4), Lo: 0.5, Hi: 8}
			m.add(label+"_divided", op, m.real(2, 3, 3, 8), start, divisors)
			op.Base = 3
			m.add(label+"_one_pair", op, m.real(2, 3, 2), start)
			m.add(label+"_far", op, m.real(3, 4), integer(graph.I64, 1<<20, 1<<21))
			m.add(label+"_before", op, m.real(3, 4), integer(graph.I64, -9, 0))
		}
	}
	m.add("no_positions", graph.RoPE{Base: 10}, m.real(2, 0, 4), start)
	m.add("no_elements", graph.RoPE{Base: 10, Interleaved: true}, m.real(2, 3, 0), start)
}
