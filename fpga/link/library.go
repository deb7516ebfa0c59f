//go:build linux && (amd64 || arm64)

package link

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ebitengine/purego"
)

// Library is a simulator that was loaded into this process as a shared library. It saves the communication with another
// process, but if it crashes, so does the program.
type Library struct {
	broken
	pacer
	calls  *calls
	sim    uintptr
	memory int64
}

var _ Simulator = (*Library)(nil)

// calls are the functions of the library.
type calls struct {
	open      func(bytes uint64, seed uint32) uintptr
	close     func(uintptr)
	bytes     func(uintptr) uint64
	readReg   func(uintptr, uint32) uint32
	writeReg  func(uintptr, uint32, uint32)
	read      func(uintptr, uint32, *byte, uint64) int32
	write     func(uintptr, uint32, *byte, uint64) int32
	run       func(uintptr, uint64) uint32
	setMemory func(uintptr, *uint32) int32
	cycles    func(uintptr) uint64
}

// errOutside is an address that the simulator's memory does not have.
var errOutside = errors.New("refused: outside memory")

// OpenLibrary loads a simulator's library and makes a new overlay in it.
func OpenLibrary(path string, o Options) (*Library, error) {
	l := &Library{broken: broken{name: "simulator library"}, calls: &calls{}}
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, l.fail("load "+path, err)
	}
	c := l.calls
	for name, f := range map[string]any{"open": &c.open, "close": &c.close, "memory_bytes": &c.bytes,
		"read_reg":  &c.readReg,
		"write_reg": &c.writeReg, "read": &c.read, "write": &c.write, "run": &c.run, "set_memory": &c.setMemory,
		"cycles": &c.cycles} {
		at, err := purego.Dlsym(handle, "fx_sim_"+name)
		if err != nil {
			return nil, l.fail("load "+path, err)
		}
		purego.RegisterFunc(f, at)
	}
	if l.sim = c.open(uint64(o.Memory), o.Seed); l.sim == 0 {
		return nil, l.fail("open", fmt.Errorf("no overlay with %d bytes of memory", o.Memory))
	}
	l.memory = int64(c.bytes(l.sim))
	return l, nil
}

// Name implements Link.
func (l *Library) Name() string { return l.name }

// MemoryBytes implements Link.
func (l *Library) MemoryBytes() int64 { return l.memory }

// ReadReg implements Link.
func (l *Library) ReadReg(address uint32) (uint32, error) {
	if l.err != nil {
		return 0, l.err
	}
	return l.calls.readReg(l.sim, address), nil
}

// WriteReg implements Link.
func (l *Library) WriteReg(address, value uint32) error {
	if l.err == nil {
		l.calls.writeReg(l.sim, address, value)
	}
	return l.err
}

// Read implements Link.
func (l *Library) Read(address uint32, p []byte) error {
	return l.copy("read", l.calls.read, address, p)
}

// Write implements Link.
func (l *Library) Write(address uint32, p []byte) error {
	return l.copy("write", l.calls.write, address, p)
}

func (l *Library) copy(verb string, f func(uintptr, uint32, *byte, uint64) int32, address uint32, p []byte) error {
	if l.err != nil || len(p) == 0 {
		return l.err
	}
	if f(l.sim, address, &p[0], uint64(len(p))) != 0 {
		return &Error{l.name, fmt.Sprintf("%s memory at %#x", verb, address), errOutside}
	}
	return nil
}

// Wait implements Link.
func (l *Library) Wait(ctx context.Context) (uint32, error) {
	if l.err != nil {
		return 0, l.err
	}
	return l.pacer.run(ctx, func(cycles uint64) (uint32, error) { return l.calls.run(l.sim, cycles), nil })
}

// SetMemory implements Simulator.
func (l *Library) SetMemory(m MemoryModel) error {
	if l.err != nil {
		return l.err
	}
	w := m.words()
	if l.calls.setMemory(l.sim, &w[0]) != 0 {
		return &Error{l.name, "set the memory model", fmt.Errorf("refused: %+v", m)}
	}
	return nil
}

// Cycles implements Simulator.
func (l *Library) Cycles() (uint64, error) {
	if l.err != nil {
		return 0, l.err
	}
	return l.calls.cycles(l.sim), nil
}

// Close implements Link.
func (l *Library) Close() error {
	if l.err == nil {
		l.calls.close(l.sim)
		l.err = &Error{l.name, "use", os.ErrClosed}
	}
	return nil
}
func openLibrary(path string, o Options) (Link, error) { return opened(OpenLibrary(path, o)) }
