//go:build gpu

package gpu

// Modules and their functions.

/*
#include "native.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"fusec/lowering/cuda/driver"
)

type module struct {
	g *device
	m cu.Module
}

func (g *device) Load(image []byte) (driver.Module, error) {
	if len(image) == 0 {
		return nil, fmt.Errorf("cuModuleLoadData: the image is empty")
	}
	m := &module{g: g}
	err := g.do("cuModuleLoadData", func() (err error) { m.m, err = cu.LoadData(string(image)); return err })
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (m *module) Unload() error {
	return m.g.release("cuModuleUnload", func() error { return m.m.Unload() })
}

type function struct {
	g         *device
	f         cu.Function
	entry     string
	resources driver.Resources
	early     bool
	together  bool
	rounds    bool
	params    int // bytes of its only parameter; -1 if not known

	mu      sync.Mutex
	dynamic int            // bytes of dynamic shared memory that launches may use
	atOnce  map[[2]int]int // blocks of clusters that run at the same time, by threads of a block and its dynamic shared memory
}

// StartEarly implements [driver.EarlyFunction].
func (f *function) StartEarly() { f.early = true }

// StartTogether implements [driver.TogetherFunction].
func (f *function) StartTogether() { f.together = true }

// StartRounds implements [driver.RoundsFunction].
func (f *function) StartRounds() { f.rounds = true }

// Static and dynamic shared memory together may have this size by default; more has to be enabled.
const usualShared = 48 << 10

func (m *module) Function(entry string) (driver.Function, error) {
	f := &function{g: m.g, entry: entry}
	err := m.g.do("cuModuleGetFunction", func() (err error) { f.f, err = m.m.Function(entry); return err })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", entry, err)
	}
	r := &f.resources
	for _, a := range []struct {
		to   *int
		what cu.FunctionAttribute
	}{
		{&r.Registers, C.CU_FUNC_ATTRIBUTE_NUM_REGS},
		{&r.Local, C.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES},
		{&r.Shared, C.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES},
		{&r.MaxThreads, C.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
	} {
		err := m.g.do("cuFuncGetAttribute", func() (err error) { *a.to, err = f.f.Attribute(a.what); return err })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entry, err)
		}
	}
	var params C.int
	err = m.g.native("cuFuncGetParamInfo", func(c C.CUcontext) C.CUresult {
		return C.fusec_params(c, f.native(), &params)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", entry, err)
	}
	f.params = int(params)
	f.dynamic = usualShared - r.Shared
	return f, nil
}

func (f *function) Resources() driver.Resources { return f.resources }

// allow enables the given size of dynamic shared memory for launches of the function.
func (f *function) allow(shared int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if shared <= f.dynamic {
		return nil
	}
	err := f.g.native("cuFuncSetAttribute", func(c C.CUcontext) C.CUresult {
		return C.fusec_shared(c, f.native(), C.int(shared))
	})
	if err != nil {
		return fmt.Errorf("%s: %d bytes of dynamic shared memory and %d of static, where the chip has %d: %w", f.entry,
			shared, f.resources.Shared, f.g.chip.Shared, err)
	}
	f.dynamic = shared
	return nil
}

func (f *function) Occupancy(block, shared int) (blocks int, err error) {
	if err := f.allow(shared); err != nil {
		return 0, err
	}
	err = f.g.do("cuOccupancyMaxActiveBlocksPerMultiprocessor", func() (err error) {
		blocks, err = f.f.MaxActiveBlocksPerMultiProcessor(block, int64(shared))
		return err
	})
	return blocks, err
}

// inRounds is how many of the blocks that a launch asks for it needs, where they go over what others leave.
func (f *function) inRounds(blocks, block, shared int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := [2]int{block, shared}
	if _, ok := f.atOnce[key]; !ok {
		var n C.int
		err := f.g.native("cuOccupancyMaxActiveClusters", func(c C.CUcontext) C.CUresult {
			return C.fusec_blocks_of_clusters(c, f.native(), C.uint(block), C.uint(shared), &n)
		})
		if err != nil {
			return 0, fmt.Errorf("%s, blocks of %d threads, %d bytes of shared memory: %w", f.entry, block, shared, err)
		}
		if f.atOnce == nil {
			f.atOnce = map[[2]int]int{}
		}
		f.atOnce[key] = int(n)
	}
	if n := f.atOnce[key]; n > 0 {
		blocks = min(blocks, n)
	}
	return blocks, nil
}

func (f *function) native() C.CUfunction { return *(*C.CUfunction)(unsafe.Pointer(&f.f)) }
