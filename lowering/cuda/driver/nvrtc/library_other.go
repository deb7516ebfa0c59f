//go:build !linux || !(amd64 || arm64)

package nvrtc

import (
	"fmt"
	"runtime"
)

// Results of the library's functions.
const (
	success = 0
	refused = 6
)

// library is never made here: no NVRTC is loaded on this system.
type library struct {
	path         string
	major, minor int
	chips        []int
}

func open() (*library, error) {
	return nil, fmt.Errorf("CUDA sources are compiled on Linux (amd64, arm64), not on %s (%s)", runtime.GOOS,
		runtime.GOARCH)
}

func (*library) name(int) string { return "" }

func (*library) compile(string, []string) (translation, string, int) {
	return translation{}, "", refused
}
