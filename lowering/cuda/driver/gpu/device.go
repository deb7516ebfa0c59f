//go:build gpu

package gpu

// A device and its memory.

/*
#include "native.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
)

// load loads and initialises the driver, once.
var load = sync.OnceValue(func() error {
	var message *C.char
	switch r := C.fusec_cuda_load(&message); r {
	case C.CUDA_SUCCESS:
	case -1:
		return fmt.Errorf("there is no CUDA driver on this machine: %s", C.GoString(message))
	case C.CUDA_ERROR_NO_DEVICE:
		return errors.New("this machine has no GPU that CUDA can use (CUDA_ERROR_NO_DEVICE)")
	default:
		return failure("cuInit", C.CUresult(r))
	}
	if has, want := cu.Version(), int(C.CUDA_VERSION); has/1000 < want/1000 {
		return fmt.Errorf("the driver is of CUDA %d.%d, and this program was built for CUDA %d: install a newer driver, "+
			"or build with CUDA %[1]d", has/1000, has%1000/10, want/1000)
	}
	return nil
})

// Count is the number of GPUs.
func Count() (int, error) {
	if err := load(); err != nil {
		return 0, err
	}
	n, err := cu.NumDevices()
	return n, failed("cuDeviceGetCount", err)
}

// device is an opened GPU.
type device struct {
	chip    kernels.Chip
	context cu.CUContext
	primary bool // the context is the primary one of dev
	mapped  bool // memory is mapped for all GPUs, and belongs to no context
	dev     cu.Device
	blocks  sync.Map // the sizes of mapped blocks by address

	mu     sync.RWMutex // Close waits for the calls that run
	closed bool
}

var _ driver.GPU = (*device)(nil)

// Open opens the GPU with an index, from 0, and makes a context for it.
func Open(index int) (driver.GPU, error) { return openGPU(index, false, false) }

// OpenPrimary opens the GPU with an index, from 0, with its primary context, which other users of CUDA in the process share.
// NCCL uses no other.
func OpenPrimary(index int) (driver.GPU, error) { return openGPU(index, true, false) }

// OpenMapped is OpenPrimary for a GPU that others of this process exchange values with. Its memory is mapped for all of them, and
// belongs to no context. Between memory of two contexts a copy engine's copy takes a queue of each, and deadlocks where that waits
// for the copy.
func OpenMapped(index int) (driver.GPU, error) { return openGPU(index, true, true) }

func openGPU(index int, primary, mapped bool) (driver.GPU, error) {
	n, err := Count()
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= n {
		return nil, fmt.Errorf("there is no GPU %d: this machine has %d, counted from 0", index, n)
	}
	dev, err := cu.GetDevice(index)
	if err != nil {
		return nil, failed("cuDeviceGet", err)
	}
	g := &device{dev: dev, primary: primary}
	if mapped {
		has, err := dev.Attribute(C.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
		if err != nil {
			return nil, failed("cuDeviceGetAttribute", err)
		}
		g.mapped = has != 0
	}
	if g.chip, err = chipOf(dev); err != nil {
		return nil, err
	}
	if primary {
		if g.context, err = dev.RetainPrimaryCtx(); err != nil {
			return nil, failed("cuDevicePrimaryCtxRetain", err)
		}
		return g, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if g.context, err = dev.MakeContext(cu.SchedAuto); err != nil {
		if err = failed("cuCtxCreate", err); errors.Is(err, driver.ErrLost) {
			err = fmt.Errorf("%w; after a kernel has gone wrong the driver serves its process no more: start it again", err)
		}
		return nil, err
	}
	if err := failure("cuCtxPopCurrent", C.fusec_pop()); err != nil { // a new context is current at first
		return nil, err
	}
	return g, nil
}

// chipOf asks the driver for the properties of the chip.
func chipOf(dev cu.Device) (kernels.Chip, error) {
	var c kernels.Chip
	var err error
	if c.Name, err = dev.Name(); err != nil {
		return c, failed("cuDeviceGetName", err)
	}
	var major, minor int
	for _, a := range []struct {
		to   *int
		what cu.DeviceAttribute
	}{
		{&major, C.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
		{&minor, C.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
		{&c.SMs, C.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
		{&c.Shared, C.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
		{&c.L2, C.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
	} {
		if *a.to, err = dev.Attribute(a.what); err != nil {
			return c, failed("cuDeviceGetAttribute", err)
		}
	}
	c.Arch = 10*major + minor
	return c, nil
}

func (g *device) Chip() kernels.Chip { return g.chip }

var errClosed = errors.New("the GPU is closed")

// do calls the driver through cu: fn runs on one thread, on which the context is current.
func (g *device) do(call string, fn func() error) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		return fmt.Errorf("%s: %w", call, errClosed)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.PushCurrentCtx(g.context); err != nil {
		return failed("cuCtxPushCurrent", err)
	}
	err := failed(call, fn())
	if r := C.fusec_pop(); err == nil {
		err = failure("cuCtxPopCurrent", r)
	}
	return err
}

// native calls a function of native.h, which makes the context current itself.
func (g *device) native(call string, fn func(C.CUcontext) C.CUresult) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		return fmt.Errorf("%s: %w", call, errClosed)
	}
	return failure(call, fn(*(*C.CUcontext)(unsafe.Pointer(&g.context))))
}

// release is do for resources that are freed with the context: it does nothing after the context has been closed.
func (g *device) release(call string, fn func() error) error {
	err := g.do(call, fn)
	if errors.Is(err, errClosed) {
		return nil
	}
	return err
}

// Alloc returns the address 0 for 0 bytes.
func (g *device) Alloc(bytes int64) (driver.Ptr, error) {
	if bytes < 0 {
		return 0, fmt.Errorf("cuMemAlloc: %d bytes", bytes)
	}
	if bytes == 0 {
		return 0, nil
	}
	if g.mapped {
		return g.allocMapped(bytes)
	}
	var p cu.DevicePtr
	err := g.do("cuMemAlloc", func() (err error) { p, err = cu.MemAlloc(bytes); return err })
	if err != nil {
		return 0, fmt.Errorf("%d bytes: %w", bytes, err)
	}
	return driver.Ptr(p), nil
}

func (g *device) Free(p driver.Ptr) error {
	if p == 0 {
		return nil
	}
	if g.mapped {
		return g.release("cuMemUnmap", func() error { return g.freeMapped(p) })
	}
	return g.release("cuMemFree", func() error { return cu.MemFree(cu.DevicePtr(p)) })
}

func (g *device) AllocHost(bytes int64) (unsafe.Pointer, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("cuMemHostAlloc: %d bytes", bytes)
	}
	var p unsafe.Pointer
	err := g.native("cuMemHostAlloc", func(c C.CUcontext) C.CUresult {
		return C.fusec_alloc_host(c, C.size_t(bytes), &p)
	})
	if errors.Is(err, driver.ErrOutOfMemory) { // host memory, not the GPU's
		return nil, fmt.Errorf("cuMemHostAlloc: the host has no %d bytes of memory to pin", bytes)
	}
	return p, err
}

func (g *device) FreeHost(p unsafe.Pointer) error {
	if p == nil {
		return nil
	}
	return g.release("cuMemFreeHost", func() error { return cu.MemFreeHost(p) })
}

func (g *device) Memory() (free, total int64, err error) {
	err = g.do("cuMemGetInfo", func() (err error) { free, total, err = cu.MemInfo(); return err })
	return free, total, err
}

// Close waits for running calls and for the work that they have queued. Closing again does nothing.
func (g *device) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	var err error
	g.blocks.Range(func(at, _ any) bool {
		err = g.freeMapped(at.(driver.Ptr))
		return err == nil
	})
	if g.primary {
		err = errors.Join(err, failed("cuDevicePrimaryCtxRelease", g.dev.ReleasePrimaryCtx()))
	} else {
		err = errors.Join(err, failed("cuCtxDestroy", g.context.Destroy()))
	}
	if errors.Is(err, driver.ErrLost) {
		return nil // already reported to the user, and it is closed
	}
	return err
}
