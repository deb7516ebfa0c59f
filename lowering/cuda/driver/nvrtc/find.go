package nvrtc

// The search for NVRTC.

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// names are the library's names, newest first. CUDA 12's library is sufficient except for the newest chips.
var names = []string{"libnvrtc.so.13", "libnvrtc.so.12"}

// Variable is the environment variable that names NVRTC's file or its folder.
const Variable = "FUSEC_NVRTC"

// candidates lists the paths to try in order, and the folders that were searched. Names without a folder are resolved
// by the loader. With $FUSEC_NVRTC nothing else is tried.
func candidates() (paths, searched []string) {
	if set := os.Getenv(Variable); set != "" {
		if info, err := os.Stat(set); err != nil || !info.IsDir() {
			return []string{set}, []string{set}
		}
		return existing([]string{set}), []string{set}
	}
	paths = append(paths, names...)
	folders := folders()
	return append(paths, existing(folders)...), append([]string{"the loader's path"}, folders...)
}

// existing are the libraries in the folders, sorted by name, the newest first, and then by the order of the folders.
func existing(folders []string) []string {
	var paths []string
	for _, name := range names {
		for _, f := range folders {
			path := filepath.Join(f, name)
			if _, err := os.Stat(path); err == nil {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// folders are the folders in which CUDA's installer, `make cuda-tools` and NVIDIA's Python packages put the library.
func folders() []string {
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
		add(filepath.Join(cache, "fusec-cuda/pip/nvidia/cu13/lib"))
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
		add(filepath.Join(p, "lib/python3*/*-packages/nvidia/cu13/lib"),
			filepath.Join(p, "lib/python3*/*-packages/nvidia/cuda_nvrtc/lib"))
	}
	return list
}

// missing is the error with the list of tried paths.
func missing(searched []string, reasons []string) error {
	text := fmt.Sprintf("NVRTC, CUDA's run-time compiler (%s), was not found in %s", strings.Join(names, " or "),
		strings.Join(searched, ", "))
	for _, r := range reasons {
		text += "\n\t" + r
	}
	return fmt.Errorf("%s\ninstall CUDA 12 or 13, or run `make cuda-tools`, or set %s to the library's path", text,
		Variable)
}
