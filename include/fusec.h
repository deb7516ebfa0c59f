/*
 * fusec.h: the C interface of fusec, a fusion compiler for tensor programs.
 *
 * A program is a compiled model. It is opened from a file, or from text in the same form as a .graph file. Values go in and
 * out by name as DLPack tensors. Memory of contiguous tensors is used in place.
 *
 *     fusec_program *p = fusec_open("model.graph", NULL);
 *     if (!p || fusec_set(p, "x", &x) || fusec_run(p) || fusec_get(p, "y", &y))
 *         fprintf(stderr, "%s\n", fusec_error());
 *     fusec_close(p);
 *
 * Errors. A function that returns int returns 0, or -1 after an error. One that returns a pointer returns NULL after an
 * error. fusec_error then gives the text. A function that fails changes nothing, unless it says so.
 *
 * Threads. There is no state but that of programs, caches and each thread's error text. Different programs may be used by
 * different threads at the same time. A call on a program that another thread is using returns an error.
 *
 * Signals. The library's runtime takes SIGSEGV, SIGBUS and SIGFPE where they come from its own code, and SIGURG. Others,
 * such as SIGINT, stay with the host program. Handlers that the host installs need the flag SA_ONSTACK.
 *
 * Processes. A process that has been forked from one that has loaded the library cannot use it: every call returns an error.
 */
#ifndef FUSEC_H
#define FUSEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The part of DLPack (https://dmlc.github.io/dlpack) that is used. Include dlpack.h before this file to have it from there. */
#if !defined(DLPACK_DLPACK_H_) && !defined(FUSEC_DLPACK)
#define FUSEC_DLPACK
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3 } DLDeviceType;
typedef struct {
	DLDeviceType device_type;
	int32_t device_id;
} DLDevice;
typedef enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 } DLDataTypeCode;
typedef struct {
	uint8_t code; /* a DLDataTypeCode */
	uint8_t bits;
	uint16_t lanes; /* 1 */
} DLDataType;
typedef struct {
	void *data;
	DLDevice device;
	int32_t ndim;
	DLDataType dtype;
	int64_t *shape;
	int64_t *strides; /* in elements; NULL for contiguous row-major order */
	uint64_t byte_offset;
} DLTensor;
#endif

#if defined(_WIN32)
#define FUSEC_API
#else
#define FUSEC_API __attribute__((visibility("default")))
#endif

typedef struct fusec_program fusec_program;

/* The version of the library, such as "0.2.0". */
FUSEC_API const char *fusec_version(void);

/* What the last call of this thread that failed says of it. The text holds until the next call that fails. */
FUSEC_API const char *fusec_error(void);

/*
 * Opens a model (.graph with its weights beside it, .onnx or .fuse) and compiles it. Options are "name=value", NULL ends them,
 * and NULL instead of the list is none:
 *
 *     target=cpu            cpu, cuda, cuda:1, fpga or ref
 *     threads=2             cores that a program for the CPU takes; all if it is not given
 *     precision=bf16        f32, tf32, bf16 or f16
 *     memory=caller         of target cuda: runs take the caller's memory and stream, by fusec_queue
 *     memory_budget=BYTES   for temporary values
 *     seed=1                of random operations
 *     dim.batch=4           a size that an ONNX model leaves open
 *     gradient=g:cost:w     adds the output g, the gradient of the scalar output cost for the input or parameter w
 *     optimizer=adamw       every run updates the parameters that the model's one scalar output depends on, to make it
 *                           smaller: sgd, momentum, adam or adamw
 *     optimizer.rate=0.001  the learning rate; other settings of a .graph file's optimizer likewise
 */
FUSEC_API fusec_program *fusec_open(const char *path, const char *const *options);

/* Compiles text in the form of a .graph file. Its parameters have to be set. */
FUSEC_API fusec_program *fusec_parse(const char *text, size_t size, const char *const *options);

/* Lets go of the program and its memory. What fusec_get, fusec_describe and the tensors of the program gave is gone. NULL
 * does nothing. A program that is in use is not closed; the call is an error then. */
FUSEC_API int fusec_close(fusec_program *);

typedef enum { FUSEC_INPUT = 0, FUSEC_PARAMETER = 1, FUSEC_STATE = 2, FUSEC_OUTPUT = 3 } fusec_kind;

/* A value of the program's interface. The pointers hold until the program is closed. */
typedef struct {
	const char *name;
	DLDataType dtype;
	int32_t ndim;
	const int64_t *shape;
} fusec_value;

/* How many values of a kind the program has; -1 after an error. */
FUSEC_API int fusec_count(fusec_program *, fusec_kind);
/* The value of a kind with the given index, from 0 on, in the order in which the model has them. */
FUSEC_API int fusec_describe(fusec_program *, fusec_kind, int index, fusec_value *);

/*
 * Gives an input, parameter or state its value. Type and shape must be those of the model. Elements of inputs and
 * parameters that lie in contiguous order, aligned to their size, are read in place in every run until the name is set
 * again or the program is closed. Other elements, and those of states and trained parameters, are copied. A parameter is
 * prepared once: set it again when its elements have changed.
 */
FUSEC_API int fusec_set(fusec_program *, const char *name, const DLTensor *);

/*
 * The value of an output after a run, or of a state or trained parameter. The view lies in the program's memory: elements
 * hold until the next run, shape and strides until the program is closed.
 */
FUSEC_API int fusec_get(fusec_program *, const char *name, DLTensor *view);

/* Runs the program on what was set. After an error the outputs hold nothing. */
FUSEC_API int fusec_run(fusec_program *);
/* The two halves of fusec_run: start returns when all inputs have been read, so that they may be changed. */
FUSEC_API int fusec_start(fusec_program *);
FUSEC_API int fusec_wait(fusec_program *);

/*
 * Runs the program once on elements that lie contiguously in row-major order, aligned to their size: values has a pointer for
 * each input, results one for each output, in the order of fusec_describe. An input whose pointer is NULL keeps the value that it
 * was set; an output whose pointer is NULL is left to fusec_get. Target cpu computes in this memory; others copy. The memory is
 * not used after the call: fusec_run needs the inputs to be set again.
 */
FUSEC_API int fusec_call(fusec_program *, const void *const *values, void *const *results);

/*
 * Queues a run of a program with the options target=cuda and memory=caller, and returns before it has ended. Values and results
 * are lists as those of fusec_call, of addresses on the GPU in its primary context, which CUDA's runtime library uses: multiples
 * of 64, of elements that lie contiguously in row-major order. Results overlap with nothing. Scratch is where
 * fusec_queue_bytes bytes begin, the run's until it has ended. Stream is a CUstream, which cudaStream_t is too; NULL is the default
 * stream. It lives until the program is closed.
 *
 * Runs of a program must not overlap: who queues them in several streams has one wait for another. What goes wrong in a run, such
 * as an index that is out of range, is the error of a later call of fusec_queue, or of fusec_wait, which waits for all runs.
 * Parameters are set by fusec_set. A program whose addresses come again is recorded once as a CUDA graph.
 */
FUSEC_API int fusec_queue(fusec_program *, const void *const *values, void *const *results, void *scratch, void *stream);
FUSEC_API int64_t fusec_queue_bytes(fusec_program *);

/* Writes the model and its present weights as path, a .graph file, and a .safetensors file beside it. */
FUSEC_API int fusec_save(fusec_program *, const char *path);

/*
 * Reports. The text is the caller's, who frees it with fusec_free.
 *   "fusions"  JSON: a list of the launches: kind, name, operations, flops, bytes, prepared
 *   "trace"    JSON: the whole compilation, in the form of docs/trace-json.md
 *   "steps"    JSON: of a program with an optimizer: steps, skipped, rate, norm
 *   "html"     one page about the compiled program
 *   "svg"      the picture of the compiled program
 *   "dot"      the same for Graphviz
 */
FUSEC_API char *fusec_report(fusec_program *, const char *form);
FUSEC_API void fusec_free(void *);

/*
 * Kernels. Each computes on contiguous f32 tensors of the host, and writes into the memory of its results, which the caller
 * has allocated with the shapes given. NULL stands for an operand that is left out and for a gradient that is not
 * wanted. A kernel is compiled for the shapes when it is first called, and kept; see fusec_kernels_free.
 */

/* y[r,m] = activation(x[r,k]·w[k,m] + bias[m]) + residual[r,m]. Activation: NULL, "relu", "gelu" (by the error function),
 * "gelu_tanh", "silu", "tanh", "sigmoid", or another function of one value that .graph files have. */
FUSEC_API int fusec_linear(const DLTensor *x, const DLTensor *w, const DLTensor *bias, const DLTensor *residual,
                           const char *activation, DLTensor *y);
/* The gradients for x, w, bias and residual, given that of y. */
FUSEC_API int fusec_linear_backward(const DLTensor *x, const DLTensor *w, const DLTensor *bias, const char *activation,
                                    const DLTensor *dy, DLTensor *dx, DLTensor *dw, DLTensor *dbias, DLTensor *dresidual);

/* Attention of q[b,h,sq,d], k[b,hk,sk,d] and v[b,hk,sk,dv]; h is a multiple of hk. A zero scale is 1/√d. Window 0 is none;
 * mask, broadcast to [b,h,sq,sk], is added to the scores. */
typedef struct {
	double scale;
	int causal;
	int window;
} fusec_attention_options;
FUSEC_API int fusec_attention(const DLTensor *q, const DLTensor *k, const DLTensor *v, const DLTensor *mask,
                              const fusec_attention_options *, DLTensor *out);
FUSEC_API int fusec_attention_backward(const DLTensor *q, const DLTensor *k, const DLTensor *v, const DLTensor *mask,
                                       const fusec_attention_options *, const DLTensor *dout, DLTensor *dq, DLTensor *dk,
                                       DLTensor *dv);

/* Mixture of experts: y[t,o] = Σₑ gates[t,e]·FFNₑ(x[t,d]), where FFNₑ(x) = activation(x·w1ₑ)·w2ₑ, or with w3
 * (activation(x·w1ₑ) ⊙ (x·w3ₑ))·w2ₑ, for w1 and w3 [e,d,f] and w2 [e,f,o]. A token is not sent to an expert whose gate is
 * zero. */
FUSEC_API int fusec_moe(const DLTensor *x, const DLTensor *gates, const DLTensor *w1, const DLTensor *w3, const DLTensor *w2,
                        const char *activation, DLTensor *y);
FUSEC_API int fusec_moe_backward(const DLTensor *x, const DLTensor *gates, const DLTensor *w1, const DLTensor *w3,
                                 const DLTensor *w2, const char *activation, const DLTensor *dy, DLTensor *dx,
                                 DLTensor *dgates, DLTensor *dw1, DLTensor *dw3, DLTensor *dw2);

/* Norms of each row of x[r,n]: gain[n] and bias[n] may be NULL. */
FUSEC_API int fusec_layer_norm(const DLTensor *x, const DLTensor *gain, const DLTensor *bias, double eps, DLTensor *y);
FUSEC_API int fusec_layer_norm_backward(const DLTensor *x, const DLTensor *gain, double eps, const DLTensor *dy,
                                        DLTensor *dx, DLTensor *dgain, DLTensor *dbias);
FUSEC_API int fusec_rms_norm(const DLTensor *x, const DLTensor *gain, double eps, DLTensor *y);
FUSEC_API int fusec_rms_norm_backward(const DLTensor *x, const DLTensor *gain, double eps, const DLTensor *dy, DLTensor *dx,
                                      DLTensor *dgain);

/* Lets go of the kernels that were compiled. */
FUSEC_API int fusec_kernels_free(void);

#ifdef __cplusplus
}
#endif
#endif
