package lowering

import (
	"slices"

	"fusec/graph"
	"fusec/graph/arena"
)

// besides is the number of launches beside which an exchange with other participants may run, at most, as far as its operands keep
// their memory for it.
const besides = 8

// small is how many bytes an operand of an exchange has at most that keeps its memory until the result is read: exchanges of small
// values are put together, and may begin late.
const small = 64 << 10

// keepExchanged keeps the operands of exchanges until their results are read, or some launches have followed unless they are
// gathered ahead, so that no launch has to wait for the memory before that.
func (p *Program) keepExchanged() {
	for i := range p.Launches {
		l := &p.Launches[i]
		op, ok := l.Op.(graph.Collective)
		if _, local := l.Op.(graph.Part); !ok || local || len(p.Mesh) == 0 || op.Of().Parts == 1 {
			continue
		}
		end := len(p.Launches) - 1
		if l.Node.Args[0].Type.Bytes() > small && l.Ahead == 0 {
			end = min(i+besides, end)
		}
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

// Beside keeps, in programs that train, the operands of launches whose results none of the n launches that follow uses until after
// those, so that the device may run them at the same time. Launches come as early as they can, if what they make is not needed for
// a while or takes little memory.
func Beside(n int) Option { return func(l *lowerer) { l.beside = n } }

// Trains reports whether the program updates parameters or makes gradients.
func (p *Program) Trains() bool {
	return slices.ContainsFunc(p.Updates, func(u Update) bool { return p.Buffers[u.Target].Role == Param }) ||
		slices.ContainsFunc(p.Launches, func(l Launch) bool { return l.Node.Phase == graph.Backward })
}

// independent reports whether launch i is not of the prepared part, and none of the n launches that follow reads or writes some of
// its results: such as a weight's gradient.
func (p *Program) independent(i, n int) bool {
	if i < p.Prepared {
		return false
	}
	uses := func(views []View) bool {
		return slices.ContainsFunc(views, func(v View) bool {
			return slices.ContainsFunc(p.Launches[i].Results, func(r View) bool { return r.Buffer == v.Buffer })
		})
	}
	return !slices.ContainsFunc(p.Launches[i+1:min(i+1+n, len(p.Launches))], func(l Launch) bool {
		return uses(l.Args) || uses(l.Results)
	})
}

// hasten moves launches to directly after the last one on which they depend, if their results are independent of the n launches
// that follow or take less memory than the temporary values that they read: gradients of weights are then made while the backward
// pass goes on, and what they read need not be kept until its end.
func (p *Program) hasten(n int) {
	at := make([]int, len(p.Launches)) // the launch of the old order after which each comes
	written, read := make([]int, len(p.Buffers)), make([]int, len(p.Buffers))
	for i := range p.Launches {
		l := &p.Launches[i]
		ready := p.Prepared - 1
		for _, v := range l.Args {
			ready = max(ready, written[v.Buffer])
		}
		for _, v := range l.Results {
			ready = max(ready, written[v.Buffer], read[v.Buffer])
		}
		if at[i] = i; ready < i-1 && p.mayHasten(i, n) {
			at[i] = ready
		}
		for _, v := range l.Args {
			read[v.Buffer] = max(read[v.Buffer], at[i])
		}
		for _, v := range l.Results {
			written[v.Buffer] = max(written[v.Buffer], at[i])
		}
	}
	order := make([]int, len(p.Launches))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return at[i] - at[j] })
	launches := make([]Launch, len(order))
	for i, from := range order {
		launches[i] = p.Launches[from]
	}
	p.Launches = launches
}

// mayHasten reports whether launch i may come earlier.
func (p *Program) mayHasten(i, n int) bool {
	l := &p.Launches[i]
	if _, host := l.Op.(graph.Host); host || i < p.Prepared || len(p.Mesh) > 0 {
		return false
	}
	var made, read int64
	for _, v := range l.Results {
		b := &p.Buffers[v.Buffer]
		if b.Role != Temp && b.Role != Output {
			return false
		}
		made += b.Type.Bytes()
	}
	for _, v := range l.Args {
		if b := &p.Buffers[v.Buffer]; b.Role == Temp {
			read += b.Type.Bytes()
		}
	}
	return made <= max(read, arena.Align(1)) || p.independent(i, n)
}

// keepBeside keeps the operands of launches that are independent of the n that follow.
func (p *Program) keepBeside(n int) {
	for i := range p.Launches {
		if !p.independent(i, n) {
			continue
		}
		for _, v := range p.Launches[i].Args {
			if b := &p.Buffers[v.Buffer]; b.Role == Temp && b.First >= p.Prepared {
				b.Last = max(b.Last, min(i+n, len(p.Launches)-1))
			}
		}
	}
}

// plan determines between which launches each buffer holds its value, and gives temporary buffers offsets in the arena; the
// operands of launches that are independent of the next few keep theirs. Prepared buffers follow one another in memory of their
// own.
func plan(p *Program, beside int) {
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
	if beside > 0 {
		p.keepBeside(beside)
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
