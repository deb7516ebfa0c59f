package inspect

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"fusec/cmd/internal/clitest"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/local"
)

func TestExplain(t *testing.T) {
	text := clitest.Good(t, "explain", clitest.Bare)
	clitest.Golden(t, "mlp-explain.txt", text)
	if clitest.Good(t, "explain", clitest.Bare) != text {
		t.Error("the second report differs")
	}
}

func TestExplainJSON(t *testing.T) {
	var rep ExplainReport
	if err := json.Unmarshal([]byte(clitest.Good(t, "explain", "--json", clitest.Bare)), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Schema != "fusec.explain/3" || rep.Model != "mlp" || rep.Target != "cpu" {
		t.Errorf("%+v", rep)
	}
	if rep.Before.Launches != 7 || rep.After.Launches != len(rep.Launches) || rep.After.Launches >= 7 ||
		rep.After.Bytes >= rep.Before.Bytes {
		t.Errorf("before %+v, after %+v", rep.Before, rep.After)
	}
	sum, covered := trace.Work{}, map[string]bool{}
	for _, k := range rep.Kinds {
		sum.Launches += k.Launches
		sum.FLOPs += k.FLOPs
		sum.Bytes += k.Bytes
	}
	if sum != rep.After {
		t.Errorf("the kinds sum to %+v, not %+v", sum, rep.After)
	}
	for _, l := range rep.Launches {
		if l.Phase != graph.Forward {
			t.Errorf("launch %d is %v", l.Index, l.Phase)
		}
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

// The numeric contracts are those of the rules that rewrote the graph, the weakest first.
func TestExplainNumeric(t *testing.T) {
	path := graphtest.File(t, "gelu.graph", `fusec graph 1 "gelu" {
  x = input : f32[4,8]
  w = param : f32[8,8]
  h = matmul x w : f32[4,8]
  c = const[value=0.70710678] : f32[]
  scaled = binary[fn=mul] h c : f32[4,8]
  erf = unary[fn=erf] scaled : f32[4,8]
  one = const[value=1] : f32[]
  sum = binary[fn=add] erf one : f32[4,8]
  product = binary[fn=mul] h sum : f32[4,8]
  half = const[value=0.5] : f32[]
  y = binary[fn=mul] product half : f32[4,8]
  output y = y
}
`)
	clitest.Golden(t, "gelu-numeric.txt", clitest.Good(t, "explain", "--numeric", path))
	if text := clitest.Good(t, "explain", "--numeric", "--target", "cuda", "--precision", "bf16", "--arch", "sm_90a",
		clitest.Bare); !strings.Contains(text, "rounded to bf16") {
		t.Error(text)
	}
	var rep ExplainReport
	if err := json.Unmarshal([]byte(clitest.Good(t, "explain", "--json", path)), &rep); err != nil {
		t.Fatal(err)
	}
	if n := rep.Numeric[0]; n.Stage != "raise" || n.Pattern != "gelu-erf" || n.Times != 1 || n.Numeric != trace.Approximate(1e-5) ||
		len(n.Nodes) != 8 {
		t.Errorf("%+v", n)
	}
	for i, n := range rep.Numeric[1:] {
		if n.Numeric.Weaker(rep.Numeric[i].Numeric) {
			t.Errorf("%+v comes after %+v", n, rep.Numeric[i])
		}
	}
}

// Under a memory budget the report says what is computed again, and what that costs.
func TestExplainBudget(t *testing.T) {
	path := graphtest.File(t, "late.graph", `fusec graph 1 "late" {
  x = input : f32[32,32]
  w = param : f32[32,32]
  a = matmul x w
  b = matmul a w
  c = matmul b w
  y = matmul c a
  output y = y
}
`)
	text := clitest.Good(t, "explain", path, "--memory-budget", "8KiB")
	want := `
memory budget of 8.00 KiB for values, met: 12.0 KiB without recomputation, 8.00 KiB with it
computed again: 1 launch, 65.5 kFLOP (+25.0 %), 12.0 KiB of traffic (+25.0 %)
#  repeats  kind    name  arithmetic   traffic
4        1  linear  a     65.5 kFLOP  12.0 KiB

`
	if !strings.Contains(text, want) {
		t.Errorf("the report lacks\n%s\n%s", want, text)
	}
	text = clitest.Good(t, "explain", path, "--memory-budget", "1KiB")
	want = `
memory budget of 1.00 KiB for values, not met: 12.0 KiB without recomputation, 8.00 KiB with it
`
	note := "  recompute: the memory budget of 1024 bytes is not met: the fewest that were found are 8192, without recomputation " +
		"12288\n"
	if !strings.Contains(text, want) || !strings.Contains(text, note) {
		t.Errorf("the report lacks\n%s\n%s\n%s", want, note, text)
	}
	text = clitest.Good(t, "explain", path, "--memory-budget", "1MiB")
	if !strings.Contains(text, "12.0 KiB without recomputation, 12.0 KiB with it\nnothing is computed again\n") {
		t.Errorf("the report is\n%s", text)
	}
	early := graphtest.File(t, "early.graph", `fusec graph 1 "early" {
  x = input : f32[32,32]
  w = param : f32[32,32]
  a = matmul x w
  b = matmul x x
  c = matmul b w
  y = matmul c w
  z = matmul a w
  output y = y
  output z = z
}
`)
	text = clitest.Good(t, "explain", early, "--memory-budget", "8KiB")
	want = "12.0 KiB without recomputation, 8.00 KiB with it\nnothing is computed again; launches in another order take less memory\n"
	if !strings.Contains(text, want) {
		t.Errorf("the report lacks\n%s\n%s", want, text)
	}

	var rep ExplainReport
	if err := json.Unmarshal([]byte(clitest.Good(t, "explain", "--json", path, "--memory-budget", "8192")), &rep); err != nil {
		t.Fatal(err)
	}
	b := rep.Budget
	if b == nil || b.BudgetBytes != 8192 || b.BeforeBytes != 12288 || b.AfterBytes != 8192 || rep.Memory.ArenaBytes != 8192 {
		t.Fatalf("%+v, %+v", b, rep.Memory)
	}
	repeat := repeatReport{Launch: 4, Repeats: 1, Kind: "linear", Name: "a", FLOPs: 65536, Bytes: 12288}
	if len(b.Launches) != 1 || b.Launches[0] != repeat || b.FLOPs != 65536 || b.FLOPsShare != 0.25 || b.BytesShare != 0.25 {
		t.Errorf("%+v", b)
	}
}

// twoLaunches is a program whose first launch, of node 1, hands 1 KiB to its second, of node 2.
func twoLaunches() *trace.Program {
	value := graph.TypeOf(graph.F32, 256)
	return &trace.Program{Buffers: []trace.Buffer{{Role: "temp", Type: value}, {Role: "output", Type: value}},
		Launches: []trace.Launch{
			{Node: 1, Kind: "linear", Writes: []int{0}, Bytes: 1024},
			{Node: 2, Kind: "elementwise", Reads: []int{0}, Writes: []int{1}, Bytes: 2048},
		}}
}

// Missed fusions and notes of every stage are told. Those that would save nothing stand apart.
func TestExplainMisses(t *testing.T) {
	tr := &trace.Trace{Target: "cpu", Program: twoLaunches(), Stages: []trace.Stage{
		{Name: "import", Graph: graph.New("m")},
		{Name: "raise", Misses: []trace.Miss{
			{Pattern: "relu", At: `mul "x" (m.go:6)`, Reason: "it is another value", Nodes: []int{2}, Joins: []int{2}},
			{Pattern: "gelu", At: `mul "y" (m.go:7)`, Reason: "the cube is of another value", Nodes: []int{1, 2}, Joins: []int{1, 2}}},
			Notes: []trace.Note{{Node: -1, Text: "something of note"}}},
	}}
	want := `
missed fusions: 1
  gelu (raise) stopped at mul "y" (m.go:7): the cube is of another value; it costs 1 launch and 2.00 KiB

matched in part, at no cost: 1
  relu (raise) stopped at mul "x" (m.go:6): it is another value

notes
  raise: something of note
`
	rep := explain("m", tr, &lowering.Program{})
	if got := rep.text(); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s", got)
	}
	if m := rep.Misses; len(m) != 2 || !m[0].Counts || m[0].Saves != (trace.Work{Launches: 1, Bytes: 2048}) || m[1].Counts ||
		m[1].Saves != (trace.Work{}) {
		t.Errorf("%+v", m)
	}
}

// TestExplainManyAlike explains graphs of n equal values, all handed out: what is allocated for each stays the same, though
// each launch stands for all n.
func TestExplainManyAlike(t *testing.T) {
	each := func(n int) float64 {
		var b strings.Builder
		b.WriteString("fusec graph 1 {\n  x = input : f32[4]\n")
		for i := range n {
			fmt.Fprintf(&b, "  %%%d = unary[fn=tanh] x\n", i+1)
		}
		for i := range n {
			fmt.Fprintf(&b, "  output y%d = %%%d\n", i, i+1)
		}
		file := graphtest.File(t, "alike.graph", b.String()+"}\n")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if text := clitest.Good(t, "explain", file); !strings.Contains(text, "alike for cpu") {
			t.Fatal(text)
		}
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
	}
	each(10)
	if few, many := each(250), each(2000); many > 1.5*few {
		t.Errorf("%.0f bytes for each of 250 values, %.0f for each of 2,000", few, many)
	}
}

// Missed fusions for one cause are one line, the cause of the most misses first.
func TestMissedFusionsByCause(t *testing.T) {
	raise := trace.Stage{Name: "raise",
		Misses: []trace.Miss{{Pattern: "gelu", At: `binary "a"`, Reason: "want a constant 0.5, found 0.25"}}}
	fuse := trace.Stage{Name: "fuse-attention"}
	for _, m := range [][2]string{
		{`softmax "s1"`, `"l1.scores" is also read by net.go:12`},
		{`softmax "s2"`, `"l2.scores" is also read by net.go:12`},
		{`softmax "s3"`, `"l3.scores" is also read by net.go:14`},
		{`softmax "s4"`, "the mask depends on the batch"},
		{`softmax "s5"`, "the mask depends on the batch"},
	} {
		fuse.Misses = append(fuse.Misses, trace.Miss{Pattern: "attention", At: m[0], Reason: m[1]})
	}
	tr := &trace.Trace{Target: "cpu", Program: twoLaunches(), Stages: []trace.Stage{raise, fuse}}
	for _, s := range tr.Stages {
		for i := range s.Misses {
			s.Misses[i].Nodes, s.Misses[i].Joins = []int{1, 2}, []int{1, 2}
		}
	}
	want := `
missed fusions: 6
  ×3 attention (fuse-attention) stopped at softmax "s1" and 2 others: "l1.scores" is also read by net.go:12; ` +
		`they cost 1 launch and 2.00 KiB
  ×2 attention (fuse-attention) stopped at softmax "s4" and at softmax "s5": the mask depends on the batch; ` +
		`they cost 1 launch and 2.00 KiB
  gelu (raise) stopped at binary "a": want a constant 0.5, found 0.25; it costs 1 launch and 2.00 KiB
`
	if text := explain("m", tr, &lowering.Program{}).text(); !strings.Contains(text, want) {
		t.Errorf("the report lacks\n%s\n%s", want, text)
	}
}

// The report names the algorithm of a convolution that is computed by Winograd's, and its contract.
func TestExplainWinograd(t *testing.T) {
	path := graphtest.File(t, "conv.graph", `fusec graph 1 "conv" {
  x = input : f32[1,32,16,16]
  w = param : f32[32,32,3,3]
  y = conv2d[stride=[1,1] dilation=[1,1] pad=[1,1,1,1] groups=1] x w : f32[1,32,16,16]
  output y = y
}
`)
	text := clitest.Good(t, "explain", path)
	if !strings.Contains(text, "conv, winograd 4×4") {
		t.Errorf("the report does not name the algorithm:\n%s", text)
	}
	if text := clitest.Good(t, "explain", path, "--numeric"); !strings.Contains(text, "transformed   1e-05  winograd") {
		t.Errorf("the contracts lack that of the algorithm:\n%s", text)
	}
	if text := clitest.Good(t, "explain", path, "--no-winograd"); strings.Contains(text, "winograd") {
		t.Errorf("it is not forbidden:\n%s", text)
	}
}

// The report says of convolutions how they are computed by what was measured, for that number of workers alone, and
// --no-winograd forbids what was measured, too.
func TestExplainTuned(t *testing.T) {
	t.Setenv(local.Variable, t.TempDir())
	path := graphtest.File(t, "m.graph", `fusec graph 1 {
  x = input : f32[1,32,12,12]
  w = param : f32[32,32,3,3]
  y = conv2d[stride=[1,1] dilation=[1,1] pad=[1,1,1,1] groups=1] x w : f32[1,32,12,12]
  z = unary[fn=relu] y : f32[1,32,12,12]
  output z = z
}`)
	explained := func(flags ...string) string { return clitest.Good(t, append([]string{"explain", path}, flags...)...) }
	chip := cpu.New(cpu.Workers(2)).Chip()
	const conv = "f32:1x32x12x12:32x3x3:s1x1:d1x1:p1x1x1x1:g1"
	for _, c := range []struct{ times, with, without string }{
		{"direct 9000, winograd:4:24 1000, im2col 900000", "winograd 4×4 in bands of 24, tuned", "direct, tuned"},
		{"direct:96 9000, winograd:2 8900, im2col 900000", "direct in bands of 96, tuned", "direct in bands of 96, tuned"},
		{"direct:48 900000, im2col 1000", "im2col, tuned", "im2col, tuned"},
	} {
		text := "fusec tuning 1 " + chip
		for _, line := range strings.Split(c.times, ", ") {
			text += "\n" + conv + " " + line
		}
		if _, err := local.WriteTuning("cpu", chip, text); err != nil {
			t.Fatal(err)
		}
		if s := explained("--threads", "2"); !strings.Contains(s, "conv, "+c.with) {
			t.Errorf("%s: no %q in\n%s", c.times, c.with, s)
		}
		if s := explained("--threads", "2", "--no-winograd"); !strings.Contains(s, "conv, "+c.without) {
			t.Errorf("%s, without Winograd's algorithm: no %q in\n%s", c.times, c.without, s)
		}
		if s := explained("--threads", "1"); strings.Contains(s, "tuned") {
			t.Errorf("one worker computes as was measured for two:\n%s", s)
		}
	}
}
