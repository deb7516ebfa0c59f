// Attention of few queries to many keys, as in decoding (Flash-Decoding: Dao, Haziza, Massa and Sizov, 2023). The time is that of
// reading keys and values, each of which is read once: the queries of all heads that share them are the rows of one tile.
//
// The keys of all units, a unit being the tile of rows of one sequence and head of keys, are cut into tiles, and the tiles of
// all units one after another into as many equal shares as there are blocks, wherever that cuts a unit (the division of
// Stream-K: Osama et al., arXiv 2301.03598). So blocks have equal work whatever the lengths of the sequences are. A block that
// has all of a unit writes its result. Others write partial results, and the block that finishes a unit last combines these in
// the order of the keys, so that results do not depend on which block that is.
//
// In a block, RW warps have 16·MT rows each, and KW warps 16 keys of each tile each, all with their own maxima and sums.

// If AHEAD, lengths and pages are there before what the launch waits for has ended. If BOXES, keys and values are BoxTiles of
// attention_decode_boxes.cuh.
template <class P, int RW_, int KW_, int MT_, int STAGES_, bool STRICT_, bool AHEAD_, bool BOXES_>
struct DecodeTile : MmaTile<P, RW_, MT_, 16 * KW_, STRICT_> {
  typedef MmaTile<P, RW_, MT_, 16 * KW_, STRICT_> Base;
  static constexpr int RW = RW_, KW = KW_, STAGES = STAGES_, THREADS = 32 * RW * KW;
  static constexpr bool PACKED = true, AHEAD = AHEAD_, BOXES = BOXES_;
  static constexpr int ALL = P::GROUP * P::QUERIES, TILES = (ALL + Base::ROWS - 1) / Base::ROWS;
  static constexpr int UNITS = P::HEADS / P::GROUP * TILES;  // of a sequence
  static constexpr bool VARIED = P::HAS_LENGTHS && P::BATCH > 1;  // units may have different numbers of keys
  // A stage of the ring has keys, values and, if BYTES, the scales of both.
  static constexpr int SCALES = Base::BYTES ? 2 * Base::KEYS * 4 / int(sizeof(typename Base::Row)) : 0;
  static constexpr int STAGE = Base::KEYS * (Base::K_LD + Base::V_LD) + SCALES;
  // A partial result of a row: the values' sum, then the greatest score and the sum of exponentials.
  static constexpr int TOP = (P::WIDTH + 3) / 4 * 4, TOTAL = TOP + 1, PARTIAL = TOP + 4;
  static constexpr int SLOT = (ALL < Base::ROWS ? ALL : Base::ROWS) * PARTIAL;  // the rows of a unit
  // The block's shared memory has queries, and then the ring, or the results of its warps, and behind them, if BOXES, barriers
  // and, if BYTES, scales.
  static constexpr int QUERY_BYTES = Base::QUERIES * int(sizeof(typename Base::Query));
  static constexpr int RING_AT = BOXES ? (QUERY_BYTES + 1023) / 1024 * 1024 : QUERY_BYTES, RESULTS = RW * KW * 16 * PARTIAL * 4;
  static constexpr int RING = STAGES * (BOXES ? Base::KEYS * (P::DEPTH + P::WIDTH) : STAGE) * int(sizeof(typename Base::Row));
  static constexpr int BARRIERS_AT = RING_AT + (RING > RESULTS ? RING : RESULTS);
  static constexpr int SCALES_AT = BARRIERS_AT + (BOXES ? (STAGES + 1) / 2 * 16 : 0);
  static constexpr int SHARED_BYTES = SCALES_AT + (BOXES && Base::BYTES ? STAGES * 2 * Base::KEYS * 4 : 0);
};

// The queries of a unit as a matrix.
template <class P, class Args> struct UnitQueries {
  typedef decltype(P::q(*static_cast<const Args *>(nullptr), 0)) Matrix;
  typedef typename Matrix::Element Element;
  static constexpr i64 ROW = Matrix::ROW, COL = Matrix::COL;
  static constexpr int ALIGN = Matrix::ALIGN, AHEAD = Matrix::AHEAD;
  const Args &p;
  int head;
  DEVICE auto row(int r) const {
    const Place at = place<P, true>(head, r);
    return P::q(p, at.head).row(at.i);
  }
};

// The tiles of keys to which queries of a sequence may attend. There is at least one, so that some block has the unit.
template <class P, class Tile, class Args> DEVICE Span key_tiles(const Args &p, int batch) {
  const int valid = valid_keys<P>(p, batch);
  const int lo = reach<P>(0, valid).lo / Tile::KEYS, end = reach<P>(P::QUERIES - 1, valid).hi;
  return {lo, larger((end + Tile::KEYS - 1) / Tile::KEYS, lo + 1)};
}

// How many tiles the units of all sequences have. All threads of a warp call it.
template <class P, class Tile, class Args> DEVICE int all_tiles(const Args &p) {
  int n = 0;
  if constexpr (Tile::VARIED) {
    for (int b = threadIdx.x % 32; b < P::BATCH; b += 32) {
      const Span t = key_tiles<P, Tile>(p, b);
      n += t.hi - t.lo;
    }
    n = __reduce_add_sync(~0u, n);
  } else {
    const Span t = key_tiles<P, Tile>(p, 0);
    n = P::BATCH * (t.hi - t.lo);
  }
  return n * Tile::UNITS;
}

// A tile of a unit of a sequence.
struct DecodeAt {
  int batch, unit, tile;  // counted from the unit's first tile
  Span tiles;             // of each unit of the sequence
};

// Finds tile x of all. All threads of a warp call it.
template <class P, class Tile, class Args> DEVICE DecodeAt find_tile(const Args &p, int x) {
  DecodeAt at{0, 0, x, {}};
  if constexpr (Tile::VARIED) {
    const int lane = threadIdx.x % 32;
    for (int b = 0; b < P::BATCH; b += 32) {
      int n = 0;
      if (b + lane < P::BATCH) {
        const Span t = key_tiles<P, Tile>(p, b + lane);
        n = (t.hi - t.lo) * Tile::UNITS;
      }
      int end = n;  // of the sequence's tiles
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int before = __shfl_up_sync(~0u, end, d);
        if (lane >= d) end += before;
      }
      const u32 behind = __ballot_sync(~0u, at.tile < end);
      if (behind != 0) {
        const int which = __ffs(int(behind)) - 1;
        at.batch = b + which;
        at.tile -= __shfl_sync(~0u, end - n, which);
        break;
      }
      at.tile -= __shfl_sync(~0u, end, 31);
    }
    at.tiles = key_tiles<P, Tile>(p, at.batch);
  } else {
    at.tiles = key_tiles<P, Tile>(p, 0);
    if constexpr (P::BATCH > 1) {
      const int each = (at.tiles.hi - at.tiles.lo) * Tile::UNITS;
      at.batch = x / each;
      at.tile = x % each;
    }
  }
  at.unit = at.tile / (at.tiles.hi - at.tiles.lo);
  at.tile %= at.tiles.hi - at.tiles.lo;
  return at;
}

// What merge_row gives a row to: four columns of its sum, from c on, which times share are those of the result, and its greatest
// score and sum of exponentials. RowResult is a row of the result, RowPartial a partial result.
template <class P, class Tile, class Args> struct RowResult {
  const Args &p;
  Place at;
  DEVICE void columns(int c, Vec<float, 4> y, float share) const {
#pragma unroll
    for (int j = 0; j < 4; j++) y[j] *= share;
    store_four<P::WIDTH>(P::out(p, at.head), at.i, c, y);
  }
  DEVICE void put_lse(float top, float total) const {
    if constexpr (P::HAS_LSE) put(P::lse(p, at.head), at.i, 0, top * (Tile::LATE ? float(P::SCALE) : 1.0f) + logf(total));
  }
  DEVICE void ends(float top, float total) const {
    if (threadIdx.x % 32 == 0) put_lse(top, total);
  }
};
template <class Tile> struct RowPartial {
  float *to;
  DEVICE void columns(int c, const Vec<float, 4> &y, float) const { store<1, 16>(to + c, y); }
  DEVICE void ends(float top, float total) const {
    if (threadIdx.x % 32 == 0) to[Tile::TOP] = top, to[Tile::TOTAL] = total;
  }
};

// merge_row combines the n partial results of a row, of which at(i) is the i-th, in their order, by one warp. N of them, a divisor
// of 32, are read at once, before it waits for any.
template <class P, class Tile, int N, class At, class To> DEVICE void merge_row(int n, const At &at, const To &to) {
  const int lane = threadIdx.x % 32;
  Vec<float, 4> x[N];
  const auto read = [&](int first, int c) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = first + i < n && c < P::WIDTH ? load<float, 4, 1, 16>(at(first + i) + c) : splat<4>(0.0f);
  };
  const auto top_of = [&](int i) { return i < n ? at(i)[Tile::TOP] : minus_infinity<float>(); };
  read(0, 4 * lane);
  const float own = top_of(lane);
  float top = own, total = lane < n ? at(lane)[Tile::TOTAL] : 0.0f;
  for (int i = lane + 32; i < n; i += 32) top = fmaxf(top, top_of(i));
#pragma unroll
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
  const float low = top == minus_infinity<float>() ? 0.0f : top;
  const auto weight = [&](float top) { return exp2_approximate((top - low) * Tile::UNIT); };
  const float first_weight = weight(own);
  total *= first_weight;
  for (int i = lane + 32; i < n; i += 32) total += at(i)[Tile::TOTAL] * weight(top_of(i));
#pragma unroll
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  const float share = total == 0.0f ? 0.0f : float(P::KEEP) / total;
  for (int c0 = 0; c0 < P::WIDTH; c0 += 128) {
    const int c = c0 + 4 * lane;
    Vec<float, 4> y = splat<4>(0.0f);
    float by = first_weight;  // of part first / 32 * 32 + lane
    for (int first = 0; first < n; first += N) {
      if (c0 + first > 0) read(first, c);
      if (first > 0 && first % 32 == 0) by = weight(top_of(first + lane));
#pragma unroll
      for (int i = 0; i < N; i++) {
        const float one = __shfl_sync(~0u, by, first % 32 + i);
#pragma unroll
        for (int j = 0; j < 4; j++) y[j] += one * x[i][j];
      }
    }
    if (c < P::WIDTH) to.columns(c, y, share);
  }
  to.ends(top, total);
}

// Prefetches rows first … first+ROWS−1 of a matrix, of those before end, into L2. All threads of a block call it.
template <int ROWS, int THREADS, int COLUMNS, class M> DEVICE void prefetch_rows(const M &m, int first, int end) {
  if constexpr (M::COL == 1) {
    constexpr int LINE = 128 / int(sizeof(typename M::Element)), LINES = (COLUMNS + LINE - 1) / LINE;
    for (int e = threadIdx.x; e < ROWS * LINES; e += THREADS)
      if (first + e / LINES < end) prefetch(m.row(first + e / LINES) + e % LINES * LINE);
  }
}

// prefetch_tiles fetches keys and values of a unit into L2, at most as many tiles as there are stages. They may be overwritten
// meanwhile: they are read again.
template <class P, class Tile, class Args> DEVICE void prefetch_tiles(const Args &p, const DecodeAt &at, int tiles) {
  const int group = at.batch * (P::HEADS / P::GROUP) + at.unit / Tile::TILES, from = (at.tiles.lo + at.tile) * Tile::KEYS;
  const int end = smaller(valid_keys<P>(p, at.batch), from + smaller(tiles, Tile::STAGES) * Tile::KEYS);
  prefetch_rows<Tile::STAGES * Tile::KEYS, Tile::THREADS, P::DEPTH>(P::k(p, group), from, end);
  prefetch_rows<Tile::STAGES * Tile::KEYS, Tile::THREADS, P::WIDTH>(P::v(p, group), from, end);
}

// A ring of tiles of keys and values of a unit in shared memory, which threads copy there.
template <class P, class Tile, class Args> struct CopiedTiles {
  typedef typename Tile::Row Row;
  static constexpr int KEYS = Tile::KEYS, THREADS = Tile::THREADS, STAGES = Tile::STAGES;
  static constexpr int V_AT = KEYS * Tile::K_LD, SCALES_AT = V_AT + KEYS * Tile::V_LD;  // in a stage
  const Args &p;
  int group, from, tiles, valid;

  // All threads begin with `tiles` tiles of a group from key `from` on, of which `valid` count.
  DEVICE void begin(int group_, int from_, int tiles_, int valid_) {
    group = group_, from = from_, tiles = tiles_, valid = valid_;
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
      clear_padding<KEYS, THREADS, P::DEPTH, Tile::DEPTH, Tile::K_LD>(stage(i));
      clear_padding<KEYS, THREADS, P::WIDTH, Tile::WIDTH, Tile::V_LD>(stage(i) + V_AT);
    }
  }
  DEVICE Row *stage(int t) const {
    SHARED;
    return reinterpret_cast<Row *>(shared + Tile::RING_AT) + t % STAGES * Tile::STAGE;
  }
  // Starts to copy tile t, if there is one.
  DEVICE void load(int t) const {
    if (t < tiles) {
      Row *const to = stage(t);
      const auto k = P::k(p, group);
      const auto v = P::v(p, group);
      stage_tile<KEYS, THREADS, P::DEPTH, Tile::K_LD>(to, k, from + t * KEYS, valid);
      stage_tile<KEYS, THREADS, P::WIDTH, Tile::V_LD>(to + V_AT, v, from + t * KEYS, valid);
      if constexpr (Tile::BYTES) {
        float *const scales = reinterpret_cast<float *>(to + SCALES_AT);
        stage_scales<KEYS, THREADS>(scales, P::k_scale(p, group), from + t * KEYS, valid);
        stage_scales<KEYS, THREADS>(scales + KEYS, P::v_scale(p, group), from + t * KEYS, valid);
      }
    }
    copy_commit();
  }
  // Waits for tile t, and for all threads, which have read the one before it, and then starts to copy tile t + STAGES - 1.
  DEVICE void next(int t) const {
    copy_wait<STAGES - 2>();
    __syncthreads();
    load(t + STAGES - 1);
  }
  DEVICE const float *scales(int t, int key) const {  // if BYTES
    return reinterpret_cast<const float *>(stage(t) + SCALES_AT) + key;
  }
  // The scores of a warp's queries and 16 keys of tile t from `key` on, and the weighted sums of values there.
  DEVICE void scores(float (&s)[Tile::MT][2][4], const typename Tile::Query *q, int t, int key) const {
    tile_scores<P, Tile, 16>(s, q, stage(t) + key * Tile::K_LD, scales(t, key));
  }
  DEVICE void weighted(float (&sum)[Tile::MT][Tile::WIDTH / 8][4], float (&w)[Tile::MT][2][4], int t, int key,
                       const float (&fade)[2 * Tile::MT]) const {
    tile_weighted<P, Tile, 16>(sum, w, stage(t) + V_AT + key * Tile::V_LD, scales(t, key) + KEYS, fade);
  }
  // When the ring is no longer read, and when what has its place then is not.
  DEVICE void end() const { copy_wait<0>(); }
  DEVICE void reuse() const {}
};

// decode_tiles computes so many tiles from `at` on, by the queries from r0 on of a group, whose keys these are. For each row, a
// warp calls merged(row, parts), where parts(i) is the partial result of the i-th of KW warps.
template <class P, class Tile, class Args, class Ring, class F>
DEVICE void decode_tiles(const Args &p, Ring &ring, const DecodeAt &at, int tiles, int group, int r0, i64 seed, const F &merged) {
  constexpr int MT = Tile::MT, KEYS = Tile::KEYS, ROWS = Tile::ROWS, THREADS = Tile::THREADS, STAGES = Tile::STAGES;
  SHARED;
  auto *const q_tile = reinterpret_cast<typename Tile::Query *>(shared);
  float *const parts = reinterpret_cast<float *>(shared + Tile::RING_AT);  // of the warps, when the ring is no longer read
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_warp = warp % Tile::RW, key_warp = warp / Tile::RW;
  const int valid = valid_keys<P>(p, at.batch), from = (at.tiles.lo + at.tile) * KEYS;
  if (at.unit == 0 && at.tile == 0) check_table<P>(p, at.batch, valid, threadIdx.x, THREADS);
  const UnitQueries<P, Args> q{p, group};
  // The keys to which all rows may attend.
  const int all_lo = reach<P>(P::QUERIES - 1, valid).lo, all_hi = reach<P>(0, valid).hi;

  if constexpr (!Tile::BYTES) clear_padding<ROWS, THREADS, P::DEPTH, Tile::DEPTH, Tile::Q_LD>(q_tile);
  ring.begin(group, from, tiles, valid);
  stage_queries<P, Tile>(q_tile, q, r0);
#pragma unroll
  for (int t = 0; t < STAGES - 1; t++) ring.load(t);

  // A thread's rows, as in attention_mma.
  const int base = r0 + row_warp * 16 * MT + lane / 4;
  float sum[MT][Tile::WIDTH / 8][4], top[2 * MT], total[2 * MT];
#pragma unroll
  for (int r = 0; r < 2 * MT; r++) top[r] = minus_infinity<float>(), total[r] = 0;
  clear_sums(sum);
  for (int t = 0; t < tiles; t++) {
    ring.next(t);
    const int key = 16 * key_warp, j0 = from + t * KEYS + key;
    float s[MT][2][4];
    ring.scores(s, q_tile + row_warp * 16 * MT * Tile::Q_LD, t, key);
    if (P::HAS_MASK || !Tile::LATE || j0 < all_lo || j0 + 16 > all_hi) mask_scores<P, Tile>(p, s, group, base, j0, valid, valid);
    float fade[2 * MT];
    add_exponentials<Tile>(s, sum, top, total, fade);
    if constexpr (P::DROP > 0) drop_weights<P, Tile>(seed, s, group, base, j0);
    ring.weighted(sum, s, t, key, fade);
  }
  ring.end();

  // The warps' results are combined, for 16 rows of each at a time.
  const int rows = smaller(Tile::ALL - r0, ROWS);
#pragma unroll
  for (int m = 0; m < MT; m++) {
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float *const to = parts + (warp * 16 + lane / 4 + 8 * h) * Tile::PARTIAL;
      const float sums = sum_of4(total[2 * m + h]);
      if (lane % 4 == 0) to[Tile::TOP] = top[2 * m + h], to[Tile::TOTAL] = sums;
      if constexpr (Tile::BYTES) {
#pragma unroll
        for (int n = 0; n < Tile::WIDTH / 8; n += 2) {
          const int c = n * 8 + lane % 4 * 4;
          if (c < Tile::TOP) store<1, 16>(to + c, byte_columns(sum[m][n], sum[m][n + 1], h));
        }
      } else {
#pragma unroll
        for (int n = 0; n < Tile::WIDTH / 8; n++) {
          const int c = n * 8 + lane % 4 * 2;
          if (c < Tile::TOP) to[c] = sum[m][n][2 * h], to[c + 1] = sum[m][n][2 * h + 1];
        }
      }
    }
    __syncthreads();
    for (int e = warp; e < 16 * Tile::RW; e += THREADS / 32) {
      const int row = e / 16 * 16 * MT + 16 * m + e % 16;  // warp e÷16 has it
      if (row < rows) merged(row, [&](int i) { return parts + (i * Tile::RW * 16 + e) * Tile::PARTIAL; });
    }
  }

  ring.reuse();
}

// attention_decode computes a share of all units. Partial results are two slots for each block in partials: of the unit that
// its share begins with, and of one that begins in it. arrived counts, for each unit, its parts that are done, and is 0 before and
// after a launch.
template <class P, class Tile, class Args, class Ring>
DEVICE void attention_decode(const Args &p, Ring ring, float *partials, int *arrived) {
  constexpr int THREADS = Tile::THREADS;
  const int warp = threadIdx.x / 32;
  if constexpr (!Tile::AHEAD) late_read();

  const int all = all_tiles<P, Tile>(p), share = (all + int(gridDim.x) - 1) / int(gridDim.x);
  int x = int(blockIdx.x) * share;
  const int end = smaller(x + share, all);
  if (x >= end) return;
  // Where a block puts its part of a unit, if the part, or the unit, begins with tile x of all.
  const auto slot = [&](int x, int block) { return partials + i64(2 * block + (x > block * share)) * Tile::SLOT; };
  DecodeAt at = find_tile<P, Tile>(p, x);
  if constexpr (Tile::AHEAD) {
    // Of a longer share the time is that of reading all of it.
    if (share <= Tile::STAGES) prefetch_tiles<P, Tile>(p, at, smaller(end - x, at.tiles.hi - at.tiles.lo - at.tile));
    late_read();
  }
  i64 seed = 0;
  if constexpr (P::DROP > 0) seed = P::seed(p);
  while (x < end) {
    const int group = at.batch * (P::HEADS / P::GROUP) + at.unit / Tile::TILES, r0 = at.unit % Tile::TILES * Tile::ROWS;
    const int unit_tiles = at.tiles.hi - at.tiles.lo, tiles = smaller(end - x, unit_tiles - at.tile);
    float *const part = tiles == unit_tiles ? nullptr : slot(x, int(blockIdx.x));
    const auto result = [&](int row) { return RowResult<P, Tile, Args>{p, place<P, true>(group, r0 + row)}; };
    decode_tiles<P, Tile>(p, ring, at, tiles, group, r0, seed, [&](int row, const auto &parts) {
      if (part == nullptr) merge_row<P, Tile, Tile::KW>(Tile::KW, parts, result(row));
      else merge_row<P, Tile, Tile::KW>(Tile::KW, parts, RowPartial<Tile>{part + row * Tile::PARTIAL});
    });

    if (part != nullptr) {
      const int begin = x - at.tile, first = begin / share, count = (begin + unit_tiles - 1) / share - first + 1;
      SHARED;
      int *const told = reinterpret_cast<int *>(shared);  // by the first thread
      int *const done = arrived + at.batch * Tile::UNITS + at.unit;
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) *told = atomicAdd(done, 1);
      __syncthreads();
      if (*told == count - 1) {
        __threadfence();
        if (threadIdx.x == 0) *done = 0;  // for the next run
        for (int row = warp; row < smaller(Tile::ALL - r0, Tile::ROWS); row += THREADS / 32)
          merge_row<P, Tile, 16>(count, [&](int i) { return slot(begin, first + i) + row * Tile::PARTIAL; }, result(row));
      }
    }
    __syncthreads();
    x += tiles;
    at.tile = 0;
    if (++at.unit == Tile::UNITS && x < end) {
      at.unit = 0;
      at.batch++;
      at.tiles = key_tiles<P, Tile>(p, at.batch);
    }
  }
}
