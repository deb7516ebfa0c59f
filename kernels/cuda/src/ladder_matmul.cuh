// Simple variants of matrix products for comparison with gemm_simt.cuh. See gemm.cuh for Problem and Body; there are no
// column sums, and W is 1.

// ladder_naive computes an element in each thread of a block of 16×16: its row of A and its column of B are read from
// memory, or from the caches, again for every element.
template <class P, class Body>
DEVICE void ladder_naive(Body body, const Piece<P> &piece, const Spot &spot, typename Body::Sum *) {
  const int row = threadIdx.x / 16, col = threadIdx.x % 16;
  if (row >= piece.rows || col >= piece.cols) return;
  typename P::Acc sum = 0;
  for (int k = 0; k < piece.k; k++) sum += piece.a[row * P::A_M + k * P::A_K] * piece.b[k * P::B_K + col * P::B_N];
  Vec<typename P::Acc, 1> acc;
  acc[0] = sum;
  body(spot.batch, spot.m + row, spot.n + col, acc, (Vec<typename Body::Sum, 1> *)nullptr);
}

// ladder_tiled computes an element in each thread of a block of 32×32, from tiles of A and B that the block brings into
// shared memory together: each element is read from memory once for 32 products.
template <class P, class Body>
DEVICE void ladder_tiled(Body body, const Piece<P> &piece, const Spot &spot, typename Body::Sum *) {
  typedef typename P::Acc T;
  constexpr int SIDE = 32;
  SHARED;
  T *const a = reinterpret_cast<T *>(shared), *const b = a + SIDE * SIDE;
  const int row = threadIdx.x / SIDE, col = threadIdx.x % SIDE;
  T sum = 0;
  for (int begin = 0; begin < piece.k; begin += SIDE) {
    const int ka = begin + col, kb = begin + row;
    a[row * SIDE + col] = row < piece.rows && ka < piece.k ? T(piece.a[row * P::A_M + ka * P::A_K]) : T(0);
    b[row * SIDE + col] = kb < piece.k && col < piece.cols ? T(piece.b[kb * P::B_K + col * P::B_N]) : T(0);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SIDE; k++) sum += a[row * SIDE + k] * b[k * SIDE + col];
    __syncthreads();
  }
  if (row >= piece.rows || col >= piece.cols) return;
  Vec<T, 1> acc;
  acc[0] = sum;
  body(spot.batch, spot.m + row, spot.n + col, acc, (Vec<typename Body::Sum, 1> *)nullptr);
}
