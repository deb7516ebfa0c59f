// Attention for Hopper, of 16-bit operands with sums in f32, after FlashAttention-3 (Shah et al., arXiv 2407.08608).
//
// A block takes tiles of ROWS queries of one head; in each, a producer warp copies the queries and then tile after tile
// of keys and values into shared memory, from the last keys that count to the first, while WARPGROUPS consumers of 64
// queries each multiply. A consumer starts the scores of the next keys before the product with the current values, so
// that the softmax of the scores overlaps with that product and with the products of the other consumers. Unlike in the
// paper, consumers do not take turns at starting products: with turns, it is slower by up to a twelfth.
//
// Problem P has
//	T, Out                       the type of the operands, and of the result in memory
//	BATCH, HEADS, GROUP          heads of queries, and how many of them share a head of keys
//	QUERIES, KEYS, DEPTH, WIDTH
//	CAUSAL, WINDOW, SCALE        as in graph.Attention; the scale is above 0
//	WARPGROUPS, KEY_TILE, STAGES
//	DIVIDED                      whether the warpgroups of a block divide the keys of the same 64 queries. Then a block has one
//	                             tile of queries.
//	TOGETHER                     heads of queries whose tiles run at similar times, so that their keys stay in L2
//	PARTS                        0, or of how many numbers of f16 an element is the sum: see src/attention_split.cuh
//	MASKED, DROPPED              whether there are bits of a mask and of dropout: src/attention_bits.cuh
//	MASK_BATCH, MASK_HEAD        of a mask: how many sets of bits a batch and a head are from the next
//	ADDED                        whether there is a mask of numbers, with ADD_BATCH, ADD_HEAD, ADD_ROW and ADD_ALIGN
//	LENGTHS, TAIL, KEEP          as in src/attention.cuh; length(lengths, batch)
//	OUT_BATCH, OUT_HEAD, OUT_ROW, LSE_BATCH, LSE_HEAD, LSE_ROW    strides, in elements; the columns are side by side

// The number of a thread's warpgroup. The compiler sees that all lanes have the same, and so addresses that depend on it.
DEVICE int warpgroup() { return __shfl_sync(~0u, int(threadIdx.x / 128), 0); }

DEVICE float infinity() { return bits_to_float(0x7f800000u); }

// What masks an attention beside position. What the problem does not have is null.
template <class Mask> struct AttentionMasks {
  const u32 *mask, *kept;                  // rows of bits
  const u32 *mask_columns, *kept_columns;  // columns of bits
  const Mask *added;
  const i64 *lengths;
};

// How many keys of a batch count.
template <class P, class M> DEVICE int keys_of(const M &masks, int batch) {
  if constexpr (P::LENGTHS) {
    const i64 n = P::length(masks.lengths, batch);
    return n < 0 ? 0 : n > P::KEYS ? P::KEYS : int(n);
  } else {
    return P::KEYS;
  }
}

// A thread's bits of a line, a query or a key, for N numbers of the other kind from `from` on, a multiple of N: see
// src/attention_bits.cuh. Higher bits are others.
template <int N> DEVICE u32 load_bits(const u32 *line, int from) {
  line += from / 128 * 4 + threadIdx.x % 4;
  if constexpr (N == 128) return *line;
  const int shift = from % 128 / 4;
  if constexpr (128 % N == 0) return *line >> shift;
  return u32(((shift + N / 4 > 32 ? u64(line[4]) << 32 : 0) | *line) >> shift);
}

// A TilePlace is a head, and which of its tiles.
struct TilePlace { int head, tile; };

// The place of tile number i. The tiles of TOGETHER heads follow each other, the first of each head before the second of any. A
// group of fewer heads comes first, because the largest tiles of a group are the first: while the last tiles of a group run, those
// of the next one keep all multiprocessors busy.
template <int HEADS, int TILES, int TOGETHER> DEVICE TilePlace place_tile(int i) {
  constexpr int few = HEADS % TOGETHER;
  if constexpr (few > 0) {
    if (i < few * TILES) return {i % few, i / few};
    i -= few * TILES;
  }
  const int group = i / (TOGETHER * TILES), rest = i % (TOGETHER * TILES);
  return {few + group * TOGETHER + rest % TOGETHER, rest / TOGETHER};
}

// AttentionTile describes a tile for both kinds of warps. Of each WAYS tiles of keys, a warpgroup has one.
template <class P> struct AttentionTile {
  static constexpr int WAYS = P::DIVIDED ? P::WARPGROUPS : 1, ROWS = 64 * P::WARPGROUPS / WAYS;
  static constexpr int TILES = (P::QUERIES + ROWS - 1) / ROWS;  // of a head
  static constexpr int HEADS = P::BATCH * P::HEADS;
  static constexpr int ALL = TILES * HEADS;

  int head, row, first, end;  // head of all batches, first query, tiles of keys
  int valid;                  // keys that count

  // Query i is at the position of key i + shift.
  DEVICE int shift() const { return (P::TAIL ? valid : P::KEYS) - P::QUERIES; }
  // Row i attends to the keys [lo, hi).
  DEVICE int hi(int i) const {
    if (P::CAUSAL) return least(valid, i + shift() + 1);
    return P::WINDOW > 0 ? least(valid, i + shift() + P::WINDOW) : valid;
  }
  DEVICE int lo(int i) const { return P::WINDOW > 0 ? i + shift() - P::WINDOW + 1 : 0; }

  // Tile number i of ALL; of a head, those with the most keys come first.
  template <class M> DEVICE AttentionTile(int i, const M &masks) {
    const TilePlace at = place_tile<HEADS, TILES, P::TOGETHER>(i);
    head = at.head;
    row = (TILES - 1 - at.tile) * ROWS;
    valid = keys_of<P>(masks, head / P::HEADS);
    const int top = hi(least(row + ROWS, P::QUERIES) - 1), bottom = lo(row);
    first = bottom > 0 ? bottom / P::KEY_TILE : 0;
    end = top > 0 ? (top + P::KEY_TILE - 1) / P::KEY_TILE : 0;
    if (end < first) end = first;
  }
  // Whether some row of the tile does not attend to some key of tile n.
  DEVICE bool masked(int n) const {
    return (n + 1) * P::KEY_TILE > hi(row) || P::WINDOW > 0 && n * P::KEY_TILE < lo(row + ROWS - 1);
  }
};

// A row of a result in shared memory is followed by 16 bytes of padding, which spreads rows over the banks.
template <class T> constexpr DEVICE int staged_row(int width) { return width * int(sizeof(T)) + 16; }

// The shared memory of a block. A tile of rows of COLUMNS elements is stored as chunks of 64 columns, with rows of 128
// bytes. STAGED_ROWS of the result leave through it.
template <class P, int STAGED_ROWS = P::PARTS == 2 ? 0 : AttentionTile<P>::ROWS> struct AttentionShared {
  static constexpr int DEPTH = (P::DEPTH + 63) / 64 * 64, WIDTH = (P::WIDTH + 63) / 64 * 64;
  static constexpr int PARTS = P::PARTS == 2 ? 2 : 1, ROWS = AttentionTile<P>::ROWS;
  static constexpr int Q_PART = ROWS * DEPTH * 2, K_PART = P::KEY_TILE * DEPTH * 2, V_PART = P::KEY_TILE * WIDTH * 2;
  static constexpr int Q = PARTS * Q_PART, K = PARTS * K_PART, V = PARTS * V_PART;
  static constexpr int STAGED = Q + P::STAGES * (K + V), ROW = staged_row<typename P::Out>(P::WIDTH);
  // What each thread of a warpgroup but the first has of a tile, if their keys are divided.
  static constexpr int OTHERS = STAGED + STAGED_ROWS * ROW, OTHER = (WIDTH / 2 + 4) * 128 * 4;
  static constexpr int BARRIERS = OTHERS + (AttentionTile<P>::WAYS - 1) * OTHER;
  static constexpr int NEXT = BARRIERS + 8 * (6 + 4 * P::STAGES), BYTES = NEXT + 8;
  u8 *base;
  DEVICE u8 *q() const { return base; }
  DEVICE u8 *k(int stage) const { return base + Q + stage * K; }
  DEVICE u8 *v(int stage) const { return base + Q + P::STAGES * K + stage * V; }
  DEVICE u8 *staged(int warp) const { return base + STAGED + warp * 16 * ROW; }
  DEVICE float *other(int group) const { return reinterpret_cast<float *>(base + OTHERS + (group - 1) * OTHER); }
  DEVICE u64 *barrier(int i) const { return reinterpret_cast<u64 *>(base + BARRIERS) + i; }
  DEVICE u64 *q_full() const { return barrier(0); }
  DEVICE u64 *q_free() const { return barrier(1); }
  DEVICE u64 *next_full(int i) const { return barrier(2 + i); }
  DEVICE u64 *next_free(int i) const { return barrier(4 + i); }
  DEVICE u64 *k_full(int stage) const { return barrier(6 + stage); }
  DEVICE u64 *k_free(int stage) const { return barrier(6 + P::STAGES + stage); }
  DEVICE u64 *v_full(int stage) const { return barrier(6 + 2 * P::STAGES + stage); }
  DEVICE u64 *v_free(int stage) const { return barrier(6 + 3 * P::STAGES + stage); }
  DEVICE int *next(int i) const { return reinterpret_cast<int *>(base + NEXT) + i; }
};

// Stage is a position in a ring of buffers and the parity of its round.
template <int STAGES> struct Stage {
  int at = 0;
  u32 parity = 0;
  DEVICE void next(int n = 1) {
    if ((at += n) >= STAGES) {
      at -= STAGES;
      parity ^= 1;
    }
  }
};

// Copies rows of a head, all columns; load_rows announces their bytes as well.
template <int ROWS, int COLUMNS>
DEVICE void copy_rows(u8 *to, const TensorMap *map, u64 *bar, int row, int head, int batch) {
#pragma unroll
  for (int c = 0; c < COLUMNS; c += 64) tma_load(to + c * ROWS * 2, map, bar, c, row, head, batch);
}
template <int ROWS, int COLUMNS>
DEVICE void load_rows(u8 *to, const TensorMap *map, u64 *bar, int row, int head, int batch) {
  barrier_expect(bar, ROWS * COLUMNS * 2);
  copy_rows<ROWS, COLUMNS>(to, map, bar, row, head, batch);
}

// The same of each part of the elements, which the last axis of the tensor map counts; the one before counts all heads.
template <class P, int ROWS, int COLUMNS>
DEVICE void load_parts(u8 *to, const TensorMap *map, u64 *bar, int row, int head, int batch, int heads) {
  if constexpr (P::PARTS == 2) {
    barrier_expect(bar, 2 * ROWS * COLUMNS * 2);
#pragma unroll
    for (int i = 0; i < 2; i++) copy_rows<ROWS, COLUMNS>(to + i * ROWS * COLUMNS * 2, map, bar, row, batch * heads + head, i);
  } else {
    load_rows<ROWS, COLUMNS>(to, map, bar, row, head, batch);
  }
}

// The producer takes tiles from a counter in device memory, which is 0 before and after a launch, and passes them to the consumers.
template <class P, class Shared = AttentionShared<P>>
DEVICE void attention_produce(const TensorMap *q, const TensorMap *k, const TensorMap *v, int *counter,
                              const AttentionMasks<typename P::Mask> &masks) {
  constexpr int KV_HEADS = P::HEADS / P::GROUP;
  SHARED;
  const Shared s{shared};
  Stage<P::STAGES> ks, vs;
  Stage<2> next;
  u32 q_parity = 1;  // the barrier of a buffer that was never used is in its first phase: the one before is over
  for (int i = blockIdx.x, after;; i = after) {
    barrier_wait(s.next_free(next.at), next.parity ^ 1);
    *s.next(next.at) = i;
    barrier_arrive(s.next_full(next.at));
    next.next();
    if (i >= AttentionTile<P>::ALL) break;
    const int taken = atomicAdd(counter, 1);  // once for each tile
    if (taken == AttentionTile<P>::ALL - 1) *counter = 0;
    after = gridDim.x + taken;
    const AttentionTile<P> t(i, masks);
    if (t.first == t.end) continue;
    const int batch = t.head / P::HEADS, head = t.head % P::HEADS, kv = head / P::GROUP;
    for (int n = t.end - 1; n >= t.first; n--) {
      barrier_wait(s.k_free(ks.at), ks.parity ^ 1);
      load_parts<P, P::KEY_TILE, Shared::DEPTH>(s.k(ks.at), k, s.k_full(ks.at), n * P::KEY_TILE, kv, batch, KV_HEADS);
      ks.next();
      if (n == t.end - 1) {
        barrier_wait(s.q_free(), q_parity);
        q_parity ^= 1;
        load_parts<P, Shared::ROWS, Shared::DEPTH>(s.q(), q, s.q_full(), t.row, head, batch, P::HEADS);
      } else {
        barrier_wait(s.v_free(vs.at), vs.parity ^ 1);
        load_parts<P, P::KEY_TILE, Shared::WIDTH>(s.v(vs.at), v, s.v_full(vs.at), (n + 1) * P::KEY_TILE, kv, batch, KV_HEADS);
        vs.next();
      }
    }
    barrier_wait(s.v_free(vs.at), vs.parity ^ 1);
    load_parts<P, P::KEY_TILE, Shared::WIDTH>(s.v(vs.at), v, s.v_full(vs.at), t.first * P::KEY_TILE, kv, batch, KV_HEADS);
    vs.next();
  }
}

// In the accumulators of a product [64, N] of a warpgroup, a thread has of rows r and r + 8, r = 16·warp + lane÷4, the
// columns 8j + 2(lane mod 4) and the next: elements 4j and 4j + 1, and 4j + 2 and 4j + 3.

// d = a·bᵀ, or with add d += a·bᵀ, for a [64, DEPTH] and b [N, DEPTH] in shared memory, of chunks of so many rows.
template <class T, int DEPTH, int N, int A_ROWS, int B_ROWS, int R>
DEVICE void multiply_rows(float (&d)[R], const u8 *a, const u8 *b, bool add = false) {
  const u64 da = wgmma_operand(a, 16, 1024), db = wgmma_operand(b, 16, 1024);
#pragma unroll
  for (int k = 0; k < DEPTH; k += 16) {
    const int chunk = k / 64, in = k % 64 * 2;
    const int a_at = chunk * A_ROWS * 128 + in, b_at = chunk * B_ROWS * 128 + in;
    Wgmma<T, N>::template multiply<false>(d, da + (a_at >> 4), db + (b_at >> 4), add || k > 0);
  }
}

// d += a·b, or without add d = a·b, for a [64, K] in registers, packed, and b [K, N] in shared memory.
template <class T, int K, int N, int R, int A>
DEVICE void multiply_columns(float (&d)[R], const u32 (&a)[A], const u8 *b, bool add = true) {
  const u64 db = wgmma_operand(b, K * 128, 1024);
#pragma unroll
  for (int k = 0; k < K; k += 16) Wgmma<T, N>::template multiply<true>(d, a + k / 4, db + (k * 128 >> 4), add || k > 0);
}

// Converts accumulators to the operand a of the next product.
template <class T, int R> DEVICE void pack_operand(u32 (&a)[R / 2], const float (&s)[R]) {
#pragma unroll
  for (int i = 0; i < R / 2; i++) a[i] = pack2(T{}, s[2 * i], s[2 * i + 1]);
}

// The greatest and the sum over the four threads that share a row.
DEVICE float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
DEVICE float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Scores of one of the thread's two rows outside the columns [lo, hi) become −Inf, or another number; they count from the thread's
// first.
template <int R> DEVICE void mask_row(float (&s)[R], int h, int lo, int hi, float other = -infinity()) {
#pragma unroll
  for (int i = 0; i < R; i += 4) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int c = 2 * i + e;
      if (c >= hi || c < lo) s[i + 2 * h + e] = other;
    }
  }
}
// The same for both rows of queries; key is that of the thread's first column.
template <class P, int R> DEVICE void mask_scores(float (&s)[R], const AttentionTile<P> &t, int row, int key) {
#pragma unroll
  for (int h = 0; h < 2; h++) mask_row(s, h, P::WINDOW > 0 ? t.lo(row + 8 * h) - key : 0, t.hi(row + 8 * h) - key);
}

// Whether all of a warp's N bits in each row are 1, as in most tiles of many masks.
template <int N> DEVICE bool all_bits(const u32 (&bits)[2]) {
  return __all_sync(~0u, (bits[0] & bits[1] | (N < 32 ? ~0u << N % 32 : 0)) == ~0u);
}
// Numbers of the thread's two rows whose bit is 0 become other(c), c columns from the thread's first.
template <int R, class F> DEVICE void keep_bits(float (&s)[R], const u32 (&bits)[2], F other) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int i = 0; i < R; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        if (!(bits[h] >> i / 2 + e & 1)) s[i + 2 * h + e] = other(2 * i + e);
      }
    }
  }
}

// Bits 2j and 2j + 1 of a word, each repeated 16 times.
DEVICE u32 kept_halves(u32 word, int j) {
  const int in = 2 * j % 8;
  return permute(word << 7 - in, word << 6 - in, 0xcc88 + j / 4 * 0x1111);
}
// Halves of the thread's two rows whose bit is 0 become 0; see pack_operand.
template <int R> DEVICE void keep_packed(u32 (&a)[R], const u32 (&bits)[2]) {
#pragma unroll
  for (int i = 0; i < R; i++) a[i] &= kept_halves(bits[i % 2], i / 2);
}

// A thread's bits of its two rows of queries for the N keys of a tile: of dropout if DROP, else of a mask.
template <class P, bool DROP, int N, class M>
DEVICE void load_row_bits(u32 (&bits)[2], const M &masks, int head, int row, int key) {
  i64 set = head;
  if constexpr (!DROP) set = head / P::HEADS * P::MASK_BATCH + head % P::HEADS * P::MASK_HEAD;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    bits[h] = load_bits<N>(
        (DROP ? masks.kept : masks.mask) + (set * P::QUERIES + least(row + 8 * h, P::QUERIES - 1)) * P::KEY_WORDS, key);
  }
}

// What scores are multiplied by when weights are made of them. In parts of f16, those that a mask of numbers was added to are
// multiplied before: the numbers may be as large as f32 holds.
template <class P> constexpr float UNIT = P::PARTS > 0 && P::ADDED ? 1.0f : P::SCALE;

// Adds a mask of numbers to scores that UNIT still multiplies; key is that of the thread's first column.
template <class P, int R, class M> DEVICE void add_mask(float (&s)[R], const M &masks, int head, int row, int key) {
  constexpr float unit = 1 / UNIT<P>;
  const auto *added = masks.added + i64(P::ADD_BATCH) * (head / P::HEADS) + i64(P::ADD_HEAD) * (head % P::HEADS);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const auto *line = added + i64(P::ADD_ROW) * least(row + 8 * h, P::QUERIES - 1);
#pragma unroll
    for (int i = 0; i < R; i += 4) {
      if constexpr (P::PARTS > 0) s[i + 2 * h] *= P::SCALE, s[i + 2 * h + 1] *= P::SCALE;
      const int j = key + 2 * i;
      if (j + 1 < P::KEYS) {
        const auto m = load<float, 2, 1, P::ADD_ALIGN>(line + j);
        s[i + 2 * h] += m[0] * unit;
        s[i + 2 * h + 1] += m[1] * unit;
      } else if (j < P::KEYS) {
        s[i + 2 * h] += convert<float>(line[j]) * unit;
      }
    }
  }
}

// Clears the rows from `from` on of a tile of chunks of 64 columns in shared memory: what keys that do not count have is
// not multiplied, not even by 0. All consumers call it, and wait for each other.
template <int ROWS, int COLUMNS, int THREADS> DEVICE void clear_rows(u8 *tile, int from) {
  constexpr int VECTORS = ROWS * 8;  // of 16 bytes, in a chunk
  for (int i = (from > 0 ? from : 0) * 8 + threadIdx.x - 128; i < VECTORS; i += THREADS) {
#pragma unroll
    for (int c = 0; c < COLUMNS / 64; c++) reinterpret_cast<uint4 *>(tile)[c * VECTORS + i] = uint4{0, 0, 0, 0};
  }
}

// The online softmax of a thread's two rows.
struct RowState {
  float top[2], sum[2];  // a score that is nearly the greatest, of all columns; and the sum, of the thread's columns
};
// In two parts of f16, weights and their sums are multiplied by 2 to the power of RAISED, so that the small ones are exact, too.
template <class P> constexpr int RAISED = P::PARTS == 2 ? 14 : 0;
// softmax_step makes scores weights, and reports whether what was added up before has to be multiplied by fade. That waits until a
// weight would be above 2 to the power of SLACK (compare FlashAttention-4): with bits, and in blocks of 192 queries. Others take
// less time if they do not ask, and two parts of f16 have no room for larger weights.
template <class P> constexpr float SLACK = P::PARTS == 0 && (P::MASKED || P::DROPPED || AttentionTile<P>::ROWS > 128) ? 8 : 0;
template <class P, int R> DEVICE bool softmax_step(RowState &r, float (&s)[R], float (&fade)[2]) {
  constexpr float scale = UNIT<P> * 1.4426950408889634f;
  bool fades = false;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float top = s[2 * h];
#pragma unroll
    for (int i = 0; i < R; i += 4) top = fmaxf(top, fmaxf(s[i + 2 * h], s[i + 2 * h + 1]));
    top = fmaxf(r.top[h], row_max(top));
    const bool above = SLACK<P> == 0 || (top - r.top[h]) * scale > SLACK<P>;
    if (!above) top = r.top[h];
    fades = fades || above;
    float base = top == -infinity() ? 0.0f : multiply_up(top, scale);  // no exponent is above SLACK
    float before = r.top[h];
    if constexpr (P::ADDED) {
      // Where rounding base may change exponents by more than 1, the greatest score is subtracted first.
      if (fabsf(base) > 0x1p24f) {
#pragma unroll
        for (int i = 0; i < R; i += 4) {
          s[i + 2 * h] -= top;
          s[i + 2 * h + 1] -= top;
        }
        before -= top;
        base = 0;
      }
    }
    fade[h] = above ? exp2_approx(before * scale - base) : 1.0f;
    if constexpr (P::PARTS == 2) base -= RAISED<P>;
    r.top[h] = top;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < R; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float &x = s[i + 2 * h + e];
        x = exp2_approx(x * scale - base);
        sum += x;
      }
    }
    r.sum[h] = r.sum[h] * fade[h] + sum;
  }
  return fades;
}

// Stores what a thread has of its rows, for the same thread of another warpgroup, and adds what another has of the same rows.
template <int R> DEVICE void give_rows(float *to, const RowState &r, const float (&o)[R]) {
  to += threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < R; i++) to[i * 128] = o[i];
#pragma unroll
  for (int h = 0; h < 2; h++) to[(R + h) * 128] = r.top[h], to[(R + 2 + h) * 128] = r.sum[h];
}
template <class P, int R> DEVICE void add_rows(RowState &r, float (&o)[R], const float *from) {
  from += threadIdx.x % 128;
  float mine[2], other[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float there = from[(R + h) * 128], top = fmaxf(r.top[h], there), base = top == -infinity() ? 0.0f : top;
    mine[h] = exp2_approx((r.top[h] - base) * (UNIT<P> * 1.4426950408889634f));
    other[h] = exp2_approx((there - base) * (UNIT<P> * 1.4426950408889634f));
    r.top[h] = top;
    r.sum[h] = r.sum[h] * mine[h] + from[(R + 2 + h) * 128] * other[h];
  }
#pragma unroll
  for (int i = 0; i < R; i++) o[i] = o[i] * mine[i / 2 % 2] + from[i * 128] * other[i / 2 % 2];
}

// Two neighbouring elements of a row.
DEVICE void store2(float *p, float x, float y) { *reinterpret_cast<float2 *>(p) = float2{x, y}; }
DEVICE void store2(bf16 *p, float x, float y) { *reinterpret_cast<u32 *>(p) = pack_bf16(x, y); }
DEVICE void store2(f16 *p, float x, float y) { *reinterpret_cast<u32 *>(p) = pack_f16(x, y); }

// Stores a thread's part of one of its two rows of accumulators, times a factor; `to` is its first column.
template <int WIDTH, class T, int R> DEVICE void store_row(T *to, int h, const float (&d)[R], float factor) {
#pragma unroll
  for (int i = 0; i < R; i += 4) {
    if (2 * i < WIDTH) store2(to + 2 * i, d[i + 2 * h] * factor, d[i + 2 * h + 1] * factor);
  }
}

// Stores a warp's 16 rows of accumulators, times a factor of each, through its own shared memory; only the first
// `there` rows are stored. The copies are asynchronous: bulk_read_wait is needed before the staging memory is written or
// released.
template <int WIDTH, class T, int R>
DEVICE void store_rows(T *to, i64 stride, int there, u8 *staged, const float (&d)[R], float factor0, float factor1) {
  constexpr int pitch = staged_row<T>(WIDTH);
  const int lane = threadIdx.x % 32, column = 2 * (lane % 4);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    store_row<WIDTH>(reinterpret_cast<T *>(staged + (lane / 4 + 8 * h) * pitch) + column, h, d, h ? factor1 : factor0);
  }
  shared_fence();
  __syncwarp();
  if (lane < least(there, 16)) bulk_store(to + stride * lane, staged + lane * pitch, WIDTH * int(sizeof(T)));
  bulk_commit();
}

// Stores the log-sum-exp of the thread's two rows, if there is memory for it.
template <class P> DEVICE void store_lse(float *lse, int batch, int head, int row, const RowState &r, const float (&sum)[2]) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (lse && threadIdx.x % 4 == 0 && row + 8 * h < P::QUERIES) {
      lse[i64(P::LSE_BATCH) * batch + i64(P::LSE_HEAD) * head + i64(P::LSE_ROW) * (row + 8 * h)] =
          r.top[h] * UNIT<P> + logf(sum[h] * bits_to_float(u32(127 - RAISED<P>) << 23));
    }
  }
}

// split_pair gives the numbers of f16 that are nearest to x and y, and those nearest to what they leave.
DEVICE void split_pair(u32 &high, u32 &low, float x, float y) {
  high = pack_f16(x, y);
  low = pack_f16(x - to_float(f16{u16(high)}), y - to_float(f16{u16(high >> 16)}));
}

// value_scale is the power of two that makes numbers up to the one of these bits fill the range of f16, but for a bit.
DEVICE float value_scale(u32 largest) { return bits_to_float(u32(least(268 - int(largest >> 23), 227)) << 23); }

// unscale divides the columns of a result by what the values were multiplied by; see src/attention_split.cuh.
template <int WIDTH, int R> DEVICE void unscale(float (&o)[R], const u32 *largest) {
#pragma unroll
  for (int i = 0; i < R; i += 4) {
    if (2 * i >= WIDTH) break;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const u32 scale = float_to_bits(value_scale(largest[2 * i + 2 * (threadIdx.x % 4) + e]));
      const float factor = bits_to_float((254u << 23) - scale);  // its reciprocal
      o[i + e] *= factor;
      o[i + 2 + e] *= factor;
    }
  }
}

// split_operand makes accumulators the operands a of the next product: the nearest numbers of f16, and what they leave.
template <int R> DEVICE void split_operand(u32 (&high)[R / 2], u32 (&low)[R / 2], const float (&s)[R]) {
#pragma unroll
  for (int i = 0; i < R / 2; i++) split_pair(high[i], low[i], s[2 * i], s[2 * i + 1]);
}

// attention_consume is what a warpgroup of consumers does. largest has the bits of the largest value of each column of each head
// of values, or is null.
template <class P>
DEVICE void attention_consume(typename P::Out *out, float *lse, const u32 *largest,
                              const AttentionMasks<typename P::Mask> &masks) {
  typedef AttentionShared<P> Shared;
  typedef typename P::T T;
  constexpr int N = P::KEY_TILE;
  SHARED;
  const Shared sh{shared};
  constexpr int WAYS = AttentionTile<P>::WAYS, A_ROWS = Shared::ROWS;
  // Of the warpgroups, which rows and which of the tiles of keys this one has.
  const int number = threadIdx.x / 128 - 1, group = P::DIVIDED ? 0 : number, way = P::DIVIDED ? number : 0;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int in_row = 64 * group + 16 * warp + lane / 4, column = 2 * (lane % 4);
  const u8 *q = sh.q() + group * 64 * 128;
  const auto release = [&](u64 *bar) {
    if (lane == 0) barrier_arrive(bar);
  };
  static_assert(P::STAGES % WAYS == 0 && !(P::DIVIDED && (P::PARTS == 2 || P::LENGTHS)), "a buffer's tiles are of one warpgroup");
  Stage<P::STAGES> ks, vs;
  ks.next(way);
  vs.next(way);
  Stage<2> next;
  u32 q_parity = 0;
  for (;;) {
    barrier_wait(sh.next_full(next.at), next.parity);
    const int tile = __shfl_sync(~0u, *sh.next(next.at), 0);  // shows the compiler that it is the same for all lanes
    __syncwarp();
    release(sh.next_free(next.at));
    next.next();
    if (tile >= AttentionTile<P>::ALL) break;
    const AttentionTile<P> t(tile, masks);
    float o[Shared::WIDTH / 2];
#pragma unroll
    for (int i = 0; i < Shared::WIDTH / 2; i++) o[i] = 0;
    RowState r = {{-infinity(), -infinity()}, {0, 0}};
    if (t.first < t.end) {
      float s[N / 2] = {}, fade[2] = {};
      bool fades;
      u32 prob[N / 4];
      // Bits of the tile. They are loaded ahead, as soon as those of the tile before are done with, if there are registers for it.
      constexpr bool AHEAD = P::PARTS < 2 && !(P::MASKED && P::DROPPED);
      u32 mask[2], kept[2];
      int n = t.end - 1 - way;
      const auto load_mask = [&](int n) {
        if constexpr (P::MASKED) load_row_bits<P, false, N>(mask, masks, t.head, t.row + in_row, (n < 0 ? 0 : n) * N);
      };
      const auto load_kept = [&](int n) {
        if constexpr (P::DROPPED) load_row_bits<P, true, N>(kept, masks, t.head, t.row + in_row, (n < 0 ? 0 : n) * N);
      };
      const auto weigh = [&] {  // makes scores weights
        const int row = t.row + in_row, key = n * N + column;
        if constexpr (P::ADDED) add_mask<P>(s, masks, t.head, row, key);
        if (t.masked(n)) mask_scores<P>(s, t, row, key);
        if (P::MASKED && !all_bits<N / 4>(mask)) keep_bits(s, mask, [](int) { return -infinity(); });
        if constexpr (AHEAD) load_mask(n - WAYS);
        if constexpr (!AHEAD && P::MASKED) load_kept(n);
        fades = softmax_step<P>(r, s, fade);
        if (P::DROPPED && P::PARTS == 2 && !all_bits<N / 4>(kept)) keep_bits(s, kept, [](int) { return 0.0f; });
      };
      const auto pack_weights = [&] {
        pack_operand<T>(prob, s);
        if constexpr (P::DROPPED) keep_packed(prob, kept);
        if constexpr (AHEAD) load_kept(n - WAYS);
      };
      const auto load_late = [&] {
        if constexpr (!AHEAD) load_mask(n);
        if constexpr (!AHEAD && !P::MASKED) load_kept(n);
      };
      if constexpr (AHEAD) {
        load_mask(n);
        load_kept(n);
      }
      barrier_wait(sh.q_full(), q_parity);
      q_parity ^= 1;
      if constexpr (P::PARTS == 2) {
        // Tensor cores truncate when they add, so they add the products of one tile only, the smaller ones first.
        float part[Shared::WIDTH / 2], before[2];
        u32 low[N / 4];
        const auto start_scores = [&] {
          barrier_wait(sh.k_full(ks.at), ks.parity);
          const u8 *const k = sh.k(ks.at);
          pin(s);
          wgmma_fence();
          multiply_rows<T, P::DEPTH, N, A_ROWS, N>(s, q + Shared::Q_PART, k);
          multiply_rows<T, P::DEPTH, N, A_ROWS, N>(s, q, k + Shared::K_PART, true);
          multiply_rows<T, P::DEPTH, N, A_ROWS, N>(s, q, k, true);
          wgmma_commit();
        };
        const auto start_sum = [&] {
          barrier_wait(sh.v_full(vs.at), vs.parity);
          const u8 *const v = sh.v(vs.at);
          pin(part);
          wgmma_fence();
          multiply_columns<T, N, Shared::WIDTH>(part, low, v, false);
          multiply_columns<T, N, Shared::WIDTH>(part, prob, v + Shared::V_PART);
          multiply_columns<T, N, Shared::WIDTH>(part, prob, v);
          wgmma_commit();
        };
        const auto end_scores = [&] {
          pin(s);
          release(sh.k_free(ks.at));
          ks.next();
          if (n == t.first) release(sh.q_free());
          before[0] = fade[0], before[1] = fade[1];
          weigh();
        };
        const auto end_sum = [&](const float (&factor)[2]) {
          wgmma_wait<0>();
          pin(part);
          release(sh.v_free(vs.at));
          vs.next();
#pragma unroll
          for (int i = 0; i < Shared::WIDTH / 2; i++) o[i] = o[i] * factor[i / 2 % 2] + part[i];
        };
        start_scores();
        load_late();
        wgmma_wait<0>();
        end_scores();
        split_operand(prob, low, s);
        for (n--; n >= t.first; n--) {
          start_scores();
          start_sum();
          load_late();
          wgmma_wait<1>();
          end_scores();
          end_sum(before);
          split_operand(prob, low, s);
        }
        start_sum();
        end_sum(fade);
      } else if (P::DIVIDED && n < t.first) {
        release(sh.q_free());
      } else {
        barrier_wait(sh.k_full(ks.at), ks.parity);
        pin(s);
        wgmma_fence();
        multiply_rows<T, P::DEPTH, N, A_ROWS, N>(s, q, sh.k(ks.at));
        wgmma_commit();
        load_late();
        wgmma_wait<0>();
        pin(s);
        release(sh.k_free(ks.at));
        ks.next(WAYS);
        weigh();
        pack_weights();
        if (P::PARTS == 0 && P::LENGTHS && t.end * N > t.valid) {
          barrier_wait(sh.v_full(vs.at), vs.parity);
          clear_rows<N, Shared::WIDTH, 128 * P::WARPGROUPS>(sh.v(vs.at), t.valid - n * N);
          shared_fence();
          named_sync(1, 128 * P::WARPGROUPS);
        }
        for (n -= WAYS; n >= t.first; n -= WAYS) {
          barrier_wait(sh.k_full(ks.at), ks.parity);
          pin(s);
          pin(o);
          wgmma_fence();
          multiply_rows<T, P::DEPTH, N, A_ROWS, N>(s, q, sh.k(ks.at));
          wgmma_commit();
          barrier_wait(sh.v_full(vs.at), vs.parity);
          wgmma_fence();
          multiply_columns<T, N, Shared::WIDTH>(o, prob, sh.v(vs.at));
          wgmma_commit();
          load_late();
          wgmma_wait<1>();
          pin(s);
          release(sh.k_free(ks.at));
          ks.next(WAYS);
          weigh();
          wgmma_wait<0>();
          pin(o);
          release(sh.v_free(vs.at));
          vs.next(WAYS);
          if (SLACK<P> == 0 || __any_sync(~0u, fades)) {
#pragma unroll
            for (int i = 0; i < Shared::WIDTH / 2; i++) o[i] *= fade[i / 2 % 2];
          }
          pack_weights();
        }
        release(sh.q_free());
        barrier_wait(sh.v_full(vs.at), vs.parity);
        pin(o);
        wgmma_fence();
        multiply_columns<T, N, Shared::WIDTH>(o, prob, sh.v(vs.at));
        wgmma_commit();
        wgmma_wait<0>();
        pin(o);
        release(sh.v_free(vs.at));
        vs.next(WAYS);
      }
    }
    if constexpr (P::DIVIDED) {
      if (way > 0) give_rows(sh.other(way), r, o);
      named_sync(1, 128 * WAYS);
      if (way > 0) break;
#pragma unroll
      for (int i = 1; i < WAYS; i++) add_rows<P>(r, o, sh.other(i));
    }
    if constexpr (P::PARTS > 0) unscale<P::WIDTH>(o, largest + t.head / P::GROUP * P::WIDTH);
    const int batch = t.head / P::HEADS, head = t.head % P::HEADS, top = t.row + 64 * group + 16 * warp;
    const float sum[2] = {row_sum(r.sum[0]), row_sum(r.sum[1])};
    const float factor[2] = {sum[0] == 0 ? 0.0f : P::KEEP / sum[0], sum[1] == 0 ? 0.0f : P::KEEP / sum[1]};
    typename P::Out *const to = out + i64(P::OUT_BATCH) * batch + i64(P::OUT_HEAD) * head;
    if constexpr (P::PARTS == 2) {  // shared memory has no room for rows
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int row = t.row + in_row + 8 * h;
        if (row < P::QUERIES) store_row<P::WIDTH>(to + i64(P::OUT_ROW) * row + column, h, o, factor[h]);
      }
    } else {
      bulk_read_wait();  // of the last tile's
      __syncwarp();
      store_rows<P::WIDTH>(to + i64(P::OUT_ROW) * top, P::OUT_ROW, P::QUERIES - top, sh.staged(4 * group + warp), o, factor[0],
                           factor[1]);
    }
    store_lse<P>(lse, batch, head, t.row + in_row, r, sum);
  }
  bulk_read_wait();
}

// attention_hopper is the whole entry, of 128·(WARPGROUPS + 1) threads; see attention_consume for largest.
template <class P>
DEVICE void attention_hopper(const TensorMap *q, const TensorMap *k, const TensorMap *v, int *counter,
                             typename P::Out *out, float *lse, const AttentionMasks<typename P::Mask> &masks,
                             const u32 *largest = nullptr) {
  typedef AttentionShared<P> Shared;
  SHARED;
  const Shared s{shared};
  if (threadIdx.x == 0) {
    constexpr int warps = 4 * P::WARPGROUPS;
    barrier_init(s.q_full(), 1);
    barrier_init(s.q_free(), warps);
    for (int i = 0; i < 2; i++) {
      barrier_init(s.next_full(i), 1);
      barrier_init(s.next_free(i), warps);
    }
    for (int i = 0; i < P::STAGES; i++) {
      barrier_init(s.k_full(i), 1);
      barrier_init(s.k_free(i), warps / AttentionTile<P>::WAYS);
      barrier_init(s.v_full(i), 1);
      barrier_init(s.v_free(i), warps / AttentionTile<P>::WAYS);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    fewer_registers<P::WARPGROUPS == 2 ? 40 : 32>();
    if (threadIdx.x == 0) attention_produce<P>(q, k, v, counter, masks);
  } else {
    more_registers<P::WARPGROUPS == 2 ? 232 : 160>();
    attention_consume<P>(out, lse, largest, masks);
  }
}
