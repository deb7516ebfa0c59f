// Products of few rows by weights in deep panels on Hopper, which take the time of reading the weights once; see gemm.cuh for
// Problem and Body, and gemm_packed.cuh for a Form.
//
// A warp fills a ring of slots in shared memory with slices of panels, contiguous in memory: small copies take as long as large
// ones. WARPS warps multiply U chunks of each slice. The S blocks of a cluster divide k, and take PANELS panels one after another.
// The sums of the warps meet in shared memory after each panel, where they are added in order. Each block sends the others of its
// cluster their shares of its sums, and adds those of all, in order, in its own share.
//
// If a Form has GROUPS, a slice has whole groups of rows, or lies in one, and so does what a warp multiplies of it. The scales of
// a slice stand behind it in its slot.
//
// If EARLY, the launch may begin before those before it have ended, which do not write the weights or their scales. While it waits
// for them, AHEAD slices that follow those in the slots come to the L2 cache.

template <int WARPS_, int PANELS_, int S_, int SLOTS_, int U_, int AHEAD_, bool EARLY_> struct PanelTile {
  static constexpr int WARPS = WARPS_, PANELS = PANELS_, S = S_, SLOTS = SLOTS_, U = U_, AHEAD = AHEAD_;
  static constexpr bool EARLY = EARLY_;
};

template <class P, class Form, class Tile, bool NORMED> struct PanelRing {
  typedef RowSquares<P::M, Tile::WARPS, Tile::S> Squares;
  static constexpr int COLUMNS = 32, OWN = Tile::U * Form::K, K = Tile::WARPS * OWN;  // OWN are a warp's
  static constexpr int CHUNK = Form::LOADS * 512, BYTES = Tile::WARPS * Tile::U * CHUNK;
  static constexpr int BLOCK = Form::GROUPS ? Form::BLOCK : K;  // rows that share scales
  static constexpr int GROUPS = !Form::GROUPS ? 0 : K > BLOCK ? K / BLOCK : 1, SLOT = BYTES + GROUPS * COLUMNS * 4;
  static constexpr int WHOLE = (P::K + 31) / 32 * (CHUNK / (Form::K / 32));  // bytes of a panel
  static constexpr int STEPS = (P::K + K - 1) / K, EACH = (STEPS + Tile::S - 1) / Tile::S;
  static constexpr int PITCH = (EACH * OWN + 63) / 64 * 64 + 32;  // of a row of A, such that no two lanes meet in a bank
  static constexpr int STAGED = Tile::SLOTS * SLOT, PARTS = STAGED + Tile::WARPS * P::M * PITCH * 2;
  static constexpr int PART = P::M * COLUMNS, SUMS = PARTS + 2 * Tile::WARPS * PART * 4;  // PART are the sums of a warp
  static constexpr int VECTORS = (Tile::PANELS * PART / P::W + Tile::S - 1) / Tile::S, SHARE = VECTORS * P::W;  // of a block
  static constexpr int SCALED = SUMS + Tile::S * SHARE * 4, SQUARES = SCALED + Tile::PANELS * COLUMNS * 4;
  static constexpr int BARRIERS = SQUARES + (NORMED ? (Squares::BYTES + 7) / 8 * 8 : 0);
  static constexpr int THREADS = 32 * Tile::WARPS;  // that multiply
};

template <class P, class Body, class Form, class Tile, class Rows>
DEVICE void gemm_panels(Body body, const Rows &rows, const typename P::B *b, const float *scale, typename Body::Sum *) {
  typedef PanelRing<P, Form, Tile, Rows::NORMED> R;
  typedef typename P::A T;
  constexpr int WARPS = Tile::WARPS, PANELS = Tile::PANELS, S = Tile::S, SLOTS = Tile::SLOTS, U = Tile::U, M = P::M, W = P::W;
  constexpr int COLUMNS = R::COLUMNS;
  static_assert(M <= 8, "the rows are the columns of mma");
  SHARED;
  u64 *const full = reinterpret_cast<u64 *>(shared + R::BARRIERS), *const empty = full + SLOTS, *const inbox = empty + SLOTS;
  float *const sums = reinterpret_cast<float *>(shared + R::SUMS), *const scaled = reinterpret_cast<float *>(shared + R::SCALED);
  const typename R::Squares squares{reinterpret_cast<float *>(shared + R::SQUARES)};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rank = int(blockIdx.x) % S, panel = int(blockIdx.x) / S * PANELS;
  const int panels = least(PANELS, (P::N + COLUMNS - 1) / COLUMNS - panel);
  const int first = rank * R::STEPS / S, steps = (rank + 1) * R::STEPS / S - first;  // of slices
  if (threadIdx.x == R::THREADS) {
    for (int i = 0; i < SLOTS; i++) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, WARPS);
    }
    barrier_init(inbox, 1);
    barrier_init_done();
  }
  const int left = panels * R::PART - rank * R::SHARE, share = left > 0 ? least(left, R::SHARE) : 0;  // of the sums
  __syncthreads();
  if constexpr (S > 1) {
    cluster_arrive();
    if (threadIdx.x == R::THREADS) barrier_expect(inbox, (S - 1) * share * 4 + (Rows::NORMED ? R::Squares::SENT : 0));
  }
  if constexpr (Tile::EARLY) early_begin();
  if (warp == WARPS) {
    const u8 *const from = reinterpret_cast<const u8 *>(b) + i64(panel) * R::WHOLE;
    const auto slice = [&](int i) { return from + i64(i / steps) * R::WHOLE + (first + i % steps) * R::BYTES; };
    const auto size = [&](int i) {
      return R::WHOLE % R::BYTES == 0 ? R::BYTES : least(R::BYTES, R::WHOLE - (first + i % steps) * R::BYTES);
    };
    // Lanes copy a group's scales each.
    const auto groups = [&](int i) {
      const int left = P::K - (first + i % steps) * R::K;
      return !Form::GROUPS ? 0 : P::K % R::K == 0 ? R::GROUPS : least(R::GROUPS, (left + R::BLOCK - 1) / R::BLOCK);
    };
    const auto scales = [&](int i) {
      return scale + i64((first + i % steps) * R::K / R::BLOCK + lane) * P::SCALE_K + (panel + i / steps) * COLUMNS;
    };
    const auto scales_size = [&](int i) {
      return 4 * (P::N % COLUMNS == 0 ? COLUMNS : least(COLUMNS, P::N - (panel + i / steps) * COLUMNS));
    };
    const int all = panels * steps;
    int slot = 0;
    u32 phase = 1;
    if (lane == 0 || Form::GROUPS) {
#pragma unroll 1
      for (int i = 0; i < all; i++) {
        if (i == SLOTS) {
          for (int j = i; j < least(i + Tile::AHEAD, all); j++) {
            if (lane == 0) bulk_prefetch(slice(j), size(j));
            if (lane < groups(j)) bulk_prefetch(scales(j), scales_size(j));
          }
        }
        u8 *const to = shared + slot * R::SLOT;
        barrier_wait(empty + slot, phase);
        if (lane == 0) {
          barrier_expect(full + slot, size(i) + groups(i) * scales_size(i));
          bulk_stream(to, slice(i), size(i), full + slot);
        }
        if constexpr (Form::GROUPS) __syncwarp();
        if (lane < groups(i)) bulk_load(to + R::BYTES + lane * COLUMNS * 4, scales(i), scales_size(i), full + slot);
        if (++slot == SLOTS) slot = 0, phase ^= 1;
      }
    }
    if constexpr (S > 1) cluster_wait();
    return;
  }
  if constexpr (Form::SCALES) {
    for (int i = threadIdx.x; i < PANELS * COLUMNS; i += R::THREADS) {
      const int n = panel * COLUMNS + i;
      scaled[i] = n < P::N ? scale[n * P::SCALE_N] : 0;
    }
  }
  T *const staged = reinterpret_cast<T *>(shared + R::STAGED) + warp * M * R::PITCH;
  constexpr int PIECES = R::EACH * R::OWN / 8, TURNS = (PIECES + 31) / 32;  // of a row that is staged
  const auto at = [&](int piece) { return (first + piece / R::OWN) * R::K + warp * R::OWN + piece % R::OWN; };
  float square[M] = {};
  if constexpr (Rows::NORMED) {
    constexpr int HELD = least(TURNS, 4);
    Vec<float, 8> gains[HELD];
#pragma unroll
    for (int u = 0; u < HELD; u++) gains[u] = rows.gains(at((lane + 32 * u) * 8));
    if constexpr (Tile::EARLY) early_read();
#pragma unroll
    for (int row = 0; row < M; row++) {
#pragma unroll
      for (int u = 0; u < TURNS; u++) {
        const int piece = (lane + 32 * u) * 8, k = at(piece);
        if (piece >= steps * R::OWN) break;  // other blocks have the rest
        const uint4 v = rows.piece(P::a_at(0) + row * P::A_M + k, k, u < HELD ? gains[u] : rows.gains(k), square[row]);
        *reinterpret_cast<uint4 *>(staged + row * R::PITCH + piece) = Form::arrange(v);
      }
    }
  } else {
    if constexpr (Tile::EARLY) early_read();
#pragma unroll 4
    for (int i = lane; i < M * PIECES; i += 32) {
      const int row = i / PIECES, piece = i % PIECES * 8, k = at(piece);
      const uint4 v = rows.piece(P::a_at(0) + row * P::A_M + k * P::A_K, k);
      *reinterpret_cast<uint4 *>(staged + row * R::PITCH + piece) = Form::arrange(v);
    }
  }
  __syncwarp();

  if constexpr (S > 1) cluster_wait();  // the others have initialised their barriers
  int slot = 0;
  u32 phase = 0;
#pragma unroll 1
  for (int q = 0; q < panels; q++) {
    float acc[Form::TILES][4] = {};
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      const int k = (first + step) * R::K + warp * R::OWN;
      const u8 *const slice = shared + slot * R::SLOT + warp * U * R::CHUNK + lane * 16;
      uint4 w[U][Form::LOADS];
      barrier_wait(full + slot, phase);
#pragma unroll
      for (int i = 0; i < U * Form::LOADS; i++) {
        uint4 &to = w[i / Form::LOADS][i % Form::LOADS] = {0, 0, 0, 0};
        if (P::K % R::K == 0 || k + i / Form::EACH * 32 < P::K) to = *reinterpret_cast<const uint4 *>(slice + i * 512);
      }
      float by[Form::TILES][2];
      if constexpr (Form::GROUPS) {
        static_assert(R::BLOCK % R::OWN == 0 && (R::K % R::BLOCK == 0 || R::BLOCK % R::K == 0), "slices have whole groups");
        const float *const scales = reinterpret_cast<const float *>(shared + slot * R::SLOT + R::BYTES) +
                                    warp * R::OWN / R::BLOCK * COLUMNS;
#pragma unroll
        for (int j = 0; j < Form::TILES; j++) {
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const int c = Form::column(j, h);
            const bool there = (P::N % COLUMNS == 0 || (panel + q) * COLUMNS + c < P::N) && (P::K % R::K == 0 || k < P::K);
            by[j][h] = there ? scales[c] : 0;
          }
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + slot);
      if (++slot == SLOTS) slot = 0, phase ^= 1;
      float group[Form::TILES][4] = {};
#pragma unroll
      for (int u = 0; u < U; u++) {
        u32 weights[Form::TILES][Form::K / 16][4], right[Form::K / 16][2] = {};
        Form::fragments(weights, w[u]);
        if (g < M) {
#pragma unroll
          for (int d = 0; d < Form::K / 32; d++) {
            const uint4 v = *reinterpret_cast<const uint4 *>(staged + g * R::PITCH + step * R::OWN + u * Form::K + 32 * d + 8 * t);
            right[2 * d][0] = v.x, right[2 * d][1] = v.y, right[2 * d + 1][0] = v.z, right[2 * d + 1][1] = v.w;
          }
        }
#pragma unroll
        for (int j = 0; j < Form::TILES; j++) {
#pragma unroll
          for (int d = 0; d < Form::K / 16; d++) mma(T{}, Form::GROUPS ? group[j] : acc[j], weights[j][d], right[d]);
        }
      }
      if constexpr (Form::GROUPS) {
#pragma unroll
        for (int j = 0; j < Form::TILES; j++) {
#pragma unroll
          for (int e = 0; e < 4; e++) acc[j][e] += by[j][e / 2] * group[j][e];
        }
      }
    }
    float *const parts = reinterpret_cast<float *>(shared + R::PARTS) + q % 2 * WARPS * R::PART;
#pragma unroll
    for (int j = 0; j < Form::TILES; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int row = 2 * t + e % 2;
        if (row < M) parts[warp * R::PART + row * COLUMNS + Form::column(j, e / 2)] = acc[j][e];
      }
    }
    if (Rows::NORMED && q == 0) squares.put(warp, square);
    named_sync(1, R::THREADS);
    if (Rows::NORMED && S > 1 && q == 0) squares.send(rank, inbox);
    for (int i = threadIdx.x; i < R::PART; i += R::THREADS) {
      float sum = parts[i];
#pragma unroll
      for (int k = 1; k < WARPS; k++) sum += parts[k * R::PART + i];
      const int at = q * R::PART + i, owner = at / R::SHARE;
      float *const to = sums + rank * R::SHARE + at % R::SHARE;
      if (S == 1 || owner == rank) {
        *to = sum;
      } else {
        cluster_send(to, sum, owner, inbox);
      }
    }
  }
  named_sync(1, R::THREADS);
  if constexpr (S > 1) barrier_wait(inbox, 0);
  if constexpr (Tile::EARLY) early_body();
  for (int i = threadIdx.x; i < share / W; i += R::THREADS) {
    const int at = rank * R::VECTORS + i, column = at % (COLUMNS / W) * W, row = at / (COLUMNS / W) % M, q = at / (COLUMNS / W) / M;
    const int n = (panel + q) * COLUMNS + column;
    if (n >= P::N) continue;
    Vec<float, W> sum;
#pragma unroll
    for (int j = 0; j < W; j++) {
      sum[j] = sums[i * W + j];
#pragma unroll
      for (int k = 1; k < S; k++) sum[j] += sums[k * R::SHARE + i * W + j];
      if constexpr (Form::SCALES) sum[j] *= scaled[q * COLUMNS + column + j];
    }
    if constexpr (Rows::NORMED) {
      const float factor = rows.factor(squares.of(row));
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] *= factor;
    }
    body(0, row, n, sum, static_cast<Vec<typename Body::Sum, W> *>(nullptr));
  }
  if constexpr (Tile::EARLY) early_end();
}
