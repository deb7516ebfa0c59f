package shard

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/trace"
)

// partition replaces the graph by that of one participant.
func (p *pass) partition() error {
	g := p.g
	nodes := g.Nodes
	uses := g.Uses()
	p.b = graph.Extend(g)
	first := len(nodes)
	for _, n := range nodes {
		switch n.Op.(type) {
		case graph.Result: // with its operation
			continue
		case graph.SquaredNorm:
			p.squaredNorm(n)
		case graph.Input, graph.Param, graph.State:
			p.source(n)
		default:
			p.compute(n, uses)
		}
		if err := p.b.Err(); err != nil {
			return fmt.Errorf("%s: %w", n.Where(), err)
		}
	}
	for i, o := range g.Outputs {
		p.b.From(o.Node)
		g.Outputs[i].Node = p.get(p.values[o.Node], graph.Replicated)
	}
	for i, u := range g.Updates {
		t, v := p.values[u.Target], p.values[u.Value]
		p.b.From(u.Value)
		g.Updates[i] = graph.Update{Target: t.have[0].n, Value: p.get(v, t.have[0].s)}
	}
	if err := p.b.Err(); err != nil {
		return err
	}
	g.Nodes, g.Parts = g.Nodes[first:], true
	p.report()
	return g.Tidy()
}

// source makes the participant's part of an input, parameter or state.
func (p *pass) source(n *graph.Node) {
	v := p.values[n]
	t := n.Type.Reshaped(v.want.Local(p.mesh, n.Type.Shape))
	var part *graph.Node
	switch n.Op.(type) {
	case graph.Input:
		part = p.b.Input(n.Name, t)
	case graph.Param:
		part = p.b.Param(n.Name, t)
	case graph.State:
		part = p.b.State(n.Name, t)
	}
	part.Like(n)
	part.Sharding = v.want // of the whole value; see [graph.Graph.Parts]
	v.have = []placed{{v.want, part}}
	if v.want.Over() != 0 {
		p.c.Note(part, "%v is split as %s: %v on each participant", n.Type, v.want.Text(p.mesh, n.Type.Shape.Rank()), t)
	}
}

// compute makes the participant's part of an operation's results.
func (p *pass) compute(n *graph.Node, uses *graph.Uses) {
	r := p.rule[n]
	p.b.From(n)
	pending := p.pending(n, r, uses) // along which the results stay partial sums, because operands are
	over := p.choose(n, r, pending)
	shardings := func(factors []int) graph.Sharding {
		s := graph.Replicated
		for d, f := range factors {
			if f != none {
				s.Split[d] = over[f]
			}
		}
		return s
	}
	crossed := p.crosses(n, r, over) // the axis along which tokens cross to experts, and back
	var crossAxes graph.MeshAxes
	if crossed != none {
		crossAxes = over[r.results[1][0]]
	}
	if r.whole && slices.ContainsFunc(n.Args, func(a *graph.Node) bool { return p.values[a].want.Over() != 0 }) {
		p.c.Note(n, "its operands are gathered: each participant computes it whole")
	}
	args := make([]*graph.Node, len(n.Args))
	for i, a := range n.Args {
		s := shardings(r.args[i])
		if i == 0 && crossed != none {
			s.Split[crossed] |= crossAxes
		}
		if pending != 0 && slices.Contains(r.linear, i) {
			s.Partial = pending
		}
		args[i] = p.get(p.values[a], s)
	}
	if p.b.Err() != nil {
		return
	}
	result := shardings(r.results[0])
	var y *graph.Node
	var parts []*graph.Node // of the results, where no operation has them all
	if r.ring != none && p.mesh.Parts(over[r.ring]) > 1 {
		_, isGrad, _ := attentionOf(n)
		lse := r.results[len(r.results)-1]
		if isGrad {
			lse = r.args[n.Op.(graph.AttentionGrad).LSEArg()]
		}
		parts = p.attentionRing(n, args, over[r.ring], shardings(lse))
		y = parts[0]
	} else if crossed != none {
		c := &crossing{p: p, op: n.Op.(graph.MoE), axes: crossAxes, axis: crossed, x: args[0], gates: args[1], weights: args[2:],
			rounded: rounds(n, uses)}
		here := shardings(r.args[1])
		here.Split[n.Args[1].Type.Shape.Rank()-1] &^= crossAxes
		here.Split[crossed] |= crossAxes
		for _, h := range p.values[n.Args[1]].have {
			if h.s == here {
				c.own = h.n
			}
		}
		parts = c.cross(n)
		y = parts[0]
	} else if r.local != nil {
		l := local{args: args, shape: result.Local(p.mesh, n.Type.Shape), place: func(f, times int) *graph.Node {
			return p.place(over[f], graph.I64, func(i int) int { return times * i })
		}}
		for _, a := range over {
			l.factor = append(l.factor, p.mesh.Parts(a))
		}
		y = r.local(p.b, l)
	} else {
		y = p.b.Add(n.Op, args...)
	}
	if p.b.Err() != nil {
		return
	}
	for i, nodes := range p.results[n] {
		if len(nodes) == 0 {
			continue
		}
		s, part := shardings(r.results[i]), y
		if parts != nil {
			part = parts[i]
		} else if i > 0 {
			part = p.b.Add(graph.Result{Index: i}, y)
		}
		for f, a := range over {
			if a != 0 && !slices.Contains(r.results[i], f) && !slices.Contains(r.same[i], f) {
				s.Partial |= a
			}
		}
		if i == 0 && crossed != none {
			s.Split[crossed] |= crossAxes
			s.Partial &^= crossAxes
		}
		if fn := r.fn(i); fn != graph.Sum && s.Partial != 0 {
			part = p.collective(graph.AllReduce{Fn: fn, Group: p.group(s.Partial)}, part, s.Partial)
			s.Partial = 0
		}
		s.Partial |= pending
		for _, m := range nodes {
			if part != y || i == 0 && s.Partial == 0 {
				name(part, m)
			}
			v := p.values[m]
			v.have = []placed{{s, part}}
			if s.Partial != 0 && !p.defers(m, uses) {
				// Terms are added up as soon as they are there, so that the work that follows hides it.
				p.move(v, v.have[0], v.want)
			}
		}
	}
}

// rounds reports whether all that reads a value of f32 rounds it to bf16.
func rounds(n *graph.Node, uses *graph.Uses) bool {
	some := false
	for _, r := range uses.Readers(n) {
		switch op := r.Op.(type) {
		case graph.Result:
		case graph.Cast:
			if some = true; op.To != graph.BF16 {
				return false
			}
		default:
			return false
		}
	}
	return some && n.Type.DType == graph.F32 && !uses.Escapes(n)
}

// early has a collective operation begin as soon as its operand is there, before what was added since.
func (p *pass) early(n *graph.Node) {
	nodes := p.g.Nodes
	at := slices.Index(nodes, n.Args[0]) + 1
	if last := len(nodes) - 1; p.b.Err() == nil && at > 0 && nodes[last] == n {
		copy(nodes[at+1:], nodes[at:last])
		nodes[at] = n
	}
}

// place is a number that depends on the participant's place along axes: f of it, as a scalar. What reads it runs after what makes
// the last operands.
func (p *pass) place(axes graph.MeshAxes, d graph.DType, f func(i int) int, after ...*graph.Node) *graph.Node {
	t := graph.NewTensor(graph.TypeOf(d, p.mesh.Parts(axes)))
	for i := range t.Type.Shape.Elems() {
		t.SetFloat(i, float64(f(i)))
	}
	return p.b.Reshape(p.b.Add(graph.Part{Group: p.group(axes)}, append([]*graph.Node{p.b.Const(t)}, after...)...))
}

// defers reports whether the only reader of a value may take it as a partial sum.
func (p *pass) defers(n *graph.Node, uses *graph.Uses) bool {
	readers := uses.Readers(n)
	if len(readers) != 1 {
		return false
	}
	r := p.rule[readers[0]]
	return r != nil && slices.ContainsFunc(r.linear, func(i int) bool { return readers[0].Args[i] == n })
}

// name gives a node what is known of the one that it stands for.
func name(part, n *graph.Node) {
	if part.Name == "" && !graph.IsSource(part.Op) {
		part.Like(n)
	}
}

// fn is how the terms of a result combine.
func (r *rule) fn(result int) graph.ReduceFn {
	if result < len(r.of) {
		return r.of[result]
	}
	return graph.Sum
}

// choose decides along which axes of the mesh each factor of an operation is split: those along which most bytes of operands
// and of wanted results are.
func (p *pass) choose(n *graph.Node, r *rule, pending graph.MeshAxes) []graph.MeshAxes {
	over := make([]graph.MeshAxes, r.factors)
	if r.factors == 0 {
		return over
	}
	least := slices.Repeat([]int{0}, r.factors) // the greatest common divisor of the sizes of the axes of a factor
	votes := make([][]int64, len(p.mesh))
	for a := range votes {
		votes[a] = make([]int64, r.factors)
	}
	sizes := func(v *value, factors []int) {
		for d, f := range factors {
			if f != none {
				least[f] = gcd(least[f], v.n.Type.Shape.At(d))
			}
		}
	}
	p.operands(n, sizes)
	p.outcomes(n, sizes)
	vote := func(v *value, s graph.Sharding, factors []int) {
		for d, f := range factors {
			for a := range p.mesh {
				if f != none && s.Split[d].Has(a) {
					votes[a][f] += 1 + v.n.Type.Bytes()
				}
			}
		}
	}
	p.operands(n, func(v *value, factors []int) {
		switch i := v.settled(); {
		case i >= 0:
			vote(v, v.have[i].s, factors)
		case pending != 0:
			vote(v, v.have[0].s, factors)
		default:
			vote(v, v.want, factors)
		}
	})
	p.outcomes(n, func(v *value, factors []int) { vote(v, v.want, factors) })
	for a := range p.mesh {
		best := none
		if pending.Has(a) {
			continue
		}
		for f, n := range votes[a] {
			if n > 0 && (best == none || n > votes[a][best]) && least[f] > 0 && least[f]%p.mesh.Parts(over[f]|1<<a) == 0 {
				best = f
			}
		}
		if best != none {
			over[best] |= 1 << a
		}
	}
	return over
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// settled is the first layout of a value that is no partial sum, or -1.
func (v *value) settled() int {
	return slices.IndexFunc(v.have, func(h placed) bool { return h.s.Partial == 0 })
}

// pending is along which axes the operands in which an operation is linear are partial sums that may stay so: none of them
// has another reader, and the result has no more bytes to be summed later.
func (p *pass) pending(n *graph.Node, r *rule, uses *graph.Uses) graph.MeshAxes {
	var axes graph.MeshAxes
	for i, at := range r.linear {
		v := p.values[n.Args[at]]
		s := v.have[0].s
		if s.Partial == 0 || len(v.have) > 1 || i > 0 && s.Partial != axes || n.Type.Bytes() > v.n.Type.Bytes() {
			return 0
		}
		axes = s.Partial
		if len(uses.Readers(v.n)) != 1 {
			return 0
		}
	}
	return axes
}

// lateShare is the part of the bytes of exchanged values whose exchanges count as the last ones.
const lateShare = 4

// muchExchanged is how many bytes are exchanged before their last part counts apart. Tests change it.
var muchExchanged int64 = 32 << 20

// inTime divides values, in two if participants exchange much to have them: those whose exchanges begin last, and
// the others, so that work on the others hides the last exchanges.
func (p *pass) inTime(list []*graph.Node) [][]*graph.Node {
	place := make(map[*graph.Node]int, len(list))
	var bytes int64
	for _, n := range list {
		if _, ok := n.Op.(graph.Collective); ok {
			place[n], bytes = 0, bytes+n.Type.Bytes()
		}
	}
	if bytes < muchExchanged || len(list) < 2 {
		return [][]*graph.Node{list}
	}
	for i, n := range p.g.Nodes {
		if _, ok := place[n]; ok {
			place[n] = i
		}
	}
	order := slices.Clone(list)
	slices.SortStableFunc(order, func(a, b *graph.Node) int { return cmp.Compare(place[b], place[a]) })
	left, late := bytes/lateShare, 1
	for left -= order[0].Type.Bytes(); late < len(order)-1 && order[late].Type.Bytes() <= left; late++ {
		left -= order[late].Type.Bytes()
	}
	parts := make([][]*graph.Node, 2)
	for _, n := range list {
		i := 0
		if slices.Contains(order[:late], n) {
			i = 1
		}
		parts[i] = append(parts[i], n)
	}
	return parts
}

// squaredNorm sums the squares of parts, those that are split alike together.
func (p *pass) squaredNorm(n *graph.Node) {
	p.b.From(n)
	var order []graph.MeshAxes
	groups := map[graph.MeshAxes][]*graph.Node{}
	for _, a := range n.Args {
		v := p.values[a]
		s := v.want
		if i := v.settled(); i >= 0 {
			s = v.have[i].s
		}
		over := s.Over()
		if groups[over] == nil {
			order = append(order, over)
		}
		x := p.get(v, s)
		if p.rounded[a] { // the norm of what was exchanged
			if _, cast := x.Op.(graph.Cast); cast {
				x = x.Args[0]
			}
		}
		groups[over] = append(groups[over], x)
	}
	var sum *graph.Node
	plus := func(a, b *graph.Node) *graph.Node {
		if a == nil {
			return b
		}
		return p.b.Binary(graph.Add, a, b)
	}
	for _, over := range order {
		var x *graph.Node
		for _, list := range p.inTime(groups[over]) {
			x = plus(x, p.b.Add(graph.SquaredNorm{}, list...))
		}
		if over != 0 {
			x = p.collective(graph.AllReduce{Fn: graph.Sum, Group: p.group(over)}, x, over)
		}
		sum = plus(sum, x)
	}
	if p.b.Err() == nil {
		name(sum, n)
	}
	p.values[n].have = []placed{{graph.Replicated, sum}}
}

// get is a value in the layout that a reader requires.
func (p *pass) get(v *value, s graph.Sharding) *graph.Node {
	if i := v.settled(); i < 0 && s.Partial == 0 && v.want != s {
		// The partial sum is added up once, as it is best laid out; other readers are served from that.
		p.move(v, v.have[0], v.want)
	}
	best, cost := 0, int64(-1)
	for i, h := range v.have {
		if h.s == s {
			return h.n
		}
		if c := p.distance(v, h.s, s); h.s.Partial == 0 && s.Partial == 0 && (cost < 0 || c < cost) {
			best, cost = i, c
		}
	}
	return p.move(v, v.have[best], s)
}

// distance is how many bytes have to be received to lead from one layout to another.
func (p *pass) distance(v *value, from, to graph.Sharding) (bytes int64) {
	for d := range v.n.Type.Shape.Rank() {
		if gone := from.Split[d] &^ to.Split[d]; gone != 0 {
			bytes += v.n.Type.Bytes()
		}
	}
	return bytes
}

// group is the participants along axes.
func (p *pass) group(axes graph.MeshAxes) graph.Group {
	return graph.Group{Over: p.mesh.Names(axes), Parts: p.mesh.Parts(axes)}
}

// collective adds a collective operation along axes.
func (p *pass) collective(op graph.Collective, x *graph.Node, axes graph.MeshAxes, after ...*graph.Node) *graph.Node {
	if late, others := axes&p.late, axes&^p.late; late != 0 && others != 0 {
		switch op := op.(type) {
		case graph.AllReduce:
			if op.Fn == graph.Sum {
				x = p.collective(graph.AllReduce{Fn: op.Fn, Group: p.group(late)}, x, late)
				return p.collective(graph.AllReduce{Fn: op.Fn, Group: p.group(others)}, x, others)
			}
		case graph.AllGather:
			x = p.collective(graph.AllGather{Axis: op.Axis, Group: p.group(others)}, x, others)
			return p.collective(graph.AllGather{Axis: op.Axis, Group: p.group(late)}, x, late)
		case graph.Part:
			x = p.collective(graph.Part{Axis: op.Axis, Group: p.group(late)}, x, late, after...)
			return p.collective(graph.Part{Axis: op.Axis, Group: p.group(others)}, x, others)
		}
	}
	y := p.b.Add(op, append([]*graph.Node{x}, after...)...)
	if p.b.Err() == nil {
		key := op.OpName() + " over " + p.mesh.Names(axes)
		s := p.sent[key]
		s.n++
		s.bytes += graph.LinkBytes(y, p.mesh.Parts(axes))
		p.sent[key] = s
	}
	return y
}

// sum adds up the terms of a value along axes.
func (p *pass) sum(v *value, op graph.Collective, x *graph.Node, axes graph.MeshAxes) *graph.Node {
	if !p.rounded[v.n] || axes&^p.late == 0 {
		return p.collective(op, x, axes)
	}
	return p.b.CastTo(graph.F32, p.collective(op, p.b.CastTo(graph.BF16, x), axes))
}

// move leads from one layout of a value to another, and remembers each one on the way.
func (p *pass) move(v *value, from placed, to graph.Sharding) *graph.Node {
	s, x := from.s, from.n
	keep := func() {
		if p.b.Err() == nil && !slices.ContainsFunc(v.have, func(h placed) bool { return h.s == s }) {
			v.have = append(v.have, placed{s, x})
			if s.Partial == 0 {
				name(x, v.n)
			}
		}
	}
	rank := v.n.Type.Shape.Rank()
	if s.Partial != to.Partial {
		if late := s.Partial & p.late; late != 0 && late != s.Partial {
			x = p.collective(graph.AllReduce{Fn: graph.Sum, Group: p.group(late)}, x, late)
			s.Partial &^= late
			keep()
		}
		for d := range rank {
			more := s.Partial & to.Split[d] &^ s.Split[d]
			if more == 0 || first(more) <= last(s.Split[d]) || s.Split[d]&^to.Split[d] != 0 || between(more, to.Split[d]&^s.Split[d]) {
				continue
			}
			x = p.sum(v, graph.ReduceScatter{Fn: graph.Sum, Axis: d, Group: p.group(more)}, x, more)
			s.Partial &^= more
			s.Split[d] |= more
			keep()
		}
		if s.Partial != 0 {
			x = p.sum(v, graph.AllReduce{Fn: graph.Sum, Group: p.group(s.Partial)}, x, s.Partial)
			s.Partial = 0
			keep()
		}
	}
	for d := range rank { // parts that need nothing of the others come first: what is sent then is smaller
		if more := to.Split[d] &^ s.Split[d] &^ s.Over(); more != 0 && s.Split[d]&^to.Split[d] == 0 && first(more) > last(s.Split[d]) &&
			!between(more, to.Split[d]&^s.Split[d]) {
			x = p.collective(graph.Part{Axis: d, Group: p.group(more)}, x, more)
			s.Split[d] |= more
			keep()
		}
	}
	for d := range rank { // a split that moves to another axis
		for e := range rank {
			a := s.Split[d] & to.Split[e] &^ to.Split[d]
			if d == e || a == 0 || first(a) <= last(s.Split[d]&^a) || first(a) <= last(s.Split[e]) ||
				s.Split[e]&^to.Split[e] != 0 || between(a, to.Split[e]&^s.Split[e]) {
				continue
			}
			x = p.collective(graph.AllToAll{Split: e, Join: d, Group: p.group(a)}, x, a)
			s.Split[d] &^= a
			s.Split[e] |= a
			keep()
		}
	}
	for d := range rank {
		// What stays is outside of all that goes, and of all that is to come.
		if gone := s.Split[d] &^ below(min(first(s.Split[d]&^to.Split[d]), first(to.Split[d]&^s.Split[d]))); gone != 0 {
			x = p.collective(graph.AllGather{Axis: d, Group: p.group(gone)}, x, gone)
			s.Split[d] &^= gone
			keep()
		}
	}
	for d := range rank {
		if more := to.Split[d] &^ s.Split[d]; more != 0 {
			x = p.collective(graph.Part{Axis: d, Group: p.group(more)}, x, more)
			s.Split[d] |= more
			keep()
		}
	}
	return x
}

// first and last are the outermost and the innermost axis of a set; of the empty set, after and before all.
func first(a graph.MeshAxes) int { return bits.TrailingZeros8(uint8(a)) }
func last(a graph.MeshAxes) int  { return bits.Len8(uint8(a)) - 1 }

// below are the axes outside of axis i.
func below(i int) graph.MeshAxes { return graph.MeshAxes(1<<i - 1) }

// between reports whether some axis of all, which is not among part, stands outside of the last of part: part alone would
// then be in the wrong order.
func between(part, all graph.MeshAxes) bool {
	return part != 0 && all&^part&below(last(part)+1) != 0
}

// report notes what the participants exchange.
func (p *pass) report() {
	var lines []string
	for key, s := range p.sent {
		if strings.HasPrefix(key, "part ") {
			continue
		}
		lines = append(lines, fmt.Sprintf("%d %s: each participant sends %d bytes", s.n, key, s.bytes))
	}
	slices.Sort(lines)
	if p.mesh.Size() > 1 && !slices.ContainsFunc(p.g.Nodes, func(n *graph.Node) bool { return n.Sharding.Over() != 0 }) {
		p.c.Note(nil, "nothing is split: each participant computes everything. By default inputs are split, of which the first axis is "+
			"a multiple of %d", p.mesh[0].Size)
	}
	p.c.Note(nil, "%d participants, %s%s", p.mesh.Size(), p.mesh, strings.Join(append([]string{""}, lines...), "; "))
	for _, n := range p.g.Nodes {
		if op, ok := n.Op.(graph.Collective); ok {
			p.c.Match(op.OpName(), trace.Reassociated, "collective", n, n)
		}
	}
}
