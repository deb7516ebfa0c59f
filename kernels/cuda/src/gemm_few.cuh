// Products of few rows, which take the time of reading B, the weights, once; see gemm.cuh for Problem and Body.
//
// Weights go from memory to registers, 16 bytes at a time, with several loads under way in each thread, and are the left
// operand of mma, so that 16 columns of the result are its rows; the rows of the result are its columns, eight at a time. The
// order of k within a step is that in which a thread holds the weights. A, which is small, is staged in shared memory.
//
// A block computes BN columns. Its warps stand WN along n and WK along k, and the S blocks of a cluster divide k further. The
// parts of the sums meet in shared memory, where they are added in order. Each block of a cluster sends the others their shares of
// its sums, and adds those of all, in order, in its own share.
//
// A Form tells how a warp holds a chunk of N columns and K steps along k:
//
//	int N, K, LOADS, TILES;                             TILES are of 16 columns
//	bool GROUPS, SCALES;                                whether weights have a scale for each group of rows, or each column
//	const B *start(b, n, k);                            where the first load of a thread begins, of the chunk at (k, n)
//	uint4 load<EVEN_N, EVEN_K>(at, n, k, l);            load l from there; EVEN says that chunks are whole along an axis
//	int column(tile, half);                             of the chunk, that row g, or g+8, of a tile is
//	void fragments(u32 (&a)[TILES][K / 16][4], w);      the left operands of mma
//	uint4 arrange(v);                                   eight elements of A in the order of those of the weights
//
// Lane numbers g = lane / 4 and t = lane % 4 are those of mma.cuh.

#ifndef FUSEC_HOST
// Weights are read once: they need no place in the first cache.
DEVICE uint4 stream(const void *p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
#else
DEVICE uint4 stream(const void *p) { return *static_cast<const uint4 *>(p); }
#endif

// The rows of A of a product, eight elements at a time: as they lie.
template <class P> struct StoredRows {
  static constexpr bool NORMED = false;
  const typename P::A *a;
  DEVICE uint4 piece(i64 at, int k) const {
    if constexpr (P::A_KINNER && P::A_VEC >= 8) {
      return k < P::K ? *reinterpret_cast<const uint4 *>(a + at) : uint4{0, 0, 0, 0};
    } else {
      u32 pair[4] = {};
#pragma unroll
      for (int j = 0; j < 8; j++) {
        if (k + j < P::K) pair[j / 2] |= u32(a[at + j * P::A_K].bits) << 16 * (j % 2);
      }
      return {pair[0], pair[1], pair[2], pair[3]};
    }
  }
};

// The same, times gains: rows that an RMS norm makes of these, but for the factor of each row, which its squares decide: the sums
// of the product are multiplied by it.
template <class P> struct NormedRows {
  static constexpr bool NORMED = true;
  const float *x, *gain;
  float eps;
  DEVICE Vec<float, 8> gains(int k) const { return k < P::K ? load<float, 8, 1, 16>(fixed(gain + k)) : splat<8>(0.0f); }
  DEVICE uint4 piece(i64 at, int k, const Vec<float, 8> &gains, float &squares) const {
    if (k >= P::K) return {0, 0, 0, 0};
    const Vec<float, 8> v = load<float, 8, 1, 16>(x + at);
    u32 pair[4];
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      squares += v[j] * v[j] + v[j + 1] * v[j + 1];
      pair[j / 2] = pack2(typename P::A{}, v[j] * gains[j], v[j + 1] * gains[j + 1]);
    }
    return {pair[0], pair[1], pair[2], pair[3]};
  }
  DEVICE float factor(float squares) const { return op::rsqrt(op::add(op::div(squares, float(P::K)), eps)); }
};

// The sums of the squares of M rows, added in order: each of WARPS warps puts its own, and the S blocks of a cluster send theirs.
template <int M, int WARPS, int S> struct RowSquares {
  static constexpr int BYTES = (WARPS + S) * M * 4, SENT = (S - 1) * M * 4;
  float *parts;  // of the warps, and then of the blocks
  DEVICE void put(int warp, float (&lanes)[M]) const {
#pragma unroll
    for (int row = 0; row < M; row++) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) lanes[row] += __shfl_xor_sync(0xffffffffu, lanes[row], step);
      if (threadIdx.x % 32 == 0) parts[warp * M + row] = lanes[row];
    }
  }
  template <int OF> static DEVICE float sum(const float *of, int row) {
    float x = of[row];
#pragma unroll
    for (int i = 1; i < OF; i++) x += of[i * M + row];
    return x;
  }
  // After a barrier of the warps.
  DEVICE void send(int rank, u64 *inbox) const {
    const int row = threadIdx.x;
    if (row >= M) return;
    const float x = sum<WARPS>(parts, row);
    float *const to = parts + (WARPS + rank) * M + row;
#pragma unroll
    for (int i = 0; i < S; i++) {
      if (i == rank) {
        *to = x;
      } else {
        cluster_send(to, x, i, inbox);
      }
    }
  }
  // After a further one, and when the inbox has all.
  DEVICE float of(int row) const { return S > 1 ? sum<S>(parts + WARPS * M, row) : sum<WARPS>(parts, row); }
};

// Elements of 16 bits with k as the inner axis: a thread has pieces of eight along k of two columns.
template <class P> struct AlongK {
  static constexpr int N = 16, K = 32, LOADS = 2, TILES = 1;
  static constexpr bool GROUPS = false, SCALES = false;
  static DEVICE const typename P::B *start(const typename P::B *b, int n, int k) {
    return b + (n + threadIdx.x % 32 / 4) * P::B_N + k + threadIdx.x % 4 * 8;
  }
  template <bool EVEN_N, bool EVEN_K> static DEVICE uint4 load(const typename P::B *at, int n, int k, int l) {
    if (!EVEN_N && n + int(threadIdx.x % 32 / 4) + 8 * l >= P::N) return {0, 0, 0, 0};
    if (!EVEN_K && k + int(threadIdx.x % 4) * 8 >= P::K) return {0, 0, 0, 0};
    return stream(at + 8 * l * P::B_N);
  }
  static DEVICE int column(int, int half) { return threadIdx.x % 32 / 4 + 8 * half; }
  static DEVICE uint4 arrange(uint4 v) { return v; }
  static DEVICE void fragments(u32 (&a)[1][2][4], const uint4 (&w)[2]) {
    const u32 x[2][4] = {{w[0].x, w[0].y, w[0].z, w[0].w}, {w[1].x, w[1].y, w[1].z, w[1].w}};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      a[0][i][0] = x[0][2 * i];
      a[0][i][1] = x[1][2 * i];
      a[0][i][2] = x[0][2 * i + 1];
      a[0][i][3] = x[1][2 * i + 1];
    }
  }
};

// Elements of 16 bits with n as the inner axis: a thread has pieces of eight columns of four steps.
template <class P> struct AlongN {
  static constexpr int N = 64, K = 16, LOADS = 4, TILES = 4;
  static constexpr bool GROUPS = false, SCALES = false;
  static DEVICE const typename P::B *start(const typename P::B *b, int n, int k) {
    return b + (k + threadIdx.x % 4 * 4) * P::B_K + n + threadIdx.x % 32 / 4 * 8;
  }
  template <bool EVEN_N, bool EVEN_K> static DEVICE uint4 load(const typename P::B *at, int n, int k, int l) {
    if (!EVEN_N && n + int(threadIdx.x % 32 / 4) * 8 >= P::N) return {0, 0, 0, 0};
    if (!EVEN_K && k + int(threadIdx.x % 4) * 4 + l >= P::K) return {0, 0, 0, 0};
    return stream(at + l * P::B_K);
  }
  static DEVICE int column(int tile, int half) { return threadIdx.x % 32 / 4 * 8 + 2 * tile + half; }
  static DEVICE uint4 arrange(uint4 v) { return v; }
  static DEVICE void fragments(u32 (&a)[4][1][4], const uint4 (&w)[4]) {
    const u32 x[4][4] = {{w[0].x, w[0].y, w[0].z, w[0].w}, {w[1].x, w[1].y, w[1].z, w[1].w},
                         {w[2].x, w[2].y, w[2].z, w[2].w}, {w[3].x, w[3].y, w[3].z, w[3].w}};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      a[i][0][0] = permute(x[0][i], x[1][i], 0x5410);
      a[i][0][1] = permute(x[0][i], x[1][i], 0x7632);
      a[i][0][2] = permute(x[2][i], x[3][i], 0x5410);
      a[i][0][3] = permute(x[2][i], x[3][i], 0x7632);
    }
  }
};

// The division of the work: a warp has RN chunks side by side, U steps of which are under way; A is staged PHASE steps of a
// block at a time. AHEAD further steps, of a block with one panel, come to the L2 cache first.
// If EARLY, the launch may begin before those before it have ended, which do not write the weights or their scales.
template <int RN_, int WN_, int WK_, int U_, int S_, int PHASE_, int AHEAD_, bool EARLY_> struct FewTile {
  static constexpr int RN = RN_, WN = WN_, WK = WK_, U = U_, S = S_, PHASE = PHASE_, AHEAD = AHEAD_;
  static constexpr bool EARLY = EARLY_;
};

template <class P, class Body, class Form, class Tile, class Rows>
DEVICE void gemm_few(Body body, const Rows &rows, const typename P::B *b, const float *scale, typename Body::Sum *) {
  typedef typename P::A T;
  constexpr int RN = Tile::RN, WN = Tile::WN, WK = Tile::WK, U = Tile::U, S = Tile::S, PHASE = Tile::PHASE;
  constexpr int ROWS = (P::M + 63) / 64, M = (P::M + ROWS - 1) / ROWS, MT = (M + 7) / 8;
  constexpr int W = P::W, BN = Form::N * RN * WN, THREADS = 32 * WN * WK;
  constexpr int TILES = (P::N + BN - 1) / BN, STEP = WK * Form::K, STEPS = (P::K + STEP - 1) / STEP, EACH = (STEPS + S - 1) / S;
  constexpr int PITCH = (PHASE * STEP + 63) / 64 * 64 + least(Form::K, 32);  // of a row of A, such that no two lanes meet in a bank
  static_assert(PHASE % U == 0, "the loads of a phase go round");
  SHARED;
  constexpr int STAGED = M * PITCH * 2, PARTS = WK * M * BN * 4;
  constexpr int VECTORS = (M * BN / W + S - 1) / S, SHARE = VECTORS * W;  // of a block of a cluster
  T *const staged = reinterpret_cast<T *>(shared);
  float *const parts = reinterpret_cast<float *>(shared), *const sums = parts + (STAGED > PARTS ? STAGED : PARTS) / 4;
  u64 *const inbox = reinterpret_cast<u64 *>(sums + S * SHARE);
  typedef RowSquares<M, WN * WK, S> Squares;
  const Squares squares{reinterpret_cast<float *>(inbox + 1)};
  const int warp = threadIdx.x / 32, wn = warp % WN, wk = warp / WN, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int rank = blockIdx.x % S, spot = blockIdx.x / S, n0 = spot % TILES * BN;
  const int batch = spot / TILES / ROWS, m0 = spot / TILES % ROWS * M;
  const int n = n0 + wn * RN * Form::N, first = rank * EACH, steps = least(EACH, STEPS - first);
  const i64 a0 = P::a_at(batch) + m0 * P::A_M;
  b += P::b_at(batch);
  const int left = M * BN - rank * SHARE, share = left > 0 ? least(left, SHARE) : 0;  // of the sums
  if constexpr (S > 1) {
    if (threadIdx.x == 0) {
      barrier_init(inbox, 1);
      barrier_init_done();
      barrier_expect(inbox, (S - 1) * share * 4 + (Rows::NORMED ? Squares::SENT : 0));
    }
    __syncthreads();
    cluster_arrive();
  }

  uint4 w[U][RN][Form::LOADS];
  float scales[U][RN][Form::TILES][2];  // of the columns of each tile
  int k = first * STEP + wk * Form::K;  // of the next load
  const typename P::B *next = Form::start(b, n, k);
  auto load = [&](int step, uint4 (&to)[RN][Form::LOADS], float (&scaled)[RN][Form::TILES][2]) {
    if (step >= steps) return;
#pragma unroll
    for (int r = 0; r < RN; r++) {
      if constexpr (Form::GROUPS) Form::template scales<P::N % BN == 0, P::K % STEP == 0>(scaled[r], scale, n + r * Form::N, k);
#pragma unroll
      for (int l = 0; l < Form::LOADS; l++) {
        to[r][l] = Form::template load<P::N % BN == 0, P::K % STEP == 0>(next + r * Form::N * P::B_N, n + r * Form::N, k, l);
      }
    }
    next += STEP * P::B_K;
    k += STEP;
  };
  if constexpr (Tile::EARLY) early_begin();
#pragma unroll
  for (int u = 0; u < U; u++) load(u, w[u], scales[u]);
  if constexpr (Tile::AHEAD > 0) {
    static_assert(RN * WN == 1 && sizeof(typename P::B) == 1, "the steps of a panel lie in one piece of bytes");
    const int rows = least(least(steps - U, Tile::AHEAD) * STEP, (P::K + 31) / 32 * 32 - k);
    if (threadIdx.x == 0 && rows > 0) bulk_prefetch(next, rows * int(P::B_K));
  }
  constexpr int PIECES = PHASE * STEP / 8, TURNS = (PIECES + THREADS - 1) / THREADS;  // of a row that is staged
  static_assert(!Rows::NORMED || EACH <= PHASE && ROWS == 1, "a row is staged once");
  constexpr int HELD = Rows::NORMED ? least(TURNS, 4) : 0;
  Vec<float, 8> gains[HELD + 1];
#pragma unroll
  for (int u = 0; u < HELD; u++) {
    if constexpr (Rows::NORMED) gains[u] = rows.gains(first * STEP + (threadIdx.x + u * THREADS) * 8);
  }
  float square[M] = {};
  if constexpr (Tile::EARLY) early_read();

  float acc[RN][Form::TILES][MT][4] = {};
#pragma unroll 1
  for (int from = 0; from < steps; from += PHASE) {
    if (from > 0) __syncthreads();
    if constexpr (Rows::NORMED) {
#pragma unroll
      for (int row = 0; row < M; row++) {
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
          const int piece = (threadIdx.x + u * THREADS) * 8, k = first * STEP + piece;
          if (piece >= steps * STEP) break;  // other blocks have the rest
          const uint4 v = rows.piece(a0 + row * P::A_M + k, k, u < HELD ? gains[u] : rows.gains(k), square[row]);
          *reinterpret_cast<uint4 *>(staged + row * PITCH + piece) = Form::arrange(v);
        }
      }
    } else {
#pragma unroll 2
      for (int i = threadIdx.x; i < M * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES * 8, k = (first + from) * STEP + piece;
        uint4 v = {0, 0, 0, 0};
        if (ROWS == 1 || m0 + row < P::M) v = rows.piece(a0 + row * P::A_M + k * P::A_K, k);
        *reinterpret_cast<uint4 *>(staged + row * PITCH + piece) = Form::arrange(v);
      }
    }
    __syncthreads();
    const int end = least(from + PHASE, steps);
#pragma unroll 1
    for (int i = from; i < end; i += U) {
#pragma unroll
      for (int u = 0; u < U; u++) {
        if (i + u >= end) continue;
        u32 left[RN][Form::TILES][Form::K / 16][4];
#pragma unroll
        for (int r = 0; r < RN; r++) Form::fragments(left[r], w[u][r]);
        float by[RN][Form::TILES][2];
        if constexpr (Form::GROUPS) {
#pragma unroll
          for (int r = 0; r < RN; r++) {
#pragma unroll
            for (int j = 0; j < Form::TILES; j++) by[r][j][0] = scales[u][r][j][0], by[r][j][1] = scales[u][r][j][1];
          }
        }
        load(i + u + U, w[u], scales[u]);
        const T *const x = staged + (i + u - from) * STEP + wk * Form::K;
#pragma unroll
        for (int m = 0; m < MT; m++) {
          u32 right[Form::K / 16][2] = {};
          if (m * 8 + 8 <= M || m * 8 + g < M) {
            const T *const from = x + (m * 8 + g) * PITCH;
            if constexpr (Form::K >= 32) {
#pragma unroll
              for (int k = 0; k < Form::K / 32; k++) {
                const uint4 v = *reinterpret_cast<const uint4 *>(from + 32 * k + 8 * t);
                right[2 * k][0] = v.x, right[2 * k][1] = v.y, right[2 * k + 1][0] = v.z, right[2 * k + 1][1] = v.w;
              }
            } else {
              const uint2 v = *reinterpret_cast<const uint2 *>(from + 4 * t);
              right[0][0] = v.x, right[0][1] = v.y;
            }
          }
#pragma unroll
          for (int r = 0; r < RN; r++) {
#pragma unroll
            for (int j = 0; j < Form::TILES; j++) {
              float group[4] = {};
#pragma unroll
              for (int k = 0; k < Form::K / 16; k++) mma(T{}, Form::GROUPS ? group : acc[r][j][m], left[r][j][k], right[k]);
              if constexpr (Form::GROUPS) {
#pragma unroll
                for (int e = 0; e < 4; e++) acc[r][j][m][e] += by[r][j][e / 2] * group[e];
              }
            }
          }
        }
      }
    }
  }

  // The parts, [WK][M][BN] in each block.
  __syncthreads();
#pragma unroll
  for (int r = 0; r < RN; r++) {
#pragma unroll
    for (int j = 0; j < Form::TILES; j++) {
#pragma unroll
      for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int row = m * 8 + 2 * t + e % 2, column = (wn * RN + r) * Form::N + Form::column(j, e / 2);
          if (row < M) parts[(wk * M + row) * BN + column] = acc[r][j][m][e];
        }
      }
    }
  }
  if constexpr (Rows::NORMED) squares.put(warp, square);
  __syncthreads();
  if constexpr (S > 1) {
    cluster_wait();  // the others have initialised their barriers
    for (int i = threadIdx.x; i < M * BN; i += THREADS) {
      float sum = parts[i];
#pragma unroll 8
      for (int k = 1; k < WK; k++) sum += parts[k * M * BN + i];
      const int owner = i / SHARE;
      float *const to = sums + rank * SHARE + i % SHARE;
      if (owner == rank) {
        *to = sum;
      } else {
        cluster_send(to, sum, owner, inbox);
      }
    }
    if constexpr (Rows::NORMED) squares.send(rank, inbox);
    __syncthreads();
    barrier_wait(inbox, 0);
  }
  if constexpr (Tile::EARLY) early_body();
  for (int i = threadIdx.x; i < share / W; i += THREADS) {
    constexpr int TERMS = S > 1 ? S : WK, APART = S > 1 ? SHARE : M * BN;
    const int at = rank * VECTORS + i, row = at / (BN / W), column = at % (BN / W) * W;
    if (n0 + column >= P::N || ROWS > 1 && m0 + row >= P::M) continue;
    const float *const part = (S > 1 ? sums : parts) + i * W;
    Vec<float, W> sum;
#pragma unroll
    for (int j = 0; j < W; j++) sum[j] = part[j];
#pragma unroll 4
    for (int k = 1; k < TERMS; k++) {
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] += part[k * APART + j];
    }
    if constexpr (Form::SCALES) {
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] *= scale[(n0 + column + j) * P::SCALE_N];
    }
    if constexpr (Rows::NORMED) {
      const float factor = rows.factor(squares.of(row));
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] *= factor;
    }
    body(batch, m0 + row, n0 + column, sum, static_cast<Vec<typename Body::Sum, W> *>(nullptr));
  }
  if constexpr (Tile::EARLY) early_end();
}
