// Weights in deep panels; see graph.PackWeights. Element (k, n) of the weights is element k·ROW + n·COL from w on; those of the
// panels have BITS bits, and C columns of eight rows 16 bytes. A thread makes eight rows of a column, of which those beyond K or N
// are 0.
template <int BITS, int K, int N, int ROW, int COL, class T, class U> DEVICE void pack_weights(const T *w, U *panels) {
  constexpr int STEPS = (K + 31) / 32, C = 16 / BITS;
  const i64 cell = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  const int at = int(cell % 128), n = int(cell / (128 * STEPS)) * 32 + at / (4 * C) * C + at % C;
  const int k = int(cell / 128 % STEPS) * 32 + at / C % 4 * 8;
  if (cell >= i64((N + 31) / 32) * 128 * STEPS) return;
  u32 words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (k + i >= K || n >= N) continue;
    const i64 at = i64(k + i) * ROW + i64(n) * COL;
    u32 bits;
    if constexpr (BITS == 16) {
      bits = convert<U>(w[at]).bits;
    } else if constexpr (BITS == 4) {
      bits = u8(w[at / 2]) >> at % 2 * 4 & 15;
    } else {
      bits = u8(w[at]);
    }
    words[i * BITS / 32] |= bits << i * BITS % 32;
  }
  if constexpr (BITS == 4) {
    reinterpret_cast<u32 *>(panels)[cell] = words[0];
  } else if constexpr (BITS == 8) {
    reinterpret_cast<uint2 *>(panels)[cell] = {words[0], words[1]};
  } else {
    reinterpret_cast<uint4 *>(panels)[cell] = {words[0], words[1], words[2], words[3]};
  }
}
