package lowering

import (
	"runtime"
	"time"

	"fusec/graph"
)

// Owned is an executable that is closed some time after it becomes unreachable. Its users keep it alive:
//
//	user ─► Owned ─► executable ◄─ leftovers, closed once nothing refers to Owned
type Owned struct {
	Executable
	left    *leftovers
	dropped runtime.Cleanup
}

// leftovers are needed to close an executable that was dropped. They do not refer to Owned.
type leftovers struct {
	exe     Executable
	program *Program
	first   func() // is called before the executable is closed, or nil
}

// CloseWhenDropped makes an owned executable from the executable of a program.
func CloseWhenDropped(exe Executable, p *Program) *Owned {
	o := &Owned{Executable: exe, left: &leftovers{exe: exe, program: p}}
	o.dropped = runtime.AddCleanup(o, func(l *leftovers) { go l.close() }, o.left)
	return o
}

// Unowned is the executable, or the one that it owns.
func Unowned(e Executable) Executable {
	if o, ok := e.(*Owned); ok {
		return o.Executable
	}
	return e
}

// Keep leaves the executable open when it is dropped. It is for executables of which a caller was given a tensor: that of
// an output. Its elements may lie in memory that the device's driver allocated. The garbage collector does not know who
// refers to that memory: the caller may hold the slice of elements after the tensor and the executable are unreachable,
// and closing the executable frees it. Nothing else keeps a dropped executable open, a watch does not.
func (o *Owned) Keep() { o.dropped.Stop() }

// BeforeDrop sets a function that is called before a dropped executable is closed. It must not refer to o.
func (o *Owned) BeforeDrop(f func()) { o.left.first = f }

// close closes the executable. Values that the device has changed are not copied back, because the user may be using
// the tensors.
func (l *leftovers) close() {
	_ = l.exe.Wait() // errors cannot be reported to anyone
	if l.first != nil {
		l.first()
	}
	for _, u := range l.program.Updates {
		_ = l.exe.Bind(u.Target, graph.NewTensor(l.program.Buffers[u.Target].Type))
	}
	_ = l.exe.Close()
}

// Bind implements Executable.
func (o *Owned) Bind(buffer int, t *graph.Tensor) error {
	defer runtime.KeepAlive(o)
	return o.Executable.Bind(buffer, t)
}

// BindOutput implements Executable.
func (o *Owned) BindOutput(buffer int, t *graph.Tensor) (bool, error) {
	defer runtime.KeepAlive(o)
	return o.Executable.BindOutput(buffer, t)
}

// Run implements Executable.
func (o *Owned) Run() error {
	defer runtime.KeepAlive(o)
	return o.Executable.Run()
}

// Start implements Executable.
func (o *Owned) Start() error {
	defer runtime.KeepAlive(o)
	return o.Executable.Start()
}

// Wait implements Executable.
func (o *Owned) Wait() error {
	defer runtime.KeepAlive(o)
	return o.Executable.Wait()
}

// Prefetch implements Executable.
func (o *Owned) Prefetch(buffer int, t *graph.Tensor) (bool, error) {
	defer runtime.KeepAlive(o)
	return o.Executable.Prefetch(buffer, t)
}

// PrefetchFile implements Executable.
func (o *Owned) PrefetchFile(buffer int, parts []graph.FilePart) error {
	defer runtime.KeepAlive(o)
	return o.Executable.PrefetchFile(buffer, parts)
}

// OpenFile implements Executable.
func (o *Owned) OpenFile(path string) error {
	defer runtime.KeepAlive(o)
	return o.Executable.OpenFile(path)
}

// Sync implements Executable.
func (o *Owned) Sync(buffers ...int) error {
	defer runtime.KeepAlive(o)
	return o.Executable.Sync(buffers...)
}

// Measure implements Executable.
func (o *Owned) Measure(n int) ([]time.Duration, error) {
	defer runtime.KeepAlive(o)
	return o.Executable.Measure(n)
}

// Inspect implements Executable.
func (o *Owned) Inspect() (*Inspection, error) {
	defer runtime.KeepAlive(o)
	return o.Executable.Inspect()
}

// Close implements Executable.
func (o *Owned) Close() error {
	defer runtime.KeepAlive(o)
	o.dropped.Stop()
	return o.Executable.Close()
}
