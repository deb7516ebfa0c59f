package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fusec/cmd/peers/workload"
)

// fake is a --with command that answers like a contestant: with its name and median, and the right checksum of
// gemm-256 and of mlp unless told another one.
func fake(t *testing.T, name string, median float64, checksum string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	script := "#!/bin/sh\n" + `echo "warming up"
case $1 in
gemm-256) sum=28.1958487;;
mlp) sum=0.475572;;
*) printf '{"peer":"` + name + `","workload":"%s","threads":%s,"unsupported":"not mine"}\n' "$1" "$2"; exit 0;;
esac
`
	if checksum != "" {
		script += "sum=" + checksum + "\n"
	}
	script += fmt.Sprintf(`printf '{"peer":"%s","version":"1","workload":"%%s","threads":%%s,"median_ms":%v,"best_ms":%v,"gflops":1,`+
		`"reps":9,"first_ms":3,"rss_mb":2,"checksum":%%s}\n' "$1" "$2" "$sum"`+"\n",
		name, median, median/2)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func peers(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = command(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestRunFakes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "out.json")
	code, out, errs := peers(t, "run", "--dir", dir, "--only", "none", "--workloads", "gemm-256,mlp,block", "--threads", "1,2",
		"--rounds", "2", "--json", file, "--with", fake(t, "slow", 3, ""), "--with", fake(t, "fusec", 2, ""))
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{"gemm-256, 1 thread\n", "mlp, 2 threads\n", "× fusec", "1.50", "1.00", "right"} {
		if !strings.Contains(out, want) {
			t.Errorf("the table has no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "block") {
		t.Errorf("a workload that nobody supports is in the table:\n%s", out)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rep report
	if err := json.Unmarshal(b, &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Baseline != "fusec" || len(rep.Results) != 8 || len(rep.Records) != 16 || len(rep.Failures) != 4 {
		t.Fatalf("baseline %s, %d results, %d records, %d failures", rep.Baseline, len(rep.Results), len(rep.Records), len(rep.Failures))
	}
	// Interleaved: slow, fusec, slow, fusec.
	for i, r := range rep.Records {
		if want := []string{"slow", "fusec"}[i%2]; r.Peer != want {
			t.Errorf("record %d is of %s, want %s", i, r.Peer, want)
		}
	}
	r := rep.Results[0]
	if r.Peer != "slow" || r.Ratio != 1.5 || math.Abs(r.GFLOPs-33.554432/3) > 1e-9 || r.BestMS != 1.5 || r.Rounds != 2 || !r.Right {
		t.Errorf("%+v", r)
	}
}

func TestRunOutcomes(t *testing.T) {
	dir := t.TempDir()
	base := []string{"run", "--dir", dir, "--threads", "1", "--rounds", "1", "--quiet", "--workloads", "gemm-256"}
	cases := []struct {
		name string
		args []string
		code int
		says string
	}{
		{"wrong answer", []string{"--only", "none", "--with", fake(t, "a", 1, "28.3")}, exitWrong, "WRONG"},
		{"nobody", []string{"--only", "none"}, exitNothing, "nothing was measured"},
		{"not installed", []string{"--only", "jax"}, exitNothing, "jax is left out"},
		{"one not installed", []string{"--only", "jax", "--with", fake(t, "b", 1, "")}, exitOK, "jax took no part"},
		{"fails", []string{"--only", "none", "--with", "echo oh no >&2; false"}, exitNothing, "oh no"},
		{"no baseline", []string{"--only", "none", "--with", fake(t, "c", 1, ""), "--baseline", "fusec"}, exitFailed,
			"the baseline fusec measured nothing"},
		{"too slow", []string{"--only", "none", "--timeout", "100ms", "--with", "sleep 60; :"}, exitNothing, "no answer within 100ms"},
		{"json to nowhere", []string{"--only", "none", "--with", fake(t, "d", 1, ""), "--json", dir + "/no/file"}, exitFailed,
			"no such file"},
		{"json", []string{"--only", "none", "--with", fake(t, "e", 1, ""), "--json", "-"}, exitOK, `"median_ms": 1`},
	}
	for _, c := range cases {
		start := time.Now()
		code, out, errs := peers(t, append(append([]string{}, base...), c.args...)...)
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s%s", c.name, code, c.code, c.says, out, errs)
		}
		if time.Since(start) > 20*time.Second {
			t.Errorf("%s: took %v", c.name, time.Since(start))
		}
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := command(ctx, []string{"run", "--dir", t.TempDir(), "--only", "none", "--with", fake(t, "a", 1, "")}, &out, &errs)
	if code != exitFailed || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		nil, {"jump"}, {"run", "--only", "nobody"}, {"run", "--threads", "0"}, {"run", "--threads", "x"}, {"run", "--seconds", "-1"},
		{"run", "--seconds", "NaN"}, {"run", "--rounds", "0"}, {"run", "--workloads", "nothing"}, {"run", "--workloads", "x*"},
		{"run", "more"},
		{"run", "--with", " "}, {"run", "--timeout", "0s"}, {"setup", "--rounds", "3"}, {"run", "--nothing"},
	} {
		if code, _, errs := peers(t, args...); code != exitUsage || errs == "" {
			t.Errorf("%v: exit %d: %s", args, code, errs)
		}
	}
	for _, args := range [][]string{{"--help"}, {"run", "--help"}, {"list"}} {
		if code, out, _ := peers(t, args...); code != exitOK || !strings.Contains(out, "workloads") {
			t.Errorf("%v: exit %d: %s", args, code, out)
		}
	}
}

func TestOptions(t *testing.T) {
	o, err := options("run", []string{"--dir", "x", "--only", "jax, torch", "--workloads", "gemm-*,mlp", "--threads", "2,1,2"})
	if err != nil {
		t.Fatal(err)
	}
	if len(o.rivals) != 2 || len(o.workloads) != 6 || fmt.Sprint(o.threads) != "[2 1]" || !filepath.IsAbs(o.dir) {
		t.Errorf("%+v", o)
	}
}

func TestParseRecord(t *testing.T) {
	r, err := parseRecord([]byte("hello\n{\"peer\":\"old\"}\n  {\"peer\":\"p\",\"median_ms\":1.5,\"threads\":2}\nbye\n"))
	if err != nil || r.Peer != "p" || r.MedianMS != 1.5 || r.Threads != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"", "hello", "{", `{"median_ms":"x"}`} {
		if r, err := parseRecord([]byte(bad)); err == nil {
			t.Errorf("%q gave %+v", bad, r)
		}
	}
}

func TestMeasureRefuses(t *testing.T) {
	w, _ := workload.ByName("mlp")
	for _, c := range []struct{ prints, says string }{
		{`{"peer":"p","workload":"block","threads":1,"median_ms":1,"best_ms":1,"reps":1}`, "it answered for block"},
		{`{"peer":"p","workload":"mlp","threads":2,"median_ms":1,"best_ms":1,"reps":1}`, "on 2"},
		{`{"workload":"mlp","threads":1,"median_ms":1,"best_ms":1,"reps":1}`, "no peer"},
		{`{"peer":"p","workload":"mlp","threads":1,"median_ms":0,"best_ms":0,"reps":1}`, "median_ms 0"},
		{`{"peer":"p","workload":"mlp","threads":1,"median_ms":1,"best_ms":2,"reps":1}`, "best_ms 2"},
		{`{"peer":"p","workload":"mlp","threads":1,"median_ms":1,"best_ms":1}`, "reps 0"},
		{`nothing`, "no record"},
	} {
		x := &contestant{name: "x", argv: []string{"sh", "-c", "echo '" + c.prints + "'", "sh"}}
		if _, err := x.measure(t.Context(), w, 1, 0.1, time.Minute); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.prints, err, c.says)
		}
	}
	x := &contestant{name: "x",
		argv: []string{"sh", "-c", `echo '{"peer":"p","workload":"mlp","threads":1,"median_ms":1,"best_ms":1,"reps":1}'; exit 3`, "sh"}}
	if _, err := x.measure(t.Context(), w, 1, 0.1, time.Minute); err == nil || !strings.Contains(err.Error(), "then failed") {
		t.Error(err)
	}
	x = &contestant{name: "x", argv: []string{filepath.Join(t.TempDir(), "absent")}}
	if _, err := x.measure(t.Context(), w, 1, 0.1, time.Minute); err == nil {
		t.Error("an absent program measured something")
	}
}

func TestSum(t *testing.T) {
	w, _ := workload.ByName("mlp")
	rec := func(m, sum float64, variant string) Record {
		return Record{Peer: "p", Workload: "mlp", Threads: 1, MedianMS: m, BestMS: m / 2, FirstMS: m, RSSMB: m, Checksum: sum,
			Variant: variant}
	}
	r := sum([]Record{rec(1, w.Checksum, "a"), rec(4, w.Checksum, "a"), rec(2, w.Checksum, "b")})
	if r.MedianMS != 2 || r.BestMS != 0.5 || r.Spread != 1.5 || r.RSSMB != 4 || !r.Right || r.Variant != "mixed" {
		t.Errorf("%+v", r)
	}
	if r := sum([]Record{rec(1, w.Checksum+1, "a"), rec(1, w.Checksum, "a")}); r.Right {
		t.Error("one wrong round passes")
	}
	if m := median([]float64{4, 1}); m != 2.5 {
		t.Errorf("median of 4 and 1: %v", m)
	}
}

func TestBaseline(t *testing.T) {
	recs := []Record{{Peer: "b", Workload: "mlp", Threads: 1, MedianMS: 3}, {Peer: "a", Workload: "mlp", Threads: 2, MedianMS: 2}}
	for _, c := range []struct{ asked, want string }{{"", "a"}, {"b", "b"}} {
		rep := &report{Records: recs, contestants: []string{"absent", "a", "b"}}
		rep.finish(c.asked)
		if rep.Baseline != c.want {
			t.Errorf("asked for %q: %q, want %q", c.asked, rep.Baseline, c.want)
		}
		for _, r := range rep.Results { // the other one has no baseline on its number of threads
			if (r.Ratio == 1) != (r.Peer == c.want) {
				t.Errorf("%+v", r)
			}
		}
		var b bytes.Buffer
		rep.table(&b)
		if !strings.Contains(b.String(), "–") {
			t.Errorf("no ratio should be shown as a dash:\n%s", b.String())
		}
	}
}

func TestMS(t *testing.T) {
	for v, want := range map[float64]string{0.1234: "0.123", 1.234: "1.23", 12.34: "12.3", 123.4: "123"} {
		if got := ms(v); got != want {
			t.Errorf("ms(%v) = %s, want %s", v, got, want)
		}
	}
}

func TestSetup(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin) // no compiler, no Python
	code, _, errs := peers(t, "setup", "--dir", dir, "--only", "openblas,onnxruntime,onnxruntime-varb")
	if code != exitNothing || !strings.Contains(errs, "apt-get install libopenblas-dev gcc") ||
		!strings.Contains(errs, "python3-venv") {
		t.Errorf("exit %d: %s", code, errs)
	}
	// A compiler that cannot link: the error names the packages, nothing half made stays.
	cc := filepath.Join(bin, "cc")
	if err := os.WriteFile(cc, []byte("#!/bin/sh\necho cannot find -lopenblas\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	code, _, errs = peers(t, "setup", "--dir", dir, "--only", "openblas")
	if code != exitNothing || !strings.Contains(errs, "cannot find -lopenblas (where OpenBLAS is missing: apt-get") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if _, err := os.Stat(kitDir(dir, "openblas")); err == nil {
		t.Error("a failed kit is still there")
	}
	// One that does as it is told.
	if err := os.WriteFile(cc, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := peers(t, "setup", "--dir", dir, "--only", "openblas,jax"); code != exitFailed ||
		!strings.Contains(out, "openblas: installed in") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if code, out, _ := peers(t, "setup", "--dir", dir, "--only", "openblas"); code != exitOK ||
		!strings.Contains(out, "installed already") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	to, err := unpack(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "common.py"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if again, err := unpack(dir); err != nil || again != to {
		t.Fatal(again, err)
	}
	if b, _ := os.ReadFile(filepath.Join(to, "common.py")); string(b) == "changed" {
		t.Error("a changed program stays changed")
	}
	for _, r := range rivals {
		if len(source(r.kit)) == 0 {
			t.Errorf("%s has no source", r.kit)
		}
	}
}
