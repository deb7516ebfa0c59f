//go:build !linux || !(amd64 || arm64)

package link

import (
	"fmt"
	"runtime"
)

func openLibrary(path string, _ Options) (Link, error) {
	return nil, fmt.Errorf("sim:lib: %s: libraries are loaded on Linux alone, not on %s/%s: use sim", path,
		runtime.GOOS, runtime.GOARCH)
}
