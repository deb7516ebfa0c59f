//go:build linux && (amd64 || arm64)

package emulator

// Libraries of kernels, and the runtime that they call.

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// A launchRecord is struct Launch of src/runtime.h.
type launchRecord struct {
	entry         *entryRecord
	params        unsafe.Pointer
	grid          [3]uint64
	block, shared uint64
	seed          uint64
	ranges        unsafe.Pointer // rangeRecords, by address
	count         uint64
	message       [1024]byte
}

// An entryRecord is struct Entry of src/host.h.
type entryRecord struct {
	unit, name      *byte
	run             uintptr
	params, threads uint64
	cluster         uint64  // blocks; 0: all of the launch, which run together
	fixed, fixedEnd uintptr // shared memory of a fixed size
	next            *entryRecord
}

// A rangeRecord is struct Range of src/runtime.h.
type rangeRecord struct {
	base, bytes uint64
	known       unsafe.Pointer
}

// An engine is the loaded runtime. It runs one launch at a time.
type engine struct {
	mu     sync.Mutex
	launch func(unsafe.Pointer) bool
}

var (
	loadOnce sync.Once
	loaded   *engine
	loadErr  error
)

// loadRuntime compiles and loads the runtime, once in a process; kernels find its functions by name.
func loadRuntime(c *Compiler) (*engine, error) {
	loadOnce.Do(func() {
		path := filepath.Join(c.dir, "runtime.so")
		if _, err := os.Stat(path); err != nil {
			if loadErr = c.buildRuntime(path); loadErr != nil {
				return
			}
		}
		handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			loadErr = err
			return
		}
		loaded = &engine{}
		purego.RegisterLibFunc(&loaded.launch, handle, "fusec_launch")
	})
	return loaded, loadErr
}

// A library is a loaded library's part for one unit.
type library struct {
	handle  uintptr
	entries map[string]*entryRecord
}

// open loads the library of a unit, and compiles it if it does not exist.
func (c *Compiler) open(u unit) (*library, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.has(u) {
		if err := c.build([]unit{u}); err != nil {
			return nil, err
		}
	}
	handle, err := purego.Dlopen(c.path(u), purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	symbol, err := purego.Dlsym(handle, "fusec_entries")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.path(u), err)
	}
	var list func() unsafe.Pointer
	purego.RegisterFunc(&list, symbol)
	l := &library{handle: handle, entries: map[string]*entryRecord{}}
	for e := (*entryRecord)(list()); e != nil; e = e.next {
		if text(e.unit) == u.name {
			l.entries[text(e.name)] = e
		}
	}
	return l, nil
}

func (l *library) close() error { return purego.Dlclose(l.handle) }

// text is a string of C.
func text(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}
