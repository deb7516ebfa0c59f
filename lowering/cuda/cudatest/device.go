// Package cudatest runs generated kernels in tests, on the emulator or on a GPU, and compares their results with the
// reference:
//
//	d := cudatest.Open(t)
//	cudatest.Run(t, d, cudatest.Check{Name: "exp", Op: op, Args: args})
//
// All checks of one call are compiled together. Results and scratch memory are poisoned first, and writes outside of
// the results' elements are found.
package cudatest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// A Device is a GPU, or a replacement for one, and its compiler.
type Device struct {
	GPU      driver.GPU
	Compiler driver.Compiler
	// Chip is the chip for which kernels are made, if it is not the GPU's: an older one, whose kernels also run on the
	// GPU.
	Chip kernels.Chip
	// Failed says that the program has failed before the kernel that [Device.Run] runs.
	Failed bool
}

// MadeFor is the chip for which kernels are made.
func (d Device) MadeFor() kernels.Chip {
	if d.Chip == (kernels.Chip{}) {
		return d.GPU.Chip()
	}
	return d.Chip
}

// Emulator is the emulator of a GPU. Without a C++ compiler the test fails. It is closed when the test ends.
func Emulator(t testing.TB) Device {
	t.Helper()
	return EmulatorOf(t, emulator.Options{})
}

// EmulatorOf is an Emulator with options.
func EmulatorOf(t testing.TB, o emulator.Options) Device {
	t.Helper()
	gpu, compiler, err := emulator.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return closed(t, Device{GPU: gpu, Compiler: compiler})
}

// closed closes a device when the test ends.
func closed(t testing.TB, d Device) Device {
	t.Cleanup(func() {
		if err := d.GPU.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// compile makes images of sources, together if the compiler can; an empty source has none.
func (d Device) compile(sources []string) ([][]byte, error) {
	images := make([][]byte, len(sources))
	var list []string
	var at []int
	for i, s := range sources {
		if s != "" {
			list, at = append(list, s), append(at, i)
		}
	}
	if c, ok := d.Compiler.(interface {
		CompileAll([]string, kernels.Chip) ([][]byte, error)
	}); ok {
		made, err := c.CompileAll(list, d.GPU.Chip())
		for i, m := range made {
			images[at[i]] = m
		}
		return images, err
	}
	errs := make([]error, len(list))
	var wait sync.WaitGroup
	turns := make(chan bool, runtime.GOMAXPROCS(0))
	for i, s := range list {
		wait.Go(func() {
			turns <- true
			images[at[i]], _, errs[i] = d.Compiler.Compile(s, d.GPU.Chip())
			<-turns
		})
	}
	wait.Wait()
	return images, errors.Join(errs...)
}

// A Buffer is a value in the device's memory. Other bytes than its elements hold poison.
type Buffer struct {
	Operand kernels.Operand
	Value   *graph.Tensor // of an argument: its value; of a result: set by [Device.Run]
}

// poison fills memory that was not written: NaNs, and −1 as an integer.
const poison = 0xff

// extent is the least number of elements of a layout's buffer.
func extent(l graph.Layout) int {
	if l.Shape.Elems() == 0 {
		return 0
	}
	n := l.Offset + 1
	for i := range l.Shape.Rank() {
		n += (l.Shape.At(i) - 1) * max(l.Stride[i], 0)
	}
	return n
}

// each calls f with the position of every element, in row-major order.
func each(l graph.Layout, f func(i, at int)) {
	index := make([]int, l.Shape.Rank())
	for i := range l.Shape.Elems() {
		at := l.Offset
		for k, x := range index {
			at += x * l.Stride[k]
		}
		f(i, at)
		for k := len(index) - 1; k >= 0; k-- {
			if index[k]++; index[k] < l.Shape.At(k) {
				break
			}
			index[k] = 0
		}
	}
}

// stored is the layout of the buffer's elements and their size; of i4, which is contiguous, those of its bytes.
func (b *Buffer) stored() (l graph.Layout, size int) {
	l, d := b.Operand.Layout, b.Operand.DType
	if d == graph.I4 {
		return graph.Contiguous(graph.ShapeOf(int(d.Span(int64(l.Shape.Elems()))))), 1
	}
	return l, d.Size()
}

// image is the buffer's memory with the value written to it.
func (b *Buffer) image() []byte {
	l, size := b.stored()
	m := make([]byte, extent(l)*size)
	for i := range m {
		m[i] = poison
	}
	if b.Value != nil {
		from := b.Value.Bytes()
		each(l, func(i, at int) { copy(m[at*size:(at+1)*size], from[i*size:]) })
	}
	return m
}

// read reads the value from the buffer's memory, and reports writes outside of it; had is the earlier content.
func (b *Buffer) read(m, had []byte) error {
	l, size := b.stored()
	b.Value = graph.NewTensor(b.Operand.Type())
	to := b.Value.Bytes()
	mine := make([]bool, len(m)/max(size, 1))
	each(l, func(i, at int) {
		copy(to[i*size:(i+1)*size], m[at*size:])
		mine[at] = true
	})
	for i, x := range m {
		if !mine[i/size] && x != had[i] {
			return fmt.Errorf("element %d of the buffer was written, which is none of the layout %+v", i/size, l)
		}
	}
	return nil
}

// memory is a buffer on the device.
type memory struct {
	ptr   driver.Ptr
	image []byte // its content at the start of the run
}

// Run executes a kernel once and fills in the results' values. The status is what its steps reported.
func (d Device) Run(k *kernels.Kernel, args, results []Buffer) (kernels.Status, error) {
	images, err := d.compile([]string{k.Source})
	if err != nil {
		return kernels.Status{}, err
	}
	return d.run(k, images[0], args, results)
}

func (d Device) run(k *kernels.Kernel, image []byte, args, results []Buffer) (status kernels.Status, err error) {
	r := runner{Device: d}
	defer func() {
		if e := r.close(); err == nil {
			err = e
		}
	}()
	if r.stream, err = d.GPU.NewStream(); err != nil {
		return status, err
	}
	for i := range args {
		if err := r.upload(&r.args, &r.at.Args, args[i].image(), true); err != nil {
			return status, err
		}
	}
	for i := range results {
		if over := results[i].Operand.Over; over > 0 {
			r.results, r.at.Results = append(r.results, r.args[over-1]), append(r.at.Results, r.args[over-1].ptr)
			continue
		}
		if err := r.upload(&r.results, &r.at.Results, results[i].image(), false); err != nil {
			return status, err
		}
	}
	if r.at.Scratch, err = r.alloc(k.Scratch); err != nil {
		return status, err
	}
	if r.at.Zeroed, err = r.alloc(k.Zeroed); err != nil {
		return status, err
	}
	if r.at.Kept, err = r.alloc(k.Kept); err != nil {
		return status, err
	}
	if k.Zeroed > 0 {
		if err := r.stream.Fill(r.at.Zeroed, 0, k.Zeroed); err != nil {
			return status, err
		}
	}
	if r.at.Status, err = r.alloc(int64(unsafe.Sizeof(status))); err != nil {
		return status, err
	}
	var before byte // of each byte of the status
	if d.Failed {
		before = 1
	}
	if err := r.stream.Fill(r.at.Status, before, int64(unsafe.Sizeof(status))); err != nil {
		return status, err
	}
	if image != nil {
		if r.module, err = d.GPU.Load(image); err != nil {
			return status, err
		}
	}
	for i := range k.Steps {
		if err := r.step(&k.Steps[i]); err != nil {
			return status, err
		}
	}
	for i := range results {
		m := make([]byte, len(r.results[i].image))
		if len(m) > 0 {
			if err := r.stream.CopyOut(unsafe.Pointer(&m[0]), r.results[i].ptr, int64(len(m))); err != nil {
				return status, err
			}
		}
		if err := r.stream.Sync(); err != nil {
			return status, err
		}
		if err := results[i].read(m, r.results[i].image); err != nil {
			return status, fmt.Errorf("result %d: %w", i, err)
		}
	}
	if k.Resets {
		if err := r.zeros(k.Zeroed); err != nil {
			return status, err
		}
	}
	for i := range args {
		if err := r.unchanged(i, results); err != nil {
			return status, err
		}
	}
	if err := r.stream.CopyOut(unsafe.Pointer(&status), r.at.Status, int64(unsafe.Sizeof(status))); err != nil {
		return status, err
	}
	return status, r.stream.Sync()
}

// zeros tells whether the memory that a kernel resets is 0 after it.
func (r *runner) zeros(n int64) error {
	m := make([]byte, n)
	if err := r.stream.CopyOut(unsafe.Pointer(&m[0]), r.at.Zeroed, n); err != nil {
		return err
	}
	if err := r.stream.Sync(); err != nil {
		return err
	}
	for i, b := range m {
		if b != 0 {
			return fmt.Errorf("byte %d of %d that it resets is %d", i, n, b)
		}
	}
	return nil
}

// runner is a run, with the resources that it has to free.
type runner struct {
	Device
	stream        driver.Stream
	module        driver.Module
	args, results []memory
	at            driver.Addresses
	allocated     []driver.Ptr
}

func (r *runner) close() (first error) {
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if r.module != nil {
		keep(r.module.Unload())
	}
	for _, p := range r.allocated {
		keep(r.GPU.Free(p))
	}
	if r.stream != nil {
		keep(r.stream.Close())
	}
	return first
}

// alloc returns poisoned memory. The emulator's memory is poisoned from the start, and the emulator knows that it was
// not written.
func (r *runner) alloc(n int64) (driver.Ptr, error) {
	if n == 0 {
		return 0, nil
	}
	p, err := r.GPU.Alloc(n)
	if err != nil {
		return 0, err
	}
	r.allocated = append(r.allocated, p)
	if _, ok := r.Compiler.(*emulator.Compiler); ok {
		return p, nil
	}
	return p, r.stream.Fill(p, poison, n)
}

// upload makes a buffer. If it has no value, poison is not copied.
func (r *runner) upload(list *[]memory, at *[]driver.Ptr, image []byte, value bool) error {
	m := memory{image: image}
	var err error
	if m.ptr, err = r.alloc(int64(len(image))); err != nil {
		return err
	}
	if value && len(image) > 0 {
		if err := r.stream.CopyIn(m.ptr, unsafe.Pointer(&image[0]), int64(len(image))); err != nil {
			return err
		}
	}
	*list, *at = append(*list, m), append(*at, m.ptr)
	return nil
}

// unchanged reports an argument that was changed, unless a result overwrites it.
func (r *runner) unchanged(i int, results []Buffer) error {
	for _, b := range results {
		if b.Operand.Over == i+1 {
			return nil
		}
	}
	m := make([]byte, len(r.args[i].image))
	if len(m) == 0 {
		return nil
	}
	if err := r.stream.CopyOut(unsafe.Pointer(&m[0]), r.args[i].ptr, int64(len(m))); err != nil {
		return err
	}
	if err := r.stream.Sync(); err != nil {
		return err
	}
	if string(m) != string(r.args[i].image) {
		return fmt.Errorf("argument %d was written", i)
	}
	return nil
}

// step executes one step of a kernel.
func (r *runner) step(s *kernels.Step) error {
	if s.Entry == "" {
		return r.stream.Fill(r.at.Of(s.Params[0]), s.Value, s.Bytes)
	}
	f, err := r.module.Function(s.Entry)
	if err != nil {
		return err
	}
	params, err := r.at.Params(r.GPU, s)
	if err != nil {
		return err
	}
	if err := r.stream.Launch(f, s.Grid, s.Block, s.Shared, params); err != nil {
		return err
	}
	return r.stream.Sync()
}
