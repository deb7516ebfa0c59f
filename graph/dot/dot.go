package dot

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/graph/trace/tracejson"
)

// Graph prints a graph without a trace, in the format of opts.
func Graph(w io.Writer, g *graph.Graph, opts Options) error {
	tr := &trace.Trace{Stages: []trace.Stage{{Graph: g}}}
	return Stage(w, tr, 0, opts)
}

// Stage prints stage i of a trace. The last stage is printed with the program, if there is one.
func Stage(w io.Writer, tr *trace.Trace, i int, opts Options) error {
	if i < 0 || i >= len(tr.Stages) {
		return fmt.Errorf("stage %d of a trace with %s", i, plural(len(tr.Stages), "stage"))
	}
	switch f := opts.format(); f {
	case FormatText:
		return writeText(w, tr, i, i+1, opts)
	case FormatJSON:
		return tracejson.New(tr, tracejson.Options{First: i, Last: i, Measured: opts.Measured}).Write(w)
	case FormatDOT:
		return layout(stageDrawing(tr, i, opts)).emit(w)
	case FormatSVG, FormatPNG:
		s := layout(stageDrawing(tr, i, opts))
		if len(s.nodes) > MaxRendered {
			return &TooLargeError{len(s.nodes)}
		}
		var src bytes.Buffer
		if err := s.emit(&src); err != nil {
			return err
		}
		out, err := Render(src.Bytes(), f)
		if err != nil {
			return err
		}
		_, err = w.Write(out)
		return err
	default:
		_, err := ParseFormat(string(f))
		return err
	}
}

// Trace prints all stages, as text or JSON; a picture shows one stage.
func Trace(w io.Writer, tr *trace.Trace, opts Options) error {
	switch f := opts.format(); f {
	case FormatText:
		return writeText(w, tr, 0, len(tr.Stages), opts)
	case FormatJSON:
		return tracejson.New(tr, tracejson.All(tracejson.About{}, opts.Measured)).Write(w)
	default:
		return fmt.Errorf("a trace is printed whole as text or json; as %s, one stage at a time", f)
	}
}

// stageDrawing collects the content of a picture of stage i.
func stageDrawing(tr *trace.Trace, i int, opts Options) drawing {
	d := drawing{graph: tr.Stages[i].Graph, stage: tr.Stages[i].Name, target: tr.TargetChip(), rule: tr.Rule,
		pipeline: tr.Stages[i].Pipeline, opts: opts}
	if i == len(tr.Stages)-1 {
		d.program = tr.Program
	}
	if i > 0 {
		d.imported = summarise(tr.Stages[0].Graph, nil).nodes
	}
	d.missed = missed(tr, i)
	return d
}

// missed finds the nodes of stage i at which a fusion was missed up to it that counts: a mark and the reason for each.
// What an optimiser adds is left out, since nobody has written it.
func missed(tr *trace.Trace, i int) map[*graph.Node][]miss {
	marks := make(map[*graph.Node][]miss)
	byID, byOrigin := make(map[int]*graph.Node), make(map[graph.Origin][]*graph.Node)
	for _, n := range tr.Stages[i].Graph.Nodes {
		if !trace.NeedsLaunch(n.Op) {
			continue
		}
		byID[n.ID] = n
		for _, o := range n.Origin[:min(len(n.Origin), maxOrigins)] {
			byOrigin[o] = append(byOrigin[o], n)
		}
	}
	var scopes graph.Scopes
	before := make(map[int]map[int]*graph.Node) // nodes by ID, of the stage before a pass
	for _, g := range tr.Missed() {
		if g.Stage > i || g.Stage == 0 {
			continue
		}
		if before[g.Stage] == nil {
			before[g.Stage] = make(map[int]*graph.Node)
			for _, n := range tr.Stages[g.Stage-1].Graph.Nodes {
				before[g.Stage][n.ID] = n
			}
		}
		for _, m := range g.List {
			at := before[g.Stage][m.Node]
			if !m.Counts || at == nil || at.Phase == graph.Optimiser {
				continue
			}
			to := byID[m.Node]
			if i == len(tr.Stages)-1 && to == nil {
				to = byID[m.Became]
			}
			for _, o := range slices.Concat(at.Origin, m.Origin) {
				if to != nil {
					break
				}
				list := byOrigin[o]
				if k := slices.IndexFunc(list, func(n *graph.Node) bool { return scopes.Of(n) == scopes.Of(at) }); k >= 0 {
					to = list[k]
				} else if len(list) == 1 {
					to = list[0]
				}
			}
			if to != nil && !slices.ContainsFunc(marks[to], func(k miss) bool { return k.pattern == m.Pattern }) {
				marks[to] = append(marks[to], miss{m.Pattern, m.Reason})
			}
		}
	}
	return marks
}

// miss is a missed fusion.
type miss struct{ pattern, reason string }
