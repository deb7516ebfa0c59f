// The gradient of attention on tensor cores, like attention_mma.cuh, with the probabilities of attention_grad.cuh: one
// launch for dk and dv, whose warps hold 16 or 32 keys, with their gradients in registers, and pass over the queries of
// all heads that read them; one for dq, whose warps hold queries and pass over the keys. Scores are computed in both,
// so that no two blocks add to the same memory and all sums have one order. The other side's rows are streamed through
// shared memory, and the next part is loaded while the current one is used.

// A tile of the gradient: WARPS warps of 16·MT rows each, STREAM rows of the other side at a time. If there are more
// than 128 columns, a block of the launch for dk and dv computes one of CHUNKS parts of them.
template <class P, int WARPS_, int MT_, int STREAM_, bool STRICT_> struct MmaGradTile {
  typedef typename P::T T;
  static constexpr int WARPS = WARPS_, MT = MT_, STREAM = STREAM_, THREADS = 32 * WARPS, ROWS = 16 * MT * WARPS;
  static constexpr bool STRICT = STRICT_;
  static constexpr int CHUNKS = ((P::DEPTH > P::WIDTH ? P::DEPTH : P::WIDTH) + 127) / 128;
  static constexpr int DK = (P::DEPTH + 16 * CHUNKS - 1) / (16 * CHUNKS) * 16, DEPTH = DK * CHUNKS;
  static constexpr int DV = (P::WIDTH + 16 * CHUNKS - 1) / (16 * CHUNKS) * 16, WIDTH = DV * CHUNKS;
  static constexpr int PAD = 16 / int(sizeof(T)), QK_LD = DEPTH + PAD, V_LD = WIDTH + PAD;
  // Without a mask, scores are scaled only in the exponent.
  static constexpr bool LATE = !P::HAS_MASK && P::SCALE > 0;
};

// The shared memory of a block: its own rows, and two buffers of streamed rows.
template <class Tile> struct MmaGradShared {
  typedef typename Tile::T T;
  T own_qk[Tile::ROWS * Tile::QK_LD], own_v[Tile::ROWS * Tile::V_LD];
  T qk[2][Tile::STREAM * Tile::QK_LD], v[2][Tile::STREAM * Tile::V_LD];
  AttentionRow<float> rows[2][Tile::STREAM];
};

template <class P, class Tile, class S> DEVICE void clear_grad_padding(S &s) {
  clear_padding<Tile::ROWS, Tile::THREADS, P::DEPTH, Tile::DEPTH, Tile::QK_LD>(s.own_qk);
  clear_padding<Tile::ROWS, Tile::THREADS, P::WIDTH, Tile::WIDTH, Tile::V_LD>(s.own_v);
  clear_padding<2 * Tile::STREAM, Tile::THREADS, P::DEPTH, Tile::DEPTH, Tile::QK_LD>(s.qk[0]);
  clear_padding<2 * Tile::STREAM, Tile::THREADS, P::WIDTH, Tile::WIDTH, Tile::V_LD>(s.v[0]);
}

// The probability of a score; x is the product q·k, or with a mask the masked score.
template <class P, class Tile> DEVICE float probability(float x, float top, float share) {
  constexpr float LOG2E = 1.4426950408889634f;
  if constexpr (Tile::LATE) {  // both products are rounded, so p may exceed 1 for large scores
    const float p = exp2_approximate(x * (float(P::SCALE) * LOG2E) - top * LOG2E);
    return (p > 1.0f ? 1.0f : p) * share;
  }
  return exp2_approximate((x - top) * LOG2E) * share;
}

// As kept_accumulator, for an accumulator whose rows are keys j and j+8 and whose columns are queries i and i+1.
// Where a block of the generator is not cut by the end of a row, four threads share its work.
template <class P> DEVICE u32 kept_transposed(i64 seed, int head, int i, int j) {
  const int lane = threadIdx.x % 32, mine = lane / 4 % 4;
  u32 kept = 0;
  if constexpr (P::KEYS % 4 == 0) {
    const u32 four = kept4<P>(seed, head, i + mine % 2, (j & ~3) + mine / 2 * 8);
#pragma unroll
    for (int e = 0; e < 4; e++) kept |= (__shfl_sync(~0u, four, (lane & ~12) | e << 2) >> mine & 1) << e;
  } else {
#pragma unroll
    for (int e = 0; e < 4; e++) kept |= (kept4<P>(seed, head, i + e % 2, j + e / 2 * 8) & 1) << e;
  }
  return kept;
}

// Which elements of N accumulators dropout keeps, whose columns are queries from i0 + 8·n on, as kept_bits. Where their 16 keys from
// j0 on are in one group of the generator, each thread of the warp makes that of a query.
template <class P, int N> DEVICE u32 kept_columns(i64 seed, int head, int i0, int j0) {
  const int lane = threadIdx.x % 32;
  if constexpr (P::KEYS % 16 == 0 && N % 4 == 0) {
    static_assert(N <= 8, "four bits for each");
    u32 bits = 0, group = 0;
#pragma unroll
    for (int n = 0; n < N; n++) {
      if (n % 4 == 0) {
        const u64 at = (u64(head) * P::QUERIES + i0 + 8 * n + lane) * P::KEYS + j0;
        group = kept_group<P::DROP_BITS, P::DROP>(u64(seed), at / 32) >> at % 32 / 8 * 2;
      }
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const u32 two = __shfl_sync(~0u, group, n % 4 * 8 + lane % 4 * 2 + e) >> lane / 8 * 8 + lane / 4 % 2;
        bits |= (two & 5) << 4 * n + e;
      }
    }
    return bits;
  }
  return kept_bits<N>([&](int n) { return kept_transposed<P>(seed, head, i0 + n * 8 + lane % 4 * 2, j0 + lane / 4); });
}

// The gradient of a score, from the probability x and the gradient dp of the probability after dropout.
template <class P> DEVICE float score_gradient(float x, float dp, float delta, bool kept) {
  if constexpr (P::DROP > 0) dp = kept ? dp * float(P::KEEP) : 0.0f;
  return x * (dp - delta);
}

// The first N columns of MT·16 rows of sums, times scale, are stored from row first and column c0 on, without rows and
// columns beyond the matrix.
template <int COLUMNS, int MT, int N, class M>
DEVICE void store_sums(const M &to, const float (&sum)[MT][N][4], int first, int rows, int c0, float scale) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = first + 16 * m + 8 * h + lane / 4;
      if (row >= rows) continue;
#pragma unroll
      for (int n = 0; n < N; n++)
        store_pair<COLUMNS>(to, row, c0 + n * 8 + lane % 4 * 2, sum[m][n][2 * h] * scale, sum[m][n][2 * h + 1] * scale);
    }
}

// attention_dkdv_mma computes part blockIdx.y of the columns of the gradients of ROWS keys and values.
template <class P, class Tile, class Args> DEVICE void attention_dkdv_mma(const Args &p) {
  typedef typename P::T T;
  constexpr int MT = Tile::MT, STREAM = Tile::STREAM, ROWS = Tile::ROWS, THREADS = Tile::THREADS;
  constexpr int TILES = (P::KEYS + ROWS - 1) / ROWS;
  constexpr bool MEND = Tile::DK + Tile::DV <= 128;  // for more columns there are not enough registers
  SHARED;
  auto &s = *reinterpret_cast<MmaGradShared<Tile> *>(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = blockIdx.x / TILES, j0 = blockIdx.x % TILES * ROWS;
  const int dk0 = blockIdx.y * Tile::DK, dv0 = blockIdx.y * Tile::DV;
  const int valid = valid_keys<P>(p, group / (P::HEADS / P::GROUP));
  i64 seed = 0;
  if constexpr (P::DROP > 0) seed = P::seed(p);
  const Span queries = askers<P>(j0, j0 + ROWS, valid);
  const int begin = queries.lo / STREAM, count = (queries.hi + STREAM - 1) / STREAM - begin;
  const int steps = queries.lo < queries.hi ? P::GROUP * count : 0;

  clear_grad_padding<P, Tile>(s);
  if (steps > 0) {
    stage_tile<ROWS, THREADS, P::DEPTH, Tile::QK_LD>(s.own_qk, P::k(p, group), j0, valid);
    stage_tile<ROWS, THREADS, P::WIDTH, Tile::V_LD>(s.own_v, P::v(p, group), j0, valid);
  }
  const auto stage = [&](int step) {
    const int head = group * P::GROUP + step / count, i0 = (begin + step % count) * STREAM, b = step % 2;
    stage_tile<STREAM, THREADS, P::DEPTH, Tile::QK_LD>(s.qk[b], P::q(p, head), i0, P::QUERIES);
    stage_tile<STREAM, THREADS, P::WIDTH, Tile::V_LD>(s.v[b], P::dout(p, head), i0, P::QUERIES);
    for (int e = threadIdx.x; e < STREAM; e += THREADS)
      s.rows[b][e] = i0 + e < P::QUERIES ? P::rows(p)[i64(head) * P::QUERIES + i0 + e] : AttentionRow<float>{0, 0, 0};
    copy_commit();
  };
  if (steps > 0) stage(0);

  float dk[MT][Tile::DK / 8][4], dv[MT][Tile::DV / 8][4];
  clear_sums(dk);
  clear_sums(dv);

  const int first = warp * 16 * MT;
  for (int step = 0; step < steps; step++) {
    copy_wait<0>();
    __syncthreads();
    if (step + 1 < steps) stage(step + 1);
    const int head = group * P::GROUP + step / count, i0 = (begin + step % count) * STREAM, b = step % 2;
    const int last = smaller(i0 + STREAM, P::QUERIES) - 1;
    float x[MT][STREAM / 8][4], w[MT][STREAM / 8][4];
    mma_scores<T, Tile::STRICT, MT, STREAM, Tile::DEPTH, Tile::QK_LD>(x, s.own_qk + first * Tile::QK_LD, s.qk[b]);
    const bool masked = !Tile::LATE || i0 + STREAM > P::QUERIES || reach<P>(i0, valid).hi < j0 + ROWS ||
                        reach<P>(last, valid).lo > j0;
    u32 kept[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
      const int j = j0 + first + 16 * m + lane / 4;
      if constexpr (P::DROP > 0)
        kept[m] = kept_columns<P, STREAM / 8>(seed, head, i0, j0 + first + 16 * m);
#pragma unroll
      for (int n = 0; n < STREAM / 8; n++) {
        const int i = i0 + n * 8 + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float &y = x[m][n][e];
          if (masked) {
            const Span keys = i + e % 2 < P::QUERIES ? reach<P>(i + e % 2, valid) : Span{0, 0};
            const int key = j + e / 2 * 8;
            if constexpr (Tile::LATE) y = key < keys.lo || key >= keys.hi ? minus_infinity<float>() : y;
            else y = score<P>(p, head, i + e % 2, key, keys, y);
          }
          const auto &row = s.rows[b][n * 8 + lane % 4 * 2 + e % 2];
          y = probability<P, Tile>(y, row.top, row.share);
          if constexpr (P::DROP > 0) w[m][n][e] = kept[m] >> (4 * n + e) & 1 ? y : 0.0f;
        }
      }
    }
    if constexpr (P::HAS_DV) {
      if constexpr (P::DROP > 0) mma_weighted<T, Tile::STRICT, MT, STREAM, Tile::DV, Tile::V_LD, MEND>(dv, w, s.v[b] + dv0);
      else mma_weighted<T, Tile::STRICT, MT, STREAM, Tile::DV, Tile::V_LD, MEND>(dv, x, s.v[b] + dv0);
    }
    if constexpr (P::HAS_DK) {
      mma_scores<T, Tile::STRICT, MT, STREAM, Tile::WIDTH, Tile::V_LD>(w, s.own_v + first * Tile::V_LD, s.v[b]);
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < STREAM / 8; n++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const bool keep = P::DROP == 0 || (kept[m] >> (4 * n + e) & 1);
            const float delta = s.rows[b][n * 8 + lane % 4 * 2 + e % 2].delta;
            w[m][n][e] = score_gradient<P>(x[m][n][e], w[m][n][e], delta, keep);
          }
      mma_weighted<T, Tile::STRICT, MT, STREAM, Tile::DK, Tile::QK_LD, MEND>(dk, w, s.qk[b] + dk0);
    }
  }
  if constexpr (P::HAS_DK) store_sums<P::DEPTH>(P::dk(p, group), dk, j0 + first, P::KEYS, dk0, float(P::SCALE));
  if constexpr (P::HAS_DV) store_sums<P::WIDTH>(P::dv(p, group), dv, j0 + first, P::KEYS, dv0, float(P::KEEP));
}

// attention_dq_mma computes the gradient of ROWS queries.
template <class P, class Tile, class Args> DEVICE void attention_dq_mma(const Args &p) {
  typedef typename P::T T;
  constexpr int MT = Tile::MT, STREAM = Tile::STREAM, ROWS = Tile::ROWS, THREADS = Tile::THREADS, N = Tile::DEPTH / 8;
  constexpr int TILES = (P::QUERIES + ROWS - 1) / ROWS;
  SHARED;
  auto &s = *reinterpret_cast<MmaGradShared<Tile> *>(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.x / TILES, i0 = (TILES - 1 - blockIdx.x % TILES) * ROWS;
  const int valid = valid_keys<P>(p, head / P::HEADS);
  i64 seed = 0;
  if constexpr (P::DROP > 0) seed = P::seed(p);
  const Span least = reach<P>(i0, valid), most = reach<P>(smaller(i0 + ROWS, P::QUERIES) - 1, valid);
  const int from = least.lo / STREAM * STREAM, to = most.hi;

  clear_grad_padding<P, Tile>(s);
  const auto stage = [&](int j0) {
    const int b = j0 / STREAM % 2;
    stage_tile<STREAM, THREADS, P::DEPTH, Tile::QK_LD>(s.qk[b], P::k(p, head / P::GROUP), j0, valid);
    stage_tile<STREAM, THREADS, P::WIDTH, Tile::V_LD>(s.v[b], P::v(p, head / P::GROUP), j0, valid);
    copy_commit();
  };
  if (from < to) {
    stage_tile<ROWS, THREADS, P::DEPTH, Tile::QK_LD>(s.own_qk, P::q(p, head), i0, P::QUERIES);
    stage_tile<ROWS, THREADS, P::WIDTH, Tile::V_LD>(s.own_v, P::dout(p, head), i0, P::QUERIES);
    stage(from);
  }
  const int first = warp * 16 * MT;
  float dq[MT][N][4];
  AttentionRow<float> rows[2 * MT];
#pragma unroll
  for (int m = 0; m < MT; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int i = i0 + first + 16 * m + 8 * h + lane / 4;
      rows[2 * m + h] = i < P::QUERIES ? P::rows(p)[i64(head) * P::QUERIES + i] : AttentionRow<float>{0, 0, 0};
    }
  }
  clear_sums(dq);
  for (int j0 = from; j0 < to; j0 += STREAM) {
    copy_wait<0>();
    __syncthreads();
    if (j0 + STREAM < to) stage(j0 + STREAM);
    const int b = j0 / STREAM % 2;
    float x[MT][STREAM / 8][4], w[MT][STREAM / 8][4];
    mma_scores<T, Tile::STRICT, MT, STREAM, Tile::DEPTH, Tile::QK_LD>(x, s.own_qk + first * Tile::QK_LD, s.qk[b]);
    mma_scores<T, Tile::STRICT, MT, STREAM, Tile::WIDTH, Tile::V_LD>(w, s.own_v + first * Tile::V_LD, s.v[b]);
    const bool masked = !Tile::LATE || least.hi < j0 + STREAM || most.lo > j0;
#pragma unroll
    for (int m = 0; m < MT; m++) {
      const int i = i0 + first + 16 * m + lane / 4;
      u32 kept = ~0u;
      if constexpr (P::DROP > 0) kept = kept_accumulators<P, STREAM / 8>(seed, {head, i}, {head, i + 8}, j0);
#pragma unroll
      for (int n = 0; n < STREAM / 8; n++) {
        const int j = j0 + n * 8 + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float y = x[m][n][e];
          if (masked) {
            const int query = i + e / 2 * 8;
            const Span keys = query < P::QUERIES ? reach<P>(query, valid) : Span{0, 0};
            if constexpr (Tile::LATE) y = j + e % 2 < keys.lo || j + e % 2 >= keys.hi ? minus_infinity<float>() : y;
            else y = score<P>(p, head, query, j + e % 2, keys, y);
          }
          const auto &row = rows[2 * m + e / 2];
          y = probability<P, Tile>(y, row.top, row.share);
          w[m][n][e] = score_gradient<P>(y, w[m][n][e], row.delta, kept >> (4 * n + e) & 1);
        }
      }
    }
    mma_weighted<T, Tile::STRICT, MT, STREAM, Tile::DEPTH, Tile::QK_LD>(dq, w, s.qk[b]);
  }
  store_sums<P::DEPTH>(P::dq(p, head), dq, i0 + first, P::QUERIES, 0, float(P::SCALE));
}
