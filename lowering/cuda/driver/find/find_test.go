package find

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFolders(t *testing.T) {
	s := Search{What: "a library", Names: []string{"libnvrtc.so.13", "libnvrtc.so.12"}, Variable: "FUSEC_TEST_LIBRARY",
		Python: []string{"cu13", "cuda_nvrtc"}, Advice: "install it"}
	cache, cuda := t.TempDir(), t.TempDir()
	t.Setenv(s.Variable, "")
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
	paths, searched := s.candidates()
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
	if paths[0] != s.Names[0] || len(searched) < 4 {
		t.Errorf("the loader is not asked first: %v; %v", paths, searched)
	}
}

// TestFirst loads the first that can be loaded, and says of the others why not.
func TestFirst(t *testing.T) {
	s := Search{What: "the library", Names: []string{"libno.so.2", "libno.so.1"}, Variable: "FUSEC_TEST_LIBRARY", Advice: "install it"}
	folder := t.TempDir()
	for _, name := range s.Names {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(s.Variable, folder)
	got, err := First(s, func(path string) (string, error) {
		if strings.HasSuffix(path, ".2") {
			return "", errors.New("too new")
		}
		return path, nil
	})
	if want := filepath.Join(folder, "libno.so.1"); err != nil || got != want {
		t.Errorf("loaded %q, %v; want %s", got, err, want)
	}
	_, err = First(s, func(path string) (string, error) { return "", errors.New(path + " is broken") })
	for _, want := range []string{"the library (libno.so.2 or libno.so.1) was not found in " + folder, "libno.so.1 is broken",
		"install it, or set FUSEC_TEST_LIBRARY"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, without %q", err, want)
		}
	}
}
