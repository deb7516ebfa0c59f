package fusec_test

import (
	"strings"
	"testing"

	"fusec"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// emulated has the target cuda run on the emulator.
func emulated(t testing.TB) fusec.Option {
	t.Helper()
	return fusec.WithTarget("cuda", cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) { return emulator.Open(emulator.Options{}) }))
}

// TestTargets refuses targets that are not there, by name.
func TestTargets(t *testing.T) {
	g := built(t, linearGraph())
	for target, text := range map[string]string{"tpu": `target "tpu" is not known`, "cuda:x": "want cuda, or cuda:N", "cuda:-1": "want cuda, or cuda:N",
		"cpu:0": `target "cpu:0" is not known`, "cuda": "CUDA"} {
		_, err := fusec.Compile(g, fusec.WithTarget(target))
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("target %s gave the error %v, want %q", target, err, text)
		}
	}
	if _, _, err := fusec.Plan(g, fusec.WithTarget("cuda", cuda.Arch("sm_1"))); err == nil || !strings.Contains(err.Error(), "no architecture") {
		t.Errorf("sm_1 gave the error %v", err)
	}
}
