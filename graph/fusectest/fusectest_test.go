package fusectest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/fuselock"
	_ "fusec/graph/graphtest/untuned"
	"fusec/graph/optim"
	"fusec/graph/trace"
)

// machine is that of an attention; shown has its probabilities handed out, too.
func machine(t *testing.T, shown bool) *fusec.Machine {
	t.Helper()
	g := gorgonia.NewGraph()
	in := func(name string, shape ...int) *gorgonia.Node {
		return gorgonia.NewTensor(g, tensor.Float32, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name),
			gorgonia.WithValue(tensor.New(tensor.WithShape(shape...), tensor.Of(tensor.Float32))))
	}
	q, k, v := in("q", 4, 8), in("k", 4, 8), in("v", 4, 8)
	scores := gorgonia.Must(gorgonia.Mul(q, gorgonia.Must(gorgonia.Transpose(k))))
	probs := gorgonia.Must(gorgonia.SoftMax(scores))
	gorgonia.Must(gorgonia.Mul(probs, v))
	if shown {
		var value gorgonia.Value
		gorgonia.Read(probs, &value)
	}
	vm := fusec.NewMachine(g)
	if err := vm.Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vm.Close() })
	return vm
}

// recorder is a test that fails without failing this one.
type recorder struct {
	testing.TB
	failed, logged string
}

func (r *recorder) Name() string                   { return "TestFusions/of a/model" }
func (r *recorder) Helper()                        {}
func (r *recorder) Errorf(format string, a ...any) { r.failed += fmt.Sprintf(format, a...) }
func (r *recorder) Logf(format string, a ...any)   { r.logged += fmt.Sprintf(format, a...) }
func (r *recorder) Fatal(a ...any)                 { r.failed += fmt.Sprint(a...); panic(r) }
func (r *recorder) Fatalf(format string, a ...any) { r.Fatal(fmt.Sprintf(format, a...)) }

// checked runs check as a test of its own does.
func checked(vm Traced, update bool) (r *recorder) {
	r = &recorder{}
	defer func() {
		if p := recover(); p != nil && p != r {
			panic(p)
		}
	}()
	check(r, vm, update)
	return r
}

func TestCheck(t *testing.T) {
	t.Chdir(t.TempDir())
	whole, split := machine(t, false), machine(t, true)
	const path = "testdata/TestFusions-of a-model.fuselock"
	if r := checked(whole, false); !strings.Contains(r.failed,
		path+" has nothing for cpu in f32; go test -fuselock.update writes it") {
		t.Errorf("without a file: %s", r.failed)
	}
	if r := checked(whole, true); r.failed != "" {
		t.Fatal(r.failed)
	}
	if r := checked(whole, false); r.failed+r.logged != "" {
		t.Errorf("%s%s", r.failed, r.logged)
	}
	r := checked(split, false)
	for _, want := range []string{"not as " + path + " has it", "lost: fusion attention",
		"because attention (fuse-attention) stopped at", "worse: "} {
		if !strings.Contains(r.failed, want) {
			t.Errorf("%q is not in\n%s", want, r.failed)
		}
	}
	if r := checked(split, true); r.failed != "" {
		t.Fatal(r.failed)
	}
	if r := checked(whole, false); r.failed != "" || !strings.Contains(r.logged, "other than "+path+" has it") {
		t.Errorf("%s%s", r.failed, r.logged)
	}
	if err := os.WriteFile(path, []byte("fuselock 3\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if r := checked(whole, true); !strings.Contains(r.failed, ":1: the lock file is of version 3") {
		t.Errorf("another version: %s", r.failed)
	}
	if r := checked(nil, false); !strings.Contains(r.failed, "no machine and no program") {
		t.Errorf("nil: %s", r.failed)
	}
	if r := checked((*fusec.Machine)(nil), false); !strings.Contains(r.failed, "no machine and no program") {
		t.Errorf("a machine that is nil: %s", r.failed)
	}
	if r := checked(&fusec.Machine{}, false); !strings.Contains(r.failed, "holds no program") {
		t.Errorf("a machine without a program: %s", r.failed)
	}
}

// The flag -update counts where the package of the test declares it.
func TestCheckReadsFile(t *testing.T) {
	Check(t, machine(t, false))
	if updates() {
		t.Error("a flag that nobody declares is true")
	}
}

// What a machine trains is locked alike as a file: the file is the program.
func TestSavedTraining(t *testing.T) {
	g := gorgonia.NewGraph()
	in := func(name string, shape ...int) *gorgonia.Node {
		return gorgonia.NewTensor(g, tensor.Float32, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name),
			gorgonia.WithValue(tensor.New(tensor.WithShape(shape...), tensor.Of(tensor.Float32))))
	}
	x, w, b := in("x", 4, 8), in("layer.weight", 8, 3), in("layer.bias", 1, 3)
	y := gorgonia.Must(gorgonia.Tanh(gorgonia.Must(gorgonia.BroadcastAdd(gorgonia.Must(gorgonia.Mul(x, w)), b, nil, []byte{0}))))
	if _, err := gorgonia.Grad(gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(y)))), w, b); err != nil {
		t.Fatal(err)
	}
	vm := fusec.NewMachine(g, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.01)}))
	defer vm.Close()
	path := filepath.Join(t.TempDir(), "step.graph")
	if err := vm.Save(path); err != nil {
		t.Fatal(err)
	}
	saved, err := graph.LoadGraph(path)
	if err != nil {
		t.Fatal(err)
	}
	tr, _, err := fusec.Plan(saved)
	if err != nil {
		t.Fatal(err)
	}
	text := func(tr *trace.Trace) string {
		s, err := fuselock.Of(tr)
		if err != nil {
			t.Fatal(err)
		}
		if v := fuselock.Compare(&s, &s, tr); v.String() != "" {
			t.Errorf("with itself: %s", v)
		}
		return (&fuselock.File{Sections: []fuselock.Section{s}}).String()
	}
	live, file := text(vm.Trace()), text(tr)
	if live != file {
		t.Errorf("the machine is\n%s\nthe file\n%s", live, file)
	}
	for _, want := range []string{`fusion linear in "layer": `, "fusion elementwise/optimiser in ", `"optim/rate"`} {
		if !strings.Contains(live, want) {
			t.Errorf("%s is not in\n%s", want, live)
		}
	}
}
