// Matrix products with Blackwell's instructions; see gemm.cuh for Problem and Body, gemm_hopper.cuh for Tile and Work, of which
// clusters, PINGPONG and GATHERS are left out. A block has a producer, one thread that starts the copies of slices into a ring of
// stages as on Hopper, a thread that starts the products of the slices, and two warpgroups that finish the tile. The sums of two
// tiles are in tensor memory: one is multiplied while the other is finished.

// What a block has in shared memory behind its ring: barriers that tell that the sums of a tile are complete, and that they have
// been read, for each of the two; and where tensor memory has been taken.
template <class P, class Tile> struct Sums {
  static constexpr int BARRIERS = Ring<P, Tile>::BARRIERS + 2 * 8 * Tile::STAGES, ADDRESS = BARRIERS + 4 * 8;
  static constexpr int COLUMNS = Tile::BN <= 64 ? 128 : Tile::BN <= 128 ? 256 : 512;
};

// gemm_blackwell computes a product. Column sums go to partial [SUMS][BATCH · tiles · 8][N].
template <class P, class Body, class Tile, class Work>
DEVICE void gemm_blackwell(Body body, const TensorMap *map_a, const TensorMap *map_b, Work work, typename Body::Sum *partial) {
  typedef Ring<P, Tile> R;
  typedef Sums<P, Tile> S;
  typedef typename Tile::T T;
  constexpr int BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES;
  static_assert(BM == 128 && BN % 64 == 0 && R::CLUSTER == 1 && !Tile::PINGPONG && !Tile::GATHERS, "a tile of Blackwell");
  SHARED;
  u64 *const full = reinterpret_cast<u64 *>(shared + R::BARRIERS), *const empty = full + STAGES;
  u64 *const complete = reinterpret_cast<u64 *>(shared + S::BARRIERS), *const taken = complete + 2;
  u32 *const address = reinterpret_cast<u32 *>(shared + S::ADDRESS);
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    tma_prefetch(map_a);
    tma_prefetch(map_b);
    for (int i = 0; i < 2 * STAGES; i++) barrier_init(full + i, 1);
    for (int i = 0; i < 2; i++) {
      barrier_init(complete + i, 1);
      barrier_init(taken + i, 8);
    }
    barrier_init_done();
  }
  const u32 sums = tensor_open<S::COLUMNS>(address);
  if (threadIdx.x == 0) {
    load_tiles<P, Tile>(body, map_a, map_b, work, full, empty, 0, 0, 0);
  } else if (threadIdx.x == 32) {
    const u64 a0 = tensor_operand(shared, 8192, 1024), b0 = tensor_operand(shared + R::A_BYTES, 8192, 1024);
    int stage = 0, number = 0;
    u32 phase = 0;
    Spot spot;
    int end;
    for (int i = blockIdx.x; work.find(i, spot, end); i += gridDim.x) {
      const int half = number % 2, steps = work.steps(spot);
      barrier_wait(taken + half, number / 2 % 2 ^ 1);
      tensor_after();
      for (int step = 0; step < steps; step++) {
        barrier_wait(full + stage, phase);
        tensor_after();
        const u64 at = u64(stage * (R::STAGE / 16));
#pragma unroll
        for (int k = 0; k < 4; k++) {  // 32 bytes or 16 rows of the slice
          tensor_multiply<T, BN, !Tile::A_KINNER, !Tile::B_KINNER>(sums + half * BN, a0 + at + k * (Tile::A_KINNER ? 32 : 2048) / 16,
                                                                   b0 + at + k * (Tile::B_KINNER ? 32 : 2048) / 16,
                                                                   step > 0 || k > 0);
        }
        tensor_commit(empty + stage);
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      tensor_commit(complete + half);
      number++;
    }
  } else if (group > 0) {
    u8 *const turn = shared + R::TURNS + (warp - 4) * R::TURN;
    int number = 0;
    Spot spot;
    int end;
    for (int i = blockIdx.x; work.find(i, spot, end); i += gridDim.x) {
      const int half = number % 2, quarter = warp % 4;
      barrier_wait(complete + half, number / 2 % 2);
      tensor_after();
      if constexpr (Tile::SPLITS > 1) body.split = spot.split;
      const bool whole = Work::EXACT || spot.m + BM <= end && spot.n + BN <= P::N;
      constexpr int BLOCKS = P::BATCH * Work::TM * 8;
#pragma unroll 1
      for (int c = (group - 1) * 64; c < BN; c += 128) {
#pragma unroll 1
        for (int part = 0; part < 2; part++) {
          const int lanes = quarter * 32 + part * 16, row = spot.m + lanes;
          const int block = (spot.batch * Work::TM + spot.m / BM) * 8 + quarter * 2 + part;
          float acc[1][32] = {};
          if (!Work::RAGGED || work.steps(spot) > 0) tensor_load(acc[0], sums + u32(lanes << 16) + half * BN + c);
          const Columns<64, false> columns{spot.n + c};
          if (whole) {
            finish_tile<P, true, BLOCKS>(body, acc, turn, spot.batch, row, columns, end, partial, block);
          } else {
            finish_tile<P, false, BLOCKS>(body, acc, turn, spot.batch, row, columns, end, partial, block);
          }
        }
      }
      tensor_before();
      __syncwarp();
      if (lane == 0) barrier_arrive(taken + half);
      number++;
    }
  }
  tensor_close<S::COLUMNS>(sums);
}
