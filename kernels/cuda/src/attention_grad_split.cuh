// What lets attention_grad_hopper.cuh compute the gradient of an attention of f32 in tf32: its operands, rounded to f16 as
// attention_split.cuh has them; but values are multiplied by one power of two for all, and so is dout.
//
// Problem P is the one of attention.cuh.

// attention_grad_largest raises `most` to the bits of the largest value, and of the largest element of dout, from 0 on. A block
// takes 256 · EACH pieces of eight elements.
template <class P, int EACH, class Args> DEVICE void attention_grad_largest(const Args &p, u32 *most) {
  constexpr int W = P::WIDTH / 8, HEADS = P::BATCH * P::HEADS, GROUPS = HEADS / P::GROUP, PER = P::HEADS / P::GROUP;
  constexpr int VS = GROUPS * P::KEYS * W, OS = HEADS * P::QUERIES * W, STEP = 256 * EACH, BLOCKS = (VS + STEP - 1) / STEP;
  const bool values = int(blockIdx.x) < BLOCKS;
  const int first = (blockIdx.x - (values ? 0 : BLOCKS)) * STEP + threadIdx.x;
  u32 mine = 0;
#pragma unroll 2
  for (int i = first; i < least(first + STEP, values ? VS : OS); i += 256) {
    const int row = i / W, c = i % W * 8;
    Vec<float, 8> x = splat<8>(0.0f);
    if (!values) {
      x = eight(P::dout(p, row / P::QUERIES), row % P::QUERIES, c);
    } else if (row % P::KEYS < valid_keys<P>(p, row / P::KEYS / PER)) {
      x = eight(P::v(p, row / P::KEYS), row % P::KEYS, c);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const u32 bits = float_to_bits(x[e]) & 0x7fffffffu;
      mine = bits > mine ? bits : mine;
    }
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const u32 other = __shfl_xor_sync(~0u, mine, d);
    mine = other > mine ? other : mine;
  }
  if (threadIdx.x % 32 == 0) atomicMax(most + (values ? 0 : 1), mine);
}

// attention_grad_split is the whole entry for a gradient, whose operands it rounds to f16; H is the problem of
// attention_hopper.cuh.
template <class P, class H, class Args>
DEVICE void attention_grad_split(const Args &p, f16 *q, f16 *k, f16 *v, f16 *dout, const u32 *most, u32 *wide) {
  constexpr int W = P::WIDTH / 8;
  int i = blockIdx.x * 256 + threadIdx.x;
  bool fits = split_operands<P, 1>(p, i, q, k, v, [&](int, int) { return splat<8>(grad_scale<H>(most, 0)); });
  if (i >= 0 && i < P::BATCH * P::HEADS * P::QUERIES * W) {
    const int row = i / W;
    fits = split_piece<1>(dout + i64(i) * 8, 0, eight(P::dout(p, row / P::QUERIES), row % P::QUERIES, i % W * 8),
                          splat<8>(grad_scale<H>(most, 1)));
  }
  if (!fits) atomicOr(wide, 1u);
}
