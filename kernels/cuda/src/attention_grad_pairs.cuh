// The gradient of an attention of f32 for Hopper, whose operands are sums of a high and a low number of f16, as in
// attention_split.cuh: attention_grad_hopper.cuh with three products of f16 for each. Results are the same bits each time, too.
//
// Numbers are multiplied by powers of two, so that two numbers of f16 hold them to 2^-22 of each or 2^-39 of the largest: queries,
// keys and values by one for all; dout by one for each row; weights and gradients of scores by one for each row of a tile, as they
// are made. `wide` is set as in attention_split.cuh if numbers are not finite; if 64 neighbours among queries, keys or values are
// smaller than 2^-20 of the largest, or a row of dout than 2^-40, without being 0. So an element is off by at most 2^-19 of the
// largest of its neighbours or of its row. The bound for f32 is 1e-5, above 2^-17, of the terms.
//
// Tensor cores truncate when they add. So they add the products of one tile only, the smaller ones first, and threads add the sums.
//
// `most` has the bits of the largest of values, dout, queries and keys.

DEVICE float power_of_two(int exponent) { return bits_to_float(u32(127 + exponent) << 23); }

// The exponent of the power of two that makes numbers up to the one of these bits fill the range of f16, but for a bit. Those of
// queries and keys together, and of their reciprocals, have to be numbers of f32.
DEVICE int pair_exponent(u32 largest) {
  const int exponent = least(141 - int(largest >> 23), 60);
  return exponent > -60 ? exponent : -60;
}
// The same for a row of dout.
DEVICE int row_exponent(u32 largest) { return least(141 - int(largest >> 23), 100); }

// attention_grad_pair_split is the whole entry that makes copies of queries, keys and values.
template <class P, class Args>
DEVICE void attention_grad_pair_split(const Args &p, f16 *q, f16 *k, f16 *v, const u32 *most, u32 *wide) {
  int i = blockIdx.x * 256 + threadIdx.x;
  const auto piece = operand_piece<P>(p, i, q, k, v, [&](int operand, int, int) {
    return splat<8>(power_of_two(pair_exponent(most[operand == 2 ? 0 : operand + 2])));
  });
  u32 largest = 0;
#pragma unroll
  for (int e = 0; e < 8; e++) {
    const u32 bits = float_to_bits(piece.x[e] * piece.factor[e]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  largest = largest_of<8>(largest);
  const bool even = largest == 0 || bits_to_float(largest) >= 0x1p-6f;
  if (!piece.template split<2>() || !even) atomicOr(wide, 1u);
}

// attention_grad_pair_rows is attention_grad_rows for the kernels of this file, but for the copy of dout, which has two parts. −Δ is
// multiplied as dout·vᵀ is. base is what is added to scores, in powers of two: weights of rows whose dout is multiplied by more than
// the others' are less by as much.
template <class P, class DOut>
DEVICE void attention_grad_pair_rows(const typename P::Out *out, const float *lse, const DOut *dout, const float *dlse, f16 *parts,
                                     float *base, float *delta, const u32 *most, u32 *wide) {
  constexpr i64 NEXT = i64(P::BATCH * P::HEADS) * P::QUERIES * P::WIDTH;
  const int all = row_exponent(most[1]);
  int mine = all;
  bool fits = true;
  grad_rows<P>(out, lse, dout, dlse, [&](i64 at, const Vec<float, 8> &y) {
    u32 largest = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const u32 bits = float_to_bits(y[e]) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    largest = largest_of<ROW_LANES<P>>(largest);
    if (largest > 0) {
      mine = row_exponent(largest);
      fits = mine - all <= 40 && bits_to_float(largest) * power_of_two(mine) >= 0x1p-6f;
    }
    if (at >= 0) fits &= split_piece<2>(parts + at, NEXT, y, splat<8>(power_of_two(mine)));
  }, [&](int i, float top, float sum) {
    sum = sum * power_of_two(mine) * power_of_two(pair_exponent(most[0]));
    fits &= fabsf(sum) < 0x1p80f && top < infinity();
    base[i] = -top * 1.4426950408889634f - (mine - all);
    if (top == -infinity()) base[i] = top;
    delta[i] = -sum;
  });
  if (!fits) atomicOr(wide, 1u);
}

// What products of queries and keys are multiplied by, to become exponents of 2.
template <class P> DEVICE float exponent_scale(const u32 *most) {
  return P::SCALE * 1.4426950408889634f * power_of_two(-pair_exponent(most[2]) - pair_exponent(most[3]));
}

// Divides sums by about half of 2^exponent, and returns what divides them by the rest: f32 may not have the power itself.
template <int R> DEVICE float divide_half(float (&g)[R], int exponent) {
  const float half = power_of_two(-exponent / 2);
#pragma unroll
  for (int i = 0; i < R; i++) g[i] *= half;
  return power_of_two(-exponent - -exponent / 2);
}

// Copies both parts of rows of a head, which the tensor map counts through all batches.
template <int ROWS, int COLUMNS> DEVICE void copy_pairs(u8 *to, const TensorMap *map, u64 *bar, int row, int head) {
#pragma unroll
  for (int i = 0; i < 2; i++) copy_rows<ROWS, COLUMNS>(to + i * ROWS * COLUMNS * 2, map, bar, row, head, i);
}

// An address in shared memory, as here(); if NEAR, one register is enough for it before this place.
template <bool NEAR> DEVICE const u8 *address_here(const u8 *p) {
  if constexpr (!NEAR) return reinterpret_cast<const u8 *>(here(u64(p)));
  SHARED;
  return shared + int(here(u32(p - shared)));
}

// d = a·bᵀ as multiply_rows, of pairs.
template <class T, int DEPTH, int N, int A_ROWS, int B_ROWS, bool NEAR = false, int R>
DEVICE void multiply_row_pairs(float (&d)[R], const u8 *a, const u8 *b) {
  constexpr int CHUNKS = (DEPTH + 63) / 64;
  a = address_here<NEAR>(a);
  b = address_here<NEAR>(b);
  multiply_rows<T, DEPTH, N, A_ROWS, B_ROWS>(d, a + A_ROWS * CHUNKS * 128, b);
  multiply_rows<T, DEPTH, N, A_ROWS, B_ROWS>(d, a, b + B_ROWS * CHUNKS * 128, true);
  multiply_rows<T, DEPTH, N, A_ROWS, B_ROWS>(d, a, b, true);
}
// d = a·b as multiply_columns, of pairs; the low numbers of b are `apart` bytes behind the high ones.
template <class T, int K, int N, int R, int A>
DEVICE void multiply_column_pairs(float (&d)[R], const u32 (&high)[A], const u32 (&low)[A], const u8 *b, int apart) {
  multiply_columns<T, K, N>(d, low, b, false);
  multiply_columns<T, K, N>(d, high, b + apart);
  multiply_columns<T, K, N>(d, high, b);
}

// pair_operand makes accumulators operands, each row multiplied so that its largest number fills the range of f16. `back` is what a
// thread's two rows of the product are multiplied by then.
template <int R> DEVICE void pair_operand(u32 (&high)[R / 2], u32 (&low)[R / 2], float (&s)[R], float (&back)[2]) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < R; i += 4) most = fmaxf(most, fmaxf(fabsf(s[i + 2 * h]), fabsf(s[i + 2 * h + 1])));
    const float by = value_scale(float_to_bits(row_max(most)));
    back[h] = bits_to_float((254u << 23) - float_to_bits(by));
#pragma unroll
    for (int i = 0; i < R; i += 4) s[i + 2 * h] *= by, s[i + 2 * h + 1] *= by;
  }
  split_operand(high, low, s);
}

// g += back·a·b of pairs, for b [K, 2·R] in shared memory, 64 columns at a time: there are no registers for more.
template <class T, int K, int R, int A>
DEVICE void add_products(float (&g)[R], const u32 (&high)[A], const u32 (&low)[A], const u8 *b, const float (&back)[2]) {
#pragma unroll
  for (int c = 0; c < R; c += 32) {
    float part[32];
    pin(part);
    wgmma_fence();
    multiply_column_pairs<T, K, 64>(part, high, low, b + c * K * 4, R * K * 4);
    wgmma_commit();
    wgmma_wait<0>();
    pin(part);
#pragma unroll
    for (int i = 0; i < 32; i++) g[c + i] += part[i] * back[i / 2 % 2];
  }
}

// attention_grad_pair_keys is attention_grad_keys of pairs.
template <class P, class DK, class DV>
DEVICE void attention_grad_pair_keys(const TensorMap *q, const TensorMap *k, const TensorMap *v, const TensorMap *dout,
                                     const float *base, const float *delta, DK *dk, DV *dv,
                                     const AttentionMasks<typename P::Mask> &masks, const u32 *most) {
  typedef typename P::T T;
  constexpr int M = P::QUERY_TILE, ROWS = 64 * KEY_GROUPS;
  typedef GradRings<P::DEPTH, P::WIDTH, ROWS, M, P::QUERY_STAGES, 2> Shared;
  SHARED;
  const Shared sh{shared};
  sh.init(128 * KEY_GROUPS);
  const KeyTile<P> t(blockIdx.x, masks);
  constexpr int kv_heads = P::HEADS / P::GROUP;
  Stage<P::QUERY_STAGES> st;
  Stage<Shared::WIDE_STAGES> wide_st;
  if (threadIdx.x < 128) {
    fewer_registers<24>();
    if (threadIdx.x != 0 || t.first == t.end) return;
    barrier_expect(sh.stay(), Shared::STAYING);
    copy_pairs<ROWS, Shared::DEEP>(sh.deep(), k, sh.stay(), t.row, t.head);
    copy_pairs<ROWS, Shared::WIDE>(sh.wide(), v, sh.stay(), t.row, t.head);
    for (int head = t.first_head(), last = head + P::GROUP; head < last; head++) {
      for (int m = t.first; m < t.end; m++) {
        const i64 at = i64(head) * P::PADDED + m * M;
        u64 *full = sh.deep_full(st.at);
        barrier_wait(sh.deep_free(st.at), st.parity ^ 1);
        barrier_expect(full, Shared::DEEP_TILE + M * 4);
        copy_pairs<M, Shared::DEEP>(sh.deep(st.at), q, full, m * M, head);
        bulk_load(sh.base(st.at), base + at, M * 4, full);
        st.next();
        full = sh.wide_full(wide_st.at);
        barrier_wait(sh.wide_free(wide_st.at), wide_st.parity ^ 1);
        barrier_expect(full, Shared::WIDE_TILE + M * 4);
        copy_pairs<M, Shared::WIDE>(sh.wide(wide_st.at), dout, full, m * M, head);
        bulk_load(sh.delta(wide_st.at), delta + at, M * 4, full);
        wide_st.next();
      }
    }
    return;
  }
  more_registers<240>();
  const float scale = exponent_scale<P>(most);
  const int group = warpgroup() - 1, column = threadIdx.x % 4 * 2;
  // Where the most registers are in use, the warpgroup's keys and values are found again for each tile.
  constexpr bool NEAR = M == 64 && Shared::DEEP == 128;
  const auto mine = [&](const u8 *rows) {
    return rows + (NEAR ? __shfl_sync(~0u, int(here(threadIdx.x) / 128), 0) - 1 : group) * (64 * 128);
  };
  // The thread's first key, and the first of its warp, are computed again where they are used: that takes no registers before.
  const auto first_key = [&] { return t.row + int(here(threadIdx.x) - 128) / 32 * 16; };
  const auto my_key = [&] { return first_key() + int(here(threadIdx.x)) % 32 / 4; };
  float gk[Shared::DEEP / 2] = {}, gv[Shared::WIDE / 2] = {};
  if (t.first < t.end) barrier_wait(sh.stay(), 0);
  for (int head = 0; head < P::GROUP; head++) {
    for (int m = t.first; m < t.end; m++) {
      float s[M / 2], d[M / 2];
      barrier_wait(sh.deep_full(st.at), st.parity);
      pin(s);
      wgmma_fence();
      multiply_row_pairs<T, P::DEPTH, M, ROWS, M, NEAR>(s, mine(sh.deep()), sh.deep(st.at));
      wgmma_commit();
      barrier_wait(sh.wide_full(wide_st.at), wide_st.parity);
      pin(d);
      wgmma_fence();
      multiply_row_pairs<T, P::WIDTH, M, ROWS, M, NEAR>(d, mine(sh.wide()), sh.wide(wide_st.at));
      wgmma_commit();
      u32 bits[2];  // of the mask, and then of dropout
      if constexpr (P::MASKED) {
        const int batch = t.head / kv_heads, of = t.head % kv_heads * P::GROUP + head;
        load_column_bits<P, M>(bits, masks.mask_columns, batch * P::MASK_BATCH + of * P::MASK_HEAD, my_key(), m * M);
      }
      const float *base = sh.base(st.at) + column, *delta = sh.delta(wide_st.at) + column;
      wgmma_wait<1>();
      pin(s);
#pragma unroll
      for (int i = 0; i < M / 2; i++) s[i] = s[i] * scale + base[i / 4 * 8 + i % 2];
      if (t.masked(m)) {
        const int row = my_key();
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int first = m * M + column, j = row + 8 * h;
          mask_row(s, h, t.lo(j) - first, t.hi(j) - first);
        }
      }
      if (P::MASKED && !all_bits<M / 4>(bits)) keep_bits(s, bits, [](int) { return -infinity(); });
      if constexpr (P::DROPPED) load_column_bits<P, M>(bits, masks.kept_columns, t.first_head() + head, my_key(), m * M);
#pragma unroll
      for (int i = 0; i < M / 2; i++) s[i] = exp2_approx(s[i]);
      wgmma_wait<0>();
      pin(d);
      if constexpr (P::DROPPED) keep_bits(d, bits, [](int) { return 0.0f; });
#pragma unroll
      for (int i = 0; i < M / 2; i++) d[i] = s[i] * (d[i] * P::KEEP + delta[i / 4 * 8 + i % 2]);
      if constexpr (P::DROPPED) keep_bits(s, bits, [](int) { return 0.0f; });
      u32 high[M / 4], low[M / 4], ds_high[M / 4], ds_low[M / 4];
      float back[2], ds_back[2];
      pair_operand(high, low, s, back);
      pair_operand(ds_high, ds_low, d, ds_back);
      add_products<T, M>(gv, high, low, sh.wide(int(here(wide_st.at))), back);
      barrier_arrive(sh.wide_free(wide_st.at));
      wide_st.next();
      add_products<T, M>(gk, ds_high, ds_low, sh.deep(int(here(st.at))), ds_back);
      barrier_arrive(sh.deep_free(st.at));
      st.next();
    }
  }
  // From here on only the consumers use the shared memory.
  named_sync(1, 128 * KEY_GROUPS);
  static_assert(4 * KEY_GROUPS * STAGED_KV<P, DK, DV> <= Shared::BARRIERS, "");
  const int of = int(here(t.head)), batch = of / kv_heads, kv = of % kv_heads;
  const int top = first_key(), dout_exponent = row_exponent(most[1]);
  u8 *staged = shared + (top - t.row) / 16 * STAGED_KV<P, DK, DV>;
  store_key_grads<P>(staged, dk, dv, batch, kv, top, gk, gv, [&] {
    return P::SCALE * divide_half(gk, dout_exponent + pair_exponent(most[0]) + pair_exponent(most[2]));
  }, [&] { return P::KEEP * divide_half(gv, dout_exponent); });
}

// attention_grad_pair_queries is attention_grad_queries of pairs.
template <class P, class DQ>
DEVICE void attention_grad_pair_queries(const TensorMap *q, const TensorMap *k, const TensorMap *v, const TensorMap *dout,
                                        const float *base, const float *delta, DQ *dq,
                                        const AttentionMasks<typename P::Mask> &masks, const u32 *most) {
  typedef typename P::T T;
  constexpr int N = P::KEY_TILE, ROWS = 64 * P::WARPGROUPS;
  typedef GradRings<P::DEPTH, P::WIDTH, ROWS, N, P::STAGES, 2> Shared;
  SHARED;
  const Shared sh{shared};
  sh.init(4 * P::WARPGROUPS);
  const AttentionTile<P> t(blockIdx.x, masks);
  Stage<P::STAGES> st;
  Stage<Shared::WIDE_STAGES> wide_st;
  if (threadIdx.x < 128) {
    fewer_registers<24>();
    if (threadIdx.x != 0 || t.first == t.end) return;
    const int kv = t.head / P::GROUP;
    barrier_expect(sh.stay(), Shared::STAYING);
    copy_pairs<ROWS, Shared::DEEP>(sh.deep(), q, sh.stay(), t.row, t.head);
    copy_pairs<ROWS, Shared::WIDE>(sh.wide(), dout, sh.stay(), t.row, t.head);
    for (int n = t.first; n < t.end; n++) {
      barrier_wait(sh.deep_free(st.at), st.parity ^ 1);
      barrier_expect(sh.deep_full(st.at), Shared::DEEP_TILE);
      copy_pairs<N, Shared::DEEP>(sh.deep(st.at), k, sh.deep_full(st.at), n * N, kv);
      st.next();
      barrier_wait(sh.wide_free(wide_st.at), wide_st.parity ^ 1);
      barrier_expect(sh.wide_full(wide_st.at), Shared::WIDE_TILE);
      copy_pairs<N, Shared::WIDE>(sh.wide(wide_st.at), v, sh.wide_full(wide_st.at), n * N, kv);
      wide_st.next();
    }
    return;
  }
  more_registers<240>();
  const float scale = exponent_scale<P>(most);
  const int group = warpgroup() - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int row = t.row + 64 * group + 16 * warp + lane / 4, column = 2 * (lane % 4);
  const u8 *deep = sh.deep() + group * 64 * 128, *wide = sh.wide() + group * 64 * 128;
  const auto release = [&](u64 *bar) {
    if (lane == 0) barrier_arrive(bar);
  };
  float top[2], sub[2], back[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const i64 at = i64(t.head) * P::PADDED + row + 8 * h;
    const bool there = row + 8 * h < P::PADDED;
    top[h] = there ? base[at] : -infinity();
    sub[h] = there ? delta[at] : 0;
  }
  float g[Shared::DEEP / 2] = {}, part[Shared::DEEP / 2], s[N / 2], d[N / 2];
  u32 high[N / 4], low[N / 4];
  const auto start_scores = [&] {
    barrier_wait(sh.deep_full(st.at), st.parity);
    pin(s);
    wgmma_fence();
    multiply_row_pairs<T, P::DEPTH, N, ROWS, N>(s, deep, sh.deep(st.at));
    wgmma_commit();
  };
  const auto start_product = [&](int stage) {
    pin(part);
    wgmma_fence();
    multiply_column_pairs<T, N, Shared::DEEP>(part, high, low, sh.deep(stage), N * Shared::DEEP * 2);
    wgmma_commit();
  };
  const auto end_product = [&](int stage) {
    pin(part);
    release(sh.deep_free(stage));
#pragma unroll
    for (int i = 0; i < Shared::DEEP / 2; i++) g[i] += part[i] * back[i / 2 % 2];
  };
  const auto end_scores = [&](int n) {  // makes them gradients
    barrier_wait(sh.wide_full(wide_st.at), wide_st.parity);
    pin(d);
    wgmma_fence();
    multiply_row_pairs<T, P::WIDTH, N, ROWS, N>(d, wide, sh.wide(wide_st.at));
    wgmma_commit();
    u32 mask[2], kept[2];
    if constexpr (P::MASKED) load_row_bits<P, false, N>(mask, masks, t.head, row, n * N);
    if constexpr (P::DROPPED) load_row_bits<P, true, N>(kept, masks, t.head, row, n * N);
    wgmma_wait<1>();
    pin(s);
#pragma unroll
    for (int i = 0; i < N / 2; i++) s[i] = s[i] * scale + top[i / 2 % 2];
    if (t.masked(n)) mask_scores<P>(s, t, row, n * N + column);
    if (P::MASKED && !all_bits<N / 4>(mask)) keep_bits(s, mask, [](int) { return -infinity(); });
#pragma unroll
    for (int i = 0; i < N / 2; i++) s[i] = exp2_approx(s[i]);
    wgmma_wait<0>();
    pin(d);
    release(sh.wide_free(wide_st.at));
    wide_st.next();
    if constexpr (P::DROPPED) keep_bits(d, kept, [](int) { return 0.0f; });
#pragma unroll
    for (int i = 0; i < N / 2; i++) d[i] = s[i] * (d[i] * P::KEEP + sub[i / 2 % 2]);
    pair_operand(high, low, d, back);
  };
  if (t.first < t.end) {
    barrier_wait(sh.stay(), 0);
    start_scores();
    end_scores(t.first);
    for (int n = t.first + 1; n < t.end; n++) {
      const int before = st.at;
      st.next();
      start_product(before);
      start_scores();
      wgmma_wait<1>();
      end_product(before);
      end_scores(n);
    }
    start_product(st.at);
    wgmma_wait<0>();
    end_product(st.at);
  }
  named_sync(1, 128 * P::WARPGROUPS);  // from here on only the consumers use the shared memory
  constexpr int staged = 16 * staged_row<DQ>(P::DEPTH);
  static_assert(4 * P::WARPGROUPS * staged <= Shared::BARRIERS, "");
  const int first = t.row + 64 * group + 16 * warp, batch = t.head / P::HEADS, head = t.head % P::HEADS;
  const float factor = P::SCALE * divide_half(g, row_exponent(most[1]) + pair_exponent(most[0]) + pair_exponent(most[3]));
  store_rows<P::DEPTH>(dq + i64(P::DQ_BATCH) * batch + i64(P::DQ_HEAD) * head + i64(P::DQ_ROW) * first, P::DQ_ROW,
                       P::QUERIES - first, shared + (4 * group + warp) * staged, g, factor, factor);
  bulk_read_wait();
}
