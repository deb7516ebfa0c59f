package lowering

import (
	"slices"

	"fusec/graph"
)

// Overwrites is the UpdateSlice that makes a result, by itself or in a fusion, and which operand of the launch it overwrites a part
// of; the node is nil of other results.
func (l *Launch) Overwrites(result int) (arg int, update *graph.Node) {
	if _, ok := l.Op.(graph.UpdateSlice); ok {
		return 0, l.Node
	}
	f, ok := l.Op.(graph.Fusion)
	if !ok || f.Anchor != graph.AnchorMoves {
		return 0, nil
	}
	n := f.Body.Outputs[result].Node
	if _, ok := n.Op.(graph.UpdateSlice); !ok {
		return 0, nil
	}
	for _, a := range f.Body.Nodes {
		if a == n.Args[0] {
			break
		}
		if _, ok := a.Op.(graph.Input); ok {
			arg++
		}
	}
	return arg, n
}

// updateInPlace lets updates of the form State ← UpdateSlice(… UpdateSlice(State, …) …, …) write into the State's
// buffer, so that their cost depends on what they write and not on the size of the State. That is safe for a launch if
// the overwritten value is not read after it, and the new value is not an output. If necessary, the launch is moved
// behind the last reader. A device undoes these writes if a later launch fails.
func updateInPlace(p *Program) {
	parts := map[int]bool{} // buffers of values that overwrite part of another buffer
	for i := range p.Launches {
		for r, v := range p.Launches[i].Results {
			if _, update := p.Launches[i].Overwrites(r); update != nil {
				parts[v.Buffer] = true
			}
		}
	}
	unused := map[int]bool{}
	for i := range p.Updates {
		u := &p.Updates[i]
		if !parts[u.Value] {
			continue
		}
		values := p.overwrites(u)
		for _, v := range values {
			unused[v] = true
			at, result := p.maker(v)
			_, update := p.Launches[at].Overwrites(result)
			p.Launches[at].Bytes += update.Args[1].Type.Bytes() - 2*update.Type.Bytes()
			p.renumber(func(b int) int {
				if b == v {
					return u.Target
				}
				return b
			})
		}
		if values != nil {
			u.Value = u.Target
		}
	}
	if len(unused) > 0 {
		p.drop(unused)
	}
}

// overwrites lists the buffers of the values from an update's target to its value, each of which overwrites part of the
// one before, the last first; nil if they cannot all be in the target's memory.
func (p *Program) overwrites(u *Update) (values []int) {
	if p.Buffers[u.Target].Role != State {
		return nil
	}
	for _, o := range p.Outputs {
		if o.Buffer == u.Value {
			return nil
		}
	}
	for value := u.Value; value != u.Target; {
		at, result := p.maker(value)
		if at < 0 || value != u.Value && p.Buffers[value].Role != Temp {
			return nil // in the memory of another State, or an output
		}
		arg, update := p.Launches[at].Overwrites(result)
		if update == nil {
			return nil
		}
		values = append(values, value)
		args := p.Launches[at].Args
		old := args[arg].Buffer
		for i, v := range args {
			if i != arg && v.Buffer == old {
				return nil
			}
		}
		if at = p.putOff(at, old); p.reads(old, at+1, len(p.Launches)) {
			return nil
		}
		value = old
	}
	return values
}

// maker is the first launch that has a result in a buffer, and which result, or −1.
func (p *Program) maker(buffer int) (launch, result int) {
	for i := range p.Launches {
		for r, v := range p.Launches[i].Results {
			if v.Buffer == buffer {
				return i, r
			}
		}
	}
	return -1, 0
}

// reads reports whether any of the launches from to end−1 reads a buffer.
func (p *Program) reads(buffer, from, end int) bool {
	for i := from; i < end; i++ {
		for _, v := range p.Launches[i].Args {
			if v.Buffer == buffer {
				return true
			}
		}
	}
	return false
}

// putOff moves a launch behind all readers of a buffer, if its own readers come after them and its operands still exist there. It
// returns the launch's new position.
func (p *Program) putOff(at, buffer int) int {
	last := len(p.Launches) - 1
	for last > at && !p.reads(buffer, last, last+1) {
		last--
	}
	l := p.Launches[at]
	for _, v := range l.Results {
		if p.reads(v.Buffer, at+1, last+1) {
			return at
		}
	}
	for _, between := range p.Launches[at+1 : last+1] {
		if p.overwritesState(&between) {
			return at // nothing that can fail may follow it
		}
		for _, v := range l.Args {
			if slices.ContainsFunc(between.Results, func(r View) bool { return r.Buffer == v.Buffer }) { // written in place
				return at
			}
		}
	}
	copy(p.Launches[at:], p.Launches[at+1:last+1])
	p.Launches[last] = l
	return last
}

// overwritesState reports whether a launch writes a result directly into a State or Param, and not as an UpdateSlice, which a
// device undoes.
func (p *Program) overwritesState(l *Launch) bool {
	for i, v := range l.Results {
		_, update := l.Overwrites(i)
		if r := p.Buffers[v.Buffer].Role; update == nil && (r == State || r == Param) {
			return true
		}
	}
	return false
}

// renumber replaces the buffers that the launches read and write.
func (p *Program) renumber(number func(int) int) {
	for _, l := range p.Launches {
		for _, views := range [][]View{l.Args, l.Results} {
			for j := range views {
				views[j].Buffer = number(views[j].Buffer)
			}
		}
	}
}

// drop removes buffers that nothing refers to.
func (p *Program) drop(unused map[int]bool) {
	number := make([]int, len(p.Buffers))
	kept := 0
	for i, b := range p.Buffers {
		number[i] = kept
		if !unused[i] {
			p.Buffers[kept] = b
			kept++
		}
	}
	p.Buffers = p.Buffers[:kept]
	p.renumber(func(b int) int { return number[b] })
	for i := range p.Outputs {
		p.Outputs[i].Buffer = number[p.Outputs[i].Buffer]
	}
	for i, u := range p.Updates {
		p.Updates[i] = Update{number[u.Target], number[u.Value]}
	}
}
