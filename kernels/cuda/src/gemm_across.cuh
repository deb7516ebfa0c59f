// Products of f32 on Hopper where B has n, not k, as its inner axis; see gemm.cuh for Problem and Body and
// gemm_hopper.cuh for the ring of stages. The tensor cores of a warpgroup read f32 from shared memory along k only, so
// here Cᵀ = Bᵀ·Aᵀ is computed: Bᵀ comes from registers, which threads load in any order, and A, with k as its inner
// axis, from shared memory.
//
// A Tile describes the division of the work: T, INNER, A_AXES, B_AXES, BM, BN, STAGES, CM = CN = 1, SPLITS, B_PATCHES,
// TURNED = false and RESIDENT = 0 as in gemm_hopper.cuh, and
//
//	bool STRICT; nearly as accurate as f32: each operand is the sum of a big and a small tf32 number, and only
//	small·small is left out (Markidis et al., arXiv 1803.04014). The big one of A is A itself, of which the tensor cores
//	              read the upper 19 bits.
//	bool WRITES;  a warpgroup writes the small ones of A in shared memory; else they are copied from memory
//	bool MEETS;   the two blocks of a cluster have a share of k each, and one tile: each adds up one half of its rows
//
// A warpgroup has 64 columns: two have the same rows, or where BN is 64 one half of them each.

template <class Tile> struct AcrossRing {
  static constexpr int BK = 32, A_BYTES = Tile::BM * 128, B_BYTES = Tile::BN * 128;
  static constexpr int B_AT = A_BYTES * (Tile::STRICT ? 2 : 1), STAGE = B_AT + B_BYTES;
  static constexpr int BARRIERS = STAGE * Tile::STAGES;
  static constexpr int ACROSS = Tile::BN / 64, DOWN = 2 / ACROSS, ROWS = Tile::BM / DOWN;  // warpgroups, and rows of one
  static_assert(Tile::BN == 64 || Tile::BN == 128, "two warpgroups have 64 columns each");
};

// write_small writes the small numbers of a slice of A behind it. A warpgroup does so.
template <int BYTES> DEVICE void write_small(u8 *slice, int thread) {
#pragma unroll 4
  for (int i = thread * 16; i < BYTES; i += 128 * 16) {
    const float4 x = *reinterpret_cast<const float4 *>(slice + i);
    *reinterpret_cast<float4 *>(slice + BYTES + i) = {copied<REST>(x.x), copied<REST>(x.y), copied<REST>(x.z), copied<REST>(x.w)};
  }
}

// multiply_loaded adds the product of a slice whose columns of B are in registers to the accumulators.
template <class Product, int R> DEVICE void multiply_loaded(float (&acc)[R], const u32 (&b)[4][4], u64 a, bool add) {
#pragma unroll
  for (int k = 0; k < 4; k++) Product::template multiply<false>(acc, b[k], a + k * 2, add || k > 0);
}

// patch_element is where an element of a matrix of patches is, or nowhere if it is outside of the image.
template <class I> DEVICE const float *patch_element(const float *images, int row, int column) {
  const PatchRow<I> r(row);
  const PatchColumn<I> c(column);
  return inside(r, c) ? images + (r.at + c.at) : nullptr;
}

// plain_sum computes element [m, n] of the product of the matrices at a and b, up to the first NaN.
template <class P, bool B_PATCHES> DEVICE float plain_sum(const float *a, const float *b, int m, int n, int begin, int end) {
  if constexpr (!P::PATCHES) a += m * P::A_M;
  if constexpr (!B_PATCHES) b += n * P::B_N;
  float sum = 0;
  for (int k = begin; k < end && sum == sum; k++) {
    const float *x = a + k * P::A_K, *y = b + k * P::B_K;
    if constexpr (P::PATCHES) {
      x = patch_element<typename P::Image>(a, m, k);
      if (x == nullptr) continue;
    }
    if constexpr (B_PATCHES) {
      y = patch_element<typename P::Image>(b, k, n);
      if (y == nullptr) continue;
    }
    sum += *x * *y;
  }
  return sum;
}

// mend computes again what is NaN among a thread's accumulators, possibly from the parts of an infinite operand: of the rows m,
// m + 8, m + 16 … of A, two columns each, and the rows behind them.
template <class P, class Tile, int ROWS>
DEVICE void mend(float (&acc)[ROWS / 2], const float *a, const float *b, int m, int n, int begin, int end) {
  bool nan = false;
#pragma unroll
  for (float x : acc) nan = nan || x != x;
  if (!nan) return;
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) {
    const int row = m + i / 4 * 8 + i % 2, column = n + i / 2 % 2;
    if (acc[i] != acc[i] && row < P::M && column < P::N) {
      acc[i] = plain_sum<P, Tile::B_PATCHES>(a, b, row, column, begin, end);
    }
  }
}

// finish_across passes a thread's accumulators to the body. With those of lane ^ 4, which has the other two columns of
// a piece of four, it gets all four columns of the rows m, m + 8, m + 16 … of A. Column sums become row `block` of
// partial [SUMS][BLOCKS][N]. With CHECKS, what is NaN is computed again here.
template <class P, bool CHECKS, int ROWS, int BLOCKS, class Body>
DEVICE void finish_across(const Body &body, const float (&acc)[ROWS / 2], const float *a, const float *b, int batch, int m,
                          int n, int begin, int end, typename Body::Sum *partial, int block) {
  constexpr int W = P::W, COLS = 4;
  static_assert(COLS % W == 0, "the body takes at most the columns of a thread");
  const bool odd = threadIdx.x & 4;
  Vec<typename Body::Sum, W> sums[COLS / W][Body::SUMS + 1] = {};
#pragma unroll
  for (int i = 0; i < ROWS / 8; i++, m += 8) {
    const float *const x = acc + i * 4;  // columns 0, 0, 1, 1 of rows 0, 1, 0, 1
    float v[COLS];
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const float keep = odd ? x[2 * c + 1] : x[2 * c], give = odd ? x[2 * c] : x[2 * c + 1];
      const float got = __shfl_xor_sync(0xffffffffu, give, 4);
      v[c] = odd ? got : keep;
      v[2 + c] = odd ? keep : got;
    }
    if (m >= P::M) continue;
#pragma unroll
    for (int c = 0; c < COLS; c += W) {
      if (n + c >= P::N) continue;
      Vec<float, W> columns;
#pragma unroll
      for (int w = 0; w < W; w++) {
        columns[w] = v[c + w];
        if (CHECKS && columns[w] != columns[w]) {
          columns[w] = plain_sum<P, false>(a + P::a_at(batch), b + P::b_at(batch), m, n + c + w, begin, end);
        }
      }
      body(batch, m, n + c, columns, sums[c / W]);
    }
  }
#pragma unroll
  for (int s = 0; s < Body::SUMS; s++) {
#pragma unroll
    for (int c = 0; c < COLS; c += W) {
#pragma unroll
      for (int w = 0; w < W; w++) {
#pragma unroll
        for (int far = 1; far < 8; far *= 2) sums[c / W][s][w] += __shfl_xor_sync(0xffffffffu, sums[c / W][s][w], far);
      }
      if (threadIdx.x % 8 == 0 && n + c < P::N) {
        store<1, W * 4>(partial + (s * BLOCKS + block) * i64(P::N) + n + c, sums[c / W][s]);
      }
    }
  }
}

// meet adds the accumulators of the same thread in both blocks of a cluster. It gives block number `rank` one half. At `mine` each
// of 256 threads has every 256th number of the stages, which nobody reads or writes any more.
template <int N> DEVICE void meet(float (&sum)[N], const float (&acc)[2 * N], float *mine, int rank) {
  named_sync(1, 256);
#pragma unroll
  for (int e = 0; e < N; e++) mine[e * 256] = rank == 0 ? acc[N + e] : acc[e];
  cluster_sync();
#pragma unroll
  for (int e = 0; e < N; e++) sum[e] = (rank == 0 ? acc[e] : acc[N + e]) + cluster_read(mine + e * 256, 1 - rank);
  cluster_sync();
}

// gemm_across computes a product. map_small is the small part of A, if that is to be copied; a and b are the operands in
// memory.
template <class P, class Body, class Tile, class Work>
DEVICE void gemm_across(Body body, const TensorMap *map_a, const TensorMap *map_small, const TensorMap *map_b,
                        const float *a, const float *b, Work work, typename Body::Sum *partial) {
  typedef AcrossRing<Tile> R;
  constexpr int BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, BK = R::BK, ROWS = R::ROWS;
  constexpr int STEPS = (P::K + BK - 1) / BK, EACH = (STEPS + Tile::SPLITS - 1) / Tile::SPLITS;
  static_assert((Tile::SPLITS - 1) * EACH < STEPS, "every share of k has a step");
  SHARED;
  u64 *const full = reinterpret_cast<u64 *>(shared + R::BARRIERS), *const empty = full + STAGES, *const ready = empty + STAGES;
  // The first warpgroup that multiplies, and the registers of the producer and of those.
  constexpr int FIRST = Tile::WRITES ? 2 : 1, FEW = Tile::WRITES ? 40 : 56, MANY = Tile::WRITES ? 208 : 224;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    tma_prefetch(map_a);
    tma_prefetch(map_b);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, 8);
      if (Tile::WRITES) barrier_init(ready + i, 4);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (group < FIRST) {
    if (group == 0) {
      fewer_registers<FEW>();
    } else {
      fewer_registers<56>();
    }
    if (threadIdx.x == 0 || group > 0) {
      int stage = 0;
      u32 phase = 0;
      for (int i = blockIdx.x; i < Work::SPOTS; i += gridDim.x) {
        Spot spot;
        int end;
        work.find(i, spot, end);
        const int first = spot.split * EACH;
        for (int step = first; step < least(first + EACH, STEPS); step++) {
          const int k = step * BK;
          u8 *const to = shared + stage * R::STAGE;
          if (Tile::WRITES && group > 0) {
            barrier_wait(full + stage, phase);
            write_small<R::A_BYTES>(to, threadIdx.x - 128);
            shared_fence();
            __syncwarp();
            if (lane == 0) barrier_arrive(ready + stage);
          } else {
            barrier_wait(empty + stage, phase ^ 1);
            barrier_expect(full + stage, Tile::WRITES ? R::A_BYTES + R::B_BYTES : R::STAGE);
            if constexpr (P::PATCHES) {
              load_patches_slice<typename P::Image, BK, BM, 1, true>(to, map_a, full + stage, spot.m, k, spot.batch, 0, 0);
            } else {
              load_slice<BM, 1, true, Tile::A_AXES, Tile::INNER>(to, map_a, full + stage, spot.m, k, spot.batch, 0, 0);
            }
            if constexpr (Tile::STRICT && !Tile::WRITES) {
              load_slice<BM, 1, true, Tile::A_AXES, Tile::INNER>(
                  to + R::A_BYTES, map_small, full + stage, spot.m, k, spot.batch, 0, 0);
            }
            if constexpr (Tile::B_PATCHES) {
              load_patches_slice<typename P::Image, BK, BN, 1, false>(
                  to + R::B_AT, map_b, full + stage, spot.n, k, spot.batch, 0, 0);
            } else {
              load_slice<BN, 1, false, Tile::B_AXES, Tile::INNER, BK>(
                  to + R::B_AT, map_b, full + stage, spot.n, k, spot.batch, 0, 0);
            }
          }
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
    if constexpr (Tile::MEETS) cluster_sync(), cluster_sync();
  } else {
    more_registers<MANY>();
    // A warp has 16 columns of 32, which are 128 bytes of each step of k; the copy engine has permuted pieces of 16
    // bytes. Lane 4g+t reads two words of steps t and t+4 of eight; which ones spreads neighbours over all banks.
    const int g = lane / 4, t = lane % 4, box = (R::ACROSS == 1 ? 0 : group - FIRST) * 2 + warp / 2;
    const int down = R::DOWN == 1 ? 0 : __shfl_sync(0xffffffffu, group - FIRST, 0);  // known to be the same in the warp
    const int piece = warp % 2 * 2 + g / 4 | g / 2 % 2 * 4, half = g % 2;
    const u8 *const words = shared + R::B_AT + box * 4096 + t * 128 + half * 8;
    const int low = (piece ^ t) * 16, high = 4 * 128 + (piece ^ t ^ 4) * 16;
    const u64 a0 = wgmma_operand(shared + down * ROWS * 128, 8192, 1024);
    typedef Wgmma<tf32, ROWS> Product;
    float loaded[4][4];  // eight steps of k each
    const auto take = [&](int stage, u32 phase) {
      barrier_wait(full + stage, phase);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const u8 *const at = words + stage * R::STAGE + k * 1024;
        const float2 x = *reinterpret_cast<const float2 *>(at + low), y = *reinterpret_cast<const float2 *>(at + high);
        loaded[k][0] = x.x, loaded[k][1] = x.y, loaded[k][2] = y.x, loaded[k][3] = y.y;
      }
    };
    int stage = 0;
    u32 phase = 0;
    for (int i = blockIdx.x; i < Work::SPOTS; i += gridDim.x) {
      Spot spot;
      int end;
      work.find(i, spot, end);
      const int first = spot.split * EACH, steps = least(EACH, STEPS - first);
      float acc[ROWS / 2] = {};
      take(stage, phase);
      for (int step = 0; step < steps; step++) {
        const int now = stage;
        const u32 round = phase;
        const u64 at = a0 + u64(now * (R::STAGE / 16));
        if (++stage == STAGES) stage = 0, phase ^= 1;
        u32 big[4][4], small[4][4];
#pragma unroll
        for (int e = 0; e < 16; e++) {
          const float x = loaded[e / 4][e % 4];
          u32 &to = big[e / 4][e % 4];
          to = float_to_bits(Tile::STRICT ? bits_to_float(float_to_bits(x) & 0xffffe000u) : round_tf32(x));
          small[e / 4][e % 4] = float_to_bits(x - bits_to_float(to));
        }
        if constexpr (Tile::STRICT) {
          // Tensor cores truncate when they add, so they add the products of one slice only (Ootomo and Yokota, arXiv
          // 2203.03341), the smaller ones first.
          float part[ROWS / 2];
          if constexpr (Tile::WRITES) barrier_wait(ready + now, round);
          wgmma_fence();
          multiply_loaded<Product>(part, small, at, false);
          multiply_loaded<Product>(part, big, at + R::A_BYTES / 16, true);
          multiply_loaded<Product>(part, big, at, true);
          wgmma_commit();
          if (step + 1 < steps) take(stage, phase);
          wgmma_wait<0>();
          if (lane == 0) barrier_arrive(empty + now);
          pin(part);
#pragma unroll
          for (int e = 0; e < ROWS / 2; e++) acc[e] += part[e];
        } else {
          wgmma_fence();
          multiply_loaded<Product>(acc, big, at, true);
          wgmma_commit();
          if (step + 1 < steps) take(stage, phase);
          wgmma_wait<0>();
          if (lane == 0) barrier_arrive(empty + now);
          pin(acc);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) pin(loaded[k]);
      }
      const int n = spot.n + box * 32 + piece * 4;
      if constexpr (Tile::MEETS) {
        float sum[ROWS / 4];
        meet(sum, acc, reinterpret_cast<float *>(shared) + threadIdx.x - FIRST * 128, spot.split);
        finish_across<P, false, ROWS / 2, P::BATCH * Work::TM * R::DOWN * 2>(
            body, sum, a, b, spot.batch, spot.m + down * ROWS + spot.split * (ROWS / 2) + 2 * t + half, n, 0, 0, partial,
            ((spot.batch * Work::TM + spot.m / BM) * R::DOWN + down) * 2 + spot.split);
        continue;
      }
      if constexpr (Tile::SPLITS > 1 && !Tile::MEETS) body.split = spot.split;
      const int m = spot.m + down * ROWS + 2 * t, begin = first * BK;
      const int end_k = least(P::K, (first + steps) * BK);
      if constexpr (Tile::WRITES) {
        mend<P, Tile, ROWS>(acc, a + P::a_at(spot.batch), b + P::b_at(spot.batch), m, n + 2 * half, begin, end_k);
      }
      finish_across<P, Tile::STRICT && !Tile::WRITES, ROWS, P::BATCH * Work::TM * R::DOWN>(
          body, acc, a, b, spot.batch, m + half, n, begin, end_k, partial, (spot.batch * Work::TM + spot.m / BM) * R::DOWN + down);
    }
  }
}
