struct Params {
  const float *a0;
  const float *a1;
  float *r1;
  float *columns0;
  float *r0;
};

KERNEL(rows, 128, 4) {
  SHARED;
  constexpr int W = 4;
  const int lane = int(threadIdx.x) % 32, place = int(threadIdx.x) / 32;
  constexpr int U = 6;
  Vec<float, W> y0[U];
#pragma unroll
  for (int u = 0; u < U; u++) y0[u] = splat<W>(float(0));
  for (int base = blockIdx.x * 4; base < 4096; base += 2112) {
    const int turn = this_turn(lane);
    const bool live = base + place < 4096;
    const int index = live ? base + place : 4095;
    const int c0 = index;
    Vec<float, W> k0[U];
    Vec<float, W> k1[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
      const int e = turn + u * 32;
      {
        const int i0 = e * W;
        const auto v0 = load<float, W, 1, 16>(fixed(p.a0 + (c0 * 768 + i0)));
        const auto v1 = load<float, W, 1, 16>(fixed(p.a1 + (c0 * 768 + i0)));
        k0[u] = v0;
        k1[u] = v1;
      }
    }
    Vec<float, W> x4 = splat<W>(Sum::identity<float>());
#pragma unroll
    for (int u = 0; u < U; u++) {
      const int e = turn + u * 32;
      {
        const auto v0 = k0[u];
        const auto v1 = k1[u];
        const auto v2 = op::mul(v0, v1);
        if (live) y0[u] = join<Sum>(y0[u], widen<W>(v2));
        const auto v3 = op::mul(v0, v1);
        x4 = join<Sum>(x4, widen<W>(v3));
      }
    }
    const auto r4_ = row_reduce<Sum, 32>(joined<Sum>(x4), static_cast<float *>(nullptr));
    const auto r4 = op::div(r4_, 768.0f);
#pragma unroll
    for (int u = 0; u < U; u++) {
      const int e = turn + u * 32;
      {
        const int i0 = e * W;
        const auto v0 = k0[u];
        const auto v1 = k1[u];
        const auto v5 = op::mul(v0, r4);
        const auto v6 = op::sub(v1, v5);
        if (live) store<1, 16>(p.r1 + (c0 * 768 + i0), widen<W>(v6));
      }
    }
  }
  store_columns<4, 32, 768, 128>(p.columns0 + i64(blockIdx.x) * 768, y0, lane, place, reinterpret_cast<float *>(shared));
}

KERNEL(sums, 1024, 1) {
  SHARED;
  constexpr int W = 1;
  const int column = int(blockIdx.x % 24) * 32 + int(threadIdx.x) % 32;
  const bool live = column < 768;
  const int index = live ? column : 0;
  {
    const float sum = gather_parts<Sum, 32, 32, 528>(p.columns0, 768, index, live, reinterpret_cast<float *>(shared));
    if (live && threadIdx.x < 32) p.r0[0 + index] = convert<float>(sum);
  }
}

// rows: 528 blocks of 128 threads, 12288 bytes of shared memory
// sums: 24 blocks of 1024 threads, 8192 bytes of shared memory
