// Attention on the tensor cores of sm_80 and later chips (mma.sync), for queries, keys and values of 16 bits or f32,
// after FlashAttention-2 (Dao, arXiv 2307.08691): a warp holds 16 or 32 queries with their scores and results in
// registers; blocks of keys and values are streamed through shared memory, the next values while the scores are
// computed, the next keys while the values are summed. f32 is multiplied as tf32: as three products of the numbers'
// high and low parts, which is as accurate as f32 (Ootomo and Yokota, arXiv 2203.03341), or as one on request.
//
// Keys and values may have 8 bits, with a scale for each. They stay in 8 bits in shared memory, and become bf16, which represents
// them exactly, in registers. Scores are multiplied by the scales of the keys, and weights by those of the values. Queries and
// weights are sums of P::PARTS numbers of bf16: three are as accurate as f32.

template <bool FIRST, class X, class Y> struct Choose { typedef X Type; };
template <class X, class Y> struct Choose<false, X, Y> { typedef Y Type; };

// A tile of MMA attention: WARPS warps of 16·MT queries each, KEYS_ keys at a time. STRICT uses three products for f32.
template <class P, int WARPS_, int MT_, int KEYS_, bool STRICT_> struct MmaTile {
  static constexpr int WARPS = WARPS_, MT = MT_, KEYS = KEYS_, THREADS = 32 * WARPS;
  static constexpr bool HALF = sizeof(typename P::T) == 2, STRICT = STRICT_;
  static constexpr int ROWS = 16 * MT * WARPS;
  static constexpr bool BYTES = P::HAS_SCALES;  // keys and values are of 8 bits
  static constexpr int PARTS = BYTES ? P::PARTS : 1;                    // of a query
  typedef typename Choose<BYTES, bf16, typename P::T>::Type Query;  // in shared memory
  typedef typename Choose<BYTES, i8, typename P::T>::Type Row;      // of keys and values
  static constexpr int STEP = BYTES ? 32 : HALF ? 16 : 8;  // elements that a product, or two, take at once: 32 bytes
  static constexpr int DEPTH = (P::DEPTH + STEP - 1) / STEP * STEP;
  static constexpr int WIDTH = BYTES ? (P::WIDTH + 31) / 32 * 32 : (P::WIDTH + 15) / 16 * 16;
  // Rows in shared memory are 16 bytes longer than an even number of 16 bytes, so that 8 rows use all banks.
  static constexpr int PAD = 16 / int(sizeof(Row)), K_LD = DEPTH + PAD, V_LD = WIDTH + PAD;
  static constexpr int Q_LD = DEPTH + 16 / int(sizeof(Query)), QUERIES = PARTS * ROWS * Q_LD;  // elements
  // PACKED puts the queries of all heads that share keys into one tile; see DecodeTile.
  static constexpr bool PACKED = false;
  static constexpr int ALL = P::QUERIES, TILES = (ALL + ROWS - 1) / ROWS;
  // Without a mask, scores are scaled only in the exponent, of 2.
  static constexpr bool LATE = !P::HAS_MASK && P::SCALE > 0;
  // FADES scales what was summed before as products are added to it, which is one instruction.
  static constexpr bool FADES = STRICT && !HALF && !BYTES;
  static constexpr float LOG2E = 1.4426950408889634f, UNIT = LATE ? float(P::SCALE) * LOG2E : LOG2E;
};

// The head and query of a row of a tile.
struct Place { int head, i; };
template <class P, bool PACKED> DEVICE Place place(int head, int row) {
  if constexpr (PACKED) return {head * P::GROUP + row / P::QUERIES, row % P::QUERIES};
  return {head, row};
}

// Copies rows first … first+ROWS−1 of a matrix with COLUMNS columns to shared memory, LD elements apart: immediately,
// or, if the rows consist of whole pieces of 16 bytes, asynchronously until the thread waits. Rows from end on are 0.
template <int ROWS, int THREADS, int COLUMNS, int LD, class E, class M>
DEVICE void stage_tile(E *to, const M &m, int first, int end) {
  constexpr int N = 16 / sizeof(E);
  if constexpr (M::COL == 1 && M::ALIGN == 16 && COLUMNS % N == 0 && COLUMNS > 0) {
    constexpr int PIECES = COLUMNS / N;
#pragma unroll M::AHEAD
    for (int e0 = 0; e0 < ROWS * PIECES; e0 += THREADS) {
      const int e = e0 + threadIdx.x, r = e / PIECES, c = e % PIECES * N;
      if (ROWS * PIECES % THREADS != 0 && e >= ROWS * PIECES) break;
      const bool there = first + r < end;
      copy_async<16>(to + r * LD + c, there ? m.row(first + r) + c : m.row(0), there);
    }
  } else {
    for (int e = threadIdx.x; e < ROWS * COLUMNS; e += THREADS) {
      const int r = M::COL <= M::ROW ? e / COLUMNS : e % ROWS, c = M::COL <= M::ROW ? e % COLUMNS : e / ROWS;
      to[r * LD + c] = first + r < end ? m.row(first + r)[c * M::COL] : E{};
    }
  }
}

// Clears the columns of a tile beyond those of its matrix.
template <int ROWS, int THREADS, int COLUMNS, int PADDED, int LD, class E> DEVICE void clear_padding(E *to) {
  if constexpr (PADDED > COLUMNS) {
    for (int e = threadIdx.x; e < ROWS * (PADDED - COLUMNS); e += THREADS)
      to[e / (PADDED - COLUMNS) * LD + COLUMNS + e % (PADDED - COLUMNS)] = E{};
  }
}

// Operands of a product: words of two 16-bit numbers, or of one f32 with its high and, if STRICT, low part. Of an infinity
// the low part is NaN; if CAREFUL, it is the infinity and the high one the largest number of tf32; see cut in gemm_mma.cuh.
// Both parts then have x's sign, which is why x is truncated and not rounded.
template <class T, bool STRICT, int N, bool CAREFUL = false> struct Fragment {
  u32 high[N], low[STRICT && sizeof(T) == 4 ? N : 1];
  DEVICE void take(const u32 (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) take(i, x[i]);
  }
  DEVICE void take(int i, u32 x) {
    if constexpr (sizeof(T) == 4) {
      if constexpr (CAREFUL) {
        const float most = bits_to_float(0x7f7fe000u), cut = bits_to_float(x & 0xffffe000u);
        high[i] = float_to_bits(cut != cut ? cut : fminf(fmaxf(cut, -most), most));
      } else {
        high[i] = to_tf32(x);
      }
      if constexpr (STRICT) low[i] = float_to_bits(bits_to_float(x) - bits_to_float(high[i]));
    } else {
      high[i] = x;
    }
  }
};

// d += a·b.
template <class T, bool STRICT, bool CAREFUL>
DEVICE void multiply(float (&d)[4], const Fragment<T, STRICT, 4, CAREFUL> &a,
                     const Fragment<T, STRICT, 2, CAREFUL> &b) {
  if constexpr (STRICT && sizeof(T) == 4) {
    mma(T{}, d, a.low, b.high);
    mma(T{}, d, a.high, b.low);
  }
  mma(T{}, d, a.high, b.high);
}

// The four 8×16-byte matrices of 16 rows and 32 bytes: rows 0–7 and 8–15 of the first half, then of the second.
template <class E> DEVICE void load_rows(u32 (&r)[4], const E *at, int ld) {
  const int lane = threadIdx.x % 32;
  load_matrices<false>(r, at + lane % 16 * ld + lane / 16 * (16 / int(sizeof(E))));
}
// The same with the two halves of rows 0–7 first: the second operand for 16 columns.
template <class E> DEVICE void load_columns(u32 (&r)[4], const E *at, int ld) {
  const int lane = threadIdx.x % 32;
  load_matrices<false>(r, at + (lane % 8 + lane / 16 * 8) * ld + lane / 8 % 2 * (16 / int(sizeof(E))));
}

template <int MT, int N> DEVICE void clear_sums(float (&sum)[MT][N][4]) {
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) sum[m][n][e] = 0;
}

// scores of MT·16 rows of x, DEPTH long, and KEYS rows of y, both in shared memory, of which x begins at this warp's.
template <class T, bool STRICT, bool CAREFUL, int MT, int KEYS, int DEPTH, int LD>
DEVICE void mma_products(float (&s)[MT][KEYS / 8][4], const T *x, const T *y) {
  clear_sums(s);
  constexpr int STEP = 32 / sizeof(T), AHEAD = sizeof(T) == 4 ? 2 : DEPTH;
#pragma unroll AHEAD
  for (int d = 0; d < DEPTH; d += STEP) {
    Fragment<T, STRICT, 4, CAREFUL> a[MT];
    u32 r[4];
#pragma unroll
    for (int m = 0; m < MT; m++) {
      load_rows(r, x + 16 * m * LD + d, LD);
      a[m].take(r);
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n += 2) {
      load_columns(r, y + n * 8 * LD + d, LD);
      Fragment<T, STRICT, 2, CAREFUL> b[2];
#pragma unroll
      for (int e = 0; e < 4; e++) b[e / 2].take(e % 2, r[e]);
#pragma unroll
      for (int m = 0; m < MT; m++) {
        multiply(s[m][n], a[m], b[0]);
        multiply(s[m][n + 1], a[m], b[1]);
      }
    }
  }
}

// The same for operands that may be infinite: a warp whose result has a NaN, possibly from an infinity, computes it
// again with CAREFUL.
template <class T, bool STRICT, int MT, int KEYS, int DEPTH, int LD>
DEVICE void mma_scores(float (&s)[MT][KEYS / 8][4], const T *x, const T *y) {
  mma_products<T, STRICT, false, MT, KEYS, DEPTH, LD>(s, x, y);
  if constexpr (STRICT && sizeof(T) == 4) {
    bool nan = false;
#pragma unroll
    for (auto &row : s) {
#pragma unroll
      for (auto &fragment : row) {
#pragma unroll
        for (float p : fragment) nan = nan || p != p;
      }
    }
    if (__any_sync(~0u, nan)) mma_products<T, STRICT, true, MT, KEYS, DEPTH, LD>(s, x, y);
  }
}

// The weights of a step from key k on, which are in registers like the scores: their positions in the accumulators of
// one product are those in the first operand of the next, for 16-bit types as they are, for f32 with the keys 0 to 7 of
// a step taken in the order 0, 2, 4, 6, 1, 3, 5, 7.
template <class T, bool STRICT, int N>
DEVICE Fragment<T, STRICT, 4> weights_at(const float (&w)[N][4], int k) {
  Fragment<T, STRICT, 4> a;
  const float(&first)[4] = w[k / 8];
  if constexpr (sizeof(T) == 2) {
    const float(&second)[4] = w[k / 8 + 1];
    a.take({pack2(T{}, first[0], first[1]), pack2(T{}, first[2], first[3]), pack2(T{}, second[0], second[1]),
            pack2(T{}, second[2], second[3])});
  } else {
    a.take({float_to_bits(first[0]), float_to_bits(first[2]), float_to_bits(first[1]), float_to_bits(first[3])});
  }
  return a;
}

// The rows of a step from k on that are multiplied by those weights, columns c to c+15.
template <class T, bool STRICT, int LD>
DEVICE void rows_at(Fragment<T, STRICT, 2> (&b)[2], const T *y, int k, int c) {
  const int lane = threadIdx.x % 32;
  u32 r[4];
  if constexpr (sizeof(T) == 2) {
    load_matrices<true>(r, y + (k + lane % 16) * LD + c + lane / 16 * 8);
  } else {
    const T *at = y + (k + lane % 4 * 2) * LD + c + lane / 4;
    r[0] = float_to_bits(at[0]), r[1] = float_to_bits(at[LD]);
    r[2] = float_to_bits(at[8]), r[3] = float_to_bits(at[LD + 8]);
  }
#pragma unroll
  for (int e = 0; e < 4; e++) b[e / 2].take(e % 2, r[e]);
}

// Where part is NaN, it is replaced by weights · rows of y, columns c to c+7, with products of high parts only, which
// give the right sum if a factor is infinite.
template <class T, int LD, int MT, int STEPS>
DEVICE void mend_part(float (&part)[MT][2][4], int half, const Fragment<T, true, 4> (&a)[MT][STEPS], const T *y, int c) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < MT; m++) {
    float high[4] = {};
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      const T *at = y + (k * (32 / int(sizeof(T))) + lane % 4 * 2) * LD + c + lane / 4;
      const u32 b[2] = {to_tf32(float_to_bits(at[0])), to_tf32(float_to_bits(at[LD]))};
      mma(T{}, high, a[m][k].high, b);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
      float &x = part[m][half][e];
      x = x == x ? x : high[e];
    }
  }
}

// The fade of sums that are not scaled.
struct Ones {
  DEVICE float operator[](int) const { return 1; }
};

// sum += weights · KEYS rows of y, WIDTH long, in shared memory. Tensor cores truncate when they add, which in a long
// sum of numbers of one sign exceeds the error bound of f32: if STRICT, they sum at most KEYS terms, and these sums are
// added with rounding, to what is in sum times fade, a number for each of a thread's rows. An infinity in y makes a column of these
// sums NaN, one among the weights a row: if MEND, a warp that finds a NaN in its first rows, or in the first columns, corrects them.
template <class T, bool STRICT, int MT, int KEYS, int WIDTH, int LD, bool MEND = true, class Fade = Ones>
DEVICE void mma_weighted(float (&sum)[MT][WIDTH / 8][4], const float (&w)[MT][KEYS / 8][4], const T *y, const Fade &fade = Fade{}) {
  constexpr int STEP = 32 / sizeof(T);
  if constexpr (STRICT && sizeof(T) == 4) {
    Fragment<T, STRICT, 4> a[MT][KEYS / STEP];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int k = 0; k < KEYS / STEP; k++) a[m][k] = weights_at<T, STRICT>(w[m], k * STEP);
    bool infinite = false;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n += 2) {
      float part[MT][2][4];
      clear_sums(part);
#pragma unroll
      for (int k = 0; k < KEYS / STEP; k++) {
        Fragment<T, STRICT, 2> b[2];
        rows_at<T, STRICT, LD>(b, y, k * STEP, n * 8);
#pragma unroll
        for (int m = 0; m < MT; m++) {
          multiply(part[m][0], a[m][k], b[0]);
          multiply(part[m][1], a[m][k], b[1]);
        }
      }
      if constexpr (MEND) {
        bool nan = false;
#pragma unroll
        for (int m = 0; m < (n == 0 ? MT : 1); m++)
#pragma unroll
          for (int e = 0; e < (n == 0 ? 4 : 2); e++)
            nan = nan || part[m][0][e] != part[m][0][e] || part[m][1][e] != part[m][1][e];
        infinite = infinite || __any_sync(~0u, nan);
        if (infinite) {
          mend_part<T, LD>(part, 0, a, y, n * 8);
          mend_part<T, LD>(part, 1, a, y, n * 8 + 8);
        }
      }
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float by = fade[2 * m + e / 2];
          sum[m][n][e] = sum[m][n][e] * by + part[m][0][e];
          sum[m][n + 1][e] = sum[m][n + 1][e] * by + part[m][1][e];
        }
    }
  } else {
#pragma unroll
    for (int k = 0; k < KEYS; k += STEP) {
      Fragment<T, STRICT, 4> a[MT];
#pragma unroll
      for (int m = 0; m < MT; m++) a[m] = weights_at<T, STRICT>(w[m], k);
#pragma unroll
      for (int n = 0; n < WIDTH / 8; n += 2) {
        Fragment<T, STRICT, 2> b[2];
        rows_at<T, STRICT, LD>(b, y, k, n * 8);
#pragma unroll
        for (int m = 0; m < MT; m++) {
          multiply(sum[m][n], a[m], b[0]);
          multiply(sum[m][n + 1], a[m], b[1]);
        }
      }
    }
  }
}

// x in parts that add up to it. An infinity is in the first.
template <int PARTS> DEVICE void cut_parts(bf16 (&to)[PARTS], float x) {
#pragma unroll
  for (int p = 0; p < PARTS; p++) {
    to[p] = convert<bf16>(x);
    const float rest = x - to_float(to[p]);
    x = rest == rest ? rest : 0.0f;
  }
}

// The place of element c of a query in shared memory. A thread reads keys in words of four elements, of which the first and third
// are one register of an operand, and the others the next.
DEVICE int query_place(int c) { return c / 16 * 16 + c % 2 * 8 + c % 16 / 4 * 2 + c % 4 / 2; }

// Copies the queries first … of a tile to shared memory, as stage_tile does, and clears what is behind them.
template <class P, class Tile, class M> DEVICE void stage_queries(typename Tile::Query *to, const M &q, int first) {
  if constexpr (!Tile::BYTES) {
    stage_tile<Tile::ROWS, Tile::THREADS, P::DEPTH, Tile::Q_LD>(to, q, first, Tile::ALL);
  } else {
    for (int e = threadIdx.x; e < Tile::ROWS * Tile::DEPTH; e += Tile::THREADS) {
      const int r = e / Tile::DEPTH, c = e % Tile::DEPTH;
      float x = 0;
      if (first + r < Tile::ALL && c < P::DEPTH) x = convert<float>(q.row(first + r)[c * M::COL]);
      bf16 parts[Tile::PARTS];
      cut_parts(parts, x);
#pragma unroll
      for (int p = 0; p < Tile::PARTS; p++) to[(p * Tile::ROWS + r) * Tile::Q_LD + query_place(c)] = parts[p];
    }
  }
}

// Copies the scales of rows first … first+ROWS−1 to shared memory, asynchronously. Those from end on are 0.
template <int ROWS, int THREADS, class M> DEVICE void stage_scales(float *to, const M &m, int first, int end) {
  for (int e = threadIdx.x; e < ROWS; e += THREADS) {
    const bool there = first + e < end;
    copy_async<4>(to + e, m.row(there ? first + e : 0), there);
  }
}

// Multiplies scores, or weights, by the scales of their keys.
template <int MT, int N> DEVICE void scale_keys(float (&s)[MT][N][4], const float *scale) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float first = scale[n * 8 + lane % 4 * 2], second = scale[n * 8 + lane % 4 * 2 + 1];
#pragma unroll
    for (int m = 0; m < MT; m++) {
      s[m][n][0] *= first, s[m][n][1] *= second;
      s[m][n][2] *= first, s[m][n][3] *= second;
    }
  }
}

// scores of a warp's queries, from x on, and KEYS keys of 8 bits, before they are scaled. at(r, c) is where 16 elements of key r
// are, from c on.
template <class Tile, int KEYS, class At> DEVICE void byte_scores(float (&s)[Tile::MT][KEYS / 8][4], const bf16 *x, const At &at) {
  const int lane = threadIdx.x % 32;
  constexpr int MT = Tile::MT, PARTS = Tile::PARTS, AHEAD = PARTS > 1 ? 1 : Tile::DEPTH;
  clear_sums(s);
#pragma unroll AHEAD
  for (int d = 0; d < Tile::DEPTH; d += 32) {
    u32 a[MT][2][PARTS][4], r[4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int p = 0; p < PARTS; p++) load_rows(a[m][h][p], x + (p * Tile::ROWS + 16 * m) * Tile::Q_LD + d + 16 * h, Tile::Q_LD);
#pragma unroll
    for (int n = 0; n < KEYS / 8; n += 2) {
      load_matrices<false>(r, at(n * 8 + lane % 8 + lane / 16 * 8, d + lane / 8 % 2 * 16));
#pragma unroll
      for (int e = 0; e < 4; e++) {
        u32 b[2];
        I8::of(bf16{}, b, r[e]);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
          for (int p = PARTS - 1; p >= 0; p--) mma(bf16{}, s[m][n + e / 2], a[m][e % 2][p], b);
      }
    }
  }
}

// sum += weights · KEYS values of 8 bits, where at(r, c) says. A thread has four columns side by side: the first and third are in one
// accumulator, and the others in the next; see byte_columns. Sums as accurate as f32 are rounded as those of mma_weighted.
template <class Tile, int KEYS, class At>
DEVICE void byte_weighted(float (&sum)[Tile::MT][Tile::WIDTH / 8][4], const float (&w)[Tile::MT][KEYS / 8][4], const At &at) {
  constexpr int MT = Tile::MT, PARTS = Tile::PARTS, STEPS = KEYS / 16;
  constexpr bool ROUNDED = PARTS == 3;
  const int lane = threadIdx.x % 32;
  u32 a[MT][STEPS][PARTS][4];
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float(&from)[4] = w[m][2 * k + i / 2];
        bf16 first[PARTS], second[PARTS];
        cut_parts(first, from[i % 2 * 2]);
        cut_parts(second, from[i % 2 * 2 + 1]);
#pragma unroll
        for (int p = 0; p < PARTS; p++) a[m][k][p][i] = u32(first[p].bits) | u32(second[p].bits) << 16;
      }
#pragma unroll
  for (int c = 0; c < Tile::WIDTH / 8; c += 4) {
    float part[MT][4][4];
    clear_sums(part);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      u32 r[4];
      load_matrices<true>(r, at(16 * k + lane % 16, 8 * c + lane / 16 * 16));
#pragma unroll
      for (int h = 0; h < 2; h++) {
        u32 near[2], far[2];  // of the first eight keys, and of the others
        I8::of(bf16{}, near, r[2 * h]);
        I8::of(bf16{}, far, r[2 * h + 1]);
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
          const u32 b[2] = {near[odd], far[odd]};
#pragma unroll
          for (int m = 0; m < MT; m++)
#pragma unroll
            for (int p = PARTS - 1; p >= 0; p--) {
              if constexpr (ROUNDED) mma(bf16{}, part[m][2 * h + odd], a[m][k][p], b);
              else mma(bf16{}, sum[m][c + 2 * h + odd], a[m][k][p], b);
            }
        }
      }
    }
    if constexpr (ROUNDED) {
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
          for (int e = 0; e < 4; e++) sum[m][c + n][e] += part[m][n][e];
    }
  }
}

// The four columns of a thread in accumulators n and n+1 of byte_weighted, of rows g or g+8; the first is 8·n + 4·(lane mod 4).
DEVICE Vec<float, 4> byte_columns(const float (&even)[4], const float (&odd)[4], int half) {
  return {even[2 * half], odd[2 * half], even[2 * half + 1], odd[2 * half + 1]};
}

// The scores of a warp's queries and KEYS keys in shared memory, and the weighted sums of values there, of either kind; fade is
// that of add_exponentials.
template <class P, class Tile, int KEYS>
DEVICE void tile_scores(float (&s)[Tile::MT][KEYS / 8][4], const typename Tile::Query *x, const typename Tile::Row *y,
                        const float *scale) {
  if constexpr (Tile::BYTES) {
    byte_scores<Tile, KEYS>(s, x, [&](int r, int c) { return y + r * Tile::K_LD + c; });
    scale_keys(s, scale);
  } else {
    mma_scores<typename P::T, Tile::STRICT, Tile::MT, KEYS, Tile::DEPTH, Tile::K_LD>(s, x, y);
  }
}
template <class P, class Tile, int KEYS>
DEVICE void tile_weighted(float (&sum)[Tile::MT][Tile::WIDTH / 8][4], float (&w)[Tile::MT][KEYS / 8][4],
                          const typename Tile::Row *y, const float *scale, const float (&fade)[2 * Tile::MT]) {
  if constexpr (Tile::BYTES) {
    scale_keys(w, scale);
    byte_weighted<Tile, KEYS>(sum, w, [&](int r, int c) { return y + r * Tile::V_LD + c; });
  } else {
    mma_weighted<typename P::T, Tile::STRICT, Tile::MT, KEYS, Tile::WIDTH, Tile::V_LD>(sum, w, y, fade);
  }
}

// Which of the four elements of an accumulator dropout keeps: bits 0 and 1 of query i and keys j, j+1, bits 2 and 3 of
// query i+8. Where a block of the generator is not cut by the end of a row, two neighbours share its work.
template <class P> DEVICE u32 kept_accumulator(i64 seed, Place first, Place second, int j) {
  const int lane = threadIdx.x % 32;
  if constexpr (P::KEYS % 4 == 0) {
    const Place mine = lane % 2 ? second : first;
    const u32 four = kept4<P>(seed, mine.head, mine.i, j & ~3);
    const u32 other = __shfl_xor_sync(~0u, four, 1);
    return lane % 2 ? (other >> 2 & 3) | (four & 12) : (four & 3) | (other & 3) << 2;
  }
  return (kept4<P>(seed, first.head, first.i, j) & 3) | (kept4<P>(seed, second.head, second.i, j) & 3) << 2;
}

// The greatest of 4 neighbours' numbers, and their sum.
DEVICE float max_of4(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
DEVICE float sum_of4(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Which elements of a thread's N accumulators dropout keeps: kept(n) are the four bits of the n-th. A loop that is not
// unrolled keeps the code small.
template <int N, class F> DEVICE u32 kept_bits(F kept) {
  u32 bits = 0;
#pragma unroll 1
  for (int n = 0; n < N; n++) bits |= kept(n) << 4 * n;
  return bits;
}
// The same by kept_accumulator, of keys from j0 + 8·n on. Where rows are whole groups of the generator, four threads share its work:
// each makes a group of one of the two queries, whose byte t has what thread t needs of four accumulators.
template <class P, int N> DEVICE u32 kept_accumulators(i64 seed, Place first, Place second, int j0) {
  const int lane = threadIdx.x % 32, pair = lane % 4;
  if constexpr (P::KEYS % 32 == 0 && (N == 4 || N == 8)) {
    if (j0 % 32 == 0) {
      const Place mine = pair % 2 ? second : first;
      const u64 row = u64(mine.head) * P::QUERIES + mine.i;
      const u32 group = kept_group<P::DROP_BITS, P::DROP>(u64(seed), row * (P::KEYS / 32) + j0 / 32 + pair / 2);
      u32 bits = 0;
#pragma unroll
      for (int from = 0; from < N / 2; from++) {
        u32 four = __shfl_sync(~0u, group, (lane & ~3) | from) >> 8 * pair & 0xff;
        four = (four | four << 4) & 0x0f0f;
        bits |= ((four | four << 2) & 0x3333) << 2 * (from % 2) + 16 * (from / 2);
      }
      return bits;
    }
  }
  return kept_bits<N>([&](int n) { return kept_accumulator<P>(seed, first, second, j0 + n * 8 + pair * 2); });
}

// Stores columns c and c+1 of a row, if they exist.
template <int COLUMNS, class M> DEVICE void store_pair(const M &m, int row, int c, float x, float y) {
  typedef typename M::Element E;
  if constexpr (M::COL == 1 && COLUMNS % 2 == 0 && M::ALIGN % (2 * sizeof(E)) == 0) {
    if (c < COLUMNS) store<1, 2 * sizeof(E)>(m.row(row) + c, Vec<float, 2>{x, y});
  } else {
    if (c < COLUMNS) put(m, row, c, x);
    if (c + 1 < COLUMNS) put(m, row, c + 1, y);
  }
}

// Stores columns c to c+3 of a row, if they exist.
template <int COLUMNS, class M> DEVICE void store_four(const M &m, int row, int c, const Vec<float, 4> &x) {
  typedef typename M::Element E;
  if constexpr (M::COL == 1 && COLUMNS % 4 == 0 && M::ALIGN % (4 * sizeof(E)) == 0) {
    if (c < COLUMNS) store<1, 4 * sizeof(E)>(m.row(row) + c, x);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (c + i < COLUMNS) put(m, row, c + i, x[i]);
    }
  }
}

// 2 to the power of x, with an error of at most two units in the last place; 0 if the result is subnormal.
DEVICE float exp2_approximate(float x) {
#ifdef FUSEC_HOST
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// mask_scores masks the scores of a warp's rows, base, base+8, base+16 … of a head or of all that share keys, for the N·8 keys
// from j0 on; keys from end on do not count.
template <class P, class Tile, int N, class Args>
DEVICE void mask_scores(const Args &p, float (&s)[Tile::MT][N][4], int head, int base, int j0, int end, int valid) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2 * Tile::MT; r++) {
    const int row = base + r / 2 * 16 + r % 2 * 8;
    const Place at = place<P, Tile::PACKED>(head, row);
    Span keys = row < Tile::ALL ? reach<P>(at.i, valid) : Span{0, 0};
    keys.hi = smaller(keys.hi, end);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        float &x = s[r / 2][n][r % 2 * 2 + c];
        const int j = j0 + n * 8 + lane % 4 * 2 + c;
        if constexpr (Tile::LATE) x = j < keys.lo || j >= keys.hi ? minus_infinity<float>() : x;
        else x = score<P>(p, at.head, at.i, j, keys, x);
      }
  }
}

// add_exponentials makes scores the exponentials of their distances from the greatest of their row, top, and adds these to
// total. What was summed before is scaled to the new top, or, if Tile::FADES, is to be multiplied by fade.
template <class Tile, int N, int W>
DEVICE void add_exponentials(float (&s)[Tile::MT][N][4], float (&sum)[Tile::MT][W][4], float (&top)[2 * Tile::MT],
                             float (&total)[2 * Tile::MT], float (&fade)[2 * Tile::MT]) {
  constexpr float UNIT = Tile::UNIT;
#pragma unroll
  for (int r = 0; r < 2 * Tile::MT; r++) {
    float most = s[r / 2][0][r % 2 * 2];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) most = fmaxf(most, s[r / 2][n][r % 2 * 2 + c]);
    most = fmaxf(max_of4(most), top[r]);
    // The chip computes x·UNIT − low in one step, so the rounding error of low remains. If that may be more than 1,
    // the greatest score is subtracted first.
    const bool far = fabsf(most * UNIT) > 0x1p24f && most != minus_infinity<float>();
    if (far) {
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) s[r / 2][n][r % 2 * 2 + c] -= most;
    }
    const float low = far || most == minus_infinity<float>() ? 0.0f : most * UNIT;
    fade[r] = exp2_approximate(fmaf(far ? top[r] - most : top[r], UNIT, -low));
    top[r] = most;
    float part = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        float &x = s[r / 2][n][r % 2 * 2 + c];
        x = exp2_approximate(fmaf(x, UNIT, -low));
        part += x;
      }
    total[r] = total[r] * fade[r] + part;
    if constexpr (!Tile::FADES) {
#pragma unroll
      for (int n = 0; n < W; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) sum[r / 2][n][r % 2 * 2 + c] *= fade[r];
    }
  }
}

// drop_weights sets the weights to 0 that dropout drops; see mask_scores.
template <class P, class Tile, int N>
DEVICE void drop_weights(i64 seed, float (&s)[Tile::MT][N][4], int head, int base, int j0) {
#pragma unroll
  for (int m = 0; m < Tile::MT; m++) {
    const Place upper = place<P, Tile::PACKED>(head, base + 16 * m);
    const Place lower = place<P, Tile::PACKED>(head, base + 16 * m + 8);
    const u32 kept = kept_accumulators<P, N>(seed, upper, lower, j0);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[m][n][e] = kept >> (4 * n + e) & 1 ? s[m][n][e] : 0.0f;
  }
}

// attention_mma computes ROWS queries of a head.
template <class P, class Tile, class Args> DEVICE void attention_mma(const Args &p) {
  typedef typename Tile::Row Row;
  constexpr int MT = Tile::MT, KEYS = Tile::KEYS, ROWS = Tile::ROWS, THREADS = Tile::THREADS;
  SHARED;
  auto *const q_tile = reinterpret_cast<typename Tile::Query *>(shared);
  Row *const k_tile = reinterpret_cast<Row *>(q_tile + Tile::QUERIES), *const v_tile = k_tile + KEYS * Tile::K_LD;
  float *const k_scales = reinterpret_cast<float *>(v_tile + KEYS * Tile::V_LD), *const v_scales = k_scales + KEYS;  // if BYTES
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.x / Tile::TILES, tile = Tile::TILES - 1 - blockIdx.x % Tile::TILES;
  const int group = head / P::GROUP, batch = head / P::HEADS;
  const int r0 = tile * ROWS, valid = valid_keys<P>(p, batch);
  if (head % P::HEADS == 0 && tile == 0) check_table<P>(p, batch, valid, threadIdx.x, THREADS);
  const auto q = P::q(p, head);
  const auto k = P::k(p, group);
  const auto v = P::v(p, group);
  i64 seed = 0;
  if constexpr (P::DROP > 0) seed = P::seed(p);

  // The keys to which any row may attend, and those to which all may.
  const Span first = reach<P>(r0, valid), last = reach<P>(smaller(r0 + ROWS, P::QUERIES) - 1, valid);
  const int from = first.lo / KEYS * KEYS, to = last.hi;

  if constexpr (!Tile::BYTES) clear_padding<ROWS, THREADS, P::DEPTH, Tile::DEPTH, Tile::Q_LD>(q_tile);
  clear_padding<KEYS, THREADS, P::DEPTH, Tile::DEPTH, Tile::K_LD>(k_tile);
  clear_padding<KEYS, THREADS, P::WIDTH, Tile::WIDTH, Tile::V_LD>(v_tile);
  const auto load_keys = [&](int j0) {
    stage_tile<KEYS, THREADS, P::DEPTH, Tile::K_LD>(k_tile, k, j0, valid);
    if constexpr (Tile::BYTES) stage_scales<KEYS, THREADS>(k_scales, P::k_scale(p, group), j0, valid);
  };
  if (from < to) {
    stage_queries<P, Tile>(q_tile, q, r0);
    load_keys(from);
  }
  copy_commit();

  // A thread's rows are base, base+8, base+16, …; row 2·m+h is that of elements 2h and 2h+1 of accumulator m.
  const int base = r0 + warp * 16 * MT + lane / 4;
  float sum[MT][Tile::WIDTH / 8][4], top[2 * MT], total[2 * MT];
#pragma unroll
  for (int r = 0; r < 2 * MT; r++) top[r] = minus_infinity<float>(), total[r] = 0;
  clear_sums(sum);

  for (int j0 = from; j0 < to; j0 += KEYS) {
    copy_wait<0>();
    __syncthreads();
    stage_tile<KEYS, THREADS, P::WIDTH, Tile::V_LD>(v_tile, v, j0, valid);
    if constexpr (Tile::BYTES) stage_scales<KEYS, THREADS>(v_scales, P::v_scale(p, group), j0, valid);
    copy_commit();
    float s[MT][KEYS / 8][4];
    tile_scores<P, Tile, KEYS>(s, q_tile + warp * 16 * MT * Tile::Q_LD, k_tile, k_scales);
    if (P::HAS_MASK || !Tile::LATE || j0 < last.lo || j0 + KEYS > first.hi)
      mask_scores<P, Tile>(p, s, head, base, j0, to, valid);
    copy_wait<0>();
    __syncthreads();
    if (j0 + KEYS < to) load_keys(j0 + KEYS);
    copy_commit();
    float fade[2 * MT];
    add_exponentials<Tile>(s, sum, top, total, fade);
    if constexpr (P::DROP > 0) drop_weights<P, Tile>(seed, s, head, base, j0);
    tile_weighted<P, Tile, KEYS>(sum, s, v_tile, v_scales, fade);
  }
  copy_wait<0>();

#pragma unroll
  for (int r = 0; r < 2 * MT; r++) {
    const int row = base + r / 2 * 16 + r % 2 * 8;
    total[r] = sum_of4(total[r]);
    if (row >= Tile::ALL) continue;
    const auto out = P::out(p, head);
    const float share = total[r] == 0.0f ? 0.0f : float(P::KEEP) / total[r];
    if constexpr (Tile::BYTES) {
#pragma unroll
      for (int n = 0; n < Tile::WIDTH / 8; n += 2) {
        Vec<float, 4> y = byte_columns(sum[r / 2][n], sum[r / 2][n + 1], r % 2);
#pragma unroll
        for (int c = 0; c < 4; c++) y[c] *= share;
        store_four<P::WIDTH>(out, row, n * 8 + lane % 4 * 4, y);
      }
    } else {
#pragma unroll
      for (int n = 0; n < Tile::WIDTH / 8; n++) {
        const int column = n * 8 + lane % 4 * 2;
        store_pair<P::WIDTH>(out, row, column, sum[r / 2][n][r % 2 * 2] * share, sum[r / 2][n][r % 2 * 2 + 1] * share);
      }
    }
    if constexpr (P::HAS_LSE) {
      if (lane % 4 == 0)
        put(P::lse(p, head), row, 0, top[r] * (Tile::LATE ? float(P::SCALE) : 1.0f) + logf(total[r]));
    }
  }
}
