package gemm

import (
	"sync"
	"unsafe"

	"fusec/kernels/cpu/tiling"
)

// lineBytes is the alignment of every buffer in a Workspace: a cache line.
const lineBytes = 64

// A Workspace is the scratch memory of plans that run one after another: it is
// as large as the largest of them needs. Plans that share a Workspace may be run from several goroutines; the runs are
// then serialised.
type Workspace struct {
	mu    sync.Mutex // held during a run
	words []uint64
}

// NewWorkspace returns an empty workspace; New makes it grow.
func NewWorkspace() *Workspace { return new(Workspace) }

// Bytes returns the size of the workspace.
func (w *Workspace) Bytes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.words) * 8
}

// Reserve makes the workspace at least as large as n elements of T need. The plans look up their scratch at each run,
// so the memory may move.
func Reserve[T Float](w *Workspace, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes := tiling.RoundUp(n*int(unsafe.Sizeof(*new(T))), lineBytes); bytes > len(w.words)*8 {
		w.words = aligned(bytes)
	}
}

// Acquire returns the memory of the workspace, aligned to cache lines. It belongs to the caller until Release.
func Acquire[T Float](w *Workspace) []T {
	w.mu.Lock()
	return elements[T](w.words)
}

// Release ends the use of the memory that Acquire has returned.
func (w *Workspace) Release() { w.mu.Unlock() }

// Aligned allocates n elements, rounded up to whole cache lines, that start at one.
func Aligned[T Float](n int) []T {
	return elements[T](aligned(tiling.RoundUp(n*int(unsafe.Sizeof(*new(T))), lineBytes)))
}

// aligned allocates a multiple of 8 bytes that starts at a cache line.
func aligned(bytes int) []uint64 {
	const spare = lineBytes/8 - 1
	words := make([]uint64, bytes/8+spare)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(words))) % lineBytes / 8)
	return words[skip:][: bytes/8 : bytes/8]
}

// elements returns the memory of words as elements of T.
func elements[T Float](words []uint64) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8/int(unsafe.Sizeof(*new(T))))
}

// lineElements rounds a number of elements up to whole cache lines.
func lineElements[T Float](n int) int {
	return tiling.RoundUp(n, lineBytes/int(unsafe.Sizeof(*new(T))))
}

// A scratch lists how many elements of each buffer a plan needs: two shared
// by the workers, and for every worker one of each of the others.
type scratch struct {
	sharedA, sharedB int
	workerA, workerB int // packed blocks, vectors of thin products
	edge             int // what cannot be computed in C
}

// perWorker is the number of elements that belong to one worker.
func (s scratch) perWorker() int { return s.workerA + s.workerB + s.edge }

// total is the number of elements that a plan needs.
func (s scratch) total(workers int) int {
	return s.sharedA + s.sharedB + workers*s.perWorker()
}

// align rounds every buffer up to whole cache lines.
func align[T Float](s scratch) scratch {
	return scratch{
		sharedA: lineElements[T](s.sharedA), sharedB: lineElements[T](s.sharedB),
		workerA: lineElements[T](s.workerA), workerB: lineElements[T](s.workerB),
		edge: lineElements[T](s.edge),
	}
}
