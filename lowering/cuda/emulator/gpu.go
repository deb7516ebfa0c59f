//go:build linux && (amd64 || arm64)

package emulator

// The device: memory, modules, and how a kernel is launched.

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
)

// Limits that hold for every chip.
const (
	maxThreads = 1024 // of a block
	maxGridYZ  = 65535
)

// gpu is the emulated device. All work is done immediately; streams have no queue.
type gpu struct {
	options  Options
	compiler *Compiler
	engine   *engine

	mu       sync.Mutex
	memory   []*allocation // by address
	ranges   []rangeRecord // the same, for the runtime
	used     int64
	pinned   map[unsafe.Pointer]*allocation
	modules  map[*module]bool
	launches uint64
	lost     error
	closed   bool
}

var _ driver.GPU = (*gpu)(nil)

func newGPU(o Options, c *Compiler, e *engine) driver.GPU {
	return &gpu{options: o, compiler: c, engine: e,
		pinned: map[unsafe.Pointer]*allocation{}, modules: map[*module]bool{}}
}

// alive returns the error of a device that cannot be used any more; call is the name of the call.
func (g *gpu) alive(call string) error {
	switch {
	case g.closed:
		return fmt.Errorf("%s: the device is closed", call)
	case g.lost != nil:
		return fmt.Errorf("%s: %w", call, g.lost)
	}
	return nil
}

func (g *gpu) Chip() kernels.Chip { return g.options.Chip }

// file is a file that the device reads by itself.
type file struct {
	g *gpu
	f *os.File
}

func (g *gpu) OpenFile(path string) (driver.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &file{g, f}, nil
}

func (f *file) Read(dst driver.Ptr, off, bytes int64) error {
	f.g.mu.Lock()
	defer f.g.mu.Unlock()
	if err := f.g.alive("Read"); err != nil {
		return err
	}
	data, known, err := f.g.find(dst, bytes)
	if err == nil {
		_, err = f.f.ReadAt(data, off)
	}
	if err != nil {
		return fmt.Errorf("Read: %s, byte %d: %w", f.f.Name(), off, err)
	}
	fill(known, 1)
	return nil
}

func (f *file) Close() error { return f.f.Close() }

func (g *gpu) Memory() (free, total int64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.options.Memory - g.used, g.options.Memory, g.alive("Memory")
}

func (g *gpu) Alloc(n int64) (driver.Ptr, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.alive("Alloc"); err != nil {
		return 0, err
	}
	if n < 1 {
		return 0, fmt.Errorf("Alloc: %d bytes", n)
	}
	if n > g.options.Memory-g.used {
		return 0, fmt.Errorf("Alloc of %d bytes, %d of %d are free: %w", n, g.options.Memory-g.used, g.options.Memory,
			driver.ErrOutOfMemory)
	}
	a, err := allocate(int(n))
	if err != nil {
		return 0, fmt.Errorf("Alloc of %d bytes: %w: %w", n, driver.ErrOutOfMemory, err)
	}
	g.used += n
	g.insert(a)
	return a.ptr(), nil
}

// insert makes an allocation known to kernels.
func (g *gpu) insert(a *allocation) {
	i, _ := slices.BinarySearchFunc(g.memory, a.ptr(), func(b *allocation, p driver.Ptr) int {
		if b.ptr() < p {
			return -1
		}
		return 1
	})
	g.memory = slices.Insert(g.memory, i, a)
	g.ranges = slices.Insert(g.ranges, i, rangeRecord{uint64(a.ptr()), uint64(len(a.data)), unsafe.Pointer(&a.known[0])})
}

// remove is the reverse of insert; i is the allocation's place.
func (g *gpu) remove(i int) {
	g.memory = slices.Delete(g.memory, i, i+1)
	g.ranges = slices.Delete(g.ranges, i, i+1)
}

func (g *gpu) Free(p driver.Ptr) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("Free: the device is closed")
	}
	i := slices.IndexFunc(g.memory, func(a *allocation) bool { return a.ptr() == p })
	if i < 0 {
		return fmt.Errorf("Free: %#x was not allocated", uint64(p))
	}
	a := g.memory[i]
	g.used -= int64(len(a.data))
	g.remove(i)
	return a.free()
}

func (g *gpu) AllocHost(n int64) (unsafe.Pointer, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.alive("AllocHost"); err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, fmt.Errorf("AllocHost: %d bytes", n)
	}
	a, err := allocate(int(n))
	if err != nil {
		return nil, fmt.Errorf("AllocHost of %d bytes: %w", n, err)
	}
	p := unsafe.Pointer(&a.data[0])
	g.pinned[p] = a
	return p, nil
}

func (g *gpu) FreeHost(p unsafe.Pointer) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.pinned[p]
	if a == nil {
		return fmt.Errorf("FreeHost: %p was not allocated", p)
	}
	delete(g.pinned, p)
	return a.free()
}

func (g *gpu) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	for _, a := range g.memory {
		keep(a.free())
	}
	for _, a := range g.pinned {
		keep(a.free())
	}
	for m := range g.modules {
		keep(m.library.close())
	}
	g.memory, g.ranges, g.pinned, g.modules = nil, nil, nil, nil
	return first
}

func (g *gpu) Load(image []byte) (driver.Module, error) {
	u, err := unitOf(image)
	if err != nil {
		return nil, fmt.Errorf("Load: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.alive("Load"); err != nil {
		return nil, err
	}
	if u.arch != g.options.Chip.Arch {
		return nil, fmt.Errorf("Load: the image is made for sm_%d, the device is an sm_%d", u.arch, g.options.Chip.Arch)
	}
	l, err := g.compiler.open(u)
	if err != nil {
		return nil, fmt.Errorf("Load: %w", err)
	}
	m := &module{gpu: g, library: l}
	g.modules[m] = true
	return m, nil
}

// module is the part of a library that belongs to one source.
type module struct {
	gpu     *gpu
	library *library
}

func (m *module) Function(entry string) (driver.Function, error) {
	e := m.library.entries[entry]
	if e == nil {
		return nil, fmt.Errorf("the module has no function %s", entry)
	}
	return &function{m, entry, e}, nil
}

func (m *module) Unload() error {
	m.gpu.mu.Lock()
	defer m.gpu.mu.Unlock()
	if !m.gpu.modules[m] {
		return fmt.Errorf("Unload: the module is unloaded already")
	}
	delete(m.gpu.modules, m)
	return m.library.close()
}

// function is an entry of a module.
type function struct {
	module *module
	name   string
	entry  *entryRecord
}

// Resources are the resources that a kernel declares; registers are not counted.
func (f *function) Resources() driver.Resources {
	return driver.Resources{MaxThreads: int(f.entry.threads)}
}

// Occupancy is the number of blocks that threads and shared memory allow.
func (f *function) Occupancy(block, shared int) (int, error) {
	if block < 1 || block > int(f.entry.threads) {
		return 0, fmt.Errorf("Occupancy: a block of %d threads, of at most %d", block, f.entry.threads)
	}
	const reserved = 1024 // bytes of shared memory of each block that the system uses
	n := min(2048/roundUp(block, 32), 32, (f.module.gpu.options.Chip.Shared+reserved)/(shared+reserved))
	return n, nil
}

// launch runs a kernel to its end.
func (g *gpu) launch(f *function, grid [3]int, block, shared int, params []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	call := "Launch of " + f.name
	if err := g.alive(call); err != nil {
		return err
	}
	if !g.modules[f.module] || f.module.gpu != g {
		return fmt.Errorf("%s: its module is not loaded", call)
	}
	switch most := g.options.Chip.Shared; {
	case grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[0] > 1<<31-1 || grid[1] > maxGridYZ || grid[2] > maxGridYZ:
		return fmt.Errorf("%s: a grid of %v blocks", call, grid)
	case f.entry.cluster > 0 && grid[0]%int(f.entry.cluster) != 0:
		return fmt.Errorf("%s: a grid of %v blocks, in clusters of %d", call, grid, f.entry.cluster)
	case block < 1 || block > maxThreads || block > int(f.entry.threads):
		return fmt.Errorf("%s: a block of %d threads, of at most %d", call, block, min(maxThreads, f.entry.threads))
	case shared < 0 || shared > most:
		return fmt.Errorf("%s: %d bytes of shared memory, of at most %d", call, shared, most)
	case len(params) != int(f.entry.params) && !(len(params) == 0 && f.entry.params == 1): // an empty struct has 1 byte
		return fmt.Errorf("%s: the parameter has %d bytes, %d were given", call, f.entry.params, len(params))
	}
	g.launches++
	place := make([]byte, len(params)+64) // a tensor map begins at a multiple of 64 bytes
	at := int(-uintptr(unsafe.Pointer(&place[0])) % 64)
	copy(place[at:], params)
	r := &launchRecord{
		entry:  f.entry,
		params: unsafe.Pointer(&place[at]),
		grid:   [3]uint64{uint64(grid[0]), uint64(grid[1]), uint64(grid[2])},
		block:  uint64(block),
		shared: uint64(shared),
		seed:   g.options.Seed + g.launches<<32,
		ranges: unsafe.Pointer(unsafe.SliceData(g.ranges)),
		count:  uint64(len(g.ranges)),
	}
	g.engine.mu.Lock()
	ok := g.engine.launch(unsafe.Pointer(r))
	g.engine.mu.Unlock()
	runtime.KeepAlive(r)
	runtime.KeepAlive(g.ranges)
	if !ok {
		message, _, _ := bytes.Cut(r.message[:], []byte{0})
		g.lost = fmt.Errorf("%w: %s", driver.ErrLost, message)
		return g.alive(call)
	}
	return nil
}
