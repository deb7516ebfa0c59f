// Weights in deep panels, for gemm_few and gemm_panels: see graph.PackWeights. Those of few bits become elements
// of the other operand's type, which represents them exactly, in registers; see bits.cuh.

// The elements of 16 bits are those of the other operand.
struct Half {
  static constexpr int PAIRS = 1;
};

// A chunk of 32 columns and DEEP·32 steps. Of 4 bits, a thread has eight steps of four columns side by side in one load; of 8
// bits, two columns, and of 16, one. BLOCK rows of a column share a scale, which are whole chunks; 0: all, or there are none,
// without SCALED.
template <class P, class Bits, int DEEP, int BLOCK_, bool SCALED> struct Packed {
  static constexpr int EACH = 4 / Bits::PAIRS;  // loads of 32 steps
  static constexpr int N = 32, K = 32 * DEEP, LOADS = DEEP * EACH, TILES = 2, BLOCK = BLOCK_;
  static constexpr bool GROUPS = BLOCK > 0 && SCALED, SCALES = SCALED && BLOCK == 0;
  typedef typename P::B B;  // a byte of few bits
  static DEVICE const B *start(const B *b, int n, int k) {
    return b + n * P::B_N + (k / 32 * EACH * 512 + threadIdx.x % 32 * 16) / int(sizeof(B));
  }
  template <bool EVEN_N, bool EVEN_K> static DEVICE uint4 load(const B *at, int n, int k, int l) {
    if (!EVEN_N && n >= P::N) return {0, 0, 0, 0};
    if (!EVEN_K && k + l / EACH * 32 >= P::K) return {0, 0, 0, 0};
    return stream(at + l * 512 / int(sizeof(B)));
  }
  static DEVICE int column(int tile, int half) {
    const int g = threadIdx.x % 32 / 4;
    return EACH == 1 ? 4 * g + 2 * tile + half : 16 * tile + (EACH == 2 ? 2 * g + half : g + 8 * half);
  }
  static DEVICE void fragments(u32 (&a)[2][2 * DEEP][4], const uint4 (&w)[LOADS]) {
    typedef typename P::A T;
#pragma unroll
    for (int d = 0; d < DEEP; d++) {
#pragma unroll
      for (int j = 0; j < 2; j++) {
        u32 x[4], y[4];  // of the columns of rows g and g + 8
        if constexpr (EACH == 1) {
          Bits::of(T{}, x, j == 0 ? w[d].x : w[d].z);
          Bits::of(T{}, y, j == 0 ? w[d].y : w[d].w);
        } else if constexpr (EACH == 4) {
          const uint4 v = w[4 * d + 2 * j], u = w[4 * d + 2 * j + 1];
          x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
          y[0] = u.x, y[1] = u.y, y[2] = u.z, y[3] = u.w;
        } else {
          const uint4 v = w[2 * d + j];
          u32 p[4][2];
          Bits::of(T{}, p[0], v.x);
          Bits::of(T{}, p[1], v.y);
          Bits::of(T{}, p[2], v.z);
          Bits::of(T{}, p[3], v.w);
          if (((Bits::far(T{}, v.x) | Bits::far(T{}, v.y) | Bits::far(T{}, v.z) | Bits::far(T{}, v.w)) & 0x80808080u) != 0) {
            Bits::mend(T{}, p[0], Bits::far(T{}, v.x) & 0x80808080u);
            Bits::mend(T{}, p[1], Bits::far(T{}, v.y) & 0x80808080u);
            Bits::mend(T{}, p[2], Bits::far(T{}, v.z) & 0x80808080u);
            Bits::mend(T{}, p[3], Bits::far(T{}, v.w) & 0x80808080u);
          }
#pragma unroll
          for (int i = 0; i < 4; i++) x[i] = p[i / 2][i % 2], y[i] = p[2 + i / 2][i % 2];
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
          a[j][2 * d + i][0] = x[2 * i];
          a[j][2 * d + i][1] = y[2 * i];
          a[j][2 * d + i][2] = x[2 * i + 1];
          a[j][2 * d + i][3] = y[2 * i + 1];
        }
      }
    }
  }
  static DEVICE uint4 arrange(uint4 v) {
    if constexpr (EACH == 1) {
      return {permute(v.x, v.z, 0x5410), permute(v.x, v.z, 0x7632), permute(v.y, v.w, 0x5410), permute(v.y, v.w, 0x7632)};
    } else if constexpr (EACH == 4) {
      return v;
    } else {
      return {permute(v.x, v.y, 0x5410), permute(v.x, v.y, 0x7632), permute(v.z, v.w, 0x5410), permute(v.z, v.w, 0x7632)};
    }
  }
  template <bool EVEN_N, bool EVEN_K> static DEVICE void scales(float (&to)[2][2], const float *scale, int n, int k) {
    const float *const row = scale + i64(k / (BLOCK > 0 ? BLOCK : 1)) * P::SCALE_K;
    if constexpr (EACH == 1 && P::SCALE_VEC == 4) {  // four columns side by side
      const int c = n + column(0, 0);
      uint4 v = {0, 0, 0, 0};
      if ((EVEN_N || c < P::N) && (EVEN_K || k < P::K)) v = read<uint4>(fixed(row + c), 0);
      to[0][0] = bits_to_float(v.x), to[0][1] = bits_to_float(v.y), to[1][0] = bits_to_float(v.z), to[1][1] = bits_to_float(v.w);
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int c = n + column(i / 2, i % 2);
        to[i / 2][i % 2] = (EVEN_N || c < P::N) && (EVEN_K || k < P::K) ? read<float>(fixed(row), c * P::SCALE_N) : 0;
      }
    }
  }
};
