// Package layoutcache gives the layout engine, go-graphviz, a folder for its machine code that other users of the machine cannot
// write. The engine takes one in the folder of temporary files while its package is initialised, and panics if that has a file
// of another user's. Packages are initialised in the order of their paths as far as imports allow, so this one, which imports
// little, precedes it in a module whose path sorts before github.com/goccy.
package layoutcache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// variable names the folder of temporary files, where the system does not give each user one.
const variable = "TMPDIR"

var before, had = os.LookupEnv(variable)

func init() { os.Setenv(variable, folder()) }

// Restore gives programs the folder of temporary files back, once the engine is initialised.
func Restore() {
	if had {
		os.Setenv(variable, before)
	} else {
		os.Unsetenv(variable)
	}
}

// folder is where the engine finds or makes its own; one that does not exist, so that it does without, if that would fail.
func folder() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return os.DevNull
	}
	dir := filepath.Join(cache, "fusec")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return os.DevNull
	}
	err = filepath.WalkDir(filepath.Join(dir, "go-graphviz"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var f *os.File
		if d.IsDir() {
			if f, err = os.CreateTemp(path, "writable"); err == nil {
				err = os.Remove(f.Name())
			}
		} else {
			f, err = os.Open(path)
		}
		return errors.Join(err, f.Close())
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return os.DevNull
	}
	return dir
}
