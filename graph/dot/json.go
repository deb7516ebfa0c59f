package dot

import (
	"encoding/json"
	"io"

	"fusec/graph"
	"fusec/graph/trace"
)

// Schema names the form of the JSON that this package writes. It changes only if a field is removed or changes its
// meaning; fields may be added.
const Schema = "fusec.trace/1"

// The JSON form. Field names are those of packages graph and trace in snake case. Nodes refer to each other by ID; the
// IDs of a body are separate. Times are in nanoseconds and absent unless [Options.Measured]. Infinities and NaN in
// attributes are the strings "inf", "-inf" and "nan".
type (
	jsonTrace struct {
		Schema    string       `json:"schema"`
		Target    string       `json:"target"`
		Overlay   string       `json:"overlay,omitempty"`
		Precision string       `json:"precision,omitempty"`
		Stages    []jsonStage  `json:"stages"`
		Program   *jsonProgram `json:"program,omitempty"`
	}
	jsonStage struct {
		Name     string      `json:"name"`
		Doc      string      `json:"doc"`
		Index    int         `json:"index"` // in the whole trace
		Nodes    int         `json:"nodes"` // operations
		Launches int         `json:"launches"`
		FLOPs    int64       `json:"flops"`
		Bytes    int64       `json:"bytes"`
		TookNS   int64       `json:"took_ns,omitempty"`
		Graph    jsonGraph   `json:"graph"`
		Matches  []jsonMatch `json:"matches"`
		Misses   []jsonMiss  `json:"misses"`
		Notes    []jsonNote  `json:"notes"`
	}
	jsonGraph struct {
		Name    string       `json:"name"`
		Nodes   []jsonNode   `json:"nodes"`
		Outputs []jsonOutput `json:"outputs"`
		Updates []jsonUpdate `json:"updates,omitempty"`
	}
	jsonNode struct {
		ID     int            `json:"id"`
		Name   string         `json:"name,omitempty"`
		Op     string         `json:"op"`
		Attrs  map[string]any `json:"attrs,omitempty"`
		Value  any            `json:"value,omitempty"` // of a constant whose elements are all equal
		Args   []int          `json:"args"`
		DType  string         `json:"dtype"`
		Shape  []int          `json:"shape"`
		FLOPs  int64          `json:"flops,omitempty"`
		Bytes  int64          `json:"bytes,omitempty"`
		Origin []jsonOrigin   `json:"origin,omitempty"`
		Body   *jsonGraph     `json:"body,omitempty"`
	}
	jsonOrigin struct {
		Name string `json:"name,omitempty"`
		Pos  string `json:"pos,omitempty"`
	}
	jsonOutput struct {
		Name string `json:"name"`
		Node int    `json:"node"`
	}
	jsonUpdate struct {
		Target int `json:"target"`
		Value  int `json:"value"`
	}
	jsonMatch struct {
		Pattern string       `json:"pattern"`
		Kind    string       `json:"kind"`
		Node    int          `json:"node"`
		Origin  []jsonOrigin `json:"origin"`

		Numeric trace.Numeric `json:"numeric,omitzero"`
	}
	jsonMiss struct {
		Pattern string       `json:"pattern"`
		Node    int          `json:"node"`
		At      string       `json:"at"`
		Reason  string       `json:"reason"`
		Origin  []jsonOrigin `json:"origin"`
	}
	jsonNote struct {
		Node   int          `json:"node"` // −1 for the graph as a whole
		Text   string       `json:"text"`
		Origin []jsonOrigin `json:"origin"`
		Kind   string       `json:"kind"`            // remark, divergence or imitation
		Topic  string       `json:"topic,omitempty"` // of the latter two, from docs/divergences.md
	}
	jsonProgram struct {
		Target      string       `json:"target"`
		ArenaBytes  int64        `json:"arena_bytes"`
		BufferBytes int64        `json:"buffer_bytes"`
		ParamBytes  int64        `json:"param_bytes"`
		Launches    []jsonLaunch `json:"launches"`
	}
	jsonLaunch struct {
		Node       int          `json:"node"`
		Kernel     string       `json:"kernel"`
		Kind       string       `json:"kind"`
		Name       string       `json:"name"`
		Device     string       `json:"device"`
		Reads      []string     `json:"reads"`
		Writes     []string     `json:"writes"`
		FLOPs      int64        `json:"flops"`
		Bytes      int64        `json:"bytes"`
		Origin     []jsonOrigin `json:"origin"`
		MeasuredNS int64        `json:"measured_ns,omitempty"`
		Reason     string       `json:"reason,omitempty"`    // why it does not run on the target
		Cycles     int64        `json:"cycles,omitempty"`    // estimated
		Counted    int64        `json:"counted,omitempty"`   // of cycles, in a run
		MaxError   float64      `json:"max_error,omitempty"` // of the results, relative to their range
		RMSError   float64      `json:"rms_error,omitempty"`
	}
)

// writeJSON prints stages from ≤ i < to, and the program with the last stage.
func writeJSON(w io.Writer, tr *trace.Trace, from, to int, opts Options) error {
	t := jsonTrace{Schema: Schema, Target: tr.Target, Overlay: tr.Overlay, Precision: tr.Precision, Stages: []jsonStage{}}
	for i := from; i < to; i++ {
		t.Stages = append(t.Stages, stageJSON(tr, i, opts))
	}
	if to == len(tr.Stages) && tr.Program != nil {
		t.Program = programJSON(tr.Program, opts)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	return e.Encode(t)
}

func stageJSON(tr *trace.Trace, i int, opts Options) jsonStage {
	s := &tr.Stages[i]
	var program *trace.Program
	if i == len(tr.Stages)-1 {
		program = tr.Program
	}
	sum := summarise(s.Graph, program)
	j := jsonStage{Name: s.Name, Doc: s.Doc, Index: i, Nodes: sum.nodes, Launches: sum.launches, FLOPs: sum.flops, Bytes: sum.bytes,
		Graph: graphJSON(s.Graph), Matches: []jsonMatch{}, Misses: []jsonMiss{}, Notes: []jsonNote{}}
	if opts.Measured {
		j.TookNS = s.Took.Nanoseconds()
	}
	for _, m := range s.Matches {
		j.Matches = append(j.Matches, jsonMatch{m.Pattern, m.Kind, m.Node, originsJSON(m.Origin), m.Numeric})
	}
	for _, m := range s.Misses {
		j.Misses = append(j.Misses, jsonMiss{m.Pattern, m.Node, m.At, m.Reason, originsJSON(m.Origin)})
	}
	for _, n := range s.Notes {
		j.Notes = append(j.Notes, jsonNote{n.Node, n.Text, originsJSON(n.Origin), n.Kind.String(), n.Topic})
	}
	return j
}

func graphJSON(g *graph.Graph) jsonGraph {
	j := jsonGraph{Name: g.Name, Nodes: []jsonNode{}, Outputs: []jsonOutput{}}
	for _, n := range g.Nodes {
		j.Nodes = append(j.Nodes, nodeJSON(n))
	}
	for _, o := range g.Outputs {
		j.Outputs = append(j.Outputs, jsonOutput{o.Name, o.Node.ID})
	}
	for _, u := range g.Updates {
		j.Updates = append(j.Updates, jsonUpdate{u.Target.ID, u.Value.ID})
	}
	return j
}

func nodeJSON(n *graph.Node) jsonNode {
	c := graph.CostOf(n)
	j := jsonNode{ID: n.ID, Name: n.Name, Op: n.Op.OpName(), Args: []int{}, DType: n.Type.DType.String(), Shape: dims(n.Type.Shape.Ints),
		FLOPs: c.FLOPs, Bytes: c.Bytes(), Origin: originsJSON(n.Origin)}
	for _, a := range n.Args {
		j.Args = append(j.Args, a.ID)
	}
	for _, a := range attributes(n.Op) {
		if j.Attrs == nil {
			j.Attrs = make(map[string]any)
		}
		switch v := a.value.(type) {
		case float64:
			j.Attrs[a.key] = finite(v)
		case graph.Ints:
			j.Attrs[a.key] = dims(v)
		case graph.Shape:
			j.Attrs[a.key] = dims(v.Ints)
		case graph.Type:
			j.Attrs[a.key] = v.String()
		default:
			j.Attrs[a.key] = v
		}
	}
	switch op := n.Op.(type) {
	case graph.Const:
		switch v, ok := n.Uniform(); {
		case !ok:
		case v.Type.DType.IsInt():
			j.Value = v.Int(0)
		default:
			j.Value = finite(v.Float(0))
		}
	case graph.Fusion:
		body := graphJSON(op.Body)
		j.Body = &body
	}
	return j
}

// dims is a list that is never null.
func dims(l graph.Ints) []int { return append([]int{}, l.Slice()...) }

func originsJSON(list []graph.Origin) []jsonOrigin {
	j := []jsonOrigin{}
	for _, o := range list {
		j = append(j, jsonOrigin(o))
	}
	return j
}

func programJSON(p *trace.Program, opts Options) *jsonProgram {
	j := &jsonProgram{Target: p.Target, ArenaBytes: p.ArenaBytes, BufferBytes: p.BufferBytes, ParamBytes: p.ParamBytes, Launches: []jsonLaunch{}}
	for _, l := range p.Launches {
		k := jsonLaunch{Node: l.Node, Kernel: l.Kernel, Kind: l.Kind, Name: l.Name, Device: l.Device, Reads: append([]string{}, l.Reads...),
			Writes: append([]string{}, l.Writes...), FLOPs: l.FLOPs, Bytes: l.Bytes, Origin: originsJSON(l.Origin), Reason: l.Reason, Cycles: l.Cycles}
		if opts.Measured {
			k.MeasuredNS = l.Measured.Nanoseconds()
			k.Counted, k.MaxError, k.RMSError = l.Counted, l.MaxError, l.RMSError
		}
		j.Launches = append(j.Launches, k)
	}
	return j
}
