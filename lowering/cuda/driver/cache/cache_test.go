package cache

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fusec/graph/atomicfile"
	kernels "fusec/kernels/cuda"
)

// fake is a compiler that counts what it is asked for.
type fake struct {
	version string
	calls   atomic.Int64
	wait    chan struct{} // if not nil, a compilation waits for it
	err     error
}

func (f *fake) Version() string { return f.version }

func (f *fake) Compile(source string, chip kernels.Chip) ([]byte, string, error) {
	f.calls.Add(1)
	if f.wait != nil {
		<-f.wait
	}
	if f.err != nil {
		return nil, "said", f.err
	}
	return []byte("image of " + source), "log for " + chip.Target(), nil
}

// compile checks the image and how often the compiler has been called.
func compile(t *testing.T, c *Compiler, f *fake, source string, chip kernels.Chip, of string, calls int64) {
	t.Helper()
	image, log, err := c.Compile(source, chip)
	if err != nil {
		t.Fatal(err)
	}
	if string(image) != "image of "+of || log != "log for "+chip.Target() {
		t.Errorf("%q for %s: got %q, %q", source, chip.Target(), image, log)
	}
	if n := f.calls.Load(); n != calls {
		t.Errorf("%q for %s: %d compilations, want %d", source, chip.Target(), n, calls)
	}
}

func TestFinds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet")
	f := &fake{version: "1"}
	c := New(f, dir)
	ada, hopper := kernels.ChipOf(89), kernels.H200
	compile(t, c, f, "a; // x", hopper, "a; // x", 1)
	compile(t, c, f, "a; // x", hopper, "a; // x", 1)
	compile(t, c, f, "a; // y", hopper, "a; // x", 1) // comments do not count
	compile(t, c, f, "b;", hopper, "b;", 2)
	compile(t, c, f, "a;", ada, "a;", 3)
	compile(t, New(f, dir), f, "b;", hopper, "b;", 3) // another process, another day
	newer := &fake{version: "2"}
	compile(t, New(newer, dir), newer, "b;", hopper, "b;", 1)
	if v := c.Version(); v != "1" {
		t.Errorf("the version is %q", v)
	}
}

func TestDamage(t *testing.T) {
	for name, damage := range map[string]func(b []byte) []byte{
		"empty":            func([]byte) []byte { return nil },
		"truncated":        func(b []byte) []byte { return b[:len(b)-1] },
		"head only":        func(b []byte) []byte { return b[:len(magic)+10] },
		"a byte changed":   func(b []byte) []byte { b[len(b)-3] ^= 1; return b },
		"the sum changed":  func(b []byte) []byte { b[len(magic)] ^= 1; return b },
		"another format":   func(b []byte) []byte { b[0] ^= 1; return b },
		"something longer": func(b []byte) []byte { return append(b, 0) },
	} {
		f := &fake{}
		dir := t.TempDir()
		c := New(f, dir)
		compile(t, c, f, "a;", kernels.H200, "a;", 1)
		path := filepath.Join(dir, c.key("a;", kernels.H200)+suffix)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, damage(b), 0o666); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			compile(t, c, f, "a;", kernels.H200, "a;", 2)
			compile(t, c, f, "a;", kernels.H200, "a;", 2)
		})
	}
}

func TestLogLongerThanEntry(t *testing.T) {
	// An entry whose sum is right and whose log is longer than all of it: written by something else.
	b := encode([]byte("image"), "")
	body := b[len(magic)+32:]
	body[0] = 200
	fixed := encode(body[8:], "")
	copy(fixed[len(magic)+32:], body)
	path := filepath.Join(t.TempDir(), "a"+suffix)
	if err := os.WriteFile(path, fixed, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := read(path); ok {
		t.Error("it was read")
	}
}

func TestErrorsAreNotKept(t *testing.T) {
	f := &fake{err: errors.New("refused")}
	c := New(f, t.TempDir())
	for range 2 {
		if _, log, err := c.Compile("a;", kernels.H200); !errors.Is(err, f.err) || log != "said" {
			t.Errorf("got %q, %v", log, err)
		}
	}
	f.err = nil
	compile(t, c, f, "a;", kernels.H200, "a;", 3)
}

func TestFolderThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	f := &fake{}
	c := New(f, filepath.Join(file, "sub"))
	compile(t, c, f, "a;", kernels.H200, "a;", 1)
	compile(t, c, f, "a;", kernels.H200, "a;", 2)
}

func TestGoroutinesCompileOnce(t *testing.T) {
	f := &fake{wait: make(chan struct{})}
	c := New(f, t.TempDir())
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			source := fmt.Sprint(i % 2)
			if image, _, err := c.Compile(source, kernels.H200); err != nil || string(image) != "image of "+source {
				t.Errorf("%s: got %q, %v", source, image, err)
			}
		})
	}
	close(f.wait)
	all.Wait()
	if n := f.calls.Load(); n != 2 {
		t.Errorf("%d compilations, want 2", n)
	}
}

// size is what the folder holds, in bytes of entries.
func size(t *testing.T, dir string) (total int64) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	return total
}

func TestLimit(t *testing.T) {
	f := &fake{}
	dir := t.TempDir()
	c := New(f, dir)
	age := func(source string, hours int) {
		then := time.Now().Add(-time.Duration(hours) * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, c.key(source, kernels.H200)+suffix), then, then); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		compile(t, c, f, fmt.Sprint(i), kernels.H200, fmt.Sprint(i), int64(i+1))
		age(fmt.Sprint(i), 9-i)
	}
	one := size(t, dir) / 4
	compile(t, c, f, "0", kernels.H200, "0", 4) // the oldest is used again
	c.Limit = 3 * one
	abandoned := ".x" + suffix + ".1-0.tmp"
	for _, stray := range []string{"note.txt", abandoned} {
		if err := os.WriteFile(filepath.Join(dir, stray), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, abandoned), long, long); err != nil {
		t.Fatal(err)
	}
	writing, err := atomicfile.Create(filepath.Join(dir, "y"+suffix)) // by a process that is alive
	if err != nil {
		t.Fatal(err)
	}
	defer writing.Abort()
	compile(t, c, f, "4", kernels.H200, "4", 5)
	if got := size(t, dir); got != 3*one {
		t.Errorf("%d bytes are kept, want %d", got, 3*one)
	}
	for source, there := range map[string]bool{"0": true, "1": false, "2": false, "3": true, "4": true} {
		if _, _, ok := read(filepath.Join(dir, c.key(source, kernels.H200)+suffix)); ok != there {
			t.Errorf("image %s is kept: %v, want %v", source, ok, there)
		}
	}
	for name, there := range map[string]bool{
		"note.txt": true, abandoned: false, fmt.Sprintf(".y%s.%d-0.tmp", suffix, os.Getpid()): true,
	} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != there {
			t.Errorf("%s is kept: %v, want %v", name, err == nil, there)
		}
	}
	c.Limit = 1 // even so, what was just made stays
	compile(t, c, f, "5", kernels.H200, "5", 6)
	compile(t, c, f, "5", kernels.H200, "5", 6)
}

func TestFolder(t *testing.T) {
	t.Setenv(Variable, "/some/where")
	if dir, err := Folder(); dir != "/some/where" || err != nil {
		t.Errorf("got %s, %v", dir, err)
	}
	t.Setenv(Variable, "")
	t.Setenv("XDG_CACHE_HOME", "/cache")
	t.Setenv("HOME", "/home")
	if dir, err := Folder(); !strings.HasSuffix(filepath.ToSlash(dir), "/fusec/cuda") || err != nil {
		t.Errorf("got %s, %v", dir, err)
	}
}

// TestProcesses lets two processes use one folder at once: this program, started twice more.
func TestProcesses(t *testing.T) {
	const variable = "FUSEC_CACHE_TEST_CHILD"
	const images = 50
	if dir := os.Getenv(variable); dir != "" {
		f := &fake{}
		for round := range 4 {
			c := New(f, dir)
			c.Limit = 2000 // so that one removes what the other has made
			for i := range images {
				source := fmt.Sprint((i*7 + round) % images)
				image, _, err := c.Compile(source, kernels.H200)
				if err != nil || string(image) != "image of "+source {
					t.Fatalf("%s: got %q, %v", source, image, err)
				}
			}
		}
		return
	}
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestProcesses$")
			cmd.Env = append(os.Environ(), variable+"="+dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	all.Wait()
	f := &fake{}
	c := New(f, dir)
	found := 0
	for i := range images {
		if _, _, ok := read(filepath.Join(dir, c.key(fmt.Sprint(i), kernels.H200)+suffix)); ok {
			found++
		}
	}
	if left := size(t, dir); found == 0 || left > 4000 {
		t.Errorf("%d images of %d bytes are left", found, left)
	}
}
