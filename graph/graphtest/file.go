package graphtest

import (
	"os"
	"path/filepath"
	"testing"

	"fusec/graph"
	"fusec/graph/npy"
)

// File writes a file into a temporary folder of its own, and returns its path.
func File[T string | []byte](t testing.TB, name string, data T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	WriteFile(t, path, data)
	return path
}

// WriteFile writes a file.
func WriteFile[T string | []byte](t testing.TB, path string, data T) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o666); err != nil {
		t.Fatal(err)
	}
}

// ReadFile reads a file.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// NPY writes a tensor into an .npy file in a temporary folder of its own, and returns its path.
func NPY[T graph.Elem](t testing.TB, data []T, dims ...int) string {
	t.Helper()
	x, err := graph.TensorOf(data, dims...)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.npy")
	if err := npy.WriteFile(path, x); err != nil {
		t.Fatal(err)
	}
	return path
}
