//go:build !amd64

package panel

func native() []*kernel { return nil }
