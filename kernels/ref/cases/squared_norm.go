package cases

import "fusec/graph"

func (m *maker) squaredNorm() {
	m.add("one", graph.SquaredNorm{}, m.real(3, 5))
	m.add("several", graph.SquaredNorm{}, m.real(3, 5), m.real(), m.real(1, 7), m.real(2, 3, 1))
	m.add("empty", graph.SquaredNorm{}, m.real(0, 4), m.real(2))
}
