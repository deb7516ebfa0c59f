package sim

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"fusec/fpga/testtools"
)

// TestLint has Verilator look for what is wrong or doubtful in the hardware of every kind of configuration.
func TestLint(t *testing.T) {
	testtools.Need(t, "verilator")
	waivers, err := filepath.Abs("../rtl/lint.vlt")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range append(slices.Clone(configs), routed) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			files, err := sources(nil)
			if err != nil {
				t.Fatal(err)
			}
			files["fx_config.svh"] = []byte(c.Header())
			dir := t.TempDir()
			for name, text := range files {
				if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			for _, top := range []string{"fx_overlay", "fx_board_uart"} {
				lint := exec.Command("verilator", "--lint-only", "-Wall", "-I.", "--top-module", top, waivers,
					top+".sv")
				lint.Dir = dir
				if said, err := lint.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", top, err, said)
				}
			}
		})
	}
}
