// Simple variants of kernels for comparison with those that programs use: matrix products, attention, and the gradient of
// a linear layer y = x·w + b, which is dx = dy·wᵀ, dw = xᵀ·dy and db, the column sums of dy. No sum is shared between
// blocks, so that none needs atomic additions, and each has one order.

// A Strided is matrices in memory, with the steps from row to row, from column to column and from matrix to matrix, in
// elements.
template <class T> struct Strided {
  T *at;
  i64 row, col, batch;
  DEVICE T &operator()(i64 i, i64 j) const { return at[i * row + j * col]; }
  DEVICE Strided transposed() const { return {at, col, row, batch}; }
  DEVICE Strided matrix(i64 i) const { return {at + i * batch, row, col, 0}; }
};

// naive_product computes an element of c[BATCH,ROWS,COLS] = a·b in each thread, DEPTH products long: its row of a and its
// column of b are read from memory, or from the caches, again for every element.
template <int BATCH, int ROWS, int COLS, int DEPTH, class A, class B> DEVICE void naive_product(A a, B b, Strided<float> c) {
  const i64 e = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (e >= i64(BATCH) * ROWS * COLS) return;
  const i64 m = e / COLS / ROWS, i = e / COLS % ROWS, j = e % COLS;
  const A x = a.matrix(m);
  const B y = b.matrix(m);
  float sum = 0;
  for (int k = 0; k < DEPTH; k++) sum += x(i, k) * y(k, j);
  c.matrix(m)(i, j) = sum;
}

// tiled_product computes an element of c[ROWS,COLS] = a·b in each thread of a block of 32×32, from tiles of a and b that
// the block brings into shared memory together: each element is read from memory once for 32 products.
template <int ROWS, int COLS, int DEPTH>
DEVICE void tiled_product(Strided<const float> a, Strided<const float> b, Strided<float> c) {
  constexpr int SIDE = 32, ACROSS = (COLS + SIDE - 1) / SIDE;
  SHARED;
  float *const as = reinterpret_cast<float *>(shared), *const bs = as + SIDE * SIDE;
  const int row = threadIdx.x / SIDE, col = threadIdx.x % SIDE;
  const int i = blockIdx.x / ACROSS * SIDE + row, j = blockIdx.x % ACROSS * SIDE + col;
  float sum = 0;
  for (int begin = 0; begin < DEPTH; begin += SIDE) {
    as[row * SIDE + col] = i < ROWS && begin + col < DEPTH ? a(i, begin + col) : 0.0f;
    bs[row * SIDE + col] = j < COLS && begin + row < DEPTH ? b(begin + row, j) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SIDE; k++) sum += as[row * SIDE + k] * bs[k * SIDE + col];
    __syncthreads();
  }
  if (i < ROWS && j < COLS) c(i, j) = sum;
}

// naive_softmax turns rows of scores [HEADS,QUERIES,KEYS] into probabilities, a warp for each row. If CAUSAL, query i
// attends keys up to i + KEYS − QUERIES.
template <int HEADS, int QUERIES, int KEYS, bool CAUSAL> DEVICE void naive_softmax(float *scores, float scale) {
  const int lane = threadIdx.x % 32;
  const i64 row = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= i64(HEADS) * QUERIES) return;
  const int reach = CAUSAL ? int(row % QUERIES) + KEYS - QUERIES + 1 : KEYS;
  const float least = bits_to_float(0xff800000u);  // minus infinity
  float *const x = scores + row * KEYS;
  float top = least, sum = 0;
  for (int j = lane; j < reach; j += 32) top = fmaxf(top, scale * x[j]);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
  for (int j = lane; j < KEYS; j += 32) sum += x[j] = j >= reach || top == least ? 0.0f : expf(scale * x[j] - top);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  for (int j = lane; j < KEYS; j += 32) x[j] = sum == 0.0f ? 0.0f : x[j] / sum;
}

// column_sums adds up a column of dy[ROWS,COLS] in each thread.
template <int ROWS, int COLS> DEVICE void column_sums(Strided<const float> dy, Strided<float> db) {
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
