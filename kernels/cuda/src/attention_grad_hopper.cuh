// The gradient of an attention for Hopper, of 16-bit operands with sums in f32: the results are the same bits each
// time, because every sum belongs to one thread. A block of attention_grad_keys has 128 keys and values and iterates
// over the queries; one of attention_grad_queries has 128 or 192 queries and iterates over the keys. Both compute the
// probabilities again, which is two of seven products; no partial sum is exchanged (compare Dao, arXiv 2307.08691,
// section 3.1). For larger rows, attention_grad_joint.cuh has both in one kernel.
//
// In both, a product leaves the probabilities in the registers in which the next product needs them: the scores are
// keys by queries in the first and queries by keys in the second.
//
// Problem P has, in addition to the constants in attention_hopper.cuh (WARPGROUPS, KEY_TILE and STAGES of
// attention_grad_queries),
//	QUERY_TILE, QUERY_STAGES   of attention_grad_keys
//	PADDED                     QUERIES, rounded up to a multiple of 128
//	DOUT_…, DLSE_…, DQ_…, DK_…, DV_… strides
//
// Of f32, the operands are multiplied as src/attention_split.cuh says, and the results are divided by that: `most` has the bits of
// the largest value, and of the largest element of dout.

// grad_scale is what values, or for i = 1 dout, are multiplied by, so that gradients of scores stay below 2^15. KEEP is at most 2.
template <class P> DEVICE float grad_scale(const u32 *most, int i) {
  return value_scale(most[i]) * (i == 1 ? 0x1p-11f : P::KEEP > 1 ? 0x1p-13f : 0x1p-12f);
}
// The weights that dout is multiplied by are raised by this power of 2, so that small ones are exact, too.
template <class P> constexpr int RAISED_GRAD = P::PARTS > 0 ? 14 : 0;
// By these a gradient of queries or keys is multiplied, and one of values.
template <class P> DEVICE float deep_factor(const u32 *most) {
  if constexpr (P::PARTS > 0) return P::SCALE * 64 / grad_scale<P>(most, 0) / grad_scale<P>(most, 1);
  return P::SCALE;
}
template <class P> DEVICE float wide_factor(const u32 *most) {
  if constexpr (P::PARTS > 0) return P::KEEP * bits_to_float(u32(127 - RAISED_GRAD<P>) << 23) / grad_scale<P>(most, 1);
  return P::KEEP;
}

// grad_rows computes what a row adds to the products of both kernels. ROW_LANES threads share a row, each with 8 elements of dout,
// with which all call take(at, y): its place, contiguous, or −1 if there is none, and the elements. The first calls
// store(i, top, sum) for row i of [heads, PADDED]: the log-sum-exp, −Inf for rows that add nothing, and Δ = Σ dout⊙out − dlse.
template <class P> constexpr int ROW_LANES = P::WIDTH <= 64 ? 8 : 16;
template <class P, class DOut, class Take, class Store>
DEVICE void grad_rows(const typename P::Out *out, const float *lse, const DOut *dout, const float *dlse, Take take, Store store) {
  constexpr int lanes = ROW_LANES<P>;
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) / lanes, c = threadIdx.x % lanes * 8;
  const int row = i % P::PADDED, all = i / P::PADDED, head = all % P::HEADS, batch = all / P::HEADS;
  const bool there = row < P::QUERIES && all < P::BATCH * P::HEADS;
  float sum = 0;
  Vec<float, 8> y = splat<8>(0.0f);
  if (there && c < P::WIDTH) {
    out += i64(P::OUT_BATCH) * batch + i64(P::OUT_HEAD) * head + i64(P::OUT_ROW) * row;
    dout += i64(P::DOUT_BATCH) * batch + i64(P::DOUT_HEAD) * head + i64(P::DOUT_ROW) * row;
    const auto x = load<float, 8, 1, 16>(out + c);
    y = load<float, 8, 1, 16>(dout + c);
#pragma unroll
    for (int e = 0; e < 8; e++) sum += x[e] * y[e];
  }
  take(there && c < P::WIDTH ? (i64(all) * P::QUERIES + row) * P::WIDTH + c : i64(-1), y);
#pragma unroll
  for (int d = lanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (c > 0 || all >= P::BATCH * P::HEADS) return;
  float top = -infinity();
  if (there) top = lse[i64(P::LSE_BATCH) * batch + i64(P::LSE_HEAD) * head + i64(P::LSE_ROW) * row];
  if (top == -infinity()) {
    sum = 0;
  } else {
    if (dlse) sum -= dlse[i64(P::DLSE_BATCH) * batch + i64(P::DLSE_HEAD) * head + i64(P::DLSE_ROW) * row];
    // A number of this size is rounded by more than 1. A slightly larger one keeps exponents from being above 0.
    if (fabsf(top) > 0x1p24f) top += fabsf(top) * 0x1p-17f;
  }
  store(i, top, sum);
}

// attention_grad_rows computes for each row the terms that both kernels add to its products: −lse÷SCALE for the scores,
// or −Inf for rows that add nothing; and −Δ. Rows beyond the queries get −Inf and 0. If copy is not null, it gets the rows of dout,
// contiguous, for the copy engine.
template <class P, class DOut>
DEVICE void attention_grad_rows(const typename P::Out *out, const float *lse, const DOut *dout, const float *dlse,
                                typename P::T *copy, float *base, float *delta, const u32 *most = nullptr) {
  grad_rows<P>(out, lse, dout, dlse, [&](i64 at, const Vec<float, 8> &y) {
    if (copy && at >= 0) store<1, 16>(copy + at, y);
  }, [&](int i, float top, float sum) {
    base[i] = top == -infinity() ? top : -top / P::SCALE;
    if constexpr (P::PARTS > 0) sum = sum * grad_scale<P>(most, 0) * grad_scale<P>(most, 1);
    delta[i] = -sum;
  });
}

constexpr int KEY_GROUPS = 2;  // warpgroups of 64 keys in a block of attention_grad_keys or attention_grad_joint

// A tile of keys, and the tiles of queries that attend to some of its keys.
template <class P> struct KeyTile {
  static constexpr int ROWS = 64 * KEY_GROUPS;
  static constexpr int TILES = (P::KEYS + ROWS - 1) / ROWS, HEADS = P::BATCH * P::HEADS / P::GROUP, ALL = TILES * HEADS;
  int head, row, first, end;
  int valid;  // keys that count

  DEVICE int shift() const { return (P::TAIL ? valid : P::KEYS) - P::QUERIES; }
  // The queries [lo, hi) attend to key j.
  DEVICE int lo(int j) const {
    if (P::CAUSAL) return j - shift();
    return P::WINDOW > 0 ? j - shift() - P::WINDOW + 1 : 0;
  }
  DEVICE int hi(int j) const {
    if (P::LENGTHS && j >= valid) return 0;
    return P::WINDOW > 0 ? least(P::QUERIES, j - shift() + P::WINDOW) : P::QUERIES;
  }

  template <class M> DEVICE KeyTile(int i, const M &masks) {
    const TilePlace at = place_tile<HEADS, TILES, (P::TOGETHER / P::GROUP > 0 ? P::TOGETHER / P::GROUP : 1)>(i);
    head = at.head;
    row = at.tile * ROWS;
    valid = keys_of<P>(masks, head / (P::HEADS / P::GROUP));
    find();
  }
  // The tile at another row of the same head.
  DEVICE KeyTile(const KeyTile &t, int at) : head(t.head), row(at), valid(t.valid) { find(); }
  // The tiles of queries up to here get something from the tile of keys before, too.
  DEVICE int before() const { return row > 0 ? KeyTile(*this, row - ROWS).end : 0; }
  // The first of all heads of queries that attend to these keys.
  DEVICE int first_head() const { return head / (P::HEADS / P::GROUP) * P::HEADS + head % (P::HEADS / P::GROUP) * P::GROUP; }
  DEVICE void find() {
    const int bottom = lo(row), top = !P::LENGTHS || row < valid ? hi(least(row + ROWS, valid) - 1) : 0;
    first = bottom > 0 ? bottom / P::QUERY_TILE : 0;
    end = top > 0 ? (top + P::QUERY_TILE - 1) / P::QUERY_TILE : 0;
    if (end < first) end = first;
  }
  // Whether some query of tile m, possibly beyond the last, does not attend to some key.
  DEVICE bool masked(int m) const {
    return m * P::QUERY_TILE < lo(row + ROWS - 1) || (m + 1) * P::QUERY_TILE > hi(row) || P::LENGTHS && row + ROWS > valid;
  }
};

// Prepares the barriers of a ring. A stage is free when all its readers have released it.
DEVICE void init_ring(u64 *full, u64 *free, int stages, int readers) {
  for (int i = 0; i < stages; i++) {
    barrier_init(full + i, 1);
    barrier_init(free + i, readers);
  }
}

// The shared memory of both kernels: two tiles that stay, and stages of two tiles that are streamed, with two numbers
// for each of their rows.
template <int DEPTH, int WIDTH, int STAY, int PASS, int STAGES> struct GradShared {
  static constexpr int DEEP = (DEPTH + 63) / 64 * 64, WIDE = (WIDTH + 63) / 64 * 64;
  static constexpr int STAGE = PASS * (DEEP + WIDE) * 2, NUMBERS = STAY * (DEEP + WIDE) * 2 + STAGES * STAGE;
  static constexpr int BARRIERS = NUMBERS + STAGES * PASS * 8, BYTES = BARRIERS + 8 * (1 + 2 * STAGES);
  u8 *shared;
  DEVICE u8 *deep() const { return shared; }
  DEVICE u8 *wide() const { return shared + STAY * DEEP * 2; }
  DEVICE u8 *deep(int stage) const { return shared + STAY * (DEEP + WIDE) * 2 + stage * STAGE; }
  DEVICE u8 *wide(int stage) const { return deep(stage) + PASS * DEEP * 2; }
  DEVICE float *base(int stage) const { return reinterpret_cast<float *>(shared + NUMBERS) + stage * 2 * PASS; }
  DEVICE float *delta(int stage) const { return base(stage) + PASS; }
  DEVICE u64 *stay() const { return reinterpret_cast<u64 *>(shared + BARRIERS); }
  DEVICE u64 *full(int stage) const { return stay() + 1 + stage; }
  DEVICE u64 *free(int stage) const { return stay() + 1 + STAGES + stage; }
  DEVICE void init(int readers) const {
    if (threadIdx.x == 0) {
      barrier_init(stay(), 1);
      init_ring(full(0), free(0), STAGES, readers);
      barrier_init_done();
    }
    __syncthreads();
  }
};

// The shared memory of kernels that release the two streamed tiles of a step at different times: stages of each, with a number for
// each of its rows. There is one stage more of the first, which is used longer. An element has PARTS numbers, and a tile has the
// first number of all elements, and then the second.
template <int DEPTH, int WIDTH, int STAY, int PASS, int STAGES, int PARTS> struct GradRings {
  static constexpr int DEEP = (DEPTH + 63) / 64 * 64, WIDE = (WIDTH + 63) / 64 * 64, WIDE_STAGES = STAGES - 1;
  static constexpr int ROW = 2 * PARTS, DEEP_TILE = ROW * PASS * DEEP, WIDE_TILE = ROW * PASS * WIDE;
  static constexpr int STAYING = ROW * STAY * (DEEP + WIDE);
  static constexpr int NUMBERS = STAYING + STAGES * DEEP_TILE + WIDE_STAGES * WIDE_TILE;
  static constexpr int BARRIERS = NUMBERS + (STAGES + WIDE_STAGES) * PASS * 4;
  u8 *shared;
  DEVICE u8 *deep() const { return shared; }
  DEVICE u8 *wide() const { return shared + ROW * STAY * DEEP; }
  DEVICE u8 *deep(int stage) const { return shared + STAYING + stage * DEEP_TILE; }
  DEVICE u8 *wide(int stage) const { return shared + STAYING + STAGES * DEEP_TILE + stage * WIDE_TILE; }
  DEVICE float *base(int stage) const { return reinterpret_cast<float *>(shared + NUMBERS) + stage * PASS; }
  DEVICE float *delta(int stage) const { return base(STAGES + stage); }
  DEVICE u64 *stay() const { return reinterpret_cast<u64 *>(shared + BARRIERS); }
  DEVICE u64 *deep_full(int stage) const { return stay() + 1 + stage; }
  DEVICE u64 *deep_free(int stage) const { return stay() + 1 + STAGES + stage; }
  DEVICE u64 *wide_full(int stage) const { return stay() + 1 + 2 * STAGES + stage; }
  DEVICE u64 *wide_free(int stage) const { return stay() + 1 + 2 * STAGES + WIDE_STAGES + stage; }
  DEVICE void init(int readers) const {
    if (threadIdx.x == 0) {
      barrier_init(stay(), 1);
      init_ring(deep_full(0), deep_free(0), STAGES, readers);
      init_ring(wide_full(0), wide_free(0), WIDE_STAGES, readers);
      barrier_init_done();
    }
    __syncthreads();
  }
};

// A thread's bits of its two rows of keys, of which `key` is the first, for the M queries of a tile from `query` on.
template <class P, int M> DEVICE void load_column_bits(u32 (&bits)[2], const u32 *columns, i64 set, int key, int query) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    bits[h] = load_bits<M>(columns + (set * P::KEYS + least(key + 8 * h, P::KEYS - 1)) * P::QUERY_WORDS, query);
  }
}

// A warp's gradients of keys and values pass through so many bytes of shared memory.
template <class P, class DK> constexpr int STAGED_K = 16 * staged_row<DK>(P::DEPTH);
template <class P, class DK, class DV> constexpr int STAGED_KV = STAGED_K<P, DK> + 16 * staged_row<DV>(P::WIDTH);
// Stores them, from row `top` of a head on, where they are wanted, times deep() and wide().
template <class P, class DK, class DV, int A, int B, class Deep, class Wide>
DEVICE void store_key_grads(u8 *staged, DK *dk, DV *dv, int batch, int kv, int top, float (&gk)[A], float (&gv)[B], Deep deep,
                            Wide wide) {
  if (dk) {
    const float factor = deep();
    store_rows<P::DEPTH>(dk + i64(P::DK_BATCH) * batch + i64(P::DK_HEAD) * kv + i64(P::DK_ROW) * top, P::DK_ROW, P::KEYS - top,
                         staged, gk, factor, factor);
  }
  if (dv) {
    const float factor = wide();
    store_rows<P::WIDTH>(dv + i64(P::DV_BATCH) * batch + i64(P::DV_HEAD) * kv + i64(P::DV_ROW) * top, P::DV_ROW, P::KEYS - top,
                         staged + STAGED_K<P, DK>, gv, factor, factor);
  }
  bulk_read_wait();
}

// attention_grad_keys is the whole entry for dk and dv, of 128·(KEY_GROUPS + 1) threads: block i has key tile i.
template <class P, class DK, class DV>
DEVICE void attention_grad_keys(const TensorMap *q, const TensorMap *k, const TensorMap *v, const TensorMap *dout,
                                const float *base, const float *delta, DK *dk, DV *dv,
                                const AttentionMasks<typename P::Mask> &masks, const u32 *most = nullptr) {
  typedef typename P::T T;
  constexpr int M = P::QUERY_TILE, ROWS = 64 * KEY_GROUPS;
  typedef GradShared<P::DEPTH, P::WIDTH, ROWS, M, P::QUERY_STAGES> Shared;
  SHARED;
  const Shared sh{shared};
  sh.init(128 * KEY_GROUPS);  // every lane reads base and delta, so every lane releases them
  const KeyTile<P> t(blockIdx.x, masks);
  constexpr int kv_heads = P::HEADS / P::GROUP;
  const int batch = t.head / kv_heads, kv = t.head % kv_heads;
  Stage<P::QUERY_STAGES> st;
  if (threadIdx.x < 128) {
    fewer_registers<24>();
    if (threadIdx.x != 0 || t.first == t.end) return;
    barrier_expect(sh.stay(), ROWS * (Shared::DEEP + Shared::WIDE) * 2);
    copy_rows<ROWS, Shared::DEEP>(sh.deep(), k, sh.stay(), t.row, kv, batch);
    copy_rows<ROWS, Shared::WIDE>(sh.wide(), v, sh.stay(), t.row, kv, batch);
    for (int head = kv * P::GROUP; head < (kv + 1) * P::GROUP; head++) {
      for (int m = t.first; m < t.end; m++) {
        u64 *full = sh.full(st.at);
        barrier_wait(sh.free(st.at), st.parity ^ 1);
        barrier_expect(full, Shared::STAGE + M * 8);
        copy_rows<M, Shared::DEEP>(sh.deep(st.at), q, full, m * M, head, batch);
        copy_rows<M, Shared::WIDE>(sh.wide(st.at), dout, full, m * M, head, batch);
        const i64 at = i64(batch * P::HEADS + head) * P::PADDED + m * M;
        bulk_load(sh.base(st.at), base + at, M * 4, full);
        bulk_load(sh.delta(st.at), delta + at, M * 4, full);
        st.next();
      }
    }
    return;
  }
  more_registers<240>();
  constexpr float scale = P::SCALE * 1.4426950408889634f;
  const int group = warpgroup() - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int row = t.row + 64 * group + 16 * warp + lane / 4, column = 2 * (lane % 4);
  const u8 *deep = sh.deep() + group * 64 * 128, *wide = sh.wide() + group * 64 * 128;
  float gk[Shared::DEEP / 2] = {}, gv[Shared::WIDE / 2] = {};
  u32 prob[M / 4], ds[M / 4];
  int before = -1;  // the stage whose buffers a product may still read
  if (t.first < t.end) barrier_wait(sh.stay(), 0);
  if constexpr (P::LENGTHS) {
    if (t.first < t.end && t.row + ROWS > t.valid) {
      clear_rows<ROWS, Shared::DEEP, 128 * KEY_GROUPS>(sh.deep(), t.valid - t.row);
      clear_rows<ROWS, Shared::WIDE, 128 * KEY_GROUPS>(sh.wide(), t.valid - t.row);
      shared_fence();
      named_sync(1, 128 * KEY_GROUPS);
    }
  }
  for (int head = 0; head < P::GROUP; head++) {
    for (int m = t.first; m < t.end; m++) {
      float s[M / 2], d[M / 2];
      barrier_wait(sh.full(st.at), st.parity);
      const float *base = sh.base(st.at) + column, *delta = sh.delta(st.at) + column;
#pragma unroll
      for (int i = 0; i < M / 2; i += 2) {
        s[i] = base[i / 4 * 8];
        s[i + 1] = base[i / 4 * 8 + 1];
        d[i] = P::DROPPED ? 0 : delta[i / 4 * 8];
        d[i + 1] = P::DROPPED ? 0 : delta[i / 4 * 8 + 1];
      }
      pin(s);
      pin(d);
      wgmma_fence();
      multiply_rows<T, P::DEPTH, M, ROWS, M>(s, deep, sh.deep(st.at), true);
      wgmma_commit();
      multiply_rows<T, P::WIDTH, M, ROWS, M>(d, wide, sh.wide(st.at), true);
      wgmma_commit();
      u32 bits[2];  // of the mask, and then of dropout
      if constexpr (P::MASKED) {
        const i64 set = batch * P::MASK_BATCH + (kv * P::GROUP + head) * P::MASK_HEAD;
        load_column_bits<P, M>(bits, masks.mask_columns, set, row, m * M);
      }
      wgmma_wait<1>();
      pin(s);
      if (before >= 0) barrier_arrive(sh.free(before));
      before = st.at;
      if (t.masked(m)) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int first = m * M + column, j = row + 8 * h;
          mask_row(s, h, t.lo(j) - first, t.hi(j) - first);
        }
      }
      // A row whose log-sum-exp is not a number has no weights that are.
      if (P::MASKED && !all_bits<M / 4>(bits)) keep_bits(s, bits, [&](int c) { return base[c] - infinity(); });
#pragma unroll
      for (int i = 0; i < M / 2; i++) s[i] = exp2_approx(P::PARTS > 0 ? s[i] * scale + RAISED_GRAD<P> : s[i] * scale);
      pack_operand<T>(prob, s);
      if constexpr (P::DROPPED) {
        load_column_bits<P, M>(bits, masks.kept_columns, i64(batch) * P::HEADS + kv * P::GROUP + head, row, m * M);
        keep_packed(prob, bits);
      }
      wgmma_fence();
      multiply_columns<T, M, Shared::WIDE>(gv, prob, sh.wide(st.at));
      wgmma_commit();
      wgmma_wait<1>();
      pin(d);
      if constexpr (P::DROPPED) {
        keep_bits(d, bits, [](int) { return 0.0f; });
#pragma unroll
        for (int i = 0; i < M / 2; i += 2) {
          d[i] = d[i] * P::KEEP + delta[i / 4 * 8];
          d[i + 1] = d[i + 1] * P::KEEP + delta[i / 4 * 8 + 1];
        }
      }
#pragma unroll
      for (int i = 0; i < M / 2; i++) d[i] *= P::PARTS > 0 ? s[i] * bits_to_float(u32(127 - RAISED_GRAD<P>) << 23) : s[i];
      pack_operand<T>(ds, d);
      wgmma_fence();
      multiply_columns<T, M, Shared::DEEP>(gk, ds, sh.deep(st.at));
      wgmma_commit();
      wgmma_wait<1>();
      pin(gv);
      st.next();
    }
  }
  wgmma_wait<0>();
  pin(gk);
  pin(gv);
  // From here on only the consumers use the shared memory.
  named_sync(1, 128 * KEY_GROUPS);
  static_assert(4 * KEY_GROUPS * STAGED_KV<P, DK, DV> <= Shared::BARRIERS, "");
  u8 *staged = shared + (4 * group + warp) * STAGED_KV<P, DK, DV>;
  store_key_grads<P>(staged, dk, dv, batch, kv, t.row + 64 * group + 16 * warp, gk, gv, [&] { return deep_factor<P>(most); },
                     [&] { return wide_factor<P>(most); });
}

// attention_grad_queries is the whole entry for dq, of 128·(WARPGROUPS + 1) threads: block i has query tile i.
template <class P, class DQ>
DEVICE void attention_grad_queries(const TensorMap *q, const TensorMap *k, const TensorMap *v, const TensorMap *dout,
                                   const float *base, const float *delta, DQ *dq,
                                   const AttentionMasks<typename P::Mask> &masks, const u32 *most = nullptr) {
  typedef typename P::T T;
  constexpr int N = P::KEY_TILE, ROWS = 64 * P::WARPGROUPS;
  typedef GradShared<P::DEPTH, P::WIDTH, ROWS, N, P::STAGES> Shared;
  SHARED;
  const Shared sh{shared};
  sh.init(4 * P::WARPGROUPS);
  const AttentionTile<P> t(blockIdx.x, masks);
  const int batch = t.head / P::HEADS, head = t.head % P::HEADS;
  Stage<P::STAGES> st;
  if (threadIdx.x < 128) {
    fewer_registers<P::WARPGROUPS == 2 ? 24 : 32>();
    if (threadIdx.x != 0 || t.first == t.end) return;
    const int kv = head / P::GROUP;
    barrier_expect(sh.stay(), ROWS * (Shared::DEEP + Shared::WIDE) * 2);
    copy_rows<ROWS, Shared::DEEP>(sh.deep(), q, sh.stay(), t.row, head, batch);
    copy_rows<ROWS, Shared::WIDE>(sh.wide(), dout, sh.stay(), t.row, head, batch);
    for (int n = t.first; n < t.end; n++) {
      u64 *full = sh.full(st.at);
      barrier_wait(sh.free(st.at), st.parity ^ 1);
      barrier_expect(full, Shared::STAGE);
      copy_rows<N, Shared::DEEP>(sh.deep(st.at), k, full, n * N, kv, batch);
      copy_rows<N, Shared::WIDE>(sh.wide(st.at), v, full, n * N, kv, batch);
      st.next();
    }
    return;
  }
  more_registers<P::WARPGROUPS == 2 ? 240 : 160>();
  constexpr float scale = P::SCALE * 1.4426950408889634f;
  const int group = warpgroup() - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int row = t.row + 64 * group + 16 * warp + lane / 4, column = 2 * (lane % 4);
  const u8 *deep = sh.deep() + group * 64 * 128, *wide = sh.wide() + group * 64 * 128;
  float top[2], sub[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const i64 at = i64(t.head) * P::PADDED + row + 8 * h;
    const bool there = row + 8 * h < P::PADDED;
    top[h] = there ? base[at] * scale : -infinity();
    sub[h] = there ? delta[at] : 0;
  }
  float g[Shared::DEEP / 2] = {};
  u32 ds[N / 4];
  int before = -1;  // the stage whose buffers a product may still read
  if (t.first < t.end) barrier_wait(sh.stay(), 0);
  for (int n = t.first; n < t.end; n++) {
    float s[N / 2], d[N / 2];
    barrier_wait(sh.full(st.at), st.parity);
    if (P::LENGTHS && (n + 1) * N > t.valid) {
      clear_rows<N, Shared::DEEP, 128 * P::WARPGROUPS>(sh.deep(st.at), t.valid - n * N);
      clear_rows<N, Shared::WIDE, 128 * P::WARPGROUPS>(sh.wide(st.at), t.valid - n * N);
      shared_fence();
      named_sync(1, 128 * P::WARPGROUPS);
    }
    pin(s);
    pin(d);
    wgmma_fence();
    multiply_rows<T, P::DEPTH, N, ROWS, N>(s, deep, sh.deep(st.at));
    wgmma_commit();
    multiply_rows<T, P::WIDTH, N, ROWS, N>(d, wide, sh.wide(st.at));
    wgmma_commit();
    u32 mask[2], kept[2];
    if constexpr (P::MASKED) load_row_bits<P, false, N>(mask, masks, t.head, row, n * N);
    if constexpr (P::DROPPED) load_row_bits<P, true, N>(kept, masks, t.head, row, n * N);
    wgmma_wait<1>();
    pin(s);
    if (before >= 0 && lane == 0) barrier_arrive(sh.free(before));
    before = st.at;
    if (t.masked(n)) mask_scores<P>(s, t, row, n * N + column);
    if (P::MASKED && !all_bits<N / 4>(mask)) keep_bits(s, mask, [](int) { return -infinity(); });
#pragma unroll
    for (int i = 0; i < N / 2; i++) s[i] = exp2_approx(s[i] * scale + top[i / 2 % 2]);
    wgmma_wait<0>();
    pin(d);
    if constexpr (P::DROPPED) keep_bits(d, kept, [](int) { return 0.0f; });
#pragma unroll
    for (int i = 0; i < N / 2; i++) d[i] = s[i] * (d[i] * P::KEEP + sub[i / 2 % 2]);
    pack_operand<T>(ds, d);
    wgmma_fence();
    multiply_columns<T, N, Shared::DEEP>(g, ds, sh.deep(st.at));
    wgmma_commit();
    st.next();
  }
  wgmma_wait<0>();
  pin(g);
  named_sync(1, 128 * P::WARPGROUPS);  // from here on only the consumers use the shared memory
  constexpr int staged = 16 * staged_row<DQ>(P::DEPTH);
  static_assert(4 * P::WARPGROUPS * staged <= Shared::BARRIERS, "");
  const int first = t.row + 64 * group + 16 * warp;
  const float factor = deep_factor<P>(most);
  store_rows<P::DEPTH>(dq + i64(P::DQ_BATCH) * batch + i64(P::DQ_HEAD) * head + i64(P::DQ_ROW) * first, P::DQ_ROW,
                       P::QUERIES - first, shared + (4 * group + warp) * staged, g, factor, factor);
  bulk_read_wait();
}
