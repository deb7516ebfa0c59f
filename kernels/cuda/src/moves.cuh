// Shared parts of operations that read or write at indices from an operand.

// slice_start reads the start of a slice, and reports it if it is outside 0..last.
DEVICE bool slice_start(const i64 *p, i64 last, Status *status, i64 *start) {
  *start = *p;
  if (*start >= 0 && *start <= last) return true;
  if (threadIdx.x == 0) fail(status, STATUS_START, 0, *start, last);
  return false;
}

// keep copies W elements to memory for what is overwritten.
template <int W, int ALIGN, class T> DEVICE void keep(T *kept, const T *from) {
  store<1, ALIGN>(kept, load<T, W, 1, ALIGN>(from));
}

// checked_index is index number i, or −1 if it is outside 0..dim−1, which is reported.
template <class I> DEVICE i64 checked_index(const I *indices, i64 i, i64 dim, Status *status) {
  const i64 k = indices[i];
  if (k >= 0 && k < dim) return k;
  fail(status, STATUS_INDEX, i, k, dim);
  return -1;
}
