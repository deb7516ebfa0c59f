package local

import "golang.org/x/sys/unix"

// brand is the processor's name as macOS gives it.
func brand() string {
	name, err := unix.Sysctl("machdep.cpu.brand_string")
	if err != nil {
		return ""
	}
	return name
}
