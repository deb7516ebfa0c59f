package fuselock

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fusec/graph"
	"fusec/graph/trace"
)

// Verdict is how a compilation compares with a section of a lock file.
type Verdict struct {
	Lost   []Loss
	Worse  []string // numbers that have grown, one sentence each
	Better []string // numbers that have fallen, and fusions that are there besides
	// Changed are the fusions whose nodes are not all in the model any more, and with the nodes that are nothing is wrong.
	Changed []string
}

// Loss is a fusion that is not there any more.
type Loss struct {
	What    string   // the fusion, or the pattern, as the file has it
	Times   int      // how many equal ones are lost
	Now     []string // the launches that compute its nodes, each with its number
	Reasons []string // where patterns stopped that would have made it, and why
}

// OK reports whether nothing is lost and nothing is worse.
func (v *Verdict) OK() bool { return len(v.Lost)+len(v.Worse) == 0 }

// String tells what is lost, worse and better, a line each, with the reasons below what is lost.
func (v *Verdict) String() string {
	var b strings.Builder
	for _, l := range v.Lost {
		fmt.Fprintf(&b, "  lost: %s", l.What)
		if l.Times > 1 {
			fmt.Fprintf(&b, ", ×%d", l.Times)
		}
		b.WriteString("\n")
		for _, n := range l.Now {
			fmt.Fprintf(&b, "    is %s\n", n)
		}
		for _, r := range l.Reasons {
			fmt.Fprintf(&b, "    because %s\n", r)
		}
	}
	for _, w := range v.Worse {
		fmt.Fprintf(&b, "  worse: %s\n", w)
	}
	for _, w := range v.Better {
		fmt.Fprintf(&b, "  better: %s\n", w)
	}
	for _, w := range v.Changed {
		fmt.Fprintf(&b, "  changed: %s\n", w)
	}
	return b.String()
}

// Compare compares a compilation, whose section is now, with a section of a lock file. A locked fusion is kept if one launch
// computes all its nodes, alone or with others.
func Compare(locked, now *Section, t *trace.Trace) *Verdict {
	v := &Verdict{}
	v.numbers(locked, now)
	kept, has := *locked, names(t)
	kept.Fusions = nil
	for _, f := range locked.Fusions {
		there, gone := f.split(has)
		if len(gone) > 0 {
			v.Changed = append(v.Changed, fmt.Sprintf("the model has no %s any more, of the fusion %v", quotedList(gone), f))
		}
		if len(there.Nodes) > 1 {
			kept.Fusions = append(kept.Fusions, there)
		}
	}
	list := launches(t)
	lost, gained := match(&kept, list)
	v.Lost = explain(lost, list, t)
	v.patterns(locked, now, t)
	for _, f := range gained {
		v.Better = append(v.Better, "a launch more computes several nodes: "+f.String())
	}
	return v
}

func (v *Verdict) numbers(locked, now *Section) {
	if locked.Refusal == "" && now.Refusal != "" {
		v.Worse = append(v.Worse, fmt.Sprintf("%s cannot run it: %s", now.Target, now.Refusal))
	}
	if locked.Refusal != "" && now.Refusal == "" {
		v.Better = append(v.Better, now.Target+" can run it")
	}
	for _, n := range []struct {
		what        string
		before, now int64
	}{
		{"launches", int64(locked.Launches), int64(now.Launches)},
		{"launches on the host", int64(locked.Host), int64(now.Host)},
		{"bytes of memory traffic", locked.Traffic, now.Traffic},
		{"bytes of memory for values", locked.Memory, now.Memory},
	} {
		text := fmt.Sprintf("%d %s, locked are %d", n.now, n.what, n.before)
		switch {
		case n.now > n.before:
			v.Worse = append(v.Worse, text)
		case n.now < n.before:
			v.Better = append(v.Better, text)
		}
	}
	before, _ := locked.bound()
	bound, by := now.bound()
	text := fmt.Sprintf("rules change values by up to %.3g of the sum of their terms, locked are %.3g", bound, before)
	switch {
	case bound > before:
		v.Worse = append(v.Worse, fmt.Sprintf("%s: %s of %s is %v", text, by.Name, by.Stage, by.Numeric))
	case bound < before:
		v.Better = append(v.Better, text)
	}
}

// patterns finds the rules that match less often and stop more often than before.
func (v *Verdict) patterns(locked, now *Section, t *trace.Trace) {
	for _, old := range locked.Patterns {
		p := Pattern{}
		if i := slices.IndexFunc(now.Patterns, func(p Pattern) bool { return p.Stage == old.Stage && p.Name == old.Name }); i >= 0 {
			p = now.Patterns[i]
		}
		if fewer := old.Matched - p.Matched; fewer > 0 && p.Missed > old.Missed {
			l := Loss{What: fmt.Sprintf("pattern %s (%s)", old.Name, old.Stage), Times: fewer}
			l.Reasons = reasons(t, func(stage string, m trace.Miss) bool { return stage == old.Stage && m.Pattern == old.Name })
			if !v.given(l.Reasons) {
				v.Lost = append(v.Lost, l)
			}
		}
	}
}

// given reports whether losses have all of the reasons.
func (v *Verdict) given(reasons []string) bool {
	for _, r := range reasons {
		if !slices.ContainsFunc(v.Lost, func(l Loss) bool { return slices.Contains(l.Reasons, r) }) {
			return false
		}
	}
	return true
}

// match finds for each locked fusion a launch that computes all its nodes and reads all its sources; a launch may do so for
// several fusions, but for each of its nodes once. It returns the fusions without a launch, and those launches of several
// nodes that do so for none.
func match(locked *Section, list []launch) (lost, gained []Fusion) {
	same := map[string][]int{} // launches by fusion
	free := make([]map[string]int, len(list))
	used := make([]bool, len(list))
	for i, l := range list {
		key := l.fusion.String()
		same[key] = append(same[key], i)
	}
	var rest []Fusion
	for _, f := range locked.Fusions {
		key := f.String()
		if at := same[key]; len(at) > 0 {
			used[at[0]], same[key] = true, at[1:]
			continue
		}
		rest = append(rest, f)
	}
	slices.SortStableFunc(rest, func(a, b Fusion) int { return len(b.Nodes) - len(a.Nodes) })
	exact := slices.Clone(used)
	holders := map[string][]int{} // launches by the name of a node, made when it is needed
	if len(rest) > 0 {
		for i, l := range list {
			for _, n := range slices.Compact(slices.Clone(l.fusion.Nodes)) {
				holders[n] = append(holders[n], i)
			}
		}
	}
	for _, f := range rest {
		found := false
		for _, i := range holders[rarest(f, holders)] {
			if exact[i] || list[i].fusion.Phase != f.Phase {
				continue
			}
			if free[i] == nil {
				free[i] = count(list[i].fusion.Nodes)
			}
			if found = within(f.Sources, list[i].fusion.Sources) && take(free[i], f.Nodes); found {
				used[i] = true
				break
			}
		}
		if !found {
			lost = append(lost, f)
		}
	}
	for i, l := range list {
		if !used[i] && len(l.fusion.Nodes) > 1 && len(lost) == 0 {
			gained = append(gained, l.fusion)
		}
	}
	return lost, gained
}

// rarest is the node of a fusion that the fewest launches compute.
func rarest(f Fusion, holders map[string][]int) string {
	return slices.MinFunc(f.Nodes, func(a, b string) int { return len(holders[a]) - len(holders[b]) })
}

func count(names []string) map[string]int {
	m := map[string]int{}
	for _, n := range names {
		m[n]++
	}
	return m
}

// take takes names out of what is free, or none if not all are there.
func take(free map[string]int, names []string) bool {
	for i, n := range names {
		if free[n] == 0 {
			for _, n := range names[:i] {
				free[n]++
			}
			return false
		}
		free[n]--
	}
	return true
}

// within reports whether all of the sorted names are among the others, which are sorted, too.
func within(names, others []string) bool {
	for _, n := range names {
		if _, ok := slices.BinarySearch(others, n); !ok {
			return false
		}
	}
	return true
}

// most is how many launches and reasons are listed of a loss, and detailed of how many losses they are.
const (
	most     = 4
	detailed = 50
)

// explain says of lost fusions what computes their nodes and why nothing does so at once. Equal ones are counted.
func explain(lost []Fusion, launches []launch, t *trace.Trace) []Loss {
	var list []Loss
	at := map[string]int{}
	for _, f := range lost {
		key := f.String()
		if i, ok := at[key]; ok {
			list[i].Times++
			continue
		}
		at[key] = len(list)
		if len(list) < detailed {
			list = append(list, explainOne(f, launches, t))
		} else {
			list = append(list, Loss{What: "fusion " + key, Times: 1})
		}
	}
	return list
}

func explainOne(f Fusion, list []launch, t *trace.Trace) Loss {
	l := Loss{What: "fusion " + f.String(), Times: 1}
	parts := partsOf(f, list)
	for _, i := range parts[:min(len(parts), most)] {
		l.Now = append(l.Now, fmt.Sprintf("launch %d: %v", i+1, short(list[i].fusion)))
	}
	if n := len(parts) - most; n > 0 {
		l.Now = append(l.Now, fmt.Sprintf("%d other launches", n))
	}
	origins := map[graph.Origin]bool{}
	for _, i := range parts {
		for _, o := range list[i].Origin {
			origins[o] = true
		}
	}
	l.Reasons = reasons(t, func(_ string, m trace.Miss) bool {
		return slices.ContainsFunc(m.Origin, func(o graph.Origin) bool { return origins[o] })
	})
	if len(l.Reasons) == 0 {
		l.Reasons = []string{"no pattern says why; fusec explain lists what was fused"}
	}
	return l
}

// partsOf lists the launches that compute a fusion's nodes. Names may be those of operations, which many nodes have: so these
// are launches of the fusion's layer and phase that compute nothing else, if there are any, else others that compute nothing
// else, and else those that read one of its sources, or all. Of launches those that read one of its sources come first.
func partsOf(f Fusion, list []launch) (parts []int) {
	one := func(a, b []string) bool {
		return slices.ContainsFunc(a, func(n string) bool { return slices.Contains(b, n) })
	}
	inside := func(x Fusion) bool { return within(x.Nodes, f.Nodes) && within(x.Sources, f.Sources) }
	for _, is := range []func(x Fusion) bool{
		func(x Fusion) bool { return x.Scope == f.Scope && x.Phase == f.Phase && inside(x) },
		inside,
		func(x Fusion) bool { return one(f.Sources, x.Sources) },
		func(x Fusion) bool { return true },
	} {
		for i, x := range list {
			if one(f.Nodes, x.fusion.Nodes) && is(x.fusion) {
				parts = append(parts, i)
			}
		}
		if len(parts) > 0 {
			break
		}
	}
	first := func(i int) int {
		if one(f.Sources, list[i].fusion.Sources) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(parts, func(a, b int) int { return first(a) - first(b) })
	return parts
}

// names are those that nodes of the model have, and its operations.
func names(t *trace.Trace) map[string]bool {
	has := map[string]bool{"?": true}
	for _, n := range t.Stages[0].Graph.Nodes {
		has[n.Name], has[n.Op.OpName()] = true, true
		for _, o := range n.Origin {
			has[o.Name] = true
		}
	}
	for _, b := range t.Program.Buffers { // what an optimiser keeps is not in the model
		has[b.Name] = true
	}
	return has
}

// split is the fusion as far as the model has its nodes and sources, and the names of the others.
func (f Fusion) split(has map[string]bool) (there Fusion, gone []string) {
	there = Fusion{Kind: f.Kind, Phase: f.Phase, Name: f.Name, Scope: f.Scope}
	for _, list := range []struct {
		from []string
		to   *[]string
	}{{f.Nodes, &there.Nodes}, {f.Sources, &there.Sources}} {
		for _, n := range list.from {
			if has[n] {
				*list.to = append(*list.to, n)
			} else if !slices.Contains(gone, n) {
				gone = append(gone, n)
			}
		}
	}
	return there, gone
}

// short is a fusion with the first nodes only.
func short(f Fusion) string {
	const shown = 8
	if n := len(f.Nodes) - shown; n > 0 {
		f.Nodes = f.Nodes[:shown]
		return fmt.Sprintf("%v and %d more", Fusion{Kind: f.Kind, Phase: f.Phase, Name: f.Name, Scope: f.Scope, Nodes: f.Nodes}, n)
	}
	return f.String()
}

func quotedList(names []string) string {
	var list []string
	for _, n := range names[:min(len(names), most)] {
		list = append(list, strconv.Quote(n))
	}
	text := strings.Join(list, ", ")
	if n := len(names) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// reasons are those of missed fusions, equal ones once.
func reasons(t *trace.Trace, of func(stage string, m trace.Miss) bool) []string {
	var list []string
	more := 0
	for _, s := range t.Stages {
		for _, m := range s.Misses {
			if !of(s.Name, m) {
				continue
			}
			text := fmt.Sprintf("%s (%s) stopped at %s: %s", m.Pattern, s.Name, m.At, m.Reason)
			switch {
			case slices.Contains(list, text):
			case len(list) == most:
				more++
			default:
				list = append(list, text)
			}
		}
	}
	if more > 0 {
		list = append(list, fmt.Sprintf("%d missed fusions more; fusec explain lists them", more))
	}
	return list
}
