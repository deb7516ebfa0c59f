// Products of f32 on Hopper where B stands in memory with n, not k, as its inner axis; see gemm.cuh for Problem and Body
// and gemm_hopper.cuh for the ring of stages. The tensor cores of a warpgroup read f32 from shared memory along k only, so
// here Cᵀ = Bᵀ·Aᵀ is computed: Bᵀ comes to them from registers, which threads load in any order, and A, with k as its
// inner axis, from shared memory. A thread ends with some columns side by side of each of its rows.
//
// A Tile says how the work is cut: T, INNER, A_AXES, B_AXES, BM, BN, STAGES, CM, CN and SPLITS as in gemm_hopper.cuh, and
//
//	int PARTS;    a warpgroup has 64·PARTS columns, a thread 2·PARTS of them side by side
//	bool TURNS;   the warpgroups take turns with the slices of k, and their sums are added; else each has half of the
//	              columns
//	bool STRICT;  nearly as accurate as f32: each operand is a big and a small number of tf32, and only small·small is
//	              left out (Markidis et al., arXiv 1803.04014). The big one of A is A itself, of which the tensor cores
//	              read the upper 19 bits.

template <class Tile> struct AcrossRing {
  static constexpr int BK = 32, A_BYTES = Tile::BM * 128, B_BYTES = Tile::BN * 128;
  static constexpr int B_AT = A_BYTES * (Tile::STRICT ? 2 : 1), STAGE = B_AT + B_BYTES;
  static constexpr int PASSED = Tile::TURNS ? 2 * 128 * 32 * 4 : 0;  // bytes that the warpgroups exchange at once
  static constexpr int PASS = STAGE * Tile::STAGES, BARRIERS = PASS + PASSED;
  static_assert(Tile::BN == 64 * Tile::PARTS * (Tile::TURNS ? 1 : 2), "the columns of the warpgroups make up the tile");
  static_assert(Tile::STAGES >= (Tile::TURNS ? 4 : 2), "a warpgroup holds a stage and waits for its next");
};

// exchange adds the accumulators of two warpgroups that took turns along k. Group 1 keeps the first half of the rows of
// A, group 2 the other, moved to where the first were.
template <int R> DEVICE void exchange(float (&acc)[2][R], u8 *pass, int group) {
  constexpr int HALF = R / 2, ROUND = 16;  // of each of two parts
  static_assert(HALF % ROUND == 0, "rounds are whole");
  const int thread = threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < HALF; i++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const float low = acc[p][i], high = acc[p][HALF + i];
      acc[p][i] = group == 1 ? low : high;
      acc[p][HALF + i] = group == 1 ? high : low;
    }
  }
  float4 *const mine = reinterpret_cast<float4 *>(pass) + (group - 1) * 1024 + thread;
  const float4 *const theirs = reinterpret_cast<float4 *>(pass) + (2 - group) * 1024 + thread;
#pragma unroll
  for (int first = 0; first < HALF; first += ROUND) {
#pragma unroll
    for (int i = 0; i < 2 * ROUND; i += 4) {
      const float *x = acc[i / ROUND] + HALF + first + i % ROUND;
      mine[i / 4 * 128] = {x[0], x[1], x[2], x[3]};
    }
    named_sync(1, 256);
#pragma unroll
    for (int i = 0; i < 2 * ROUND; i += 4) {
      float *x = acc[i / ROUND] + first + i % ROUND;
      const float4 y = theirs[i / 4 * 128];
      x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
    }
    named_sync(1, 256);
  }
}

// multiply_loaded adds the product of a slice whose columns of B are in registers to the accumulators.
template <class Product, int PARTS, int R>
DEVICE void multiply_loaded(float (&acc)[PARTS][R], const u32 (&b)[4][PARTS][4], u64 a, bool add) {
#pragma unroll
  for (int k = 0; k < 4; k++) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) Product::template multiply<false>(acc[p], b[k][p], a + k * 2, add || k > 0);
  }
}

// plain_sum computes an element of the product by itself, from operand rows at a and b, up to the first NaN.
template <class P> DEVICE float plain_sum(const float *a, const float *b, int begin, int end) {
  float sum = 0;
  for (int k = begin; k < end && sum == sum; k++) sum += a[k * P::A_K] * b[k * P::B_K];
  return sum;
}

// finish_across gives a thread's accumulators to the body: of the rows m + 8·j + {0, 1} of A 2·PARTS columns from n on.
// Column sums become row `block` of partial [SUMS][BLOCKS][N]. In a strict product a NaN, which the parts of an infinite
// operand may leave, is computed again.
template <class P, bool STRICT, int ROWS, int BLOCKS, int PARTS, class Body, int R>
DEVICE void finish_across(const Body &body, const float (&acc)[PARTS][R], const float *a, const float *b, int batch, int m,
                          int n, int begin, int end, typename Body::Sum *partial, int block) {
  constexpr int W = P::W, COLS = 2 * PARTS;
  static_assert(COLS % W == 0, "the body takes at most the columns of a thread");
  Vec<typename Body::Sum, W> sums[COLS / W][Body::SUMS + 1] = {};
#pragma unroll
  for (int i = 0; i < ROWS / 4; i++) {
    const int at_m = m + i / 2 * 8 + i % 2, e = i / 2 * 4 + i % 2;
    if (at_m >= P::M) continue;
#pragma unroll
    for (int c = 0; c < COLS; c += W) {
      if (n + c >= P::N) continue;
      Vec<float, W> v;
#pragma unroll
      for (int w = 0; w < W; w++) {
        v[w] = acc[(c + w) / 2][e + (c + w) % 2 * 2];
        if (STRICT && v[w] != v[w]) {
          v[w] = plain_sum<P>(a + P::a_at(batch) + at_m * P::A_M, b + P::b_at(batch) + (n + c + w) * P::B_N, begin, end);
        }
      }
      body(batch, at_m, n + c, v, sums[c / W]);
    }
  }
#pragma unroll
  for (int s = 0; s < Body::SUMS; s++) {
#pragma unroll
    for (int c = 0; c < COLS; c += W) {
#pragma unroll
      for (int w = 0; w < W; w++) {
#pragma unroll
        for (int far = 1; far < 4; far *= 2) sums[c / W][s][w] += __shfl_xor_sync(0xffffffffu, sums[c / W][s][w], far);
      }
      if (threadIdx.x % 4 == 0 && n + c < P::N) {
        store<1, W * 4>(partial + (s * BLOCKS + block) * i64(P::N) + n + c, sums[c / W][s]);
      }
    }
  }
}

// gemm_across computes a product. map_small is what tf32 does not hold of A, if the product is strict; a and b are the
// operands in memory.
template <class P, class Body, class Tile, class Work>
DEVICE void gemm_across(Body body, const TensorMap *map_a, const TensorMap *map_small, const TensorMap *map_b,
                        const float *a, const float *b, Work work, typename Body::Sum *partial) {
  typedef AcrossRing<Tile> R;
  constexpr int BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, BK = R::BK, PARTS = Tile::PARTS;
  constexpr int WAYS = Tile::TURNS ? 2 : 1;
  constexpr int STEPS = (P::K + BK - 1) / BK, EACH = (STEPS + Tile::SPLITS - 1) / Tile::SPLITS;
  static_assert((Tile::SPLITS - 1) * EACH < STEPS, "every share of k has a step");
  SHARED;
  u64 *const full = reinterpret_cast<u64 *>(shared + R::BARRIERS), *const empty = full + STAGES;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    tma_prefetch(map_a);
    tma_prefetch(map_b);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, Tile::TURNS ? 4 : 8);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (group == 0) {
    fewer_registers<56>();
    if (threadIdx.x == 0) {
      int stage = 0;
      u32 phase = 0;
      for (int i = blockIdx.x; i < Work::SPOTS; i += gridDim.x) {
        Spot spot;
        int end;
        work.find(i, spot, end);
        const int first = spot.split * EACH;
        for (int step = first; step < least(first + EACH, STEPS); step++) {
          const int k = step * BK;
          barrier_wait(empty + stage, phase ^ 1);
          barrier_expect(full + stage, R::STAGE);
          u8 *const to = shared + stage * R::STAGE;
          load_slice<BM, 1, true, Tile::A_AXES, Tile::INNER>(to, map_a, full + stage, spot.m, k, spot.batch, 0, 0);
          if constexpr (Tile::STRICT) {
            load_slice<BM, 1, true, Tile::A_AXES, Tile::INNER>(
                to + R::A_BYTES, map_small, full + stage, spot.m, k, spot.batch, 0, 0);
          }
          load_slice<BN, 1, false, Tile::B_AXES, Tile::INNER, BK>(
              to + R::B_AT, map_b, full + stage, spot.n, k, spot.batch, 0, 0);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    more_registers<224>();
    // A warp has 16·PARTS columns of 32, which are 128 bytes of each step of k; the copy engine has permuted pieces of 16
    // bytes. Lane 4g+t reads 2·PARTS words of steps t and t+4 of eight; which ones spreads neighbours over all banks.
    const int g = lane / 4, t = lane % 4, first_n = Tile::TURNS ? 0 : (group - 1) * 64 * PARTS;
    const int box = first_n / 32 + (PARTS == 2 ? warp : warp / 2);
    const int piece = PARTS == 2 ? g / 2 | g % 2 * 4 : warp % 2 * 2 + g / 4 | g / 2 % 2 * 4;
    const int inside = PARTS == 2 ? 0 : g % 2 * 2;  // columns into the piece
    const u8 *const words = shared + R::B_AT + box * 4096 + t * 128 + inside * 4;
    const int low = (piece ^ t) * 16, high = 4 * 128 + (piece ^ t ^ 4) * 16;
    const u64 a0 = wgmma_operand(shared, 8192, 1024);
    typedef Wgmma<tf32, BM> Product;
    float loaded[4][PARTS][4];  // 8 steps of k each
    const auto take = [&](u32 i) {
      barrier_wait(full + i % STAGES, i / STAGES & 1);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const u8 *const at = words + i % STAGES * R::STAGE + k * 1024;
        const auto x = load<float, 2 * PARTS, 1, 8 * PARTS>(reinterpret_cast<const float *>(at + low));
        const auto y = load<float, 2 * PARTS, 1, 8 * PARTS>(reinterpret_cast<const float *>(at + high));
#pragma unroll
        for (int e = 0; e < 2 * PARTS; e++) loaded[k][e / 2][e % 2] = x[e], loaded[k][e / 2][2 + e % 2] = y[e];
      }
    };
    u32 done = 0;  // slices of earlier tiles
    for (int i = blockIdx.x; i < Work::SPOTS; i += gridDim.x) {
      Spot spot;
      int end;
      work.find(i, spot, end);
      const int first = spot.split * EACH, steps = least(EACH, STEPS - first);
      float acc[PARTS][BM / 2] = {};
      int step = Tile::TURNS ? group - 1 : 0;
      if (step < steps) take(done + step);
      for (; step < steps; step += WAYS) {
        const u32 stage = (done + step) % STAGES;
        const u64 at = a0 + u64(stage * (R::STAGE / 16));
        u32 big[4][PARTS][4], small[4][PARTS][4];
#pragma unroll
        for (int e = 0; e < 16 * PARTS; e++) {
          const float x = loaded[e / 4 / PARTS][e / 4 % PARTS][e % 4];
          u32 &to = big[e / 4 / PARTS][e / 4 % PARTS][e % 4];
          to = Tile::STRICT ? float_to_bits(x) & 0xffffe000u : float_to_bits(round_tf32(x));
          if constexpr (Tile::STRICT) small[e / 4 / PARTS][e / 4 % PARTS][e % 4] = float_to_bits(x - bits_to_float(to));
        }
        if constexpr (Tile::STRICT) {
          // Tensor cores truncate when they add, so they add the products of one slice only (Ootomo and Yokota, arXiv
          // 2203.03341), the smaller ones first.
          float part[PARTS][BM / 2];
          wgmma_fence();
          multiply_loaded<Product>(part, small, at, false);
          multiply_loaded<Product>(part, big, at + R::A_BYTES / 16, true);
          multiply_loaded<Product>(part, big, at, true);
          wgmma_commit();
          if (step + WAYS < steps) take(done + step + WAYS);
          wgmma_wait<0>();
          if (lane == 0) barrier_arrive(empty + stage);
#pragma unroll
          for (int p = 0; p < PARTS; p++) {
            pin(part[p]);
#pragma unroll
            for (int e = 0; e < BM / 2; e++) acc[p][e] += part[p][e];
          }
        } else {
          wgmma_fence();
          multiply_loaded<Product>(acc, big, at, true);
          wgmma_commit();
          if (step + WAYS < steps) take(done + step + WAYS);
          wgmma_wait<0>();
          if (lane == 0) barrier_arrive(empty + stage);
#pragma unroll
          for (int p = 0; p < PARTS; p++) pin(acc[p]);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
          for (int p = 0; p < PARTS; p++) pin(loaded[k][p]);
        }
      }
      done += steps;
      if constexpr (Tile::SPLITS > 1) body.split = spot.split;
      constexpr int BLOCKS = P::BATCH * Work::TM * WAYS;
      const int n = spot.n + box * 32 + piece * 4 + inside;
      int m = spot.m + 2 * t, block = (spot.batch * Work::TM + spot.m / BM) * WAYS;
      if constexpr (Tile::TURNS) {
        exchange(acc, shared + R::PASS, group);
        m += (group - 1) * BM / 2;
        block += group - 1;
      }
      finish_across<P, Tile::STRICT, BM / WAYS, BLOCKS>(body, acc, a, b, spot.batch, m, n, first * BK,
                                                        least(P::K, (first + steps) * BK), partial, block);
    }
  }
}
