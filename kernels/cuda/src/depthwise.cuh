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

// depthwise_filters sums x·dy over a chunk of CHUNK positions for each tap and channel: partial [chunks][KH][KW][CHANNELS]. A
// block of eight rows of 32 threads takes W channels and TAPS taps, number blockIdx.z of them, in each thread; the sums of
// the rows are added in order. Positions of dy are D_P, its channels D_C elements apart.
template <class I, int W, int KW, int TAPS, int CHANNELS, int CHUNK, int ALIGN_X, int ALIGN_Y, i64 D_P, i64 D_C, class S, class T>
DEVICE void depthwise_filters(S *partial, const T *x, const T *dy) {
  __shared__ S turn[8][32 * W];
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32, c = (blockIdx.x * 32 + lane) * W;
  const int tap = blockIdx.z * TAPS, ky = tap / KW, kx = tap % KW;
  Vec<S, W> sum[TAPS];
#pragma unroll
  for (int t = 0; t < TAPS; t++) sum[t] = splat<W>(S(0));
  if (c < CHANNELS) {
    const int begin = blockIdx.y * CHUNK, end = least(begin + CHUNK, I::ROWS);
#pragma unroll 2
    for (int p = begin + part; p < end; p += 8) {
      const PatchRow<I> at(p);
      if (u32(at.y + ky * I::DY) >= u32(I::H)) continue;
      const Vec<S, W> g = load<S, W, int(D_C), ALIGN_Y>(dy + p * D_P + c * D_C);
#pragma unroll
      for (int t = 0; t < TAPS; t++) {
        if (u32(at.x + (kx + t) * I::DX) >= u32(I::WIDTH)) continue;
        const Vec<S, W> v = load<S, W, int(I::S_C), ALIGN_X>(
            x + at.at + ky * (I::DY * I::S_Y) + (kx + t) * (I::DX * I::S_X) + c * I::S_C);
#pragma unroll
        for (int i = 0; i < W; i++) sum[t][i] += v[i] * g[i];
      }
    }
  }
#pragma unroll
  for (int t = 0; t < TAPS; t++) {
#pragma unroll
    for (int i = 0; i < W; i++) turn[part][lane * W + i] = sum[t][i];
    __syncthreads();
    for (int i = threadIdx.x; i < 32 * W; i += 256) {
      const int channel = blockIdx.x * 32 * W + i;
      if (channel >= CHANNELS) break;
      S total = 0;
#pragma unroll
      for (int r = 0; r < 8; r++) total += turn[r][i];
      partial[((i64(blockIdx.y) * gridDim.z + blockIdx.z) * TAPS + t) * CHANNELS + channel] = total;
    }
    __syncthreads();
  }
}
