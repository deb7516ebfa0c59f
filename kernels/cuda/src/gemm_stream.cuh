// Products of few rows with Hopper's instructions, which take the time of reading B, the weights, once; see gemm.cuh for Problem
// and Body, and gemm_hopper.cuh for slices of operands.
//
// Weights are the left operand of wgmma, so that BN columns of the result are its rows, and the rows of the result are its
// columns. A warp fills a ring of stages with slices of weights and of A, and a warpgroup multiplies them. The S blocks of a
// cluster divide k. Each sends the others their shares of its sums, and adds those of all, in order, in its own share.
//
// A Tile describes the division of the work:
//
//	typedef … T;           bf16 or f16
//	int BN, ROWS, S;       the tile; ROWS, at least P::M, are 8, 16, 32 or 64
//	int STAGES;
//	int INNER, A_AXES, B_AXES; bool B_KINNER;  as in gemm_hopper.cuh
//	bool EARLY;            the launch may begin before those before it have ended, which do not write the weights
//	bool OVER;             the sums take the place of the stages, once all blocks of the cluster have multiplied theirs

template <class P, class Tile> struct StreamRing {
  static constexpr int BK = 64, B_BYTES = Tile::BN * 128, A_BYTES = Tile::ROWS * 128, STAGE = A_BYTES + B_BYTES, CONSUMERS = 128;
  static constexpr int PITCH = Tile::BN + 4;  // of the sums in shared memory, such that the lanes of a warp meet all banks
  static constexpr int SUMS = Tile::OVER ? 0 : STAGE * Tile::STAGES, END = SUMS + Tile::ROWS * PITCH * 4;
  static constexpr int BARRIERS = Tile::OVER ? STAGE * Tile::STAGES : END;
  static_assert(END <= BARRIERS, "the sums fit");
  static constexpr int VECTORS = P::M * (Tile::BN / P::W) / Tile::S, SHARE = VECTORS * P::W;  // of a block of a cluster
  static_assert(Tile::S * SHARE == P::M * Tile::BN, "the sums are divided evenly");
  static constexpr int TILES = (P::N + Tile::BN - 1) / Tile::BN, STEPS = (P::K + BK - 1) / BK;
};

template <class P, class Body, class Tile>
DEVICE void gemm_stream(Body body, const TensorMap *map_a, const TensorMap *map_b, typename Body::Sum *) {
  typedef StreamRing<P, Tile> R;
  typedef typename Tile::T T;
  constexpr int BN = Tile::BN, ROWS = Tile::ROWS, STAGES = Tile::STAGES, S = Tile::S, W = P::W, PARTS = BN / 64;
  constexpr int EACH = (R::STEPS + S - 1) / S;
  static_assert((S - 1) * EACH < R::STEPS, "every block has a slice");
  SHARED;
  u64 *const full = reinterpret_cast<u64 *>(shared + R::BARRIERS), *const empty = full + STAGES, *const inbox = empty + STAGES;
  float *const sums = reinterpret_cast<float *>(shared + R::SUMS);
  const int lane = threadIdx.x % 32, rank = int(blockIdx.x) % S, tile = int(blockIdx.x) / S;
  const int batch = tile / R::TILES, n0 = tile % R::TILES * BN;
  const int first = rank * EACH, steps = least(EACH, R::STEPS - first);  // of slices of k
  if (threadIdx.x == R::CONSUMERS) {
    tma_prefetch(map_a);
    tma_prefetch(map_b);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, 4);
    }
    barrier_init(inbox, 1);
    barrier_init_done();
  }
  __syncthreads();
  if constexpr (S > 1) {
    if constexpr (!Tile::OVER) cluster_arrive();
    if (threadIdx.x == R::CONSUMERS) barrier_expect(inbox, (S - 1) * R::SHARE * 4);
  }
  if constexpr (Tile::EARLY) early_begin();
  if (threadIdx.x >= R::CONSUMERS) {
    const auto weights = [&](int i) {
      barrier_expect(full + i % STAGES, R::STAGE);
      load_slice<BN, 1, Tile::B_KINNER, Tile::B_AXES, Tile::INNER, 64, true>(
          shared + i % STAGES * R::STAGE, map_b, full + i % STAGES, n0, (first + i) * R::BK, batch, 0, 0);
    };
    const auto rows = [&](int i) {
      load_slice<ROWS, 1, true, Tile::A_AXES, Tile::INNER>(shared + i % STAGES * R::STAGE + R::B_BYTES, map_a, full + i % STAGES, 0,
                                                           (first + i) * R::BK, batch, 0, 0);
    };
    const int ahead = least(STAGES, steps);
    if (lane == 0) {
      for (int i = 0; i < ahead; i++) weights(i);
    }
    if constexpr (Tile::EARLY) early_read();
    if (lane == 0) {
      for (int i = 0; i < ahead; i++) rows(i);
      for (int i = ahead; i < steps; i++) {
        barrier_wait(empty + i % STAGES, (i / STAGES & 1) ^ 1);
        weights(i);
        rows(i);
      }
    }
    if constexpr (S > 1) {
      if constexpr (Tile::OVER) cluster_arrive();
      cluster_wait();
    }
    return;
  }
  if constexpr (Tile::EARLY) early_read();
  const auto release = [&](int stage) {
    if (lane == 0) barrier_arrive(empty + stage);
  };
  const u64 b0 = wgmma_operand(shared, 8192, 1024), a0 = wgmma_operand(shared + R::B_BYTES, 8192, 1024);
  float acc[PARTS][ROWS / 2];
  int stage = 0, last = 0;
  u32 phase = 0;
  for (int k = 0; k < steps; k++) {
    barrier_wait(full + stage, phase);
    wgmma_fence();
    const u64 at = u64(stage * (R::STAGE / 16));
    multiply_slice<T, Tile::B_KINNER, true, ROWS, PARTS>(acc, b0 + at, a0 + at, k > 0);
    wgmma_commit();
    if constexpr (Tile::B_KINNER) {  // the stage is filled again before the next slice has come; other products take longer
      wgmma_wait<0>();
      release(stage);
    } else if (k > 0) {
      wgmma_wait<1>();
      release(last);
    }
    last = stage;
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < PARTS; i++) pin(acc[i]);
  if constexpr (S > 1) {
    if constexpr (Tile::OVER) cluster_arrive();
    cluster_wait();  // the others have initialised their barriers, and with OVER have multiplied
  } else if constexpr (Tile::OVER) {
    named_sync(1, R::CONSUMERS);
  }
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
#pragma unroll
    for (int e = 0; e < ROWS / 2; e++) {
      const int column = i * 64 + threadIdx.x / 32 * 16 + lane / 4 + e / 2 % 2 * 8, row = e / 4 * 8 + lane % 4 * 2 + e % 2;
      if constexpr (S == 1) {
        sums[row * R::PITCH + column] = acc[i][e];
      } else if (row < P::M) {
        const int at = row * BN + column, owner = at / R::SHARE;
        float *const to = sums + rank * R::SHARE + at % R::SHARE;
        if (owner == rank) {
          *to = acc[i][e];
        } else {
          cluster_send(to, acc[i][e], owner, inbox);
        }
      }
    }
  }
  named_sync(1, R::CONSUMERS);
  if constexpr (S > 1) barrier_wait(inbox, 0);
  if constexpr (Tile::EARLY) early_body();
#pragma unroll 2
  for (int i = threadIdx.x; i < R::VECTORS; i += R::CONSUMERS) {
    const int at = rank * R::VECTORS + i, row = at / (BN / W), column = at % (BN / W) * W;
    if (n0 + column >= P::N) continue;
    const float *const part = sums + (S > 1 ? i * W : row * R::PITCH + column);
    Vec<float, W> sum;
    if constexpr (S > 1) {
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] = part[j];
#pragma unroll
      for (int q = 1; q < S; q++) {
#pragma unroll
        for (int j = 0; j < W; j++) sum[j] += part[q * R::SHARE + j];
      }
    } else {
      sum = load<float, W, 1, least(16, W * 4)>(part);
    }
    body(batch, row, n0 + column, sum, static_cast<Vec<typename Body::Sum, W> *>(nullptr));
  }
  if constexpr (Tile::EARLY) early_end();
}
