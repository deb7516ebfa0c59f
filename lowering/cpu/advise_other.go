//go:build !linux

package cpu

// adviseLarge does nothing: see advise_linux.go.
func adviseLarge([]byte) {}
