// What gorgonia.org/cu lacks. Each function with a context makes it current on the calling thread while it runs.

#include <cuda.h>
#include <stddef.h>

int fusec_cuda_load(const char **message); // see forward/forward.c

// fusec_pop takes the current context away again; gorgonia.org/cu allocates memory to say which one that was.
CUresult fusec_pop(void);

// fusec_launch launches a function whose one parameter stands in params; NULL if it has none.
CUresult fusec_launch(CUcontext context, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned block,
                      unsigned shared, CUstream stream, void *params);
// fusec_launch_early lets the function begin before the one before it in the stream has ended: it waits by itself.
CUresult fusec_launch_early(CUcontext context, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned block,
                            unsigned shared, CUstream stream, void *params);
// fusec_launch_together has all blocks run at the same time, or none.
CUresult fusec_launch_together(CUcontext context, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned block,
                               unsigned shared, CUstream stream, void *params);
// fusec_blocks_of_clusters gives how many blocks of a function with clusters along x run at the same time.
CUresult fusec_blocks_of_clusters(CUcontext context, CUfunction f, unsigned block, unsigned shared, int *blocks);
CUresult fusec_shared(CUcontext context, CUfunction f, int bytes);
CUresult fusec_alloc_host(CUcontext context, size_t bytes, void **to);
CUresult fusec_begin_capture(CUcontext context, CUstream stream);
CUresult fusec_end_capture(CUcontext context, CUstream stream, CUgraphExec *to);
CUresult fusec_stream_done(CUcontext context, CUstream stream);
CUresult fusec_recording(CUcontext context, CUstream stream, CUstreamCaptureStatus *status);
CUresult fusec_launch_graph(CUcontext context, CUgraphExec graph, CUstream stream);

// fusec_params gives the size of a function's one parameter: 0 if it has none; -1 if it has more, or if the driver is
// older than CUDA 12.4 and cannot tell.
CUresult fusec_params(CUcontext context, CUfunction f, int *size);

// fusec_encode fills 128 bytes with a tensor map. Strides has rank-1 elements; lines is TensorMap.Lines.
CUresult fusec_encode(CUcontext context, int type, int rank, CUdeviceptr base, const cuuint64_t *dims,
                      const cuuint64_t *strides, const cuuint32_t *box, int swizzle, int lines, void *to);
// fusec_encode_windows does the same with one of patches of images of four axes. Corners and steps count columns, then rows.
CUresult fusec_encode_windows(CUcontext context, int type, CUdeviceptr base, const cuuint64_t *dims, const cuuint64_t *strides,
                              const int *lower, const int *upper, int channels, int positions, const cuuint32_t *steps,
                              int swizzle, void *to);

// fusec_alloc_mapped allocates memory of a device and maps it for all devices that reach it. It rounds the size up.
CUresult fusec_alloc_mapped(CUcontext context, CUdevice device, size_t *size, CUdeviceptr *to);
CUresult fusec_unmap_block(CUdeviceptr at, size_t size);
CUresult fusec_sync(CUcontext context);
// fusec_reaches reports whether a device reaches another one's memory.
CUresult fusec_reaches(CUdevice device, CUdevice other, int *yes);

// What a GPU's memory is to others: the block that an address is in, and a handle by which another process maps that block.
CUresult fusec_block(CUcontext context, CUdeviceptr at, CUdeviceptr *base);
CUresult fusec_share(CUcontext context, CUdeviceptr base, CUipcMemHandle *to);
CUresult fusec_map(CUcontext context, const CUipcMemHandle *from, CUdeviceptr *to);
CUresult fusec_unmap(CUcontext context, CUdeviceptr at);
CUresult fusec_copy(CUcontext context, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
// fusec_await has the stream wait until each of some words is 1, and then makes them 0.
CUresult fusec_await(CUcontext context, CUstream stream, const CUdeviceptr *words, int n);
CUresult fusec_fill(CUcontext context, CUdeviceptr at, unsigned word, size_t n, CUstream stream);
