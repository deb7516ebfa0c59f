// The C side of include/fusec.h: what has to happen on the caller's thread. The rest is Go.
#include "../../include/fusec.h"
#include "_cgo_export.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char *error_text; // of the last call of this thread that failed
static _Thread_local int error_kept;   // this thread's text is freed when it ends
static pthread_key_t error_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static volatile int forked;

static void after_fork(void) { forked = 1; }
static void set_up(void) { pthread_key_create(&error_key, free); }

// Go's runtime starts its threads when the library is loaded, so a fork counts from then on.
__attribute__((constructor)) static void loaded(void) { pthread_atfork(NULL, NULL, after_fork); }

// Takes ownership of text.
void fusec_keep_error(char *text) {
	pthread_once(&once, set_up);
	free(error_text);
	error_text = text;
	pthread_setspecific(error_key, text);
}

// Go's runtime does not work in a process that was forked: its threads are gone.
static int ready(void) {
	pthread_once(&once, set_up);
	if (forked)
		fusec_keep_error(strdup("the process was forked after the library was loaded: load it in the child instead"));
	return !forked;
}

// Each function is its Go counterpart, called only if that works.
#define CALL(otherwise, call) (ready() ? (call) : (otherwise))

const char *fusec_version(void) {
	static const char unknown[] = "unknown";
	return CALL(unknown, goVersion());
}

const char *fusec_error(void) { return error_text ? error_text : ""; }

fusec_program *fusec_open(const char *path, const char *const *options) {
	return CALL(NULL, (fusec_program *)goOpen((char *)path, (char **)options));
}

fusec_program *fusec_parse(const char *text, size_t size, const char *const *options) {
	return CALL(NULL, (fusec_program *)goParse((char *)text, size, (char **)options));
}

int fusec_close(fusec_program *p) { return CALL(-1, goClose((uintptr_t)p)); }

int fusec_count(fusec_program *p, fusec_kind kind) { return CALL(-1, goCount((uintptr_t)p, kind)); }

int fusec_describe(fusec_program *p, fusec_kind kind, int index, fusec_value *v) {
	return CALL(-1, goDescribe((uintptr_t)p, kind, index, v));
}

int fusec_set(fusec_program *p, const char *name, const DLTensor *t) {
	return CALL(-1, goSet((uintptr_t)p, (char *)name, (DLTensor *)t));
}

int fusec_get(fusec_program *p, const char *name, DLTensor *view) {
	return CALL(-1, goGet((uintptr_t)p, (char *)name, view));
}

int fusec_run(fusec_program *p) { return CALL(-1, goRun((uintptr_t)p)); }
int fusec_start(fusec_program *p) { return CALL(-1, goStart((uintptr_t)p)); }
int fusec_wait(fusec_program *p) { return CALL(-1, goWait((uintptr_t)p)); }
int fusec_call(fusec_program *p, const void *const *values, void *const *results) {
	return CALL(-1, goCall((uintptr_t)p, (void *)values, (void *)results));
}

int64_t fusec_queue_bytes(fusec_program *p) { return CALL(-1, goQueueBytes((uintptr_t)p)); }

int fusec_queue(fusec_program *p, const void *const *values, void *const *results, void *scratch, void *stream) {
	return CALL(-1, goQueue((uintptr_t)p, (void *)values, (void *)results, (uintptr_t)scratch, (uintptr_t)stream));
}

int fusec_save(fusec_program *p, const char *path) { return CALL(-1, goSave((uintptr_t)p, (char *)path)); }
char *fusec_report(fusec_program *p, const char *form) { return CALL(NULL, goReport((uintptr_t)p, (char *)form)); }
void fusec_free(void *p) { free(p); }

// The kernels: a list of the operands, then the results.
#define T(...) ((DLTensor *[]){__VA_ARGS__})
#define IN(t) ((DLTensor *)(t))

int fusec_linear(const DLTensor *x, const DLTensor *w, const DLTensor *bias, const DLTensor *residual,
                 const char *activation, DLTensor *y) {
	return CALL(-1, goLinear((char *)activation, T(IN(x), IN(w), IN(bias), IN(residual), y)));
}

int fusec_linear_backward(const DLTensor *x, const DLTensor *w, const DLTensor *bias, const char *activation,
                          const DLTensor *dy, DLTensor *dx, DLTensor *dw, DLTensor *dbias, DLTensor *dresidual) {
	return CALL(-1, goLinearBackward((char *)activation, T(IN(x), IN(w), IN(bias), IN(dy), dx, dw, dbias, dresidual)));
}

static const fusec_attention_options plain;

int fusec_attention(const DLTensor *q, const DLTensor *k, const DLTensor *v, const DLTensor *mask,
                    const fusec_attention_options *o, DLTensor *out) {
	return CALL(-1, goAttention((fusec_attention_options *)(o ? o : &plain), T(IN(q), IN(k), IN(v), IN(mask), out)));
}

int fusec_attention_backward(const DLTensor *q, const DLTensor *k, const DLTensor *v, const DLTensor *mask,
                             const fusec_attention_options *o, const DLTensor *dout, DLTensor *dq, DLTensor *dk,
                             DLTensor *dv) {
	return CALL(-1, goAttentionBackward((fusec_attention_options *)(o ? o : &plain),
	                                    T(IN(q), IN(k), IN(v), IN(mask), IN(dout), dq, dk, dv)));
}

int fusec_moe(const DLTensor *x, const DLTensor *gates, const DLTensor *w1, const DLTensor *w3, const DLTensor *w2,
              const char *activation, DLTensor *y) {
	return CALL(-1, goMoE((char *)activation, T(IN(x), IN(gates), IN(w1), IN(w3), IN(w2), y)));
}

int fusec_moe_backward(const DLTensor *x, const DLTensor *gates, const DLTensor *w1, const DLTensor *w3,
                       const DLTensor *w2, const char *activation, const DLTensor *dy, DLTensor *dx, DLTensor *dgates,
                       DLTensor *dw1, DLTensor *dw3, DLTensor *dw2) {
	return CALL(-1, goMoEBackward((char *)activation, T(IN(x), IN(gates), IN(w1), IN(w3), IN(w2), IN(dy), dx, dgates, dw1, dw3, dw2)));
}

int fusec_layer_norm(const DLTensor *x, const DLTensor *gain, const DLTensor *bias, double eps, DLTensor *y) {
	return CALL(-1, goLayerNorm(eps, T(IN(x), IN(gain), IN(bias), y)));
}

int fusec_layer_norm_backward(const DLTensor *x, const DLTensor *gain, double eps, const DLTensor *dy, DLTensor *dx,
                              DLTensor *dgain, DLTensor *dbias) {
	return CALL(-1, goLayerNormBackward(eps, T(IN(x), IN(gain), IN(dy), dx, dgain, dbias)));
}

int fusec_rms_norm(const DLTensor *x, const DLTensor *gain, double eps, DLTensor *y) {
	return CALL(-1, goRMSNorm(eps, T(IN(x), IN(gain), y)));
}

int fusec_rms_norm_backward(const DLTensor *x, const DLTensor *gain, double eps, const DLTensor *dy, DLTensor *dx,
                            DLTensor *dgain) {
	return CALL(-1, goRMSNormBackward(eps, T(IN(x), IN(gain), IN(dy), dx, dgain)));
}

int fusec_kernels_free(void) { return CALL(-1, goFreeKernels()); }
