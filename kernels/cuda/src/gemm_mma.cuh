// Matrix products on tensor cores through mma.sync, for sm_80 and later. See gemm.cuh for Problem and Body.
//
// A block computes a tile of BM×BN. Pieces of A and B, BK steps along k, are copied to shared memory asynchronously, some
// stages ahead of their use, in memory order: [m][k] or [k][m], with padding that spreads rows over the banks.
// WARPS_M×WARPS_N warps share the tile; WARPS_K such groups take turns along k, and their sums are added in order. At
// the end the accumulators pass through shared memory, so that each thread finishes W neighbouring columns.
//
// Math says how elements are multiplied: bf16 and f16 as they are; Tf32 rounds f32 to ten bits after the point; Split
// multiplies f32 to nearly full accuracy.

struct Tf32 {};

// Split writes x as big + small of tf32 each and drops only small·small (Markidis et al., arXiv 1803.04014). Tensor cores
// truncate when they add, so sums longer than BK are added outside of them (Ootomo and Yokota, arXiv 2203.03341).
template <bool CAREFUL = false> struct Split {};

template <int BM_, int BN_, int BK_, int WARPS_M_, int WARPS_N_, int WARPS_K_, int STAGES_> struct MmaTile {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WARPS_K = WARPS_K_,
                       STAGES = STAGES_;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
  static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N;  // of a warp
};

// An MmaOperand describes the layout of pieces of a factor in shared memory, and copies them there: OUTER rows of A, or
// columns of B, by BK.
template <class T, bool KINNER, int OUTER, int BK, int VEC, i64 S_OUTER, i64 S_K, int THREADS, bool GATHER>
struct MmaOperand {
  typedef T Element;
  static constexpr int UNIT = 16 / int(sizeof(T));  // elements in 16 bytes
  static constexpr int INNER = KINNER ? BK : OUTER, ROWS = KINNER ? OUTER : BK;
  // Rows are an odd number of 16 bytes apart for load_matrices; words [k][m] are read by k%4 and m%8 at once.
  static constexpr int LD = INNER + (KINNER || sizeof(T) == 2 ? UNIT : 8);
  static constexpr int SIZE = ROWS * LD;

  // copy starts copying step number step along k of the piece at p, which has outer×k elements; the others are zero. If
  // GATHER, list has the rows' numbers in memory.
  static DEVICE void copy(T *to, const T *p, const i32 *list, int step, int outer, int k) {
    k -= step * BK;
    if constexpr (GATHER && !KINNER) {
      list += step * BK;
    } else {
      p += step * (BK * S_K);
    }
    constexpr int ROW = INNER / VEC, ALL = ROWS * ROW, BYTES = VEC * int(sizeof(T));
    constexpr i64 S_ROW = KINNER ? S_OUTER : S_K, S_COL = KINNER ? S_K : S_OUTER;
    constexpr int EACH = (ALL + THREADS - 1) / THREADS;
    constexpr int AT_ONCE = BYTES >= 4 ? EACH : least(EACH, 4);  // without copy_async through registers
    const int rows = KINNER ? outer : k, cols = KINNER ? k : outer;
#pragma unroll AT_ONCE
    for (int i = 0; i < EACH; i++) {
      const int e = threadIdx.x + i * THREADS, r = e / ROW, c = e % ROW * VEC;
      if (ALL % THREADS != 0 && e >= ALL) break;
      const bool there = r < rows && c < cols;
      const T *const from = there ? p + (GATHER ? list[r] : r) * S_ROW + c * S_COL : p;
      if constexpr (BYTES >= 4) {
        copy_async<BYTES>(to + r * LD + c, from, there);
      } else {
        to[r * LD + c] = there ? *from : T{};
      }
    }
  }

  // A Source copies the steps of a piece.
  struct Source {
    const T *p;
    const i32 *list;
    int outer, k;
    DEVICE void copy(T *to, int step) { MmaOperand::copy(to, p, list, step, outer, k); }
  };

  // a_fragment reads rows m to m+15 of A and the steps of 32 bytes from k on; b_fragments columns n to n+15 of B, which
  // are two fragments.
  static DEVICE void a_fragment(u32 (&r)[4], const T *s, int m, int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (KINNER) {
      load_matrices<false>(r, s + (m + lane % 16) * LD + k + lane / 16 * UNIT);
    } else if constexpr (sizeof(T) == 2) {
      load_matrices<true>(r, s + (k + lane % 8 + lane / 16 * 8) * LD + m + lane / 8 % 2 * 8);
    } else {
      const T *const at = s + (k + lane % 4) * LD + m + lane / 4;
#pragma unroll
      for (int i = 0; i < 4; i++) r[i] = float_to_bits(at[i / 2 * 4 * LD + i % 2 * 8]);
    }
  }
  static DEVICE void b_fragments(u32 (&r)[4], const T *s, int n, int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (KINNER) {
      load_matrices<false>(r, s + (n + lane % 8 + lane / 16 * 8) * LD + k + lane / 8 % 2 * UNIT);
    } else if constexpr (sizeof(T) == 2) {
      load_matrices<true>(r, s + (k + lane % 16) * LD + n + lane / 16 * 8);
    } else {
      const T *const at = s + (k + lane % 4) * LD + n + lane / 4;
#pragma unroll
      for (int i = 0; i < 4; i++) r[i] = float_to_bits(at[i % 2 * 4 * LD + i / 2 * 8]);
    }
  }
};

// An MmaPatches is an MmaOperand A that consists of patches of images; see patches.cuh.
template <class Layout, class I, bool KINNER, int OUTER, int BK, int VEC, int THREADS> struct MmaPatches : Layout {
  typedef typename Layout::Element T;
  struct Source {
    const T *p;
    int begin;
    PatchWalk<I, KINNER, OUTER, BK, VEC, THREADS> walk;
    DEVICE Source(const T *image, int first, int k) : p(image), begin(k), walk(first) {}
    DEVICE void copy(T *to, int step) {
      walk.at(begin + step * BK);
      typedef PatchWalk<I, KINNER, OUTER, BK, VEC, THREADS> Walk;
      constexpr int AT_ONCE = Walk::KEPT || VEC * sizeof(T) >= 4 ? Walk::EACH : 4;
#pragma unroll AT_ONCE
      for (int i = 0; i < Walk::EACH; i++) {
        const int e = threadIdx.x + i * THREADS;
        if (Walk::ALL % THREADS != 0 && e >= Walk::ALL) break;
        T *const at = to + e / Walk::ROW * Layout::LD + e % Walk::ROW * VEC;
        const auto row = walk.row(i);
        const bool there = inside(row, walk.column);
        const T *const from = there ? p + (row.at + walk.column.at) : p;
        if constexpr (VEC * sizeof(T) >= 4) {
          copy_async<VEC * int(sizeof(T))>(at, from, there);
        } else {
          *at = there ? *from : T{};
        }
      }
    }
  };
};

// multiply adds the products of MT×NT fragments to d, one step of 32 bytes along k.
template <class T, int MT, int NT>
DEVICE void multiply(T, float (&d)[MT][NT][4], u32 (&a)[MT][4], u32 (&b)[NT][2]) {
#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int j = 0; j < NT; j++) mma(T{}, d[i][j], a[i], b[j]);
  }
}
template <int MT, int NT> DEVICE void multiply(Tf32, float (&d)[MT][NT][4], u32 (&a)[MT][4], u32 (&b)[NT][2]) {
#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) a[i][j] = to_tf32(a[i][j]);
  }
#pragma unroll
  for (int i = 0; i < NT; i++) {
#pragma unroll
    for (int j = 0; j < 2; j++) b[i][j] = to_tf32(b[i][j]);
  }
  multiply(float{}, d, a, b);
}
// cut truncates x to tf32 and returns the remainder. The remainder of an infinity is NaN. A careful cut leaves the
// largest number in x and returns the infinity. Then all products with it are infinite or finite with one sign, because
// both parts of any number have its sign, and their sum is right.
template <bool CAREFUL> DEVICE u32 cut(u32 &x) {
  const float all = bits_to_float(x), most = bits_to_float(0x7f7fe000u);
  x &= 0xffffe000u;
  if constexpr (CAREFUL) x = float_to_bits(fminf(fmaxf(bits_to_float(x), -most), most));
  return float_to_bits(all - bits_to_float(x));
}
template <bool CAREFUL, int MT, int NT>
DEVICE void multiply(Split<CAREFUL>, float (&d)[MT][NT][4], u32 (&a)[MT][4], u32 (&b)[NT][2]) {
  u32 small_b[NT][2];
#pragma unroll
  for (int i = 0; i < NT; i++) {
#pragma unroll
    for (int j = 0; j < 2; j++) small_b[i][j] = cut<CAREFUL>(b[i][j]);
  }
  // Two rows of fragments at a time, so that products that add to the same accumulators are far apart.
#pragma unroll
  for (int i = 0; i < MT; i += 2) {
    constexpr int TWO = least(MT, 2);
    u32 small_a[TWO][4];
#pragma unroll
    for (int e = 0; e < TWO * 4; e++) small_a[e / 4][e % 4] = cut<CAREFUL>(a[i + e / 4][e % 4]);
#pragma unroll
    for (int e = 0; e < TWO * NT; e++) mma(float{}, d[i + e / NT][e % NT], small_a[e / NT], b[e % NT]);
#pragma unroll
    for (int e = 0; e < TWO * NT; e++) mma(float{}, d[i + e / NT][e % NT], a[i + e / NT], small_b[e % NT]);
#pragma unroll
    for (int e = 0; e < TWO * NT; e++) mma(float{}, d[i + e / NT][e % NT], a[i + e / NT], b[e % NT]);
  }
}

template <class T> constexpr bool is_split = false;
template <bool CAREFUL> constexpr bool is_split<Split<CAREFUL>> = true;

// mma_epilogue passes the accumulators of a tile to the body, through the block's shared memory, all of which is free:
// [WARPS_K][BM][BN + 8]. LANES threads, one below another, have the same columns.
template <class P, class Body, class Tile, int MT, int NT>
DEVICE void mma_epilogue(const Body &body, const Spot &spot, int rows, int cols,
                         const float (&acc)[MT][NT][4], typename Body::Sum *partial) {
  constexpr int W = P::W, LD = Tile::BN + 8, ROW = Tile::BN / W, LANES = Tile::THREADS / ROW;
  SHARED;
  float *const c = reinterpret_cast<float *>(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int wn = warp % Tile::WARPS_N, wm = warp / Tile::WARPS_N % Tile::WARPS_M, wk = warp / Tile::WARPS_N / Tile::WARPS_M;
  float *const mine = c + (wk * Tile::BM + wm * Tile::WM + lane / 4) * LD + wn * Tile::WN + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
      store<1, 8>(mine + i * 16 * LD + j * 8, Vec<float, 2>{acc[i][j][0], acc[i][j][1]});
      store<1, 8>(mine + (i * 16 + 8) * LD + j * 8, Vec<float, 2>{acc[i][j][2], acc[i][j][3]});
    }
  }
  __syncthreads();
  const int group = threadIdx.x / ROW, col = threadIdx.x % ROW * W;
  Vec<typename Body::Sum, W> sums[Body::SUMS + 1][1] = {};
  if (group < LANES && col < cols) {
    for (int r = group; r < least(Tile::BM, rows); r += LANES) {
      constexpr int align = least(16, 4 * W);
      Vec<float, W> v = load<float, W, 1, align>(c + r * LD + col);
#pragma unroll
      for (int k = 1; k < Tile::WARPS_K; k++) v = op::add(v, load<float, W, 1, align>(c + (k * Tile::BM + r) * LD + col));
      Vec<typename Body::Sum, W> s[Body::SUMS + 1];
#pragma unroll
      for (int j = 0; j < Body::SUMS; j++) s[j] = sums[j][0];
      body(spot.batch, spot.m + r, spot.n + col, v, s);
#pragma unroll
      for (int j = 0; j < Body::SUMS; j++) sums[j][0] = s[j];
    }
  }
  if constexpr (Body::SUMS > 0) {
    static_assert(Tile::THREADS % ROW == 0, "each thread has a place in the column sums");
    constexpr int blocks = P::BATCH * ((P::M + Tile::BM - 1) / Tile::BM);
    sum_columns<P, Body, Tile::BN, LANES, 1>(partial, blocks, spot.block, spot.n, group, [=](int) { return col; }, sums);
  }
}

// mma_accumulate computes the accumulators of a tile.
template <class P, class Math, class Tile, int MT, int NT>
DEVICE void mma_accumulate(float (&acc)[MT][NT][4], const Piece<P> &piece) {
  typedef typename P::A T;
  constexpr int BK = Tile::BK, STAGES = Tile::STAGES;
  typedef MmaOperand<T, P::A_KINNER, Tile::BM, BK, P::A_VEC, P::A_M, P::A_K, Tile::THREADS, P::GATHER> OpA;
  typedef MmaOperand<T, P::B_KINNER, Tile::BN, BK, P::B_VEC, P::B_N, P::B_K, Tile::THREADS, false> OpB;
  constexpr int STAGE = OpA::SIZE + OpB::SIZE, KSTEP = 2 * OpA::UNIT;
  static_assert(NT % 2 == 0, "fragments of B are read in pairs");
  SHARED;
  T *const stages = reinterpret_cast<T *>(shared);
  const int warp = threadIdx.x / 32;
  const int m0 = warp / Tile::WARPS_N % Tile::WARPS_M * Tile::WM, n0 = warp % Tile::WARPS_N * Tile::WN;
  const int k0 = warp / Tile::WARPS_N / Tile::WARPS_M * KSTEP;

  const int steps = (piece.k + BK - 1) / BK;
  auto a = [&] {
    if constexpr (P::PATCHES) {
      return typename MmaPatches<OpA, typename P::Image, P::A_KINNER, Tile::BM, BK, P::A_VEC, Tile::THREADS>::Source(
          piece.a, P::M - piece.rows, piece.first);
    } else {
      return typename OpA::Source{piece.a, piece.list, piece.rows, piece.k};
    }
  }();
  auto copy = [&](int step) {
    if (step < steps) {
      T *const to = stages + step % STAGES * STAGE;
      a.copy(to, step);
      OpB::copy(to + OpA::SIZE, piece.b, nullptr, step, piece.cols, piece.k);
    }
    copy_commit();
  };

#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int j = 0; j < NT; j++) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
  }
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) copy(s);
  for (int step = 0; step < steps; step++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    copy(step + STAGES - 1);
    const T *const as = stages + step % STAGES * STAGE, *const bs = as + OpA::SIZE;
    float part[MT][NT][4] = {};
#pragma unroll
    for (int k = 0; k < BK; k += KSTEP * Tile::WARPS_K) {
      u32 fa[MT][4], fb[NT][2];
#pragma unroll
      for (int i = 0; i < MT; i++) OpA::a_fragment(fa[i], as, m0 + i * 16, k + k0);
#pragma unroll
      for (int j = 0; j < NT; j += 2) {
        u32 r[4];
        OpB::b_fragments(r, bs, n0 + j * 8, k + k0);
        fb[j][0] = r[0], fb[j][1] = r[1], fb[j + 1][0] = r[2], fb[j + 1][1] = r[3];
      }
      multiply(Math{}, is_split<Math> ? part : acc, fa, fb);
    }
    if constexpr (is_split<Math>) {
#pragma unroll
      for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
#pragma unroll
          for (int e = 0; e < 4; e++) acc[i][j][e] += part[i][j][e];
        }
      }
    }
  }
  copy_wait<0>();
  __syncthreads();
}

template <class P, class Body, class Math, class Tile>
DEVICE void gemm_mma(Body body, const Piece<P> &piece, const Spot &spot, typename Body::Sum *partial) {
  float acc[Tile::WM / 16][Tile::WN / 8][4];
  mma_accumulate<P, Math, Tile>(acc, piece);
  if constexpr (is_split<Math>) {
    // A tile with a NaN in the result, possibly from an infinity, is computed again with CAREFUL.
    SHARED;
    int *const again = reinterpret_cast<int *>(shared);
    if (threadIdx.x == 0) *again = 0;
    __syncthreads();
    bool nan = false;
#pragma unroll
    for (auto &row : acc) {
#pragma unroll
      for (auto &fragment : row) {
#pragma unroll
        for (float x : fragment) nan = nan || x != x;
      }
    }
    if (nan) *again = 1;
    __syncthreads();
    const bool careful = *again != 0;
    __syncthreads();
    if (careful) mma_accumulate<P, Split<true>, Tile>(acc, piece);
  }
  mma_epilogue<P, Body, Tile>(body, spot, piece.rows, piece.cols, acc, partial);
}
