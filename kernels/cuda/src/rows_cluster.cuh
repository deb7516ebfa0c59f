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
