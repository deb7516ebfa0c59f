package bench

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph/graphtest"
)

// line makes a line of a history.
func line(commit string, hours int, name, unit string, value, spread float64) string {
	r := record{Schema: historySchema, Commit: commit, Time: time.Date(2026, 1, 1, hours, 0, 0, 0, time.UTC),
		Machine: site{CPU: "cpu", Cores: 2, Kernel: "avx2"}, Threads: 2, figure: figure{name, unit, value, spread, 7}}
	src, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(src) + "\n"
}

// TestHistory measures twice into a history, which the report reads and draws.
func TestHistory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "history.jsonl")
	for _, commit := range []string{"aaaa", "bbbb"} {
		bench(t, "matmul", "--sizes", "8", "--threads", "1", "--history", file, "--commit", commit)
	}
	list, err := readHistory(file)
	if err != nil || len(list) != 4 {
		t.Fatalf("%v, %+v", err, list)
	}
	for i, r := range list {
		name, unit := "matmul 8x8x8", unitTime
		if i%2 == 1 {
			name, unit = name+" against gonum", unitRatio
		}
		if r.Name != name || r.Unit != unit || r.Commit != []string{"aaaa", "bbbb"}[i/2] || r.Rounds != 3 || r.Threads != 1 ||
			r.Machine.CPU != cli.ThisMachine().CPU ||
			time.Since(r.Time) > time.Hour {
			t.Errorf("line %d: %+v", i+1, r)
		}
	}
	var rep historyReport
	if err := json.Unmarshal([]byte(clitest.Good(t, "bench", "report", file, "--json")), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Runs != 2 || rep.Commits != 2 || len(rep.Figures) != 2 || len(rep.Figures[0].Runs) != 2 {
		t.Errorf("%+v", rep)
	}
	// A model without a rival, and what an overlay counts.
	wide := graphtest.File(t, "wide.graph", clitest.Wide)
	bench(t, wide, "--random-weights", "--no-gorgonia", "--history", file, "--commit", "cccc")
	bench(t, wide, "--random-weights", "--target", "fpga", "--link", "model", "--history", file, "--commit", "cccc")
	bench(t, wide, "--random-weights", "--levels", "--history", file, "--commit", "cccc")
	out := clitest.Good(t, "bench", "report", file)
	for _, want := range []string{"of 3 commits", "model wide ", "model wide on the overlay sim8", "cycles",
		"wide on cpu, 2 threads: op by op"} {
		if !strings.Contains(strings.ReplaceAll(out, "1 thread:", "2 threads:"), want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
}

// TestHistoryDrawing draws a history with a change, and names that mean something in XML.
func TestHistoryDrawing(t *testing.T) {
	text := ""
	for i := range 8 {
		v := 10.0
		if i >= 5 {
			v = 13
		}
		text += line(fmt.Sprintf("commit%d", i), i, "a <b> & \x1b[2J", unitTime, v, 0.01)
		text += line(fmt.Sprintf("commit%d", i), i, "steady", unitRatio, 5, 0.02) +
			line(fmt.Sprintf("commit%d", i), i, "odd unit", "\x1b[2J", 5, 0.02)
	}
	file := graphtest.File(t, "history.jsonl", text)
	for _, ext := range reportFormats {
		drawn := filepath.Join(t.TempDir(), "history"+ext)
		out := clitest.Good(t, "bench", "report", file, "-o", drawn)
		for _, want := range []string{"1 change beyond noise", "+30.0 %", "WORSE", "commit4", "commit5", `\x1b[2J`} {
			if !strings.Contains(out, want) {
				t.Errorf("lacks %q:\n%s", want, out)
			}
		}
		src, err := os.ReadFile(drawn)
		if err != nil {
			t.Fatal(err)
		}
		page := string(src)
		for _, want := range []string{"a &lt;b&gt; &amp; ", "▲ +30.0 %", "WORSE", "steady", "more is better", "commit7"} {
			if !strings.Contains(page, strings.ReplaceAll(want, "+", "&#43;")) && !strings.Contains(page, want) {
				t.Errorf("%s lacks %q", ext, want)
			}
		}
		for _, bad := range []string{"<b>", "\x1b", "src=", "href=", "url(", "ZgotmplZ"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s has %q", ext, bad)
			}
		}
		if ext == ".svg" {
			d := xml.NewDecoder(strings.NewReader(page))
			for {
				if _, err := d.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestChanges finds steps in noise, between the right runs, and nothing where there is nothing.
func TestChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	runs := func(noise float64, levels ...float64) *series {
		text := ""
		for i, v := range levels {
			text += line(fmt.Sprint("c", i), i, "x", unitTime, v*(1+noise*(2*r.Float64()-1)), noise)
		}
		list, err := parseHistory(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return byFigure(list)[0]
	}
	for _, c := range []struct {
		name   string
		noise  float64
		levels []float64
		at     []int
	}{
		{"one run", 0.02, []float64{1}, nil},
		{"two alike", 0.02, []float64{1, 1}, nil},
		{"two that differ", 0.02, []float64{1, 1.3}, []int{1}},
		{"steady", 0.03, []float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, nil},
		{"a step", 0.03, []float64{1, 1, 1, 1, 1, 1.3, 1.3, 1.3, 1.3}, []int{5}},
		{"a small step in little noise", 0.01, []float64{1, 1, 1, 1, 1.15, 1.15, 1.15, 1.15}, []int{4}},
		{"a small step in much noise", 0.15, []float64{1, 1, 1, 1, 1.15, 1.15, 1.15, 1.15}, nil},
		{"there and back", 0.02, []float64{1, 1, 1, 1, 0.6, 0.6, 0.6, 0.6, 1, 1, 1, 1}, []int{4, 8}},
		{"one disturbed run", 0.02, []float64{1, 1, 1, 1, 1.9, 1, 1, 1, 1, 1}, nil},
	} {
		s := runs(c.noise, c.levels...)
		var at []int
		for _, x := range s.Changes {
			at = append(at, x.At)
			if x.After != fmt.Sprint("c", x.At-1) || x.Commit != fmt.Sprint("c", x.At) || x.Worse != (c.levels[x.At] > c.levels[x.At-1]) ||
				(x.Part > 0) != x.Worse {
				t.Errorf("%s: %+v", c.name, x)
			}
		}
		if fmt.Sprint(at) != fmt.Sprint(c.at) {
			t.Errorf("%s: changes at %v, want %v: %+v", c.name, at, c.at, s)
		}
	}
	if s := runs(0, make1s(3*maxRuns)...); len(s.Runs) != maxRuns {
		t.Errorf("%d runs are looked at", len(s.Runs))
	}
}

func make1s(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

func TestBadHistory(t *testing.T) {
	good := line("c", 0, "x", unitTime, 1, 0)
	for text, want := range map[string]string{
		good + "{\n":  "line 2: this is no history of fusec bench: ",
		good + "{}\n": `line 2: this is no history of fusec bench: its schema is "", not "fusec.history/1"`,
		good + good + strings.Replace(good, "history/1", "history/2",
			1): "line 3: it was written as fusec.history/2, and this version of fusec reads fusec.history/1",
		strings.TrimSuffix(good, "\n"):                          "line 1 is cut off",
		strings.Replace(good, `"load"`, `"weight"`, 1):          `line 1: json: unknown field "weight"`,
		strings.Replace(good, `"value":1`, `"value":-1`, 1):     "line 1: value -1",
		strings.Replace(good, `"rounds":7`, `"rounds":0`, 1):    "line 1: 0 rounds",
		strings.Replace(good, `"commit":"c"`, `"commit":""`, 1): "line 1: it lacks its commit",
		good + strings.Repeat("x", maxLine+1):                   "line 2 is longer than 64.0 KiB",
	} {
		path := graphtest.File(t, "h.jsonl", text)
		clitest.Bad(t, clitest.FusecRun(t, "bench", "report", path), cli.ExitFailure, "h.jsonl: "+want)
		r := clitest.FusecRun(t, "bench", "matmul", "--sizes", "8", "--history", path, "--commit", "c")
		clitest.Bad(t, r, cli.ExitFailure, "h.jsonl: "+want)
		if after, _ := os.ReadFile(path); string(after) != text || r.Out != "" {
			t.Errorf("it measured, or changed the file, before it said %q", want)
		}
	}
	empty := graphtest.File(t, "h.jsonl", "")
	for want, args := range map[string][]string{
		"--history: this build does not tell its commit":        {"matmul", "--history", empty},
		"which history? Give the file":                          {"report"},
		"--commit is for --history":                             {"matmul", "--commit", "c"},
		"want a name that ends in .svg or .html":                {"report", empty, "-o", "x.png"},
		"--quick and --only are for fusec bench all":            {"matmul", "--quick"},
		"--cpu-time requires --threads 1":                       {"matmul", "--cpu-time", "--threads", "2"},
		"--history and --baseline are not for fusec bench repo": {"report", empty, "--history", empty},
		"fusec bench all times the CPU":                         {"all", "--target", "cuda"},
		`unknown suite "matmull"`:                               {"all", "--only", "matmull"},
	} {
		clitest.Bad(t, clitest.FusecRun(t, append([]string{"bench"}, args...)...), cli.ExitUsage, want)
	}
	clitest.Bad(t, clitest.FusecRun(t, "bench", "report", empty), cli.ExitFailure, "is empty")
	clitest.Bad(t, clitest.FusecRun(t, "bench", "report", "none.jsonl"), cli.ExitFailure, "none.jsonl")
	clitest.Bad(t, clitest.FusecRun(t, "bench", "all", "none.graph"), cli.ExitFailure, "none.graph")
	clitest.Bad(t, clitest.FusecRun(t, "bench", "matmul", "--sizes", "8", "--seconds", "0.001", "--rounds", "3", "--history",
		clitest.FullDisk(t), "--commit", "c"), cli.ExitFailure, "/dev/full")
}

// TestBenchAll runs suites and a model, and keeps their figures; a suite that fails does not end the others.
func TestBenchAll(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h.jsonl")
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	path := clitest.Model(t, nil)
	args := append([]string{"bench", "all", path, "--quick", "--only", "networks,loader", "--json", "--history", file, "--commit",
		"c"}, clitest.Quick...)
	r := clitest.FusecRun(t, args...)
	if r.Code != cli.ExitFailure || !strings.Contains(r.Stderr, "fusec: loader: ") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	var rep allReport
	if err := json.Unmarshal([]byte(r.Out), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Schema != "fusec.bench.all/1" || rep.Rounds != 3 || len(rep.Suites) != 3 || rep.Suites[1].Error == "" ||
		len(rep.Figures) != 2*(len(zooNetworks)+1) {
		t.Errorf("%+v", rep)
	}
	if list, err := readHistory(file); err != nil || len(list) != len(rep.Figures) {
		t.Errorf("%d lines for %d figures: %v", len(list), len(rep.Figures), err)
	}
	if out := clitest.FusecRun(t, append([]string{"bench", "all", "--quick", "--only", "attention,causal"},
		clitest.Quick...)...).Out; !strings.Contains(out, "full attention") ||
		!strings.Contains(out, "causal attention") || !strings.Contains(out, "8 figures in ") {
		t.Error(out)
	}
}

// stopping ends a run at its first output.
type stopping struct{ stop context.CancelFunc }

func (s stopping) Write(p []byte) (int, error) {
	s.stop()
	return len(p), nil
}

// TestBenchAllInterrupted keeps the figures of the suites that had ended.
func TestBenchAllInterrupted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h.jsonl")
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	args := append([]string{"bench", "all", "--quick", "--only", "attention,causal", "--history", file, "--commit", "c"},
		clitest.Quick...)
	if code := cli.RunCommandLine(ctx, clitest.TestedCommands, args, strings.NewReader(""), stopping{stop},
		io.Discard); code == cli.ExitOK {
		t.Error("an interrupted run reports success")
	}
	if list, err := readHistory(file); err != nil || len(list) != 4 {
		t.Errorf("%d figures, want those of full attention: %v", len(list), err)
	}
}

// TestTraining compares the gradients of both machines before it times them.
func TestTraining(t *testing.T) {
	for _, n := range zooNetworks {
		if n.name != "digits-mlp" {
			continue
		}
		b := &bencher{rounds: 3, seconds: 0.01}
		b.compile.Threads = 1
		rep := &networkReport{}
		x, err := b.raceNetwork(&cli.Env{Ctx: t.Context(), Stderr: io.Discard}, rep, n, true, b.progress(&cli.Env{Stderr: io.Discard}))
		if err != nil || x.Subject != "training of digits-mlp" || !(x.Ratio > 0) || len(rep.Results) != 1 ||
			!strings.Contains(rep.text(true), "all gradients bound") {
			t.Errorf("%v, %+v", err, x)
		}
	}
}

// The gate measures again what is lower, with all rounds together, and a loss of 30 % stays one.
func TestGateTries(t *testing.T) {
	timing := func(seconds ...float64) Timing {
		return Timing{rounds: seconds, fast: seconds, Best: seconds[0], runs: len(seconds)}
	}
	suiteOf := func(own ...[]float64) (suite, *int) {
		tries := 0
		return suite{"s", func(*bencher, *cli.Env) (*outcome, error) {
			tries++
			return &outcome{entries: []entry{newEntry("s", "rival", 1, timing(own[min(tries, len(own))-1]...), timing(10, 10.2, 10.1), 1)}},
				nil
		}}, &tries
	}
	g := &gate{path: filepath.Join(t.TempDir(), "b.json"), least: leastOfAll}
	g.file = baseline{Schema: baselineSchema,
		Entries: []entry{newEntry("s", "rival", 1, timing(1, 1.01, 1.02), timing(10, 10.2, 10.1), 1)}}
	quiet, disturbed, lost := []float64{1, 1.01, 1.01}, []float64{1.5, 1.6, 1.5}, []float64{1 / 0.7, 1.01 / 0.7, 1 / 0.7}
	for _, c := range []struct {
		name  string
		own   [][]float64
		tries int
		want  state
	}{
		{"as before", [][]float64{quiet}, 1, kept},
		{"disturbed once", [][]float64{disturbed, quiet}, 2, kept},
		{"disturbed twice", [][]float64{disturbed, disturbed, quiet}, 3, kept},
		{"a loss of 30 %", [][]float64{lost}, tries, lower},
	} {
		s, tried := suiteOf(c.own...)
		o, err := (&bencher{}).sure(&cli.Env{Ctx: t.Context()}, s, g)
		if err != nil {
			t.Fatal(err)
		}
		v, err := g.judge(o.entries)
		if err != nil || *tried != c.tries || v[0].state != c.want {
			t.Errorf("%s: %d tries, %v, %v", c.name, *tried, v, err)
		}
	}
	failing := suite{"s", func(*bencher, *cli.Env) (*outcome, error) { return nil, errors.New("no") }}
	if _, err := (&bencher{}).sure(&cli.Env{Ctx: t.Context()}, failing, g); err == nil {
		t.Error("an error is lost")
	}
}

// A loss of 30 % in what is measured is one for the gate: fusec's work against a rival's, with a part of it done again.
func TestPlantedLoss(t *testing.T) {
	if restore, err := byProcessors(); err == nil { // other tests run at the same time
		defer restore()
	}
	work := func(name string, times int) Contestant {
		return Contestant{name, func() error {
			x := uniform(1, 1)[0]
			for range times * 100_000 {
				x = x*x - 0.5
			}
			if x > 1 {
				return errors.New("the work was left out")
			}
			return nil
		}}
	}
	measure := func(own int) entry {
		times, err := Race(t.Context(), []Contestant{work("fusec", own), work("rival", 20)}, 5, 0.05, func(int) {})
		if err != nil {
			t.Fatal(err)
		}
		return newEntry("s", "rival", 1, times[0], times[1], 1)
	}
	was, same, lost := measure(7), measure(7), measure(10)
	if v := compare(same, was, leastOfAll); v.state == lower {
		t.Errorf("without a loss: %v", v)
	}
	if v := compare(lost, was, leastOfAll); v.state != lower {
		t.Errorf("with a loss: %v", v)
	}
}
