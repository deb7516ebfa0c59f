package passes

import (
	"strconv"

	"fusec/graph"
	"fusec/passes/pattern"
)

// raise recognises operations that were written out in primitives, and puts one node in their place:
//
//	x ──────────┐
//	│           ⊙ ─►        x ─ relu ─►
//	└─ ≥ 0 ─ cast
//
// The table is [Patterns]; each of its rows stands with a drawing in the file of its kind. A row's pattern is matched
// at every node from operands to users, so that larger operations are recognised by their parts, already raised: a
// layer norm is looked for in terms of means. Where several patterns fit, the first wins.
//
// Values inside a match that others read as well stay for them. Constants are recognised within the accuracy in which
// people write them. Where the result differs from what was written, it is at the edge of arithmetic only, and on the
// side of mathematics: a relu of −Inf is 0 and not −Inf·0, a softmax does not overflow.
//
// The target is asked before each rewrite, and what it refuses becomes a near miss with its reason.
func raise(c *Context) error {
	r := &raiser{}
	r.rewriter = rewriter{ctx: c, visit: r.visit}
	if err := r.fixpoint(func() { r.missed = nil }); err != nil {
		return err
	}
	r.tell()
	return nil
}

// raising is a pattern with what to make of it.
type raising struct {
	name, doc string
	expr      pattern.Expr
	kind      string // what it makes, for the record
	// make returns the node to use in place of the root, built with b, or nil.
	make func(b *graph.Builder, m *pattern.Match) *graph.Node
}

// raisings is the table, in the order in which patterns of one root are tried.
var raisings = concatRaisings(activationPatterns, geluPatterns, statisticPatterns, softmaxPatterns, normPatterns, convPatterns)

func concatRaisings(lists ...[]raising) []raising {
	var r []raising
	for _, l := range lists {
		r = append(r, l...)
	}
	return r
}

var (
	raisingOf = map[*pattern.Pattern]*raising{}
	patterns  = func() *pattern.Set {
		var ps []*pattern.Pattern
		for i := range raisings {
			p := &pattern.Pattern{Name: raisings[i].name, Doc: raisings[i].doc, Expr: raisings[i].expr}
			raisingOf[p] = &raisings[i]
			ps = append(ps, p)
		}
		return pattern.NewSet(ps...)
	}()
)

// Patterns lists the patterns of raise, for documentation.
func Patterns() []*pattern.Pattern { return patterns.All() }

// attribute is the value of a constant as an attribute: for an f32 the shortest decimal that rounds to it, which is what
// the user wrote, 1e-05 and not 9.999999747378752e-06.
func attribute(n *graph.Node) float64 {
	v, _ := pattern.Uniform(n)
	if n.Type.DType == graph.F32 {
		if w, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', -1, 32), 64); err == nil {
			return w
		}
	}
	return v
}

type raiser struct {
	rewriter
	missed []missed // in this walk
}

type missed struct {
	p *pattern.Pattern
	*pattern.Miss
}

func (r *raiser) visit(n *graph.Node) (*graph.Node, error) {
	for _, p := range patterns.Candidates(n) {
		m, miss := p.Match(n, r.uses)
		if miss != nil {
			r.missed = append(r.missed, missed{p, miss})
		}
		if m == nil {
			continue
		}
		mark := len(r.g.Nodes)
		b := r.builder(m.Covered...)
		to := raisingOf[p].make(b, m)
		if err := b.Err(); err != nil {
			return nil, err
		}
		if to == nil {
			r.g.Nodes = r.g.Nodes[:mark]
			continue
		}
		if refusal := r.refused(r.g.Nodes[mark:]); refusal != nil {
			r.g.Nodes = r.g.Nodes[:mark]
			r.missed = append(r.missed, missed{p, &pattern.Miss{Key: n, At: n, Reason: refusal.Error(), Covered: m.Covered}})
			continue
		}
		r.note(p.Name, raisingOf[p].kind, to, m.Covered...)
		return to, nil
	}
	return n, nil
}

// refused asks the target about the operations that a rewrite made.
func (r *raiser) refused(made []*graph.Node) error {
	for _, n := range made {
		switch graph.ClassOf(n.Op) {
		case graph.ClassSource, graph.ClassView:
			continue
		}
		if err := r.ctx.Accepts(n.Op, n.Args...); err != nil {
			return err
		}
	}
	return nil
}

// tell reports the misses of the last walk: for each pattern and key the one that got farthest, and of several
// patterns that stopped at one node for one reason the first.
func (r *raiser) tell() {
	type spot struct {
		p   *pattern.Pattern
		key *graph.Node
	}
	best := map[spot]missed{}
	for _, m := range r.missed {
		k := spot{m.p, m.Key}
		if b, ok := best[k]; !ok || len(m.Covered) > len(b.Covered) {
			best[k] = m
		}
	}
	type cause struct {
		at     *graph.Node
		reason string
	}
	told := map[cause]bool{}
	for _, m := range r.missed {
		c := cause{m.At, m.Reason}
		if best[spot{m.p, m.Key}].Miss == m.Miss && !told[c] {
			told[c] = true
			r.ctx.Miss(m.p.Name, m.At, m.Reason, m.Covered...)
		}
	}
}
