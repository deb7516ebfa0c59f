package layoutcache_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	_ "fusec/graph/dot"
)

// TestFolder starts a process that links the layout engine: its cache is in the user's folder, the folder of temporary files is
// that of the environment again, and a cache that cannot be read does not matter.
func TestFolder(t *testing.T) {
	const child = "FUSEC_LAYOUT_CHILD"
	if want := os.Getenv(child); want != "" {
		if got := os.TempDir(); got != want {
			t.Errorf("temporary files are in %s, not in %s", got, want)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	temp, home := t.TempDir(), t.TempDir()
	run := func() []string {
		t.Helper()
		c := exec.Command(self, "-test.run=^TestFolder$")
		c.Env = append(os.Environ(), child+"="+temp, "TMPDIR="+temp, "XDG_CACHE_HOME="+home, "HOME="+home)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if names, err := os.ReadDir(temp); err != nil || len(names) > 0 {
			t.Errorf("in the folder of temporary files: %v, %v", names, err)
		}
		files, err := filepath.Glob(filepath.Join(home, "fusec/go-graphviz/*/*"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	files := run()
	if len(files) != 1 {
		t.Fatalf("the cache has %v", files)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(files[0], files[0]); err != nil { // opening it fails for every user
		t.Fatal(err)
	}
	run()
}
