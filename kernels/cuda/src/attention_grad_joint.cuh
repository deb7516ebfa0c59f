// The whole gradient of an attention for Hopper in one kernel, of five products: rows of 65 to 128 elements of 16 bits. A block
// has 128 keys and values and iterates over the tiles of 64 queries, from the last to the first, while warpgroups of three kinds
// work at the same time:
//	of the first, a thread copies tiles of queries and of dout into shared memory, and two keep the order of sums;
//	the second computes scores and dout·vᵀ, and from them the weights and their gradients ds, and stores both in shared memory;
//	the third and the fourth, with 64 keys and half of the columns of dq each, multiply: dv += wᵀ·dout, dk += dsᵀ·q, ds·k.
// So elementwise work and products overlap without any order between warpgroups but that of the tiles.
//
// dk and dv stay in registers. What a block has for a tile of dq is added to a sum in f32 in device memory, in the order of the
// keys, so that results are the same bits each time: a flag for each tile says how many tiles of keys have been added, and a block
// waits until that is all before its own (compare FlashAttention-3's deterministic mode, Shah et al., arXiv 2407.08608). Blocks
// take their tiles of keys from a counter, in that order, so that what a block waits for is under way or done.
// attention_grad_round makes dq of the sums.
//
// Problem P has the constants of attention_grad_hopper.cuh.

// The shared memory of attention_grad_joint. What a tile of queries by keys has is stored as two chunks of 64 keys.
template <class P> struct JointShared {
  static constexpr int DEEP = (P::DEPTH + 63) / 64 * 64, WIDE = (P::WIDTH + 63) / 64 * 64, M = P::QUERY_TILE;
  static constexpr int ROWS = 64 * KEY_GROUPS, STAGES = P::QUERY_STAGES, RING = 2, CHUNK = M * 128, TILE = KEY_GROUPS * CHUNK;
  static constexpr int V = ROWS * DEEP * 2, PASS = V + ROWS * WIDE * 2, STAGE = M * (DEEP + WIDE) * 2;
  static constexpr int WEIGHTS = PASS + STAGES * STAGE, BARRIERS = WEIGHTS + 2 * RING * TILE;
  static constexpr int ROW_NUMBERS = BARRIERS + 8 * (6 + 2 * STAGES + 7 * RING), NUMBERS = ROW_NUMBERS + STAGES * M * 8;
  static constexpr int BYTES = NUMBERS + 8;
  u8 *shared;
  DEVICE u8 *k() const { return shared; }
  DEVICE u8 *v() const { return shared + V; }
  DEVICE u8 *q(int stage) const { return shared + PASS + stage * STAGE; }
  DEVICE u8 *dout(int stage) const { return q(stage) + M * DEEP * 2; }
  DEVICE u8 *weights(int i) const { return shared + WEIGHTS + i * TILE; }
  DEVICE u8 *ds(int i) const { return weights(RING + i); }
  DEVICE u64 *stay() const { return reinterpret_cast<u64 *>(shared + BARRIERS); }
  DEVICE u64 *stay_free() const { return stay() + 1; }
  DEVICE u64 *next_full(int i) const { return stay() + 2 + i; }
  DEVICE u64 *next_free(int i) const { return stay() + 4 + i; }
  DEVICE u64 *full(int stage) const { return stay() + 6 + stage; }
  DEVICE u64 *free(int stage) const { return full(STAGES + stage); }
  DEVICE u64 *weights_full(int i) const { return full(2 * STAGES + i); }
  DEVICE u64 *weights_free(int i) const { return weights_full(RING + i); }
  DEVICE u64 *ds_full(int i) const { return weights_full(2 * RING + i); }
  DEVICE u64 *ds_free(int i) const { return weights_full(3 * RING + i); }
  DEVICE u64 *turn(int i) const { return weights_full(4 * RING + i); }
  DEVICE u64 *added(int i) const { return weights_full(5 * RING + i); }
  DEVICE u64 *told(int i) const { return weights_full(6 * RING + i); }
  DEVICE float *base(int stage) const { return reinterpret_cast<float *>(shared + ROW_NUMBERS) + stage * 2 * M; }
  DEVICE float *delta(int stage) const { return base(stage) + M; }
  DEVICE int *next(int i) const { return reinterpret_cast<int *>(shared + NUMBERS) + i; }
};

// Where the sums of dq are: of each head's tiles of 64 queries, eight parts, a warp's each, of 8·32 float4; and their flags.
struct JointSums {
  float4 *sums;
  int *flags;  // the number of the tile of keys after the last that was added; 0: none
};

// d += aᵀ·b for a [K, 64] and b [K, N] in shared memory.
template <class T, int K, int N, int R> DEVICE void multiply_turned(float (&d)[R], const u8 *a, const u8 *b) {
  const u64 da = here(wgmma_operand(a, K * 128, 1024)), db = here(wgmma_operand(b, K * 128, 1024));
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    Wgmma<T, N>::template multiply<true, true>(d, da + (k * 128 >> 4), db + (k * 128 >> 4), 1);
  }
}

// Stores COLUMNS columns, from number `from` on, of a warpgroup's accumulators as rows of 16 bits, in the swizzle and in chunks of
// 64 columns. Elements whose bit is 0 are stored as 0, if KEPT.
template <class T, int COLUMNS, int CHUNK, bool KEPT, int R>
DEVICE void store_columns(u8 *to, const float (&s)[R], int from, const u32 (&bits)[2]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const int turn = int(here(lane / 4));  // addresses would take registers from one call to the next
  u8 *const mine = to + row * 128 + lane % 4 * 4;
#pragma unroll
  for (int c = from; c < from + COLUMNS; c += 8) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 x = pack2(T{}, s[c / 2 + 2 * h], s[c / 2 + 2 * h + 1]);
      if constexpr (KEPT) x &= kept_halves(bits[h], c / 8);
      *reinterpret_cast<u32 *>(mine + c / 64 * CHUNK + h * 8 * 128 + ((c / 8 % 8 ^ turn) << 4)) = x;
    }
  }
}

// The consumers' side of the tiles of keys that the producer takes.
template <class P> struct JointTiles {
  const JointShared<P> &sh;
  Stage<2> next;
  u32 parity = 0;  // of the keys and values
  int number;

  // Whether there is another tile; its number. A warp calls it, or one thread alone.
  template <bool ALONE = false> DEVICE bool take() {
    barrier_wait(sh.next_full(next.at), next.parity);
    number = *sh.next(next.at);
    if constexpr (!ALONE) {
      number = __shfl_sync(~0u, number, 0);
      __syncwarp();
    }
    if (ALONE || threadIdx.x % 32 == 0) barrier_arrive(sh.next_free(next.at));
    next.next();
    return number < KeyTile<P>::ALL;
  }
  // Waits for the keys and values, and clears those that do not count.
  DEVICE void wait(const KeyTile<P> &t) {
    typedef JointShared<P> Shared;
    barrier_wait(sh.stay(), parity);
    parity ^= 1;
    if constexpr (P::LENGTHS) {
      if (t.row + Shared::ROWS > t.valid) {
        clear_rows<Shared::ROWS, Shared::DEEP, 384>(sh.k(), t.valid - t.row);
        clear_rows<Shared::ROWS, Shared::WIDE, 384>(sh.v(), t.valid - t.row);
        shared_fence();
        named_sync(1, 384);
      }
    }
  }
  DEVICE void release() const {
    if (threadIdx.x % 32 == 0) barrier_arrive(sh.stay_free());
  }
};

// Stores a thread's parts of two rows of accumulators, times a factor; the first row is that of `to`, and only rows below `there`
// are stored.
template <int WIDTH, class T, int R> DEVICE void store_parts(T *to, i64 stride, int there, const float (&d)[R], float factor) {
  const int lane = threadIdx.x % 32, in = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const bool mine = lane / 4 + 8 * h < there;
    T *const row = to + stride * (lane / 4 + 8 * h);
    if constexpr (sizeof(T) == 2) {
      // Four threads exchange what they have of four vectors of 16 bytes.
#pragma unroll
      for (int i = 0; i < R / 4; i += 4) {
        u32 w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) w[j] = pack2(T{}, d[4 * (i + j) + 2 * h] * factor, d[4 * (i + j) + 2 * h + 1] * factor);
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
#pragma unroll
          for (int j = 0; j < 4; j++) {
            if (j & step) continue;
            const bool upper = in & step;
            const u32 got = __shfl_xor_sync(~0u, upper ? w[j] : w[j + step], step);
            (upper ? w[j] : w[j + step]) = got;
          }
        }
        if (mine && 8 * (i + in) < WIDTH) *reinterpret_cast<uint4 *>(row + 8 * (i + in)) = uint4{w[0], w[1], w[2], w[3]};
      }
    } else if (mine) {
      store_row<WIDTH>(row + 2 * in, h, d, factor);
    }
  }
}

// Takes tiles of keys from the counter, and copies.
template <class P>
DEVICE void joint_produce(const JointShared<P> &sh, const TensorMap *q, const TensorMap *k, const TensorMap *v,
                          const TensorMap *dout, const float *base, const float *delta, int *counter,
                          const AttentionMasks<typename P::Mask> &masks) {
  typedef JointShared<P> Shared;
  Stage<Shared::STAGES> st;
  Stage<2> next;
  u32 parity = 1;  // of the keys and values
  for (;;) {
    const int number = atomicAdd(counter, 1);
    barrier_wait(sh.next_free(next.at), next.parity ^ 1);
    *sh.next(next.at) = number;
    barrier_arrive(sh.next_full(next.at));
    next.next();
    if (number >= KeyTile<P>::ALL) break;
    const KeyTile<P> t(number, masks);
    if (t.first == t.end) continue;
    const int batch = t.head / (P::HEADS / P::GROUP), kv = t.head % (P::HEADS / P::GROUP);
    barrier_wait(sh.stay_free(), parity);
    parity ^= 1;
    barrier_expect(sh.stay(), Shared::PASS);
    copy_rows<Shared::ROWS, Shared::DEEP>(sh.k(), k, sh.stay(), t.row, kv, batch);
    copy_rows<Shared::ROWS, Shared::WIDE>(sh.v(), v, sh.stay(), t.row, kv, batch);
    for (int head = kv * P::GROUP; head < (kv + 1) * P::GROUP; head++) {
      for (int m = t.end - 1; m >= t.first; m--) {
        u64 *full = sh.full(st.at);
        barrier_wait(sh.free(st.at), st.parity ^ 1);
        barrier_expect(full, Shared::STAGE + Shared::M * 8);
        copy_rows<Shared::M, Shared::DEEP>(sh.q(st.at), q, full, m * Shared::M, head, batch);
        copy_rows<Shared::M, Shared::WIDE>(sh.dout(st.at), dout, full, m * Shared::M, head, batch);
        const i64 at = i64(batch * P::HEADS + head) * P::PADDED + m * Shared::M;
        bulk_load(sh.base(st.at), base + at, Shared::M * 4, full);
        bulk_load(sh.delta(st.at), delta + at, Shared::M * 4, full);
        st.next();
      }
    }
  }
}

// Two threads keep the order of sums, so that the warps that add need not wait for device memory: one waits for the flag of each
// tile of queries, and lets these add; the other (TELL) sets the flag when they have added.
template <class P, bool TELL>
DEVICE void joint_order(const JointShared<P> &sh, int *flags, const AttentionMasks<typename P::Mask> &masks) {
  constexpr int TILES = P::PADDED / JointShared<P>::M;
  Stage<JointShared<P>::RING> ring;
  JointTiles<P> tiles{sh};
  while (tiles.template take<true>()) {
    const KeyTile<P> t(tiles.number, masks);
    const int number = t.row / JointShared<P>::ROWS, before = t.before(), first = t.first_head();
    for (int head = first; head < first + P::GROUP; head++) {
      for (int m = t.end - 1; m >= t.first; m--) {
        int *const flag = flags + head * TILES + m;
        if constexpr (TELL) {
          barrier_wait(sh.added(ring.at), ring.parity);
          store_release(flag, number + 1);
          barrier_arrive(sh.told(ring.at));
        } else {
          barrier_wait(sh.told(ring.at), ring.parity ^ 1);
          if (m < before) {
            while (load_acquire(flag) != number) {}
          }
          barrier_arrive(sh.turn(ring.at));
        }
        ring.next();
      }
    }
  }
}

// Computes the weights and ds of all tiles.
template <class P>
DEVICE void joint_scores(const JointShared<P> &sh, const AttentionMasks<typename P::Mask> &masks) {
  typedef JointShared<P> Shared;
  typedef typename P::T T;
  constexpr int M = Shared::M, ROWS = Shared::ROWS;
  constexpr float scale = P::SCALE * 1.4426950408889634f;
  const int lane = threadIdx.x % 32, in_row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  Stage<Shared::STAGES> st;
  Stage<Shared::RING> ring;
  JointTiles<P> tiles{sh};
  while (tiles.take()) {
    const KeyTile<P> t(tiles.number, masks);
    if (t.first == t.end) continue;
    tiles.wait(t);
    const int column = t.row + 2 * (lane % 4);
    const auto hi = [&](int i) {  // query i attends to the keys [lo, hi)
      if (i >= P::QUERIES) return 0;
      if (P::CAUSAL) return least(t.valid, i + t.shift() + 1);
      return P::WINDOW > 0 ? least(t.valid, i + t.shift() + P::WINDOW) : t.valid;
    };
    const auto lo = [&](int i) { return P::WINDOW > 0 ? i + t.shift() - P::WINDOW + 1 : 0; };
    // Bits of a tile of queries. They are loaded as soon as those of the tile before are done with.
    u32 mask[2], kept[2] = {};
    const auto load_mask = [&](int head, int m) {
      if constexpr (P::MASKED) load_row_bits<P, false, ROWS>(mask, masks, head, m * M + in_row, t.row);
    };
    const auto load_kept = [&](int head, int m) {
      if constexpr (P::DROPPED) load_row_bits<P, true, ROWS>(kept, masks, head, m * M + in_row, t.row);
    };
    load_mask(t.first_head(), t.end - 1);
    load_kept(t.first_head(), t.end - 1);
    for (int head = t.first_head(), last = head + P::GROUP; head < last; head++) {
      for (int m = t.end - 1; m >= t.first; m--) {
        const int next_head = m > t.first ? head : least(head + 1, last - 1), next = (m > t.first ? m : t.end) - 1;
        // The gradients of the weights come in parts, which take fewer registers; bits of dropout take some, too.
        constexpr int PART = !P::DROPPED ? 64 : P::MASKED ? 16 : 32;
        float s[ROWS / 2], d[PART / 2];
        barrier_wait(sh.full(st.at), st.parity);
        const u8 *dout = sh.dout(st.at);
        pin(s);
        pin(d);
        wgmma_fence();
        multiply_rows<T, P::DEPTH, ROWS, M, ROWS>(s, sh.q(st.at), sh.k());
        wgmma_commit();
        multiply_rows<T, P::WIDTH, PART, M, ROWS>(d, dout, sh.v());
        wgmma_commit();
        float top[2], sub[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
          top[h] = sh.base(st.at)[in_row + 8 * h] * scale;
          sub[h] = sh.delta(st.at)[in_row + 8 * h];
        }
        wgmma_wait<1>();
        pin(s);
        if (t.masked(m) || t.row + ROWS > P::KEYS) {
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const int row = m * M + in_row + 8 * h;
            mask_row(s, h, lo(row) - column, hi(row) - column);
          }
        }
        if constexpr (P::MASKED) keep_bits(s, mask, [](int) { return -infinity(); });
        load_mask(next_head, next);
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) s[i] = exp2_approx(s[i] * scale + top[i / 2 % 2]);
        barrier_wait(sh.weights_free(ring.at), ring.parity ^ 1);
        store_columns<T, ROWS, Shared::CHUNK, P::DROPPED>(sh.weights(ring.at), s, 0, kept);
        shared_fence();
        barrier_arrive(sh.weights_full(ring.at));
        barrier_wait(sh.ds_free(ring.at), ring.parity ^ 1);
#pragma unroll
        for (int c = 0; c < ROWS; c += PART) {
          wgmma_wait<0>();
          pin(d);
          if constexpr (P::DROPPED) {
            const u32 part[2] = {kept[0] >> c / 4, kept[1] >> c / 4};
            keep_bits(d, part, [](int) { return 0.0f; });
          }
#pragma unroll
          for (int i = 0; i < PART / 2; i++) s[c / 2 + i] *= d[i] * P::KEEP + sub[i / 2 % 2];
          if (c + PART < ROWS) {
            pin(d);
            wgmma_fence();
            multiply_rows<T, P::WIDTH, PART, M, ROWS>(d, dout, sh.v() + (c + PART) * 128);
            wgmma_commit();
          } else {
            barrier_arrive(sh.free(st.at));  // by all, as all have read numbers of the stage
          }
          store_columns<T, PART, Shared::CHUNK, false>(sh.ds(ring.at), s, c, kept);
        }
        load_kept(next_head, next);
        shared_fence();
        barrier_arrive(sh.ds_full(ring.at));
        st.next();
        ring.next();
      }
    }
    tiles.release();
  }
}

// Multiplies the weights and ds of all tiles; group is 0 or 1.
template <class P, class DK, class DV>
DEVICE void joint_products(const JointShared<P> &sh, int group, const JointSums &to, DK *dk, DV *dv,
                           const AttentionMasks<typename P::Mask> &masks) {
  typedef JointShared<P> Shared;
  typedef typename P::T T;
  constexpr int M = Shared::M, ROWS = Shared::ROWS, TILES = P::PADDED / M;
  static_assert(Shared::DEEP == 64 * KEY_GROUPS && KEY_GROUPS == 2 && M == 64, "a warpgroup has 64 columns of dq");
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32 - 8;
  Stage<Shared::STAGES> st;
  Stage<Shared::RING> ring;
  JointTiles<P> tiles{sh};
  while (tiles.take()) {
    const KeyTile<P> t(tiles.number, masks);
    const int before = t.before(), span = t.end - t.first, base = t.first_head() * TILES;
    const auto release = [&](u64 *bar) {
      if (lane == 0) barrier_arrive(bar);
    };
    // What is left to do says where: the tile of queries, and its number among all heads'.
    const auto tile_at = [&](int left) { return t.first + (P::GROUP > 1 ? (left - 1) % span : left - 1); };
    const auto place_at = [&](int left) {
      return ((P::GROUP > 1 ? base + (P::GROUP - 1 - (left - 1) / span) * TILES : base) + tile_at(left)) * 8 + part;
    };
    float gk[Shared::DEEP / 2] = {}, gv[Shared::WIDE / 2] = {}, gq[16];
    const auto add = [&](int left, int half) {
      float4 *const sum = to.sums + i64(place_at(left)) * 256 + half * 128 + lane;
      if (tile_at(left) < before) {
#pragma unroll
        for (int i = 0; i < 4; i++) add4(sum + 32 * i, gq[4 * i], gq[4 * i + 1], gq[4 * i + 2], gq[4 * i + 3]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; i++) sum[32 * i] = float4{gq[4 * i], gq[4 * i + 1], gq[4 * i + 2], gq[4 * i + 3]};
      }
    };
    const auto values_product = [&] {
      barrier_wait(sh.full(st.at), st.parity);
      barrier_wait(sh.weights_full(ring.at), ring.parity);
      wgmma_fence();
      multiply_turned<T, M, Shared::WIDE>(gv, sh.weights(ring.at) + group * Shared::CHUNK, sh.dout(st.at));
      wgmma_commit();
    };
    const auto keys_product = [&] {
      barrier_wait(sh.ds_full(ring.at), ring.parity);
      wgmma_fence();
      multiply_turned<T, M, Shared::DEEP>(gk, sh.ds(ring.at) + group * Shared::CHUNK, sh.q(st.at));
      wgmma_commit();
    };
    const auto queries_product = [&](int i, int half) {  // with 32 columns
      const u64 da = here(wgmma_operand(sh.ds(i), 16, 1024));
      const u64 db = here(wgmma_operand(sh.k() + group * ROWS * 128 + half * 64, 0, 1024));
      pin(gq);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < ROWS; k += 16) {
        Wgmma<T, 32>::template multiply<true>(gq, da + (k / 64 * Shared::CHUNK + k % 64 * 2 >> 4), db + (k * 128 >> 4), k > 0);
      }
      wgmma_commit();
    };
    const int steps = P::GROUP * span;
    if (steps > 0) {
      tiles.wait(t);
      values_product();
      keys_product();
      for (int left = steps; left > 1; left--) {
        u64 *const done = sh.free(st.at);
        const Stage<Shared::RING> now = ring;
        queries_product(now.at, 0);
        st.next();
        ring.next();
        values_product();
        wgmma_wait<1>();
        pin(gq);
        release(sh.weights_free(now.at));
        release(done);
        barrier_wait(sh.turn(now.at), now.parity);
        add(left, 0);
        queries_product(now.at, 1);
        keys_product();
        wgmma_wait<1>();
        pin(gq);
        release(sh.ds_free(now.at));
        add(left, 1);
        __syncwarp();
        release(sh.added(now.at));
      }
      queries_product(ring.at, 0);
      wgmma_wait<0>();
      pin(gq);
      barrier_wait(sh.turn(ring.at), ring.parity);
      add(1, 0);
      queries_product(ring.at, 1);
      wgmma_wait<0>();
      pin(gq);
      tiles.release();
      add(1, 1);
      __syncwarp();
      release(sh.added(ring.at));
      release(sh.weights_free(ring.at));
      release(sh.ds_free(ring.at));
      release(sh.free(st.at));
      st.next();
      ring.next();
    }
    pin(gk);
    pin(gv);
    // Where the tile is is computed again, which takes no registers before.
    const KeyTile<P> at(int(here(u64(u32(tiles.number)))), masks);
    const int batch = at.head / (P::HEADS / P::GROUP), kv = at.head % (P::HEADS / P::GROUP), top = at.row + 16 * part;
    if (dk) {
      store_parts<P::DEPTH>(dk + i64(P::DK_BATCH) * batch + i64(P::DK_HEAD) * kv + i64(P::DK_ROW) * top, P::DK_ROW,
                            P::KEYS - top, gk, P::SCALE);
    }
    if (dv) {
      store_parts<P::WIDTH>(dv + i64(P::DV_BATCH) * batch + i64(P::DV_HEAD) * kv + i64(P::DV_ROW) * top, P::DV_ROW,
                            P::KEYS - top, gv, P::KEEP);
    }
  }
}

// attention_grad_joint is the whole entry, of 512 threads; counter starts at 0, as the flags do.
template <class P, class DK, class DV>
DEVICE void attention_grad_joint(const TensorMap *q, const TensorMap *k, const TensorMap *v, const TensorMap *dout,
                                 const float *base, const float *delta, int *counter, const JointSums &to, DK *dk, DV *dv,
                                 const AttentionMasks<typename P::Mask> &masks) {
  typedef JointShared<P> Shared;
  SHARED;
  const Shared sh{shared};
  if (threadIdx.x == 0) {
    barrier_init(sh.stay(), 1);
    barrier_init(sh.stay_free(), 12);
    for (int i = 0; i < 2; i++) {
      barrier_init(sh.next_full(i), 1);
      barrier_init(sh.next_free(i), 14);
    }
    for (int i = 0; i < Shared::STAGES; i++) {
      barrier_init(sh.full(i), 1);
      barrier_init(sh.free(i), 128 + 8);
    }
    for (int i = 0; i < Shared::RING; i++) {
      barrier_init(sh.weights_full(i), 128);
      barrier_init(sh.weights_free(i), 8);
      barrier_init(sh.ds_full(i), 128);
      barrier_init(sh.ds_free(i), 8);
      barrier_init(sh.turn(i), 1);
      barrier_init(sh.added(i), 8);
      barrier_init(sh.told(i), 1);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    fewer_registers<24>();
    if (threadIdx.x == 0) joint_produce<P>(sh, q, k, v, dout, base, delta, counter, masks);
    if (threadIdx.x == 32) joint_order<P, false>(sh, to.flags, masks);
    if (threadIdx.x == 64) joint_order<P, true>(sh, to.flags, masks);
  } else if (threadIdx.x < 256) {
    more_registers<136>();
    joint_scores<P>(sh, masks);
  } else {
    more_registers<176>();
    joint_products<P>(sh, threadIdx.x / 128 - 2, to, dk, dv, masks);
  }
}

// attention_grad_round is the whole entry that makes dq of the sums, of 128 threads for each tile of 64 queries.
template <class P, class DQ> DEVICE void attention_grad_round(const JointSums &from, DQ *dq) {
  constexpr int TILES = P::PADDED / 64;
  const int all = blockIdx.x / TILES, m = blockIdx.x % TILES, batch = all / P::HEADS, head = all % P::HEADS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = 64 * m + 16 * warp;
  if (row >= P::QUERIES) return;
  float d[64];
#pragma unroll
  for (int g = 0; g < 2; g++) {
    const i64 part = i64(blockIdx.x) * 8 + 4 * g + warp;
    const bool there = from.flags[blockIdx.x] != 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float4 x = there ? from.sums[part * 256 + 32 * i + lane] : float4{0, 0, 0, 0};
      float *const to = d + 32 * g + 4 * i;
      to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
  }
  store_parts<P::DEPTH>(dq + i64(P::DQ_BATCH) * batch + i64(P::DQ_HEAD) * head + i64(P::DQ_ROW) * row, P::DQ_ROW,
                        P::QUERIES - row, d, P::SCALE);
}
