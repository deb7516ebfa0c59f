// Patches of images as operand A of products with Hopper's instructions; see patches.cuh and gemm_hopper.cuh. The copy engine
// loads B.

// All 128 threads of the producer copy pieces of the images, each to where the copy engine would put it, and the first
// starts the copies of B. The pieces of a stage have arrived LAG steps later: then each thread makes its own visible to the
// tensor cores, and arrives at the stage's barrier. Consumers release a stage when the next one is full, so two stages of the
// ring are neither under way nor waited for.
template <class P, class Tile, class Work>
DEVICE void load_patches(const typename P::A *images, const TensorMap *map_b, const Work &work, u64 *full, u64 *empty) {
  typedef Ring<P, Tile> R;
  typedef typename P::A T;
  typedef PatchWalk<typename P::Image, true, Tile::BM, R::BK, P::A_VEC, 128> Walk;
  constexpr int STAGES = Tile::STAGES, LAG = STAGES - 2, BYTES = P::A_VEC * int(sizeof(T));
  static_assert(R::CLUSTER == 1 && LAG > 0 && Walk::ALL % 128 == 0, "a block loads its own slices");
  SHARED;
  int stage = 0, arrived = 0, behind = 0;
  u32 phase = 0;
  const auto announce = [&] {
    shared_fence();
    barrier_arrive(full + arrived);
    if (++arrived == STAGES) arrived = 0;
  };
  Spot spot;
  int end;
  for (int i = R::first(); work.find(i, spot, end); i += R::apart()) {
    const T *const from = images + P::a_at(spot.batch);
    Walk walk(spot.m);
    const int first = work.begin(spot);
    for (int step = first; step < first + work.steps(spot); step++) {
      const int k = step * R::BK;
      u8 *const to = shared + stage * R::STAGE;
      barrier_wait(empty + stage, phase ^ 1);
      if (threadIdx.x == 0) {
        barrier_expect(full + stage, R::B_BYTES);
        load_slice<Tile::BN, 1, Tile::B_KINNER, Tile::B_AXES, Tile::INNER>(
            to + R::A_BYTES, map_b, full + stage, spot.n, k, spot.batch, 0, 0);
      }
      walk.at(k);
      constexpr int AT_ONCE = Walk::KEPT ? Walk::EACH : 4;
#pragma unroll AT_ONCE
      for (int j = 0; j < Walk::EACH; j++) {
        const int e = threadIdx.x + j * 128, r = e / Walk::ROW, byte = e % Walk::ROW * BYTES;
        const auto row = walk.row(j);
        const bool there = inside(row, walk.column);
        copy_async<BYTES>(to + r * 128 + (byte / 16 ^ r % 8) * 16 + byte % 16,
                          there ? from + (row.at + walk.column.at) : from, there);
      }
      copy_commit();
      if (++stage == STAGES) stage = 0, phase ^= 1;
      if (behind == LAG) {
        copy_wait<LAG>();
        announce();
      } else {
        behind++;
      }
    }
  }
  copy_wait<0>();
  for (; behind > 0; behind--) announce();
}
