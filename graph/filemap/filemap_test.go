package filemap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for _, want := range []string{"", "x", strings.Repeat("weights", 10000)} {
		path := filepath.Join(dir, "file")
		if err := os.WriteFile(path, []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(f.Data) != want {
			t.Errorf("%d bytes, want those of %d", len(f.Data), len(want))
		}
		for range 2 { // the second does nothing
			if err := f.Close(); err != nil || f.Data != nil {
				t.Errorf("after closing: %v, %d bytes", err, len(f.Data))
			}
		}
	}
	if _, err := Open(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), dir+": is not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}
