// Matrix products by ordinary multiply-adds, for every chip, element type and layout. See gemm.cuh for Problem and Body.
//
// A block computes a tile of BM×BN, a thread TM×TN of it: rows in groups of up to four, columns in groups of W, so that
// neighbouring threads access neighbouring elements. Pieces of A and B, BK steps along k, pass through registers into
// shared memory, [k][m] and [k][n], two buffers of each: one is filled while the other is used.

// A Carrier moves a piece of a matrix of OUTER×INNER elements from memory to shared memory through the registers of
// THREADS threads. SO and SI are the strides in memory, TO and TI those in shared memory; VEC elements go at once.
template <class T, class L, int OUTER, int INNER, i64 SO, i64 SI, int TO, int TI, int VEC, int THREADS, bool GATHER>
struct Carrier {
  static constexpr int ROW = INNER / VEC, ALL = OUTER * ROW, EACH = (ALL + THREADS - 1) / THREADS;
  Vec<L, VEC> held[EACH];
  // fetch reads the piece at p, which has rows × cols elements; the others are zero. If GATHER, list has the rows'
  // numbers.
  DEVICE void fetch(const T *p, int rows, int cols, const i32 *list) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int e = threadIdx.x + i * THREADS, o = e / ROW, c = e % ROW * VEC;
      if (o < rows && c < cols && (ALL % THREADS == 0 || e < ALL)) {
        held[i] = load<L, VEC, 1, VEC * int(sizeof(T))>(p + (GATHER ? list[o] : o) * SO + c * SI);
      } else {
        held[i] = splat<VEC>(L(0));
      }
    }
  }
  // fetch_patches reads a piece of patches of the images at p; see patches.cuh.
  template <class Walk> DEVICE void fetch_patches(const T *p, const Walk &walk) {
    static_assert(Walk::EACH == EACH, "the walk goes by the same pieces");
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const auto row = walk.row(i);
      if (inside(row, walk.column) && (ALL % THREADS == 0 || int(threadIdx.x) + i * THREADS < ALL)) {
        held[i] = load<L, VEC, 1, VEC * int(sizeof(T))>(p + (row.at + walk.column.at));
      } else {
        held[i] = splat<VEC>(L(0));
      }
    }
  }
  DEVICE void put(L *to) const {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int e = threadIdx.x + i * THREADS, o = e / ROW, c = e % ROW * VEC;
      if (ALL % THREADS != 0 && e >= ALL) continue;
#pragma unroll
      for (int j = 0; j < VEC; j++) to[o * TO + (c + j) * TI] = held[i][j];
    }
  }
};

template <class P, class Body, int BM, int BN, int BK, int TM, int TN>
DEVICE void gemm_simt(Body body, const Piece<P> &piece, const Spot &spot, typename Body::Sum *partial) {
  typedef typename P::Acc T;
  constexpr int W = P::W, TX = BN / TN, THREADS = TX * (BM / TM);
  constexpr int GM = least(TM, 4), GROUPS = TN / W;
  constexpr int LDA = BM + 4, LDB = BN + 4, BUFFER = BK * (LDA + LDB);
  constexpr int AV = least(P::A_VEC, 4), BV = least(P::B_VEC, 4);
  SHARED;
  T *const buffer = reinterpret_cast<T *>(shared);
  const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;

  constexpr bool AK = P::A_KINNER, BKI = P::B_KINNER;
  Carrier<typename P::A, T, AK ? BM : BK, AK ? BK : BM, AK ? P::A_M : P::A_K, AK ? P::A_K : P::A_M, AK ? 1 : LDA,
          AK ? LDA : 1, AV, THREADS, P::GATHER> ca;
  Carrier<typename P::B, T, BKI ? BN : BK, BKI ? BK : BN, BKI ? P::B_N : P::B_K, BKI ? P::B_K : P::B_N, BKI ? 1 : LDB,
          BKI ? LDB : 1, BV, THREADS, false> cb;
  const int steps = (piece.k + BK - 1) / BK;
  auto walk = [&] {
    if constexpr (P::PATCHES) {
      return PatchWalk<typename P::Image, AK, BM, BK, AV, THREADS>(P::M - piece.rows);
    } else {
      return 0;
    }
  }();
  auto fetch = [&](int step) {
    const int k = step * BK, left = piece.k - k;
    constexpr bool gather_k = P::GATHER && !AK;
    if constexpr (P::PATCHES) {
      walk.at(piece.first + k);
      ca.fetch_patches(piece.a, walk);
    } else {
      ca.fetch(piece.a + (gather_k ? 0 : k * P::A_K), AK ? piece.rows : left, AK ? left : piece.rows,
               piece.list + (gather_k ? k : 0));
    }
    cb.fetch(piece.b + k * P::B_K, BKI ? piece.cols : left, BKI ? left : piece.cols, nullptr);
  };
  auto put = [&](int step) {
    T *const to = buffer + step % 2 * BUFFER;
    ca.put(to);
    cb.put(to + BK * LDA);
  };

  T acc[TM][TN] = {};
  if (steps > 0) {
    fetch(0);
    put(0);
  }
  __syncthreads();
  for (int step = 0; step < steps; step++) {
    const bool more = step + 1 < steps;
    if (more) fetch(step + 1);
    const T *const as = buffer + step % 2 * BUFFER, *const bs = as + BK * LDA;
#pragma unroll
    for (int k = 0; k < BK; k++) {
      T x[TM], y[TN];
#pragma unroll
      for (int g = 0; g < TM / GM; g++) {
        const auto v = load<T, GM, 1, least(16, GM * int(sizeof(T)))>(as + k * LDA + g * (BM / TM * GM) + ty * GM);
#pragma unroll
        for (int i = 0; i < GM; i++) x[g * GM + i] = v[i];
      }
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        const auto v = load<T, W, 1, least(16, W * int(sizeof(T)))>(bs + k * LDB + g * (TX * W) + tx * W);
#pragma unroll
        for (int i = 0; i < W; i++) y[g * W + i] = v[i];
      }
#pragma unroll
      for (int i = 0; i < TM; i++) {
#pragma unroll
        for (int j = 0; j < TN; j++) acc[i][j] += x[i] * y[j];
      }
    }
    if (more) put(step + 1);
    __syncthreads();
  }

  Vec<typename Body::Sum, W> sums[Body::SUMS + 1][GROUPS] = {};
#pragma unroll
  for (int i = 0; i < TM; i++) {
    const int row = i / GM * (BM / TM * GM) + ty * GM + i % GM;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      const int col = g * (TX * W) + tx * W;
      if (row >= piece.rows || col >= piece.cols) continue;
      Vec<T, W> v;
#pragma unroll
      for (int j = 0; j < W; j++) v[j] = acc[i][g * W + j];
      Vec<typename Body::Sum, W> s[Body::SUMS + 1];
#pragma unroll
      for (int j = 0; j < Body::SUMS; j++) s[j] = sums[j][g];
      body(spot.batch, spot.m + row, spot.n + col, v, s);
#pragma unroll
      for (int j = 0; j < Body::SUMS; j++) sums[j][g] = s[j];
    }
  }
  if constexpr (Body::SUMS > 0) {
    constexpr int blocks = P::BATCH * ((P::M + BM - 1) / BM);
    sum_columns<P, Body, BN, BM / TM, GROUPS>(partial, blocks, spot.block, spot.n, ty,
                                              [=](int g) { return g * (TX * W) + tx * W; }, sums);
  }
}
