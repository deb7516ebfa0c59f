// Convolutions that do not sum over channels; see patches.cuh for P::Image, whose channels are those of the result.

// depthwise computes a strip of positions beside each other, W channels of each, in a thread, and passes them to the body.
// Filters have KH×KW taps, S_KY and S_KX elements apart. A column of the image is read once for all positions that it is
// under. Addresses of images and filters are multiples of ALIGN_X and ALIGN_W bytes.
template <class P, int KH, int KW, int STRIP, i64 S_KY, i64 S_KX, int ALIGN_X, int ALIGN_W, class Body>
DEVICE void depthwise(const Body &body, const typename P::A *x, const typename P::B *w) {
  typedef typename P::Image I;
  typedef typename P::Acc T;
  constexpr int W = P::W, GROUPS = P::N / W, STRIPS = (I::OW + STRIP - 1) / STRIP;
  constexpr int FAR = I::DX < 0 ? -I::DX : I::DX, SPAN = (STRIP - 1) * I::SX + (KW - 1) * FAR + 1;
  i64 e = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  const int c = int(e % GROUPS) * W;
  e /= GROUPS;
  const int ox = int(e % STRIPS) * STRIP;
  e /= STRIPS;
  if (e >= P::M / I::OW) return;
  const int oy = int(e % I::OH), first = ox * I::SX + I::X0 - (I::DX < 0 ? (KW - 1) * FAR : 0);
  const typename P::A *const image = x + e / I::OH * I::S_N + c * I::S_C;
  Vec<T, W> acc[STRIP];
#pragma unroll
  for (int s = 0; s < STRIP; s++) acc[s] = splat<W>(T(0));
#pragma unroll 1
  for (int ky = 0; ky < KH; ky++) {
    const int row = oy * I::SY + I::Y0 + ky * I::DY;
    if (u32(row) >= u32(I::H)) continue;
    Vec<T, W> taps[KW];
#pragma unroll
    for (int kx = 0; kx < KW; kx++) {
      taps[kx] = load<T, W, int(P::B_N), ALIGN_W>(w + ky * S_KY + kx * S_KX + c * P::B_N);
    }
#pragma unroll
    for (int j = 0; j < SPAN; j++) {
      bool used = false;
#pragma unroll
      for (int kx = 0; kx < KW; kx++) {
        const int to = j - (I::DX < 0 ? KW - 1 - kx : kx) * FAR;
        used = used || to >= 0 && to % I::SX == 0 && to / I::SX < STRIP;
      }
      const int col = first + j;
      if (!used || u32(col) >= u32(I::WIDTH)) continue;
      const Vec<T, W> v = load<T, W, int(I::S_C), ALIGN_X>(image + row * I::S_Y + col * I::S_X);
#pragma unroll
      for (int kx = 0; kx < KW; kx++) {
        const int to = j - (I::DX < 0 ? KW - 1 - kx : kx) * FAR;
        if (to < 0 || to % I::SX != 0 || to / I::SX >= STRIP) continue;
#pragma unroll
        for (int i = 0; i < W; i++) acc[to / I::SX][i] += v[i] * taps[kx][i];
      }
    }
  }
#pragma unroll
  for (int s = 0; s < STRIP; s++) {
    if (ox + s < I::OW) body(0, int(e) * I::OW + ox + s, c, acc[s], (Vec<typename Body::Sum, W> *)nullptr);
  }
}

// store_taps adds the sums of the parts of a block in order, for ROWS rows of TAPS taps from tap (ky, kx) on, and stores them.
template <class I, int W, int LANES, int ROWS, int TAPS, int CHANNELS, class S>
DEVICE void store_taps(S *partial, const Vec<S, W> (&sum)[ROWS * TAPS], int ky, int kx, int part, int lane,
                       S (&turn)[256 / LANES][LANES * W]) {
  constexpr int PARTS = 256 / LANES;
#pragma unroll
  for (int t = 0; t < ROWS * TAPS; t++) {
#pragma unroll
    for (int i = 0; i < W; i++) turn[part][lane * W + i] = sum[t][i];
    __syncthreads();
    for (int i = threadIdx.x; i < LANES * W; i += 256) {
      const int channel = blockIdx.x * LANES * W + i, tap = (ky + t / TAPS) * I::KW + kx + t % TAPS;
      if (channel >= CHANNELS) break;
      S total = 0;
#pragma unroll
      for (int r = 0; r < PARTS; r++) total += turn[r][i];
      partial[(i64(blockIdx.y) * I::KH * I::KW + tap) * CHANNELS + channel] = total;
    }
    __syncthreads();
  }
}

// depthwise_filters sums x·dy over a chunk of CHUNK strips of STRIP positions beside each other, for each tap and channel:
// partial [chunks][KH·KW][CHANNELS]. Threads take W channels each, LANES beside each other, and the blocks along z ROWS rows of
// TAPS taps. A column of the image is read once for all positions that it is under. The sums of the 256/LANES parts of a block
// are added in order. Positions of dy are D_P, its channels D_C elements apart.
template <class I, int W, int LANES, int ROWS, int TAPS, int STRIP, int CHANNELS, int CHUNK, int ALIGN_X, int ALIGN_Y, i64 D_P,
          i64 D_C, class S, class T>
DEVICE void depthwise_filters(S *partial, const T *x, const T *dy) {
  constexpr int PARTS = 256 / LANES, STRIPS = (I::OW + STRIP - 1) / STRIP, ALL = I::ROWS / I::OW * STRIPS;
  constexpr int SPAN = (STRIP - 1) * I::SX + (TAPS - 1) * I::DX + 1, ACROSS = I::KW / TAPS;
  __shared__ S turn[PARTS][LANES * W];
  const int lane = threadIdx.x % LANES, part = threadIdx.x / LANES, c = (blockIdx.x * LANES + lane) * W;
  const int ky = blockIdx.z / ACROSS * ROWS, kx = blockIdx.z % ACROSS * TAPS;
  Vec<S, W> sum[ROWS * TAPS];
#pragma unroll
  for (int t = 0; t < ROWS * TAPS; t++) sum[t] = splat<W>(S(0));
  if (c < CHANNELS) {
    const int begin = blockIdx.y * CHUNK, end = least(begin + CHUNK, ALL);
#pragma unroll 1
    for (int e = begin + part; e < end; e += PARTS) {
      const int ox = e % STRIPS * STRIP, q = e / STRIPS, oy = q % I::OH, first = ox * I::SX + I::X0 + kx * I::DX;
      const T *const image = x + q / I::OH * I::S_N + c * I::S_C;
      Vec<S, W> g[STRIP];
#pragma unroll
      for (int s = 0; s < STRIP; s++) {
        if (I::OW % STRIP == 0 || ox + s < I::OW)
          g[s] = load<S, W, int(D_C), ALIGN_Y>(dy + (i64(q) * I::OW + ox + s) * D_P + c * D_C);
      }
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const int row = oy * I::SY + I::Y0 + (ky + r) * I::DY;
        if (u32(row) >= u32(I::H)) continue;
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
          bool used = false;
#pragma unroll
          for (int t = 0; t < TAPS; t++) {
            const int to = j - t * I::DX;
            used = used || to >= 0 && to % I::SX == 0 && to / I::SX < STRIP;
          }
          const int col = first + j;
          if (!used || u32(col) >= u32(I::WIDTH)) continue;
          const Vec<S, W> v = load<S, W, int(I::S_C), ALIGN_X>(image + row * I::S_Y + col * I::S_X);
#pragma unroll
          for (int t = 0; t < TAPS; t++) {
            const int to = j - t * I::DX;
            if (to < 0 || to % I::SX != 0 || to / I::SX >= STRIP) continue;
            if (I::OW % STRIP != 0 && ox + to / I::SX >= I::OW) continue;
#pragma unroll
            for (int i = 0; i < W; i++) sum[r * TAPS + t][i] += v[i] * g[to / I::SX][i];
          }
        }
      }
    }
  }
  store_taps<I, W, LANES, ROWS, TAPS, CHANNELS>(partial, sum, ky, kx, part, lane, turn);
}

// depthwise_filters_down computes the same for windows whose taps and positions are neighbours along columns. A thread goes down
// SEGMENT rows of a strip, keeps the last KH rows of dy, and reads each pixel of the image and of dy once; a block has CHUNK such
// segments. Channels are neighbours. Rows come ahead of time to a ring of STAGES in shared memory, where each thread has what it
// reads itself.
template <class I, int W, int LANES, int STRIP, int CHANNELS, int SEGMENT, int CHUNK, int STAGES, i64 D_P, class S, class T>
DEVICE void depthwise_filters_down(S *partial, const T *x, const T *dy, T *ring) {
  static_assert(I::SY == 1 && I::DY == 1, "rows follow each other");
  constexpr int PARTS = 256 / LANES, STRIPS = (I::OW + STRIP - 1) / STRIP, SEGMENTS = (I::OH + SEGMENT - 1) / SEGMENT;
  constexpr int ALL = I::ROWS / I::OW / I::OH * STRIPS * SEGMENTS, SPAN = (STRIP - 1) * I::SX + (I::KW - 1) * I::DX + 1, KH = I::KH;
  constexpr int BYTES = W * int(sizeof(T));
  __shared__ S turn[PARTS][LANES * W];
  const int lane = threadIdx.x % LANES, part = threadIdx.x / LANES, c = (blockIdx.x * LANES + lane) * W;
  Vec<S, W> sum[KH * I::KW];
#pragma unroll
  for (int t = 0; t < KH * I::KW; t++) sum[t] = splat<W>(S(0));
  if (c < CHANNELS) {
    const int begin = blockIdx.y * CHUNK, end = least(begin + CHUNK, ALL);
#pragma unroll 1
    for (int e = begin + part; e < end; e += PARTS) {
      const int ox = e % STRIPS * STRIP, q = e / STRIPS, oy = q % SEGMENTS * SEGMENT, n = q / SEGMENTS;
      const int rows = least(SEGMENT, I::OH - oy), top = oy + I::Y0, first = ox * I::SX + I::X0;
      const T *const image = x + n * I::S_N + c, *const from = dy + ((i64(n) * I::OH + oy) * I::OW + ox) * D_P + c;
      // Of row i, whether column j of the image exists, and position s of dy.
      const auto pixel = [&](int i, int j) { return u32(top + i) < u32(I::H) && u32(first + j) < u32(I::WIDTH); };
      const auto position = [&](int i, int s) { return u32(i) < u32(rows) && (I::OW % STRIP == 0 || ox + s < I::OW); };
      const auto slot = [&](int i, int k) { return ring + ((i % STAGES * (SPAN + STRIP) + k) * 256 + int(threadIdx.x)) * W; };
      const auto fetch = [&](int i) {
        if (i < rows + KH - 1) {
#pragma unroll
          for (int j = 0; j < SPAN; j++) {
            if (pixel(i, j)) copy_async<BYTES>(slot(i, j), image + (top + i) * I::S_Y + (first + j) * I::S_X, true);
          }
#pragma unroll
          for (int s = 0; s < STRIP; s++) {
            if (position(i, s)) copy_async<BYTES>(slot(i, SPAN + s), from + (i64(i) * I::OW + s) * D_P, true);
          }
        }
        copy_commit();
      };
      for (int i = 0; i < STAGES - 1; i++) fetch(i);
      Vec<S, W> g[KH][STRIP];
#pragma unroll KH
      for (int i = 0; i < rows + KH - 1; i++) {
        fetch(i + STAGES - 1);
        copy_wait<STAGES - 1>();
#pragma unroll
        for (int s = 0; s < STRIP; s++) {
#pragma unroll
          for (int ky = KH - 1; ky > 0; ky--) g[ky][s] = g[ky - 1][s];
          if (position(i, s)) g[0][s] = load<S, W, 1, BYTES>(slot(i, SPAN + s));
        }
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
          if (!pixel(i, j)) continue;
          const Vec<S, W> v = load<S, W, 1, BYTES>(slot(i, j));
#pragma unroll
          for (int t = 0; t < I::KW; t++) {
            const int to = j - t * I::DX;
            if (to < 0 || to % I::SX != 0 || to / I::SX >= STRIP) continue;
#pragma unroll
            for (int ky = 0; ky < KH; ky++) {
              if (!position(i - ky, to / I::SX)) continue;
#pragma unroll
              for (int w = 0; w < W; w++) sum[ky * I::KW + t][w] += v[w] * g[ky][to / I::SX][w];
            }
          }
        }
      }
    }
  }
  store_taps<I, W, LANES, KH, I::KW, CHANNELS>(partial, sum, 0, 0, part, lane, turn);
}
