// Reductions by the threads of a block, in an order that depends only on sizes.

struct Sum {
  template <class T> static DEVICE T identity() { return T(0); }
  template <class T> static DEVICE T join(T x, T y) { return op::add(x, y); }
};
struct Prod {
  template <class T> static DEVICE T identity() { return T(1); }
  template <class T> static DEVICE T join(T x, T y) { return op::mul(x, y); }
};

template <class T> struct Limits {
  static DEVICE T least() {
    if constexpr (!Integer<T>::value) return T(bits_to_float(0xff800000u));
    return T(-1) < T(0) ? T(u64(1) << (8 * sizeof(T) - 1)) : T(0);
  }
  static DEVICE T greatest() {
    if constexpr (!Integer<T>::value) return T(bits_to_float(0x7f800000u));
    return T(~u64(least()));
  }
};
struct MaxOf {
  template <class T> static DEVICE T identity() { return Limits<T>::least(); }
  template <class T> static DEVICE T join(T x, T y) { return op::max(x, y); }
};
struct MinOf {
  template <class T> static DEVICE T identity() { return Limits<T>::greatest(); }
  template <class T> static DEVICE T join(T x, T y) { return op::min(x, y); }
};

// join combines vectors element by element.
template <class F, class T, int W> DEVICE Vec<T, W> join(Vec<T, W> x, Vec<T, W> y) {
#pragma unroll
  for (int i = 0; i < W; i++) x[i] = F::join(x[i], y[i]);
  return x;
}

// joined combines the elements of a vector, two by two.
template <class F, class T, int W> DEVICE T joined(Vec<T, W> x) {
#pragma unroll
  for (int step = W / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < step; i++) x[i] = F::join(x[i], x[i + step]);
  }
  return x[0];
}

// row_reduce combines a number of each of THREADS neighbouring threads, a power of two; all of them get the result. If
// THREADS is more than a warp, it is the whole block, and room has one number for each warp, used once between
// barriers.
template <class F, int THREADS, class T> DEVICE T row_reduce(T x, T *room) {
#pragma unroll
  for (int step = least(THREADS, 32) / 2; step > 0; step /= 2) x = F::join(x, T(__shfl_xor_sync(0xffffffffu, Wide<T>(x), step)));
  if constexpr (THREADS > 32) {
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = room[threadIdx.x % (THREADS / 32)];
#pragma unroll
    for (int step = THREADS / 64; step > 0; step /= 2) x = F::join(x, T(__shfl_xor_sync(0xffffffffu, Wide<T>(x), step)));
  }
  return x;
}

// column_reduce combines the values of TY threads of a block of TX·TY that have the same position among TX; all get it.
// room has one value for each thread.
template <class F, int TX, int TY, class V> DEVICE V column_reduce(V x, V *room) {
  if constexpr (TY > 1) {
    const int tx = int(threadIdx.x) % TX, ty = int(threadIdx.x) / TX;
    room[threadIdx.x] = x;
    __syncthreads();
#pragma unroll
    for (int step = TY / 2; step > 0; step /= 2) {
      if (ty < step) room[threadIdx.x] = x = join<F>(x, room[threadIdx.x + step * TX]);
      __syncthreads();
    }
    x = room[tx];
    __syncthreads();
  }
  return x;
}

// gather_parts combines number column of PARTS rows of n numbers, as the TX·TY threads of a block do for TX columns.
template <class F, int TX, int TY, int PARTS, class T> DEVICE T gather_parts(const T *p, i64 n, i64 column, bool live, T *room) {
  Vec<T, 1> x = splat<1>(F::template identity<T>());
  if (live) {
#pragma unroll 8
    for (int i = int(threadIdx.x) / TX; i < PARTS; i += TY) x[0] = F::join(x[0], p[i * n + column]);
  }
  return column_reduce<F, TX, TY>(x, reinterpret_cast<Vec<T, 1> *>(room))[0];
}

// add_columns adds to column sums in memory, or sets them.
template <int W, class T> DEVICE void add_columns(T *sums, Vec<T, W> x, bool first) {
#pragma unroll
  for (int i = 0; i < W; i++) sums[i] = first ? x[i] : op::add(sums[i], x[i]);
}

// store_columns adds the column sums of the PLACES rows that a block of THREADS has at once, in order, and stores those
// of the block. SHARE threads have a row of N, W elements side by side each. room has PLACES·N numbers.
template <int PLACES, int SHARE, int N, int THREADS, class T, int W, int U>
DEVICE void store_columns(T *to, const Vec<T, W> (&sums)[U], int lane, int place, T *room) {
  constexpr int align = least(W * int(sizeof(T)), 16);
  T *const mine = PLACES > 1 ? room + place * N : to;
  if constexpr (PLACES > 1) __syncthreads();  // of what was read before
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = lane + u * SHARE;
    if (e < N / W) store<1, align>(mine + e * W, sums[u]);
  }
  if constexpr (PLACES > 1) {
    __syncthreads();
    for (int c = threadIdx.x; c < N; c += THREADS) {
      T sum = room[c];
#pragma unroll
      for (int i = 1; i < PLACES; i++) sum = op::add(sum, room[i * N + c]);
      to[c] = sum;
    }
  }
}
