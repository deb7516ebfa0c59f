package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fusec/graph/atomicfile"
	"fusec/graph/graphtest"
)

// names lists a folder.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// save saves states of the given steps.
func save(t *testing.T, d Dir, steps ...int64) (path string) {
	t.Helper()
	for _, step := range steps {
		s := sample(t)
		s.Step = step
		var err error
		if path, err = d.Save(s); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestDue(t *testing.T) {
	for _, c := range []struct {
		every, step int64
		want        bool
	}{{0, 10, false}, {5, 0, false}, {5, 4, false}, {5, 5, true}, {5, 10, true}, {1, 1, true}} {
		if got := (Dir{Every: c.every}).Due(c.step); got != c.want {
			t.Errorf("every %d: step %d is due: %v", c.every, c.step, got)
		}
	}
}

// TestKeepsNewest: a run that was resumed from an older step counts on, and the newest file wins, not the highest step.
func TestKeepsNewest(t *testing.T) {
	d := Dir{Path: filepath.Join(t.TempDir(), "a", "b"), Keep: 2}
	if _, err := d.Latest(); !errors.Is(err, ErrNone) {
		t.Fatalf("no folder: error %v", err)
	}
	save(t, d, 100, 200)
	left := filepath.Join(d.Path, ".000002-step-150.safetensors.1-0.tmp") // by a process that was killed
	other := filepath.Join(d.Path, "notes.txt")
	for _, name := range []string{left, other} {
		graphtest.WriteFile(t, name, []byte("x"))
	}
	long := time.Now().Add(-2 * time.Hour) // which is how it is known where files cannot be locked
	if err := os.Chtimes(left, long, long); err != nil {
		t.Fatal(err)
	}
	path := save(t, d, 120)
	want := []string{"000002-step-200.safetensors", "000003-step-120.safetensors", "notes.txt"}
	if got := names(t, d.Path); !slices.Equal(got, want) {
		t.Errorf("the folder holds %v, want %v", got, want)
	}
	f, err := d.Latest()
	if err != nil || f.Path != path || f.Step != 120 || len(f.Skipped) != 0 {
		t.Fatalf("found %+v, %v", f, err)
	}
	d.Keep = 0
	save(t, d, 130, 140)
	if got := names(t, d.Path); len(got) != 5 {
		t.Errorf("the folder holds %v", got)
	}
}

// TestTwoRuns: one run's Save leaves alone what another one is writing in the same folder.
func TestTwoRuns(t *testing.T) {
	d := Dir{Path: t.TempDir(), Keep: 1}
	other, err := atomicfile.Create(filepath.Join(d.Path, "000001-step-7.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Abort()
	save(t, d, 10)
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	want := []string{"000001-step-10.safetensors", "000001-step-7.safetensors"}
	if got := names(t, d.Path); !slices.Equal(got, want) {
		t.Errorf("the folder holds %v, want %v", got, want)
	}
}

func TestSkipsDamaged(t *testing.T) {
	d := Dir{Path: t.TempDir()}
	save(t, d, 1, 2, 3)
	list := names(t, d.Path)
	damage := func(name string, change func([]byte) []byte) string {
		path := filepath.Join(d.Path, name)
		file := graphtest.ReadFile(t, path)
		graphtest.WriteFile(t, path, change(file))
		return path
	}
	third := damage(list[2], func(b []byte) []byte { return b[:len(b)/2] })
	second := damage(list[1], func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	f, err := d.Latest()
	if err != nil || f.Step != 1 || len(f.Skipped) != 2 {
		t.Fatalf("found %+v, %v", f, err)
	}
	for i, path := range []string{third, second} {
		if !strings.Contains(f.Skipped[i].Error(), path) {
			t.Errorf("%v does not name %s", f.Skipped[i], path)
		}
	}
	first := damage(list[0], func([]byte) []byte { return nil })
	_, err = d.Latest()
	if !errors.Is(err, ErrDamaged) || errors.Is(err, ErrNone) {
		t.Fatalf("nothing is intact: error %v", err)
	}
	for _, path := range []string{first, second, third} {
		if !strings.Contains(err.Error(), path) {
			t.Errorf("error %v does not name %s", err, path)
		}
	}
	// What is not damage is not skipped: a folder cannot be read.
	if err := os.Mkdir(filepath.Join(d.Path, "000009-step-9.safetensors"), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Latest(); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("a folder in a checkpoint's place: error %v", err)
	}
}

// TestFailedSaveRemovesNothing: old checkpoints go only when the new one is there.
func TestFailedSaveRemovesNothing(t *testing.T) {
	d := Dir{Path: t.TempDir(), Keep: 1}
	save(t, d, 1)
	before := names(t, d.Path)
	if path, err := d.Save(&State{Step: -1}); err == nil || path != "" {
		t.Errorf("saved %q, %v", path, err)
	}
	if path, err := d.Save(nil); err == nil || path != "" {
		t.Errorf("saved %q, %v", path, err)
	}
	if err := Save(filepath.Join(d.Path, "x"), nil); err == nil {
		t.Error("saved nothing")
	}
	if got := names(t, d.Path); !slices.Equal(got, before) {
		t.Errorf("the folder holds %v, before %v", got, before)
	}
	d.Path = filepath.Join(d.Path, before[0]) // a file
	if _, err := d.Save(sample(t)); err == nil {
		t.Error("saved into a file")
	}
	if _, err := d.Latest(); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("Latest of a file: %v", err)
	}
}
