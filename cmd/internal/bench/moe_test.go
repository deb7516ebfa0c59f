package bench

import (
	"bytes"
	"encoding/json"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tinyMoE are the flags of a mixture that takes no time.
var tinyMoE = []string{"moe", "--experts", "8,2", "--tokens", "20", "--d-model", "8", "--hidden", "12"}

func TestBenchMoE(t *testing.T) {
	var rep mixtureReport
	if err := json.Unmarshal([]byte(bench(t, append(slices.Clone(tinyMoE), "--json", "--threads", "2")...)), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Schema != "fusec.moe/1" || rep.Tokens != 20 || rep.Model != 8 || rep.Hidden != 12 || rep.TopK != 2 || rep.Threads != 2 {
		t.Errorf("%+v", rep)
	}
	want := []mixtureResult{{Name: "moe", Experts: 2}, {Name: "moe", Experts: 8}, {Name: "dense", Experts: 8}, {Name: "gemm"}}
	if len(rep.Results) != len(want) {
		t.Fatalf("%+v", rep.Results)
	}
	for i, r := range rep.Results {
		if r.Name != want[i].Name || r.Experts != want[i].Experts || r.MedianNS <= 0 || r.BestNS > r.MedianNS || r.GFLOPs <= 0 ||
			r.Slower <= 0 || r.Dense <= 0 || r.GEMM <= 0 {
			t.Errorf("%+v", r)
		}
	}
	if r := rep.Results; r[0].Slower != 1 || r[2].Dense != 1 || r[3].GEMM != 1 {
		t.Errorf("%+v", r)
	}
	out := bench(t, append(slices.Clone(tinyMoE), "--top-k", "1", "--baseline", filepath.Join(t.TempDir(), "b.json"))...)
	for _, want := range []string{"mixtures of experts 12 wide, 1 for each of 20 tokens of 8", "time ÷ of 2",
		"dense: all experts compute all tokens", "gemm: products of the same useful FLOPs", "moe 20x8x12 top-1 of 8",
		"now the baseline"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
}

// The drawing has the format that its name asks for, and is left out if there is no place for it.
func TestBenchMoEPlot(t *testing.T) {
	dir := t.TempDir()
	svg, raster := filepath.Join(dir, "moe.svg"), filepath.Join(dir, "moe.PNG")
	bench(t, append(slices.Clone(tinyMoE), "--plot", svg)...)
	bench(t, append(slices.Clone(tinyMoE), "--plot", raster, "--experts", "1", "--top-k", "1")...)
	text, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", "milliseconds", "dense, 8 experts", "20 tokens of 8, top-2 of experts 12 wide"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the drawing lacks %q", want)
		}
	}
	data, err := os.ReadFile(raster)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(data)); err != nil {
		t.Error(err)
	}
	missing := filepath.Join(dir, "none", "moe.svg")
	clitest.Bad(t, clitest.FusecRun(t, append(append([]string{"bench"}, tinyMoE...), "--plot", missing, "--seconds", "0.001",
		"--rounds", "3")...), cli.ExitFailure, "writing "+missing)
}
