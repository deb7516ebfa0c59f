// What collective operations need beside the exchange itself: parts of a value are brought together before they are sent,
// and put into their places after they have come; values of all participants are combined where NCCL does not do it.

// swap_axes copies element e, of W bytes, of a value to [outer, inner, row] that stands as [inner, outer, row].
template <int W> DEVICE void swap_axes(u8 *to, const u8 *from, i64 outer, i64 inner, i64 row, i64 e) {
  typedef typename Word<W>::type word;
  if (e >= outer * inner * row) return;
  const i64 r = e % row, i = e / row % inner, o = e / row / inner;
  reinterpret_cast<word *>(to)[e] = reinterpret_cast<const word *>(from)[(i * outer + o) * row + r];
}

// combine combines element e of all values of n elements, which follow one another, in their order, and divides by DIVISOR.
template <class T, class Lane, class Join, int DIVISOR> DEVICE void combine(T *to, const T *from, i64 values, i64 n, i64 e) {
  if (e >= n) return;
  Lane y = convert<Lane>(from[e]);
  for (i64 i = 1; i < values; i++) y = Join::of(y, convert<Lane>(from[i * n + e]));
  if constexpr (DIVISOR != 1) y = y / Lane(DIVISOR);
  to[e] = convert<T>(y);
}
