// Products of one row by weights of i4 in deep panels, several in one launch on Hopper, which take the time of reading all weights
// once; see gemm.cuh for Problem and Body, gemm_few.cuh for rows, and gemm_packed.cuh for how weights lie.
//
// Each multiprocessor has a block, and each of BLOCKS blocks takes every BLOCKS-th panel of each product. A warp brings slices of
// panels, of one product after another, to a ring of slots in shared memory, and waits for free slots alone. WARPS warps multiply U
// chunks of 64 rows of each slice. They put their sums of each panel into shared memory, which has room for two, and go on. One
// more warp, which has read what the body needs of the columns by then, adds them in order, and runs the body. A product that reads
// what others make waits until all their panels are counted, while weights come. If its row is what a product makes of which blocks
// have several panels, it begins when the first ones are counted. One thread of a block waits for the counts.
//
// Weights are multiplied as integers, 16 times as large, which takes three instructions for eight of them. The elements of A that a
// warp multiplies of a slice become numbers of 28 bits with one exponent: those of bf16 that are at least 2^-19 of the largest are
// exact, and others are off by at most 2^-27 of it. A number is four digits from -64 to 64, which are columns of a product of
// integers. Its sums begin with a number that makes them the bits of f32. An infinite element makes NaN.

constexpr int CHAIN_BITS = 0x4b400000;  // of 1.5 * 2^23: whole numbers near it are apart by 1 in their bits, too

// The shared memory of a block: slots, digits, what they count, sums of the warps with squares of the row, and barriers. A warp has
// the digits of SLICES slices. There are WAITS waits.
template <int WARPS_, int U_, int SLOTS_, int GROUPS_, int SLICES_, int WAITS_, int BLOCKS_> struct Chain {
  static constexpr int WARPS = WARPS_, U = U_, SLOTS = SLOTS_, GROUPS = GROUPS_, SLICES = SLICES_, WAITS = WAITS_;
  static constexpr int BLOCKS = BLOCKS_;
  static constexpr int COLUMNS = 32, OWN = 64 * U, ROWS = WARPS * OWN, BYTES = ROWS * 16, SLOT = BYTES + GROUPS * COLUMNS * 4;
  static constexpr int ELEMENTS = SLOTS * SLOT, COUNTS = ELEMENTS + WARPS * SLICES * OWN * 4, PARTS = COUNTS + WARPS * SLICES * 16;
  static constexpr int BARRIERS = PARTS + 2 * WARPS * (COLUMNS + 1) * 4;
  static DEVICE u64 *full(int slot) {
    SHARED;
    return reinterpret_cast<u64 *>(shared + BARRIERS) + slot;
  }
  static DEVICE u64 *empty(int slot) { return full(SLOTS + slot); }
  static DEVICE u64 *go(int wait) { return full(2 * SLOTS + wait); }

  int slot = 0;
  u32 phase = 0;
  int panels = 0;       // so far
  bool staged = false;  // the row of the product
  float squares = 0;    // of the warp's part of it, all of them
  // The sums of the warps of a panel, and the squares.
  DEVICE float *parts() const {
    SHARED;
    return reinterpret_cast<float *>(shared + PARTS) + panels % 2 * WARPS * (COLUMNS + 1);
  }
  // The warps that multiply wait for room for the sums of a panel, and announce them. One more waits for these, and gives room.
  DEVICE void await_room() const {
    if (panels >= 2) named_sync(3 + panels % 2, 32 * (WARPS + 1));
  }
  DEVICE void announce() const { named_arrive(1 + panels % 2, 32 * (WARPS + 1)); }
  DEVICE void await_sums() const { named_sync(1 + panels % 2, 32 * (WARPS + 1)); }
  DEVICE void give_room() const { named_arrive(3 + panels % 2, 32 * (WARPS + 1)); }
  // Waits until all sums have been read.
  DEVICE void end() {
    for (int i = 0; i < 2; i++, panels++) await_room();
  }
  DEVICE void next() {
    if (++slot == SLOTS) slot = 0, phase ^= 1;
  }
  // All threads call it first.
  DEVICE void begin() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < SLOTS; i++) {
        barrier_init(full(i), 1);
        barrier_init(empty(i), WARPS);
      }
      for (int i = 0; i < WAITS; i++) barrier_init(go(i), 1);
      barrier_init_done();
    }
    __syncthreads();
  }
  // Waits for each count of panels, and lets the block's warps go on. The last block leaves zeros.
  DEVICE void watch(int *counts, const int (&all)[WAITS]) {
    if (threadIdx.x % 32 > 0) return;
#pragma unroll
    for (int i = 0; i < WAITS; i++) {
      count_await(counts + i, all[i]);
      barrier_arrive(go(i));
    }
    __threadfence();
    if (atomicAdd(counts + WAITS, 1) == BLOCKS - 1) {
      for (int i = 0; i <= WAITS; i++) counts[i] = 0;
    }
  }
};

// A product of a chain C. The first panel is of block FIRST. BLOCK rows of a column share a scale, or all if it is 0. WAIT waits
// come before it, and the last of them is not for EARLY slices, if there are any. SAME says that its row is that of the product before
// it. The first COUNTED panels are counted by themselves.
template <class P, class C, int FIRST_, int BLOCK_, bool SCALED, int WAIT_, int EARLY_, bool SAME_, int COUNTED_> struct ChainLink {
  static constexpr int FIRST = FIRST_, BLOCK = BLOCK_, WAIT = WAIT_, EARLY = EARLY_, COUNTED = COUNTED_;
  static constexpr bool SAME = SAME_, GROUPED = SCALED && BLOCK > 0, SCALES = SCALED && BLOCK == 0;
  static constexpr int PANELS = (P::N + C::COLUMNS - 1) / C::COLUMNS, SLICES = (P::K + C::ROWS - 1) / C::ROWS;
  static constexpr int WHOLE = (P::K + 31) / 32 * 512;  // bytes of a panel
  static_assert(P::M == 1 && P::W == 1, "a lane has a column");
  static_assert(!GROUPED || BLOCK % C::OWN == 0 && (C::ROWS % BLOCK == 0 || BLOCK % C::ROWS == 0), "slices have whole groups");
  static DEVICE int first() { return (int(blockIdx.x) + C::BLOCKS - FIRST) % C::BLOCKS; }
};

template <class P, class Link, class C> DEVICE void chain_bring(C &at, const typename P::B *b, const float *scale) {
  SHARED;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int panel = Link::first(); panel < Link::PANELS; panel += C::BLOCKS) {
    const int width = 4 * (P::N % C::COLUMNS == 0 ? C::COLUMNS : least(C::COLUMNS, P::N - panel * C::COLUMNS));
#pragma unroll 1
    for (int i = 0; i < Link::SLICES; i++) {
      const int bytes = Link::WHOLE % C::BYTES == 0 ? C::BYTES : least(C::BYTES, Link::WHOLE - i * C::BYTES);
      int groups = 0;
      if constexpr (Link::GROUPED) {
        const int begin = i * C::ROWS, end = least(begin + C::ROWS, P::K);
        groups = (end + Link::BLOCK - 1) / Link::BLOCK - begin / Link::BLOCK;
      }
      u8 *const to = shared + at.slot * C::SLOT;
      barrier_wait(C::empty(at.slot), at.phase ^ 1);
      if (lane == 0) {
        barrier_expect(C::full(at.slot), bytes + groups * width);
        bulk_stream(to, reinterpret_cast<const u8 *>(b) + i64(panel) * Link::WHOLE + i * C::BYTES, bytes, C::full(at.slot));
      }
      __syncwarp();
      if constexpr (Link::GROUPED) {
        if (lane < groups) {
          bulk_load(to + C::BYTES + lane * C::COLUMNS * 4,
                    scale + i64(i * C::ROWS / Link::BLOCK + lane) * P::SCALE_K + panel * C::COLUMNS, width, C::full(at.slot));
        }
      }
      at.next();
    }
  }
}

// Writes the digits of eight elements, the given piece of those of a warp, and what digits count. LANES have one exponent.
template <class C, class T> DEVICE void chain_digits(u8 *elements, float (*counts)[4], int piece, bool there, T, uint4 v) {
  constexpr int LANES = C::OWN / 8;
  const u32 pair[4] = {v.x, v.y, v.z, v.w};
  const float begin = bits_to_float(CHAIN_BITS);
  float x[8], most = 0;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    x[j] = to_float(T{u16(pair[j / 2] >> 16 * (j % 2))});
    most = max_nan(most, fabsf(x[j]));
  }
#pragma unroll
  for (int d = LANES / 2; d > 0; d /= 2) most = max_nan(most, __shfl_xor_sync(0xffffffffu, most, d));
  const bool finite = most < bits_to_float(0x7f800000);
  const int e = finite && float_to_bits(most) >> 23 > 31 ? int(float_to_bits(most) >> 23) : 31;
#pragma unroll
  for (int j = 0; j < 8; j++) x[j] *= bits_to_float(u32(259 - e) << 23);  // less than 64
  u32 plane[4][2];  // the digits of steps 0, 2, 4, 6 and of the others
#pragma unroll
  for (int q = 3; q >= 0; q--) {
    u32 digit[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float next = (q < 3 ? 128 : 1) * x[j], sum = next + begin;
      digit[j] = float_to_bits(sum);
      x[j] = next - (sum - begin);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      plane[q][h] = permute(permute(digit[h], digit[h + 2], 0x40), permute(digit[h + 4], digit[h + 6], 0x40), 0x5410);
    }
  }
  if (!there) return;
  const int chunk = piece % LANES / 4;
  u8 *const to = elements + piece / LANES * (C::OWN * 4) + chunk / 2 * 256 + piece % 4 * 16 + chunk % 2 * 8;
#pragma unroll
  for (int q = 0; q < 4; q++) *reinterpret_cast<uint2 *>(to + q * 64) = {plane[q][0], plane[q][1]};
  if (piece % LANES > 0) return;
#pragma unroll
  for (int q = 0; q < 4; q++) counts[piece / LANES][q] = bits_to_float(finite ? u32(e - 30 + 7 * q) << 23 : 0x7fffffff);
}

// A body, and what it reads ahead of a column.
template <class Body, bool AHEAD = Body::AHEAD> struct ChainBody {
  const Body &body;
  DEVICE void read(int) {}
  DEVICE void run(int n, const Vec<float, 1> &sum) const { body(0, 0, n, sum, static_cast<Vec<typename Body::Sum, 1> *>(nullptr)); }
};
template <class Body> struct ChainBody<Body, true> {
  const Body &body;
  typename Body::template Ahead<1> ahead;
  DEVICE void read(int n) { ahead = body.template ahead<1>(0, 0, n); }
  DEVICE void run(int n, const Vec<float, 1> &sum) const {
    body(0, 0, n, sum, static_cast<Vec<typename Body::Sum, 1> *>(nullptr), ahead);
  }
};

template <int N> struct Number { static constexpr int value = N; };

// Multiplies the panels of the block.
template <class P, class Link, class C, class Rows> DEVICE void chain_multiply(C &at, const Rows &rows) {
  constexpr int WARPS = C::WARPS, U = C::U, COLUMNS = C::COLUMNS;
  SHARED;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if constexpr (!Link::SAME) at.staged = false;
  if (Link::first() >= Link::PANELS) return;
  u8 *const elements = shared + C::ELEMENTS + warp * C::SLICES * C::OWN * 4;
  float (*const counts)[4] = reinterpret_cast<float (*)[4]>(shared + C::COUNTS) + warp * C::SLICES;
  float square[1] = {};
  const auto stage = [&](auto first, auto end) {
    constexpr int LANES = C::OWN / 8, PIECES = (end.value - first.value) * LANES, TURNS = (PIECES + 31) / 32;
    const auto wait = [&] {
      if constexpr (Link::WAIT > 0) barrier_wait(C::go(Link::WAIT - (end.value < Link::SLICES ? 2 : 1)), 0);
    };
    const auto piece_of = [&](int u) { return first.value * LANES + lane + 32 * u; };
    const auto from = [&](int piece) { return piece / LANES * C::ROWS + warp * C::OWN + piece % LANES * 8; };
    const auto there = [&](int piece) { return piece < end.value * LANES; };
    if constexpr (Rows::NORMED) {
      constexpr int HELD = least(TURNS, 4);
      Vec<float, 8> gains[HELD];
#pragma unroll
      for (int u = 0; u < HELD; u++) gains[u] = rows.gains(from(piece_of(u)));
      wait();
#pragma unroll
      for (int u = 0; u < TURNS; u++) {
        const int piece = piece_of(u), k = from(piece);
        uint4 v = {0, 0, 0, 0};
        if (there(piece)) v = rows.piece(P::a_at(0) + k, k, u < HELD ? gains[u] : rows.gains(k), square[0]);
        chain_digits<C>(elements, counts, piece, there(piece), typename P::A{}, v);
      }
      if constexpr (end.value == Link::SLICES) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) square[0] += __shfl_xor_sync(0xffffffffu, square[0], step);
        at.squares = square[0];
      }
    } else {
      wait();
#pragma unroll 1
      for (int begin = 0; begin < TURNS; begin += 4) {
        uint4 v[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
          const int piece = piece_of(begin + u), k = from(piece);
          v[u] = {0, 0, 0, 0};
          if (there(piece)) v[u] = rows.piece(P::a_at(0) + k * P::A_K, k);
        }
#pragma unroll
        for (int u = 0; u < 4; u++) {
          const int piece = piece_of(begin + u);
          if (begin + u < TURNS) chain_digits<C>(elements, counts, piece, there(piece), typename P::A{}, v[u]);
        }
      }
    }
    __syncwarp();
  };
  bool rest = false;
  if (!at.staged) {
    at.staged = true;
    if constexpr (Link::EARLY > 0) {
      stage(Number<0>{}, Number<Link::EARLY>{});
      rest = true;
    } else {
      stage(Number<0>{}, Number<Link::SLICES>{});
    }
  }
#pragma unroll 1
  for (int panel = Link::first(); panel < Link::PANELS; panel += C::BLOCKS) {
    float acc[2][2] = {};  // of columns 4g + 2j + h
#pragma unroll 1
    for (int i = 0; i < Link::SLICES; i++) {
      if constexpr (Link::EARLY > 0) {
        if (rest && i == Link::EARLY) {
          stage(Number<Link::EARLY>{}, Number<Link::SLICES>{});
          rest = false;
        }
      }
      const int k = i * C::ROWS + warp * C::OWN;
      const u8 *const slot = shared + at.slot * C::SLOT, *const slice = slot + warp * U * 1024 + lane * 16;
      uint4 w[U][2];
      barrier_wait(C::full(at.slot), at.phase);
#pragma unroll
      for (int l = 0; l < 2 * U; l++) {
        uint4 &to = w[l / 2][l % 2] = {0, 0, 0, 0};
        if (P::K % C::ROWS == 0 || k + 32 * l < P::K) to = *reinterpret_cast<const uint4 *>(slice + l * 512);
      }
      float by[2][2] = {{1, 1}, {1, 1}};
      if constexpr (Link::GROUPED) {
        const float *const scales = reinterpret_cast<const float *>(slot + C::BYTES) + warp * C::OWN / Link::BLOCK * COLUMNS;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const bool there = (P::N % COLUMNS == 0 || panel * COLUMNS + 4 * g + j < P::N) && (P::K % C::ROWS == 0 || k < P::K);
          by[j / 2][j % 2] = there ? scales[4 * g + j] : 0;
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(C::empty(at.slot));
      at.next();
      float two[2] = {};  // lanes with t < 2 have the columns of digits
      if (t < 2) two[0] = counts[i][2 * t], two[1] = counts[i][2 * t + 1];
      int sums[2][4];
#pragma unroll
      for (int j = 0; j < 8; j++) sums[j / 4][j % 4] = CHAIN_BITS;
#pragma unroll
      for (int u = 0; u < U; u++) {
        uint4 x = {0, 0, 0, 0};
        if (g < 4) x = *reinterpret_cast<const uint4 *>(elements + i * (C::OWN * 4) + u * 256 + g * 64 + t * 16);
#pragma unroll
        for (int d = 0; d < 2; d++) {
          const uint4 v = w[u][d];
          const u32 word[2][2] = {{v.x, v.y}, {v.z, v.w}};
#pragma unroll
          for (int j = 0; j < 2; j++) {
            u32 a[4];
#pragma unroll
            for (int e = 0; e < 4; e++) a[e] = (e < 2 ? word[j][e] << 4 : word[j][e - 2]) & 0xf0f0f0f0u;
            const u32 b[2] = {d == 0 ? x.x : x.z, d == 0 ? x.y : x.w};
            mma_integers(sums[j], a, b);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float x = 0;
#pragma unroll
          for (int e = 0; e < 2; e++) x += (bits_to_float(u32(sums[j][2 * h + e])) - bits_to_float(CHAIN_BITS)) * two[e];
          acc[j][h] += by[j][h] * x;
        }
      }
    }
    at.await_room();
    float *const parts = at.parts();
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float x = acc[j / 2][j % 2] + __shfl_xor_sync(0xffffffffu, acc[j / 2][j % 2], 1);
      if (t == 0) parts[warp * COLUMNS + 4 * g + j] = x;
    }
    if (Rows::NORMED && lane == 0) parts[WARPS * COLUMNS + warp] = at.squares;
    at.announce();
    at.panels++;
  }
}

// Adds the sums of the panels, and runs the body. The panels are counted, if others wait for them, when a block has all of them, or
// all that are counted by themselves.
template <class P, class Body, class Link, class C, class Rows>
DEVICE void chain_finish(C &at, Body body, const Rows &rows, const float *scale, int *count) {
  const int lane = threadIdx.x % 32;
  int done = 0;  // panels that are not counted yet
#pragma unroll 1
  for (int panel = Link::first(); panel < Link::PANELS; panel += C::BLOCKS) {
    const int n = panel * C::COLUMNS + lane;
    const bool there = P::N % C::COLUMNS == 0 || n < P::N;
    ChainBody<Body> run = {body};
    if constexpr (Link::WAIT > 0) barrier_wait(C::go(Link::WAIT - 1), 0);
    if (there) run.read(n);
    at.await_sums();
    const float *const parts = at.parts();
    Vec<float, 1> sum = {{parts[lane]}};
#pragma unroll
    for (int i = 1; i < C::WARPS; i++) sum[0] += parts[i * C::COLUMNS + lane];
    float squares = 0;
    if constexpr (Rows::NORMED) {
#pragma unroll
      for (int i = 0; i < C::WARPS; i++) squares += parts[C::WARPS * C::COLUMNS + i];
    }
    at.give_room();
    if (there) {
      if constexpr (Link::SCALES) sum[0] *= scale[n * P::SCALE_N];
      if constexpr (Rows::NORMED) sum[0] *= rows.factor(squares);
      run.run(n, sum);
    }
    __syncwarp();
    at.panels++;
    done++;
    const int next = panel + C::BLOCKS;
    if (next >= Link::PANELS || panel < Link::COUNTED && next >= Link::COUNTED) {
      if (count != nullptr && lane == 0) count_arrive(count + (Link::COUNTED > 0 && panel >= Link::COUNTED), done);
      done = 0;
    }
  }
}
