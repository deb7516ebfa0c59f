package main

import (
	"encoding/json"
	"testing"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/lowering"
)

func TestExplain(t *testing.T) {
	text := good(t, "explain", bare)
	golden(t, "mlp-explain.txt", text)
	if good(t, "explain", bare) != text {
		t.Error("the second report differs")
	}
}

func TestExplainJSON(t *testing.T) {
	var rep explainReport
	if err := json.Unmarshal([]byte(good(t, "explain", "--json", bare)), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Schema != "fusec.explain/1" || rep.Model != "mlp" || rep.Target != "cpu" {
		t.Errorf("%+v", rep)
	}
	if rep.Before.Launches != 7 || rep.After.Launches != len(rep.Launches) || rep.After.Launches >= 7 || rep.After.Bytes >= rep.Before.Bytes {
		t.Errorf("before %+v, after %+v", rep.Before, rep.After)
	}
	sum, covered := work{}, map[string]bool{}
	for _, k := range rep.Kinds {
		sum.Launches += k.Launches
		sum.FLOPs += k.FLOPs
		sum.Bytes += k.Bytes
	}
	if sum != rep.After {
		t.Errorf("the kinds sum to %+v, not %+v", sum, rep.After)
	}
	for _, l := range rep.Launches {
		for _, n := range l.Nodes {
			covered[n.Name] = true
		}
	}
	for _, name := range []string{"hidden", "act", "logits", "res", "probs", "next"} {
		if !covered[name] {
			t.Errorf("no launch stands for %s", name)
		}
	}
}

// Near misses and notes of every stage are told.
func TestExplainMisses(t *testing.T) {
	tr := &trace.Trace{Target: "cpu", Program: &trace.Program{}, Stages: []trace.Stage{
		{Name: "import", Graph: graph.New("m")},
		{Name: "raise", Misses: []trace.Miss{{Pattern: "gelu", At: `mul "y" (m.go:7)`, Reason: "the cube is of another value"}},
			Notes: []trace.Note{{Node: -1, Text: "something of note"}}},
	}}
	want := `m for cpu: 0 launches where one for each operation would be 0

                   unfused   fused
launches                 0       0
memory traffic         0 B     0 B
arithmetic          0 FLOP  0 FLOP
memory for values      0 B     0 B
weights and constants: 0 B

on the host: nothing

near misses: 1
  gelu (raise) stopped at mul "y" (m.go:7): the cube is of another value

notes
  raise: something of note
`
	if got := explain("m", tr, &lowering.Program{}).text(); got != want {
		t.Errorf("got\n%s", got)
	}
}
