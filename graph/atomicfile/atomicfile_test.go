package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// only checks that dir holds the one file name with the given contents.
func only(t *testing.T, dir, name, contents string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != name {
		t.Fatalf("the folder holds %v, want only %s", entries, name)
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || string(b) != contents {
		t.Fatalf("%s holds %q (%v), want %q", name, b, err, contents)
	}
}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.txt")
	for _, s := range []string{"one", "two, longer", ""} {
		if err := Write(path, text(s)); err != nil {
			t.Fatal(err)
		}
		only(t, dir, "a.txt", s)
	}
}

func TestFailureKeepsOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.txt")
	if err := Write(path, text("old")); err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	err := Write(path, func(w io.Writer) error {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
		return full
	})
	if !errors.Is(err, full) {
		t.Fatalf("got %v", err)
	}
	only(t, dir, "a.txt", "old")
}

// TestErrorsNameTarget checks that no error names a temporary file.
func TestErrorsNameTarget(t *testing.T) {
	dir := t.TempDir()
	closed := func(step func(f *File) error) error {
		f, err := Create(filepath.Join(dir, "a.txt"))
		if err != nil {
			t.Fatal(err)
		}
		f.tmp.Close()
		return step(f)
	}
	for name, c := range map[string]struct {
		err  error
		path string
	}{
		"create": {Write(filepath.Join(dir, "no", "a.txt"), text("")), filepath.Join(dir, "no", "a.txt")},
		"write": {closed(func(f *File) error {
			_, err := f.Write(make([]byte, 1<<20))
			f.Abort()
			return err
		}), filepath.Join(dir, "a.txt")},
		"sync": {closed(func(f *File) error { defer f.Abort(); return f.Sync() }), filepath.Join(dir, "a.txt")},
		"rename": {closed(func(f *File) error {
			defer f.Abort()
			os.Remove(f.tmp.Name())
			return renamed(f.rename(), f.name)
		}), filepath.Join(dir, "a.txt")},
	} {
		var p *fs.PathError
		if !errors.As(c.err, &p) || p.Path != c.path {
			t.Errorf("%s: %v, want an error about %s", name, c.err, c.path)
		}
	}
}

func TestKeepsModeAndLink(t *testing.T) {
	dir, links := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(links, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Skipf("this system makes no symbolic links: %v", err)
	}
	if err := Write(link, text("new")); err != nil {
		t.Fatal(err)
	}
	only(t, dir, "a.txt", "new")
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o640 {
		t.Fatalf("mode %v (%v), want 0640", fi.Mode(), err)
	}
	if fi, err := os.Lstat(link); err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		t.Fatal("the link was replaced")
	}
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "none", "a.txt"), filepath.Join(dir, "none") + "\x00"} {
		if _, err := Create(path); err == nil {
			t.Errorf("Create(%q) succeeded", path)
		}
	}
	if _, err := os.Stat("/dev/full"); err == nil {
		if _, err := Create("/dev/full"); err == nil {
			t.Error("a device was accepted")
		}
	}
}

func TestCommitAndAbortOnce(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(filepath.Join(dir, "a.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, "x"); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	f.Abort()
	if err := f.Commit(); !errors.Is(err, fs.ErrClosed) {
		t.Fatalf("second Commit: %v", err)
	}
	only(t, dir, "a.txt", "x")
}

func TestCommitReportsRename(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err == nil {
		t.Fatal("a folder was replaced by a file")
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 1 {
		t.Fatalf("left behind: %v", entries)
	}
}

func TestTemporary(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(filepath.Join(dir, "a.1.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Abort()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("the folder holds %v (%v)", entries, err)
	}
	if base, ok := Temporary(entries[0].Name()); !ok || base != "a.1.txt" {
		t.Errorf("%s is of %q, %v", entries[0].Name(), base, ok)
	}
	for _, name := range []string{"a.1.txt", ".a.tmp", ".a.1.tmp", "a.1-2.tmp", ".1-2.tmp", ".a.1-2.tmp2"} {
		if base, ok := Temporary(name); ok {
			t.Errorf("%s is taken for a temporary file of %q", name, base)
		}
	}
}

// TestRemoveAbandoned: what a process that is alive writes stays, until it is in place; what one left behind goes.
func TestRemoveAbandoned(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Abort()
	tmp := f.tmp.Name()
	if _, err := io.WriteString(f, "x"); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAbandoned(tmp); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	only(t, dir, "a", "x")
	if err := RemoveAbandoned(tmp); err != nil { // it is gone
		t.Fatal(err)
	}
	for _, mode := range []fs.FileMode{0o666, 0o444} {
		if err := os.WriteFile(tmp, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
		long := time.Now().Add(-2 * abandoned)
		if err := os.Chtimes(tmp, long, long); err != nil {
			t.Fatal(err)
		}
		if err := RemoveAbandoned(tmp); err != nil {
			t.Fatal(err)
		}
		only(t, dir, "a", "x")
	}
}

// TestRemovedWhileWriting replaces one file from many goroutines while others remove what they take for abandoned.
func TestRemovedWhileWriting(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	var writers, cleaners sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		cleaners.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				entries, err := os.ReadDir(dir)
				for _, e := range entries {
					if _, ok := Temporary(e.Name()); ok {
						err = errors.Join(err, RemoveAbandoned(filepath.Join(dir, e.Name())))
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 4 {
		writers.Go(func() {
			for range 50 {
				if err := Write(path, text("x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	cleaners.Wait()
	only(t, dir, "a", "x")
}
