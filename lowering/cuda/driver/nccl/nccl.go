// Package nccl finds and loads NCCL, NVIDIA's library of collective operations, when a program joins a group of GPUs. Package
// gpu calls it.
package nccl

import (
	"fmt"
	"os"
	"strconv"

	"fusec/lowering/cuda/driver/find"
)

// Variable is the environment variable that names NCCL's file or its folder.
const Variable = "FUSEC_NCCL"

var search = find.Search{
	What: "NCCL, NVIDIA's library of collective operations", Names: []string{"libnccl.so.2"}, Variable: Variable,
	Python: []string{"nccl"}, Advice: "install it (on Debian and Ubuntu: libnccl2; PyTorch's packages have it)",
}

// oldest is the first version whose communicators are configured as package gpu does it, major·10000 + minor·100 + patch.
const oldest = 21700

// Library is a loaded NCCL. It is never unloaded.
type Library struct {
	Path    string
	version int
	symbol  func(name string) (uintptr, error)
}

// Version is the library's version, such as 2.28.3.
func (l *Library) Version() string {
	return fmt.Sprintf("%d.%d.%d", l.version/10000, l.version/100%100, l.version%100)
}

// Symbol is the address of a function.
func (l *Library) Symbol(name string) (uintptr, error) {
	at, err := l.symbol(name)
	if err != nil {
		return 0, fmt.Errorf("%s is no NCCL %d.%d or later: %w", l.Path, oldest/10000, oldest/100%100, err)
	}
	return at, nil
}

// Limit refuses a limit to the blocks of threads of an exchange that variables of the environment, which NCCL puts before what a
// program asks for, raise; 0 is none.
func Limit(blocks int) error {
	if blocks == 0 {
		return nil
	}
	for _, name := range []string{"NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"} {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > blocks {
			return fmt.Errorf("exchanges of at most %d blocks of threads: %s=%d has NCCL take more", blocks, name, n)
		}
	}
	return nil
}

// checked refuses a library that is too old.
func checked(l *Library) (*Library, error) {
	if l.version < oldest {
		return nil, fmt.Errorf("%s is NCCL %s: want %d.%d or later", l.Path, l.Version(), oldest/10000, oldest/100%100)
	}
	return l, nil
}
