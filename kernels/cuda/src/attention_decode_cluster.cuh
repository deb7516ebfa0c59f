// Attention of few queries to a moderate number of keys, as many for all sequences: the blocks of a cluster divide the tiles of a
// unit, and combine their parts through their shared memory. Each makes some columns of the result. See attention_decode.cuh.

// What the blocks of a cluster send a block: the columns that it makes of each row, in pieces of four, and the row's greatest score
// and sum.
template <class Tile, int BLOCKS_> struct DecodeInbox {
  static constexpr int BLOCKS = BLOCKS_, ROWS = Tile::SLOT / Tile::PARTIAL;
  static constexpr int PIECES = Tile::TOP / 4, EACH = (PIECES + BLOCKS - 1) / BLOCKS;
  float4 part[BLOCKS][ROWS][EACH], ends[BLOCKS][ROWS];
  u64 bar;
};

// Gives a row to the blocks of the cluster; see merge_row.
template <class Inbox> struct RowSent {
  Inbox *inbox;
  int row;
  DEVICE void columns(int c, const Vec<float, 4> &y, float) const {
    const int piece = c / 4;
    cluster_send(&inbox->part[cluster_rank()][row][piece % Inbox::EACH], float4{y[0], y[1], y[2], y[3]}, piece / Inbox::EACH,
                 &inbox->bar);
  }
  DEVICE void ends(float top, float total) const {
    const int to = threadIdx.x % 32;
    if (to * Inbox::EACH >= Inbox::PIECES) return;
    cluster_send(&inbox->ends[cluster_rank()][row], float4{top, total, 0, 0}, to, &inbox->bar);
  }
};

template <class P, class Tile, int BLOCKS, class Args, class Ring> DEVICE void attention_decode_cluster(const Args &p, Ring ring) {
  typedef DecodeInbox<Tile, BLOCKS> Inbox;
  SHARED;
  Inbox *const inbox = reinterpret_cast<Inbox *>(shared + Tile::SHARED_BYTES);
  const int unit = int(blockIdx.x) / BLOCKS, rank = cluster_rank();
  const int group = unit / Tile::TILES, r0 = unit % Tile::TILES * Tile::ROWS, rows = smaller(Tile::ALL - r0, Tile::ROWS);
  const int pieces = larger(smaller(Inbox::PIECES - rank * Inbox::EACH, Inbox::EACH), 0);  // of each row, that this block makes
  if (threadIdx.x == 0) {
    barrier_init(&inbox->bar, 1);
    barrier_init_done();
    if (pieces > 0) barrier_expect(&inbox->bar, BLOCKS * rows * (pieces + 1) * 16);
  }
  cluster_arrive();
  if constexpr (!Tile::AHEAD) late_read();
  DecodeAt at{unit / Tile::UNITS, unit % Tile::UNITS, 0, key_tiles<P, Tile>(p, 0)};
  const int all = at.tiles.hi - at.tiles.lo, share = (all + BLOCKS - 1) / BLOCKS;
  at.tile = smaller(rank * share, all);
  const int tiles = smaller(share, all - at.tile);
  if constexpr (Tile::AHEAD) {
    if (share <= Tile::STAGES) prefetch_tiles<P, Tile>(p, at, tiles);
    late_read();
  }
  i64 seed = 0;
  if constexpr (P::DROP > 0) seed = P::seed(p);
  cluster_wait();
  decode_tiles<P, Tile>(p, ring, at, tiles, group, r0, seed, [&](int row, const auto &parts) {
    merge_row<P, Tile, Tile::KW>(Tile::KW, parts, RowSent<Inbox>{inbox, row});
  });
  if (pieces == 0) return;
  barrier_wait(&inbox->bar, 0);
  for (int e = threadIdx.x; e < rows * pieces; e += Tile::THREADS) {
    const int row = e / pieces, piece = e % pieces;
    float top = minus_infinity<float>(), total = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) top = fmaxf(top, inbox->ends[i][row].x);
    const float low = top == minus_infinity<float>() ? 0.0f : top;
    Vec<float, 4> y = splat<4>(0.0f);
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
      const float4 ends = inbox->ends[i][row], x = inbox->part[i][row][piece];
      const float weight = exp2_approximate((ends.x - low) * Tile::UNIT);
      total += ends.y * weight;
      y[0] += weight * x.x, y[1] += weight * x.y, y[2] += weight * x.z, y[3] += weight * x.w;
    }
    const RowResult<P, Tile, Args> to{p, place<P, true>(group, r0 + row)};
    to.columns(4 * (rank * Inbox::EACH + piece), y, total == 0.0f ? 0.0f : float(P::KEEP) / total);
    if (rank == 0 && piece == 0) to.put_lse(top, total);
  }
}
