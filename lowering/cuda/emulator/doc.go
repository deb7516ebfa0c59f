// Package emulator runs CUDA kernels on the processor, so that every kernel that is generated, and the programs made of
// them, are tested without a GPU.
//
// A kernel's text, the same that a GPU's compiler gets, is compiled by g++ (or clang++, or what $CXX names) against
// src/host.h into a shared library. Blocks run one after another in a shuffled order; the threads of a block run in
// turn, each to where it waits for others. [Open] gives a device and a compiler that stand in for those of package driver:
//
//	gpu, compiler, err := emulator.Open(emulator.Options{})
//
// What would be undefined, or merely not looked at, on a GPU ends a launch here with an error that names the kernel,
// the block and the thread:
//
//   - an access outside of memory that was allocated, and of shared memory beyond what the launch gave;
//   - a read of memory, shared or not, that was never written;
//   - threads that wait for each other: a barrier that not all come to, lanes that a mask names and that do not come;
//   - a shuffle from a lane that takes no part, an integer division by zero, too many local variables.
//
// Fresh memory holds NaNs. What it cannot show: how fast anything is, races between threads that no order of theirs
// brings out, and the instructions of the GPU themselves, for which others stand in.
package emulator
