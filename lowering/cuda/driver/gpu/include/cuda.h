// Lets gorgonia.org/cu compile against the header of CUDA 13, which gave five functions other parameters. The driver
// still has them as they were, under the names that are declared here. With CUDA 12 this file adds nothing.
#include_next <cuda.h>

#ifndef FUSEC_CUDA_H
#define FUSEC_CUDA_H
#if CUDA_VERSION >= 13000

#undef cuCtxCreate
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
#define cuCtxCreate cuCtxCreate_v2

// The others keep their name in the driver, where the header now declares it with other parameters. So they get a name
// of their own in C, and the driver's in the object file.
#define FUSEC_OLD(name, parameters) CUresult CUDAAPI fusec_old_##name parameters __asm__(#name)

#undef cuMemAdvise
FUSEC_OLD(cuMemAdvise, (CUdeviceptr at, size_t bytes, CUmem_advise advice, CUdevice device));
#define cuMemAdvise fusec_old_cuMemAdvise

#undef cuMemPrefetchAsync
FUSEC_OLD(cuMemPrefetchAsync, (CUdeviceptr at, size_t bytes, CUdevice to, CUstream stream));
#define cuMemPrefetchAsync fusec_old_cuMemPrefetchAsync

#undef cuGraphAddDependencies
FUSEC_OLD(cuGraphAddDependencies, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n));
#define cuGraphAddDependencies fusec_old_cuGraphAddDependencies

#undef cuGraphGetEdges
FUSEC_OLD(cuGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n));
#define cuGraphGetEdges fusec_old_cuGraphGetEdges

#endif
#endif
