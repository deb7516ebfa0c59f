package dot

import (
	"bytes"
	"fmt"
	"io"

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
	d := drawing{graph: tr.Stages[i].Graph, stage: tr.Stages[i].Name, target: tr.Target, overlay: tr.Overlay, opts: opts}
	if i == len(tr.Stages)-1 {
		d.program = tr.Program
	}
	if i > 0 {
		d.imported = summarise(tr.Stages[0].Graph, nil).nodes
	}
	return d
}
