// Package emulator runs CUDA kernels on the processor, so that all generated kernels, and programs of them, are tested
// without a GPU.
//
// A kernel's text, the same that a GPU's compiler gets, is compiled by g++ (or clang++, or what $CXX names) against
// src/host.h into a shared library. Blocks run one after another in a shuffled order, or together if they wait for one
// another; the threads of a block run in turn, each until it waits for others. [Open] returns a device and a compiler that
// replace those of package driver:
//
//	gpu, compiler, err := emulator.Open(emulator.Options{})
//
// Undefined behaviour, which a GPU may not detect, ends a launch with an error that names the kernel, the block and the
// thread:
//
//   - an access outside of memory that was allocated, and of shared memory beyond what the launch gave;
//   - a read of memory, shared or not, that was never written;
//   - tensor memory that threads access, or operands there, without the fences that order this after what others have done there;
//   - asynchronous reads of shared memory, by copies or products, of what was written without a fence since, and writes to operands
//     of products into tensor memory that are not done;
//   - threads that wait for each other: a barrier that not all threads reach, or lanes of a mask that do not arrive;
//   - a shuffle from a lane that does not take part, an integer division by zero, too many local variables.
//
// Fresh memory holds NaNs. It cannot show speed, races between threads that do not appear in the orders that it runs,
// and errors of the GPU's instructions, which it replaces by others.
package emulator
