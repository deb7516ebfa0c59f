package runner

import (
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/npy"
	"fusec/kernels/ref"
)

// runJSON runs a model and reads the report.
func runJSON(t *testing.T, args ...string) RunReport {
	t.Helper()
	var rep RunReport
	if err := json.Unmarshal([]byte(clitest.Good(t, append([]string{"run", "--json"}, args...)...)), &rep); err != nil {
		t.Fatal(err)
	}
	return rep
}

// The outputs are those of the reference for the same weights and input.
func TestRunIsRight(t *testing.T) {
	path, dir := clitest.Model(t, nil), filepath.Join(t.TempDir(), "out")
	x := make([]float32, 42)
	for i := range x {
		x[i] = float32(i%5) - 2
	}
	in := graphtest.NPY(t, x, 6, 7)
	rep := runJSON(t, path, "--in", "x="+in, "--out", dir, "--threads", "2", "--verify")
	g, w, err := graph.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	values := w.Tensors
	if values["x"], err = graph.TensorOf(x, 6, 7); err != nil {
		t.Fatal(err)
	}
	want, _, err := ref.Eval(g, values)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Outputs) != 2 || rep.Outputs[0].Name != "probs" || rep.Outputs[1].File != "hidden_act.npy" {
		t.Fatalf("outputs %+v", rep.Outputs)
	}
	for _, o := range rep.Outputs {
		got, err := npy.ReadFile(filepath.Join(dir, o.File))
		if err != nil {
			t.Fatal(err)
		}
		if d := bench.Difference(got.Floats(), want[o.Name].Floats()); !(d <= 1e-5) {
			t.Errorf("%s differs by %g", o.Name, d)
		}
	}
	if rep.Launches == 0 || rep.RunNS <= 0 || rep.CompileNS <= 0 || rep.Schema != "fusec.run/1" {
		t.Errorf("report %+v", rep)
	}
	for _, s := range rep.Sources {
		if want := map[string]string{"x": in}[s.Name]; s.From != want && (want != "" || s.From != "weights") {
			t.Errorf("%s is from %s", s.Name, s.From)
		}
	}
}

func TestRunTable(t *testing.T) {
	out := clitest.Good(t, "run", clitest.Model(t, nil))
	for _, want := range []string{"mlp on cpu: ", "launches in ", "random, seed 1: x\n", "output", "first values",
		"probs       f32[6,7]", "hidden/act  f32[6,5]"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	dir := t.TempDir()
	if out := clitest.Good(t, "run", "--random-weights", clitest.Bare, "--out", dir); !strings.Contains(out, "2 files in "+dir) {
		t.Errorf("report:\n%s", out)
	}
}

// The seed decides random values, and nothing else does.
func TestRunSeed(t *testing.T) {
	a, b, c := runJSON(t, "--random-weights", clitest.Bare), runJSON(t, "--random-weights", clitest.Bare, "--threads", "1"),
		runJSON(t, "--random-weights", clitest.Bare, "--seed", "2")
	if a.Outputs[0].Mean != b.Outputs[0].Mean || a.Outputs[1].First[0] != b.Outputs[1].First[0] {
		t.Error("the same seed gives other results")
	}
	if a.Outputs[1].First[0] == c.Outputs[1].First[0] {
		t.Error("another seed gives the same results")
	}
}

func TestRunInputErrors(t *testing.T) {
	path := clitest.Model(t, nil)
	for _, c := range []struct{ name, file, want string }{
		{"y", graphtest.NPY(t, make([]float32, 42), 6, 7), `no input "y": it has x, w1, b1, w2, runs`},
		{"rnus", graphtest.NPY(t, make([]float32, 42), 6, 7), "did you mean runs?"},
		{"x", graphtest.NPY(t, make([]float32, 42), 7, 6), `x.npy holds f32[7,6]; input "x" (model.go:10) is f32[6,7]`},
		{"x", graphtest.NPY(t, make([]int32, 42), 6, 7), "elements of i32 cannot stand for f32"},
		{"x", "no-such.npy", "no-such.npy: no such file"},
		{"x", path, "mlp.graph: "},
	} {
		r := clitest.FusecRun(t, "run", path, "--in", c.name+"="+c.file)
		clitest.Bad(t, r, cli.ExitFailure, c.want)
	}
	doubles := graphtest.NPY(t, make([]float64, 42), 6, 7)
	if rep := runJSON(t, path, "--in", "x="+doubles); rep.Outputs[0].NaN > 0 {
		t.Error("doubles are not taken")
	}
	if rep := runJSON(t, path, "--in", "runs="+graphtest.NPY(t, []float64{4})); rep.Outputs == nil {
		t.Error("state is not taken")
	}
}

func TestRunWeightErrors(t *testing.T) {
	idle := graphtest.File(t, "idle.graph", "fusec graph 3 \"idle\" {\n  x = input : f32[2]\n}\n")
	clitest.Bad(t, clitest.FusecRun(t, "run", idle), cli.ExitFailure, "idle.graph has no output: there is nothing to compute")
	clitest.Bad(t, clitest.FusecRun(t, "run", clitest.Bare), cli.ExitFailure, "testdata/mlp.safetensors: the weights file is missing",
		`"w1", "b1", "w2", "runs"`, "--random-weights runs")

	path := clitest.Model(t, nil)
	text := graphtest.ReadFile(t, path)
	rewrite := func(old, new string) {
		t.Helper()
		s := strings.ReplaceAll(string(text), old, new)
		if s == string(text) {
			t.Fatalf("the graph has no %q", old)
		}
		graphtest.WriteFile(t, path, []byte(s))
	}
	rewrite("w2", "other")
	clitest.Bad(t, clitest.FusecRun(t, "run", path), cli.ExitFailure, `mlp.safetensors: has no weight "other"`,
		"--random-weights runs")
	rewrite("f32[6,7]", "f32[6,8]")
	clitest.Bad(t, clitest.FusecRun(t, "run", path), cli.ExitFailure, "mlp.graph:")
	rewrite("f32[5]", "f32[1]")
	clitest.Bad(t, clitest.FusecRun(t, "run", path), cli.ExitFailure, `weight "b1" has the shape [5]`)

	path = clitest.Model(t, nil)
	file := strings.TrimSuffix(path, ".graph") + ".safetensors"
	raw := graphtest.ReadFile(t, file)
	for _, junk := range [][]byte{nil, []byte("junk"), raw[:len(raw)-5], raw[:20]} {
		graphtest.WriteFile(t, file, junk)
		clitest.Bad(t, clitest.FusecRun(t, "run", path), cli.ExitFailure, "mlp.safetensors: ")
	}
}

func TestRunNaNWeights(t *testing.T) {
	path := clitest.Model(t, func(w map[string]*graph.Tensor) { w["w2"].SetFloat(9, math.NaN()) })
	clitest.Bad(t, clitest.FusecRun(t, "run", path), cli.ExitFailure, "mlp.safetensors: ", `"w2"`,
		"NaN in 1 of 35 elements, the first at [1 2]", "--allow-nan runs")
	rep := runJSON(t, path, "--allow-nan")
	if rep.Outputs[0].NaN == 0 {
		t.Error("no NaN came out")
	}
	if out := clitest.Good(t, "run", path, "--allow-nan"); !strings.Contains(out, "nan") {
		t.Errorf("the table does not count NaN:\n%s", out)
	}
}

func TestRunUnusedWeights(t *testing.T) {
	path := clitest.Model(t, nil)
	text := "fusec graph 1 {\n  b1 = param : f32[5]\n  y = unary[fn=relu] b1\n  output y = y\n}\n"
	graphtest.WriteFile(t, path, []byte(text))
	r := clitest.FusecRun(t, "run", path)
	if r.Code != cli.ExitOK || !strings.Contains(r.Stderr, "fusec: note: ") ||
		!strings.Contains(r.Stderr, "does not name: runs, w1, w2") {
		t.Errorf("exit code %d, %s", r.Code, r.Stderr)
	}
}

func TestRunStandardInput(t *testing.T) {
	text := graphtest.ReadFile(t, clitest.Bare)
	clitest.Bad(t, clitest.FusecIn(t, string(text), "run", "-"), cli.ExitFailure, "comes without weights")
	if r := clitest.FusecIn(t, string(text), "run", "-", "--random-weights"); r.Code != cli.ExitOK ||
		!strings.HasPrefix(r.Out, "stdin on cpu") {
		t.Errorf("exit code %d, %s%s", r.Code, r.Out, r.Stderr)
	}
	if r := clitest.FusecIn(t, string(text), "dump", "-", "--measured"); r.Code != cli.ExitOK {
		t.Errorf("exit code %d, %s", r.Code, r.Stderr)
	}
}

func TestRunHugeGraph(t *testing.T) {
	path := graphtest.File(t, "m.graph",
		"fusec graph 1 {\n  x = input : f32[1000000,100000]\n  y = unary[fn=relu] x\n  output y = y\n}\n")
	clitest.Bad(t, clitest.FusecRun(t, "run", path), cli.ExitFailure, "inputs and weights: 373 GiB of memory are needed")
	clitest.Good(t, "explain", path)
}

// An operation of the user's own has no code in a file: the graph can be seen, but not run.
func TestHostOperation(t *testing.T) {
	path := graphtest.File(t, "m.graph",
		"fusec graph 1 {\n  x = input : f32[2] @ \"m.go:3\"\n  y = host[name=mystery] x : f32[2] @ \"m.go:4\"\n  output y = y\n}\n")
	out := clitest.Good(t, "explain", path)
	for _, want := range []string{"on the host: 1 operation\n", "launch 1, host \"y\" (m.go:4): mystery stays on the host"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "run", path), cli.ExitFailure, "m.go:4")
}

func TestSummarise(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	x, err := graph.TensorOf([]float64{1, nan, 3, -inf}, 4)
	if err != nil {
		t.Fatal(err)
	}
	if o := summarise("x", x); o.NaN != 1 || o.Max.Number != 3 || !math.IsInf(float64(o.Min.Number), -1) {
		t.Errorf("%+v", o)
	}
	x.Data = []float64{nan, nan, nan, nan}
	o := summarise("x", x)
	if text, err := json.Marshal(o); err != nil || !strings.Contains(string(text), `"mean":"nan","min":"nan","max":"nan"`) {
		t.Errorf("%s, %v", text, err)
	}
	text, err := json.Marshal([]cli.Number{cli.Number(inf), cli.Number(-inf), 0.5})
	if err != nil || string(text) != `["inf","-inf",0.5]` {
		t.Errorf("%s, %v", text, err)
	}
	whole := &graph.Tensor{Type: graph.TypeOf(graph.I64, 3), Data: []int64{math.MaxInt64 - 1, math.MaxInt64, math.MaxInt64 - 2}}
	if o := summarise("whole", whole); o.Min.Short() != "9223372036854775805" || o.Max.Short() != "9223372036854775807" {
		t.Errorf("the integers lie from %s to %s", o.Min.Short(), o.Max.Short())
	}
	for _, c := range []struct {
		data []int64
		want string // as JSON
	}{
		{[]int64{1<<53 + 1, 1<<53 + 1, 1<<53 + 1}, "9007199254740993"}, // which is no float64
		{[]int64{1 << 60, -1 << 60, 3}, "1"},
		{[]int64{math.MaxInt64, math.MaxInt64, math.MaxInt64 - 3}, "9223372036854775806"}, // the sum is no int64
		{[]int64{math.MinInt64, math.MaxInt64, 0}, "-0.3333333333333333"},
		{[]int64{1<<53 + 1, -1 << 53, 0}, "0.3333333333333333"},
	} {
		whole.Data = c.data
		if got, err := json.Marshal(summarise("whole", whole).Mean); err != nil || string(got) != c.want {
			t.Errorf("the mean of %v is %s, want %s; %v", c.data, got, c.want, err)
		}
	}
	if o := summarise("none", graph.NewTensor(graph.TypeOf(graph.F32, 0))); !math.IsNaN(float64(o.Mean.Number)) || len(o.First) != 0 {
		t.Errorf("%+v", o)
	}
}

func TestFileNames(t *testing.T) {
	names := []string{"y", "a/b", "a_b", "A_B", "a%2Fb", "..", ".", "", ".hidden", "%2E", "ü", "a b", strings.Repeat("x", 300),
		strings.Repeat("x", 301), strings.Repeat("ü/", 100)}
	seen := map[string]string{}
	for i, f := range fileNames(names) {
		if len(f) > maxFileName+len("_12.npy") {
			t.Errorf("%q has a file with a name of %d bytes", names[i], len(f))
		}
		if strings.ContainsAny(f, "/\\%") || strings.HasPrefix(f, ".") {
			t.Errorf("%q becomes %q", names[i], f)
		}
		if other, twice := seen[strings.ToLower(f)]; twice {
			t.Errorf("%q and %q both become %q", names[i], other, f)
		}
		seen[strings.ToLower(f)] = names[i]
	}
	if got := fileNames([]string{"a/b", "a_b", "z"}); !slices.Equal(got, []string{"a_b.npy", "a_b_2.npy", "z.npy"}) {
		t.Error(got)
	}
}

// Names from a file reach the terminal without control characters, in reports, tables and errors.
func TestControlCharacters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "escape.graph")
	src := "fusec graph 1 {\n \"x\\x1b[31mRED\\x07\" = input : f32[2]\n %1 = unary[fn=tanh] \"x\\x1b[31mRED\\x07\" @ " +
		"\"m\\x1b[2J.go:3\" for \"h\\x1b[0m\"\n" +
		" output \"\\x1b]0;owned\\x07y\" = %1\n output \"\\xff\\u0085\" = %1\n}\n"
	graphtest.WriteFile(t, path, []byte(src))
	for command, flags := range map[string][]string{"run": nil, "explain": nil, "bench": clitest.Quick} {
		out := clitest.Good(t, append([]string{command, path}, flags...)...)
		if !strings.Contains(out, `\x1b[`) {
			t.Errorf("%s does not print the names:\n%s", command, out)
		}
		if i := strings.IndexFunc(out, func(r rune) bool {
			return r != '\n' && r != '\t' && (unicode.IsControl(r) || r == utf8.RuneError)
		}); i >= 0 {
			t.Errorf("%s prints %q", command, out[max(i-20, 0):i+1])
		}
	}
	if got, want := cli.Plain("a\x1b[0m\u0085\xff\tü\"\\\n"), "a\\x1b[0m\\u0085\\xff\tü\"\\\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Random indices are valid ones, also where they reach the operation through views.
func TestIndexLimits(t *testing.T) {
	b := graph.NewBuilder("m")
	table := b.Param("table", graph.TypeOf(graph.F32, 3, 4))
	ids := b.Input("ids", graph.TypeOf(graph.I32, 50))
	start := b.Input("start", graph.TypeOf(graph.I64))
	mask := b.Input("mask", graph.TypeOf(graph.Bool, 2, 4))
	free := b.Input("free", graph.TypeOf(graph.I32, 5))
	rows := b.Add(graph.Gather{Axis: 0}, table, b.Reshape(ids, 5, 10))
	part := b.Add(graph.Slice{Axis: 0, Size: 2, Step: 1}, table, start)
	zero := b.Broadcast(b.Scalar(graph.F32, 0), graph.ShapeOf(2, 4))
	b.Output("rows", rows)
	b.Output("part", b.Add(graph.Select{}, mask, part, zero))
	b.Output("wide", b.Add(graph.Unslice{Axis: 0, Size: 9, Step: 1}, part, start))
	b.Output("sum", b.Add(graph.ScatterAdd{Axis: 0, Size: 2}, free, b.Broadcast(b.Scalar(graph.F32, 1), graph.ShapeOf(5))))
	g := graphtest.Graph(t, b)
	limits := modelio.IndexLimits(g)
	for name, want := range map[string]int{"ids": 3, "start": 2, "free": 2, "mask": modelio.DefaultLimit} {
		n := g.Lookup(name)
		if limits[n] != want {
			t.Errorf("limit of %s is %d, want %d", name, limits[n], want)
		}
		v := modelio.RandomTensor(n, 1, limits[n])
		for i := range v.Type.Shape.Elems() {
			if x := v.Float(i); x < 0 || x >= float64(want) {
				t.Errorf("%s holds %v", name, x)
			}
		}
	}
}

func TestConvert(t *testing.T) {
	big, err := graph.TensorOf([]int64{1, 1 << 40}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := modelio.Convert(big, graph.I32); err == nil ||
		!strings.Contains(err.Error(), "1099511627776 at [1] does not fit i32") {
		t.Errorf("error %v", err)
	}
	big.Data = []int64{1, -2}
	small, err := modelio.Convert(big, graph.I32)
	if err != nil || small.Float(1) != -2 {
		t.Errorf("%v, %v", small, err)
	}
	if _, err := modelio.Convert(small, graph.Bool); err == nil {
		t.Error("integers stand for bool")
	}
	if back, err := modelio.Convert(small, graph.I64); err != nil || back.Float(1) != -2 {
		t.Errorf("%v, %v", back, err)
	}
}

// A program that trains hands out the gradients that its file asks for; launches are compared with the reference, and
// the outputs that are written.
func TestRunTraining(t *testing.T) {
	path := graphtest.File(t, "m.graph", `fusec graph 2 {
  x = input : f32[3,4]
  w = param : f32[4,2]
  y = matmul x w
  cost = reduce[fn=mean axes=[0,1] keep=false] y
  output cost = cost
  gradient "the gradient" = cost by w
  optimiser adamw[rate=0.1 clip=1]
  step w = cost
}
`)
	text := clitest.Good(t, "run", path, "--random-weights", "--against", "ref")
	for _, want := range []string{"cost", "the gradient  f32[4,2]", "1 output, all within the bound"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
}
