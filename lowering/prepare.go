package lowering

import (
	"slices"

	"fusec/graph"
)

// prepare forms the prepared part: launches of frozen nodes whose results are temporary move to the front.
func (p *Program) prepare(frozen graph.PerNode[bool]) {
	const prepared, run = 1, 2 // a buffer that the prepared part makes, and one of them that the run reads
	made := make([]uint8, len(p.Buffers))
	var first []Launch
	rest := p.Launches[:0]
	for _, l := range p.Launches {
		once := frozen.Get(l.Node) && !slices.ContainsFunc(l.Results, func(v View) bool { return p.Buffers[v.Buffer].Role != Temp })
		for _, v := range l.Args {
			r := p.Buffers[v.Buffer].Role
			once = once && (r == Const || r == Param || made[v.Buffer] != 0)
		}
		if !once {
			for _, v := range l.Args {
				if made[v.Buffer] != 0 {
					made[v.Buffer] = run
				}
			}
			rest = append(rest, l)
			continue
		}
		for _, v := range l.Results {
			made[v.Buffer] = prepared
		}
		first = append(first, l)
	}
	p.Launches, p.Prepared = slices.Insert(rest, 0, first...), len(first)
	for i, m := range made {
		if m == run {
			p.Buffers[i].Role = Prepared
		}
	}
}

// PreparedFrom marks, by buffer, the parameters that the prepared part reads.
func (p *Program) PreparedFrom() []bool {
	reads := make([]bool, len(p.Buffers))
	for _, l := range p.Launches[:p.Prepared] {
		for _, v := range l.Args {
			if p.Buffers[v.Buffer].Role == Param {
				reads[v.Buffer] = true
			}
		}
	}
	return reads
}

// Originals marks, by buffer, the parameters that only the prepared part reads: their values are not needed between its runs.
func (p *Program) Originals() []bool {
	list := p.PreparedFrom()
	for _, l := range p.Launches[p.Prepared:] {
		for _, v := range l.Args {
			list[v.Buffer] = false
		}
	}
	for _, u := range p.Updates {
		list[u.Target], list[u.Value] = false, false
	}
	for _, o := range p.Outputs {
		list[o.Buffer] = false
	}
	return list
}
