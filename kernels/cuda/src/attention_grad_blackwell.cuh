// The gradient of an attention for chips with tensor memory, of 16-bit operands with sums in f32: the results are the same bits
// each time, because every sum belongs to one block. There are two kernels that compute what those of attention_grad_hopper.cuh
// do. See there for Problem, whose tiles all have 128 rows here, and for attention_grad_rows, which comes before them. The order
// of products and of elementwise work follows FlashAttention-4's backward pass.
//
// A block has 128 rows that stay: keys and values in attention_grad_tensor_keys, queries and dout in
// attention_grad_tensor_queries. The other two operands pass by in tiles. A thread copies, another one starts all products, and
// two warpgroups do the elementwise work. In tensor memory a lane is a row that stays. Scores, and the gradients of weights, which
// are dout·vᵀ, have a column for each row that passes by:
//
//	columns       0         128       256               256 + DEEP              512
//	              | scores  | grads   | dk or dq, DEEP  | dv of keys, WIDE      |
//	              | weights | ds      |
//
// DEEP and WIDE are 64 or 128. Weights, and the gradients of scores ds, are operands from tensor memory of 64 columns, with two
// numbers of 16 bits in each. They take the place of what they are made of. The next scores and grads take theirs, as in
// attention_blackwell.cuh: products are done in the order in which they start. Scores are called S here, grads G, weights W. With
// keys that stay, these run beside each other:
//
//	products      S1    | G1    | W1·dout S2      | ds1·q G2        | W2·dout S3      | ds2·q G3        …
//	elementwise         | S1 → W1                 | G1 → ds1        | S2 → W2         | G2 → ds2
//
// With queries that stay, weights are no operand. They stay in registers, and the next scores come as soon as scores have been
// read:
//
//	products      S1    | G1 S2           | ds1·k G2 S3             | ds2·k G3 S4             …
//	elementwise         | S1 → W1, G1 → ds1       | S2 → W2, G2 → ds2       | …

// What a block has in shared memory: rings, and barriers. They tell that scores are there, and grads; that scores have been read,
// and weights are there if they are an operand; and that ds are there. Behind them is where tensor memory has been taken.
template <class P, bool KEYS>
struct TensorGrad : GradRings<P::DEPTH, P::WIDTH, 128, 128, KEYS ? P::QUERY_STAGES : P::STAGES, 1> {
  typedef GradRings<P::DEPTH, P::WIDTH, 128, 128, KEYS ? P::QUERY_STAGES : P::STAGES, 1> Base;
  static constexpr int TILE = 128, DEEP_STAGES = Base::WIDE_STAGES + 1;
  static constexpr int MORE = Base::BARRIERS + 8 * (1 + 2 * (DEEP_STAGES + Base::WIDE_STAGES)), ADDRESS = MORE + 4 * 8;
  static constexpr int SCORES = 0, GRADS = TILE, DEEP_SUMS = 2 * TILE, WIDE_SUMS = DEEP_SUMS + Base::DEEP, COLUMNS = 512;
  static_assert(WIDE_SUMS + (KEYS ? Base::WIDE : 0) <= COLUMNS, "columns of tensor memory");
  DEVICE u64 *scored() const { return reinterpret_cast<u64 *>(this->shared + MORE); }
  DEVICE u64 *graded() const { return scored() + 1; }
  DEVICE u64 *weighed() const { return scored() + 2; }
  DEVICE u64 *ready() const { return scored() + 3; }
  DEVICE u32 *address() const { return reinterpret_cast<u32 *>(this->shared + ADDRESS); }
  // Prepares all, and returns the address of the first column.
  DEVICE u32 open() const {
    if (threadIdx.x == 0) {
      constexpr int warps = 8;
      barrier_init(scored(), 1);
      barrier_init(graded(), 1);
      barrier_init(weighed(), warps);
      barrier_init(ready(), warps);
    }
    this->init(1);
    return tensor_open<COLUMNS>(address());
  }
};

// A position in both rings.
template <class Shared> struct GradStages {
  Stage<Shared::DEEP_STAGES> deep;
  Stage<Shared::WIDE_STAGES> wide;
  DEVICE void next() {
    deep.next();
    wide.next();
  }
};

// Copies the tiles that stay.
template <class Shared>
DEVICE void grad_stay(const Shared &s, const TensorMap *deep, const TensorMap *wide, int row, int head, int batch) {
  barrier_expect(s.stay(), Shared::STAYING);
  copy_rows<Shared::TILE, Shared::DEEP>(s.deep(), deep, s.stay(), row, head, batch);
  copy_rows<Shared::TILE, Shared::WIDE>(s.wide(), wide, s.stay(), row, head, batch);
}

// Copies the tiles of a step; with KEYS, base and delta are the numbers of their rows. The stage of the first tile is free: a step
// releases both of its tiles at once, and there is a stage more than for the second, which the step before has waited for.
template <bool KEYS, class Shared>
DEVICE void grad_pass(const Shared &s, GradStages<Shared> &st, const TensorMap *deep, const TensorMap *wide, const float *base,
                      const float *delta, int row, int head, int batch) {
  constexpr int NUMBERS = KEYS ? Shared::TILE * 4 : 0;
  u64 *full = s.deep_full(st.deep.at);
  barrier_expect(full, Shared::DEEP_TILE + NUMBERS);
  copy_rows<Shared::TILE, Shared::DEEP>(s.deep(st.deep.at), deep, full, row, head, batch);
  if constexpr (KEYS) bulk_load(s.base(st.deep.at), base, NUMBERS, full);
  full = s.wide_full(st.wide.at);
  barrier_wait(s.wide_free(st.wide.at), st.wide.parity ^ 1);
  barrier_expect(full, Shared::WIDE_TILE + NUMBERS);
  copy_rows<Shared::TILE, Shared::WIDE>(s.wide(st.wide.at), wide, full, row, head, batch);
  if constexpr (KEYS) bulk_load(s.delta(st.wide.at), delta, NUMBERS, full);
  st.next();
}

// grad_products is what the thread that starts products does. A round has the second products of a step, and the first ones of the
// next step.
template <class P, bool KEYS> DEVICE void grad_products(const TensorGrad<P, KEYS> &s, u32 columns, int steps) {
  typedef TensorGrad<P, KEYS> Shared;
  typedef typename P::T T;
  constexpr int TILE = Shared::TILE;
  GradStages<Shared> before, st;
  u32 parity = 0;  // of weighed and ready
  barrier_wait(s.stay(), 0);
  for (int i = 0; i <= steps; i++) {
    if (i > 0) {
      barrier_wait(s.weighed(), parity);
      tensor_after();
      if constexpr (KEYS) {
        tensor_columns<T, TILE, Shared::WIDE>(columns + Shared::WIDE_SUMS, columns + Shared::SCORES, s.wide(before.wide.at), i > 1);
      }
    }
    if (i < steps) {
      barrier_wait(s.deep_full(st.deep.at), st.deep.parity);
      tensor_rows<T, P::DEPTH, TILE, TILE>(columns + Shared::SCORES, s.deep(), s.deep(st.deep.at));
      tensor_commit(s.scored());
    }
    if (i > 0) {
      barrier_wait(s.ready(), parity);
      parity ^= 1;
      tensor_after();
      tensor_columns<T, TILE, Shared::DEEP>(columns + Shared::DEEP_SUMS, columns + Shared::GRADS, s.deep(before.deep.at), i > 1);
      tensor_commit(s.wide_free(before.wide.at));
      before.next();
    }
    if (i < steps) {
      barrier_wait(s.wide_full(st.wide.at), st.wide.parity);
      tensor_rows<T, P::WIDTH, TILE, TILE>(columns + Shared::GRADS, s.wide(), s.wide(st.wide.at));
      tensor_commit(s.graded());
      st.next();
    }
  }
  tensor_commit(s.scored());  // all products are done
}

// A GradWarp is a warp that does elementwise work. It has 16 lanes of tensor memory, of which a thread has two, as it has two rows
// of the accumulators on Hopper. Two warps, one of each warpgroup, share the 32 lanes that both can access.
template <class P, bool KEYS> struct GradWarp {
  typedef TensorGrad<P, KEYS> Shared;
  const Shared &s;
  const int number = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
  const int top = number % 4 * 32 + number / 4 * 16, row = top + lane / 4, column = 2 * (lane % 4);
  const u32 mine;
  GradStages<Shared> st;
  u32 parity = 0;  // of scored and graded

  DEVICE GradWarp(const Shared &s, u32 columns) : s(s), mine(columns + u32(top << 16)) {}
  // Waits until a product into tensor memory is done.
  DEVICE void wait(u64 *bar) const {
    barrier_wait(bar, parity);
    tensor_after();
  }
  // Tells that the warp has read, or written, tensor memory.
  DEVICE void arrive(u64 *bar) const {
    tensor_before();
    __syncwarp();
    if (lane == 0) barrier_arrive(bar);
  }
  DEVICE void next() {
    st.next();
    parity ^= 1;
  }
};

// attention_grad_tensor_keys is the whole entry for dk and dv, of 384 threads: block i has key tile i.
template <class P, class DK, class DV>
DEVICE void attention_grad_tensor_keys(const TensorMap *q, const TensorMap *k, const TensorMap *v, const TensorMap *dout,
                                       const float *base, const float *delta, DK *dk, DV *dv,
                                       const AttentionMasks<typename P::Mask> &masks) {
  typedef TensorGrad<P, true> Shared;
  typedef typename P::T T;
  constexpr int M = P::QUERY_TILE, kv_heads = P::HEADS / P::GROUP;
  static_assert(M == Shared::TILE && KeyTile<P>::ROWS == Shared::TILE, "tiles");
  SHARED;
  const Shared s{{shared}};
  const u32 columns = s.open();
  const KeyTile<P> t(blockIdx.x, masks);
  const int batch = t.head / kv_heads, kv = t.head % kv_heads, steps = P::GROUP * (t.end - t.first);
  if (threadIdx.x < 128) {
    fewer_registers<72>();
    if (threadIdx.x == 0 && steps > 0) {
      GradStages<Shared> st;
      grad_stay(s, k, v, t.row, kv, batch);
      for (int head = kv * P::GROUP; head < (kv + 1) * P::GROUP; head++) {
        for (int m = t.first; m < t.end; m++) {
          const i64 at = i64(batch * P::HEADS + head) * P::PADDED + m * M;
          grad_pass<true>(s, st, q, dout, base + at, delta + at, m * M, head, batch);
        }
      }
    }
    if (threadIdx.x == 32 && steps > 0) grad_products<P, true>(s, columns, steps);
  } else {
    more_registers<216>();
    constexpr float scale = P::SCALE * 1.4426950408889634f;
    GradWarp<P, true> w(s, columns);
    const int row = t.row + w.row;
    for (int head = 0; head < P::GROUP; head++) {
      for (int m = t.first; m < t.end; m++) {
        float x[M / 2], d[M / 2];
        u32 operand[M / 4], mask[2], kept[2];
        if constexpr (P::MASKED) {
          const i64 set = batch * P::MASK_BATCH + (kv * P::GROUP + head) * P::MASK_HEAD;
          load_column_bits<P, M>(mask, masks.mask_columns, set, row, m * M);
        }
        if constexpr (P::DROPPED) {
          load_column_bits<P, M>(kept, masks.kept_columns, i64(batch) * P::HEADS + kv * P::GROUP + head, row, m * M);
        }
        barrier_wait(s.deep_full(w.st.deep.at), w.st.deep.parity);
        const float *base = s.base(w.st.deep.at) + w.column;
        w.wait(s.scored());
        tensor_load(x, w.mine + Shared::SCORES);
#pragma unroll
        for (int i = 0; i < M / 2; i += 4) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const float b = base[2 * i + e] * scale;
            x[i + e] = x[i + e] * scale + b;
            x[i + 2 + e] = x[i + 2 + e] * scale + b;
          }
        }
        if (t.masked(m)) {
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const int first = m * M + w.column, j = row + 8 * h;
            mask_row(x, h, t.lo(j) - first, t.hi(j) - first);
          }
        }
        // A row whose log-sum-exp is not a number has no weights that are.
        if (P::MASKED && !all_bits<M / 4>(mask)) keep_bits(x, mask, [&](int c) { return base[c] - infinity(); });
#pragma unroll
        for (int i = 0; i < M / 2; i++) x[i] = exp2_approx(x[i]);
        pack_operand<T>(operand, x);
        if constexpr (P::DROPPED) keep_packed(operand, kept);
        tensor_store(w.mine + Shared::SCORES, operand);
        w.arrive(s.weighed());
        barrier_wait(s.wide_full(w.st.wide.at), w.st.wide.parity);
        const float *delta = s.delta(w.st.wide.at) + w.column;
        w.wait(s.graded());
        tensor_load(d, w.mine + Shared::GRADS);
        if constexpr (P::DROPPED) keep_bits(d, kept, [](int) { return 0.0f; });
#pragma unroll
        for (int i = 0; i < M / 2; i++) d[i] = x[i] * (d[i] * P::KEEP + delta[i / 4 * 8 + i % 2]);
        pack_operand<T>(operand, d);
        tensor_store(w.mine + Shared::GRADS, operand);
        w.arrive(s.ready());
        w.next();
      }
    }
    float gk[Shared::DEEP / 2] = {}, gv[Shared::WIDE / 2] = {};
    if (steps > 0) {
      w.wait(s.scored());
      tensor_load(gk, w.mine + Shared::DEEP_SUMS);
      tensor_load(gv, w.mine + Shared::WIDE_SUMS);
    }
    if constexpr (P::LENGTHS) {  // what values that do not count have, which may be NaN, is in gk
#pragma unroll
      for (int h = 0; h < 2; h++) mask_row(gk, h, 0, row + 8 * h < t.valid ? Shared::DEEP : 0, 0.0f);
    }
    static_assert(8 * STAGED_KV<P, DK, DV> <= Shared::BARRIERS, "");
    store_key_grads<P>(shared + w.number * STAGED_KV<P, DK, DV>, dk, dv, batch, kv, t.row + w.top, gk, gv, [] { return P::SCALE; },
                       [] { return P::KEEP; });
  }
  tensor_close<Shared::COLUMNS>(columns);
}

// attention_grad_tensor_queries is the whole entry for dq, of 384 threads: block i has query tile i.
template <class P, class DQ>
DEVICE void attention_grad_tensor_queries(const TensorMap *q, const TensorMap *k, const TensorMap *v, const TensorMap *dout,
                                          const float *base, const float *delta, DQ *dq,
                                          const AttentionMasks<typename P::Mask> &masks) {
  typedef TensorGrad<P, false> Shared;
  typedef typename P::T T;
  constexpr int N = P::KEY_TILE;
  static_assert(N == Shared::TILE && AttentionTile<P>::ROWS == Shared::TILE, "tiles");
  SHARED;
  const Shared s{{shared}};
  const u32 columns = s.open();
  const AttentionTile<P> t(blockIdx.x, masks);
  const int batch = t.head / P::HEADS, head = t.head % P::HEADS, steps = t.end - t.first;
  if (threadIdx.x < 128) {
    fewer_registers<72>();
    if (threadIdx.x == 0 && steps > 0) {
      GradStages<Shared> st;
      grad_stay(s, q, dout, t.row, head, batch);
      for (int n = t.first; n < t.end; n++) {
        grad_pass<false>(s, st, k, v, nullptr, nullptr, n * N, head / P::GROUP, batch);
      }
    }
    if (threadIdx.x == 32 && steps > 0) grad_products<P, false>(s, columns, steps);
  } else {
    more_registers<216>();
    constexpr float scale = P::SCALE * 1.4426950408889634f;
    GradWarp<P, false> w(s, columns);
    const int row = t.row + w.row;
    float top[2], sub[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const i64 at = i64(t.head) * P::PADDED + row + 8 * h;
      top[h] = base[at] * scale;
      sub[h] = delta[at];
    }
    for (int n = t.first; n < t.end; n++) {
      float x[N / 2], d[N / 2];
      u32 operand[N / 4], mask[2], kept[2];
      if constexpr (P::MASKED) load_row_bits<P, false, N>(mask, masks, t.head, row, n * N);
      if constexpr (P::DROPPED) load_row_bits<P, true, N>(kept, masks, t.head, row, n * N);
      w.wait(s.scored());
      tensor_load(x, w.mine + Shared::SCORES);
      w.arrive(s.weighed());
      if (t.masked(n)) mask_scores<P>(x, t, row, n * N + w.column);
      if (P::MASKED && !all_bits<N / 4>(mask)) keep_bits(x, mask, [](int) { return -infinity(); });
#pragma unroll
      for (int i = 0; i < N / 2; i++) x[i] = exp2_approx(x[i] * scale + top[i / 2 % 2]);
      const bool padded = P::LENGTHS && (n + 1) * N > t.valid;
      if (padded) {
        barrier_wait(s.deep_full(w.st.deep.at), w.st.deep.parity);
        clear_rows<N, Shared::DEEP, 256>(s.deep(w.st.deep.at), t.valid - n * N);
        shared_fence();
      }
      w.wait(s.graded());
      tensor_load(d, w.mine + Shared::GRADS);
      if constexpr (P::DROPPED) keep_bits(d, kept, [](int) { return 0.0f; });
#pragma unroll
      for (int i = 0; i < N / 2; i++) d[i] = x[i] * (d[i] * P::KEEP + sub[i / 2 % 2]);
      if (padded) {
#pragma unroll
        for (int h = 0; h < 2; h++) mask_row(d, h, 0, t.valid - n * N - w.column, 0.0f);
      }
      pack_operand<T>(operand, d);
      tensor_store(w.mine + Shared::GRADS, operand);
      w.arrive(s.ready());
      w.next();
    }
    float g[Shared::DEEP / 2] = {};
    if (steps > 0) {
      w.wait(s.scored());
      tensor_load(g, w.mine + Shared::DEEP_SUMS);
    }
    constexpr int staged = 16 * staged_row<DQ>(P::DEPTH);
    static_assert(8 * staged <= Shared::BARRIERS, "");
    const int first = t.row + w.top;
    store_rows<P::DEPTH>(dq + i64(P::DQ_BATCH) * batch + i64(P::DQ_HEAD) * head + i64(P::DQ_ROW) * first, P::DQ_ROW,
                         P::QUERIES - first, shared + w.number * staged, g, P::SCALE, P::SCALE);
    bulk_read_wait();
  }
  tensor_close<Shared::COLUMNS>(columns);
}
