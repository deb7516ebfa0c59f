package bench

import (
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph/graphtest"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// measured makes an entry as a measurement would.
func measured(ratio, noise float64) entry {
	return entry{Subject: "model m", Peer: "rival", Threads: 2, Ratio: ratio, Noise: noise, Rounds: 7, CPU: "cpu", Kernel: "avx2"}
}

func TestCompare(t *testing.T) {
	elsewhere := measured(10, 0.01)
	elsewhere.CPU = "another"
	for _, c := range []struct {
		name     string
		now, was entry
		want     state
	}{
		{"equal", measured(10, 0.01), measured(10, 0.01), kept},
		{"quiet and a little lower", measured(9.6, 0), measured(10, 0), kept},
		{"quiet and lower", measured(9.4, 0), measured(10, 0), lower},
		{"quiet and higher", measured(10.6, 0), measured(10, 0), higher},
		{"lower within the noise", measured(9, 0.03), measured(10, 0.03), kept},
		{"lower beyond the noise", measured(8.6, 0.03), measured(10, 0.03), lower},
		{"only the old one was noisy", measured(8.6, 0), measured(10, 0.05), kept},
		{"half, however noisy", measured(4.9, 3), measured(10, 3), lower},
		{"another machine, lower", measured(7.5, 0.01), elsewhere, kept},
		{"another machine, much lower", measured(4.9, 0.01), elsewhere, lower},
	} {
		if v := compare(c.now, c.was, leastAllowance); v.state != c.want {
			t.Errorf("%s: %v", c.name, v)
		}
	}
}

func TestGate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "speed.json")
	judge := func(update bool, e entry) verdict {
		t.Helper()
		g, err := openGate(path, update)
		if err != nil {
			t.Fatal(err)
		}
		v, err := g.judge([]entry{e})
		if err != nil {
			t.Fatal(err)
		}
		return v[0]
	}
	text := func() string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if v := judge(false, measured(10, 0.01)); v.state != added || v.String() != "model m, 2 threads: 10.0× rival, now the baseline" {
		t.Error(v)
	}
	first := text()
	if v := judge(false, measured(7, 0.01)); v.state != lower ||
		v.String() != "model m, 2 threads: 7.00× rival (baseline 10.0×, -30.0 %, noise allows ±5.0 %): SLOWER" {
		t.Error(v)
	}
	if v := judge(false, measured(13, 0.01)); v.state != higher || !strings.HasSuffix(v.String(), ": faster") {
		t.Error(v)
	}
	if text() != first {
		t.Error("a comparison changed the file")
	}
	if v := judge(true, measured(7, 0.01)); v.state != updated || !strings.HasSuffix(v.String(), ": the baseline is updated") {
		t.Error(v)
	}
	if v := judge(false, measured(7, 0.01)); v.state != kept || !strings.HasSuffix(v.String(), ": as before") {
		t.Error(v)
	}
	// What the file lacks is added to it, and another machine's entry stays beside this one's.
	other := measured(20, 0)
	other.Threads = 1
	if v := judge(false, other); v.state != added {
		t.Error(v)
	}
	elsewhere := measured(8, 0)
	elsewhere.CPU = "another"
	if v := judge(false, elsewhere); v.state != kept || !strings.Contains(v.String(), "kept on another machine, cpu avx2") {
		t.Error(v)
	}
	if v := judge(true, elsewhere); v.state != updated {
		t.Error(v)
	}
	b, err := parseBaseline([]byte(text()))
	if err != nil || len(b.Entries) != 3 || b.Entries[0].Threads != 1 || b.Entries[1].CPU != "another" {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestGateRefusesNonsense(t *testing.T) {
	for _, ratio := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		g := &gate{path: filepath.Join(t.TempDir(), "x")}
		if _, err := g.judge([]entry{measured(ratio, 0)}); err == nil {
			t.Errorf("a ratio of %v is taken", ratio)
		}
	}
}

func TestBadBaseline(t *testing.T) {
	const entry = `{"subject":"s","peer":"p","threads":1,"ratio":2,"noise":0,"rounds":3,"cpu":"c","kernel":"k"}`
	for text, want := range map[string]string{
		"":                                 "EOF",
		"{":                                "unexpected EOF",
		"[]":                               "cannot unmarshal",
		`{"schema":"x","entries":[]}`:      `its schema is "x"`,
		`{"schema":"fusec.baseline/1"} {}`: "something follows the end",
		`{"schema":"fusec.baseline/1","extra":1}`:                               `unknown field "extra"`,
		`{"schema":"fusec.baseline/1","entries":[` + entry + "," + entry + `]}`: "s is there twice",
		`{"schema":"fusec.baseline/1","entries":[{"subject":"s"}]}`: "lacks its subject, peer " +
			"or threads",
		strings.Replace(`{"schema":"fusec.baseline/1","entries":[`+entry+`]}`, `"ratio":2`, `"ratio":-2`, 1): "the ratio is -2",
		strings.Replace(`{"schema":"fusec.baseline/1","entries":[`+entry+`]}`, `"noise":0`, `"noise":-1`, 1): "the noise is -1",
	} {
		path := graphtest.File(t, "speed.json", text)
		r := clitest.FusecRun(t, "bench", "matmul", "--sizes", "8", "--baseline", path)
		clitest.Bad(t, r, cli.ExitFailure, "speed.json is no baseline of fusec bench: ", want)
		if r.Out != "" {
			t.Error("it measured before it looked")
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "bench", "matmul", "--sizes", "8", "--baseline", t.TempDir()), cli.ExitFailure,
		"reading the baseline")
}

func TestRound(t *testing.T) {
	for x, want := range map[float64]float64{0: 0, 12.34567: 12.35, 0.00123456: 0.001235, 98765: 98770, math.Inf(1): math.Inf(1)} {
		if got := round(x); math.Abs(got-want) > 1e-12*want {
			t.Errorf("round(%v) is %v", x, got)
		}
	}
}

func TestStatistics(t *testing.T) {
	if m := Median([]float64{3, 1, 2}); m != 2 {
		t.Error(m)
	}
	if m := Median([]float64{4, 1, 2, 3}); m != 2.5 {
		t.Error(m)
	}
	if m := Median(nil); !math.IsNaN(m) {
		t.Error(m)
	}
	// One disturbed round does not count; more rounds make it surer.
	quiet := []float64{10, 10.1, 9.9, 10, 10.1, 9.9, 10}
	if u := uncertainty(append([]float64{100}, quiet...)); !(u > 0 && u < 0.02) {
		t.Error(u)
	}
	if few, many := uncertainty(quiet), uncertainty(append(quiet, quiet...)); !(many < few) {
		t.Error(few, many)
	}
	if u := uncertainty([]float64{5, 5, 5}); u != 0 {
		t.Error(u)
	}
	a, b := Timing{rounds: []float64{2, 4, 6}}, Timing{rounds: []float64{1, 2, 2}}
	if r := Ratios(a, b); r[0] != 2 || r[1] != 2 || r[2] != 3 {
		t.Error(r)
	}
	if s := a.Spread(); s != 1 {
		t.Error(s)
	}
}
