package fusec_test

import (
	"os"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph/optim"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// emulated has the target cuda run on the emulator, or on GPUs if the environment names that target.
func emulated(t testing.TB) fusec.Option {
	t.Helper()
	if os.Getenv(targetVariable) == "cuda" {
		return fusec.WithTarget("cuda")
	}
	return fusec.WithTarget("cuda",
		cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) { return emulator.Open(emulator.Options{}) }))
}

// TestTargets refuses targets that are not there, by name.
func TestTargets(t *testing.T) {
	g := built(t, linearGraph())
	for target, text := range map[string]string{"tpu": `target "tpu" is not known`, "cuda:x": "want cuda, or cuda:N",
		"cuda:-1": "want cuda, or cuda:N", "cpu:0": `target "cpu:0" is not known`, "cuda": "CUDA"} {
		_, err := fusec.Compile(g, fusec.WithTarget(target))
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("target %s gave the error %v, want %q", target, err, text)
		}
	}
	if _, _, err := fusec.Plan(g, fusec.WithTarget("cuda", cuda.Arch("sm_1"))); err == nil ||
		!strings.Contains(err.Error(), "no architecture") {
		t.Errorf("sm_1 gave the error %v", err)
	}
}

// TestTargetNamed asks what targets say of themselves.
func TestTargetNamed(t *testing.T) {
	for name, want := range map[string]string{"cpu": "cpu", "cuda": "cuda", "cuda:1": "cuda", "fpga": "fpga", "cpu:0": "", "tpu": ""} {
		if target, ok := fusec.TargetNamed(name); ok != (want != "") || target.Name != want {
			t.Errorf("%s is the target %q, %v", name, target.Name, ok)
		}
	}
}

// TestMachineOnReference trains w to the least of w² on the reference: each step takes a fifth off it.
func TestMachineOnReference(t *testing.T) {
	g := gorgonia.NewGraph()
	w := gorgonia.NewVector(g, tensor.Float32, gorgonia.WithName("w"), gorgonia.WithShape(3), gorgonia.WithInit(gorgonia.Ones()))
	cost := must(gorgonia.Sum(must(gorgonia.Square(w))))
	if _, err := gorgonia.Grad(cost, w); err != nil {
		t.Fatal(err)
	}
	var read gorgonia.Value
	gorgonia.Read(cost, &read)
	vm := fusec.NewMachine(g, gorgonia.BindDualValues(w), fusec.WithTarget("ref"),
		fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1)}))
	defer vm.Close()
	for _, want := range []float64{3, 3 * 0.64, 3 * 0.64 * 0.64} {
		if err := vm.RunAll(); err != nil {
			t.Fatal(err)
		}
		sameFloats(t, "the cost", floats(t, read), []float64{want}, 1e-6)
		vm.Reset()
	}
}
