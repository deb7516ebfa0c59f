package body

import "fusec/graph"

// Variances finds the variances, means of (x − mean x)², of a body over rows with two levels of reductions, by the value that is
// the mean. It is nil where there is another reduction at the second level.
//
//	x ─┬─► mean ─► sub ─► square ─► mean ─► variance
//	   └────────────┘
func (p *Program) Variances() map[int]int {
	if p.Kind != graph.AnchorRow || p.Levels != 2 {
		return nil
	}
	found := map[int]int{}
	for i := range p.Values {
		v := &p.Values[i]
		if v.Kind != Row || v.Level != 2 {
			continue
		}
		m, _ := p.momentsOf(v)
		if _, twice := found[m]; m < 0 || twice {
			return nil
		}
		found[m] = i
	}
	return found
}

// Moments is Variances where nothing but them needs elements of a row twice, so that with the means they can be computed in one
// pass.
func (p *Program) Moments() map[int]int {
	found := p.Variances()
	inside := map[int]bool{} // differences and their squares
	for _, i := range found {
		_, square := p.momentsOf(&p.Values[i])
		inside[square], inside[p.Values[square].Args[0]] = true, true
	}
	for i := range p.Values {
		if v := &p.Values[i]; v.Level > 0 && !v.PerRow && !inside[i] {
			return nil
		}
	}
	for i := range p.Stores {
		if s := &p.Stores[i]; !s.PerRow && p.Values[s.Value].Level > 0 {
			return nil
		}
	}
	return found
}

// momentsOf returns the mean that a value is the variance for, and the squares that it is the mean of; −1 if it is none.
func (p *Program) momentsOf(v *Value) (mean, square int) {
	averages := func(n *graph.Node) bool { op, ok := n.Op.(graph.Reduce); return ok && op.Fn == graph.Mean }
	if !averages(v.Node) {
		return -1, -1
	}
	square = v.Args[0]
	if op, ok := p.Values[square].Node.Op.(graph.Unary); !ok || op.Fn != graph.Square {
		return -1, -1
	}
	d := &p.Values[p.Values[square].Args[0]]
	if op, ok := d.Node.Op.(graph.Binary); !ok || d.Kind != Elementwise || op.Fn != graph.Sub {
		return -1, -1
	}
	mean = d.Args[1]
	if m := &p.Values[mean]; m.Kind != Row || !averages(m.Node) || m.Args[0] != d.Args[0] {
		return -1, -1
	}
	return mean, square
}
