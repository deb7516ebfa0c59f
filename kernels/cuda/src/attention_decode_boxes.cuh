// Tiles of keys and values of 16 bits that Hopper's copy engine brings for attention_decode.cuh: whole rows, so that a tile is read
// from one end to the other. A row is units of 128 bytes, in the swizzle of 128 bytes.

// Where column c of row r of a tile is, of rows with COLUMNS columns of 16 bits.
template <int COLUMNS> DEVICE const u8 *in_box(const u8 *tile, int r, int c) {
  const int unit = r * (COLUMNS / 64) + c / 64;
  return tile + unit * 128 + ((c % 64 / 8 ^ unit % 8) * 16);
}

// A ring like CopiedTiles, with a barrier for each stage.
template <class P, class Tile, class Args> struct BoxTiles {
  typedef typename P::T T;
  static constexpr int KEYS = Tile::KEYS, STAGES = Tile::STAGES, MT = Tile::MT;
  static constexpr int K_BYTES = KEYS * P::DEPTH * 2, STAGE = K_BYTES + KEYS * P::WIDTH * 2;
  const Args &p;
  const TensorMap *k, *v;
  int past = 0;  // tiles of units that are done
  int group, from, tiles, valid;

  static DEVICE u64 *barrier(int slot) {
    SHARED;
    return reinterpret_cast<u64 *>(shared + Tile::BARRIERS_AT) + slot;
  }
  DEVICE u8 *stage(int t) const {
    SHARED;
    return shared + Tile::RING_AT + (past + t) % STAGES * STAGE;
  }
  DEVICE void begin(int group_, int from_, int tiles_, int valid_) {
    group = group_, from = from_, tiles = tiles_, valid = valid_;
    if (past > 0) return;
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < STAGES; i++) barrier_init(barrier(i), 1);
      barrier_init_done();
    }
    __syncthreads();
  }
  DEVICE void load(int t) const {
    if (t >= tiles || threadIdx.x != 0) return;
    u64 *const full = barrier((past + t) % STAGES);
    barrier_expect(full, STAGE);
    tma_stream(stage(t), k, full, 0, 0, from + t * KEYS, group);
    tma_stream(stage(t) + K_BYTES, v, full, 0, 0, from + t * KEYS, group);
  }
  DEVICE void next(int t) const {
    if (t == 0) copy_commit(), copy_wait<0>();  // of the queries
    barrier_wait(barrier((past + t) % STAGES), (past + t) / STAGES & 1);
    __syncthreads();
    load(t + STAGES - 1);
    // Values that do not count are not multiplied, not even by 0.
    const int there = valid - from - t * KEYS;
    if (there >= KEYS) return;
    constexpr int PIECES = P::WIDTH / 8;
    for (int e = larger(there, 0) * PIECES + threadIdx.x; e < KEYS * PIECES; e += Tile::THREADS)
      reinterpret_cast<uint4 *>(stage(t) + K_BYTES)[e] = uint4{0, 0, 0, 0};
    __syncthreads();
  }
  DEVICE void scores(float (&s)[MT][2][4], const T *q, int t, int key) const {
    const int lane = threadIdx.x % 32, row = key + lane % 8 + lane / 16 * 8;
    clear_sums(s);
#pragma unroll
    for (int d = 0; d < P::DEPTH; d += 16) {
      u32 a[4], r[4];
      load_matrices<false>(r, in_box<P::DEPTH>(stage(t), row, d + lane / 8 % 2 * 8));
#pragma unroll
      for (int m = 0; m < MT; m++) {
        load_rows(a, q + 16 * m * Tile::Q_LD + d, Tile::Q_LD);
#pragma unroll
        for (int n = 0; n < 2; n++) mma(T{}, s[m][n], a, {r[2 * n], r[2 * n + 1]});
      }
    }
  }
  DEVICE void weighted(float (&sum)[MT][P::WIDTH / 8][4], const float (&w)[MT][2][4], int t, int key,
                       const float (&)[2 * MT]) const {
    const int lane = threadIdx.x % 32;
    Fragment<T, false, 4> a[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) a[m] = weights_at<T, false>(w[m], 0);
#pragma unroll
    for (int c = 0; c < P::WIDTH; c += 16) {
      u32 r[4];
      load_matrices<true>(r, in_box<P::WIDTH>(stage(t) + K_BYTES, key + lane % 16, c + lane / 16 * 8));
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < 2; n++) mma(T{}, sum[m][c / 8 + n], a[m].high, {r[2 * n], r[2 * n + 1]});
    }
  }
  DEVICE void end() { past += tiles; }
  // What threads have written is before what the copy engine writes there.
  DEVICE void reuse() const { shared_fence(); }
};
