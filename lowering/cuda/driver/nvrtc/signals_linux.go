//go:build amd64 || arm64

package nvrtc

import (
	"sync"
	"syscall"
	"unsafe"
)

// While NVRTC compiles it has handlers of its own for some signals. Afterwards it sets those that were there before, but by
// signal(2), which takes the flag SA_ONSTACK from them. A Go program whose handlers lack it ends with a fatal error when the signal
// comes.

// handled are the signals.
var handled = [...]syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGXFSZ}

// action is the kernel's struct sigaction: a handler, flags, a restorer and a mask.
type action [4]uint64

// actions are those of the signals before the first of the compilations that are under way.
var actions struct {
	sync.Mutex
	compiling int
	before    [len(handled)]action
}

// keepSignals notes what the signals do. The function that it returns has them do it again.
func keepSignals() (restore func()) {
	a := &actions
	a.Lock()
	defer a.Unlock()
	if a.compiling++; a.compiling == 1 {
		for i, s := range handled {
			sigaction(s, nil, &a.before[i])
		}
	}
	return func() {
		a.Lock()
		defer a.Unlock()
		a.compiling--
		for i, s := range handled {
			sigaction(s, &a.before[i], nil)
		}
	}
}

// sigaction changes and reads what a signal does. It cannot fail for these signals.
func sigaction(s syscall.Signal, to, was *action) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(was)),
		unsafe.Sizeof(action{}[3]), 0, 0)
}
