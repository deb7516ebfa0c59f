//go:build !darwin

package local

// brand is the processor's name as the operating system gives it by a call; none but macOS does.
func brand() string { return "" }
