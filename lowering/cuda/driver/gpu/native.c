//go:build gpu

#include "native.h"
#include <string.h>

// WITH runs one call of the driver with the context current, and then makes current what was.
#define WITH(context, call) \
	CUresult result = cuCtxPushCurrent(context); \
	if (result != CUDA_SUCCESS) return result; \
	result = (call); \
	cuCtxPopCurrent(&(context)); \
	return result

CUresult fusec_pop(void) {
	CUcontext popped;
	return cuCtxPopCurrent(&popped);
}

CUresult fusec_launch(CUcontext context, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned block,
                      unsigned shared, CUstream stream, void *params) {
	// Not as CU_LAUNCH_PARAM_BUFFER_POINTER: there a parameter that is aligned to 64 bytes does not begin at 0.
	WITH(context, cuLaunchKernel(f, gx, gy, gz, block, 1, 1, shared, stream, params ? &params : NULL, NULL));
}

CUresult fusec_launch_early(CUcontext context, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned block,
                            unsigned shared, CUstream stream, void *params) {
	CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
	                           .value = {.programmaticStreamSerializationAllowed = 1}};
	CUlaunchConfig config = {.gridDimX = gx, .gridDimY = gy, .gridDimZ = gz, .blockDimX = block, .blockDimY = 1, .blockDimZ = 1,
	                         .sharedMemBytes = shared, .hStream = stream, .attrs = &early, .numAttrs = 1};
	WITH(context, cuLaunchKernelEx(&config, f, params ? &params : NULL, NULL));
}

CUresult fusec_launch_together(CUcontext context, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned block,
                               unsigned shared, CUstream stream, void *params) {
	WITH(context, cuLaunchCooperativeKernel(f, gx, gy, gz, block, 1, 1, shared, stream, params ? &params : NULL));
}

static CUresult blocks_of_clusters(CUfunction f, unsigned block, unsigned shared, int *blocks) {
	int width;
	CUresult result = cuFuncGetAttribute(&width, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, f);
	if (result != CUDA_SUCCESS) return result;
	CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value = {.clusterDim = {width, 1, 1}}};
	CUlaunchConfig config = {.gridDimX = width, .gridDimY = 1, .gridDimZ = 1, .blockDimX = block, .blockDimY = 1, .blockDimZ = 1,
	                         .sharedMemBytes = shared, .attrs = &cluster, .numAttrs = 1};
	result = cuOccupancyMaxActiveClusters(blocks, f, &config);
	*blocks *= width;
	return result;
}

CUresult fusec_blocks_of_clusters(CUcontext context, CUfunction f, unsigned block, unsigned shared, int *blocks) {
	WITH(context, blocks_of_clusters(f, block, shared, blocks));
}

CUresult fusec_shared(CUcontext context, CUfunction f, int bytes) {
	WITH(context, cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes));
}

CUresult fusec_alloc_host(CUcontext context, size_t bytes, void **to) {
	WITH(context, cuMemHostAlloc(to, bytes, CU_MEMHOSTALLOC_PORTABLE));
}

CUresult fusec_begin_capture(CUcontext context, CUstream stream) {
	// Relaxed: goroutines move between threads, and other streams go on with what they do.
	WITH(context, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

CUresult fusec_stream_done(CUcontext context, CUstream stream) {
	WITH(context, cuStreamQuery(stream));
}

CUresult fusec_recording(CUcontext context, CUstream stream, CUstreamCaptureStatus *status) {
	WITH(context, cuStreamIsCapturing(stream, status));
}

static CUresult end_capture(CUstream stream, CUgraphExec *to) {
	CUgraph graph = NULL;
	CUresult result = cuStreamEndCapture(stream, &graph);
	if (result == CUDA_SUCCESS) result = cuGraphInstantiateWithFlags(to, graph, 0);
	if (graph) cuGraphDestroy(graph);
	return result;
}

CUresult fusec_end_capture(CUcontext context, CUstream stream, CUgraphExec *to) {
	WITH(context, end_capture(stream, to));
}

CUresult fusec_launch_graph(CUcontext context, CUgraphExec graph, CUstream stream) {
	WITH(context, cuGraphLaunch(graph, stream));
}

static CUresult params(CUfunction f, int *size) {
	size_t at, bytes;
	*size = -1;
#if CUDA_VERSION >= 12040
	CUresult result = cuFuncGetParamInfo(f, 0, &at, &bytes);
	if (result == CUDA_ERROR_NOT_FOUND) return CUDA_SUCCESS; // not in this driver
	if (result == CUDA_ERROR_INVALID_VALUE) {                // there is no first parameter
		*size = 0;
		return CUDA_SUCCESS;
	}
	if (result != CUDA_SUCCESS) return result;
	if (cuFuncGetParamInfo(f, 1, &at, &bytes) == CUDA_ERROR_INVALID_VALUE) *size = (int)bytes; // nor a second
#endif
	return CUDA_SUCCESS;
}

CUresult fusec_params(CUcontext context, CUfunction f, int *size) {
	WITH(context, params(f, size));
}

static CUresult encode(int type, int rank, CUdeviceptr base, const cuuint64_t *dims, const cuuint64_t *strides,
                       const cuuint32_t *box, int swizzle, int lines, void *to) {
	static const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
	CUtensorMap map; // aligned to 64 bytes, as `to` need not be
	// Where rows begin inside of lines of 128 bytes, those of a box would bring up to four times their bytes by pairs of lines.
	CUtensorMapL2promotion promotion = lines ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
	for (int i = 0; i < rank - 1; i++) {
		if (strides[i] % 128) promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
	}
	CUresult result = cuTensorMapEncodeTiled(
	    &map, (CUtensorMapDataType)type, rank, (void *)base, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
	    (CUtensorMapSwizzle)swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	if (result == CUDA_SUCCESS) memcpy(to, &map, sizeof map);
	return result;
}

static CUresult encode_windows(int type, CUdeviceptr base, const cuuint64_t *dims, const cuuint64_t *strides, const int *lower,
                               const int *upper, int channels, int positions, const cuuint32_t *steps, int swizzle, void *to) {
	CUtensorMap map;
	CUresult result = cuTensorMapEncodeIm2col(
	    &map, (CUtensorMapDataType)type, 4, (void *)base, dims, strides, lower, upper, channels, positions, steps,
	    CU_TENSOR_MAP_INTERLEAVE_NONE, (CUtensorMapSwizzle)swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	if (result == CUDA_SUCCESS) memcpy(to, &map, sizeof map);
	return result;
}

CUresult fusec_encode_windows(CUcontext context, int type, CUdeviceptr base, const cuuint64_t *dims, const cuuint64_t *strides,
                              const int *lower, const int *upper, int channels, int positions, const cuuint32_t *steps,
                              int swizzle, void *to) {
	WITH(context, encode_windows(type, base, dims, strides, lower, upper, channels, positions, steps, swizzle, to));
}

CUresult fusec_encode(CUcontext context, int type, int rank, CUdeviceptr base, const cuuint64_t *dims,
                      const cuuint64_t *strides, const cuuint32_t *box, int swizzle, int lines, void *to) {
	WITH(context, encode(type, rank, base, dims, strides, box, swizzle, lines, to));
}

CUresult fusec_reaches(CUdevice device, CUdevice other, int *yes) {
	*yes = device == other;
	return *yes ? CUDA_SUCCESS : cuDeviceCanAccessPeer(yes, device, other);
}

static CUresult map_for_all(CUdevice device, CUdeviceptr at, size_t size) {
	int n, reaches;
	CUresult result = cuDeviceGetCount(&n);
	for (int i = 0; i < n && result == CUDA_SUCCESS; i++) {
		CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = i},
		                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
		result = fusec_reaches(i, device, &reaches);
		if (result == CUDA_SUCCESS && reaches) result = cuMemSetAccess(at, size, &access, 1);
	}
	return result;
}

CUresult fusec_unmap_block(CUdeviceptr at, size_t size) {
	CUresult result = cuMemUnmap(at, size);
	return result == CUDA_SUCCESS ? cuMemAddressFree(at, size) : result;
}

CUresult fusec_sync(CUcontext context) { WITH(context, cuCtxSynchronize()); }

static CUresult alloc_mapped(CUdevice device, size_t *size, CUdeviceptr *to) {
	CUmemAllocationProp of = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	CUmemGenericAllocationHandle block;
	size_t unit;
	CUresult result = cuMemGetAllocationGranularity(&unit, &of, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	if (result != CUDA_SUCCESS) return result;
	*size = (*size + unit - 1) / unit * unit;
	if ((result = cuMemCreate(&block, *size, &of, 0)) != CUDA_SUCCESS) return result;
	if ((result = cuMemAddressReserve(to, *size, 0, 0, 0)) == CUDA_SUCCESS) {
		if ((result = cuMemMap(*to, *size, 0, block, 0)) != CUDA_SUCCESS) cuMemAddressFree(*to, *size);
	}
	cuMemRelease(block); // it is kept while it is mapped
	if (result == CUDA_SUCCESS && (result = map_for_all(device, *to, *size)) != CUDA_SUCCESS) fusec_unmap_block(*to, *size);
	return result;
}

CUresult fusec_alloc_mapped(CUcontext context, CUdevice device, size_t *size, CUdeviceptr *to) {
	WITH(context, alloc_mapped(device, size, to));
}

CUresult fusec_block(CUcontext context, CUdeviceptr at, CUdeviceptr *base) {
	size_t bytes;
	WITH(context, cuMemGetAddressRange(base, &bytes, at));
}

CUresult fusec_share(CUcontext context, CUdeviceptr base, CUipcMemHandle *to) { WITH(context, cuIpcGetMemHandle(to, base)); }

CUresult fusec_map(CUcontext context, const CUipcMemHandle *from, CUdeviceptr *to) {
	WITH(context, cuIpcOpenMemHandle(to, *from, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

CUresult fusec_unmap(CUcontext context, CUdeviceptr at) { WITH(context, cuIpcCloseMemHandle(at)); }

CUresult fusec_copy(CUcontext context, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
	WITH(context, cuMemcpyDtoDAsync(to, from, bytes, stream));
}

enum { MOST_WORDS = 64 };

static CUresult await_words(CUstream stream, const CUdeviceptr *words, int n) {
	CUstreamBatchMemOpParams ops[2 * MOST_WORDS];
	if (n > MOST_WORDS) return CUDA_ERROR_INVALID_VALUE;
	memset(ops, 0, sizeof ops);
	for (int i = 0; i < n; i++) {
		ops[i].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
		ops[i].waitValue.address = words[i];
		ops[i].waitValue.value = 1;
		ops[i].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
		ops[n + i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
		ops[n + i].writeValue.address = words[i];
		ops[n + i].writeValue.value = 0;
		ops[n + i].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
	}
	return cuStreamBatchMemOp(stream, 2 * n, ops, 0);
}

CUresult fusec_await(CUcontext context, CUstream stream, const CUdeviceptr *words, int n) {
	WITH(context, await_words(stream, words, n));
}

CUresult fusec_fill(CUcontext context, CUdeviceptr at, unsigned word, size_t n, CUstream stream) {
	WITH(context, stream ? cuMemsetD32Async(at, word, n, stream) : cuMemsetD32(at, word, n));
}
