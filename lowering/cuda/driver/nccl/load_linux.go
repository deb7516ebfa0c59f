//go:build amd64 || arm64

package nccl

import (
	"fmt"
	"sync"

	"github.com/ebitengine/purego"

	"fusec/lowering/cuda/driver/find"
)

// Open loads NCCL, once. The error says where it was searched for.
var Open = sync.OnceValues(open)

func open() (*Library, error) { return find.First(search, load) }

// load loads the library at path.
func load(path string) (*Library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	l := &Library{Path: path, symbol: func(name string) (uintptr, error) { return purego.Dlsym(handle, name) }}
	at, err := l.Symbol("ncclGetVersion")
	if err != nil {
		return nil, err
	}
	var version func(*int32) int32
	purego.RegisterFunc(&version, at)
	var v int32
	if r := version(&v); r != 0 {
		return nil, fmt.Errorf("%s: ncclGetVersion: result %d", path, r)
	}
	l.version = int(v)
	return checked(l)
}
