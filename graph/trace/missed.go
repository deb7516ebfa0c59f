package trace

import (
	"cmp"
	"slices"
)

// Missed is missed fusions of one pattern in one stage with the same cause, and what they cost.
type Missed struct {
	Stage   int // by index
	Pattern string
	Cause   string // as [Cause] gives it
	List    []MissCost
	// Saves is what the program would save without all of them: a launch or a value that several of them name counts once.
	Saves Work
	// Counts says that there is something to save, or that it is not known since there is no program. Reports and drawings
	// list missed fusions that do not count, and do not mark them.
	Counts bool
}

// MissCost is a missed fusion and what it costs.
type MissCost struct {
	*Miss
	// Launches, by index, compute what the pattern had matched and the node where it stopped.
	Launches []int
	// Saves is what the program would save if those of Launches that compute nothing else were one launch, which is
	// possible if no other launch stands between them: launches, and the reading and writing of values that only they use.
	Saves Work
	// Counts is as in [Missed], for this one.
	Counts bool
}

// Missed lists the missed fusions of all stages by their cause: first those that count, then the largest groups, and
// equally large ones in the order of their first miss.
func (t *Trace) Missed() []Missed {
	type key struct {
		stage          int
		pattern, cause string
	}
	var x *costs
	at := map[key]int{}
	var list []Missed
	for s := range t.Stages {
		for i := range t.Stages[s].Misses {
			m := &t.Stages[s].Misses[i]
			k := key{s, m.Pattern, Cause(m.Reason)}
			g, ok := at[k]
			if !ok {
				g = len(list)
				at[k], list = g, append(list, Missed{Stage: s, Pattern: k.pattern, Cause: k.cause})
			}
			c := MissCost{Miss: m, Counts: t.Program == nil}
			if t.Program != nil {
				if x == nil {
					x = newCosts(t.Program)
				}
				c.Launches = x.launches(m.Nodes)
				c.Saves = x.saves([][]int{x.joins(m)})
				c.Counts = c.Saves.Launches > 0
			}
			list[g].List = append(list[g].List, c)
		}
	}
	for i := range list {
		g := &list[i]
		var joined [][]int
		for _, c := range g.List {
			if g.Counts = g.Counts || c.Counts; x != nil && c.Counts {
				joined = append(joined, x.joins(c.Miss))
			}
		}
		if x != nil {
			g.Saves = x.saves(joined)
		}
	}
	slices.SortStableFunc(list, func(a, b Missed) int {
		return cmp.Or(cmp.Compare(rank(a.Counts), rank(b.Counts)), cmp.Compare(len(b.List), len(a.List)))
	})
	return list
}

func rank(counts bool) int {
	if counts {
		return 0
	}
	return 1
}

// costs is what is known of a program to tell what missed fusions cost.
type costs struct {
	p       *Program
	at      map[int]int // launches by their node
	from    [][]int     // of each launch: those whose results it reads
	to      [][]int     // of each launch: those that read its results
	readers []int       // of each buffer: how many launches read it
	steps   int         // that may still be taken along from and to
}

// mostSteps bounds the time that finding launches between others takes. What is left then counts as nothing to save.
const mostSteps = 1 << 27

func newCosts(p *Program) *costs {
	x := &costs{p: p, at: map[int]int{}, from: make([][]int, len(p.Launches)), to: make([][]int, len(p.Launches)),
		readers: make([]int, len(p.Buffers)), steps: mostSteps}
	writer := make([]int, len(p.Buffers)) // plus 1
	for i, l := range p.Launches {
		x.at[l.Node] = i
		for j, b := range l.Reads {
			if slices.Contains(l.Reads[:j], b) {
				continue
			}
			x.readers[b]++
			if w := writer[b] - 1; w >= 0 {
				x.from[i] = append(x.from[i], w)
				x.to[w] = append(x.to[w], i)
			}
		}
		for _, b := range l.Writes {
			writer[b] = i + 1
		}
	}
	return x
}

// launches are those of the given nodes, in their order.
func (x *costs) launches(nodes []int) (list []int) {
	for _, n := range nodes {
		if l, ok := x.at[n]; ok {
			list = append(list, l)
		}
	}
	slices.Sort(list)
	return list
}

// joins are the launches of a run that would become one in place of a miss; none if others stand between them, which need the
// results of some and make operands of others.
func (x *costs) joins(m *Miss) []int {
	list := slices.DeleteFunc(x.launches(m.Joins), func(l int) bool { return x.p.Launches[l].Prepared })
	if len(list) < 2 {
		return nil
	}
	last := list[len(list)-1]
	in := map[int]bool{}
	for _, l := range list {
		in[l] = true
	}
	between := map[int]bool{}
	todo := slices.Clone(list)
	for len(todo) > 0 {
		l := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if x.steps -= len(x.to[l]); x.steps < 0 {
			return nil
		}
		for _, r := range x.to[l] {
			switch {
			case in[r] && between[l]:
				return nil
			case r < last && !in[r] && !between[r]:
				between[r] = true
				todo = append(todo, r)
			}
		}
	}
	return list
}

// saves is what the program would save if the launches of each list were one, as far as one of them reads what another
// has written. Values that others read, or that are handed out, are still written.
func (x *costs) saves(joined [][]int) (w Work) {
	type read struct{ buffer, launch int }
	var order []read
	seen, count := map[read]bool{}, map[int]int{}
	into := map[int]int{} // groups of launches that would be one
	top := func(l int) int {
		for {
			up, ok := into[l]
			if !ok {
				return l
			}
			l = up
		}
	}
	for _, list := range joined {
		for i, l := range list {
			for _, from := range x.from[l] {
				if !slices.Contains(list[:i], from) {
					continue
				}
				if a, b := top(from), top(l); a != b {
					into[b] = a
					w.Launches++
				}
				for _, b := range x.p.Launches[from].Writes {
					r := read{b, l}
					if slices.Contains(x.p.Launches[l].Reads, b) && !seen[r] {
						seen[r], order = true, append(order, r)
						count[b]++
					}
				}
			}
		}
	}
	for _, r := range order {
		w.Bytes += min(x.p.Buffers[r.buffer].Type.Bytes(), x.reads(r.launch))
	}
	for b, n := range count {
		if n == x.readers[b] && x.p.Buffers[b].Role == "temp" {
			w.Bytes += x.p.Buffers[b].Type.Bytes()
		}
	}
	return w
}

// reads is how many bytes a launch reads.
func (x *costs) reads(l int) int64 {
	n := x.p.Launches[l].Bytes
	for _, b := range x.p.Launches[l].Writes {
		n -= x.p.Buffers[b].Type.Bytes()
	}
	return max(n, 0)
}
