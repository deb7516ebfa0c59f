// Package gpu implements package driver on CUDA's driver API, through gorgonia.org/cu and, for what that lacks,
// functions of its own: graphs, tensor maps, pinned memory, more than 48 KB of shared memory.
//
// It needs the build tag gpu and CUDA's header: `make gpu`. Without the tag [Open] returns an error. The driver's
// library is loaded by the first call of [Open] or [Count], so that a program starts on a machine without it.
//
// Every [Open] makes a new context, and every call makes it current on its thread only during the call. So other uses
// of CUDA in the program are not affected.
//
// A kernel that fails, for example with an illegal address, does affect them: NVIDIA's driver then refuses all further
// calls of the process, in every context, even a new one, until the process ends. [Open] reports this, too.
package gpu
