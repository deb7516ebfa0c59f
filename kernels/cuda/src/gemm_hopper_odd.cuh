// Operand B of a product with Hopper's instructions whose rows along n begin anywhere, so that the copy engine cannot read it; see
// gemm_hopper.cuh. The copy engine loads A.

// word_of is word i of 16 bytes of COUNT elements of 16 bits: what is behind the last is 0.
template <i64 COUNT, class T> DEVICE uint4 word_of(const T *p, i64 i) {
  if (8 * i + 8 <= COUNT) return read<uint4>(fixed(p), i);
  u32 w[4] = {};
#pragma unroll
  for (int j = 0; j < 8; j++) {
    if (8 * i + j < COUNT) w[j / 2] |= u32(p[8 * i + j].bits) << 16 * (j % 2);
  }
  return {w[0], w[1], w[2], w[3]};
}

// elements_from is the eight elements from number `from` on of the sixteen of two words.
DEVICE uint4 elements_from(uint4 low, uint4 high, int from) {
  const u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  u32 x[6], y[5];
#pragma unroll
  for (int i = 0; i < 6; i++) x[i] = from & 4 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; i++) y[i] = from & 2 ? x[i + 1] : x[i];
  const u32 how = from & 1 ? 0x5432 : 0x3210;
  return {permute(y[0], y[1], how), permute(y[1], y[2], how), permute(y[2], y[3], how), permute(y[3], y[4], how)};
}

// load_odd is the producer. Neighbouring threads load neighbouring words of a row of the slice, each thread of every FAR-th row, and
// the words that end the rows as well. They move them to where elements begin, and write them to where the copy engine would put
// them.
template <class P, class Tile, class Work>
DEVICE void load_odd(const TensorMap *map_a, const typename P::B *b, const Work &work, u64 *full, u64 *empty) {
  typedef Ring<P, Tile> R;
  constexpr int STAGES = Tile::STAGES, LANES = Tile::BN / 8, FAR = 128 / LANES, EACH = R::BK / FAR;
  static_assert(R::CLUSTER == 1 && P::BATCH == 1 && !Tile::B_KINNER && sizeof(typename P::B) == 2 && EACH <= LANES, "one matrix");
  SHARED;
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  u8 *const to = shared + R::A_BYTES + lane / 8 * 8192;
  int stage = 0;
  u32 phase = 0;
  Spot spot;
  int end;
  for (int i = blockIdx.x; work.find(i, spot, end); i += gridDim.x) {
    const int first = work.begin(spot), steps = work.steps(spot);
    for (int step = first; step < first + steps; step++) {
      const int k = step * R::BK;
      const auto at = [&](int j) { return P::b_at(0) + i64(k + group + j * FAR) * P::B_K + spot.n; };
      uint4 words[EACH], last = {};
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        words[j] = uint4{0, 0, 0, 0};
        if (k + group + j * FAR < P::K) words[j] = word_of<Tile::ODD>(b, at(j) / 8 + lane);
      }
      if (lane < EACH && k + group + lane * FAR < P::K) last = word_of<Tile::ODD>(b, at(lane) / 8 + LANES);
      barrier_wait(empty + stage, phase ^ 1);
      if (threadIdx.x == 0) {
        barrier_expect(full + stage, R::A_BYTES);
        load_slice<Tile::BM, 1, Tile::A_KINNER, Tile::A_AXES, Tile::INNER>(
            shared + stage * R::STAGE, map_a, full + stage, spot.m, k, 0, 0, 0);
      }
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        uint4 high;
        u32 *const h = &high.x;
        const u32 *const w = &words[j].x, *const l = &last.x;
#pragma unroll
        for (int q = 0; q < 4; q++) {
          const u32 next = __shfl_down_sync(0xffffffffu, w[q], 1, LANES), ends = __shfl_sync(0xffffffffu, l[q], j, LANES);
          h[q] = lane == LANES - 1 ? ends : next;
        }
        const int row = group + j * FAR;
        *reinterpret_cast<uint4 *>(to + stage * R::STAGE + row * 128 + (lane % 8 ^ row % 8) * 16) =
            elements_from(words[j], high, int(at(j) % 8));
      }
      shared_fence();
      barrier_arrive(full + stage);
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
  }
}
