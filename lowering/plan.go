package lowering

import "fusec/graph/arena"

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
