package model

import (
	"encoding/binary"

	"fusec/fpga/isa"
)

// token is an entry of a list: a token's number, and which of its experts the list's is.
type token struct {
	number uint16
	rank   uint8
}

// router is the state of Route: a list for each expert, the gates of each token, and how often a list was full.
type router struct {
	lists   [][]token
	gates   [][4]uint16
	dropped uint32
}

func newRouter(c isa.Config) router {
	return router{lists: make([][]token, c.Experts), gates: make([][4]uint16, c.Tokens)}
}

// empty empties the lists, for First.
func (r *router) empty() {
	for i := range r.lists {
		r.lists[i] = r.lists[i][:0]
	}
	r.dropped = 0
}

func (m *Machine) route(d *isa.Route) {
	bytes := 2 * int(d.Experts)
	if d.First {
		m.router.empty()
	}
	logits := make([]int16, d.Experts)
	for i := range int(d.Rows) {
		row := m.row(isa.SpaceX, i%m.cfg.Rows, int(d.X)+i/m.cfg.Rows*int(d.XPanel), bytes)
		for e := range logits {
			logits[e] = int16(binary.LittleEndian.Uint16(row[2*e:]))
		}
		chosen := largest(logits, int(d.TopK))
		number := int(d.Token) + i
		for rank, gate := range isa.Gates(logits, chosen, d.Renormalise) {
			list := &m.router.lists[chosen[rank]]
			if len(*list) == m.cfg.ListLen {
				m.router.dropped++
				gate = 0
			} else {
				*list = append(*list, token{uint16(number), uint8(rank)})
			}
			m.router.gates[number][rank] = gate
		}
	}
}

// touchRoute records the accesses of a Route.
func (m *Machine) touchRoute(t *tracker, d *isa.Route) {
	bytes := 2 * int(d.Experts)
	for p := range (int(d.Rows)-1)/m.cfg.Rows + 1 {
		t.words(isa.SpaceX, int(d.X)+p*int(d.XPanel), (bytes-1)/m.cfg.WordBytes+1, false)
	}
	t.touch(Lists, 0, int64(m.cfg.Experts), true)
	t.touch(Gates, int64(d.Token), int64(d.Rows), true)
}

// largest are the places of the n largest, the greatest first, the lower place first among equals.
func largest(x []int16, n int) []int {
	var chosen []int
	for i := range x {
		at := len(chosen)
		for at > 0 && x[chosen[at-1]] < x[i] {
			at--
		}
		if at < n {
			chosen = append(chosen[:at], append([]int{i}, chosen[at:]...)...)
			chosen = chosen[:min(n, len(chosen))]
		}
	}
	return chosen
}
