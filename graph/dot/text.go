package dot

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"fusec/graph"
	"fusec/graph/trace"
)

// writeText prints stages from ≤ i < to as listings, and the program below the last stage.
func writeText(w io.Writer, tr *trace.Trace, from, to int, opts Options) error {
	var b strings.Builder
	costs := map[*trace.Miss]trace.MissCost{}
	for _, g := range tr.Missed() {
		for _, m := range g.List {
			costs[m.Miss] = m
		}
	}
	for i := from; i < to; i++ {
		if i > from {
			b.WriteByte('\n')
		}
		textStage(&b, tr, i, costs, opts)
	}
	if to == len(tr.Stages) && tr.Program != nil {
		textProgram(&b, tr.Program, opts)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// textStage prints one stage.
func textStage(b *strings.Builder, tr *trace.Trace, i int, costs map[*trace.Miss]trace.MissCost, opts Options) {
	s := &tr.Stages[i]
	var program *trace.Program
	if i == len(tr.Stages)-1 {
		program = tr.Program
	}
	if s.Name != "" {
		fmt.Fprintf(b, "stage %d of %d: %s", i+1, len(tr.Stages), clean(s.Name))
		if s.Name == trace.Final && tr.Target != "" {
			fmt.Fprintf(b, ", compiled for %s", clean(tr.TargetChip()))
		}
		if s.Doc != "" {
			fmt.Fprintf(b, " (%s)", clean(s.Doc))
		}
		if opts.Measured && s.Took > 0 {
			fmt.Fprintf(b, ", took %s", humanTime(s.Took))
		}
		b.WriteByte('\n')
	}
	sum := summarise(s.Graph, program)
	fmt.Fprintf(b, "graph %q", s.Graph.Name)
	if tr.Target != "" {
		fmt.Fprintf(b, " for %s", clean(tr.TargetChip()))
	}
	if tr.Precision != "" && tr.Precision != "f32" {
		fmt.Fprintf(b, " in %s", clean(tr.Precision))
	}
	fmt.Fprintf(b, ": %s, %s, %s, %s of traffic\n\n", plural(sum.nodes, "node"), plural(sum.Launches, "launch"),
		humanFLOPs(sum.FLOPs), humanBytes(sum.Bytes))
	t := table{head: []string{"id", "name", "op", "operands", "type", "origin"}}
	textNodes(&t, s.Graph, "")
	t.write(b, opts.Width)
	for _, o := range s.Graph.Outputs {
		fmt.Fprintf(b, "output %s = %%%d\n", clean(o.Name), o.Node.ID)
	}
	for _, u := range s.Graph.Updates {
		fmt.Fprintf(b, "update %s <- %%%d\n", clean(u.Target.Name), u.Value.ID)
	}
	textRecords(b, s, costs, opts)
}

// textNodes adds the nodes of a graph, and those of bodies indented.
func textNodes(t *table, g *graph.Graph, indent string) {
	for _, n := range g.Nodes {
		t.row(fmt.Sprintf("%s%%%d", indent, n.ID), short(n.Name, 40), textOp(n.Op), operandList(n), n.Type.String(),
			textOrigin(n.Origin))
		f, ok := n.Op.(graph.Fusion)
		if !ok {
			continue
		}
		textNodes(t, f.Body, indent+"  ")
		var out []string
		for _, o := range f.Body.Outputs {
			out = append(out, fmt.Sprintf("%%%d", o.Node.ID))
		}
		t.row(indent+"  return", "", "", strings.Join(out, " "), "", "")
	}
}

// textOp is the operation with all attributes that add information.
func textOp(op graph.Op) string {
	words := []string{op.OpName()}
	switch op := op.(type) {
	case graph.Input, graph.Param, graph.State, graph.Reshape, graph.Broadcast:
		return words[0] // the type has all information
	case graph.Const:
		if v, ok := (&graph.Node{Op: op}).Uniform(); ok {
			return words[0] + " " + scalar(v)
		}
	}
	for _, a := range graph.Attrs(op) {
		words = append(words, a.Name+"="+short(a.Value, 40))
	}
	return strings.Join(words, " ")
}

func operandList(n *graph.Node) string {
	ids := make([]string, len(n.Args))
	for i, a := range n.Args {
		ids[i] = fmt.Sprintf("%%%d", a.ID)
	}
	return strings.Join(ids, " ")
}

// textOrigin is the first position, and how many more there are.
func textOrigin(list []graph.Origin) string {
	pos, more := firstPos(list)
	if more > 0 {
		return fmt.Sprintf("%s (+%d)", pos, more)
	}
	return pos
}

// textRecords prints what the pass of a stage did. costs are those of the missed fusions.
func textRecords(b *strings.Builder, s *trace.Stage, costs map[*trace.Miss]trace.MissCost, opts Options) {
	if len(s.Matches) > 0 {
		b.WriteString("\nmatches\n")
		var t table
		for _, m := range s.Matches {
			t.row(fmt.Sprintf("  %%%d", m.Node), m.Kind, "by "+clean(m.Pattern), originNames(m.Origin), textOrigin(m.Origin))
		}
		t.write(b, opts.Width)
	}
	for _, counts := range []bool{true, false} {
		head := "\nmissed fusions\n"
		if !counts {
			head = "\nmatched in part, at no cost\n"
		}
		for i := range s.Misses {
			m := &s.Misses[i]
			c := costs[m]
			if c.Counts != counts {
				continue
			}
			b.WriteString(head)
			head = ""
			fmt.Fprintf(b, "  %s stopped at %%%d", clean(m.Pattern), m.Node)
			if m.At != "" {
				fmt.Fprintf(b, ", %s", clean(m.At))
			}
			fmt.Fprintf(b, ": %s", clean(m.Reason))
			if c.Saves.Launches > 0 {
				fmt.Fprintf(b, "; it costs %s and %s", plural(c.Saves.Launches, "launch"), humanBytes(c.Saves.Bytes))
			}
			b.WriteByte('\n')
			if len(m.Origin) > 0 {
				fmt.Fprintf(b, "    %s\n", strings.TrimSpace("had matched "+originNames(m.Origin)+" "+textOrigin(m.Origin)))
			}
		}
	}
	if len(s.Notes) > 0 {
		b.WriteString("\nnotes\n")
		for _, n := range s.Notes {
			b.WriteString("  ")
			if n.Node >= 0 {
				fmt.Fprintf(b, "%%%d: ", n.Node)
			}
			b.WriteString(clean(n.Text))
			if pos := textOrigin(n.Origin); pos != "" {
				fmt.Fprintf(b, " (%s)", pos)
			}
			b.WriteByte('\n')
		}
	}
}

// originNames lists the user's names, without repeating one.
func originNames(list []graph.Origin) string {
	var names []string
	seen := make(map[string]bool)
	for _, o := range list {
		if o.Name != "" && !seen[o.Name] {
			seen[o.Name] = true
			names = append(names, clean(o.Name))
		}
	}
	return short(strings.Join(names, ", "), 60)
}

// textProgram prints the launches and the memory.
func textProgram(b *strings.Builder, p *trace.Program, opts Options) {
	work := p.Work()
	fmt.Fprintf(b, "\nprogram for %s: %s, arena %s (%s unshared), weights %s", clean(p.Target), plural(work.Launches, "launch"),
		humanBytes(p.ArenaBytes), humanBytes(p.BufferBytes), humanBytes(p.ParamBytes))
	if n := len(p.Launches) - work.Launches; n > 0 {
		fmt.Fprintf(b, "; prepared once: launches 1 to %d, %s", n, humanBytes(p.PreparedBytes))
	}
	b.WriteString("\n\n")
	t := table{head: []string{"#", "node", "kind", "name", "kernel", "runs", "device", "arithmetic", "traffic", "reads", "writes",
		"origin"}}
	if opts.Measured {
		t.head = append(t.head, "time")
	}
	var estimates, counts []trace.Measures
	for _, l := range p.Launches {
		estimates, counts = append(estimates, l.Estimates), append(counts, l.Counts)
	}
	estimated, counted := trace.Columns(estimates...), trace.Columns(counts...)
	for _, m := range estimated {
		t.head = append(t.head, "estimated "+m.Column())
	}
	if !opts.Measured {
		counted = nil
	}
	for _, m := range counted {
		t.head = append(t.head, m.Column())
	}
	t.head = append(t.head, "because")
	for i, l := range p.Launches {
		row := []string{fmt.Sprint(i + 1), fmt.Sprintf("%%%d", l.Node), l.Kind, short(l.Name, 40), clean(l.Kernel), l.Words(),
			clean(l.Device), humanFLOPs(l.FLOPs), humanBytes(l.Bytes), strings.Join(cleanAll(p.BufferNames(l.Reads)),
				" "), strings.Join(cleanAll(p.BufferNames(l.Writes)), " "), textOrigin(l.Origin)}
		if opts.Measured {
			row = append(row, humanTime(l.Measured))
		}
		row = append(append(row, l.Estimates.Row(estimated)...), l.Counts.Row(counted)...)
		row = append(row, clean(l.Reason))
		t.row(row...)
	}
	t.write(b, opts.Width)
}

// table is text in aligned columns.
type table struct {
	head []string
	rows [][]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// minColumn is to how many characters a column is cut at most.
const minColumn = 5

// write prints the table with two spaces between columns; columns that are empty throughout are left out. A table that is
// wider than limit characters has its widest columns cut, unless limit is 0.
func (t *table) write(b *strings.Builder, limit int) {
	var width []int
	for _, r := range t.rows {
		for i, c := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	rows := t.rows
	if t.head != nil {
		for i := range min(len(width), len(t.head)) {
			if width[i] > 0 {
				width[i] = max(width[i], utf8.RuneCountInString(t.head[i]))
			}
		}
		rows = append([][]string{t.head}, rows...)
	}
	cut(width, limit)
	for _, r := range rows {
		var line strings.Builder
		for i, c := range r {
			if i < len(width) && width[i] > 0 {
				c = short(c, width[i])
				line.WriteString(c)
				line.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+2))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
}

// cut makes the widest columns narrower until all fit into limit characters, as far as they have minColumn.
func cut(width []int, limit int) {
	total := -2
	for _, w := range width {
		if w > 0 {
			total += w + 2
		}
	}
	for limit > 0 && total > limit {
		i := 0
		for j, w := range width {
			if w > width[i] {
				i = j
			}
		}
		if width[i] <= minColumn {
			return
		}
		width[i]--
		total--
	}
}
