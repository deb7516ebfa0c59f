package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/cmd/internal/ladders"
	"fusec/cmd/peers/workload"
	"fusec/graph"
	"fusec/graph/graphtest"
)

func bench(t *testing.T, args ...string) string {
	t.Helper()
	return clitest.Good(t, append(append([]string{"bench"}, args...), clitest.Quick...)...)
}

func TestBenchModel(t *testing.T) {
	path := clitest.Model(t, nil)
	var rep benchReport
	if err := json.Unmarshal([]byte(bench(t, path, "--json", "--threads", "1")), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Schema != "fusec.bench/1" || rep.Model != "mlp" || rep.Threads != 1 || rep.Rounds != 3 || rep.Machine.CPU == "" {
		t.Errorf("%+v", rep)
	}
	if len(rep.Results) != 2 || rep.Results[0].Name != "fusec" || rep.Results[1].Name != tapeName || rep.Ratio == nil {
		t.Fatalf("results %+v, ratio %+v; %s", rep.Results, rep.Ratio, rep.Missing)
	}
	for _, r := range rep.Results {
		if r.MedianNS <= 0 || r.BestNS <= 0 || r.BestNS > r.MedianNS || r.Runs < 9 || r.Spread < 0 {
			t.Errorf("%+v", r)
		}
	}
	if rep.Ratio.Median <= 0 || !(rep.Ratio.Difference < 1e-5) {
		t.Errorf("ratio %+v", rep.Ratio)
	}
	share := 0.0
	for _, l := range rep.Launches {
		share += l.Share
		if l.MedianNS <= 0 || l.Bytes <= 0 || l.GBs <= 0 || len(l.Origin) == 0 {
			t.Errorf("launch %+v", l)
		}
	}
	if math.Abs(share-1) > 1e-9 {
		t.Errorf("the shares sum to %v", share)
	}
}

func TestBenchModelText(t *testing.T) {
	path := clitest.Model(t, nil)
	out := bench(t, path)
	for _, want := range []string{"mlp on cpu, ", "fusec is ", " times as fast as the TapeMachine", "allocated per run", "GFLOP/s",
		"model.go:20"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if out := bench(t, path, "--no-gorgonia"); strings.Contains(out, "TapeMachine") {
		t.Errorf("--no-gorgonia is not heard:\n%s", out)
	}
	clitest.Bad(t, clitest.FusecRun(t, "bench", clitest.Bare), cli.ExitFailure, "--random-weights runs")
}

// A graph that Gorgonia cannot run is measured alone, unless a ratio was asked for.
func TestBenchWithoutRival(t *testing.T) {
	path := graphtest.File(t, "m.graph", `fusec graph 1 {
  c = input : bool[3,4]
  x = input : f32[3,4]
  y = select c x x
  output y = y
}
`)
	for text, want := range map[string]string{
		"output y = y\n  gradient d = y by w seed s":                         "has a seed",
		"output y = y\n  gradient d = y by w\n  gradient e = z by w":         "of several costs",
		"output y = y\n  gradient d = y by v":                                "of inputs and parameters only",
		"output y = y\n  optimiser sgd[rate=0.1 accumulate=2]\n  step w = y": "adds up the gradients",
	} {
		file := training(t, text)
		out := bench(t, file, "--random-weights")
		if _, why, ok := strings.Cut(out, "not compared with the TapeMachine: "); !ok || !regexp.MustCompile(want).MatchString(why) {
			t.Errorf("%s:\n%s", text, out)
		}
	}
	if out := bench(t, path, "--random-weights"); !strings.Contains(out, "not compared with the TapeMachine: ") {
		t.Errorf("report:\n%s", out)
	}
	clitest.Bad(t, clitest.FusecRun(t, append([]string{"bench", path, "--baseline", filepath.Join(t.TempDir(), "b.json")},
		clitest.Quick...)...), cli.ExitFailure, "no ratio for the baseline")
}

// training is a file that asks for what rest says of w, the costs y and z, the seed s and a value v between.
func training(t *testing.T, rest string) string {
	return graphtest.File(t, "training.graph", `fusec graph 2 {
  w = param : f32[3,4]
  s = input : f32[]
  v = unary[fn=tanh] w
  y = reduce[fn=mean axes=[0,1] keep=false] v
  z = reduce[fn=sum axes=[0,1] keep=false] w
  `+rest+`
}
`)
}

// TestBenchTraining races gradients against gorgonia.Grad, and steps of each rule against Gorgonia's solvers.
func TestBenchTraining(t *testing.T) {
	for _, rest := range []string{
		"output y = y\n  gradient d = y by w",
		"output y = y\n  optimiser sgd[rate=0.1]\n  step w = y",
		"output y = y\n  optimiser momentum[rate=0.1 mu=0.9]\n  step w = y",
		"output y = y\n  gradient d = y by w\n  optimiser adam[rate=0.1 clip=1]\n  step w = y",
		"output y = y\n  optimiser adamw[rate=0.1 decay=0.01]\n  step w = y",
	} {
		out := bench(t, training(t, rest), "--random-weights")
		_, far, ok := strings.Cut(out, "outputs differ by ")
		far, _, _ = strings.Cut(far, "\n")
		if d, err := strconv.ParseFloat(far, 64); !ok || err != nil || d > 1e-5 {
			t.Errorf("%s: the outputs differ by %q:\n%s", rest, far, out)
		}
	}
}

// Gorgonia's machine ends the process on a value without elements, so such a model is measured alone.
func TestBenchWithoutElements(t *testing.T) {
	path := graphtest.File(t, "m.graph", `fusec graph 1 {
  x = input : f32[0,4]
  w = input : f32[4,2]
  y = matmul x w
  output y = y
}
`)
	if out := bench(t, path); !strings.Contains(out, "not compared with the TapeMachine: ") ||
		!strings.Contains(out, "without elements") {
		t.Errorf("report:\n%s", out)
	}
}

func TestBenchBaseline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "speed.json")
	if out := bench(t, "matmul", "--sizes", "8,4x8x16", "--baseline", path); strings.Count(out, "now the baseline") != 2 {
		t.Errorf("report:\n%s", out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := parseBaseline(text)
	if err != nil || len(b.Entries) != 2 {
		t.Fatalf("%+v, %v", b, err)
	}
	// A baseline that cannot be reached fails the gate, and --update lowers it again.
	for i := range b.Entries {
		b.Entries[i].Ratio *= 1000
	}
	var raised bytes.Buffer
	if err := cli.WriteJSON(&raised, b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raised.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"bench", "matmul", "--sizes", "8,4x8x16", "--baseline", path}, clitest.Quick...)
	r := clitest.FusecRun(t, args...)
	clitest.Bad(t, r, cli.ExitFailure, "slower than the baseline", "matmul 8x8x8", "matmul 4x8x16", "SLOWER")
	if !strings.Contains(r.Out, "GFLOP/s") {
		t.Error("the report is missing")
	}
	clitest.Bad(t, clitest.FusecRun(t, append(args, "--json")...), cli.ExitFailure, "note: matmul 8x8x8", "SLOWER")
	if kept, _ := os.ReadFile(path); !bytes.Equal(kept, raised.Bytes()) {
		t.Error("a loss changed the baseline")
	}
	if out := clitest.Good(t, append(args, "--update")...); strings.Count(out, "the baseline is updated") != 2 {
		t.Errorf("report:\n%s", out)
	}
	if !strings.Contains(bench(t, clitest.Model(t, nil), "--baseline", path), "model mlp, ") {
		t.Error("the model is not judged")
	}
}

func TestBenchMatmul(t *testing.T) {
	out := bench(t, "matmul", "--ladder", "--sizes", "16x8x24,8", "--threads", "2")
	for _, want := range []string{"GFLOP/s", "8x8x8", "16x8x24", "naive", "blocked", "vectorised", "packed", "fusec", "gonum"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if strings.Index(out, " 8x8x8") > strings.Index(out, "16x8x24") {
		t.Error("sizes are not in the order of their work")
	}
	var rep matmulReport
	if err := json.Unmarshal([]byte(bench(t, "matmul", "--sizes", "8", "--json")), &rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Results) != 2 || rep.Results[0].GFLOPs <= 0 || rep.Results[1].Ratio != 1 || rep.Schema != "fusec.matmul/1" {
		t.Errorf("%+v", rep)
	}
}

// A variant that would take too long at a size is left out there.
func TestMatmulSkipsSlowVariants(t *testing.T) {
	rows := []*multiplier{{way: way{name: "naive", threads: 1}}, {way: way{name: "fusec", threads: 2}}}
	rep := &matmulReport{Rounds: 3, Results: []matmulResult{
		{Size: "8x8x8", Name: "naive", GFLOPs: 1}, {Size: "8x8x8", Name: "fusec", GFLOPs: 2}, {Size: "9x9x9", Name: "fusec", GFLOPs: 3},
	}}
	if out := rep.text(rows); !strings.Contains(out, "–\n") || !strings.Contains(out, "would take more than 1 s each") {
		t.Errorf("report:\n%s", out)
	}
}

func TestParseSizes(t *testing.T) {
	got, err := parseSizes("256, 2x3x4")
	if err != nil || !reflect.DeepEqual(got, []size{{256, 256, 256}, {2, 3, 4}}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", "x", "1x2", "1x2x3x4", "-3", "1,,2", "99999999"} {
		if _, err := parseSizes(s); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

func TestRaceStopsAtErrors(t *testing.T) {
	calls := 0
	late := Contestant{"late", func() error {
		if calls++; calls > warmRuns+1 {
			return errors.New("no more")
		}
		return nil
	}}
	for range 2 { // while it warms up, and afterwards
		if _, err := Race(context.Background(), []Contestant{late}, 3, 0.01, func(int) {}); err == nil || err.Error() != "late: no more" {
			t.Errorf("error %v", err)
		}
	}
}

func TestBenchAttention(t *testing.T) {
	out := bench(t, "attention", "--seq", "40,8", "--heads", "2", "--dim", "8", "--causal")
	for _, want := range []string{"causal attention, 2 heads of 8, float32 on ", "of the GEMM's", "scratch"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if eight, forty := strings.Index(out, "\n     8 "), strings.Index(out, "\n    40 "); eight < 0 || forty < eight {
		t.Errorf("the lengths are not listed in order:\n%s", out)
	}
	var rep attentionReport
	if err := json.Unmarshal([]byte(bench(t, "attention", "--seq", "16", "--json", "--threads", "2")), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Schema != "fusec.attention/1" || rep.Heads != 8 || rep.Dim != 64 || rep.Causal || len(rep.Results) != 1 {
		t.Fatalf("%+v", rep)
	}
	if r := rep.Results[0]; r.Seq != 16 || r.Name != "fusec" || r.Threads != 2 || r.GFLOPs <= 0 || r.GEMM <= 0 || r.Share <= 0 ||
		r.Scratch <= 0 || r.BestNS <= 0 || r.BestNS > r.MedianNS {
		t.Errorf("%+v", r)
	}
	out = bench(t, "attention", "--seq", "30", "--heads", "1", "--dim", "4", "--ladder")
	for _, variant := range ladders.Attention {
		if !strings.Contains(out, variant.Name) || !strings.Contains(out, variant.Doc) {
			t.Errorf("lacks the variant %s:\n%s", variant.Name, out)
		}
	}
}

// A variant that would take too long is left out, and the reader told.
func TestAttentionLadderText(t *testing.T) {
	rep := &attentionReport{Rounds: 3, Results: []attentionResult{{Seq: 8, Name: "naive", GFLOPs: 1},
		{Seq: 8, Name: "fusec", GFLOPs: 2}, {Seq: 9, Name: "fusec", GFLOPs: 3}}}
	out := rep.ladder([]*attender{{way: way{"naive", "slow", 1, 0}}, {way: way{"fusec", "fast", 2, 0}}})
	if !strings.Contains(out, "would take more than 1 s each") || !strings.Contains(out, "3.00") || strings.Count(out, "–") != 2 {
		t.Errorf("%s", out)
	}
}

func TestAttentionFLOPs(t *testing.T) {
	a := attentionShape{heads: 3, dim: 5}
	if got := a.flops(7); got != 4*49*15 {
		t.Errorf("full: %v", got)
	}
	if a.causal = true; a.flops(7) != 4*28*15 || a.subject(7) != "attention 7x3x5 causal" {
		t.Errorf("causal: %v, %s", a.flops(7), a.subject(7))
	}
}

func TestDifference(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		x, y []float64
		want float64
	}{
		{[]float64{1, 2}, []float64{1, 2}, 0},
		{[]float64{1, 2.5}, []float64{1, 2}, 0.25},
		{[]float64{nan, inf, 1}, []float64{nan, inf, 1}, 0},
		{[]float64{0, 0}, []float64{0, 0}, 0},
		{[]float64{1}, []float64{0}, inf},
		{[]float64{1}, []float64{1, 2}, inf},
	} {
		if got := Difference(c.x, c.y); got != c.want {
			t.Errorf("difference(%v, %v) is %v, want %v", c.x, c.y, got, c.want)
		}
	}
	if got := Difference([]float64{nan}, []float64{1}); !math.IsNaN(got) {
		t.Errorf("NaN against a number differs by %v", got)
	}
	rep := benchReport{Results: []benchResult{{}}, Ratio: &benchRatio{Peer: tapeName, Difference: cli.Number(nan)}}
	if !strings.Contains(rep.text(), "computed something else") {
		t.Error("a wrong rival is not named")
	}
}

// Every workload gives the right answer.
func TestPeerProtocol(t *testing.T) {
	for _, w := range workload.All() {
		if w.FLOPs > 5e9 || testing.Short() && w.FLOPs > 5e8 { // the same graph in a smaller size is there
			continue
		}
		var rec PeerRecord
		out := clitest.Good(t, "bench", "--peer-protocol", w.Name, "2", "0.001")
		if err := json.Unmarshal([]byte(out), &rec); err != nil || strings.Count(out, "\n") != 1 {
			t.Fatalf("%q: %v", out, err)
		}
		if rec.Error != "" || rec.Unsupported != "" {
			t.Errorf("%s: %s%s", w.Name, rec.Error, rec.Unsupported)
			continue
		}
		if !w.Right(rec.Checksum) || rec.Peer != "fusec" || rec.Workload != w.Name || rec.Threads != 2 || rec.Reps < peerRuns ||
			!(rec.MedianMS > 0 && rec.BestMS <= rec.MedianMS && rec.FirstMS > 0 && rec.GFLOPs > 0) {
			t.Errorf("%s: %+v", w.Name, rec)
		}
	}
	if out := clitest.Good(t, "bench", "--peer-protocol", "juggling", "1", "1"); !strings.Contains(out,
		`"unsupported":"fusec does not know the workload \"juggling\""`) {
		t.Errorf("record %s", out)
	}
	if _, _, _, err := workloadGraph(workload.Workload{Name: "juggling"}, graph.F32); err == nil {
		t.Error("an unknown workload has a graph")
	}
}
