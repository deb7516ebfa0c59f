// Mixtures of experts: the assignment of tokens to experts, and the weighted sum of the experts' results. See moe.go
// for the steps and their shared memory. Lists depend only on the order of tokens, so they are the same for any
// schedule of blocks.
//
// A Mixture has, all as constants:
//
//	int TOKENS, EXPERTS;  i64 GATE_T, GATE_E;  bool DENSE;   the gates [TOKENS, EXPERTS] and their strides
//	int CAPACITY, WAVES;                                     slots that fit into the later steps at once, and how
//	                                                         often these run
//	int ROWS, TILES;                                         rows of a tile of slots; tiles that a wave may have
//	int MOST;                                                experts that a token is sent to at most: where more gates than
//	                                                         that are not zero, they are NaN, and the first ones count; or 0
//	int ALIGN;                                               the slots of an expert begin at a multiple of this
//	int VEC;                                                 gates of a token that may be read at once
//	typedef … Gate;
//
// A slot is a pair of a token and an expert that it is sent to. Slots are numbered expert by expert, and within an
// expert in the order of tokens. Those between experts belong to no token.

// Stacked is where the weights of each expert begin, one behind the other.
template <class T, i64 STRIDE> struct Stacked {
  T *first;
  DEVICE T *operator[](int e) const { return first + e * STRIDE; }
};

constexpr int ROUTE_TOKENS = 256;  // that a block of the routing steps takes, 32 to a warp

template <class X> DEVICE bool gate_open(const typename X::Gate *gates, int token, int expert) {
  return token < X::TOKENS && (X::DENSE || gates[token * X::GATE_T + expert * X::GATE_E] != typename X::Gate(0));
}

// each_gate passes to f, expert by expert, whether a token is sent there, and whether the gate is not zero.
template <class X, class F> DEVICE void each_gate(const typename X::Gate *gates, int token, F f) {
  typedef typename X::Gate G;
  constexpr int W = X::VEC;
  int n = 0;
#pragma unroll least(8, 16 / W)
  for (int e = 0; e < X::EXPERTS; e += W) {
    Vec<G, W> v = {};
    if (token < X::TOKENS && !X::DENSE) {
      v = load<G, W, W == 1 ? 0 : 1, W * int(sizeof(G))>(gates + token * X::GATE_T + e * X::GATE_E);
    }
#pragma unroll
    for (int i = 0; i < W; i++) {
      const bool open = token < X::TOKENS && (X::DENSE || v[i] != G(0));
      f(e + i, open && (X::MOST == 0 || n < X::MOST), open);
      n += open;
    }
  }
}

// count_warps counts the tokens of each warp that go to each expert, [8][EXPERTS] in shared memory.
template <class X> DEVICE void count_warps(const typename X::Gate *gates, i32 *counts) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  each_gate<X>(gates, blockIdx.x * ROUTE_TOKENS + threadIdx.x, [&](int e, bool open, bool) {
    const u32 votes = __ballot_sync(0xffffffffu, open);
    if (lane == 0) counts[warp * X::EXPERTS + e] = __popc(votes);
  });
  __syncthreads();
}

// count_tokens writes how many tokens of the block's range go to each expert: partial [ranges][EXPERTS].
template <class X> DEVICE void count_tokens(const typename X::Gate *gates, i32 *partial) {
  SHARED;
  i32 *const counts = reinterpret_cast<i32 *>(shared);
  count_warps<X>(gates, counts);
  for (int e = threadIdx.x; e < X::EXPERTS; e += ROUTE_TOKENS) {
    i32 n = 0;
    for (int w = 0; w < 8; w++) n += counts[w * X::EXPERTS + e];
    partial[blockIdx.x * X::EXPERTS + e] = n;
  }
}

// sums_before lets a warp compute, for each of N numbers, the sum of those before it, and returns that of all.
template <int N, class F> DEVICE i32 sums_before(i32 *to, F number) {
  const int lane = threadIdx.x % 32;
  i32 sum = 0;
  for (int first = 0; first < N; first += 32) {
    const int i = first + lane;
    const i32 n = i < N ? number(i) : 0;
    i32 upto = n;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const i32 other = __shfl_up_sync(0xffffffffu, upto, d);
      if (lane >= d) upto += other;
    }
    if (i < N) to[i] = sum + upto - n;
    sum += __shfl_sync(0xffffffffu, upto, 31);
  }
  return sum;
}

// list_tokens writes the slots of the block's range: order[slot] is the token, place[token][expert] the slot. The first
// block also writes counts and starts, the number of an expert's slots and the first of them; −1 as the token of slots
// between experts; and the tiles of each wave: {expert, first slot, slots}, with expert −1 after the last, and behind all
// how many there are.
template <class X>
DEVICE void list_tokens(const typename X::Gate *gates, const i32 *partial, i32 *counts, i32 *starts, i32 *order, i32 *place,
                        int4 *tiles) {
  constexpr int RANGES = (X::TOKENS + ROUTE_TOKENS - 1) / ROUTE_TOKENS, E = X::EXPERTS;
  SHARED;
  i32 *const next = reinterpret_cast<i32 *>(shared);  // [8][E]: destinations of the tokens of each warp
  i32 *const all = next + 8 * E, *const first = all + E, *const tile = first + E;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int token = blockIdx.x * ROUTE_TOKENS + threadIdx.x;
  count_warps<X>(gates, next);
  for (int e = threadIdx.x; e < E; e += ROUTE_TOKENS) {
    i32 before = 0, total = 0;
#pragma unroll 16
    for (int r = 0; r < RANGES; r++) {
      const i32 n = partial[r * E + e];
      if (r < int(blockIdx.x)) before += n;
      total += n;
    }
    all[e] = total;
    for (int w = 0; w < 8; w++) {
      const i32 n = next[w * E + e];
      next[w * E + e] = before;
      before += n;
    }
  }
  __syncthreads();
  if (warp == 0) sums_before<E>(first, [&](int e) { return (all[e] + X::ALIGN - 1) / X::ALIGN * X::ALIGN; });
  __syncthreads();
  if (blockIdx.x == 0) {
    for (int e = threadIdx.x; e < E; e += ROUTE_TOKENS) {
      counts[e] = all[e];
      starts[e] = first[e];
      for (int s = all[e]; s % X::ALIGN != 0; s++) order[first[e] + s] = -1;
    }
    for (int w = 0; w < X::WAVES; w++) {
      const i64 begin = i64(w) * X::CAPACITY, end = begin + X::CAPACITY;
      const auto from = [&](int e) { return int(first[e] > begin ? first[e] : begin); };
      const auto upto = [&](int e) { return int(first[e] + all[e] < end ? first[e] + all[e] : end); };
      int4 *const to = tiles + w * (X::TILES + 1);
      __syncthreads();
      if (warp == 0) {
        const i32 n = sums_before<E>(tile, [&](int e) {
          return upto(e) > from(e) ? (upto(e) - from(e) + X::ROWS - 1) / X::ROWS : 0;
        });
        if (lane == 0) to[X::TILES] = int4{n, 0, 0, 0};
        for (int t = n + lane; t < X::TILES; t += 32) to[t] = int4{-1, 0, 0, 0};
      }
      __syncthreads();
      for (int e = warp; e < E; e += ROUTE_TOKENS / 32) {
        for (int i = lane; from(e) + i * X::ROWS < upto(e); i += 32) {
          const int s = from(e) + i * X::ROWS;
          to[tile[e] + i] = int4{e, s, least(X::ROWS, upto(e) - s), 0};
        }
      }
    }
  }
  each_gate<X>(gates, token, [&](int e, bool open, bool has) {
    const u32 votes = __ballot_sync(0xffffffffu, open);
    if (has && !open) place[i64(token) * E + e] = -1;
    if (!open) return;
    const i32 slot = first[e] + next[warp * E + e] + __popc(votes & ((1u << lane) - 1));
    order[slot] = token;
    place[i64(token) * E + e] = slot;
  });
}

// rows_of lets a warp find the rows of a token's slots that are in a wave, in the order of experts, and returns how many there are.
// found(i, e) is called for row number i, of expert e.
template <class X, class F>
DEVICE int rows_of(const typename X::Gate *gates, const i32 *place, int wave, int token, i32 *rows, F found) {
  const int lane = threadIdx.x % 32;
  int n = 0;
  for (int first = 0; first < X::EXPERTS; first += 32) {
    const int e = first + lane;
    i32 row = -1;
    if (e < X::EXPERTS && gate_open<X>(gates, token, e)) row = place[i64(token) * X::EXPERTS + e] - wave * X::CAPACITY;
    const bool mine = row >= 0 && row < X::CAPACITY;
    const u32 votes = __ballot_sync(0xffffffffu, mine);
    if (mine) {
      const int at = n + __popc(votes & ((1u << lane) - 1));
      rows[at] = row;
      found(at, e);
    }
    n += __popc(votes);
  }
  __syncwarp();
  return n;
}

// spread_row lets a warp copy a row of WIDTH elements to n rows of others.
template <int WIDTH, class T> DEVICE void spread_row(T *to, const T *from, const i32 *rows, int n) {
  constexpr int W = 16 / int(sizeof(T)), AT_ONCE = 8;
  static_assert(WIDTH % W == 0, "rows are whole words");
  if (n == 0) return;
  for (int first = threadIdx.x % 32; first < WIDTH / W; first += 32 * AT_ONCE) {
    uint4 words[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      if (first + 32 * i < WIDTH / W) words[i] = read<uint4>(fixed(from), first + 32 * i);
    }
    for (int r = 0; r < n; r++) {
      uint4 *const at = reinterpret_cast<uint4 *>(to + i64(rows[r]) * WIDTH);
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        if (first + 32 * i < WIDTH / W) at[first + 32 * i] = words[i];
      }
    }
  }
}

// clear_row lets a warp write zeros to a row.
template <int WIDTH, class T> DEVICE void clear_row(T *to, int row) {
  constexpr int W = 16 / int(sizeof(T));
  uint4 *const at = reinterpret_cast<uint4 *>(to + i64(row) * WIDTH);
  for (int i = threadIdx.x % 32; i < WIDTH / W; i += 32) at[i] = uint4{0, 0, 0, 0};
}

// empty_row is row i of those in a wave that belong to no token but to which a tile or a slice may extend: behind the slots of each
// expert, and ROWS behind all. It is −1 if there is no such row.
template <class X> DEVICE int empty_row(const i32 *counts, const i32 *starts, int wave, int i) {
  constexpr int EACH = X::ALIGN - 1, BETWEEN = X::EXPERTS * EACH;
  i64 slot;
  if (EACH > 0 && i < BETWEEN) {
    const int e = i / (EACH > 0 ? EACH : 1), at = counts[e] + i % (EACH > 0 ? EACH : 1);
    if (at >= (counts[e] + EACH) / X::ALIGN * X::ALIGN) return -1;
    slot = starts[e] + at;
  } else {
    if (i >= BETWEEN + X::ROWS) return -1;
    constexpr int LAST = X::EXPERTS - 1;
    slot = starts[LAST] + (counts[LAST] + EACH) / X::ALIGN * X::ALIGN + i - BETWEEN;
  }
  slot -= i64(wave) * X::CAPACITY;
  return slot >= 0 && slot < X::CAPACITY ? int(slot) : -1;
}

// load_counts writes the counts as a result.
template <int EXPERTS, int STRIDE> DEVICE void load_counts(i64 *to, const i32 *counts) {
  const int e = blockIdx.x * 256 + threadIdx.x;
  if (e < EXPERTS) to[e * STRIDE] = counts[e];
}

// tile_of finds a block's tile among those of a wave. It is false if there is none.
template <class X, class P, int BN> DEVICE bool tile_of(const int4 *tiles, int wave, Spot &spot, int &rows) {
  constexpr int TN = (P::N + BN - 1) / BN;
  const int4 t = tiles[wave * (X::TILES + 1) + int(blockIdx.x) / TN];
  spot = {t.x, t.y, int(blockIdx.x) % TN * BN, 0, 0};
  rows = t.z;
  return t.x >= 0;
}

// sum_experts adds up, for one token, the rows [CAPACITY][N] of its slots that are in this wave, in the order of experts,
// each times its gate if WEIGHTED. The first wave starts with zero.
template <class X, int N, int W, int STRIDE, bool WEIGHTED, class T, class R>
DEVICE void sum_experts(T *to, const R *rows, const typename X::Gate *gates, const i32 *place, int wave) {
  typedef typename X::Gate L;
  SHARED;
  L *const weights = reinterpret_cast<L *>(shared);  // of the slots that are found
  i32 *const slots = reinterpret_cast<i32 *>(weights + X::EXPERTS), *const found = slots + X::EXPERTS;
  const int token = blockIdx.x;
  if (threadIdx.x < 32) {
    const int n = rows_of<X>(gates, place, wave, token, slots, [&](int i, int e) {
      weights[i] = WEIGHTED ? gates[token * X::GATE_T + e * X::GATE_E] : L(1);
    });
    if (threadIdx.x == 0) *found = n;
  }
  __syncthreads();
  const int n = *found;
  if (n == 0 && wave > 0) return;
  for (int c = threadIdx.x * W; c < N; c += blockDim.x * W) {
    Vec<L, W> sum = {};
    if (wave > 0) sum = load<L, W, STRIDE, sizeof(T)>(to + i64(c) * STRIDE);
    constexpr int AT_ONCE = 4;
    for (int first = 0; first < n; first += AT_ONCE) {
      Vec<L, W> row[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        if (first + i < n) row[i] = load<L, W, 1, least(16, W * int(sizeof(R)))>(fixed(rows + i64(slots[first + i]) * N + c));
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        if (first + i >= n) break;
#pragma unroll
        for (int j = 0; j < W; j++) sum[j] += weights[first + i] * row[i][j];
      }
    }
    store<STRIDE, sizeof(T)>(to + i64(c) * STRIDE, sum);
  }
}
