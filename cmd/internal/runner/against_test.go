package runner

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/npy"
)

// TestRunAgainst compares a run that is right, one in integers of 8 bits, and one of the reference itself.
func TestRunAgainst(t *testing.T) {
	path := clitest.Model(t, nil)
	rep := runJSON(t, path, "--against", "ref")
	if a := rep.Against; a == nil || len(a.Launches) != rep.Launches || len(a.Outputs) != len(rep.Outputs) || a.err() != nil {
		t.Errorf("a run on the CPU against the reference: %+v", rep.Against)
	}
	if text := clitest.Good(t, "run", path, "--against", "ref"); !strings.Contains(text, "all within the bound; ") {
		t.Errorf("the report does not say that all is well:\n%s", text)
	}
	if a := runJSON(t, path, "--target", "ref", "--against", "ref").Against; a.Launches[0].Worst > 0.01 {
		t.Errorf("the reference departs from itself by more than the rounding of f32: %+v", a.Launches[0])
	}
	path = graphtest.File(t, "wide.graph", clitest.Wide)
	r := clitest.FusecRun(t, "run", path, "--random-weights", "--target", "fpga", "--link", "model", "--against", "ref")
	clitest.Bad(t, r, cli.ExitFailure, "2 launches and 1 output depart from the reference by more than the bound")
	if !strings.Contains(r.Out, "out of bounds:") || !strings.Contains(r.Out, "of 4096") {
		t.Errorf("the report does not list what departs:\n%s", r.Out)
	}
	clitest.Bad(t, clitest.FusecRun(t, "run", path, "--against", "cpu"), cli.ExitUsage, `unknown reference "cpu"; choose ref`)
}

// TestRunAgainstWinograd compares a convolution that copies its image by Winograd's algorithm. The image has numbers of very
// different sizes, so that the error is larger than the terms of some elements. Without the algorithm nothing departs.
func TestRunAgainstWinograd(t *testing.T) {
	path := graphtest.File(t, "copies.graph", `fusec graph 1 "copies" {
  x = input : f32[1,16,12,12]
  w = param : f32[16,16,3,3]
  y = conv2d[stride=[1,1] dilation=[1,1] pad=[1,1,1,1] groups=1] x w : f32[1,16,12,12]
  output y = y
}
`)
	x, w := graph.NewTensor(graph.TypeOf(graph.F32, 1, 16, 12, 12)), graph.NewTensor(graph.TypeOf(graph.F32, 16, 16, 3, 3))
	for i := range x.Type.Shape.Elems() {
		x.SetFloat(i, math.Pow(10, float64(i%7))*math.Sin(float64(i)))
	}
	for c := range 16 {
		w.SetFloat((c*16+c)*9+4, 1)
	}
	folder := filepath.Dir(path)
	g, err := graph.LoadGraph(path)
	if err == nil {
		err = graph.Save(path, g, map[string]*graph.Tensor{"w": w})
	}
	if err != nil {
		t.Fatal(err)
	}
	in := filepath.Join(folder, "x.npy")
	f, err := os.Create(in)
	if err == nil {
		err = errors.Join(npy.Write(f, x), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	rep := runJSON(t, path, "--in", "x="+in, "--against", "ref")
	if a := rep.Against; a.err() != nil || a.Outputs[0].Worst == 0 {
		t.Errorf("%+v", a)
	}
	if a := runJSON(t, path, "--in", "x="+in, "--against", "ref", "--no-winograd").Against; a.err() != nil || a.Outputs[0].Worst != 0 {
		t.Errorf("without the algorithm: %+v", a.Outputs[0])
	}
}

// TestAgainstText prints what is off by any amount, and not more lines than are read.
func TestAgainstText(t *testing.T) {
	r := &runAgainst{}
	for i := range 25 {
		r.Launches = append(r.Launches, departure{Index: i + 1, Kind: "linear", Elements: 4, Off: 1, Worst: cli.Number(math.Inf(1)),
			At: []int{1}})
	}
	text := r.text()
	if !strings.Contains(text, "∞") || !strings.Contains(text, "and 5 more; --json lists all") {
		t.Errorf("report:\n%s", text)
	}
}
