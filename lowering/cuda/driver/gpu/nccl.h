// NCCL's functions, which are called through their addresses. Results are NCCL's; 0 is success.

#include <stddef.h>
#include <stdint.h>

enum { NCCL_ID_BYTES = 128 };

// fusec_nccl_bind takes the address of a function by its number, in the order of fusec_nccl_names, which ends with NULL.
extern const char *const fusec_nccl_names[];
void fusec_nccl_bind(int number, uintptr_t address);

int fusec_nccl_id(void *id);
// fusec_nccl_init joins a communicator. Most is how many blocks of threads a collective operation takes at most; 0 leaves that
// to NCCL.
int fusec_nccl_init(void **comm, int size, const void *id, int rank, int most);
int fusec_nccl_abort(void *comm);
int fusec_nccl_destroy(void *comm);
// fusec_nccl_failed gives the result of the operations that have been queued, as far as it is known.
int fusec_nccl_failed(void *comm, int *result);
const char *fusec_nccl_error(int result, void *comm, const char **last);

int fusec_nccl_start(void);
int fusec_nccl_end(void);
int fusec_nccl_all_reduce(void *comm, uintptr_t x, uintptr_t y, size_t n, int type, int op, void *stream);
int fusec_nccl_reduce_scatter(void *comm, uintptr_t x, uintptr_t y, size_t n, int type, int op, void *stream);
int fusec_nccl_all_gather(void *comm, uintptr_t x, uintptr_t y, size_t n, int type, void *stream);
int fusec_nccl_broadcast(void *comm, uintptr_t x, uintptr_t y, size_t n, int type, int root, void *stream);
int fusec_nccl_send(void *comm, uintptr_t x, size_t n, int type, int to, void *stream);
int fusec_nccl_receive(void *comm, uintptr_t y, size_t n, int type, int from, void *stream);
