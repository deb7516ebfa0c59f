// Attention for chips with tensor memory, of 16-bit operands with sums in f32, after FlashAttention-4 and CUTLASS's kernels for
// sm_100a. See attention_hopper.cuh for Problem and for most of what is used here.
//
// A block takes tiles of 256 queries of one head, as two halves. A producer warp copies queries, keys and values as on Hopper; one
// thread starts all products; and each half has a warpgroup for its softmax. Scores, weights and sums are in tensor memory, where a
// lane is a query of either half:
//
//	columns       0       64      128     192     256           384           512
//	              | scores 0      | scores 1      | sums 0      | sums 1      |
//	              | weights 0     | weights 1
//
// With keys and values K1, V1, K2, V2, … in the order in which they come, these run beside each other:
//
//	products      Q·K1   Q·K1   | P·V1 Q·K2     | P·V1 Q·K2     | P·V2 Q·K3     | P·V2 Q·K3     …
//	              half 0 half 1 | half 0        | half 1        | half 0        | half 1
//	softmax 0            S1 → P1 .              S2 → P2         .               S3 → P3
//	softmax 1                   S1 → P1         .               S2 → P2         .
//
// The weights P are an operand from tensor memory. They take the place of their scores, and the next scores of the half take
// theirs: products are done in the order in which they start. (The PTX ISA promises that of products of the same sums alone; CUTLASS
// relies on it in the same place.) So when scores are there, the half's sums have all weights before them, and its warpgroup may
// multiply the sums in tensor memory. It does so where the greatest score of a query has grown by more than softmax_step bears.

// What a block has in shared memory: as on Hopper, but nothing of the result. Further barriers tell that the products of a half are
// done, and that its weights are there; and there is where tensor memory has been taken.
template <class P> struct TensorAttention : AttentionShared<P, 0> {
  typedef AttentionShared<P, 0> Base;
  static constexpr int MORE = Base::BYTES, ADDRESS = MORE + 4 * 8;
  static constexpr int HALF = 128, COLUMNS = 512;
  DEVICE u64 *done(int half) const { return reinterpret_cast<u64 *>(this->base + MORE) + half; }
  DEVICE u64 *weighed(int half) const { return done(2 + half); }
  DEVICE u32 *address() const { return reinterpret_cast<u32 *>(this->base + ADDRESS); }
  // Columns of a half, from the first that was taken.
  static constexpr DEVICE int scores(int half) { return half * P::KEY_TILE; }
  static constexpr DEVICE int sums(int half) { return 2 * P::KEY_TILE + half * Base::WIDTH; }
};

// attention_multiply is what the thread that starts products does.
template <class P> DEVICE void attention_multiply(u32 columns, const AttentionMasks<typename P::Mask> &masks) {
  typedef TensorAttention<P> Shared;
  typedef typename P::T T;
  constexpr int N = P::KEY_TILE, HALF = Shared::HALF;
  SHARED;
  const Shared s{{shared}};
  Stage<P::STAGES> ks, vs;
  Stage<2> next;
  u32 q_parity = 0, weighed_parity = 0;
  for (;;) {
    barrier_wait(s.next_full(next.at), next.parity);
    const int tile = *s.next(next.at);
    barrier_arrive(s.next_free(next.at));
    next.next();
    if (tile >= AttentionTile<P>::ALL) break;
    const AttentionTile<P> t(tile, masks);
    if (t.first == t.end) continue;
    barrier_wait(s.q_full(), q_parity);
    q_parity ^= 1;
    // Of each half the product with the values of tile n, and after it the one with the keys of the next tile.
    for (int n = t.end; n >= t.first; n--) {
      const bool keys = n > t.first, values = n < t.end;
      if (keys) barrier_wait(s.k_full(ks.at), ks.parity);
      if (values) barrier_wait(s.v_full(vs.at), vs.parity);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 scores = columns + Shared::scores(half);
        if (values) {
          barrier_wait(s.weighed(half), weighed_parity);
          tensor_after();
          tensor_columns<T, N, Shared::WIDTH>(columns + Shared::sums(half), scores, s.v(vs.at), n < t.end - 1);
        }
        if (keys) tensor_rows<T, P::DEPTH, N, Shared::ROWS>(scores, s.q() + half * HALF * 128, s.k(ks.at));
        if (half == 1) {  // Before the last arrival, for which others wait: a block ends when all have come.
          if (n == t.first + 1) tensor_commit(s.q_free());
          if (keys) tensor_commit(s.k_free(ks.at));
          if (values) tensor_commit(s.v_free(vs.at));
        }
        tensor_commit(s.done(half));
      }
      if (keys) ks.next();
      if (values) {
        vs.next();
        weighed_parity ^= 1;
      }
    }
  }
}

// attention_weigh is what the warpgroup of a half does. Each warp has 32 queries, 16 after the other 16: of these a thread has two
// rows in all tensor memory, as in the accumulators on Hopper.
template <class P>
DEVICE void attention_weigh(u32 columns, typename P::Out *out, float *lse, const AttentionMasks<typename P::Mask> &masks) {
  typedef TensorAttention<P> Shared;
  constexpr int N = P::KEY_TILE;
  SHARED;
  const Shared s{{shared}};
  const int half = warpgroup() - 1, lane = threadIdx.x % 32, first_lane = threadIdx.x / 32 % 4 * 32;
  const int in_row = Shared::HALF * half + first_lane + lane / 4, column = 2 * (lane % 4);  // of the warp's first 16
  const u32 mine = columns + u32(first_lane << 16);
  const u32 scores = mine + Shared::scores(half), sums = mine + Shared::sums(half);
  constexpr u32 SIXTEEN = 16 << 16;  // lanes
  const auto arrive = [&](u64 *bar) {
    __syncwarp();
    if (lane == 0) barrier_arrive(bar);
  };
  Stage<P::STAGES> vs;
  Stage<2> next;
  u32 parity = 0;  // of done
  for (;;) {
    barrier_wait(s.next_full(next.at), next.parity);
    const int tile = __shfl_sync(~0u, *s.next(next.at), 0);
    arrive(s.next_free(next.at));
    next.next();
    if (tile >= AttentionTile<P>::ALL) break;
    const AttentionTile<P> t(tile, masks);
    RowState r[2] = {{{-infinity(), -infinity()}, {0, 0}}, {{-infinity(), -infinity()}, {0, 0}}};
    for (int n = t.end - 1; n >= t.first; n--) {
      barrier_wait(s.done(half), parity);
      parity ^= 1;
      tensor_after();
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = t.row + in_row + 16 * i, key = n * N + column;
        float x[N / 2], fade[2];
        u32 weights[N / 4], bits[2];
        tensor_load(x, scores + i * SIXTEEN);
        if constexpr (P::ADDED) add_mask<P>(x, masks, t.head, row, key);
        if (t.masked(n)) mask_scores<P>(x, t, row, key);
        if constexpr (P::MASKED) {
          load_row_bits<P, false, N>(bits, masks, t.head, row, n * N);
          if (!all_bits<N / 4>(bits)) keep_bits(x, bits, [](int) { return -infinity(); });
        }
        const bool fades = softmax_step<P>(r[i], x, fade);
        pack_operand<typename P::T>(weights, x);
        if constexpr (P::DROPPED) {
          load_row_bits<P, true, N>(bits, masks, t.head, row, n * N);
          keep_packed(weights, bits);
        }
        tensor_store(scores + i * SIXTEEN, weights);
        if (n < t.end - 1 && __any_sync(~0u, fades)) {
          float o[Shared::WIDTH / 2];
          tensor_load(o, sums + i * SIXTEEN);
#pragma unroll
          for (int j = 0; j < Shared::WIDTH / 2; j++) o[j] *= fade[j / 2 % 2];
          tensor_store(sums + i * SIXTEEN, o);
        }
      }
      if constexpr (P::LENGTHS) {
        if (n == t.end - 1 && t.end * N > t.valid) {
          barrier_wait(s.v_full(vs.at), vs.parity);
          clear_rows<N, Shared::WIDTH, 256>(s.v(vs.at), t.valid - n * N);
          shared_fence();
          named_sync(1, 256);
        }
        vs.next();
      }
      tensor_before();
      arrive(s.weighed(half));
    }
    if (t.first < t.end) {
      barrier_wait(s.done(half), parity);
      parity ^= 1;
      tensor_after();
    }
    const int batch = t.head / P::HEADS, head = t.head % P::HEADS;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float o[Shared::WIDTH / 2] = {};
      if (t.first < t.end) tensor_load(o, sums + i * SIXTEEN);
      const float sum[2] = {row_sum(r[i].sum[0]), row_sum(r[i].sum[1])};
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int row = t.row + in_row + 16 * i + 8 * h;
        if (row >= P::QUERIES) continue;
        store_row<P::WIDTH>(out + i64(P::OUT_BATCH) * batch + i64(P::OUT_HEAD) * head + i64(P::OUT_ROW) * row + column, h, o,
                            sum[h] == 0 ? 0.0f : P::KEEP / sum[h]);
      }
      store_lse<P>(lse, batch, head, t.row + in_row + 16 * i, r[i], sum);
    }
  }
}

// attention_blackwell is the whole entry, of 384 threads.
template <class P>
DEVICE void attention_blackwell(const TensorMap *q, const TensorMap *k, const TensorMap *v, int *counter, typename P::Out *out,
                                float *lse, const AttentionMasks<typename P::Mask> &masks) {
  typedef TensorAttention<P> Shared;
  static_assert(Shared::ROWS == 2 * Shared::HALF && P::KEY_TILE == 128 && P::PARTS == 0, "two halves");
  static_assert(Shared::sums(2) <= Shared::COLUMNS, "columns of tensor memory");
  SHARED;
  const Shared s{{shared}};
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    constexpr int weighers = 8;  // warps
    barrier_init(s.q_full(), 1);
    barrier_init(s.q_free(), 1);
    for (int i = 0; i < 2; i++) {
      barrier_init(s.next_full(i), 1);
      barrier_init(s.next_free(i), weighers + 1);
      barrier_init(s.done(i), 1);
      barrier_init(s.weighed(i), weighers / 2);
    }
    for (int i = 0; i < P::STAGES; i++) {
      barrier_init(s.k_full(i), 1);
      barrier_init(s.k_free(i), 1);
      barrier_init(s.v_full(i), 1);
      barrier_init(s.v_free(i), 1);
    }
    barrier_init_done();
  }
  const u32 columns = tensor_open<Shared::COLUMNS>(s.address());
  if (warp < 4) {
    fewer_registers<72>();
    if (threadIdx.x == 0) attention_produce<P, Shared>(q, k, v, counter, masks);
    if (threadIdx.x == 32) attention_multiply<P>(columns, masks);
  } else {
    more_registers<216>();
    attention_weigh<P>(columns, out, lse, masks);
  }
  tensor_close<Shared::COLUMNS>(columns);
}
