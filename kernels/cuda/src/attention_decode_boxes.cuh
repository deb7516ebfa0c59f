// Tiles of keys and values of 16 or 8 bits that Hopper's copy engine brings for attention_decode.cuh: whole rows, so that a tile is
// read from one end to the other. A row is units of 128 bytes, in the swizzle of 128 bytes.

// Where byte b of row r of a tile is, of rows of BYTES bytes.
template <int BYTES> DEVICE const u8 *in_box(const u8 *tile, int r, int b) {
  const int unit = r * (BYTES / 128) + b / 128;
  return tile + unit * 128 + ((b % 128 / 16 ^ unit % 8) * 16);
}

// A ring like CopiedTiles, with a barrier for each stage. Boxes are tiles, or the pages that a tile consists of.
template <class P, class Tile, class Args> struct BoxTiles {
  typedef typename P::T T;
  static constexpr int KEYS = Tile::KEYS, STAGES = Tile::STAGES, MT = Tile::MT, SIZE = int(sizeof(typename Tile::Row));
  static constexpr int K_ROW = P::DEPTH * SIZE, V_ROW = P::WIDTH * SIZE, K_BYTES = KEYS * K_ROW, STAGE = K_BYTES + KEYS * V_ROW;
  static constexpr int BOX = P::PAGE > 0 && P::PAGE < KEYS ? P::PAGE : KEYS, BOXES = KEYS / BOX;  // rows; of a tile
  static_assert(32 % BOXES == 0 && BOX * K_ROW % 1024 == 0 && BOX * V_ROW % 1024 == 0, "boxes are whole turns of the swizzle");
  const Args &p;
  const TensorMap *k, *v;
  int past = 0;  // tiles of units that are done
  int group, from, tiles, valid;
  int page, after;  // of each lane of the first warp: the page of one of 32 boxes, and of one of the next 32

  static DEVICE u64 *barrier(int slot) {
    SHARED;
    return reinterpret_cast<u64 *>(shared + Tile::BARRIERS_AT) + slot;
  }
  DEVICE u8 *stage(int t) const {
    SHARED;
    return shared + Tile::RING_AT + (past + t) % STAGES * STAGE;
  }
  DEVICE float *scales(int t) const {  // of keys, and then of values
    SHARED;
    return reinterpret_cast<float *>(shared + Tile::SCALES_AT) + (past + t) % STAGES * 2 * KEYS;
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
  // The page of box n from the unit's first key on; where no key counts, one that is not there, of which the copy engine makes zeros.
  DEVICE int page_of(int n) const {
    const int key = from + n * BOX;
    if (key >= valid) return P::PAGES;
    const i64 page = P::entry(p, group / (P::HEADS / P::GROUP), key / P::PAGE);
    return u64(page) < u64(P::PAGES) ? int(page) : 0;  // as Paged has it
  }
  DEVICE void load(int t) {
    if (t < tiles) {
      if (threadIdx.x < 32) copy(t);
      if constexpr (Tile::BYTES) {
        stage_scales<KEYS, Tile::THREADS>(scales(t), P::k_scale(p, group), from + t * KEYS, valid);
        stage_scales<KEYS, Tile::THREADS>(scales(t) + KEYS, P::v_scale(p, group), from + t * KEYS, valid);
      }
    }
    if constexpr (Tile::BYTES) copy_commit();
  }
  // Starts to copy keys and values of a tile, by the first warp.
  DEVICE void copy(int t) {
    u64 *const full = barrier((past + t) % STAGES);
    const int lane = threadIdx.x, key = from + t * KEYS;
    if (lane == 0) barrier_expect(full, STAGE);
    if constexpr (P::PAGE == 0) {
      if (lane > 0) return;
      tma_stream(stage(t), k, full, 0, 0, key, group);
      tma_stream(stage(t) + K_BYTES, v, full, 0, 0, key, group);
    } else {
      const int first = t * BOXES;  // box of the unit
      if (first % 32 == 0) {
        page = t == 0 ? page_of(lane) : after;
        after = page_of(first + 32 + lane);
      }
      const int at = __shfl_sync(~0u, page, (first + lane) % 32), head = group % (P::HEADS / P::GROUP);
      if (lane >= BOXES) return;
      tma_stream(stage(t) + lane * BOX * K_ROW, k, full, 0, 0, (key + lane * BOX) % P::PAGE, head, at);
      tma_stream(stage(t) + K_BYTES + lane * BOX * V_ROW, v, full, 0, 0, (key + lane * BOX) % P::PAGE, head, at);
    }
  }
  DEVICE void next(int t) {
    if constexpr (Tile::BYTES) copy_wait<STAGES - 2>();
    else if (t == 0) copy_commit(), copy_wait<0>();  // of the queries
    barrier_wait(barrier((past + t) % STAGES), (past + t) / STAGES & 1);
    __syncthreads();
    load(t + STAGES - 1);
    if constexpr (!Tile::BYTES) clear(t);
  }
  DEVICE void clear(int t) const {
    // Values that do not count are not multiplied, not even by 0.
    const int there = valid - from - t * KEYS;
    if (there >= KEYS) return;
    constexpr int PIECES = V_ROW / 16;
    for (int e = larger(there, 0) * PIECES + threadIdx.x; e < KEYS * PIECES; e += Tile::THREADS)
      reinterpret_cast<uint4 *>(stage(t) + K_BYTES)[e] = uint4{0, 0, 0, 0};
    __syncthreads();
  }
  DEVICE void scores(float (&s)[MT][2][4], const typename Tile::Query *q, int t, int key) const {
    if constexpr (Tile::BYTES) {
      byte_scores<Tile, 16>(s, q, [&](int r, int c) { return in_box<K_ROW>(stage(t), key + r, c); });
      scale_keys(s, scales(t) + key);
    } else {
      const int lane = threadIdx.x % 32, row = key + lane % 8 + lane / 16 * 8;
      clear_sums(s);
#pragma unroll
      for (int d = 0; d < P::DEPTH; d += 16) {
        u32 a[4], r[4];
        load_matrices<false>(r, in_box<K_ROW>(stage(t), row, 2 * d + lane / 8 % 2 * 16));
#pragma unroll
        for (int m = 0; m < MT; m++) {
          load_rows(a, q + 16 * m * Tile::Q_LD + d, Tile::Q_LD);
#pragma unroll
          for (int n = 0; n < 2; n++) mma(T{}, s[m][n], a, {r[2 * n], r[2 * n + 1]});
        }
      }
    }
  }
  DEVICE void weighted(float (&sum)[MT][P::WIDTH / 8][4], float (&w)[MT][2][4], int t, int key, const float (&)[2 * MT]) const {
    if constexpr (Tile::BYTES) {
      scale_keys(w, scales(t) + KEYS + key);
      byte_weighted<Tile, 16>(sum, w, [&](int r, int c) { return in_box<V_ROW>(stage(t) + K_BYTES, key + r, c); });
    } else {
      const int lane = threadIdx.x % 32;
      Fragment<T, false, 4> a[MT];
#pragma unroll
      for (int m = 0; m < MT; m++) a[m] = weights_at<T, false>(w[m], 0);
#pragma unroll
      for (int c = 0; c < P::WIDTH; c += 16) {
        u32 r[4];
        load_matrices<true>(r, in_box<V_ROW>(stage(t) + K_BYTES, key + lane % 16, 2 * c + lane / 16 * 16));
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
          for (int n = 0; n < 2; n++) mma(T{}, sum[m][c / 8 + n], a[m].high, {r[2 * n], r[2 * n + 1]});
      }
    }
  }
  DEVICE void end() {
    copy_wait<0>();
    past += tiles;
  }
  // What threads have written is before what the copy engine writes there.
  DEVICE void reuse() const { shared_fence(); }
};
