struct Params {
  const float *a0;
  const float *a1;
  float *r1;
  float *columns0;
  float *r0;
};

KERNEL(rows, 128, 1) {
  SHARED;
  constexpr int W = 4;
  const int lane = int(threadIdx.x) % 128, place = int(threadIdx.x) / 128;
  constexpr int U = 2;
  Vec<float, W> y0[U];
#pragma unroll
  for (int u = 0; u < U; u++) y0[u] = splat<W>(float(0));
  for (int base = blockIdx.x * 1; base < 4096; base += 1056) {
    __syncthreads();
    const bool live = base + place < 4096;
    const int index = live ? base + place : 4095;
    const int c0 = index;
    Vec<float, W> k0[U];
    Vec<float, W> k1[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
      const int e = lane + u * 128;
      if (e < 192) {
        const int i0 = e * W;
        const auto v0 = load<float, W, 1, 16>(p.a0 + (c0 * 768 + i0));
        const auto v1 = load<float, W, 1, 16>(p.a1 + (c0 * 768 + i0));
        k0[u] = v0;
        k1[u] = v1;
      }
    }
    Vec<float, W> x4 = splat<W>(Sum::identity<float>());
#pragma unroll
    for (int u = 0; u < U; u++) {
      const int e = lane + u * 128;
      if (e < 192) {
        const auto v0 = k0[u];
        const auto v1 = k1[u];
        const auto v2 = op::mul(v0, v1);
        if (live) y0[u] = join<Sum>(y0[u], widen<W>(v2));
        const auto v3 = op::mul(v0, v1);
        x4 = join<Sum>(x4, widen<W>(v3));
      }
    }
    const auto r4_ = row_reduce<Sum, 128>(joined<Sum>(x4), reinterpret_cast<float *>(shared + 0));
    const auto r4 = op::div(r4_, 768.0f);
#pragma unroll
    for (int u = 0; u < U; u++) {
      const int e = lane + u * 128;
      if (e < 192) {
        const int i0 = e * W;
        const auto v0 = k0[u];
        const auto v1 = k1[u];
        const auto v5 = op::mul(v0, r4);
        const auto v6 = op::sub(v1, v5);
        if (live) store<1, 16>(p.r1 + (c0 * 768 + i0), widen<W>(v6));
      }
    }
  }
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = lane + u * 128;
    if (e < 192) store<1, 16>(p.columns0 + (i64(blockIdx.x) * 1 + place) * 768 + e * W, y0[u]);
  }
}

KERNEL(sums0, 256, 1) {
  SHARED;
  constexpr int W = 1;
  const int column = int(blockIdx.x) * 32 + int(threadIdx.x) % 32;
  const bool live = column < 768;
  const int index = live ? column : 0;
  const float sum = gather_parts<Sum, 32, 8, 1056>(p.columns0, 768, index, live, reinterpret_cast<float *>(shared));
  if (live && threadIdx.x < 32) p.r0[0 + index] = convert<float>(sum);
}

// rows: 1056 blocks of 128 threads, 256 bytes of shared memory
// sums0: 24 blocks of 256 threads, 2048 bytes of shared memory
