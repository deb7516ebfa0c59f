// What collective operations need beside the exchange itself: parts of a value are brought together before they are sent,
// and put into their places after they have come; values of all participants are combined where NCCL does not do it.

// swap_axes copies element e, of W bytes, of a value to [outer, inner, row] that stands as [inner, outer, row].
template <int W> DEVICE void swap_axes(u8 *to, const u8 *from, i64 outer, i64 inner, i64 row, i64 e) {
  typedef typename Word<W>::type word;
  if (e >= outer * inner * row) return;
  const i64 r = e % row, i = e / row % inner, o = e / row / inner;
  reinterpret_cast<word *>(to)[e] = reinterpret_cast<const word *>(from)[(i * outer + o) * row + r];
}

// Some are W elements that are read and written together.
template <class T, int W> struct alignas(W * sizeof(T)) Some { T of[W]; };

// combine combines W elements from e · W on of all values of n elements, which follow one another, in their order, and divides by
// DIVISOR. W divides n.
template <class T, class Lane, class Join, int DIVISOR, int W>
DEVICE void combine(T *to, const T *from, i64 values, i64 n, i64 e) {
  typedef Some<T, W> S;
  if (e * W >= n) return;
  const S first = reinterpret_cast<const S *>(from)[e];
  Lane y[W];
#pragma unroll
  for (int k = 0; k < W; k++) y[k] = convert<Lane>(first.of[k]);
  for (i64 i = 1; i < values; i++) {
    const S next = reinterpret_cast<const S *>(from + i * n)[e];
#pragma unroll
    for (int k = 0; k < W; k++) y[k] = Join::of(y[k], convert<Lane>(next.of[k]));
  }
  S result;
#pragma unroll
  for (int k = 0; k < W; k++) {
    if constexpr (DIVISOR != 1) y[k] = y[k] / Lane(DIVISOR);
    result.of[k] = convert<T>(y[k]);
  }
  reinterpret_cast<S *>(to)[e] = result;
}
