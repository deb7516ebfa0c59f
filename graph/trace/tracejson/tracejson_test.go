package tracejson_test

import (
	"bytes"
	"cmp"
	"reflect"
	"strings"
	"testing"
	"time"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/graph/trace"
	. "fusec/graph/trace/tracejson"
)

// step is the trace of a training step of a transformer.
func step(t testing.TB, layers, odd int) *trace.Trace {
	t.Helper()
	tr, _, err := fusec.Plan(graphtest.Transformer(t, layers, odd),
		fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.1)}))
	if err != nil {
		t.Fatal(err)
	}
	for i := range tr.Program.Launches {
		tr.Program.Launches[i].Measured = time.Duration(1000 + i)
	}
	return tr
}

func written(t testing.TB, x *Trace) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := x.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A training step of 12 layers takes at most 3 MB.
func TestSize(t *testing.T) {
	tr := step(t, 12, -1)
	src := written(t, New(tr, All(About{}, true)))
	t.Logf("%d launches, %d stages: %d bytes", len(tr.Program.Launches), len(tr.Stages), len(src))
	if len(src) > 3e6 {
		t.Errorf("%d bytes", len(src))
	}
	if !bytes.Equal(src, written(t, New(tr, All(About{}, true)))) {
		t.Error("written twice, the bytes differ")
	}
}

// Stages that list only changes give every stage's graph.
func TestStages(t *testing.T) {
	tr := step(t, 2, 1)
	got, err := Read(bytes.NewReader(written(t, New(tr, All(About{Model: "m", Fusec: "devel"}, true)))))
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[int]Node{}
	for i, s := range got.Stages {
		for _, id := range s.Removed {
			if _, ok := nodes[id]; !ok {
				t.Errorf("stage %s removes %d, which was not there", s.Name, id)
			}
			delete(nodes, id)
		}
		for _, n := range s.Changed {
			nodes[n.ID] = n
		}
		want := tr.Stages[i].Graph.Nodes
		if len(nodes) != len(want) {
			t.Fatalf("stage %s has %d nodes, want %d", s.Name, len(nodes), len(want))
		}
		for _, w := range want {
			n := nodes[w.ID]
			if n.Op != w.Op.OpName() || n.Name != w.Name || n.Type != w.Type.String() || len(n.Args) != len(w.Args) ||
				(n.Origin == 0) != (len(w.Origin) == 0) {
				t.Fatalf("stage %s: %+v, want %v", s.Name, n, w)
			}
			for j, a := range w.Args {
				if n.Args[j] != a.ID {
					t.Fatalf("stage %s: operand %d of %+v, want %d", s.Name, j, n, a.ID)
				}
			}
			for j, o := range w.Origin {
				if Origin(o) != got.Origins[got.OriginLists[n.Origin-1][j]] {
					t.Fatalf("stage %s: %+v has another origin than %v", s.Name, n, o)
				}
			}
			f, fused := w.Op.(graph.Fusion)
			if fused != (n.Body > 0) || fused && len(got.Bodies[n.Body-1].Nodes) != len(f.Body.Nodes) {
				t.Fatalf("stage %s: the body of %+v", s.Name, n)
			}
		}
	}
	if len(got.Program.Launches) != len(tr.Program.Launches) || len(got.Program.Buffers) != len(tr.Program.Buffers) ||
		got.Program.Launches[3].MeasuredNS != 1003 || got.Model != "m" || got.Fusec != "devel" {
		t.Errorf("%+v", got.Program)
	}
	if got.Unfused.Launches <= len(got.Program.Launches) || got.Unfused.Bytes <= tr.Program.Work().Bytes {
		t.Errorf("unfused %+v", got.Unfused)
	}
	one := New(tr, Options{First: 3, Last: 3})
	if len(one.Stages) != 1 || len(one.Stages[0].Changed) != len(tr.Stages[3].Graph.Nodes) || one.Program != nil ||
		one.Stages[0].Index != 3 {
		t.Errorf("one stage: %d nodes", len(one.Stages[0].Changed))
	}
}

// A miss names the launches that it leaves apart, and what one launch would save.
func TestMiss(t *testing.T) {
	got := New(step(t, 3, 1), All(About{}, false))
	var miss *Miss
	for _, s := range got.Stages {
		for i, m := range s.Misses {
			if m.Pattern == "attention" && strings.Contains(m.Reason, "squared") {
				miss = &s.Misses[i]
			}
		}
	}
	if miss == nil {
		t.Fatal("attention is not missed")
	}
	if len(miss.Launches) < 2 || strings.Contains(miss.Cause, "block1") || !miss.Counts || miss.Saves.Launches == 0 ||
		miss.Saves.Bytes == 0 {
		t.Errorf("%+v", miss)
	}
	listed := 0
	for i, m := range got.Missed {
		listed += m.Times
		if i > 0 && m.Counts && !got.Missed[i-1].Counts {
			t.Errorf("%+v comes after one that does not count", m)
		}
	}
	for _, s := range got.Stages {
		listed -= len(s.Misses)
	}
	if listed != 0 || len(got.Missed) == 0 || got.Missed[0].Pattern != "attention" {
		t.Errorf("%d more by cause than one by one: %+v", listed, got.Missed)
	}
}

// A match has the rule's name and what that may change.
func TestMatch(t *testing.T) {
	tr := step(t, 1, -1)
	for i, s := range New(tr, All(About{}, false)).Stages {
		want := tr.Stages[i].Matches
		if len(s.Matches) != len(want) || (s.Numeric == nil) != (tr.Stages[i].Numeric == trace.Numeric{}) {
			t.Fatalf("stage %s has %d matches and the contract %v", s.Name, len(s.Matches), s.Numeric)
		}
		for j, m := range s.Matches {
			got := trace.Exact
			if m.Numeric != nil {
				got = *m.Numeric
			}
			if cmp.Or(m.Pattern, s.Name) != want[j].Pattern || got != want[j].Numeric {
				t.Errorf("%+v, want %+v", m, want[j])
			}
		}
	}
}

func TestRead(t *testing.T) {
	good := string(written(t, New(step(t, 1, -1), All(About{}, false))))
	for _, c := range []struct{ src, want string }{
		{"{", "not the JSON of a trace"},
		{`{"schema":"fusec.trace/2"}`, `the schema is "fusec.trace/2"; this version of fusec reads "fusec.trace/5"`},
		{`{"schema":"fusec.trace/5"}`, "no stage"},
		{`{"schema":"fusec.trace/5","stages":5}`, "not the JSON of a trace"},
		{`{"schema":"fusec.trace/5","stages":[{"changed":[{"origin":1}]}]}`, "1 of its origin_lists, of which there are 1"},
		{`{"schema":"fusec.trace/5","stages":[{"changed":[{"body":-1}]}]}`, "-1 of its bodies"},
		{`{"schema":"fusec.trace/5","stages":[{"misses":[{"launches":[0]}]}]}`, "0 of its launches"},
		{`{"schema":"fusec.trace/5","stages":[{}],"bodies":[{"nodes":[{"body":1}]}]}`, "bodies"},
		{`{"schema":"fusec.trace/5","stages":[{}],"bodies":[{"nodes":[{"args":[0]}]}]}`, "operands first"},
		{`{"schema":"fusec.trace/5","stages":[{}],"bodies":[{"outputs":[0]}]}`, "nodes of a body"},
		{`{"schema":"fusec.trace/5","stages":[{}],"origin_lists":[[0]]}`, "0 of its origins"},
		{`{"schema":"fusec.trace/5","stages":[{}],"program":{"launches":[{"reads":[2]}]}}`, "2 of its buffers"},
		{`{"schema":"fusec.trace/5","stages":[{}],"program":{"launches":[{"source":2}]}}`, "2 of its sources"},
	} {
		if _, err := Read(strings.NewReader(c.src)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.src, err, c.want)
		}
	}
	if _, err := Read(strings.NewReader(good)); err != nil {
		t.Error(err)
	}
}

// A compilation that failed has a stage without a graph, and no program.
func TestFailed(t *testing.T) {
	tr := &trace.Trace{Target: "cpu", Stages: []trace.Stage{{Notes: []trace.Note{{Node: -1, Text: "it failed"}}}}}
	got, err := Read(bytes.NewReader(written(t, New(tr, All(About{}, false)))))
	if err != nil || len(got.Stages) != 1 || got.Stages[0].Notes[0].Text != "it failed" || got.Program != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if n := len(New(&trace.Trace{}, All(About{}, false)).Stages); n != 0 {
		t.Errorf("%d stages of none", n)
	}
}

// Layers are parts of scopes that count, and those that differ only in the number are a repetition.
func TestLayers(t *testing.T) {
	tr := &trace.Trace{Stages: []trace.Stage{{Name: trace.Final, Graph: graph.New("m")}}, Program: &trace.Program{}}
	for _, scope := range []string{"", "embedding/table", "block0/attn", "block2", "block10/mlp/up", "block1", "layerB/norm1",
		"layerA", "layerC", "encoder/layers/3/attn", "encoder/layers/4/attn", "99999999999999999999999", "9223372036854775807"} {
		tr.Program.Launches = append(tr.Program.Launches, trace.Launch{Scope: scope, Kind: "linear"})
	}
	got := New(tr, All(About{}, false)).Program
	for i, want := range []string{"", "embedding", "block0", "block2", "block10", "block1", "layerB", "layerA", "layerC",
		"encoder/layers/3", "encoder/layers/4", "99999999999999999999999", "9223372036854775807"} {
		if l := got.Launches[i]; l.Layer != want {
			t.Errorf("the layer of %s is %q, want %q", l.Scope, l.Layer, want)
		}
	}
	want := []Repeat{{"block#", []string{"block0", "block1", "block2", "block10"}, true},
		{"layer#", []string{"layerA", "layerB", "layerC"}, true}}
	if !reflect.DeepEqual(got.Repeats, want) {
		t.Errorf("repeats %+v", got.Repeats)
	}
	tr.Program.Launches[3].Phase = graph.Backward
	if r := New(tr, All(About{}, false)).Program.Repeats; r[0].Alike || !r[1].Alike {
		t.Errorf("repeats %+v", r)
	}
}

// TestPipelineRun: how steps of a pipeline went is in measured files alone.
func TestPipelineRun(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", b.Input("x", graph.TypeOf(graph.F32, 2))) })
	run := &trace.PipelineRun{Steps: 3, Waited: 0.25, Stages: []trace.StageRun{{Step: 9, Previous: 2, Spans: []trace.PipelineSpan{
		{What: trace.StageForward, Microbatch: 1, Start: 1, Length: 7}}}}}
	p := &trace.Pipeline{Microbatches: 2, Stages: []trace.PipelineStage{{Flight: 1}}, Measured: run}
	tr := &trace.Trace{Stages: []trace.Stage{{Name: trace.Final, Graph: g, Pipeline: p}}}
	for _, measured := range []bool{true, false} {
		got, err := Read(bytes.NewReader(written(t, New(tr, All(About{}, measured)))))
		if err != nil {
			t.Fatal(err)
		}
		want := *p
		if !measured {
			want.Measured = nil
		}
		if !reflect.DeepEqual(got.Stages[0].Pipeline, &want) {
			t.Errorf("measured %v: %+v", measured, got.Stages[0].Pipeline)
		}
	}
	if p.Measured != run {
		t.Error("the trace has lost its run")
	}
}
