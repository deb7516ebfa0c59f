// What lets attention_grad_hopper.cuh compute the gradient of an attention of f32 in tf32: its operands, rounded to f16 as
// attention_split.cuh has them; but values are multiplied by one power of two for all, and so is dout.
//
// Problem P is the one of attention.cuh.

// largest_of is the largest number that any of LANES neighbours has.
template <int LANES> DEVICE u32 largest_of(u32 x) {
#pragma unroll
  for (int d = LANES / 2; d > 0; d /= 2) {
    const u32 other = __shfl_xor_sync(~0u, x, d);
    x = other > x ? other : x;
  }
  return x;
}

// attention_grad_largest raises numbers of `most` to the bits of the largest value, of the largest element of dout and, if ALL, of
// the largest query and key, from 0 on. A block takes 256 · EACH pieces of eight elements.
template <class P, int EACH, bool ALL, class Args> DEVICE void attention_grad_largest(const Args &p, u32 *most) {
  constexpr int HEADS = P::BATCH * P::HEADS, KEYS = HEADS / P::GROUP * P::KEYS, QUERIES = HEADS * P::QUERIES, STEP = 256 * EACH;
  constexpr int W = P::WIDTH / 8, D = P::DEPTH / 8;
  const auto counts = [&](int row) { return row % P::KEYS < valid_keys<P>(p, row / P::KEYS / (P::HEADS / P::GROUP)); };
  int block = blockIdx.x;
  const auto raise = [&](int operand, int pieces, int line, auto there, auto read) {
    const int blocks = (pieces + STEP - 1) / STEP, first = block * STEP + threadIdx.x;
    const bool mine = block >= 0 && block < blocks;
    block -= blocks;
    if (!mine) return;
    u32 largest = 0;
#pragma unroll 2
    for (int i = first; i < least(first + STEP, pieces); i += 256) {
      const int row = i / line;
      if (!there(row)) continue;
      const Vec<float, 8> x = read(row, i % line * 8);
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const u32 bits = float_to_bits(x[e]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
      }
    }
    largest = largest_of<32>(largest);
    if (threadIdx.x % 32 == 0) atomicMax(most + operand, largest);
  };
  const auto always = [](int) { return true; };
  raise(0, KEYS * W, W, counts, [&](int row, int c) { return eight(P::v(p, row / P::KEYS), row % P::KEYS, c); });
  raise(1, QUERIES * W, W, always, [&](int row, int c) { return eight(P::dout(p, row / P::QUERIES), row % P::QUERIES, c); });
  if constexpr (ALL) {
    raise(2, QUERIES * D, D, always, [&](int row, int c) { return eight(P::q(p, row / P::QUERIES), row % P::QUERIES, c); });
    raise(3, KEYS * D, D, counts, [&](int row, int c) { return eight(P::k(p, row / P::KEYS), row % P::KEYS, c); });
  }
}

// attention_grad_split is the whole entry for a gradient, whose operands it rounds to f16; H is the problem of
// attention_hopper.cuh.
template <class P, class H, class Args>
DEVICE void attention_grad_split(const Args &p, f16 *q, f16 *k, f16 *v, f16 *dout, const u32 *most, u32 *wide) {
  constexpr int W = P::WIDTH / 8;
  int i = blockIdx.x * 256 + threadIdx.x;
  bool fits = operand_piece<P>(p, i, q, k, v, [&](int operand, int, int) {
                return splat<8>(operand < 2 ? 64.0f : grad_scale<H>(most, 0));
              }).template split<1>();
  if (i >= 0 && i < P::BATCH * P::HEADS * P::QUERIES * W) {
    const int row = i / W;
    fits = split_piece<1>(dout + i64(i) * 8, 0, eight(P::dout(p, row / P::QUERIES), row % P::QUERIES, i % W * 8),
                          splat<8>(grad_scale<H>(most, 1)));
  }
  if (!fits) atomicOr(wide, 1u);
}
