// The parts of the gradient of a mixture of experts other than products; see moe_grad.go and, for Mixture, moe.cuh.

// fixed_at is an element of memory that nothing writes during the launch.
template <class T> DEVICE T fixed_at(const T *p, i64 i) { return read<T>(fixed(p), i); }

// scaled is factor·Σ_i a[i]·b[j,i] for W columns j, of the sums that a product has made. Where a sum or a factor is not
// finite, it is Σ_i (factor·a[i])·b[j,i] instead: finite if a small factor keeps the terms in range, and 0 if there are
// no terms.
template <int N, i64 A, i64 B_ROW, i64 B_COL, class L, class T, int W>
DEVICE Vec<L, W> scaled(Vec<L, W> factor, Vec<L, W> sums, const T *a, const T *b) {
  Vec<L, W> r;
  L zero = 0;  // or NaN, if a product is not finite
#pragma unroll
  for (int j = 0; j < W; j++) {
    r[j] = factor[j] * sums[j];
    zero += r[j] * L(0);
  }
  if (zero == L(0)) return r;
  Vec<L, W> again = {};
#pragma unroll 1
  for (int i = 0; i < N; i++) {
    const L x = convert<L>(a[i * A]);
#pragma unroll
    for (int j = 0; j < W; j++) again[j] += factor[j] * x * convert<L>(b[j * B_ROW + i * B_COL]);
  }
#pragma unroll
  for (int j = 0; j < W; j++) {
    if (!(r[j] - r[j] == L(0))) r[j] = again[j];
  }
  return r;
}

// scaled_total is the sum of scaled.
template <int N, i64 A, i64 B_ROW, i64 B_COL, class L, class T, int W>
DEVICE L scaled_total(Vec<L, W> factor, Vec<L, W> sums, const T *a, const T *b) {
  L sum = 0;
#pragma unroll
  for (int j = 0; j < W; j++) sum += factor[j] * sums[j];
  if (sum - sum == L(0)) return sum;
  const auto all = scaled<N, A, B_ROW, B_COL>(factor, sums, a, b);
  sum = 0;
#pragma unroll
  for (int j = 0; j < W; j++) sum += all[j];
  return sum;
}

// gate_gradients writes the gradient of one token's gates: for an expert that it is sent to, the sum of h⊙(dy·w2ᵀ) of its slot,
// given as a row of PIECES sums, and of dy·b2. A gate that is zero gets zero. A warp takes an expert; later waves add to the first.
template <class X, int PIECES, int RESULT, i64 DY_T, i64 DY_C, bool BIAS, i64 B_C, i64 D_T, i64 D_E, class T, class L, class B>
DEVICE void gate_gradients(L *to, const L *products, const T *dy, B b2, const L *gates, const i32 *place, int wave) {
  const int token = blockIdx.x, lane = threadIdx.x % 32;
  for (int e = threadIdx.x / 32; e < X::EXPERTS; e += blockDim.x / 32) {
    L sum = 0;
    bool mine = gate_open<X>(gates, token, e);
    if (mine) {
      const i32 slot = place[i64(token) * X::EXPERTS + e] - wave * X::CAPACITY;
      mine = slot >= 0 && slot < X::CAPACITY;
      if (mine) {
        for (int c = lane; c < PIECES; c += 32) sum += products[i64(slot) * PIECES + c];
        if constexpr (BIAS) {
          for (int c = lane; c < RESULT; c += 32) sum += convert<L>(dy[token * DY_T + c * DY_C]) * b2[e][c * B_C];
        }
      }
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane == 0 && (wave == 0 || mine)) to[token * D_T + e * D_E] = sum;
  }
}

// slots_of is the part of an expert's slots that is in a wave: the first, and how many.
template <class X> DEVICE int slots_of(const i32 *counts, const i32 *starts, int expert, int wave, int &first) {
  const i64 begin = i64(wave) * X::CAPACITY, from = starts[expert], to = from + counts[expert];
  const i64 lo = from > begin ? from : begin, hi = to < begin + X::CAPACITY ? to : begin + X::CAPACITY;
  first = int(lo);
  return hi > lo ? int(hi - lo) : 0;
}

// bias_gradients adds up a value of each slot of an expert, for 32 of N columns: eight threads to a column take every
// eighth slot, and the eight are added in order. value(slot, column) reads it; later waves add to the first.
template <class X, int N, int STRIDE, class To, class F>
DEVICE void bias_gradients(To to, const i32 *counts, const i32 *starts, int wave, F value) {
  typedef typename X::Gate L;
  constexpr int TN = (N + 31) / 32;
  SHARED;
  L *const s = reinterpret_cast<L *>(shared);
  const int expert = blockIdx.x / TN, lane = threadIdx.x / 32, c = threadIdx.x % 32, n = blockIdx.x % TN * 32 + c;
  int first;
  const int count = slots_of<X>(counts, starts, expert, wave, first);
  L sum = 0;
  if (n < N) {
    for (int i = lane; i < count; i += 8) sum += value(expert, first + i, n);
  }
  s[lane * 32 + c] = sum;
  __syncthreads();
  if (lane != 0 || n >= N) return;
  for (int l = 1; l < 8; l++) sum += s[l * 32 + c];
  L *const at = to[expert] + i64(n) * STRIDE;
  *at = wave == 0 ? sum : *at + sum;
}
