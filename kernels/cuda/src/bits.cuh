// Elements of few bits become elements of 16 bits in registers, which represent them exactly.
// Since 0x4300 | x is 128 + x in bf16, and 0x6400 | x is 1024 + x in f16, integers need a subtraction and no conversion. The sign bit
// of an integer is inverted, which adds 8, or 128.

#ifndef FUSEC_HOST
DEVICE u32 fma2(bf16, u32 x, u32 y, u32 z) { u32 r; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z)); return r; }
DEVICE u32 fma2(f16, u32 x, u32 y, u32 z) { u32 r; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z)); return r; }
// w & mask ^ flip, of two constants one instruction, which the compiler makes two of.
DEVICE u32 and_xor(u32 w, u32 mask, u32 flip) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(w), "r"(mask), "r"(flip));
  return r;
}
#else
DEVICE u32 and_xor(u32 w, u32 mask, u32 flip) { return w & mask ^ flip; }
template <class T> DEVICE u32 fma2(T, u32 x, u32 y, u32 z) {
  auto low = [](u32 v) { return to_float(T{u16(v)}); };
  return pack2(T{}, low(x) * low(y) + low(z), low(x >> 16) * low(y >> 16) + low(z >> 16));
}
#endif
DEVICE u32 both(u32 half) { return half * 0x10001u; }
DEVICE u32 one(bf16) { return 0x3f803f80u; }
DEVICE u32 one(f16) { return 0x3c003c00u; }

// A Bits unpacks words. of(pairs, w) makes the elements of a word two by two: those of I4 are (0, 4), (1, 5), (2, 6), (3, 7), the
// bytes of others (0, 2), (1, 3).
struct I4 {
  static constexpr int PAIRS = 4;
  static DEVICE void of(bf16 t, u32 (&pairs)[4], u32 w) {
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = fma2(t, and_xor(w >> 4 * i, both(0xf), both(0x4308)), one(t), both(0xc308));
  }
  static DEVICE void of(f16 t, u32 (&pairs)[4], u32 w) {
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = fma2(t, and_xor(w >> 4 * i, both(0xf), both(0x6408)), one(t), both(0xe408));
  }
};
struct I8 {
  static constexpr int PAIRS = 2;
  template <class T> static DEVICE u32 far(T, u32) { return 0; }
  template <class T> static DEVICE void mend(T, u32 (&)[2], u32) {}
  // 128 + the lower seven bits, less 128 or, if the sign is set, 256.
  static DEVICE void of(bf16 t, u32 (&pairs)[2], u32 w) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const u32 v = w >> 8 * i;
      pairs[i] = fma2(t, and_xor(v, both(0x7f), both(0x4300)), one(t), and_xor(v, both(0x80), both(0xc300)));
    }
  }
  static DEVICE void of(f16 t, u32 (&pairs)[2], u32 w) {
#pragma unroll
    for (int i = 0; i < 2; i++) pairs[i] = fma2(t, and_xor(w >> 8 * i, both(0xff), both(0x6480)), one(t), both(0xe480));
  }
};
// A number of fewer exponent bits is widened with its sign, moved to where those of T are, and multiplied by the difference of the
// biases. What is not finite is mended afterwards: far has the upper bit of the byte of each.
template <class T> DEVICE void from_f8(T t, u32 (&pairs)[2], u32 w, int shift, u32 by) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    pairs[i] = fma2(t, permute(w, w, i == 0 ? 0xa280 : 0xb391) << shift & both(0x8000 | 0x7f << shift), by, 0);
  }
}
DEVICE void set_bits(u32 (&pairs)[2], u32 far, u32 bits) {
#pragma unroll
  for (int i = 0; i < 2; i++) pairs[i] |= (far >> 8 * i >> 7 & both(1)) * bits;
}
struct F8E4M3 {
  static constexpr int PAIRS = 2;
  template <class T> static DEVICE u32 far(T, u32 w) { return (w & 0x7f7f7f7fu) + 0x01010101u; }  // NaNs
  template <class T> static DEVICE void mend(T, u32 (&pairs)[2], u32 far) { set_bits(pairs, far, 0x7fff); }
  static DEVICE void of(bf16 t, u32 (&pairs)[2], u32 w) { from_f8(t, pairs, w, 4, both(0x7b80)); }
  static DEVICE void of(f16 t, u32 (&pairs)[2], u32 w) { from_f8(t, pairs, w, 7, both(0x5c00)); }
};
struct F8E5M2 {
  static constexpr int PAIRS = 2;
  static DEVICE u32 far(bf16, u32 w) { return (w & 0x7c7c7c7cu) + 0x04040404u; }  // NaNs and what is infinite
  static DEVICE u32 far(f16, u32) { return 0; }
  template <class T> static DEVICE void mend(T, u32 (&pairs)[2], u32 far) { set_bits(pairs, far, 0x7f80); }
  static DEVICE void of(bf16 t, u32 (&pairs)[2], u32 w) { from_f8(t, pairs, w, 5, both(0x7780)); }
  static DEVICE void of(f16, u32 (&pairs)[2], u32 w) {
    pairs[0] = (w & both(0xff)) << 8;
    pairs[1] = w & both(0xff00);
  }
};
