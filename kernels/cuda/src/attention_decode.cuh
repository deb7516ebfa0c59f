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

// If AHEAD, lengths and pages are there before what the launch waits for has ended.
template <class P, int RW_, int KW_, int MT_, int STAGES_, bool STRICT_, bool AHEAD_>
struct DecodeTile : MmaTile<P, RW_, MT_, 16 * KW_, STRICT_> {
  typedef MmaTile<P, RW_, MT_, 16 * KW_, STRICT_> Base;
  static constexpr int RW = RW_, KW = KW_, STAGES = STAGES_, THREADS = 32 * RW * KW;
  static constexpr bool PACKED = true, AHEAD = AHEAD_;
  static constexpr int ALL = P::GROUP * P::QUERIES, TILES = (ALL + Base::ROWS - 1) / Base::ROWS;
  static constexpr int UNITS = P::HEADS / P::GROUP * TILES;  // of a sequence
  // A stage of the ring has keys, values and, if BYTES, the scales of both.
  static constexpr int SCALES = Base::BYTES ? 2 * Base::KEYS * 4 / int(sizeof(typename Base::Row)) : 0;
  static constexpr int STAGE = Base::KEYS * (Base::K_LD + Base::V_LD) + SCALES;
  // A partial result of a row: the values' sum, then the greatest score and the sum of exponentials.
  static constexpr int TOP = (P::WIDTH + 3) / 4 * 4, TOTAL = TOP + 1, PARTIAL = TOP + 4;
  static constexpr int SLOT = (ALL < Base::ROWS ? ALL : Base::ROWS) * PARTIAL;  // the rows of a unit
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
  if constexpr (P::HAS_LENGTHS) {
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
  if constexpr (P::HAS_LENGTHS) {
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
    const int each = (at.tiles.hi - at.tiles.lo) * Tile::UNITS;
    at.batch = x / each;
    at.tile = x % each;
  }
  at.unit = at.tile / (at.tiles.hi - at.tiles.lo);
  at.tile %= at.tiles.hi - at.tiles.lo;
  return at;
}

// merge_row combines the n partial results of a row, of which at(i) is the i-th, in their order, by one warp: to a partial
// result, or, if that is null, to the result.
template <class P, class Tile, class Args, class At>
DEVICE void merge_row(const Args &p, Place to, float *partial, int n, const At &at) {
  const int lane = threadIdx.x % 32;
  float top = minus_infinity<float>(), total = 0;
  for (int i = lane; i < n; i += 32) top = fmaxf(top, at(i)[Tile::TOP]);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
  const float low = top == minus_infinity<float>() ? 0.0f : top;
  for (int i = lane; i < n; i += 32) total += at(i)[Tile::TOTAL] * exp2_approximate((at(i)[Tile::TOP] - low) * Tile::UNIT);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  const float share = total == 0.0f ? 0.0f : float(P::KEEP) / total;
  for (int c = 4 * lane; c < P::WIDTH; c += 128) {
    Vec<float, 4> y = splat<4>(0.0f);
#pragma unroll 4
    for (int i = 0; i < n; i++) {
      const float weight = exp2_approximate((at(i)[Tile::TOP] - low) * Tile::UNIT);
      const Vec<float, 4> x = load<float, 4, 1, 16>(at(i) + c);
#pragma unroll
      for (int j = 0; j < 4; j++) y[j] += weight * x[j];
    }
    if (partial != nullptr) {
      store<1, 16>(partial + c, y);
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) y[j] *= share;
    store_four<P::WIDTH>(P::out(p, to.head), to.i, c, y);
  }
  if (lane != 0) return;
  if (partial != nullptr) {
    partial[Tile::TOP] = top;
    partial[Tile::TOTAL] = total;
  } else if constexpr (P::HAS_LSE) {
    put(P::lse(p, to.head), to.i, 0, top * (Tile::LATE ? float(P::SCALE) : 1.0f) + logf(total));
  }
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

// attention_decode computes a share of all units. Partial results are two slots for each block in partials: of the unit that
// its share begins with, and of one that begins in it. arrived counts, for each unit, its parts that are done, from 0 on.
template <class P, class Tile, class Args> DEVICE void attention_decode(const Args &p, float *partials, int *arrived) {
  typedef typename Tile::Row Row;
  constexpr int MT = Tile::MT, KEYS = Tile::KEYS, ROWS = Tile::ROWS, THREADS = Tile::THREADS, STAGES = Tile::STAGES;
  constexpr int V_AT = KEYS * Tile::K_LD, SCALES_AT = V_AT + KEYS * Tile::V_LD;  // in a stage
  SHARED;
  auto *const q_tile = reinterpret_cast<typename Tile::Query *>(shared);
  Row *const ring = reinterpret_cast<Row *>(q_tile + Tile::QUERIES);
  float *const parts = reinterpret_cast<float *>(ring);  // of the warps, when the ring is no longer read
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_warp = warp % Tile::RW, key_warp = warp / Tile::RW;
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
    if (share <= STAGES) prefetch_tiles<P, Tile>(p, at, smaller(end - x, at.tiles.hi - at.tiles.lo - at.tile));
    late_read();
  }
  i64 seed = 0;
  if constexpr (P::DROP > 0) seed = P::seed(p);
  while (x < end) {
    const int group = at.batch * (P::HEADS / P::GROUP) + at.unit / Tile::TILES, r0 = at.unit % Tile::TILES * ROWS;
    const int unit_tiles = at.tiles.hi - at.tiles.lo, tiles = smaller(end - x, unit_tiles - at.tile);
    const int valid = valid_keys<P>(p, at.batch), from = (at.tiles.lo + at.tile) * KEYS;
    if (at.unit == 0 && at.tile == 0) check_table<P>(p, at.batch, valid, threadIdx.x, THREADS);
    const UnitQueries<P, Args> q{p, group};
    const auto k = P::k(p, group);
    const auto v = P::v(p, group);
    // The keys to which all rows may attend.
    const int all_lo = reach<P>(P::QUERIES - 1, valid).lo, all_hi = reach<P>(0, valid).hi;

    if constexpr (!Tile::BYTES) clear_padding<ROWS, THREADS, P::DEPTH, Tile::DEPTH, Tile::Q_LD>(q_tile);
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
      clear_padding<KEYS, THREADS, P::DEPTH, Tile::DEPTH, Tile::K_LD>(ring + i * Tile::STAGE);
      clear_padding<KEYS, THREADS, P::WIDTH, Tile::WIDTH, Tile::V_LD>(ring + i * Tile::STAGE + V_AT);
    }
    auto load = [&](int t) {
      if (t < tiles) {
        Row *const to = ring + t % STAGES * Tile::STAGE;
        stage_tile<KEYS, THREADS, P::DEPTH, Tile::K_LD>(to, k, from + t * KEYS, valid);
        stage_tile<KEYS, THREADS, P::WIDTH, Tile::V_LD>(to + V_AT, v, from + t * KEYS, valid);
        if constexpr (Tile::BYTES) {
          float *const scales = reinterpret_cast<float *>(to + SCALES_AT);
          stage_scales<KEYS, THREADS>(scales, P::k_scale(p, group), from + t * KEYS, valid);
          stage_scales<KEYS, THREADS>(scales + KEYS, P::v_scale(p, group), from + t * KEYS, valid);
        }
      }
      copy_commit();
    };
    stage_queries<P, Tile>(q_tile, q, r0);
#pragma unroll
    for (int t = 0; t < STAGES - 1; t++) load(t);

    // A thread's rows, as in attention_mma.
    const int base = r0 + row_warp * 16 * MT + lane / 4;
    float sum[MT][Tile::WIDTH / 8][4], top[2 * MT], total[2 * MT];
#pragma unroll
    for (int r = 0; r < 2 * MT; r++) top[r] = minus_infinity<float>(), total[r] = 0;
    clear_sums(sum);
    for (int t = 0; t < tiles; t++) {
      copy_wait<STAGES - 2>();
      __syncthreads();
      load(t + STAGES - 1);
      const int j0 = from + t * KEYS + 16 * key_warp;
      const Row *const stage = ring + t % STAGES * Tile::STAGE;
      const Row *const k_tile = stage + 16 * key_warp * Tile::K_LD, *const v_tile = stage + V_AT + 16 * key_warp * Tile::V_LD;
      const float *const scales = reinterpret_cast<const float *>(stage + SCALES_AT) + 16 * key_warp;  // if BYTES
      float s[MT][2][4];
      tile_scores<P, Tile, 16>(s, q_tile + row_warp * 16 * MT * Tile::Q_LD, k_tile, scales);
      if (P::HAS_MASK || !Tile::LATE || j0 < all_lo || j0 + 16 > all_hi) mask_scores<P, Tile>(p, s, group, base, j0, valid, valid);
      float fade[2 * MT];
      add_exponentials<Tile>(s, sum, top, total, fade);
      if constexpr (P::DROP > 0) drop_weights<P, Tile>(seed, s, group, base, j0);
      tile_weighted<P, Tile, 16>(sum, s, v_tile, scales + KEYS, fade);
    }
    copy_wait<0>();

    // The warps' results are combined, for 16 rows of each at a time.
    const int rows = smaller(Tile::ALL - r0, ROWS);
    float *const part = tiles == unit_tiles ? nullptr : slot(x, int(blockIdx.x));
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
        if (row < rows)
          merge_row<P, Tile>(p, place<P, true>(group, r0 + row), part == nullptr ? nullptr : part + row * Tile::PARTIAL,
                             Tile::KW, [&](int i) { return parts + (i * Tile::RW * 16 + e) * Tile::PARTIAL; });
      }
    }

    if (part != nullptr) {
      const int begin = x - at.tile, first = begin / share, count = (begin + unit_tiles - 1) / share - first + 1;
      int *const told = reinterpret_cast<int *>(parts);  // by the first thread
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) *told = atomicAdd(arrived + at.batch * Tile::UNITS + at.unit, 1);
      __syncthreads();
      if (*told == count - 1) {
        __threadfence();
        for (int row = warp; row < rows; row += THREADS / 32)
          merge_row<P, Tile>(p, place<P, true>(group, r0 + row), nullptr, count,
                             [&](int i) { return slot(begin, first + i) + row * Tile::PARTIAL; });
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
