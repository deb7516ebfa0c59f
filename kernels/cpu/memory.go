package cpu

import (
	"fmt"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/attention"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/group"
)

// Memory is the bytes of one buffer, aligned to its elements.
type Memory []byte

// MemoryOf is the memory of a tensor, shared.
func MemoryOf(t *graph.Tensor) Memory { return t.Bytes() }

// memoryOf is the memory of elements, shared.
func memoryOf[T any](x []T) Memory {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(*new(T))))
}

// elems is a memory as elements of T, or, to code that only moves elements, of a type of their size.
func elems[T any](m Memory) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(m))), len(m)/int(unsafe.Sizeof(*new(T))))
}

// float is the type of a lane: what a vector program computes in.
type float interface{ float32 | float64 }

// dtypeOf is [graph.DTypeOf] without a search: some kernels ask for it in each block.
func dtypeOf[T float]() graph.DType {
	if unsafe.Sizeof(*new(T)) == 4 {
		return graph.F32
	}
	return graph.F64
}

// Operand describes an argument or a result. Over counts for elementwise work alone.
type Operand = graph.Operand

// Contiguous is the operand of a value that fills its buffer.
func Contiguous(t graph.Type) Operand {
	return Operand{DType: t.DType, Layout: graph.Contiguous(t.Shape)}
}

// Kernel computes one operation. Run reads args and writes results, which are the whole buffers that the operands'
// layouts index. It allocates nothing. Kernels of one Env run one at a time.
type Kernel interface {
	Run(args, results []Memory) error
}

// unchecked is a kernel without the checks around it.
func unchecked(k Kernel) Kernel {
	if c, ok := k.(*checked); ok {
		return c.Kernel
	}
	return k
}

// Thaw tells a kernel that a frozen argument may have changed: what it keeps of it is made again by the next run.
func Thaw(k Kernel) {
	if t, ok := unchecked(k).(interface{ thaw() }); ok {
		t.thaw()
	}
}

// Undo takes back what the last run of a kernel, which has not failed, wrote into an argument's memory where a result
// stands in it. A second time does nothing.
func Undo(k Kernel) {
	if u, ok := unchecked(k).(interface{ undo() }); ok {
		u.undo()
	}
}

// Bytes is the memory that a kernel keeps for itself: packed weights, partial sums.
func Bytes(k Kernel) int64 {
	if b, ok := unchecked(k).(interface{ bytes() int64 }); ok {
		return b.bytes()
	}
	return 0
}

// Env is what the kernels of one program share.
type Env struct {
	Pool *pool.Pool
	// Attention is how attentions and their gradients are cut; zeros are chosen by the shape.
	Attention attention.Blocking
	// Tuning is how convolutions are cut; nil, or what it lacks, is chosen by the shape.
	Tuning *Tuning
	// Mesh and Group are the participants with which a program runs; Group is nil for one that runs alone.
	Mesh  graph.Mesh
	Group *group.Group
	// Fits reports, as an error, that the kernels compiled so far may not have so many bytes of memory together; nil
	// lets them have any number. See [Compile].
	Fits func(bytes int64) error

	kept    int64 // bytes that the kernels compiled so far keep for themselves
	refused error // the first of Fits
	gemm    *gemm.Workspace
	scratch []uint64 // of all workers
	each    int      // bytes of one worker
	shared  []uint64 // of the workers together
}

// NewEnv makes an environment on a pool of workers.
func NewEnv(p *pool.Pool) *Env { return &Env{Pool: p, gemm: gemm.NewWorkspace()} }

// WorkspaceBytes is the memory that the kernels compiled so far share as scratch.
func (e *Env) WorkspaceBytes() int64 {
	return int64(e.gemm.Bytes()) + int64(e.each)*int64(e.Pool.Workers()) + int64(len(e.shared))*8
}

// fits reports whether the kernel that is being compiled may have more bytes. If not, Compile returns the error from
// then on.
func (e *Env) fits(more int64) bool {
	if e.Fits != nil && e.refused == nil {
		e.refused = e.Fits(e.WorkspaceBytes() + e.kept + more)
	}
	return e.refused == nil
}

// reserve makes sure that every worker has so many bytes of scratch.
func (e *Env) reserve(bytes int) {
	const line = 64
	bytes = (bytes + line - 1) / line * line
	if bytes > e.each && e.fits(int64(bytes-e.each)*int64(e.Pool.Workers())) {
		e.each = bytes
		e.scratch = make([]uint64, bytes/8*e.Pool.Workers()+line/8)
	}
}

// scratchOf is n elements of a worker's scratch from element at on. It starts at a cache line if at does.
func scratchOf[T float](e *Env, worker, at, n int) []T {
	size := int(unsafe.Sizeof(*new(T)))
	p := unsafe.Pointer(unsafe.SliceData(e.scratch))
	align := int(-uintptr(p) % 64)
	p = unsafe.Add(p, align+worker*e.each+at*size)
	return unsafe.Slice((*T)(p), n)
}

// reserveShared makes sure that the workers have so many bytes of scratch together.
func (e *Env) reserveShared(bytes int) {
	if n := bytes/8 + 8; n > len(e.shared) && e.fits(int64(n-len(e.shared))*8) { // room to start at a cache line
		e.shared = make([]uint64, n)
	}
}

// sharedOf is n elements of the scratch that the workers share. It starts at a cache line.
func sharedOf[T float](e *Env, n int) []T {
	p := unsafe.Pointer(unsafe.SliceData(e.shared))
	return unsafe.Slice((*T)(unsafe.Add(p, int(-uintptr(p)%64))), n)
}

// checkLen reports a buffer too short for its layout, so that kernels may index without looking.
func checkLen(name string, i int, o Operand, m Memory) error {
	need := 0
	if o.Layout.Shape.Elems() > 0 {
		need = o.Layout.Offset + 1
		for a := range o.Layout.Shape.Rank() {
			need += (o.Layout.Shape.At(a) - 1) * o.Layout.Stride[a]
		}
	}
	if int64(len(m)) < o.DType.Span(int64(need)) {
		return fmt.Errorf("%s %d holds %d elements of %v; its layout needs %d", name, i, len(m)/o.DType.Size(), o.DType, need)
	}
	return nil
}

// checked guards a kernel against buffers that are too short.
type checked struct {
	Kernel
	args, results []Operand
}

func (c *checked) Run(args, results []Memory) error {
	for i := range c.args {
		if err := checkLen("operand", i, c.args[i], args[i]); err != nil {
			return err
		}
	}
	for i := range c.results {
		if err := checkLen("result", i, c.results[i], results[i]); err != nil {
			return err
		}
	}
	return c.Kernel.Run(args, results)
}
