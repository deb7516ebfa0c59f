//go:build gpu

package gpu

// Memory that is mapped for all GPUs of this process; see [OpenMapped]. Where one participant has failed, exchanges of the others
// may still use what it frees, so that stays mapped while a communicator knows it.

/*
#include "native.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"fusec/lowering/cuda/driver"
)

var mappings = struct {
	sync.Mutex
	open  map[*peers]bool
	freed map[driver.Ptr]C.size_t // sizes by address
}{open: map[*peers]bool{}, freed: map[driver.Ptr]C.size_t{}}

// allocMapped allocates a block.
func (g *device) allocMapped(bytes int64) (driver.Ptr, error) {
	var at C.CUdeviceptr
	size := C.size_t(bytes)
	err := g.native("cuMemCreate", func(c C.CUcontext) C.CUresult { return C.fusec_alloc_mapped(c, C.CUdevice(g.dev), &size, &at) })
	if err != nil {
		return 0, fmt.Errorf("%d bytes: %w", bytes, err)
	}
	g.blocks.Store(driver.Ptr(at), size)
	return driver.Ptr(at), nil
}

// freeMapped frees a block, once all work of this GPU is done.
func (g *device) freeMapped(at driver.Ptr) error {
	size, ok := g.blocks.LoadAndDelete(at)
	if !ok {
		return fmt.Errorf("there is no block at %#x", at)
	}
	if r := C.fusec_sync(*(*C.CUcontext)(unsafe.Pointer(&g.context))); r != C.CUDA_SUCCESS {
		return failure("cuCtxSynchronize", r)
	}
	mappings.Lock()
	defer mappings.Unlock()
	mappings.freed[at] = size.(C.size_t)
	return unmapFreed()
}

// unmapFreed unmaps the freed blocks that no communicator knows.
func unmapFreed() error {
	var errs []error
	for at, size := range mappings.freed {
		known := false
		for p := range mappings.open {
			known = known || p.knows(at, at+driver.Ptr(size))
		}
		if !known {
			delete(mappings.freed, at)
			errs = append(errs, failure("cuMemUnmap", C.fusec_unmap_block(C.CUdeviceptr(at), size)))
		}
	}
	return errors.Join(errs...)
}

// knows reports whether a participant has something between two addresses.
func (p *peers) knows(from, to driver.Ptr) bool {
	for _, list := range p.known {
		for _, at := range list {
			if at := driver.Ptr(at); from <= at && at < to {
				return true
			}
		}
	}
	return false
}
