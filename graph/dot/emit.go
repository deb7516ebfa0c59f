package dot

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"

	gv "github.com/emicklei/dot"
)

// family is the font family of the pictures. Every Graphviz knows its metrics.
const family = "Helvetica"

// slowLayout is the number of nodes from which on Graphviz is to take less care, and tallLayout the number from which on rows
// stand closer together, so that pictures of long chains stay within 4,000 points.
const (
	slowLayout = 100
	tallLayout = 40
)

// emit writes the scene in the DOT language.
func (s *scene) emit(w io.Writer) error {
	gap := "0.32"
	if len(s.nodes) > tallLayout {
		gap = "0.22"
	}
	g := gv.NewGraph(gv.Directed)
	g.ID("G")
	g.Attr("label", gv.HTML(s.header()))
	g.Attrs("labelloc", "t", "fontname", family, "fontcolor", ink, "bgcolor", paper, "rankdir", "TB", "nodesep", "0.3",
		"ranksep", gap, "pad", "0.2", "compound", true, "tooltip", s.heading)
	s.titles()
	s.mainEdges()
	if k := len(s.nodes); k > slowLayout {
		less := math.Round(100*slowLayout*slowLayout/float64(k)/float64(k)) / 100
		g.Attrs("nslimit", less, "mclimit", less)
	}
	subs := make(map[*cluster]*gv.Graph)
	for _, c := range s.clusters {
		subs[c] = s.emitCluster(g, subs, c)
	}
	nodes := make(map[*box]gv.Node, len(s.nodes))
	for i, b := range s.nodes {
		home := g
		if b.inside != nil {
			home = subs[b.inside]
		}
		nodes[b] = emitBox(home.Node(fmt.Sprintf("%07d", i)), b)
	}
	for _, e := range s.edges {
		out := g.Edge(nodes[e.from], nodes[e.to])
		emitEdge(out, e)
		if e.whole {
			out.Attr("ltail", subs[e.from.inside].GetID())
		}
	}
	text := g.String()
	_, err := io.WriteString(w, strings.TrimRight(text, " \t\n")+"\n")
	return err
}

// titles makes the title of each frame a node above the others in it, so that no arrow runs through it.
func (s *scene) titles() {
	height, boxes := s.heights(), s.nodes
	for i, c := range s.clusters {
		t := s.box(&box{key: fmt.Sprintf("title%d", i), look: lookTitle, inside: c, tooltip: c.tooltip,
			lines: []textLine{{c.title, roleTitle}}})
		for _, n := range c.notes {
			t.lines = append(t.lines, textLine{n, roleType})
		}
		var top *box
		for _, b := range boxes {
			if c.holds(b.inside) && (top == nil || height[b] > height[top]) {
				top = b
			}
		}
		if top != nil {
			s.edges = append(s.edges, &edge{from: t, to: top, style: edgeHidden})
		}
	}
}

// mainEdges finds the edges that are drawn straight: into each box with at most two operands, from the lowest of them.
func (s *scene) mainEdges() {
	depth := s.depths()
	last, count := make(map[*box]*edge), make(map[*box]int)
	for _, e := range s.edges {
		if e.style != edgeData {
			continue
		}
		if l := last[e.to]; l == nil || depth[l.from] < depth[e.from] {
			last[e.to] = e
		}
		count[e.to]++
	}
	for to, e := range last {
		e.main = count[to] <= 2
	}
}

// emitCluster makes the subgraph of a cluster, whose surroundings have been made before.
func (s *scene) emitCluster(root *gv.Graph, subs map[*cluster]*gv.Graph, c *cluster) *gv.Graph {
	home := root
	if c.inside != nil {
		home = subs[c.inside]
	}
	sub := home.Subgraph(fmt.Sprintf("%07d", len(subs)), gv.ClusterOption{})
	sub.Attrs("label", "", "margin", 10, "id", c.key, "tooltip", c.tooltip)
	switch c.kind {
	case clusterRepeat:
		sub.Attrs("style", "rounded,dashed,filled", "fillcolor", paper, "color", frame, "penwidth", 2, "margin", 12)
	case clusterStage:
		sub.Attrs("style", "filled", "fillcolor", stageFill, "color", looks[lookCollective].colour, "penwidth", 1.5, "margin", 16)
	case clusterPhase:
		sub.Attrs("style", "filled", "fillcolor", phaseFills[c.phase], "color", phaseLines[c.phase], "margin", 14)
	default:
		colour := looks[c.look].colour
		sub.Attrs("style", "rounded,filled", "fillcolor", tint(colour, 16), "color", colour, "penwidth", 1.5)
	}
	return sub
}

// escape writes user text into an HTML-like label. Graphviz refuses elements without text, so no text is a pair of quotes.
func escape(s string) string {
	if s == "" {
		s = `""`
	}
	return html.EscapeString(s)
}

// writeLines writes lines of text in the colour of the label's text.
func writeLines(label *strings.Builder, lines []textLine, text string) {
	for i, l := range lines {
		if i > 0 {
			label.WriteString("<BR/>")
		}
		switch l.role {
		case roleName:
			fmt.Fprintf(label, "<B>%s</B>", escape(l.text))
		case roleTitle:
			fmt.Fprintf(label, `<FONT POINT-SIZE="14"><B>%s</B></FONT>`, escape(l.text))
		case roleType:
			colour := faint
			if text == paper {
				colour = "#D1D5DB"
			}
			fmt.Fprintf(label, `<FONT POINT-SIZE="8" COLOR="%s">%s</FONT>`, colour, escape(l.text))
		default:
			label.WriteString(escape(l.text))
		}
	}
}

// barWidth is the length of the bar of the longest time, in points.
const barWidth = 96

// emitBox sets the attributes of a node.
func emitBox(n gv.Node, b *box) gv.Node {
	n.Attrs("id", b.key, "tooltip", b.tooltip, "fontname", family, "fontsize", 10)
	if b.head != "" {
		n.Attr("label", gv.HTML(b.card()))
		n.Attrs("shape", "plain", "fontcolor", ink)
		return n
	}
	var label strings.Builder
	text := ink
	if b.look == lookInput || b.look == lookOutput {
		text = paper
	}
	writeLines(&label, b.lines, text)
	colour := looks[b.look].colour
	n.Attr("label", gv.HTML(label.String()))
	n.Attrs("fontcolor", text, "color", colour,
		"shape", "box", "style", "rounded,filled", "fillcolor", paper, "margin", "0.1,0.05", "height", 0.3)
	switch b.look {
	case lookTitle:
		n.Attrs("shape", "plain", "style", "")
	case lookCarried:
		n.Attrs("style", "rounded,dashed,filled", "fontsize", 8, "margin", "0.06,0.03", "height", 0.2)
	case lookInput, lookOutput:
		n.Attr("fillcolor", colour)
	case lookParam:
		n.Attrs("style", "filled", "fillcolor", sand, "fontsize", 9, "margin", "0.07,0.03", "height", 0.2)
	case lookConst:
		n.Attrs("style", "filled,dashed", "fillcolor", sand, "fontsize", 9, "margin", "0.07,0.03", "height", 0.2)
	case lookState:
		n.Attrs("shape", "cylinder", "style", "filled", "fillcolor", steel, "fontsize", 9)
	case lookView:
		n.Attrs("style", "rounded,filled", "fillcolor", "#F3F4F6", "fontsize", 8, "fontcolor", faint, "margin", "0.06,0.02",
			"height", 0.2)
	}
	return n
}

// card is the label of an operation: a table with the kind at the top, the formula and the costs, then the parameters,
// missed fusions, and a bar as long as the measured time.
func (b *box) card() string {
	colour, fill := looks[b.look].colour, paper
	border, style := 1, ""
	if b.host {
		fill, border, style = tint(looks[lookHost].colour, 8), 2, ` STYLE="DASHED"`
		colour = looks[lookHost].colour
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<TABLE BORDER="%d" COLOR="%s" BGCOLOR="%s" CELLBORDER="0" CELLSPACING="0" CELLPADDING="2"%s>`, border,
		colour, fill, style)
	fmt.Fprintf(&s, `<TR><TD BGCOLOR="%s"><FONT COLOR="%s"><B>%s</B></FONT></TD></TR><TR><TD>`, colour, contrast(colour),
		escape(b.head))
	writeLines(&s, b.lines, ink)
	s.WriteString(`</TD></TR>`)
	if len(b.sources) > 0 {
		fmt.Fprintf(&s, `<TR><TD BGCOLOR="%s"><FONT POINT-SIZE="8">`, sand)
		for i, l := range b.sources {
			if i > 0 {
				s.WriteString("<BR/>")
			}
			s.WriteString(escape(l))
		}
		s.WriteString(`</FONT></TD></TR>`)
	}
	for _, m := range b.marks {
		fmt.Fprintf(&s, `<TR><TD BGCOLOR="%s"><FONT POINT-SIZE="9" COLOR="%s"><B>%s</B></FONT></TD></TR>`, "#FDE8E8", missedInk,
			escape("▲ "+m))
	}
	if b.time > 0 {
		w := max(int(b.time*barWidth+0.5), 1)
		fmt.Fprintf(&s,
			`<TR><TD><TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0" WIDTH="%d" HEIGHT="6" FIXEDSIZE="TRUE"><TR>`+
				`<TD BGCOLOR="%s" WIDTH="%d" HEIGHT="6" FIXEDSIZE="TRUE"></TD>`, barWidth, timeColour, w)
		if w < barWidth {
			fmt.Fprintf(&s, `<TD BGCOLOR="#E5E7EB" WIDTH="%d" HEIGHT="6" FIXEDSIZE="TRUE"></TD>`, barWidth-w)
		}
		s.WriteString(`</TR></TABLE></TD></TR>`)
	}
	s.WriteString(`</TABLE>`)
	return s.String()
}

// emitEdge sets the attributes of an edge.
func emitEdge(out gv.Edge, e *edge) {
	out.Attrs("color", line, "arrowsize", 0.6, "edgetooltip", e.tooltip, "tooltip", e.tooltip)
	if e.label != "" {
		out.Attrs("label", " "+e.label, "fontname", family, "fontsize", 8, "fontcolor", faint, "labeltooltip", e.tooltip)
	}
	switch e.style {
	case edgeData:
		if e.main {
			out.Attr("weight", 12)
		}
	case edgeSide:
		out.Attrs("color", lineWeak, "arrowsize", 0.5)
	case edgeKept:
		out.Attrs("color", lineKept, "arrowsize", 0.5, "weight", 0)
	case edgeCarried:
		out.Attrs("style", "dashed", "color", frame, "penwidth", 1.4)
	case edgeHidden:
		out.Attrs("style", "invis", "weight", 0)
	case edgeUpdate:
		out.Attrs("style", "dashed", "color", looks[lookState].colour)
	}
}

// legendColumns is the number of looks in a row of the legend.
const legendColumns = 6

// header is the picture's title with the legend of the looks in use, as a table.
func (s *scene) header() string {
	var b strings.Builder
	b.WriteString(`<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="1" CELLPADDING="2">`)
	row := func(format string, args ...any) {
		fmt.Fprintf(&b, `<TR><TD ALIGN="CENTER">`+format+`</TD></TR>`, args...)
	}
	row(`<FONT POINT-SIZE="16"><B>%s</B></FONT>`, escape(short(s.heading, 80)))
	for _, f := range s.facts {
		row(`<FONT POINT-SIZE="10" COLOR="%s">%s</FONT>`, faint, escape(f))
	}
	var cells []string
	cell := func(fill, colour, name string) {
		cells = append(cells, fmt.Sprintf(`<TD BGCOLOR="%s" BORDER="1" COLOR="%s" WIDTH="14" HEIGHT="10" FIXEDSIZE="TRUE"></TD>`+
			`<TD ALIGN="LEFT"><FONT POINT-SIZE="9">%s  </FONT></TD>`, fill, colour, name))
	}
	sources := false
	for l := range looks {
		if !s.used[look(l)] || look(l) == lookOutput || look(l) >= lookOptimiser {
			continue
		}
		fill := looks[l].colour
		switch look(l) {
		case lookParam, lookConst:
			fill = sand
		case lookState:
			fill = steel
		}
		cell(fill, looks[l].colour, looks[l].name)
	}
	for _, n := range s.nodes {
		sources = sources || len(n.sources) > 0
	}
	if sources && !s.used[lookParam] {
		cell(sand, looks[lookParam].colour, looks[lookParam].name)
	}
	if s.missed {
		cell("#FDE8E8", missedInk, "missed fusion")
	}
	if s.timed {
		cell(timeColour, timeColour, "measured time")
	}
	b.WriteString(`<TR><TD ALIGN="CENTER"><TABLE BORDER="0" CELLBORDER="0" CELLSPACING="2" CELLPADDING="1">`)
	for wide := len(cells) > legendColumns; len(cells) > 0; {
		k := min(legendColumns, len(cells))
		fmt.Fprintf(&b, `<TR>%s`, strings.Join(cells[:k], ""))
		for ; wide && k < legendColumns; k++ {
			cells = append(cells, "")
			b.WriteString(`<TD></TD><TD></TD>`)
		}
		b.WriteString(`</TR>`)
		cells = cells[k:]
	}
	b.WriteString("</TABLE></TD></TR></TABLE>")
	return b.String()
}
