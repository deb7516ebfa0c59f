// Matrix products with Hopper's instructions; see gemm.cuh for Problem and Body. A block has a producer, one thread
// that starts the copies of slices of A and B into a ring of stages, and two warpgroups that multiply them and finish
// the tile. Blocks are persistent and process tile after tile, so the producer loads the next tile while the current
// one is finished.
//
// A Tile describes the division of the work:
//
//	typedef … T;           the elements as the tensor cores read them: bf16, f16 or tf32
//	bool A_KINNER, B_KINNER;
//	int INNER;             matrix `batch` stands at coordinates batch % INNER and batch / INNER of the tensor maps;
//	int A_AXES, B_AXES;    bits 0 and 1: whether the operand has these axes
//	int BM, BN;            the tile of one block
//	int STAGES;
//	int CM, CN;            blocks of a cluster along m and n, which share what they load: each loads a part for all
//	int CK;                if more than 1, so many times these blocks, which share k and then exchange sums: each finishes a part of
//	                       the columns of its one tile
//	bool PINGPONG;         each warpgroup has tiles of its own, one multiplies while the other finishes; else each takes
//	                       one half of the rows of every tile
//	int SPLITS;            shares of k
//	bool GATHERS;          A is patches that the producer's threads copy; else, if P::PATCHES, the copy engine does
//	bool B_PATCHES;        B is patches that the copy engine copies
//	i64 ODD;               if not 0, the producer's threads copy B, whose rows begin anywhere: the elements from its buffer's start
//	                       to its last
//	int TURN;              bytes of shared memory of a warp that finishes a tile
//	bool TURNED;           Cᵀ = Bᵀ·Aᵀ is computed, and the copy engine stores C: A, BM and CM are those of its columns, and B, BN and
//	                       CN those of its rows
//	bool B_ONCE;           what is read of B is the first to leave the L2 cache
//	int RESIDENT;          if not 0, a block's tiles have the same columns, and their B, so many slices at most, stays in shared
//	                       memory
//	bool STORES;           the copy engine stores the result, see store_tile, or of a turned tile without PINGPONG threads
//	bool TAPS;             B has axes for rows and columns of taps of filters, which k counts together with channels
//	int FIRST, BLOCKS;     the product's blocks, where the launch has others besides; else 0, and all are
//	int OPERANDS;          operands of the body, matrices like the result: the copy engine brings a tile of each, which takes a
//	                       stage behind the tile's slices

// A slice of an operand in shared memory is rows of 128 bytes along k, or where the operand's inner axis is m (n), for
// each 64 of them 64 rows of 128 bytes along m (n): either way 128 bytes for each m (n). Of the last 64 the tile may use 32,
// see Columns.
template <class P, class Tile> struct Ring {
  typedef typename Tile::T T;
  static constexpr int BK = 128 / int(sizeof(T)), B_ROWS = Tile::B_KINNER ? Tile::BN : (Tile::BN + 63) / 64 * 64;
  static constexpr int A_BYTES = Tile::BM * 128, B_BYTES = B_ROWS * 128;
  static constexpr int STAGE = A_BYTES + (Tile::RESIDENT ? 0 : B_BYTES), SHARING = Tile::CM * Tile::CN;
  static constexpr int CLUSTER = SHARING * Tile::CK;
  static constexpr int WARP_ROWS = 16, CHUNK = 64;  // of the tile that a warp exchanges at once, see finish_tile
  static constexpr int TURN = Tile::TURN;
  static constexpr int HELD = STAGE * Tile::STAGES;  // where B stands that stays
  static constexpr int TURNS = HELD + Tile::RESIDENT * B_BYTES, INBOX = TURNS + 8 * TURN;
  static constexpr int SENT = (Tile::CK - 1) * (Tile::BM * Tile::BN / Tile::CK) * 4, BARRIERS = INBOX + SENT;
  // The number of a block's first tile, and how far its tiles are apart.
  static DEVICE int first() { return (int(blockIdx.x) - Tile::FIRST) / CLUSTER; }
  static DEVICE int apart() { return (Tile::BLOCKS > 0 ? Tile::BLOCKS : int(gridDim.x)) / CLUSTER; }
};

// load_slice starts this block's part of copying the slice of ROWS of an operand from row `row` and column k on, to all
// SHARERS blocks of the cluster that need it, of which this is number `part`; mask has their bits. A box holds ACROSS
// rows where k is not the inner axis. With ONCE, the operand is read once, by one block.
template <int ROWS, int SHARERS, bool KINNER, int AXES, int INNER, int ACROSS = 64, bool ONCE = false>
DEVICE void load_slice(u8 *to, const TensorMap *map, u64 *full, int row, int k, int batch, int part, u32 mask) {
  constexpr int EACH = ROWS / SHARERS, BOX = KINNER ? EACH : ACROSS;
  static_assert(ROWS % SHARERS == 0 && EACH % BOX == 0 && (SHARERS == 1 || !ONCE), "a slice is divided into whole boxes");
  const int b0 = AXES & 1 ? batch % INNER : 0, b1 = AXES & 2 ? batch / INNER : 0;
#pragma unroll
  for (int i = 0; i < EACH; i += BOX) {
    const int at = part * EACH + i;
    const int x = KINNER ? k : row + at, y = KINNER ? row + at : k;
    if constexpr (ONCE) {
      tma_stream(to + at * 128, map, full, x, y, b0, b1);
    } else if constexpr (SHARERS == 1) {
      tma_load(to + at * 128, map, full, x, y, b0, b1);
    } else {
      tma_multicast(to + at * 128, map, full, x, y, b0, b1, mask);
    }
  }
}

// Columns are those of a tile from column n on. Where B is in PIECES of 64 columns, these begin at multiples of 64, so that the copy
// engine reads whole lines: if n lies between two, the tile's first 32 columns are its last in shared memory.
template <int BN, bool PIECES> struct Columns {
  int n;
  // at is the column of those from c on, a multiple of 32.
  DEVICE int at(int c) const {
    if (!PIECES || BN % 64 == 0 || n % 64 == 0) return n + c;
    return c < BN - 32 ? n + 32 + c : n + c - (BN - 32);
  }
};

// load_pieces is load_slice of B for one block, in the order of the columns.
template <int AXES, int INNER, int BN>
DEVICE void load_pieces(u8 *to, const TensorMap *map, u64 *full, Columns<BN, true> columns, int k, int batch) {
#pragma unroll
  for (int c = 0; c < BN; c += 64) load_slice<64, 1, false, AXES, INNER>(to + c * 128, map, full, columns.at(c), k, batch, 0, 0);
}

// load_taps is load_slice for filters with C channels, with taps KW in a row.
template <int ROWS, int SHARERS, bool KINNER, int C, int KW>
DEVICE void load_taps(u8 *to, const TensorMap *map, u64 *full, int row, int k, int part, u32 mask) {
  load_slice<ROWS, SHARERS, KINNER, 3, KW>(to, map, full, row, k % C, k / C, part, mask);
}

// load_patches_slice is load_slice for patches that the copy engine takes from images. A slice lies within one tap.
template <class I, int WIDE, int ROWS, int SHARERS, bool KINNER>
DEVICE void load_patches_slice(u8 *to, const TensorMap *map, u64 *full, int row, int k, int batch, int part, u32 mask) {
  constexpr int EACH = ROWS / SHARERS, BOX = KINNER ? EACH : WIDE;
  constexpr int X0 = I::X0 + least(I::DX, 0) * (I::KW - 1), Y0 = I::Y0 + least(I::DY, 0) * (I::KH - 1);
  static_assert(ROWS % SHARERS == 0 && EACH % BOX == 0 && I::C % WIDE == 0, "a slice is divided into whole boxes");
#pragma unroll
  for (int i = 0; i < EACH; i += BOX) {
    const int at = part * EACH + i, position = KINNER ? row + at : k, column = KINNER ? k : row + at;
    const int tap = least(column / I::C, I::KH * I::KW - 1), kx = tap % I::KW, ky = tap / I::KW, q = position / I::OW;
    const int dx = I::DX < 0 ? (kx - (I::KW - 1)) * I::DX : kx * I::DX, dy = I::DY < 0 ? (ky - (I::KH - 1)) * I::DY : ky * I::DY;
    const int c = batch * I::C + column % I::C, x = position % I::OW * I::SX + X0, y = q % I::OH * I::SY + Y0, n = q / I::OH;
    if constexpr (SHARERS == 1) {
      tma_patches(to + at * 128, map, full, c, x, y, n, dx, dy);
    } else {
      tma_patches_multicast(to + at * 128, map, full, c, x, y, n, dx, dy, mask);
    }
  }
}

// multiply_slice adds the product of the slices of a stage to the accumulators of a warpgroup, 64 rows each.
template <class T, bool A_KINNER, bool B_KINNER, int BN, int PARTS>
DEVICE void multiply_slice(float (&acc)[PARTS][BN / 2], u64 a, u64 b, bool add) {
#pragma unroll
  for (int k = 0; k < 4; k++) {  // 32 bytes or 16 rows of the slice
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
      Wgmma<T, BN>::template multiply<!B_KINNER, !A_KINNER>(acc[i], a + (i * 8192 + k * (A_KINNER ? 32 : 2048)) / 16,
                                                            b + k * (B_KINNER ? 32 : 2048) / 16, add || k > 0);
    }
  }
}

// Ahead is what a body reads before EACH calls for each of a thread's COLS / P::W pieces of a row, so that the reads are under way
// together.
template <class P, class Body, int COLS, bool AHEAD = Body::AHEAD> struct Ahead {
  static constexpr int EACH = 32 / COLS;
  DEVICE void read(int, int, const Body &, int, int, int) {}
  template <class V, class S> DEVICE void call(int, int, const Body &body, int batch, int m, int n, const V &v, S *sums) const {
    body(batch, m, n, v, sums);
  }
};
template <class P, class Body, int COLS> struct Ahead<P, Body, COLS, true> {
  typedef typename Body::template Ahead<P::W> Values;
  static constexpr int EACH = least(32 / COLS, sizeof(Values) > 64 ? 1 : sizeof(Values) > 32 ? 2 : 4);
  Values values[EACH][COLS / P::W];
  DEVICE void read(int e, int q, const Body &body, int batch, int m, int n) { values[e][q] = body.template ahead<P::W>(batch, m, n); }
  template <class V, class S> DEVICE void call(int e, int q, const Body &body, int batch, int m, int n, const V &v, S *sums) const {
    body(batch, m, n, v, sums, values[e][q]);
  }
};

// Operands are what a warp has of the operands that the copy engine brings: where its first row is in the tile of each, and a number
// for each row, that of row i of part p in lane 16·p + i. A body has, instead of the ahead that reads memory,
//
//	const TensorMap *operand(int i) const;
//	float row(int m) const;
//	template <int W> Ahead<W> ahead(const u8 *const *tiles, int byte, float row) const;
template <int N> struct Operands {
  const u8 *tiles[N > 0 ? N : 1];
  float row;
};

// take_chunk reads the accumulators of 64 columns of 16 rows, those of number `number`, or of FIRST. Registers have constant numbers.
template <int FIRST, int PARTS, int EACH> DEVICE void take_chunk(float (&chunk)[32], const float (&acc)[PARTS][EACH], int number) {
  static_assert(EACH % 32 == 0, "whole chunks");
  if constexpr (FIRST < PARTS * EACH / 32 - 1) {
    if (number != FIRST) {
      take_chunk<FIRST + 1>(chunk, acc, number);
      return;
    }
  }
#pragma unroll
  for (int e = 0; e < 32; e++) chunk[e] = acc[FIRST % PARTS][FIRST / PARTS * 32 + e];
  pin(chunk);
}

// finish_tile passes a warp's accumulators to the body. The warp's threads exchange them through its own shared memory,
// 16 rows by 64 columns at a time, so that each gets W columns of a row and neighbours have neighbouring columns.
// Pieces of 16 bytes are permuted within a row to avoid bank conflicts in writing and reading. Rows from `end` on are
// left out; WHOLE: the tile has no such rows, and no excess columns. The warp's column sums become row `block` of
// partial [SUMS][BLOCKS][N].
template <class P, bool WHOLE, int BLOCKS, int BN, bool PIECES, int PARTS, class Body, int OPERANDS = 0>
DEVICE void finish_tile(const Body &body, float (&acc)[PARTS][BN / 2], u8 *turn, int batch, int m, Columns<BN, PIECES> columns,
                        int end, typename Body::Sum *partial, int block, const Operands<OPERANDS> &operands = {}) {
  constexpr int W = P::W, CALLS = W < 2 ? 2 : 1, COLS = CALLS * W, APART = 32;  // a thread's single columns are APART
  constexpr int PIECE = least(W, 4);
  typedef Ahead<P, Body, COLS, Body::AHEAD && OPERANDS == 0> Read;
  constexpr int UNROLL = Body::LONG ? 1 : 8, EACH = OPERANDS > 0 ? least(4, 32 / COLS) : Read::EACH;
  const int lane = threadIdx.x % 32, row = lane / 4, odd = lane / 2 % 2, col = W < 2 ? lane : lane * W % 64;
  u8 *const to = turn + row * 256 + odd * 128 + lane % 2 * 8;
  const auto row_of = [&](int piece) { return (piece * 32 + lane) * COLS / 64; };
  const auto inside = [&](int i, int row, int c, int column) {
    return (BN % 64 == 0 || c < BN) && (WHOLE || m + i * 64 + row < end && column < P::N);
  };
  const auto read = [&](Read &to, int c, int i, int first) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
#pragma unroll
      for (int q = 0; q < CALLS; q++) {
        const int r = row_of(first + e), own = col + q * APART, column = columns.at(c) + own;
        if (inside(i, r, c + own, column)) to.read(e, q, body, batch, m + i * 64 + r, column);
      }
    }
  };
  Read next;
  read(next, 0, 0, 0);
#pragma unroll UNROLL
  for (int c = 0; c < BN; c += 64) {
    const int at_n = columns.at(c) + col;
    Vec<typename Body::Sum, W> sums[CALLS][Body::SUMS + 1] = {};
#pragma unroll UNROLL
    for (int i = 0; i < PARTS; i++) {
      float chunk[32];
      if constexpr (UNROLL == 1) {
        take_chunk<0>(chunk, acc, c / 64 * PARTS + i);
      } else {
#pragma unroll
        for (int e = 0; e < 32; e++) chunk[e] = BN % 64 == 0 || c / 2 + e < BN / 2 ? acc[i][c / 2 + e] : 0;
      }
#pragma unroll
      for (int j = 0; j < 8; j++) {
        if (BN % 64 != 0 && c + j * 8 >= BN) continue;
        const float *x = chunk + j * 4;
        u8 *const at = to + (j ^ (row & 3) ^ odd * 4) * 16;
        *reinterpret_cast<float2 *>(at) = {x[0], x[1]};
        *reinterpret_cast<float2 *>(at + 8 * 256) = {x[2], x[3]};
      }
      __syncwarp();
#pragma unroll UNROLL
      for (int first = 0; first < 32 / COLS; first += EACH) {
        const Read ahead = next;
        if (first + EACH < 32 / COLS) {
          read(next, c, i, first + EACH);
        } else if (i + 1 < PARTS) {
          read(next, c, i + 1, 0);
        } else if (c + 64 < BN) {
          read(next, c + 64, 0, 0);
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
          const int r = row_of(first + e);
          Vec<float, W> v[CALLS];
#pragma unroll
          for (int w = 0; w < COLS; w += PIECE) {
            const int from = col + (W < 2 ? w * APART : w), p = from / 4;
            const u8 *at = turn + r * 256 + p % 2 * 128 + (p / 2 ^ (r & 3) ^ p % 2 * 4) * 16 + from % 4 * 4;
            const auto part = load<float, PIECE, 1, PIECE * 4>(reinterpret_cast<const float *>(at));
#pragma unroll
            for (int q = 0; q < PIECE; q++) v[(w + q) / W][(w + q) % W] = part[q];
          }
          if constexpr (OPERANDS > 0) {
            static_assert(CALLS == 1, "a thread has neighbouring columns");
            const float number = __shfl_sync(0xffffffffu, operands.row, i * 16 + r);
            const int byte = (c / 64 * 128 + i * 64 + r) * 128 + (col / 8 ^ (r & 7)) * 16 + col % 8 * 2;
            if (inside(i, r, c + col, at_n)) {
              body(batch, m + i * 64 + r, at_n, v[0], sums[0], body.template ahead<W>(operands.tiles, byte, number));
            }
          } else {
#pragma unroll
            for (int q = 0; q < CALLS; q++) {
              const int column = at_n + q * APART;
              if (inside(i, r, c + col + q * APART, column)) ahead.call(e, q, body, batch, m + i * 64 + r, column, v[q], sums[q]);
            }
          }
        }
      }
      __syncwarp();
    }
#pragma unroll
    for (int s = 0; s < Body::SUMS; s++) {
#pragma unroll
      for (int q = 0; q < CALLS; q++) {
#pragma unroll
        for (int far = 64 / COLS; far < 32; far *= 2) {  // lanes with other rows of the same columns
#pragma unroll
          for (int w = 0; w < W; w++) sums[q][s][w] += __shfl_xor_sync(0xffffffffu, sums[q][s][w], far);
        }
        const int column = at_n + q * APART;
        if (lane < 64 / COLS && column < P::N && (BN % 64 == 0 || c + col + q * APART < BN)) {
          store<1, W * 4>(partial + (s * BLOCKS + block) * i64(P::N) + column, sums[q][s]);
        }
      }
    }
  }
}

// store_tile stores a body's values of a warp's accumulators. Boxes of 16 rows by 128 bytes, or 64 where 64 columns do not divide
// the tile, go through the warp's shared memory, in the swizzle of their width, from which the copy engine stores them while the
// warp goes on. number is how many boxes there have been. What lies outside of the result is not stored.
template <class P, int TURN, int BN, bool PIECES, int PARTS, class Body>
DEVICE void store_tile(const Body &body, const float (&acc)[PARTS][BN / 2], u8 *turn, u32 &number, int batch, int m,
                       Columns<BN, PIECES> columns) {
  typedef typename Body::Result T;
  constexpr int SIZE = int(sizeof(T)), ROW = BN % 64 == 0 ? 128 : 64, COLS = ROW / SIZE, BOX = 16 * ROW, SLOTS = TURN / BOX;
  static_assert(BN % COLS == 0, "whole boxes");
  const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2, turned = row * ROW / 128;
#pragma unroll
  for (int c = 0; c < BN; c += COLS) {
#pragma unroll
    for (int i = 0; i < PARTS; i++, number++) {
      u8 *const box = turn + number % SLOTS * BOX;
      if (lane == 0) bulk_read_wait<SLOTS - 1>();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < COLS / 8; j++) {
        const float *x = acc[i] + c / 2 + j * 4;
        const int byte = (j * 8 + column) * SIZE;
        u8 *const to = box + row * ROW + (byte / 16 ^ turned) * 16 + byte % 16;
        const int r = m + i * 64 + row, at = columns.at(c) + j * 8 + column;
        if (P::N % BN != 0 && at >= P::N) continue;
        store<1, 2 * SIZE>(reinterpret_cast<T *>(to), body.value(batch, r, at, Vec<float, 2>{x[0], x[1]}));
        store<1, 2 * SIZE>(reinterpret_cast<T *>(to + 8 * ROW), body.value(batch, r + 8, at, Vec<float, 2>{x[2], x[3]}));
      }
      shared_fence();
      __syncwarp();
      if (lane == 0) {
        body.store_box(box, batch, m + i * 64, columns.at(c));
        bulk_commit();
      }
    }
  }
}

// store_turned_tile is store_tile where the rows of the accumulators are columns of the result. The warps of a warpgroup write
// boxes of 16 rows by 64 columns together; with DIRECT a box has all rows, and the warps store it themselves. turn is the memory of
// its four warps, barrier the number of a named barrier of its own.
template <class P, int TURN, int BN, bool DIRECT, int PARTS, class Body>
DEVICE void store_turned_tile(const Body &body, const float (&acc)[PARTS][BN / 2], u8 *turn, u32 &number, int batch, int m, int n,
                              int barrier) {
  typedef typename Body::Result T;
  constexpr int ROWS = DIRECT ? BN : 16, BOX = ROWS * 128;
  constexpr int AT_ONCE = DIRECT ? 1 : 4 * TURN / BOX / 2;  // boxes: while those are stored, others are written
  static_assert(sizeof(T) == 2 && BN % ROWS == 0 && BN % 8 == 0 && AT_ONCE * BOX <= 4 * TURN, "whole boxes of 16-bit elements");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int row = lane / 16 * 8 + lane % 8, piece = warp * 2 + lane / 8 % 2, at = row * 128 + (piece ^ row % 8) * 16;
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    const int column = n + i * 64 + warp * 16 + lane / 4;
#pragma unroll
    for (int first = 0; first < BN / ROWS; first += AT_ONCE, number++) {
      u8 *const boxes = DIRECT ? turn : turn + number % 2 * AT_ONCE * BOX;
      const int end = least(BN / ROWS, first + AT_ONCE);
      if (!DIRECT && threadIdx.x % 128 == 0) bulk_read_wait<1>();
      named_sync(barrier, 128);
#pragma unroll
      for (int b = first * ROWS; b < end * ROWS; b += 16) {
        const auto word = [&](int j) {  // of matrix j
          const float *const x = acc[i] + b / 2 + j * 2;
          const int r = m + b + j / 2 * 8 + lane % 4 * 2, c = column + j % 2 * 8;
          const auto value = [&](int k) {
            if (P::N % 64 != 0 && c >= P::N) return 0.0f;
            return float(body.value(batch, r + k, c, Vec<float, 1>{x[k]})[0]);
          };
          return pack2(T{}, value(0), value(1));
        };
        u8 *const to = boxes + (b - first * ROWS) * 128 + at;
        if (b + 16 <= BN) {
          const u32 words[4] = {word(0), word(1), word(2), word(3)};
          store_turned(to, words);
        } else {
          const u32 words[2] = {word(0), word(1)};
          store_turned(to, words);
        }
      }
      if constexpr (DIRECT) {
        named_sync(barrier, 128);
#pragma unroll
        for (int p = threadIdx.x % 128; p < BN * 8; p += 128) {  // pieces of eight elements
          const int r = p / 8, q = p % 8, to_m = m + r, to_n = n + i * 64 + q * 8;
          if (to_m < P::M && to_n < P::N) {
            *reinterpret_cast<uint4 *>(body.at(batch, to_m, to_n)) =
                *reinterpret_cast<const uint4 *>(boxes + r * 128 + (q ^ r % 8) * 16);
          }
        }
      } else {
        shared_fence();
        named_sync(barrier, 128);
        if (threadIdx.x % 128 == 0) {
#pragma unroll
          for (int b = first; b < end; b++) body.store_box(boxes + (b - first) * BOX, batch, m + b * ROWS, n + i * 64);
          bulk_commit();
        }
      }
    }
  }
}

// load_patches is the producer of a product whose A is patches of images, and load_odd of one whose B the copy engine cannot read;
// see gemm_hopper_patches.cuh and gemm_hopper_odd.cuh.
template <class P, class Tile, class Work>
DEVICE void load_patches(const typename P::A *images, const TensorMap *map_b, const Work &work, u64 *full, u64 *empty);

template <class P, class Tile, class Work>
DEVICE void load_odd(const TensorMap *map_a, const typename P::B *b, const Work &work, u64 *full, u64 *empty);

// Work enumerates the spots of a block: find says whether there is number i, and after which row it ends. The steps of k of a
// spot are those from begin on.

// Whole is the work on whole matrices, Listed on tiles of rows in a list in memory, {batch, first row, rows}, times matrix
// `batch` of B; the list has room for TILES, and behind those stands how many there are. A begins with row `base` of those.
template <class P, class Tile> struct Whole {
  static constexpr int M = Tile::TURNED ? P::N : P::M, N = Tile::TURNED ? P::M : P::N;
  static constexpr int ROWS = Tile::BM * Tile::CM, COLS = Tile::BN * Tile::CN;
  static constexpr int TM = (M + ROWS - 1) / ROWS, TN = (N + COLS - 1) / COLS;
  static constexpr int SPOTS = TM * TN * P::BATCH * Tile::SPLITS;
  static constexpr int BK = 128 / int(sizeof(typename Tile::T)), STEPS = (P::K + BK - 1) / BK;
  static constexpr int SHARES = Tile::SPLITS * Tile::CK, EACH = (STEPS + SHARES - 1) / SHARES;
  static_assert((SHARES - 1) * EACH < STEPS && least(Tile::SPLITS, Tile::CK) == 1, "every share of k has a step");
  static constexpr bool EXACT = M % ROWS == 0 && N % COLS == 0, RAGGED = false;
  static constexpr int base = 0;
  DEVICE bool find(int i, Spot &spot, int &end) const {
    if constexpr (Tile::RESIDENT > 0) {
      static_assert(P::BATCH == 1 && Ring<P, Tile>::CLUSTER == 1 && STEPS <= Tile::RESIDENT, "all of k stays");
      const int apart = Ring<P, Tile>::apart(), down = apart / TN, at = i % apart;  // blocks in all and for each column
      const int tile = at / TN + i / apart * down;
      spot = {0, tile * ROWS, at % TN * COLS, 0, tile};
      end = M;
      return at < down * TN && tile < TM;
    } else if constexpr (Tile::TURNED) {  // in the order of the result's tiles
      const Spot s = spot_of<P, COLS, ROWS, Tile::SPLITS>(i);
      spot = {s.batch, s.n, s.m, s.split, s.block};
    } else {
      spot = spot_of<P, ROWS, COLS, Tile::SPLITS>(i);
    }
    if constexpr (Tile::CK > 1) spot.split = cluster_rank() / (Tile::CM * Tile::CN);
    end = M;
    return i < SPOTS;
  }
  DEVICE int begin(const Spot &spot) const { return spot.split * EACH; }
  DEVICE int steps(const Spot &spot) const { return least(EACH, STEPS - spot.split * EACH); }
};
template <class P, class Tile, int TILES> struct Listed {
  static_assert(Tile::CM == 1 && Tile::CN == 1 && Tile::SPLITS == 1, "tiles of a list stand alone");
  static constexpr int TM = TILES, TN = (P::N + Tile::BN - 1) / Tile::BN, GROUP = 8;
  static constexpr int BK = Ring<P, Tile>::BK, STEPS = (P::K + BK - 1) / BK;
  static constexpr bool EXACT = false, RAGGED = false;
  const int4 *tiles;
  int base, count;
  DEVICE Listed(const int4 *tiles, int base) : tiles(tiles), base(base), count(tiles[TILES].x) {}
  DEVICE bool find(int i, Spot &spot, int &end) const {
    if (i >= count * TN) return false;
    const int first = i / (GROUP * TN) * GROUP, rows = least(GROUP, count - first);
    i %= GROUP * TN;
    const int4 t = tiles[first + i % rows];
    spot = {t.x, t.y, i / rows * Tile::BN, 0, 0};
    end = spot.m + t.z;
    return true;
  }
  DEVICE int begin(const Spot &) const { return 0; }
  DEVICE int steps(const Spot &) const { return STEPS; }
};

// Ragged is the work on products whose k counts rows that belong to a matrix of the batch, the counts[b] from starts[b] on, as far
// as these are among the ROWS from row `first` on. Whole slices belong to one, and what is behind its last row is 0.
template <class P, class Tile, int ROWS> struct Ragged {
  static_assert(Tile::CM == 1 && Tile::CN == 1 && Tile::SPLITS == 1, "tiles of ragged products stand alone");
  static constexpr int TM = (P::M + Tile::BM - 1) / Tile::BM, TN = (P::N + Tile::BN - 1) / Tile::BN, SPOTS = TM * TN * P::BATCH;
  static constexpr int BK = Ring<P, Tile>::BK;
  static constexpr bool EXACT = P::M % Tile::BM == 0 && P::N % Tile::BN == 0, RAGGED = true;
  const i32 *counts, *starts;
  int first;
  static constexpr int base = 0;
  // The spot's split is its first slice, and its block how many slices it has.
  DEVICE bool find(int i, Spot &spot, int &end) const {
    if (i >= SPOTS) return false;
    spot = spot_of<P, Tile::BM, Tile::BN, 1>(i);
    end = P::M;
    const int from = starts[spot.batch] - first, to = from + counts[spot.batch], lo = from > 0 ? from : 0;
    spot.split = lo / BK;
    spot.block = to > lo ? (least(to, ROWS) - lo + BK - 1) / BK : 0;
    return true;
  }
  DEVICE int begin(const Spot &spot) const { return spot.split; }
  DEVICE int steps(const Spot &spot) const { return spot.block > 0 ? spot.block : 0; }
};

// load_tiles is the producer's thread: it starts this block's part of all copies of its tiles' slices and operands, as stages become
// free, and lets the next launch begin.
template <class P, class Tile, class Body, class Work>
DEVICE void load_tiles(const Body &body, const TensorMap *map_a, const TensorMap *map_b, const Work &work, u64 *full, u64 *empty,
                       int rank_m, int rank_n, int rank_k) {
  typedef Ring<P, Tile> R;
  constexpr int BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, CM = Tile::CM, CN = Tile::CN;
  SHARED;
  u32 mask_a = 0, mask_b = 0;  // the blocks with the same rows, and with the same columns, of the same share of k
  for (int i = 0; i < CN; i++) mask_a |= 1u << (rank_m + i * CM + rank_k * R::SHARING);
  for (int i = 0; i < CM; i++) mask_b |= 1u << (i + rank_n * CM + rank_k * R::SHARING);
  int stage = 0;
  u32 phase = 0;
  Spot spot;
  int end;
  if constexpr (Tile::RESIDENT > 0) {
    if (work.find(R::first(), spot, end)) {
      u64 *const held = empty + STAGES;
      barrier_expect(held, Work::STEPS * R::B_BYTES);
      for (int step = 0; step < Work::STEPS; step++) {
        load_slice<BN, 1, Tile::B_KINNER, Tile::B_AXES, Tile::INNER>(
            shared + R::HELD + step * R::B_BYTES, map_b, held, spot.n, step * R::BK, 0, 0, 0);
      }
    }
  }
  for (int i = R::first(); work.find(i, spot, end); i += R::apart()) {
    const int m = spot.m - work.base + rank_m * BM, n = spot.n + rank_n * BN, first = work.begin(spot);
    for (int step = first; step < first + work.steps(spot); step++) {
      const int k = step * R::BK;
      barrier_wait(empty + stage, phase ^ 1);
      barrier_expect(full + stage, R::STAGE);
      u8 *const to = shared + stage * R::STAGE;
      if constexpr (P::PATCHES) {
        load_patches_slice<typename P::Image, R::BK, BM, CN, Tile::A_KINNER>(
            to, map_a, full + stage, m, k, spot.batch, rank_n, mask_a);
      } else {
        load_slice<BM, CN, Tile::A_KINNER, Tile::A_AXES, Tile::INNER>(
            to, map_a, full + stage, m, k, spot.batch, rank_n, mask_a);
      }
      if constexpr (Tile::RESIDENT > 0) {  // B is there
      } else if constexpr (Tile::B_PATCHES) {
        load_patches_slice<typename P::Image, R::BK, BN, CM, Tile::B_KINNER>(
            to + R::A_BYTES, map_b, full + stage, n, k, spot.batch, rank_m, mask_b);
      } else if constexpr (Tile::TAPS) {
        load_taps<BN, CM, Tile::B_KINNER, P::Image::C, P::Image::KW>(
            to + R::A_BYTES, map_b, full + stage, n, k, rank_m, mask_b);
      } else if constexpr (BN % 64 != 0 && !Tile::B_KINNER) {
        static_assert(CM == 1, "pieces are not shared");
        load_pieces<Tile::B_AXES, Tile::INNER>(to + R::A_BYTES, map_b, full + stage, Columns<BN, true>{n}, k, spot.batch);
      } else {
        load_slice<BN, CM, Tile::B_KINNER, Tile::B_AXES, Tile::INNER, 64, Tile::B_ONCE>(
            to + R::A_BYTES, map_b, full + stage, n, k, spot.batch, rank_m, mask_b);
      }
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    if constexpr (Tile::OPERANDS > 0) {
      static_assert(R::CLUSTER == 1 && BM == 128 && BN % 64 == 0 && BM * BN * 2 <= R::STAGE, "a stage holds a tile of 16 bits");
      for (int i = 0; i < Tile::OPERANDS; i++) {
        barrier_wait(empty + stage, phase ^ 1);
        barrier_expect(full + stage, BM * BN * 2);
#pragma unroll
        for (int c = 0; c < BN; c += 64) {
          tma_load(shared + stage * R::STAGE + c * BM * 2, body.operand(i), full + stage, n + c, m, 0, 0);
        }
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
    }
  }
  held_begin();
  if constexpr (R::SHARING > 1) {  // until no block notifies this one any more
    for (int i = 0; i < STAGES; i++) {
      barrier_wait(empty + stage, phase ^ 1);
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
  }
}

// meet_shares adds the shares of k that the CK blocks of a cluster have of their sums: each gets those of its part of the columns.
// Where `inbox` points, each has room for what the others send, whose bytes the barrier counts. SHARING blocks have the same share.
template <int CK, int SHARING, int PARTS, int N>
DEVICE void meet_shares(float (&sum)[PARTS][N], const float (&acc)[PARTS][CK * N], float4 *inbox, u64 *bar, int rank) {
  constexpr int EACH = PARTS * N / 4 * 256;  // pieces of four from a block: all threads' first, then their second
  const int own = rank / SHARING, thread = threadIdx.x - 128;
#pragma unroll
  for (int q = 0; q < CK; q++) {
    float4 *const to = inbox + ((own - q + CK) % CK - 1) * EACH + thread;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
#pragma unroll
      for (int e = 0; e < N; e += 4) {
        const float *const x = acc[i] + q * N + e;
        if (q != own) {
          cluster_send(to + (i * N + e) / 4 * 256, float4{x[0], x[1], x[2], x[3]}, rank % SHARING + q * SHARING, bar);
        } else {
#pragma unroll
          for (int j = 0; j < 4; j++) sum[i][e + j] = x[j];
        }
      }
    }
  }
  barrier_wait(bar, 0);
#pragma unroll
  for (int from = 0; from < CK - 1; from++) {
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
#pragma unroll
      for (int e = 0; e < N; e += 4) {
        const float4 x = inbox[from * EACH + (i * N + e) / 4 * 256 + thread];
        sum[i][e] += x.x, sum[i][e + 1] += x.y, sum[i][e + 2] += x.z, sum[i][e + 3] += x.w;
      }
    }
  }
}

// gemm_hopper computes a product. Where the producer's threads copy an operand, that is direct: images, or B. For a Body that
// processes shares of k, its field split is the number of the share.
// Column sums go to partial [SUMS][BATCH · tiles · warps of a tile][N].
template <class P, class Body, class Tile, class Work>
DEVICE void gemm_hopper(Body body, const TensorMap *map_a, const TensorMap *map_b, Work work,
                        typename Body::Sum *partial, const typename P::A *direct = nullptr) {
  typedef Ring<P, Tile> R;
  typedef typename Tile::T T;
  constexpr int BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, CM = Tile::CM, CN = Tile::CN;
  constexpr int ROWS = Tile::PINGPONG ? BM : BM / 2, PARTS = ROWS / 64;
  constexpr bool COPIES = Tile::GATHERS || Tile::ODD;
  // Of the producer and the others. Together with the producer's, twice the others' are at most three times the 168 registers with
  // which the warpgroups start.
  constexpr int FEW = Tile::ODD ? 120 : Tile::GATHERS ? 72 : 56, MANY = Tile::ODD ? 192 : Tile::GATHERS ? 216 : 224;
  SHARED;
  u64 *const full = reinterpret_cast<u64 *>(shared + R::BARRIERS), *const empty = full + STAGES;
  const int rank = R::CLUSTER > 1 ? cluster_rank() : 0, rank_m = rank % CM, rank_n = rank / CM % CN;
  const int rank_k = rank / R::SHARING;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    if constexpr (!Tile::GATHERS) tma_prefetch(map_a);
    if constexpr (!Tile::ODD) tma_prefetch(map_b);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i, COPIES ? 1 + 128 : 1);
      barrier_init(empty + i, (CM + CN - 1) * (Tile::PINGPONG ? 4 : 8));
    }
    if constexpr (Tile::RESIDENT > 0 || Tile::CK > 1) barrier_init(empty + STAGES, 1);
    barrier_init_done();
    if constexpr (Tile::CK > 1) barrier_expect(empty + STAGES, R::SENT);
  }
  if constexpr (R::CLUSTER > 1) {
    cluster_arrive();  // the fence of the barriers' initialisation is enough
    cluster_wait();
  } else {
    __syncthreads();
  }
  late_read();
  if (group == 0) {
    fewer_registers<FEW>();
    if constexpr (Tile::ODD) {
      load_odd<P, Tile>(map_a, direct, work, full, empty);
    } else if constexpr (Tile::GATHERS) {
      load_patches<P, Tile>(direct, map_b, work, full, empty);
    } else if (threadIdx.x == 0) {
      load_tiles<P, Tile>(body, map_a, map_b, work, full, empty, rank_m, rank_n, rank_k);
    }
  } else {
    more_registers<MANY>();
    // Whether the block number lane of the cluster sends to this one, and is notified when a stage is free.
    const bool tell = lane / R::SHARING == rank_k && (lane % CM == rank_m || lane / CM % CN == rank_n);
    const u64 a0 = wgmma_operand(shared + (Tile::PINGPONG ? 0 : (group - 1) * ROWS * 128), 8192, 1024);
    const u64 b0 = wgmma_operand(shared + (Tile::RESIDENT > 0 ? R::HELD : R::A_BYTES), 8192, 1024);
    u8 *const turn = shared + R::TURNS + (warp - 4) * R::TURN;
    int stage = 0;
    u32 phase = 0;
    const auto release = [&](int s) {
      if constexpr (R::SHARING > 1) {
        if (tell) barrier_arrive_at(empty + s, lane);
      } else {
        if (lane == 0) barrier_arrive(empty + s);
      }
    };
    u32 boxes = 0;
    Spot spot, next;
    int end, next_end;
    int i = R::first();
    bool more = work.find(i, spot, end);
    for (int number = 0; more; number++, spot = next, end = next_end) {
      i += R::apart();
      more = work.find(i, next, next_end);
      const int steps = work.steps(spot);
      if constexpr (Tile::PINGPONG) {
        if (number % 2 != group - 1) {
          const int skipped = stage + steps + Tile::OPERANDS;
          stage = skipped % STAGES;
          phase ^= skipped / STAGES & 1;
          continue;
        }
        if (number > 0) named_sync(group, 256);  // until the other's last stage has been filled
      }
      const int w = Tile::PINGPONG ? warp % 4 : warp - 4, upper = w / 4 * ROWS + w % 4 * 16;  // the warp's first row in the tile
      Operands<Tile::OPERANDS> operands;
      if constexpr (Tile::OPERANDS > 0) {
        const int i = lane / 16, row = spot.m + upper + i * 64 + lane % 16;
        operands.row = i < PARTS && row < end ? body.row(row) : 0.0f;
      }
      float acc[PARTS][BN / 2];
      if (Work::RAGGED && steps == 0) {
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
#pragma unroll
          for (int e = 0; e < BN / 2; e++) acc[j][e] = 0;
        }
      }
      int last = 0;
      if constexpr (Tile::RESIDENT > 0) barrier_wait(empty + STAGES, 0);
      for (int k = 0; k < steps; k++) {
        barrier_wait(full + stage, phase);
        wgmma_fence();
        const u64 at = u64(stage * (R::STAGE / 16)), b_at = Tile::RESIDENT > 0 ? u64(k * (R::B_BYTES / 16)) : at;
        multiply_slice<T, Tile::A_KINNER, Tile::B_KINNER, BN, PARTS>(acc, a0 + at, b0 + b_at, k > 0);
        wgmma_commit();
        if (k > 0) {
          wgmma_wait<1>();
          release(last);
        }
        last = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      if constexpr (Tile::PINGPONG) {
        if (more) named_arrive(3 - group, 256);
      }
      wgmma_wait<0>();
      if (!Work::RAGGED || steps > 0) release(last);
#pragma unroll
      for (int j = 0; j < PARTS; j++) pin(acc[j]);
      constexpr int OWN = BN / Tile::CK;  // columns that the block finishes
      const int m = spot.m + rank_m * BM, n = spot.n + rank_n * BN + rank_k * OWN;
      constexpr int WARPS = Tile::PINGPONG ? 4 : 8, BLOCKS = P::BATCH * Work::TM * CM * WARPS;
      const int block = (spot.batch * Work::TM * CM + m / BM) * WARPS + w, row = m + upper;
      const Columns<OWN, !Tile::B_KINNER> columns{n};
      if constexpr (Tile::SPLITS > 1) body.split = spot.split;
      const int held = stage;
#pragma unroll
      for (int j = 0; j < Tile::OPERANDS; j++) {
        barrier_wait(full + stage, phase);
        operands.tiles[j] = shared + stage * R::STAGE + upper * 128;
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      const auto finish = [&](auto &sums) {
        if constexpr (Tile::TURNED) {
          store_turned_tile<P, R::TURN, BN, !Tile::PINGPONG>(body, sums, shared + R::TURNS + (group - 1) * 4 * R::TURN, boxes,
                                                             spot.batch, n, Tile::PINGPONG ? m : m + (group - 1) * ROWS, 2 + group);
        } else if constexpr (Tile::STORES) {
          store_tile<P, R::TURN>(body, sums, turn, boxes, spot.batch, row, columns);
        } else if (Work::EXACT || m + BM <= end && n + OWN <= P::N) {
          finish_tile<P, true, BLOCKS>(body, sums, turn, spot.batch, row, columns, end, partial, block, operands);
        } else {
          finish_tile<P, false, BLOCKS>(body, sums, turn, spot.batch, row, columns, end, partial, block, operands);
        }
      };
      if constexpr (Tile::CK > 1) {
        static_assert(!Tile::PINGPONG && !Tile::TURNED && Tile::OPERANDS == 0 && Tile::RESIDENT == 0, "a tile by all warps");
        float sums[PARTS][OWN / 2];
        meet_shares<Tile::CK, R::SHARING>(sums, acc, reinterpret_cast<float4 *>(shared + R::INBOX), empty + STAGES, rank);
        finish(sums);
      } else {
        finish(acc);
      }
      if constexpr (Tile::OPERANDS > 0) {  // what each lane has read comes before the copy engine's next writes
        shared_fence();
        __syncwarp();
      }
#pragma unroll
      for (int j = 0; j < Tile::OPERANDS; j++) release((held + j) % STAGES);
    }
    if constexpr (Tile::STORES) bulk_read_wait();
  }
}

// The part of an element that relayout copies: all, the nearest tf32 number, or the remainder after truncation to tf32,
// which is 0 for an infinity.
enum Copied { ALL, NEAREST, REST };

// copied is the part of an element that relayout copies.
template <Copied WHAT, class T> DEVICE T copied(T v) {
  if constexpr (WHAT == NEAREST) v = round_tf32(v);
  if constexpr (WHAT == REST) {
    const float cut = bits_to_float(float_to_bits(v) & 0xffffe000u);
    v = v == cut ? 0.0f : v - cut;
  }
  return v;
}

// relayout copies a matrix to rows of PITCH along k, which the copy engine can read. A block of 256 threads takes 64 rows of COLS
// from (row, k) on. It writes words of 4 bytes; what follows a row's end in its last word is 0. Rows that lie across in memory are
// turned in shared memory.
template <int ROWS, int K, int PITCH, i64 ROW_STRIDE, i64 K_STRIDE, int COLS, Copied WHAT, class T>
DEVICE void relayout(T *to, const T *from, int row, int k) {
  constexpr int TILE = 64, W = 4 / int(sizeof(T)), WORDS = (COLS + W - 1) / W;
  SHARED;
  T (*const turn)[TILE + W] = reinterpret_cast<T (*)[TILE + W]>(shared);
  if constexpr (K_STRIDE != 1) {
    static_assert(COLS == TILE, "a square is turned");
#pragma unroll
    for (int i = threadIdx.x; i < TILE * TILE; i += 256) {
      const int r = i % TILE, c = i / TILE;
      const bool there = row + r < ROWS && k + c < K;
      turn[r][c] = there ? from[(row + r) * ROW_STRIDE + (k + c) * K_STRIDE] : convert<T>(0.0f);
    }
    __syncthreads();
  }
  Vec<T, W> v[(TILE * WORDS + 255) / 256];
#pragma unroll
  for (int j = 0; j < (TILE * WORDS + 255) / 256; j++) {
    const int i = threadIdx.x + j * 256, r = i / WORDS, c = i % WORDS * W;
#pragma unroll
    for (int w = 0; w < W; w++) {
      T x = convert<T>(0.0f);
      if constexpr (K_STRIDE != 1) x = turn[r][c + w];
      else if (r < TILE && row + r < ROWS && k + c + w < K) x = from[(row + r) * ROW_STRIDE + k + c + w];
      v[j][w] = copied<WHAT>(x);
    }
  }
#pragma unroll
  for (int j = 0; j < (TILE * WORDS + 255) / 256; j++) {
    const int i = threadIdx.x + j * 256, r = i / WORDS, c = i % WORDS * W;
    if (r < TILE && row + r < ROWS && k + c < K) store<1, 4>(to + i64(row + r) * PITCH + k + c, v[j]);
  }
}
