//go:build !amd64 && !arm64

package panel

func native() []*kernel { return nil }
