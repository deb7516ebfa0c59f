// Package fusectest lets Go tests hold a program to its fusions:
//
//	func TestFusions(t *testing.T) {
//		vm := fusec.NewMachine(g)
//		defer vm.Close()
//		fusectest.Check(t, vm)
//	}
//
// The test fails by name when an edit of the model, or another version of fusec, loses a fusion.
package fusectest

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"fusec/graph/fuselock"
	"fusec/graph/trace"
)

var update = flag.Bool("fuselock.update", false, "fusectest.Check writes the lock files in testdata")

// Traced is what has been compiled: a fusec.Machine, a fusec.LispMachine or a fusec.Program.
type Traced interface{ Trace() *trace.Trace }

// Check compares what vm was compiled to with the lock file testdata/NAME.fuselock of the test's package, where NAME is the
// test's, and fails the test with what is lost and why, as `fusec check` does. What is better or has left
// the model is logged. The file has a
// section for each target and precision, so that a test may check several machines.
//
// With the flag -fuselock.update, or -update if the package of the test declares a flag of that name and it is true, Check
// writes the section instead. A missing file or section is an error that names the flag.
func Check(t testing.TB, vm Traced) {
	t.Helper()
	check(t, vm, *update || updates())
}

func check(t testing.TB, vm Traced, update bool) {
	t.Helper()
	if v := reflect.ValueOf(vm); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		t.Fatal("fusectest.Check has no machine and no program")
	}
	tr := vm.Trace()
	now, err := fuselock.Of(tr)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", strings.NewReplacer("/", "-", "\\", "-", ":", "-").Replace(t.Name())+fuselock.Ext)
	file, err := fuselock.Read(path)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case missing:
		file = &fuselock.File{}
	case err != nil:
		t.Fatal(err)
	}
	if update {
		file.Set(now)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := file.Write(path); err != nil {
			t.Fatal(err)
		}
		return
	}
	locked := file.Find(now.Target, now.Precision)
	if locked == nil {
		t.Fatalf("%s has nothing for %s in %s; go test -fuselock.update writes it", path, now.Target, now.Precision)
	}
	v := fuselock.Compare(locked, &now, tr)
	switch {
	case !v.OK():
		t.Errorf("not as %s has it; if that is meant, go test -fuselock.update writes it down\n%s", path, v)
	case len(v.Better)+len(v.Changed) > 0:
		t.Logf("other than %s has it; go test -fuselock.update writes it down\n%s", path, v)
	}
}

// updates reports whether the package of the test has a flag -update that is true.
func updates() bool {
	f := flag.Lookup("update")
	if f == nil {
		return false
	}
	g, ok := f.Value.(flag.Getter)
	return ok && g.Get() == true
}
