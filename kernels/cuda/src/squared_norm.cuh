// Sums of squares in f64.

// sum_doubles adds n numbers up with a block; all threads get the sum.
template <int THREADS> DEVICE double sum_doubles(const double *x, i64 n, double *room) {
  Vec<double, 1> sum = splat<1>(0.0);
  for (i64 i = threadIdx.x; i < n; i += THREADS) sum[0] += x[i];
  return column_reduce<Sum, 1, THREADS>(sum, reinterpret_cast<Vec<double, 1> *>(room))[0];
}

// sum_squares adds up the squares of a block's elements, BLOCK of the last row whose first block is not after it.
template <int THREADS, int BLOCK, class Row>
DEVICE void sum_squares(const Row *rows, int n, i64 block, double *partial, double *room) {
  int i = 0, last = n - 1;
  while (i < last) {
    const int middle = (i + last + 1) / 2;
    if (rows[middle].first <= block) i = middle;
    else last = middle - 1;
  }
  const Row &row = rows[i];
  const i64 begin = (block - row.first) * BLOCK, end = begin + BLOCK < row.n ? begin + BLOCK : row.n;
  Vec<double, 1> sum = splat<1>(0.0);
#pragma unroll 8
  for (i64 k = begin + threadIdx.x; k < end; k += THREADS) {
    const double x = convert<double>(row.x[k]);
    sum[0] += x * x;
  }
  sum = column_reduce<Sum, 1, THREADS>(sum, reinterpret_cast<Vec<double, 1> *>(room));
  if (threadIdx.x == 0) partial[block] = sum[0];
}
