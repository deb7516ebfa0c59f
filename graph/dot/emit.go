package dot

import (
	"fmt"
	"html"
	"io"
	"strings"

	gv "github.com/emicklei/dot"
)

// family is the font family of the pictures. Every Graphviz knows its metrics.
const family = "Helvetica"

// emit writes the scene in the DOT language.
func (s *scene) emit(w io.Writer) error {
	g := gv.NewGraph(gv.Directed)
	g.ID("G")
	g.Attr("label", gv.HTML(s.header()))
	g.Attrs("labelloc", "t", "fontname", family, "fontcolor", ink, "bgcolor", paper, "rankdir", "TB", "nodesep", "0.25",
		"ranksep", "0.35", "pad", "0.2", "tooltip", s.heading)
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
		if e.style == edgeCarried {
			// Written from the reader, which is above, to the value, so that the layout reserves ranks for it. The
			// arrowhead is at the reader nevertheless.
			emitEdge(g.Edge(nodes[e.to], nodes[e.from]), e)
			continue
		}
		emitEdge(g.Edge(nodes[e.from], nodes[e.to]), e)
	}
	text := g.String()
	_, err := io.WriteString(w, strings.TrimRight(text, " \t\n")+"\n")
	return err
}

// emitCluster makes the subgraph of a cluster, whose surroundings have been made before.
func (s *scene) emitCluster(root *gv.Graph, subs map[*cluster]*gv.Graph, c *cluster) *gv.Graph {
	home := root
	if c.inside != nil {
		home = subs[c.inside]
	}
	sub := home.Subgraph(fmt.Sprintf("%07d", len(subs)), gv.ClusterOption{})
	label := "<B>" + escape(c.title) + "</B>"
	for _, n := range c.notes {
		label += fmt.Sprintf(`<BR ALIGN="LEFT"/><FONT POINT-SIZE="9" COLOR="%s">%s</FONT>`, faint, escape(n))
	}
	label += `<BR ALIGN="LEFT"/>`
	sub.Attr("label", gv.HTML(label))
	sub.Attrs("fontname", family, "fontsize", 11, "fontcolor", ink, "labeljust", "l", "margin", 10, "id", c.key, "tooltip", c.tooltip)
	if c.repeats > 0 {
		sub.Attrs("style", "rounded,dashed", "color", frame, "penwidth", 2, "fontsize", 14, "margin", 14)
	} else {
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

// emitBox sets the attributes of a node.
func emitBox(n gv.Node, b *box) gv.Node {
	var label strings.Builder
	text := ink
	if b.look == lookInput || b.look == lookOutput {
		text = paper
	}
	for i, l := range b.lines {
		if i > 0 {
			label.WriteString("<BR/>")
		}
		switch l.role {
		case roleName:
			fmt.Fprintf(&label, "<B>%s</B>", escape(l.text))
		case roleType:
			colour := faint
			if text == paper {
				colour = "#D1D5DB"
			}
			fmt.Fprintf(&label, `<FONT POINT-SIZE="8" COLOR="%s">%s</FONT>`, colour, escape(l.text))
		default:
			label.WriteString(escape(l.text))
		}
	}
	colour := looks[b.look].colour
	n.Attr("label", gv.HTML(label.String()))
	n.Attrs("id", b.key, "tooltip", b.tooltip, "fontname", family, "fontsize", 10, "fontcolor", text, "color", colour,
		"shape", "box", "style", "rounded,filled", "fillcolor", paper, "margin", "0.1,0.05", "height", 0.3)
	switch b.look {
	case lookInput, lookOutput:
		n.Attr("fillcolor", colour)
	case lookParam:
		n.Attrs("style", "filled", "fillcolor", sand, "fontsize", 9, "margin", "0.07,0.03", "height", 0.2)
	case lookConst:
		n.Attrs("style", "filled,dashed", "fillcolor", sand, "fontsize", 9, "margin", "0.07,0.03", "height", 0.2)
	case lookState:
		n.Attrs("shape", "cylinder", "style", "filled", "fillcolor", steel, "fontsize", 9)
	case lookView:
		n.Attrs("style", "rounded,filled", "fillcolor", "#F3F4F6", "fontsize", 8, "fontcolor", faint, "margin", "0.06,0.02", "height", 0.2)
	case lookHost:
		n.Attrs("style", "filled,bold", "fillcolor", tint(colour, 12))
	default:
		if b.inside == nil || b.inside.repeats > 0 {
			n.Attrs("fillcolor", tint(colour, 22), "penwidth", 1.3)
		}
	}
	return n
}

// emitEdge sets the attributes of an edge.
func emitEdge(out gv.Edge, e *edge) {
	out.Attrs("color", line, "arrowsize", 0.6, "edgetooltip", e.tooltip, "tooltip", e.tooltip)
	if e.label != "" {
		lines := strings.Split(e.label, "\n")
		for i, l := range lines {
			lines[i] = " " + l
		}
		out.Attrs("label", strings.Join(lines, "\n"), "fontname", family, "fontsize", 8, "fontcolor", faint, "labeltooltip", e.tooltip)
	}
	switch e.style {
	case edgeParam:
		out.Attrs("color", lineWeak, "arrowsize", 0.5)
	case edgeCarried:
		out.Attrs("style", "dashed", "dir", "back", "weight", 0, "color", frame, "penwidth", 1.6)
	case edgeUpdate:
		out.Attrs("style", "dashed", "constraint", false, "color", looks[lookState].colour)
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
	for l := range looks {
		if !s.used[look(l)] || look(l) == lookOutput {
			continue
		}
		fill := looks[l].colour
		switch look(l) {
		case lookParam, lookConst:
			fill = sand
		case lookState:
			fill = steel
		}
		cells = append(cells, fmt.Sprintf(`<TD BGCOLOR="%s" BORDER="1" COLOR="%s" WIDTH="14" HEIGHT="10" FIXEDSIZE="TRUE"></TD>`+
			`<TD ALIGN="LEFT"><FONT POINT-SIZE="9">%s  </FONT></TD>`, fill, looks[l].colour, looks[l].name))
	}
	wide := len(cells) > legendColumns
	for len(cells) > 0 {
		k := min(legendColumns, len(cells))
		for wide && k < legendColumns {
			cells = append(cells, `<TD></TD><TD></TD>`)
			k++
		}
		row(`<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="2" CELLPADDING="1"><TR>%s</TR></TABLE>`, strings.Join(cells[:k], ""))
		cells = cells[k:]
	}
	b.WriteString("</TABLE>")
	return b.String()
}
