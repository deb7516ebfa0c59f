package lowering

import (
	"slices"

	"fusec/graph"
	"fusec/graph/arena"
)

// besides is the number of launches beside which an exchange with other participants may run, at most, as far as its operands keep
// their memory for it.
const besides = 8

// keepExchanged keeps the operands of exchanges until their results are read, or some launches have followed, so that no launch has
// to wait for the memory before that.
func (p *Program) keepExchanged() {
	for i := range p.Launches {
		l := &p.Launches[i]
		op, ok := l.Op.(graph.Collective)
		if _, local := l.Op.(graph.Part); !ok || local || len(p.Mesh) == 0 || op.Of().Parts == 1 {
			continue
		}
		end := min(i+besides, len(p.Launches)-1)
		if i < p.Prepared {
			end = min(end, p.Prepared-1)
		}
		until := i
		for until < end && !slices.ContainsFunc(p.Launches[until+1].Args, func(v View) bool { return v.Buffer == l.Results[0].Buffer }) {
			until++
		}
		for _, v := range l.Args {
			if b := &p.Buffers[v.Buffer]; b.Role == Temp {
				b.Last = max(b.Last, until)
			}
		}
	}
}

// plan determines between which launches each buffer holds its value, and gives temporary buffers offsets in the arena.
// Prepared buffers follow one another in memory of their own.
func plan(p *Program) {
	for i := range p.Buffers {
		p.Buffers[i].First, p.Buffers[i].Last = -1, -1
	}
	for i, l := range p.Launches {
		for _, v := range l.Results {
			b := &p.Buffers[v.Buffer]
			if b.First < 0 {
				b.First = i
			}
			b.Last = i
		}
		for _, v := range l.Args {
			p.Buffers[v.Buffer].Last = i
		}
	}
	p.keepExchanged()
	var temps []int
	var values []arena.Value
	for i, b := range p.Buffers {
		switch b.Role {
		case Prepared:
			p.Buffers[i].Offset = p.PreparedBytes
			p.PreparedBytes += arena.Align(b.Type.Bytes())
		case Temp:
			temps = append(temps, i)
			values = append(values, arena.Value{Bytes: b.Type.Bytes(), First: b.First, Last: b.Last})
			p.BufferBytes += arena.Align(b.Type.Bytes())
		}
	}
	p.ArenaBytes = arena.Place(values)
	for i, t := range temps {
		b := &p.Buffers[t]
		b.Offset = values[i].Offset
		if end := b.Offset + arena.Align(b.Type.Bytes()); b.Last < p.Prepared {
			p.PreparingBytes = max(p.PreparingBytes, end)
		} else {
			p.RunningBytes = max(p.RunningBytes, end)
		}
	}
}
