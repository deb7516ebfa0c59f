// The gradient of attention by ordinary multiplications and additions, like attention_simt.cuh: one launch for dk and
// dv, whose blocks hold 64 keys and pass over the queries of all heads that read them, and one for dq, whose blocks
// hold 64 queries and pass over the keys. Probabilities are computed in both, so that no two blocks add to the same
// memory. Columns beyond CHUNK are computed by other blocks.

// Probabilities of a tile, and whether dropout kept each: from products of queries and keys. Rows of a thread's tile
// are keys if TRANSPOSED, else queries.
template <class P, bool TRANSPOSED, class Args>
DEVICE void probabilities(const Args &p, int head, int i0, int j0, int valid, typename P::L (&x)[4][4]) {
  typedef typename P::L L;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
  for (int a = 0; a < 4; a++) {
    const int i = i0 + 4 * (TRANSPOSED ? tx : ty) + a;
    const bool there = i < P::QUERIES;
    const Span keys = there ? reach<P>(i, valid) : Span{0, 0};
    const auto row = there ? P::rows(p)[i64(head) * P::QUERIES + i] : AttentionRow<L>{0, 0, 0};
#pragma unroll
    for (int b = 0; b < 4; b++) {
      L &e = TRANSPOSED ? x[b][a] : x[a][b];
      e = score<P>(p, head, i, j0 + 4 * (TRANSPOSED ? ty : tx) + b, keys, e);
      e = op::exp(e - row.top) * row.share;
    }
  }
}

// Which elements of a tile dropout keeps: bit 4·r + c.
template <class P, bool TRANSPOSED> DEVICE u32 kept_tile(i64 seed, int head, int i0, int j0) {
  u32 kept = 0;
  if constexpr (P::DROP > 0) {
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
    for (int a = 0; a < 4; a++) {
      const u32 four = kept4<P>(seed, head, i0 + 4 * (TRANSPOSED ? tx : ty) + a, j0 + 4 * (TRANSPOSED ? ty : tx));
#pragma unroll
      for (int b = 0; b < 4; b++) kept |= (four >> b & 1) << (TRANSPOSED ? 4 * b + a : 4 * a + b);
    }
  }
  return kept;
}

template <class P> DEVICE typename P::L dropped(u32 kept, int r, int c, typename P::L x) {
  typedef typename P::L L;
  if constexpr (P::DROP > 0) return kept >> (4 * r + c) & 1 ? x * L(P::KEEP) : L(0);
  return x;
}

// attention_dkdv_simt computes columns CHUNK·blockIdx.y and further of the gradients of 64 keys and values.
template <class P, int CHUNK, class Args> DEVICE void attention_dkdv_simt(const Args &p) {
  typedef typename P::L L;
  constexpr int TILES = (P::KEYS + SIMT_TILE - 1) / SIMT_TILE, N = CHUNK / 16;
  SHARED;
  auto &s = *reinterpret_cast<SimtShared<L, CHUNK> *>(shared);
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const int group = blockIdx.x / TILES, j0 = blockIdx.x % TILES * SIMT_TILE, c0 = blockIdx.y * CHUNK;
  const int valid = valid_keys<P>(p, group / (P::HEADS / P::GROUP)), jend = smaller(j0 + SIMT_TILE, valid);
  const auto k = P::k(p, group);
  const auto v = P::v(p, group);
  i64 seed = 0;
  if constexpr (P::DROP > 0) seed = P::seed(p);
  L dk[4][N], dv[4][N];
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int n = 0; n < N; n++) dk[r][n] = dv[r][n] = 0;

  for (int member = 0; member < P::GROUP; member++) {
    const int head = group * P::GROUP + member;
    const auto q = P::q(p, head);
    const auto dout = P::dout(p, head);
    for (int i0 = 0; i0 < P::QUERIES; i0 += SIMT_TILE) {
      const int last = smaller(i0 + SIMT_TILE, P::QUERIES) - 1;
      if (reach<P>(last, valid).hi <= j0 || reach<P>(i0, valid).lo >= jend) continue;
      L x[4][4], w[4][4];
      multiply_tiles(s, x, k, j0, valid, q, i0, P::QUERIES, P::DEPTH);
      probabilities<P, true>(p, head, i0, j0, valid, x);
      const u32 kept = kept_tile<P, true>(seed, head, i0, j0);
      if (P::HAS_DV && c0 < P::WIDTH) {
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
          for (int c = 0; c < 4; c++) w[r][c] = dropped<P>(kept, r, c, x[r][c]);
        __syncthreads();
        put_weights(s, w);
        add_weighted(s, dv, dout, i0, P::QUERIES, c0, P::WIDTH);
      }
      if (P::HAS_DK && c0 < P::DEPTH) {
        multiply_tiles(s, w, v, j0, valid, dout, i0, P::QUERIES, P::WIDTH);
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const int i = smaller(i0 + tx * 4 + c, P::QUERIES - 1);
          const L delta = P::rows(p)[i64(head) * P::QUERIES + i].delta;
#pragma unroll
          for (int r = 0; r < 4; r++) w[r][c] = x[r][c] * (dropped<P>(kept, r, c, w[r][c]) - delta);
        }
        __syncthreads();
        put_weights(s, w);
        add_weighted(s, dk, q, i0, P::QUERIES, c0, P::DEPTH);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const int j = j0 + ty * 4 + r;
    if (j >= P::KEYS) break;
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int c = c0 + tx + 16 * n;
      if constexpr (P::HAS_DK) {
        if (c < P::DEPTH) put(P::dk(p, group), j, c, dk[r][n] * L(P::SCALE));
      }
      if constexpr (P::HAS_DV) {
        if (c < P::WIDTH) put(P::dv(p, group), j, c, dv[r][n]);
      }
    }
  }
}

// attention_dq_simt computes columns CHUNK·blockIdx.y and further of the gradient of 64 queries.
template <class P, int CHUNK, class Args> DEVICE void attention_dq_simt(const Args &p) {
  typedef typename P::L L;
  constexpr int TILES = (P::QUERIES + SIMT_TILE - 1) / SIMT_TILE, N = CHUNK / 16;
  SHARED;
  auto &s = *reinterpret_cast<SimtShared<L, CHUNK> *>(shared);
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const int head = blockIdx.x / TILES, i0 = (TILES - 1 - blockIdx.x % TILES) * SIMT_TILE, c0 = blockIdx.y * CHUNK;
  const int valid = valid_keys<P>(p, head / P::HEADS);
  const auto q = P::q(p, head);
  const auto dout = P::dout(p, head);
  const auto k = P::k(p, head / P::GROUP);
  const auto v = P::v(p, head / P::GROUP);
  i64 seed = 0;
  if constexpr (P::DROP > 0) seed = P::seed(p);
  L dq[4][N], delta[4];
#pragma unroll
  for (int r = 0; r < 4; r++) {
    delta[r] = P::rows(p)[i64(head) * P::QUERIES + smaller(i0 + ty * 4 + r, P::QUERIES - 1)].delta;
#pragma unroll
    for (int n = 0; n < N; n++) dq[r][n] = 0;
  }
  const int from = reach<P>(i0, valid).lo / SIMT_TILE * SIMT_TILE;
  const int to = reach<P>(smaller(i0 + SIMT_TILE, P::QUERIES) - 1, valid).hi;
  for (int j0 = from; j0 < to; j0 += SIMT_TILE) {
    L x[4][4], w[4][4];
    multiply_tiles(s, x, q, i0, P::QUERIES, k, j0, valid, P::DEPTH);
    probabilities<P, false>(p, head, i0, j0, valid, x);
    multiply_tiles(s, w, dout, i0, P::QUERIES, v, j0, valid, P::WIDTH);
    const u32 kept = kept_tile<P, false>(seed, head, i0, j0);
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int c = 0; c < 4; c++) w[r][c] = x[r][c] * (dropped<P>(kept, r, c, w[r][c]) - delta[r]);
    __syncthreads();
    put_weights(s, w);
    add_weighted(s, dq, k, j0, valid, c0, P::DEPTH);
  }
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const int i = i0 + ty * 4 + r;
    if (i >= P::QUERIES) break;
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int c = c0 + tx + 16 * n;
      if (c < P::DEPTH) put(P::dq(p, head), i, c, dq[r][n] * L(P::SCALE));
    }
  }
}
