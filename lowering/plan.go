package lowering

import "slices"

// arenaAlign is the alignment of buffers in the arena: a cache line, and what vector loads like.
const arenaAlign = 64

// plan gives every temporary buffer a place in the arena, so that two buffers share memory only if one's last launch
// comes before the other's first. Buffers are placed by falling size, each in the lowest gap that holds it ("greedy by
// size", Y. Pisarchyk and J. Lee, "Efficient Memory Management for Deep Neural Net Inference", arXiv 2001.03288).
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
	for i, b := range p.Buffers {
		if b.Role == Temp {
			temps = append(temps, i)
			p.BufferBytes += align(b.Type.Bytes())
		}
	}
	slices.SortStableFunc(temps, func(a, b int) int {
		x, y := p.Buffers[a].Type.Bytes(), p.Buffers[b].Type.Bytes()
		switch {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	var placed []int // by offset
	for _, t := range temps {
		b := &p.Buffers[t]
		size := align(b.Type.Bytes())
		var at int64
		for _, o := range placed {
			q := &p.Buffers[o]
			if q.First > b.Last || q.Last < b.First {
				continue
			}
			if q.Offset >= at+size {
				break
			}
			at = max(at, q.Offset+align(q.Type.Bytes()))
		}
		b.Offset = at
		p.ArenaBytes = max(p.ArenaBytes, at+size)
		i, _ := slices.BinarySearchFunc(placed, at, func(o int, at int64) int {
			switch off := p.Buffers[o].Offset; {
			case off < at:
				return -1
			case off > at:
				return 1
			}
			return 0
		})
		placed = slices.Insert(placed, i, t)
	}
}

func align(n int64) int64 { return (n + arenaAlign - 1) / arenaAlign * arenaAlign }
