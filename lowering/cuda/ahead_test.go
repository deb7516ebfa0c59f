package cuda_test

import (
	"archive/zip"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// arch plans for a chip of the architecture.
func arch(name string) fusec.Option { return fusec.WithTarget("cuda", cuda.Arch(name)) }

// emulated has the target cuda run on the emulator.
func emulated(t testing.TB) fusec.Option {
	t.Helper()
	return fusec.WithTarget("cuda",
		cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) { return emulator.Open(emulator.Options{}) }))
}

func graphOf(t testing.TB, b *graph.Builder) *graph.Graph {
	t.Helper()
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// smallMLP is a model with weights, and its values.
func smallMLP(t testing.TB) (g *graph.Graph, in, weights map[string]*graph.Tensor) {
	t.Helper()
	b := graph.NewBuilder("small")
	x := b.Input("x", graph.TypeOf(graph.F32, 5, 7))
	h := b.MatMul(x, b.Param("w1", graph.TypeOf(graph.F32, 7, 9)), false, false)
	h = b.Unary(graph.GeluTanh, b.Binary(graph.Add, h, b.Broadcast(b.Param("b1", graph.TypeOf(graph.F32, 9)), h.Type.Shape)))
	b.Output("y", b.Add(graph.Softmax{Axis: 1}, b.MatMul(h, b.Param("w2", graph.TypeOf(graph.F32, 9, 4)), false, false)))
	g = graphOf(t, b)
	r := rand.New(rand.NewPCG(3, 4))
	return g, graphtest.Values(r, g), graphtest.Weights(r, g)
}

// output runs a program on the values and returns its one output.
func output(t testing.TB, p *fusec.Program, name string, values ...map[string]*graph.Tensor) *graph.Tensor {
	t.Helper()
	defer p.Close()
	for _, m := range values {
		for n, v := range m {
			if err := p.Set(n, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.Exec(); err != nil {
		t.Fatal(err)
	}
	y, err := p.Output(name)
	if err != nil {
		t.Fatal(err)
	}
	return y.Clone()
}

// sourcesOf lists the CUDA C++ of a graph's kernels.
func sourcesOf(t testing.TB, g *graph.Graph, opts ...fusec.CompileOption) []cuda.Source {
	t.Helper()
	opts = append(opts, fusec.WithTarget("cuda"))
	_, program, err := fusec.Plan(g, opts...)
	if err != nil {
		t.Fatal(err)
	}
	d, err := fusec.PlanDevice(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return d.(*cuda.Device).Sources(program)
}

// TestAhead compiles a model ahead of time, and runs it from the file alone to the same bits as one that is compiled
// where it runs.
func TestAhead(t *testing.T) {
	g, in, weights := smallMLP(t)
	path := filepath.Join(t.TempDir(), "small.fuse")
	last := 0
	progress := func(done, all int) {
		if done != last+1 || done > all {
			t.Errorf("progress %d of %d after %d", done, all, last)
		}
		last = done
	}
	if err := fusec.CompileAhead(path, g, weights, progress, emulated(t), arch("sm_90a")); err != nil {
		t.Fatal(err)
	}
	if last == 0 {
		t.Error("no progress was told")
	}
	a, err := fusec.OpenAhead(path)
	if err != nil {
		t.Fatal(err)
	}
	if a.Chip != "sm_90a" || graph.Print(a.Graph) != graph.Print(g) || len(a.Weights) != len(weights) {
		t.Fatalf("for %s, with %d weights, the graph\n%s", a.Chip, len(a.Weights), graph.Print(a.Graph))
	}
	p, err := fusec.Compile(a.Graph, fusec.WithAhead(a), emulated(t))
	if err != nil {
		t.Fatal(err)
	}
	got := output(t, p, "y", in, a.Weights)
	if p, err = fusec.Compile(g, fusec.WithTarget("cuda"), emulated(t)); err != nil {
		t.Fatal(err)
	}
	if want := output(t, p, "y", in, weights); !got.Equal(want) {
		t.Error("the file's kernels give other bits")
	}
	if _, err := fusec.Compile(a.Graph, fusec.WithAhead(a), fusec.WithPrecision(fusec.TF32), emulated(t)); err == nil ||
		!strings.Contains(err.Error(), "compiled with other options") {
		t.Errorf("other options gave the error %v", err)
	}
}

// TestAheadPlans plans a model for the chip that it was compiled for.
func TestAheadPlans(t *testing.T) {
	b := graph.NewBuilder("product")
	x := b.Input("x", graph.TypeOf(graph.F32, 512, 512))
	b.Output("y", b.MatMul(x, x, false, false)) // for which generations of chips have kernels of their own
	path, bf16 := filepath.Join(t.TempDir(), "product.fuse"), fusec.WithPrecision(fusec.BF16)
	if err := fusec.CompileAhead(path, graphOf(t, b), nil, nil, bf16, emulated(t), arch("sm_80")); err != nil {
		t.Fatal(err)
	}
	a, err := fusec.OpenAhead(path)
	if err != nil {
		t.Fatal(err)
	}
	planned := func(opt fusec.CompileOption) (text string) {
		t.Helper()
		for _, s := range sourcesOf(t, a.Graph, bf16, opt) {
			text += s.Text
		}
		return text
	}
	got, same, other := planned(fusec.WithAhead(a)), planned(arch("sm_80")), planned(arch("sm_90a"))
	if got != same || got == other {
		t.Errorf("planned for its chip: %v, for another: %v", got == same, got == other)
	}
}

// A refusing compiler refuses every source.
type refusing struct{ driver.Compiler }

func (refusing) Compile(string, kernels.Chip) ([]byte, string, error) {
	return nil, "", errors.New("not for sm_99")
}

// TestAheadRefusesOnce: what is wrong with every kernel is said once.
func TestAheadRefusesOnce(t *testing.T) {
	g, _, _ := smallMLP(t)
	refused := fusec.WithTarget("cuda", cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) {
		gpu, compiler, err := emulator.Open(emulator.Options{})
		return gpu, refusing{compiler}, err
	}))
	err := fusec.CompileAhead(filepath.Join(t.TempDir(), "small.fuse"), g, nil, nil, refused, arch("sm_99"))
	if err == nil || strings.Count(err.Error(), "not for sm_99") != 1 || !strings.Contains(err.Error(), "launch 1, ") {
		t.Errorf("%v", err)
	}
}

// TestAheadRefuses names what is wrong with a file, a chip or a GPU.
func TestAheadRefuses(t *testing.T) {
	g, _, weights := smallMLP(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "small.fuse")
	wants := func(err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
	wants(fusec.CompileAhead(path, g, weights, nil, emulated(t), arch("sm_9")), `"sm_9" is no architecture`)
	wants(fusec.CompileAhead(path, nil, weights, nil, emulated(t), arch("sm_80")), "the graph is nil")
	if err := fusec.CompileAhead(path, g, nil, nil, emulated(t), arch("sm_80")); err != nil {
		t.Fatal(err)
	}
	a, err := fusec.OpenAhead(path)
	if err != nil {
		t.Fatal(err)
	}
	if a.Weights != nil {
		t.Errorf("%d weights of a file that was written without", len(a.Weights))
	}
	_, err = fusec.Compile(a.Graph, fusec.WithAhead(a), emulated(t)) // which is taken for an H200
	wants(err, "the model was compiled for sm_80, and GPU 0, NVIDIA H200, is sm_90a")
	if err := os.WriteFile(filepath.Join(dir, "not.fuse"), []byte("no archive"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = fusec.OpenAhead(filepath.Join(dir, "not.fuse"))
	wants(err, "not.fuse: not a compiled model")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bomb := filepath.Join(dir, "bomb.fuse")
	f, err := os.Create(bomb)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	part, err := z.Create("kernels/0") // compressed
	if err == nil {
		_, err = part.Write(make([]byte, 1<<20))
	}
	if err = errors.Join(err, z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = fusec.OpenAhead(bomb)
	wants(err, "bomb.fuse: its parts have more bytes than the file")
	for _, n := range []int{1, len(whole) / 2, len(whole) - 1} {
		if err := os.WriteFile(path, whole[:n], 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := fusec.OpenAhead(path); err == nil {
			t.Errorf("%d of %d bytes were taken for a model", n, len(whole))
		}
	}
}

// TestCUDASources lists the kernels' texts, with the user's names beside them, and no compiler or GPU.
func TestCUDASources(t *testing.T) {
	g, _, _ := smallMLP(t)
	list := sourcesOf(t, g)
	found := false
	for _, s := range list {
		if len(s.Generated) >= len(s.Text) || !strings.Contains(s.Generated, "KERNEL(") {
			t.Errorf("%s: the generated part is no part of the text:\n%s", s.Where, s.Generated)
		}
		found = found || strings.Contains(s.Generated, `a2 is param f32[9] "b1"`) && strings.Contains(s.Generated, "gelu_tanh")
	}
	if !found {
		t.Error("no kernel names the bias and the activation")
	}
}
