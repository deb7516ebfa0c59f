package nvrtc

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFolders(t *testing.T) {
	cache, cuda := t.TempDir(), t.TempDir()
	t.Setenv(Variable, "")
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("CUDA_PATH", cuda)
	venv := t.TempDir()
	t.Setenv("VIRTUAL_ENV", venv)
	var want []string
	for _, p := range []string{
		filepath.Join(cuda, "lib64/libnvrtc.so.12"),
		filepath.Join(cache, "fusec-cuda/pip/nvidia/cu13/lib/libnvrtc.so.13"),
		filepath.Join(venv, "lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
	} {
		if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		want = append(want, p)
	}
	paths, searched := candidates()
	at := func(p string) int {
		for i, q := range paths {
			if p == q {
				return i
			}
		}
		t.Fatalf("%s is not among %v", p, paths)
		return -1
	}
	if !(at(want[1]) < at(want[0]) && at(want[0]) < at(want[2])) {
		t.Errorf("the newest is not the first, or the order of folders is lost: %v", paths)
	}
	if paths[0] != names[0] || len(searched) < 4 {
		t.Errorf("the loader is not asked first: %v; %v", paths, searched)
	}
}
