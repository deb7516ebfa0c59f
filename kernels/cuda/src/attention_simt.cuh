// Attention by ordinary multiplications and additions, on any chip, for any sizes and both f32 and f64: blocks of
// queries process blocks of keys with the online softmax (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv
// 2205.14135). A block of 16×16 threads holds a tile of 64×64 scores, 4×4 to a thread, and 64 rows of the result, of
// which a thread has every 16th column. Columns of the result beyond CHUNK are computed by other blocks, which compute
// the scores again.

constexpr int SIMT_TILE = 64, SIMT_THREADS = 256;

// The shared memory of a block. STEP columns, or rows, of operands are in it at a time.
template <class L, int CHUNK> struct SimtShared {
  static constexpr int STEP = sizeof(L) == 8 ? 8 : 16;
  L a[STEP][SIMT_TILE + 4], b[STEP][SIMT_TILE + 4];  // columns of the operands of a product
  L weights[SIMT_TILE][SIMT_TILE + 1];
  L rows[STEP][CHUNK];
};

// Copies columns c0 … c0+STEP−1 of rows first … first+63 of a matrix with the given number of columns; rows and columns
// beyond its end are 0.
template <int STEP, class L, class M>
DEVICE void stage_columns(L (*to)[SIMT_TILE + 4], const M &m, int first, int end, int c0, int columns) {
  for (int e = threadIdx.x; e < SIMT_TILE * STEP; e += SIMT_THREADS) {
    const int r = M::COL <= M::ROW ? e / STEP : e % SIMT_TILE, c = M::COL <= M::ROW ? e % STEP : e / SIMT_TILE;
    to[c][r] = first + r < end && c0 + c < columns ? convert<L>(m.row(first + r)[(c0 + c) * M::COL]) : L(0);
  }
}

// Copies columns c0 … c0+CHUNK−1 of rows first … first+STEP−1.
template <int STEP, int CHUNK, class L, class M>
DEVICE void stage_rows(L (*to)[CHUNK], const M &m, int first, int end, int c0, int columns) {
  for (int e = threadIdx.x; e < CHUNK * STEP; e += SIMT_THREADS) {
    const int r = M::COL <= M::ROW ? e / CHUNK : e % STEP, c = M::COL <= M::ROW ? e % CHUNK : e / STEP;
    to[r][c] = first + r < end && c0 + c < columns ? convert<L>(m.row(first + r)[(c0 + c) * M::COL]) : L(0);
  }
}

// The products of 64 rows of x, from i on, with 64 rows of y, from j on. A thread's are of rows 4·(thread÷16) and
// further of x, and 4·(thread mod 16) and further of y.
template <class S, class L, class X, class Y>
DEVICE void multiply_tiles(S &s, L (&product)[4][4], const X &x, int i, int iend, const Y &y, int j, int jend,
                           int columns) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int c = 0; c < 4; c++) product[r][c] = 0;
  for (int c0 = 0; c0 < columns; c0 += S::STEP) {
    __syncthreads();
    stage_columns<S::STEP>(s.a, x, i, iend, c0, columns);
    stage_columns<S::STEP>(s.b, y, j, jend, c0, columns);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < S::STEP; d++) {
      L a[4], b[4];
#pragma unroll
      for (int e = 0; e < 4; e++) a[e] = s.a[d][ty * 4 + e], b[e] = s.b[d][tx * 4 + e];
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) product[r][c] += a[r] * b[c];
    }
  }
}

// Adds to 64 rows of sums the 64×64 weights times rows j … j+63 of y, columns c0 and further. A thread's rows are those
// of its weights, its columns c0 + thread mod 16 + 16·n.
template <int N, class S, class L, class Y>
DEVICE void add_weighted(S &s, L (&sum)[4][N], const Y &y, int j, int jend, int c0, int columns) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int k0 = 0; k0 < SIMT_TILE && j + k0 < jend; k0 += S::STEP) {
    __syncthreads();
    stage_rows<S::STEP, 16 * N>(s.rows, y, j + k0, jend, c0, columns);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < S::STEP; k++) {
      L w[4];
#pragma unroll
      for (int r = 0; r < 4; r++) w[r] = s.weights[ty * 4 + r][k0 + k];
#pragma unroll
      for (int n = 0; n < N; n++) {
        const L v = s.rows[k][tx + 16 * n];
#pragma unroll
        for (int r = 0; r < 4; r++) sum[r][n] += w[r] * v;
      }
    }
  }
}

// Stores a thread's weights for add_weighted. All threads must have read the earlier ones.
template <class S, class L> DEVICE void put_weights(S &s, const L (&w)[4][4]) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int c = 0; c < 4; c++) s.weights[ty * 4 + r][tx * 4 + c] = w[r][c];
}

// The greatest of 16 neighbours' numbers, and their sum.
template <class L> DEVICE L max_of16(L x) {
#pragma unroll
  for (int d = 8; d > 0; d /= 2) {
    const L y = __shfl_xor_sync(~0u, x, d);
    x = y > x ? y : x;
  }
  return x;
}
template <class L> DEVICE L sum_of16(L x) {
#pragma unroll
  for (int d = 8; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// The scale of row j of keys or values, 0 from end on.
template <class L, class M> DEVICE L simt_scale(const M &m, int j, int end) { return j < end ? convert<L>(*m.row(j)) : L(0); }

// attention_simt computes 64 queries of a head, columns CHUNK·blockIdx.y and further of their result. The last queries,
// which have the most keys if the attention is causal, come first.
template <class P, int CHUNK, class Args> DEVICE void attention_simt(const Args &p) {
  typedef typename P::L L;
  constexpr int TILES = (P::QUERIES + SIMT_TILE - 1) / SIMT_TILE, N = CHUNK / 16;
  SHARED;
  auto &s = *reinterpret_cast<SimtShared<L, CHUNK> *>(shared);
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const int head = blockIdx.x / TILES, tile = TILES - 1 - blockIdx.x % TILES, batch = head / P::HEADS;
  const int i0 = tile * SIMT_TILE, c0 = blockIdx.y * CHUNK, valid = valid_keys<P>(p, batch);
  if (head % P::HEADS == 0 && tile == 0 && c0 == 0) check_table<P>(p, batch, valid, threadIdx.x, SIMT_THREADS);
  const auto q = P::q(p, head);
  const auto k = P::k(p, head / P::GROUP);
  const auto v = P::v(p, head / P::GROUP);
  i64 seed = 0;
  if constexpr (P::DROP > 0) seed = P::seed(p);

  Span keys[4];
  L sum[4][N], top[4], total[4];
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const int i = i0 + ty * 4 + r;
    keys[r] = i < P::QUERIES ? reach<P>(i, valid) : Span{0, 0};
    top[r] = minus_infinity<L>();
    total[r] = 0;
#pragma unroll
    for (int n = 0; n < N; n++) sum[r][n] = 0;
  }
  const int from = reach<P>(i0, valid).lo / SIMT_TILE * SIMT_TILE;
  const int to = reach<P>(smaller(i0 + SIMT_TILE, P::QUERIES) - 1, valid).hi;
  for (int j0 = from; j0 < to; j0 += SIMT_TILE) {
    L x[4][4];
    multiply_tiles(s, x, q, i0, P::QUERIES, k, j0, valid, P::DEPTH);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int i = i0 + ty * 4 + r, j = j0 + tx * 4;
      L most = minus_infinity<L>();
#pragma unroll
      for (int c = 0; c < 4; c++) {
        if constexpr (P::HAS_SCALES) x[r][c] *= simt_scale<L>(P::k_scale(p, head / P::GROUP), j + c, valid);
        x[r][c] = score<P>(p, head, i, j + c, keys[r], x[r][c]);
        most = x[r][c] > most ? x[r][c] : most;
      }
      most = max_of16(most);
      const L now = most > top[r] ? most : top[r], base = now == minus_infinity<L>() ? L(0) : now;
      const L shrink = op::exp(top[r] - base);
      top[r] = now;
      L part = 0;
#pragma unroll
      for (int c = 0; c < 4; c++) part += x[r][c] = op::exp(x[r][c] - base);
      total[r] = total[r] * shrink + sum_of16(part);
#pragma unroll
      for (int n = 0; n < N; n++) sum[r][n] *= shrink;
      if constexpr (P::DROP > 0) {
        const u32 kept = kept4<P>(seed, head, i, j);
#pragma unroll
        for (int c = 0; c < 4; c++) x[r][c] = kept >> c & 1 ? x[r][c] : L(0);
      }
      if constexpr (P::HAS_SCALES) {
#pragma unroll
        for (int c = 0; c < 4; c++) x[r][c] *= simt_scale<L>(P::v_scale(p, head / P::GROUP), j + c, valid);
      }
    }
    __syncthreads();
    put_weights(s, x);
    add_weighted(s, sum, v, j0, valid, c0, P::WIDTH);
  }
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const int i = i0 + ty * 4 + r;
    if (i >= P::QUERIES) break;
    const auto out = P::out(p, head);
    const L share = total[r] == L(0) ? L(0) : L(P::KEEP) / total[r];
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int c = c0 + tx + 16 * n;
      if (c < P::WIDTH) put(out, i, c, sum[r][n] * share);
    }
    if constexpr (P::HAS_LSE) {
      if (tx == 0 && c0 == 0) put(P::lse(p, head), i, 0, top[r] + op::log(total[r]));
    }
  }
}
