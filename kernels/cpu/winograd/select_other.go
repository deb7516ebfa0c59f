//go:build !amd64

package winograd

func native() []kernel { return nil }
