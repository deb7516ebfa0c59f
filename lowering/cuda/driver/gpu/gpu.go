// Package gpu implements package driver on CUDA's driver API, through gorgonia.org/cu and, for what that lacks,
// functions of its own: graphs, tensor maps, pinned memory, more than 48 KB of shared memory.
//
// It needs the build tag gpu and CUDA's header: `make gpu`. Without the tag [Open] says so. The driver's library is
// loaded by the first call of [Open] or [Count], so that a program starts on a machine that has none.
//
// Every [Open] makes a context of its own, and every call makes it current on its thread only for as long as it lasts:
// what the rest of a program does with CUDA is not disturbed.
//
// A kernel that goes wrong (an illegal address, for example) is another matter. NVIDIA's driver then refuses all that its
// process asks for, in every context, closed and opened again or not, until the process ends; [Open] says so, too.
package gpu
