// Attention by its definition, as a simple variant for comparison: all scores are in memory, with one launch each for
// the scores, their softmax, and their product with the values. A problem P is that of attention.cuh; scratch(p) holds
// all heads·queries·keys scores.

// naive_scores computes a score in each thread.
template <class P, class Args> DEVICE void naive_scores(const Args &p) {
  const i64 e = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (e >= i64(P::BATCH) * P::HEADS * P::QUERIES * P::KEYS) return;
  const int j = int(e % P::KEYS), i = int(e / P::KEYS % P::QUERIES), head = int(e / P::KEYS / P::QUERIES);
  const float *q = P::q(p, head).row(i), *k = P::k(p, head / P::GROUP).row(j);
  float x = 0;
  for (int c = 0; c < P::DEPTH; c++) x += q[c] * k[c];
  P::scratch(p)[e] = score<P>(p, head, i, j, reach<P>(i, P::KEYS), x);
}

// naive_softmax turns the scores of a query into probabilities, a warp for each.
template <class P, class Args> DEVICE void naive_softmax(const Args &p) {
  const int lane = threadIdx.x % 32;
  const i64 row = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= i64(P::BATCH) * P::HEADS * P::QUERIES) return;
  float *const x = P::scratch(p) + row * P::KEYS;
  float top = minus_infinity<float>(), sum = 0;
  for (int j = lane; j < P::KEYS; j += 32) top = fmaxf(top, x[j]);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
  for (int j = lane; j < P::KEYS; j += 32) sum += x[j] = top == minus_infinity<float>() ? 0.0f : expf(x[j] - top);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  for (int j = lane; j < P::KEYS; j += 32) x[j] = sum == 0.0f ? 0.0f : x[j] / sum;
}

// naive_values computes an element of the result in each thread.
template <class P, class Args> DEVICE void naive_values(const Args &p) {
  const i64 e = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (e >= i64(P::BATCH) * P::HEADS * P::QUERIES * P::WIDTH) return;
  const int c = int(e % P::WIDTH), i = int(e / P::WIDTH % P::QUERIES), head = int(e / P::WIDTH / P::QUERIES);
  const auto v = P::v(p, head / P::GROUP);
  const float *x = P::scratch(p) + e / P::WIDTH * P::KEYS;
  float y = 0;
  for (int j = 0; j < P::KEYS; j++) y += x[j] * v.row(j)[c];
  put(P::out(p, head), i, c, y);
}
