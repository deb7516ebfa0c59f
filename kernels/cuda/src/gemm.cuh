// Shared parts of matrix products, C[m,n] = Σ_k A[m,k]·B[k,n] for each matrix of a batch: the order of tiles, the
// second step of products that are split along k, and column sums.
//
// A Problem describes the product, all as constants:
//
//	typedef … A, B, Acc;                   element types of the operands in memory, and of the accumulators
//	int BATCH, M, N, K;
//	i64 A_M, A_K, B_K, B_N;                strides, in elements
//	int A_VEC, B_VEC;                      elements of an aligned piece that stand side by side along the inner axis,
//	                                       whole pieces of which make up the axis: powers of two
//	bool A_KINNER, B_KINNER;               whether k is the inner axis, along which pieces are read, or m (n)
//	int W;                                 columns that the body takes at once; divides N
//	bool GATHER;                           whether rows of A in memory (along m if k is the inner axis, else along k) are
//	                                       those that a list names
//	bool PATCHES;                          whether A is patches of images, see patches.cuh; then A_M and A_K are 0
//	i64 a_at(int batch), b_at(int batch);  where a matrix begins
//
// A Body finishes W columns of one row from the accumulators, and adds its results to its column sums:
//
//	int SUMS;  typedef … Sum;
//	bool LONG;                             whether it is so long that unrolled it would not fit into the cache of instructions
//	bool AHEAD;                            whether it can read what it needs of memory before, by
//	template <int W> Ahead<W> ahead(int batch, int m, int n) const;
//	template <int W> void operator()(int batch, int m, int n, Vec<Acc, W> acc, Vec<Sum, W> *sums[, Ahead<W> ahead]) const;

// A Spot is one block's part of the work: a tile of a matrix, and a share of k. Spots are ordered in groups of rows of
// tiles, column after column, so that blocks that run at the same time read the same operands.
struct Spot { int batch, m, n, split, block; };

template <class P, int BM, int BN, int SPLITS> DEVICE Spot spot_of(int i) {
  constexpr int TM = (P::M + BM - 1) / BM, TN = (P::N + BN - 1) / BN, GROUP = 8;
  Spot s;
  s.split = i % SPLITS;
  i /= SPLITS;
  s.batch = i / (TM * TN);
  i %= TM * TN;
  const int first = i / (GROUP * TN) * GROUP, rows = least(GROUP, TM - first);
  i %= GROUP * TN;
  const int tile = first + i % rows;
  s.block = s.batch * TM + tile;
  s.m = tile * BM;
  s.n = i / rows * BN;
  return s;
}

// A Piece is the operands of a block: rows × k elements of A and k × cols of B, of which the tile uses as many as fit.
// If A is gathered, list names its rows in memory. The piece begins at k = first.
template <class P> struct Piece {
  const typename P::A *a;
  const typename P::B *b;
  int rows, cols, k;
  const i32 *list;
  int first;
};

// piece_of cuts it out of whole matrices. A split takes whole steps of BK along k; all splits take the same number, the
// last ones possibly fewer.
template <class P, int BK, int SPLITS>
DEVICE Piece<P> piece_of(const typename P::A *a, const typename P::B *b, const Spot &spot) {
  constexpr int EACH = ((P::K + BK - 1) / BK + SPLITS - 1) / SPLITS * BK;
  const int begin = least(spot.split * EACH, P::K);
  return {a + P::a_at(spot.batch) + spot.m * P::A_M + begin * P::A_K,
          b + P::b_at(spot.batch) + spot.n * P::B_N + begin * P::B_K,
          P::M - spot.m, P::N - spot.n, least(P::K - begin, EACH), nullptr, begin};
}

// Partial is the Body of a product split along k: the accumulators go to memory [SPLITS][BATCH][M][N].
template <class P> struct Partial {
  static constexpr int SUMS = 0;
  static constexpr bool AHEAD = false, LONG = false;
  typedef float Sum;
  typename P::Acc *memory;
  int split;
  template <int W>
  DEVICE void operator()(int batch, int m, int n, const Vec<typename P::Acc, W> &acc, Vec<Sum, W> *) const {
    constexpr int align = least(16, W * int(sizeof(typename P::Acc)));
    store<1, align>(memory + ((i64(split) * P::BATCH + batch) * P::M + m) * P::N + n, acc);
  }
};

// sum_columns adds the column sums of a tile of COLS columns from column n on up over LANES groups of threads, which
// have processed different rows, and writes them as row `block` of partial [SUMS][blocks][N]. A thread of group lane
// has sums[s][g] for W columns from column at(g) of the tile on. The block's shared memory must be free; LANES·COLS
// sums are stored there.
template <class P, class Body, int COLS, int LANES, int GROUPS, class At>
DEVICE void sum_columns(typename Body::Sum *partial, int blocks, int block, int n, int lane, At at,
                        const Vec<typename Body::Sum, P::W> (*sums)[GROUPS]) {
  typedef typename Body::Sum S;
  SHARED;
  S *const s = reinterpret_cast<S *>(shared);
#pragma unroll
  for (int i = 0; i < Body::SUMS; i++) {
    __syncthreads();
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
#pragma unroll
      for (int j = 0; j < P::W; j++) s[lane * COLS + at(g) + j] = sums[i][g][j];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < COLS && n + c < P::N; c += blockDim.x) {
      S total = 0;
      for (int l = 0; l < LANES; l++) total += s[l * COLS + c];
      partial[(i64(i) * blocks + block) * P::N + n + c] = total;
    }
  }
}

// finish_split adds the parts of a split product in order and gives them to the body. A block of 256 threads takes ROWS
// rows by 32·W columns.
template <class P, class Body, int SPLITS, int ROWS>
DEVICE void finish_split(const Body &body, const typename P::Acc *memory, typename Body::Sum *partial) {
  constexpr int W = P::W, COLS = 32 * W;
  typedef Vec<typename P::Acc, W> Accs;
  const Spot spot = spot_of<P, ROWS, COLS, 1>(blockIdx.x);
  const int lane = threadIdx.x / 32, n = spot.n + threadIdx.x % 32 * W;
  Vec<typename Body::Sum, W> sums[Body::SUMS + 1][1] = {};
#pragma unroll
  for (int r = 0; r < ROWS / 8; r++) {
    const int m = spot.m + r * 8 + lane;
    if (m >= P::M || n >= P::N) continue;
    const typename P::Acc *at = memory + (i64(spot.batch) * P::M + m) * P::N + n;
    constexpr int align = least(16, W * int(sizeof(typename P::Acc)));
    Accs acc = load<typename P::Acc, W, 1, align>(at);
#pragma unroll
    for (int s = 1; s < SPLITS; s++) {
      acc = op::add(acc, load<typename P::Acc, W, 1, align>(at + i64(s) * P::BATCH * P::M * P::N));
    }
    body(spot.batch, m, n, acc, &sums[0][0]);
  }
  if constexpr (Body::SUMS > 0) {
    constexpr int blocks = P::BATCH * ((P::M + ROWS - 1) / ROWS);
    sum_columns<P, Body, COLS, 8, 1>(partial, blocks, spot.block, spot.n, lane,
                                     [](int) { return int(threadIdx.x % 32) * W; }, sums);
  }
}

// add_blocks adds up the sums of the blocks of rows, [BLOCKS][N], for 32 columns: eight threads to a column take every
// eighth block, and the eight are added in order. Column n goes to to[n·STRIDE].
template <class S, int BLOCKS, int N, int STRIDE, class T> DEVICE void add_blocks(T *to, const S *partial) {
  SHARED;
  S *const s = reinterpret_cast<S *>(shared);
  const int lane = threadIdx.x / 32, c = threadIdx.x % 32, n = blockIdx.x * 32 + c;
  S total = 0;
  if (n < N) {
    for (int b = lane; b < BLOCKS; b += 8) total += partial[i64(b) * N + n];
  }
  s[lane * 32 + c] = total;
  __syncthreads();
  if (lane != 0 || n >= N) return;
  for (int l = 1; l < 8; l++) total += s[l * 32 + c];
  to[i64(n) * STRIDE] = convert<T>(total);
}
