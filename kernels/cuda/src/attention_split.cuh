// What lets attention_hopper.cuh compute an attention of f32: copies of its operands as numbers of f16, PARTS of them to an
// element.
//
// With two, an element is the sum of a high and a low number with 11 bits each, and only low·low is left out of a product: an error
// of about 2^-22 of it (Markidis et al., arXiv 1803.04014). Tensor cores multiply f16 twice as fast as tf32, of which three
// products have the same error. With one, an element is rounded to the 11 bits that tf32 has.
//
// The exponents of f16 reach less far than those of f32. So queries and keys are multiplied by 2^6, and each column of a head's
// values by the power of two that makes its largest one fill the range. What is too small for f16 then is less than 2^-31 in a
// query or key, and 2^-40 of the largest in a column of values. Operands for which this does not do, those that are not finite and
// queries and keys of 2^9 or more, set `wide`: then this attention returns at once, and a portable one computes the result. That
// one returns at once otherwise.
//
// Problem P is the one of attention.cuh.

// attention_largest raises `largest` to the bits of the largest value in each column of each head of values, from 0 on; a block
// does so for ROWS of them. Bits of numbers that are not finite are larger than others.
template <class P, int ROWS, class Args> DEVICE void attention_largest(const Args &p, u32 *largest) {
  constexpr int PIECES = P::WIDTH / 4, LINES = 256 / PIECES, CHUNKS = (P::KEYS + ROWS - 1) / ROWS;
  __shared__ u32 most[P::WIDTH];
  const int head = blockIdx.x / CHUNKS, first = blockIdx.x % CHUNKS * ROWS;
  const int line = threadIdx.x / PIECES, column = threadIdx.x % PIECES * 4;
  const int end = least(first + ROWS, valid_keys<P>(p, head / (P::HEADS / P::GROUP)));
  for (int i = threadIdx.x; i < P::WIDTH; i += 256) most[i] = 0;
  __syncthreads();
  const auto v = P::v(p, head);
  typedef decltype(v) M;
  u32 mine[4] = {};
  if (line < LINES) {
#pragma unroll 4
    for (int r = first + line; r < end; r += LINES) {
      const auto x = load<float, 4, M::COL, M::ALIGN>(v.row(r) + column * M::COL);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const u32 bits = float_to_bits(x[e]) & 0x7fffffffu;
        mine[e] = bits > mine[e] ? bits : mine[e];
      }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) atomicMax(most + column + e, mine[e]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < P::WIDTH; i += 256) atomicMax(largest + head * P::WIDTH + i, most[i]);
}

// split_piece stores eight elements, times a factor each, as PARTS numbers of f16, of which the next begin `next` elements further
// on, and reports whether all are below 2^15.
template <int PARTS> DEVICE bool split_piece(f16 *to, i64 next, const Vec<float, 8> &x, const Vec<float, 8> &factor) {
  u32 high[4], low[4];
  bool fits = true;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float a = x[2 * i] * factor[2 * i], b = x[2 * i + 1] * factor[2 * i + 1];
    fits = fits && fabsf(a) < 0x1p15f && fabsf(b) < 0x1p15f;
    split_pair(high[i], low[i], a, b);
  }
  *reinterpret_cast<uint4 *>(to) = uint4{high[0], high[1], high[2], high[3]};
  if constexpr (PARTS == 2) *reinterpret_cast<uint4 *>(to + next) = uint4{low[0], low[1], low[2], low[3]};
  return fits;
}

// eight reads columns c to c + 7 of a row.
template <class M> DEVICE Vec<float, 8> eight(const M &m, int row, int c) {
  return load<float, 8, M::COL, M::ALIGN>(m.row(row) + c * M::COL);
}

// An OperandPiece is eight neighbours in a row of queries, keys or values, what they are multiplied by, and where they are stored.
struct OperandPiece {
  f16 *to;  // null if there is no such piece
  i64 next;
  Vec<float, 8> x, factor;
  template <int PARTS> DEVICE bool split() const { return !to || split_piece<PARTS>(to, next, x, factor); }
};

// operand_piece reads piece i of all queries, keys and values, whose parts are stored as [PARTS, heads, rows, columns] each. Keys and
// values that do not count become 0. i is then the number after these. factor(operand, head, c) is what columns c to c + 7 of
// operand 0, 1 or 2 are multiplied by.
template <class P, class Args, class F>
DEVICE OperandPiece operand_piece(const Args &p, int &i, f16 *q, f16 *k, f16 *v, F factor) {
  constexpr int HEADS = P::BATCH * P::HEADS, GROUPS = HEADS / P::GROUP, PER = P::HEADS / P::GROUP;
  constexpr int D = P::DEPTH / 8, W = P::WIDTH / 8;
  constexpr int QS = HEADS * P::QUERIES * D, KS = GROUPS * P::KEYS * D, VS = GROUPS * P::KEYS * W;
  const int at = i;
  i -= QS + KS + VS;
  if (at < QS) {
    const int row = at / D, head = row / P::QUERIES, c = at % D * 8;
    return {q + i64(at) * 8, i64(QS) * 8, eight(P::q(p, head), row % P::QUERIES, c), factor(0, head, c)};
  }
  const bool value = at >= QS + KS;
  const int j = at - QS - (value ? KS : 0), row = j / (value ? W : D), head = row / P::KEYS, key = row % P::KEYS;
  Vec<float, 8> x = splat<8>(0.0f);
  if (j >= VS && value) return {nullptr, 0, x, x};
  const int c = j % (value ? W : D) * 8;
  if (key < valid_keys<P>(p, head / PER)) x = value ? eight(P::v(p, head), key, c) : eight(P::k(p, head), key, c);
  if (value) return {v + i64(j) * 8, i64(VS) * 8, x, factor(2, head, c)};
  return {k + i64(j) * 8, i64(KS) * 8, x, factor(1, head, c)};
}

// attention_split is the whole entry for an attention.
template <class P, int PARTS, class Args>
DEVICE void attention_split(const Args &p, f16 *q, f16 *k, f16 *v, const u32 *largest, u32 *wide) {
  int i = blockIdx.x * 256 + threadIdx.x;
  const auto piece = operand_piece<P>(p, i, q, k, v, [&](int operand, int head, int c) {
    Vec<float, 8> factor = splat<8>(64.0f);
    if (operand < 2) return factor;
#pragma unroll
    for (int e = 0; e < 8; e++) factor[e] = value_scale(largest[head * P::WIDTH + c + e]);
    return factor;
  });
  if (!piece.template split<PARTS>()) atomicOr(wide, 1u);
}
