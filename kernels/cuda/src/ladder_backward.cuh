// The gradient of a linear layer y = x·w + b, as simple variants for comparison: dx = dy·wᵀ, dw = xᵀ·dy, and db, the
// column sums of dy. No sum is shared between blocks, so that none needs atomic additions, and each has one order.

// A Strided is a matrix in memory, with the steps from row to row and from column to column, in elements.
template <class T> struct Strided {
  T *at;
  i64 row, col;
  DEVICE T &operator()(i64 i, i64 j) const { return at[i * row + j * col]; }
  DEVICE Strided transposed() const { return {at, col, row}; }
};

// backward_naive computes an element of c[ROWS,COLS] = a·b in each thread, DEPTH products long.
template <int ROWS, int COLS, int DEPTH>
DEVICE void backward_naive(Strided<const float> a, Strided<const float> b, Strided<float> c) {
  const i64 e = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (e >= i64(ROWS) * COLS) return;
  const i64 i = e / COLS, j = e % COLS;
  float sum = 0;
  for (int k = 0; k < DEPTH; k++) sum += a(i, k) * b(k, j);
  c(i, j) = sum;
}

// backward_columns adds up a column of dy[ROWS,COLS] in each thread.
template <int ROWS, int COLS> DEVICE void backward_columns(Strided<const float> dy, Strided<float> db) {
  const i64 j = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= COLS) return;
  float sum = 0;
  for (int i = 0; i < ROWS; i++) sum += dy(i, j);
  db(0, j) = sum;
}

// backward_tile computes tile number `tile` of c[ROWS,COLS] = a·b by a block of 256 threads: 64×64 elements, 4×4 of them
// in each thread, from pieces of a and b, 16 steps along k, in shared memory. KINNER says that elements are contiguous
// along k in memory, and not along the rows of c (the columns); neighbouring threads read such elements. With SUMS the
// tiles of the first 64 rows add up the columns of b, from the pieces that they load anyway, into sums.
template <int ROWS, int COLS, int DEPTH, bool KINNER, bool SUMS>
DEVICE void backward_tile(int tile, Strided<const float> a, Strided<const float> b, Strided<float> c,
                          Strided<float> sums) {
  constexpr int SIDE = 64, STEPS = 16, EACH = 4, LANES = SIDE / EACH, THREADS = LANES * LANES;
  constexpr int LINE = SIDE + 1;  // so that a column of a piece is spread over many banks
  constexpr int ACROSS = (COLS + SIDE - 1) / SIDE;
  SHARED;
  float *const as = reinterpret_cast<float *>(shared), *const bs = as + STEPS * LINE;
  const int first = tile / ACROSS * SIDE, left = tile % ACROSS * SIDE;
  const int x = threadIdx.x % LANES, y = threadIdx.x / LANES;
  const bool adds = SUMS && first == 0 && threadIdx.x < SIDE;
  float acc[EACH][EACH] = {}, total = 0;
  for (int begin = 0; begin < DEPTH; begin += STEPS) {
#pragma unroll
    for (int e = threadIdx.x; e < STEPS * SIDE; e += THREADS) {
      const int s = KINNER ? e % STEPS : e / SIDE, o = KINNER ? e / STEPS : e % SIDE, k = begin + s;
      as[s * LINE + o] = first + o < ROWS && k < DEPTH ? a(first + o, k) : 0.0f;
      bs[s * LINE + o] = left + o < COLS && k < DEPTH ? b(k, left + o) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      float u[EACH], v[EACH];
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        u[i] = as[s * LINE + i * LANES + y];
        v[i] = bs[s * LINE + i * LANES + x];
      }
#pragma unroll
      for (int i = 0; i < EACH; i++) {
#pragma unroll
        for (int j = 0; j < EACH; j++) acc[i][j] += u[i] * v[j];
      }
    }
    if (adds) {
#pragma unroll
      for (int s = 0; s < STEPS; s++) total += bs[s * LINE + threadIdx.x];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) {
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const int row = first + i * LANES + y, col = left + j * LANES + x;
      if (row < ROWS && col < COLS) c(row, col) = acc[i][j];
    }
  }
  if (adds && left + int(threadIdx.x) < COLS) sums(0, left + threadIdx.x) = total;
}
