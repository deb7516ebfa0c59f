//go:build !amd64 && !arm64

package winograd

func native() []kernel { return nil }
