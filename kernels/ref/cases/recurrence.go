package cases

import (
	"fmt"

	"fusec/graph"
)

func (m *maker) recurrences() {
	for cell := graph.TanhCell; cell <= graph.GRUAfter; cell++ {
		for _, s := range []struct{ steps, n, h int }{{1, 1, 1}, {3, 2, 2}, {2, 0, 3}} {
			for _, reverse := range []bool{false, true}[:min(s.steps, 2)] {
				args := []Arg{m.real(s.steps, s.n, cell.Gates()*s.h), m.between(-1, 1, s.h, cell.Gates()*s.h), m.real(s.n, s.h)}
				if cell == graph.LSTM {
					args = append(args, m.real(s.n, s.h))
				}
				if cell == graph.GRUAfter {
					args = append(args, m.real(s.h))
				}
				name := fmt.Sprintf("%v_%d_%d_%d", cell, s.steps, s.n, s.h)
				if reverse {
					name += "_reverse"
				}
				m.add(name, graph.Recurrence{Cell: cell, Reverse: reverse}, args...)
				for range 2 * cell.Results() {
					args = append(args, m.between(-1, 1, s.steps, s.n, s.h))
				}
				m.add(name, graph.RecurrenceGrad{Cell: cell, Reverse: reverse}, args...)
			}
		}
	}
}
