// Selection of the largest elements: of a row, of experts by tokens, and of tokens by experts.

// ahead reports whether x at i comes before y at j in descending order: equal elements keep their order, NaN comes
// last.
template <class T> DEVICE bool ahead(T x, i64 i, T y, i64 j) {
  if (x > y || (y != y && x == x)) return true;
  if (x < y || (x != x && y == y)) return false;
  return i < j;
}

// top_k lets a warp find the K largest of n elements, and its first thread pass them to f, in descending order.
template <int K, class T, class F> DEVICE void top_k(const T *x, i64 n, F f) {
  const int lane = int(threadIdx.x) % 32;
  T last = 0;
  i64 at = -1;
  for (int k = 0; k < K; k++) {
    T best = 0;
    i64 where = -1;
    for (i64 i = lane; i < n; i += 32) {
      const T v = x[i];
      if (k > 0 && !ahead(last, at, v, i)) continue;  // found before
      if (where < 0 || ahead(v, i, best, where)) {
        best = v;
        where = i;
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const T v = __shfl_xor_sync(0xffffffffu, best, step);
      const i64 i = __shfl_xor_sync(0xffffffffu, where, step);
      if (i >= 0 && (where < 0 || ahead(v, i, best, where))) {
        best = v;
        where = i;
      }
    }
    last = best;
    at = where;
    if (lane == 0) f(k, best, where);
  }
}

// Ranked stores the results of top_k as the values and indices of a row.
template <class T> struct Ranked {
  T *values;
  i64 *indices;
  DEVICE void operator()(int k, T x, i64 i) const {
    values[k] = x;
    indices[k] = i;
  }
};

// wanted reports whether a score is neither NaN nor −Inf.
template <class T> DEVICE bool wanted(T x) { return x - x == T(0) || x > T(0); }

// place_among is how many threads before this one have the flag set, and how many in total.
template <int THREADS> DEVICE i32 place_among(bool flag, i32 *total, i32 *room) {
  const u32 votes = __ballot_sync(0xffffffffu, flag);
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  __syncthreads();  // of what was read before
  if (lane == 0) room[warp] = __popc(votes);
  __syncthreads();
  i32 before = 0, sum = 0;
  for (int i = 0; i < THREADS / 32; i++) {
    if (i == warp) before = sum;
    sum += room[i];
  }
  *total = sum;
  return before + __popc(votes & ((1u << lane) - 1));
}

// Key<T>::of maps scores to integers in the same order; unwanted scores give 0.
template <class T> struct Key;
template <> struct Key<float> {
  typedef u32 type;
  static DEVICE u32 of(float x) {
    if (!wanted(x)) return 0;
    const u32 u = float_to_bits(x == 0.0f ? 0.0f : x);
    return u >> 31 ? ~u : u | 0x80000000u;
  }
};
template <> struct Key<double> {
  typedef u64 type;
  static DEVICE u64 of(double x) {
    if (!wanted(x)) return 0;
    union { double d; u64 u; } v;
    v.d = x == 0.0 ? 0.0 : x;
    return v.u >> 63 ? ~v.u : v.u | 1ull << 63;
  }
};

// choose_experts lets G neighbouring threads find the K of EXPERTS experts with a token's highest scores; each thread
// compares U. If SEND is set, the token is sent to all of them. Otherwise choice [K][tokens] gets them, −1 for none.
template <int G, int U, int EXPERTS, int K, bool SEND, class T>
DEVICE void choose_experts(const T *scores, i64 tokens, bool *sent, i64 *dropped, i32 *choice) {
  typedef typename Key<T>::type key;
  const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x, token = thread / G;
  const int lane = int(threadIdx.x) % G, first = int(threadIdx.x) % 32 / G * G;
  const u32 before = (1u << (first + lane)) - (1u << first);  // threads of the token before this one
  const bool live = token < tokens;
  key keys[U];
  bool chosen[U];
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = lane * U + u;
    keys[u] = live && e < EXPERTS ? Key<T>::of(scores[token * EXPERTS + e]) : 0;
    chosen[u] = false;
  }
  for (int k = 0; k < K; k++) {
    key mine = 0;
#pragma unroll
    for (int u = 0; u < U; u++) mine = keys[u] > mine ? keys[u] : mine;
    key best = mine;
#pragma unroll
    for (int step = G / 2; step > 0; step /= 2) {
      const key other = __shfl_xor_sync(0xffffffffu, best, step);
      best = other > best ? other : best;
    }
    const u32 votes = __ballot_sync(0xffffffffu, mine == best);
    if (best == 0) {
      if (!SEND && live && lane == 0) choice[k * tokens + token] = -1;
      continue;
    }
    bool wins = mine == best && (votes & before) == 0;
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (!wins || keys[u] != best) continue;
      keys[u] = 0;
      chosen[u] = true;
      wins = false;
      if (!SEND) choice[k * tokens + token] = lane * U + u;
    }
  }
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = lane * U + u;
    if (live && e < EXPERTS) sent[token * EXPERTS + e] = SEND && chosen[u];
  }
  if (SEND && thread < EXPERTS) dropped[thread] = 0;
}

// chosen_by passes to f, 32 tokens at a time, which of the tokens begin to end of a list chose an expert. It starts
// many reads before it uses them, to hide their latency.
template <class F> DEVICE void chosen_by(const i32 *choice, i64 begin, i64 end, i64 expert, F f) {
  constexpr int AHEAD = 16;
  const int lane = int(threadIdx.x) % 32;
  for (i64 base = begin; base < end; base += 32 * AHEAD) {
    i32 c[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const i64 token = base + 32 * i + lane;
      c[i] = token < end ? choice[token] : -1;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      if (base + 32 * i < end) f(base + 32 * i + lane, __ballot_sync(0xffffffffu, c[i] == expert));
    }
  }
}

// send_first sends to a block's expert the tokens that chose it first, in their order, then those that chose it second,
// and so on, CAPACITY in all; the rest are dropped. Each warp has consecutive tokens. room has K numbers for each warp.
template <int THREADS, int K, int CAPACITY>
DEVICE void send_first(const i32 *choice, i64 tokens, i64 experts, bool *sent, i64 *dropped, i32 *room) {
  constexpr int WARPS = THREADS / 32;
  const i64 expert = blockIdx.x, share = (tokens + THREADS - 1) / THREADS * 32;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const i64 begin = warp * share, end = begin + share < tokens ? begin + share : tokens;
  for (int k = 0; k < K; k++) {
    i32 n = 0;
    chosen_by(choice + k * tokens, begin, end, expert, [&](i64, u32 votes) { n += __popc(votes); });
    if (lane == 0) room[k * WARPS + warp] = n;
  }
  __syncthreads();
  i64 load = 0;
  for (int k = 0; k < K; k++) {
    const i32 n = lane < WARPS ? room[k * WARPS + lane] : 0;
    i32 all = n, before = lane < warp ? n : 0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      all += __shfl_xor_sync(0xffffffffu, all, step);
      before += __shfl_xor_sync(0xffffffffu, before, step);
    }
    i64 place = load + before;
    load += all;
    if (room[k * WARPS + warp] == 0 || place >= CAPACITY) continue;
    chosen_by(choice + k * tokens, begin, end, expert, [&](i64 token, u32 votes) {
      const bool mine = votes >> lane & 1;
      if (mine && place + __popc(votes & ((1u << lane) - 1)) < CAPACITY) sent[token * experts + expert] = true;
      place += __popc(votes);
    });
  }
  if (threadIdx.x == 0) dropped[expert] = load > CAPACITY ? load - CAPACITY : 0;
}

// count_all adds up the numbers of a block's threads; all get the sum.
template <int THREADS> DEVICE i32 count_all(i32 n, i32 *room) {
  room[threadIdx.x] = n;
  __syncthreads();
  for (int step = THREADS / 2; step > 0; step /= 2) {
    if (int(threadIdx.x) < step) room[threadIdx.x] += room[threadIdx.x + step];
    __syncthreads();
  }
  n = room[0];
  __syncthreads();
  return n;
}

// take_best lets a block's expert take the CAPACITY tokens with its highest scores, the first of equal ones. The least
// key that is taken is found bit by bit.
template <int THREADS, class T>
DEVICE void take_best(const T *scores, i64 tokens, i64 experts, i64 capacity, bool *sent, i32 *room) {
  typedef typename Key<T>::type key;
  const i64 expert = blockIdx.x;
  key least_key = 0;
  i64 above = 0;  // with greater keys than the least
  for (int bit = int(sizeof(key)) * 8 - 1; bit >= -1; bit--) {
    const key tried = bit < 0 ? least_key + 1 : least_key | key(1) << bit;
    i32 n = 0;
    for (i64 t = threadIdx.x; t < tokens; t += THREADS) n += Key<T>::of(scores[t * experts + expert]) >= tried;
    n = count_all<THREADS>(n, room);
    if (bit < 0) above = n;
    else if (n >= capacity) least_key = tried;
  }
  i64 ties = 0;
  for (i64 base = 0; base < tokens; base += THREADS) {
    const i64 t = base + threadIdx.x;
    const key k = t < tokens ? Key<T>::of(scores[t * experts + expert]) : 0;
    const bool tie = k == least_key && k != 0;
    i32 total;
    const i64 place = ties + place_among<THREADS>(tie, &total, room);
    if (k > least_key || (tie && above + place < capacity)) sent[t * experts + expert] = true;
    ties += total;
  }
}

// count_lost counts the tokens that no expert took.
template <int THREADS> DEVICE void count_lost(const bool *sent, i64 tokens, i64 experts, i64 *dropped, i32 *room) {
  i32 n = 0;
  for (i64 t = threadIdx.x; t < tokens; t += THREADS) {
    bool taken = false;
    for (i64 e = 0; e < experts; e++) taken = taken || sent[t * experts + e];
    n += !taken;
  }
  n = count_all<THREADS>(n, room);
  if (threadIdx.x == 0) dropped[0] = n;
}
