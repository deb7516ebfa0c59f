package cuda

import (
	"os"
	"path/filepath"
	"testing"
)

// TestNeeds looks for the driver where it is, and where it is not.
func TestNeeds(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", "") // it comes first
	proc, libs := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(proc, "driver/nvidia/version"): "NVRM version: NVIDIA 550.1\nGCC version: 12\n",
		filepath.Join(libs, "libcuda.so.1"):          "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range driverIn(proc, []string{libs}) {
		want := []string{"NVRM version: NVIDIA 550.1", filepath.Join(libs, "libcuda.so.1")}[i]
		if c.Err != nil || c.Found != want {
			t.Errorf("%+v, want %s", c, want)
		}
	}
	for _, c := range driverIn(t.TempDir(), []string{t.TempDir()}) {
		if c.Err == nil {
			t.Errorf("%+v", c)
		}
	}
}
