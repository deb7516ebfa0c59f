//go:build gpu

#include "nccl.h"

#include <limits.h>

typedef struct { char bytes[NCCL_ID_BYTES]; } identity;

// The part of ncclConfig_t that NCCL 2.17 has; later versions take it, too.
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking, cluster, least, most;
	const char *net;
} config;

static struct {
	int (*unique_id)(identity *);
	int (*init)(void **, int, identity, int, config *);
	int (*abort)(void *);
	int (*destroy)(void *);
	int (*async_error)(void *, int *);
	const char *(*error)(int);
	const char *(*last_error)(void *);
	int (*start)(void);
	int (*end)(void);
	int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
	int (*reduce_scatter)(const void *, void *, size_t, int, int, void *, void *);
	int (*all_gather)(const void *, void *, size_t, int, void *, void *);
	int (*broadcast)(const void *, void *, size_t, int, int, void *, void *);
	int (*send)(const void *, size_t, int, int, void *, void *);
	int (*receive)(void *, size_t, int, int, void *, void *);
} nccl;

const char *const fusec_nccl_names[] = {
    "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommAbort",     "ncclCommDestroy", "ncclCommGetAsyncError",
    "ncclGetErrorString", "ncclGetLastError",    "ncclGroupStart",    "ncclGroupEnd",    "ncclAllReduce",
    "ncclReduceScatter",  "ncclAllGather",       "ncclBroadcast",     "ncclSend",        "ncclRecv",
    NULL,
};

void fusec_nccl_bind(int number, uintptr_t address) { ((uintptr_t *)&nccl)[number] = address; }

int fusec_nccl_id(void *id) { return nccl.unique_id(id); }

int fusec_nccl_init(void **comm, int size, const void *id, int rank, int most) {
	config c = {sizeof c, 0xcafebeef, 21700, 1, INT_MIN, INT_MIN, most ? most : INT_MIN, NULL};
	return nccl.init(comm, size, *(const identity *)id, rank, &c);
}

int fusec_nccl_abort(void *comm) { return nccl.abort(comm); }
int fusec_nccl_destroy(void *comm) { return nccl.destroy(comm); }
int fusec_nccl_failed(void *comm, int *result) { return nccl.async_error(comm, result); }

const char *fusec_nccl_error(int result, void *comm, const char **last) {
	*last = nccl.last_error(comm);
	return nccl.error(result);
}

int fusec_nccl_start(void) { return nccl.start(); }
int fusec_nccl_end(void) { return nccl.end(); }

int fusec_nccl_all_reduce(void *comm, uintptr_t x, uintptr_t y, size_t n, int type, int op, void *stream) {
	return nccl.all_reduce((const void *)x, (void *)y, n, type, op, comm, stream);
}

int fusec_nccl_reduce_scatter(void *comm, uintptr_t x, uintptr_t y, size_t n, int type, int op, void *stream) {
	return nccl.reduce_scatter((const void *)x, (void *)y, n, type, op, comm, stream);
}

int fusec_nccl_all_gather(void *comm, uintptr_t x, uintptr_t y, size_t n, int type, void *stream) {
	return nccl.all_gather((const void *)x, (void *)y, n, type, comm, stream);
}

int fusec_nccl_broadcast(void *comm, uintptr_t x, uintptr_t y, size_t n, int type, int root, void *stream) {
	return nccl.broadcast((const void *)x, (void *)y, n, type, root, comm, stream);
}

int fusec_nccl_send(void *comm, uintptr_t x, size_t n, int type, int to, void *stream) {
	return nccl.send((const void *)x, n, type, to, comm, stream);
}

int fusec_nccl_receive(void *comm, uintptr_t y, size_t n, int type, int from, void *stream) {
	return nccl.receive((void *)y, n, type, from, comm, stream);
}
