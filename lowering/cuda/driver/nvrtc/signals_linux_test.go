package nvrtc_test

import (
	"sync"
	"syscall"
	"testing"
	"unsafe"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// TestSignals: after compilations, several at a time, signals do what they did before, with the same flags.
func TestSignals(t *testing.T) {
	actions := func() (list [3][4]uint64) {
		for i, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGXFSZ} {
			if _, _, e := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), 0, uintptr(unsafe.Pointer(&list[i])), 8, 0, 0); e != 0 {
				t.Fatal(e)
			}
		}
		return list
	}
	c := nvrtctest.Open(t)
	before := actions()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, _, err := c.Compile(`extern "C" __global__ void f() {}`, kernels.ChipOf(90)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if after := actions(); after != before {
		t.Errorf("signals do %x, and did %x", after, before)
	}
}
