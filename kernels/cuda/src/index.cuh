// Lists of the indices of each row, in their order.

// scan_counts turns the counts of n−1 rows, each at its row's place plus 1, into the starts of the rows' lists, and
// copies those.
template <int THREADS> DEVICE void scan_counts(i32 *first, i32 *copy, i64 n, i32 *room) {
  const int t = int(threadIdx.x);
  const i64 each = (n + THREADS - 1) / THREADS, begin = t * each, end = begin + each < n ? begin + each : n;
  i32 sum = 0;
  for (i64 i = begin; i < end; i++) sum += first[i];
  room[t] = sum;
  __syncthreads();
  for (int step = 1; step < THREADS; step *= 2) {
    const i32 before = t >= step ? room[t - step] : 0;
    __syncthreads();
    room[t] += before;
    __syncthreads();
  }
  sum = room[t] - sum;
  for (i64 i = begin; i < end; i++) {
    sum += first[i];
    first[i] = copy[i] = sum;
  }
}

// list_by_row appends the numbers of indices to their row's list, in order. Indices outside 0..dim−1 are in no list.
template <int THREADS, class I> DEVICE void list_by_row(const I *indices, i64 n, i64 dim, i32 *cursor, i32 *order, i64 *room) {
  const int t = int(threadIdx.x);
  for (i64 base = 0; base < n; base += THREADS) {
    i64 row = base + t < n ? i64(indices[base + t]) : -1;
    if (row >= dim) row = -1;
    room[t] = row;
    __syncthreads();
    int before = 0, after = 0;
    for (int i = 0; i < THREADS; i++) {
      if (room[i] == row) (i < t ? before : after)++;
    }
    i32 at = 0;
    if (row >= 0) at = cursor[row] + before;
    __syncthreads();
    if (row >= 0) {
      order[at] = i32(base + t);
      if (after == 1) cursor[row] = at + 1;  // the last of its row
    }
    __syncthreads();
  }
}
