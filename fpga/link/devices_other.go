//go:build !linux

package link

import (
	"fmt"
	"runtime"
)

func openSerial(path string, _ int, _ Options) (Link, error) {
	return nil, fmt.Errorf("serial:%s: serial lines are reached on Linux alone, not on %s", path, runtime.GOOS)
}

func openXDMA(path string, _ Options) (Link, error) {
	return nil, fmt.Errorf("xdma:%s: cards are reached on Linux alone, not on %s", path, runtime.GOOS)
}
