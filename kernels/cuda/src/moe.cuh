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
//	typedef … Gate;
//
// A slot is a pair of a token and an expert that it is sent to. Slots are numbered expert by expert, and within an
// expert in the order of tokens.

constexpr int ROUTE_TOKENS = 256;  // that a block of the routing steps takes, 32 to a warp

template <class X> DEVICE bool gate_open(const typename X::Gate *gates, int token, int expert) {
  return token < X::TOKENS && (X::DENSE || gates[token * X::GATE_T + expert * X::GATE_E] != typename X::Gate(0));
}

// count_warps counts the tokens of each warp that go to each expert, [8][EXPERTS] in shared memory.
template <class X> DEVICE void count_warps(const typename X::Gate *gates, i32 *counts) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int token = blockIdx.x * ROUTE_TOKENS + threadIdx.x;
#pragma unroll 8
  for (int e = 0; e < X::EXPERTS; e++) {
    const u32 open = __ballot_sync(0xffffffffu, gate_open<X>(gates, token, e));
    if (lane == 0) counts[warp * X::EXPERTS + e] = __popc(open);
  }
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

// list_tokens writes the slots of the block's range: order[slot] is the token, place[token][expert] the slot. The first
// block also writes counts and starts, the number of an expert's slots and the first of them, and the tiles of each wave:
// {expert, first slot, slots}, with expert −1 after the last.
template <class X>
DEVICE void list_tokens(const typename X::Gate *gates, const i32 *partial, i32 *counts, i32 *starts, i32 *order, i32 *place,
                        int4 *tiles) {
  constexpr int RANGES = (X::TOKENS + ROUTE_TOKENS - 1) / ROUTE_TOKENS, E = X::EXPERTS;
  SHARED;
  i32 *const next = reinterpret_cast<i32 *>(shared);  // [8][E]: destinations of the tokens of each warp
  i32 *const all = next + 8 * E, *const first = all + E;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int token = blockIdx.x * ROUTE_TOKENS + threadIdx.x;
  count_warps<X>(gates, next);
  for (int e = threadIdx.x; e < E; e += ROUTE_TOKENS) {
    i32 before = 0, total = 0;
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
  if (threadIdx.x == 0) {
    i32 at = 0;
    for (int e = 0; e < E; e++) {
      first[e] = at;
      at += all[e];
    }
  }
  __syncthreads();
  if (blockIdx.x == 0) {
    for (int e = threadIdx.x; e < E; e += ROUTE_TOKENS) {
      counts[e] = all[e];
      starts[e] = first[e];
    }
    for (int w = threadIdx.x; w < X::WAVES; w += ROUTE_TOKENS) {
      const i64 begin = i64(w) * X::CAPACITY, end = begin + X::CAPACITY;
      int t = w * X::TILES;
      for (int e = 0; e < E; e++) {
        const int hi = int(first[e] + all[e] < end ? first[e] + all[e] : end);
        for (int s = int(first[e] > begin ? first[e] : begin); s < hi; s += X::ROWS) {
          tiles[t++] = int4{e, s, least(X::ROWS, hi - s), 0};
        }
      }
      for (; t < (w + 1) * X::TILES; t++) tiles[t] = int4{-1, 0, 0, 0};
    }
  }
#pragma unroll 4
  for (int e = 0; e < E; e++) {
    const bool open = gate_open<X>(gates, token, e);
    const u32 votes = __ballot_sync(0xffffffffu, open);
    if (!open) continue;
    const i32 slot = first[e] + next[warp * E + e] + __popc(votes & ((1u << lane) - 1));
    order[slot] = token;
    place[i64(token) * E + e] = slot;
  }
}

// load_counts writes the counts as a result.
template <int EXPERTS, int STRIDE> DEVICE void load_counts(i64 *to, const i32 *counts) {
  const int e = blockIdx.x * 256 + threadIdx.x;
  if (e < EXPERTS) to[e * STRIDE] = counts[e];
}

// tile_of finds a block's tile among those of a wave. It is false if there is none.
template <class X, class P, int BN> DEVICE bool tile_of(const int4 *tiles, int wave, Spot &spot, int &rows) {
  constexpr int TN = (P::N + BN - 1) / BN;
  const int4 t = tiles[wave * X::TILES + int(blockIdx.x) / TN];
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
  const int token = blockIdx.x, lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    int n = 0;
    for (int first = 0; first < X::EXPERTS; first += 32) {
      const int e = first + lane;
      bool mine = e < X::EXPERTS && gate_open<X>(gates, token, e);
      i32 slot = 0;
      if (mine) {
        slot = place[i64(token) * X::EXPERTS + e] - wave * X::CAPACITY;
        mine = slot >= 0 && slot < X::CAPACITY;
      }
      const u32 votes = __ballot_sync(0xffffffffu, mine);
      if (mine) {
        const int at = n + __popc(votes & ((1u << lane) - 1));
        slots[at] = slot;
        weights[at] = WEIGHTED ? gates[token * X::GATE_T + e * X::GATE_E] : L(1);
      }
      n += __popc(votes);
    }
    if (lane == 0) *found = n;
  }
  __syncthreads();
  const int n = *found;
  if (n == 0 && wave > 0) return;
  for (int c = threadIdx.x * W; c < N; c += blockDim.x * W) {
    Vec<L, W> sum = {};
    if (wave > 0) sum = load<L, W, STRIDE, sizeof(T)>(to + i64(c) * STRIDE);
    for (int i = 0; i < n; i++) {
      const auto row = load<L, W, 1, least(16, W * int(sizeof(R)))>(rows + i64(slots[i]) * N + c);
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] += weights[i] * row[j];
    }
    store<STRIDE, sizeof(T)>(to + i64(c) * STRIDE, sum);
  }
}
