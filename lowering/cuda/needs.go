package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"fusec/lowering"
)

// libraryFolders are where shared libraries lie.
var libraryFolders = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
	"/usr/lib/wsl/lib",
	"/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"}

// needs tells what is there: the driver, GPUs, the compiler of kernels, NCCL and cuFile.
func needs() []lowering.Need {
	n, err := Count()
	if err == nil && n == 0 {
		err = errors.New("there are none")
	}
	gpus := lowering.Need{Name: "GPUs", Found: fmt.Sprint(n), Err: err}
	compiler := lowering.Need{Name: "CUDA run-time compiler", For: ", compiling for it ahead of time, and dump --format ptx"}
	compiler.Found, compiler.Err = compilerName()
	collectives := lowering.Need{Name: "NCCL", For: " in a group of several GPUs"}
	collectives.Found, collectives.Err = exchanger()
	files := lowering.Need{Name: "cuFile", For: " where it reads files straight into its memory"}
	files.Found, files.Err = fileReader()
	return append(driverIn("/proc", libraryFolders), gpus, compiler, collectives, files,
		lowering.Need{Name: "nvcc", For: ", developing its kernels; running them does without", Version: []string{"--version"}})
}

// driverIn looks for the driver and its library.
func driverIn(proc string, folders []string) []lowering.Need {
	driver := lowering.Need{Name: "NVIDIA driver", Err: errors.New("no driver is loaded")}
	if src, err := os.ReadFile(filepath.Join(proc, "driver/nvidia/version")); err == nil {
		driver.Err = nil
		driver.Found, _, _ = strings.Cut(strings.TrimSpace(string(src)), "\n")
	}
	const pattern = "libcuda.so*"
	library := lowering.Need{Name: "CUDA driver library", Err: errors.New(pattern + " was not found")}
	for _, dir := range append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), folders...) {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 {
			library.Found, library.Err = found[0], nil
			break
		}
	}
	return []lowering.Need{driver, library}
}
