//go:build amd64 || arm64

package cufile

import (
	"fmt"
	"os"
	"sync"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"fusec/lowering/cuda/driver/find"
)

const direct = unix.O_DIRECT

// Open loads cuFile and opens its driver, once. The error says where it was searched for, or why it does not work. Unless
// CUFILE_ALLOW_COMPAT_MODE is set, cuFile may not read into the host's memory first: that is what it is not used for.
var Open = sync.OnceValues(open)

func open() (*Library, error) {
	for name, value := range map[string]string{compatible: "false", logs: os.DevNull} {
		if os.Getenv(name) == "" {
			if err := os.Setenv(name, value); err != nil {
				return nil, err
			}
		}
	}
	return find.First(search, load)
}

// load loads the library at path.
func load(path string) (*Library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	l := &Library{Path: path}
	var start func() status
	for name, to := range map[string]any{"cuFileDriverOpen": &start, "cuFileHandleRegister": &l.register,
		"cuFileHandleDeregister": &l.deregister, "cuFileRead": &l.read} {
		at, err := purego.Dlsym(handle, name)
		if err != nil {
			return nil, fmt.Errorf("%s is no cuFile: %w", path, err)
		}
		purego.RegisterFunc(to, at)
	}
	if err := start().err("cuFileDriverOpen"); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}
