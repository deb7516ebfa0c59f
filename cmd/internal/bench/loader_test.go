package bench

import (
	"encoding/json"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/npy"
)

func TestBenchLoader(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	out := bench(t, "loader", "--size", "1MiB")
	for _, want := range []string{
		"1.00 MiB of a file made for this, batches of 256 rows of f32[1024]", "plain read", "in order", "shuffled", "GB/s",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if left := clitest.FileNames(t, tmp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	// An .npy file whose size is a multiple of nothing.
	x, err := graph.TensorOf(make([]float64, 333*7), 333, 7)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.npy")
	if err := npy.WriteFile(path, x); err != nil {
		t.Fatal(err)
	}
	var rep loaderReport
	if err := json.Unmarshal([]byte(bench(t, "loader", path, "--json")), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Schema != "fusec.loader/1" || rep.File != path || rep.Bytes != 128+8*333*7 ||
		rep.Batch != 333 || rep.Row != "f64[7]" {
		t.Errorf("%+v", rep)
	}
	if n := len(rep.Results) + len(rep.Missing); n != 5 || runtime.GOOS == "linux" && len(rep.Results) < 4 {
		t.Errorf("results %+v, missing %q", rep.Results, rep.Missing)
	}
	out = bench(t, "loader", path, "--baseline", filepath.Join(tmp, "b.json"))
	if strings.Count(out, "now the baseline") < 2 {
		t.Errorf("report:\n%s", out)
	}
	for _, r := range rep.Results {
		if r.GBs <= 0 || (r.Peer == "") != (r.Ratio == 0) {
			t.Errorf("%+v", r)
		}
	}
}

func TestBenchLoaderRefuses(t *testing.T) {
	path := graphtest.File(t, "x.bin", "12345")
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"loader " + path, cli.ExitFailure, "5 bytes are not a whole number of rows of 4 bytes"},
		{"loader " + path + "2", cli.ExitFailure, "no such file"},
		{"loader " + path + " --size 1MiB", cli.ExitUsage, "--size is for the file that is made"},
		{"loader --size 1MB", cli.ExitUsage, "want a number of bytes"},
		{"loader --size 0", cli.ExitUsage, "want a number of bytes"},
		{"loader --ladder", cli.ExitUsage, "--ladder is for fusec bench matmul and fusec bench attention"},
		{"matmul --size 1MiB", cli.ExitUsage, "--size is for fusec bench loader"},
		{"loader a b", cli.ExitUsage, "fusec bench loader takes one file, not 2: a, b"},
	} {
		clitest.Bad(t, clitest.FusecRun(t, append([]string{"bench"}, strings.Fields(c.args)...)...), c.code, c.want)
	}
	if _, err := freeSpace(tmp); err == nil {
		r := clitest.FusecRun(t, "bench", "loader", "--size", "4000000TiB")
		clitest.Bad(t, r, cli.ExitFailure, "does not fit into "+tmp, "ask for less with --size")
	}
	if left := clitest.FileNames(t, tmp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	t.Setenv("TMPDIR", filepath.Join(tmp, "none"))
	clitest.Bad(t, clitest.FusecRun(t, "bench", "loader", "--size", "1MiB"), cli.ExitFailure, "no such file")
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int64{"1": 1, "2KiB": 2048, "512MiB": 512 << 20, "3 GiB": 3 << 30, "4TiB": 4 << 40} {
		if got, err := cli.ParseBytes(s); err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "MiB", "-1", "0", "1.5GiB", "1GB", "99999999999TiB"} {
		if n, err := cli.ParseBytes(s); err == nil {
			t.Errorf("%q is %d", s, n)
		}
	}
}
