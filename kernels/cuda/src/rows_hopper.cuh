// What rows have on Hopper beside rows.cuh: a row of the blocks of a cluster, and requests for later rows.

// cluster_reduce combines a number that all threads of a block have with those of the other blocks of its cluster. BLOCKS is a power
// of two, and the order depends only on sizes. All threads get the result. room is used once.
template <class F, int BLOCKS, class T> DEVICE T cluster_reduce(T x, T *room) {
  if (threadIdx.x == 0) *room = x;
  cluster_sync();
  x = cluster_read(room, int(threadIdx.x) % BLOCKS);
#pragma unroll
  for (int step = BLOCKS / 2; step > 0; step /= 2) x = F::join(x, T(__shfl_xor_sync(0xffffffffu, Wide<T>(x), step)));
  return x;
}

// row_prefetch brings n bytes to the L2 cache, of the first and the last piece of 16 as far as the copy engine can.
DEVICE void row_prefetch(const void *p, int n) {
  const i64 from = (i64(p) + 15) & -16, end = (i64(p) + n) & -16;
  bulk_prefetch(reinterpret_cast<const void *>(from), int(end - from));
}
