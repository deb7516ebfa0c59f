// What rows have on Hopper beside rows.cuh: a row of the blocks of a cluster, and requests for later rows.

// A ClusterReduce combines numbers of all threads of a cluster, of BLOCKS blocks of WARPS warps, in an order that depends only on
// sizes. A warp sends its number to each block, whose barrier counts what has come; no thread waits for more than that. Sends
// of one reduction may come while others still read those of the one before, which have another place; no warp is two ahead.
template <int BLOCKS, int WARPS> struct ClusterReduce {
  static constexpr int PEERS = BLOCKS * WARPS, EACH = 16;  // bytes of a warp's numbers at most
  static constexpr int BYTES = 16 + 2 * PEERS * EACH;      // of shared memory
  static constexpr int THREADS = PEERS * 32;
  static_assert(BLOCKS <= 32 && PEERS % 32 == 0, "a lane sends to a block, and reads numbers of whole warps");

  u64 *const bars;  // two, and two places
  u32 turn = 0;

  // The blocks of the cluster come here together.
  DEVICE explicit ClusterReduce(u8 *shared) : bars(reinterpret_cast<u64 *>(shared)) {
    if (threadIdx.x == 0) {
      barrier_init(&bars[0], 1);
      barrier_init(&bars[1], 1);
      barrier_init_done();
    }
    cluster_arrive();
    cluster_wait();
  }

  // reduce returns what F makes of the numbers of all threads.
  template <class F, class T> DEVICE T reduce(T x) {
    typedef Wide<T> M;
    const M *all = swap(M(row_reduce<F, 32>(x, static_cast<T *>(nullptr))));
    x = T(all[threadIdx.x % 32]);
#pragma unroll
    for (int i = 32; i < PEERS; i += 32) x = F::join(x, T(all[threadIdx.x % 32 + i]));
    return row_reduce<F, 32>(x, static_cast<T *>(nullptr));
  }

  // A row has N units of W numbers. mean returns that of a warp's numbers, of the threads' sums. moments returns what is known of the
  // row, of the mean of each warp and the threads' sums of the squares of differences from it.
  template <int N, int W, class T> DEVICE T mean(T sum) const {
    const int n = numbers<N, W>(cluster_rank() * WARPS + int(threadIdx.x) / 32);
    return row_reduce<Sum, 32>(sum, static_cast<T *>(nullptr)) / T(greatest(n, 1));
  }
  template <int N, int W, class T> DEVICE Moment<T> moments(T mean, T squares) {
    struct alignas(2 * sizeof(T)) Pair { T mean, squares; };
    const Pair *all = swap(Pair{mean, row_reduce<Sum, 32>(squares, static_cast<T *>(nullptr))});
    Moment<T> m{T(i64(N) * W), 0, 0};
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < PEERS; i += 32) m.mean += all[lane + i].mean * T(numbers<N, W>(lane + i));
    m.mean = row_reduce<Sum, 32>(m.mean, static_cast<T *>(nullptr)) / m.n;
#pragma unroll
    for (int i = 0; i < PEERS; i += 32) {
      const T far = all[lane + i].mean - m.mean;
      m.squares += all[lane + i].squares + far * far * T(numbers<N, W>(lane + i));
    }
    m.squares = row_reduce<Sum, 32>(m.squares, static_cast<T *>(nullptr));
    return m;
  }

 private:
  // How many numbers warp i has of N units of W.
  template <int N, int W> static DEVICE int numbers(int i) {
    return (N / THREADS * 32 + greatest(least(N % THREADS - 32 * i, 32), 0)) * W;
  }

  // swap sends x of each warp to all blocks, and returns those of all warps.
  template <class X> DEVICE const X *swap(X x) {
    static_assert(sizeof(X) <= EACH, "");
    X *const all = reinterpret_cast<X *>(bars + 2) + (turn & 1) * PEERS;
    u64 *const bar = &bars[turn & 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) barrier_expect(bar, PEERS * int(sizeof(X)));
    if (lane < BLOCKS) cluster_send(&all[cluster_rank() * WARPS + warp], x, lane, bar);
    barrier_wait(bar, turn / 2 & 1);
    turn++;
    return all;
  }
};

// row_prefetch brings n bytes to the L2 cache, of the first and the last piece of 16 as far as the copy engine can.
DEVICE void row_prefetch(const void *p, int n) {
  const i64 from = (i64(p) + 15) & -16, end = (i64(p) + n) & -16;
  bulk_prefetch(reinterpret_cast<const void *>(from), int(end - from));
}
