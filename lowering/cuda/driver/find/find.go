// Package find finds NVIDIA's libraries, which are loaded when they are needed.
package find

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Search says what is searched for.
type Search struct {
	What     string   // the library is, for errors
	Names    []string // of its file, the best first
	Variable string   // the environment variable that names its file or its folder
	Python   []string // the folders of NVIDIA's Python packages, below nvidia, in which it is
	Advice   string   // how to install it
}

// First loads the first library that can be loaded.
func First[T any](s Search, load func(path string) (T, error)) (T, error) {
	paths, searched := s.candidates()
	var reasons []string
	for _, path := range paths {
		lib, err := load(path)
		if err == nil {
			return lib, nil
		}
		if filepath.Base(path) != path { // it exists, but cannot be loaded
			reasons = append(reasons, err.Error())
		}
	}
	var none T
	return none, s.missing(searched, reasons)
}

// candidates lists the paths to try in order, and the folders that were searched. Names without a folder are resolved
// by the loader. If the variable is set nothing else is tried.
func (s Search) candidates() (paths, searched []string) {
	if set := os.Getenv(s.Variable); set != "" {
		if info, err := os.Stat(set); err != nil || !info.IsDir() {
			return []string{set}, []string{set}
		}
		return s.existing([]string{set}), []string{set}
	}
	paths = append(paths, s.Names...)
	folders := s.Folders()
	return append(paths, s.existing(folders)...), append([]string{"the loader's path"}, folders...)
}

// existing are the libraries in the folders, sorted by name, the newest first, and then by the order of the folders.
func (s Search) existing(folders []string) []string {
	var paths []string
	for _, name := range s.Names {
		for _, f := range folders {
			path := filepath.Join(f, name)
			if _, err := os.Stat(path); err == nil {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// Folders are the folders in which CUDA's installer, `make cuda-tools` and NVIDIA's Python packages put the library.
func (s Search) Folders() []string {
	var list []string
	add := func(patterns ...string) {
		for _, p := range patterns {
			found, _ := filepath.Glob(p)
			slices.Reverse(found) // newer versions first
			if found == nil && !strings.ContainsAny(p, "*?[") {
				found = []string{p} // so that the error names it
			}
			list = append(list, found...)
		}
	}
	if p := os.Getenv("CUDA_PATH"); p != "" {
		add(filepath.Join(p, "lib64"))
	}
	add("/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64")
	if cache, err := os.UserCacheDir(); err == nil {
		for _, folder := range s.Python {
			if p := filepath.Join(cache, "fusec-cuda/pip/nvidia", folder, "lib"); folder == s.Python[0] || exists(p) {
				add(p)
			}
		}
	}
	var pythons []string
	for _, v := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if p := os.Getenv(v); p != "" {
			pythons = append(pythons, p)
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		pythons = append(pythons, filepath.Join(home, ".local"), filepath.Join(home, ".pyenv/versions/*"))
	}
	for _, p := range append(pythons, "/usr/local", "/usr") {
		for _, folder := range s.Python {
			add(filepath.Join(p, "lib/python3*/*-packages/nvidia", folder, "lib"))
		}
	}
	return list
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// missing is the error with the list of tried paths.
func (s Search) missing(searched []string, reasons []string) error {
	text := fmt.Sprintf("%s (%s) was not found in %s", s.What, strings.Join(s.Names, " or "), strings.Join(searched, ", "))
	for _, r := range reasons {
		text += "\n\t" + r
	}
	return fmt.Errorf("%s\n%s, or set %s to the library's path", text, s.Advice, s.Variable)
}
