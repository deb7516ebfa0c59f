package bench

import (
	"io"

	"fusec/cmd/internal/cli"
	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/lowering"
)

// chromeTrace is a timeline in the trace event format that chrome://tracing and Perfetto show: complete events ("X"),
// with times in microseconds, on the threads of one process, and metadata events ("M") that name those.
type chromeTrace struct {
	Unit   string        `json:"displayTimeUnit"`
	Events []chromeEvent `json:"traceEvents"`
}

type chromeEvent struct {
	Name     string         `json:"name"`
	Category string         `json:"cat,omitempty"`
	Phase    string         `json:"ph"`
	Start    float64        `json:"ts"`
	Length   float64        `json:"dur,omitempty"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	Args     map[string]any `json:"args,omitempty"`
}

// The rows of the drawing.
var chromeRows = []string{"launches", "copies", "processor", "exchanges"}

// rowOf is the row of a span.
var rowOf = map[lowering.SpanKind]int{lowering.SpanLaunch: 0, lowering.SpanCopyIn: 1, lowering.SpanCopyOut: 1,
	lowering.SpanHost: 2, lowering.SpanExchange: 3}

// newChromeTrace draws a run of a program: its spans, with what each launch does.
func newChromeTrace(rep *benchReport, spans []lowering.Span) *chromeTrace {
	t := &chromeTrace{Unit: "ns"}
	names := func(what string, row int, name string) {
		t.Events = append(t.Events, chromeEvent{Name: what, Phase: "M", Process: 1, Thread: row,
			Args: map[string]any{"name": name}})
	}
	names("process_name", 0, rep.Model+" on "+rep.Target)
	for i, row := range chromeRows {
		names("thread_name", i, row)
	}
	for _, s := range spans {
		e := chromeEvent{Phase: "X", Start: float64(s.Start.Nanoseconds()) / 1e3,
			Length: float64(s.Length.Nanoseconds()) / 1e3, Process: 1, Thread: rowOf[s.What], Category: chromeRows[rowOf[s.What]]}
		switch s.What {
		case lowering.SpanCopyIn:
			e.Name = "to the device"
		case lowering.SpanCopyOut:
			e.Name = "to the host"
		default:
			e.launch(&rep.Launches[s.Launch])
		}
		t.Events = append(t.Events, e)
	}
	return t
}

// launch tells what a launch does.
func (e *chromeEvent) launch(l *launchReport) {
	var own []graph.Origin
	for _, o := range l.Origin {
		own = append(own, graph.Origin(o))
	}
	names, pos := cli.Origins(own)
	e.Name = l.Kind
	if l.Name != "" {
		e.Name += " " + l.Name
	}
	e.Args = map[string]any{"launch": l.Index, "kernel": l.Kernel, "flops": l.FLOPs, "bytes": l.Bytes, "origin": names,
		"built at": pos}
}

// save writes the trace to a file.
func (t *chromeTrace) save(path string) error {
	return atomicfile.Write(path, func(w io.Writer) error { return cli.WriteJSON(w, t) })
}
