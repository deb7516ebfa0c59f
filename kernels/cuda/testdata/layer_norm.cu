struct Params {
  const float *a0;
  const float *a1;
  const float *a2;
  const float *a3;
  float *r0;
};

KERNEL(rows, 512, 1) {
  SHARED;
  constexpr int W = 4;
  const int lane = int(threadIdx.x) % 512, place = int(threadIdx.x) / 512;
  constexpr int U = 2;
  const int base = int(blockIdx.x) * 1;
  const bool live = true;
  const int index = base + place;
  const int c0 = index;
  Vec<float, W> k0[U];
  Vec<float, W> k1[U];
  Vec<float, W> k3[U];
  Vec<float, W> k5[U];
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = lane + u * 512;
    {
      const int i0 = e * W;
      const auto v0 = load<float, W, 1, 16>(fixed(p.a0 + (c0 * 4096 + i0)));
      const auto v1 = load<float, W, 1, 16>(fixed(p.a1 + (c0 * 4096 + i0)));
      k0[u] = v0;
      k1[u] = v1;
    }
  }
  Vec<float, W> x4 = splat<W>(Sum::identity<float>());
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = lane + u * 512;
    {
      const auto v0 = k0[u];
      const auto v1 = k1[u];
      const auto v2 = op::add(v0, v1);
      const auto v3 = op::gelu_tanh(v2);
      x4 = join<Sum>(x4, widen<W>(v3));
      k3[u] = v3;
    }
  }
  const auto r4_ = row_reduce<Sum, 512>(joined<Sum>(x4), reinterpret_cast<float *>(shared + 0));
  const auto r4 = op::div(r4_, 4096.0f);
  if (threadIdx.x == 0 && index < 16120) row_prefetch(p.a0 + (i64(index + 264) * 4096 + 0), 16384);
  if (threadIdx.x == 0 && index < 16120) row_prefetch(p.a1 + (i64(index + 264) * 4096 + 0), 16384);
  Vec<float, W> x7 = splat<W>(Sum::identity<float>());
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = lane + u * 512;
    {
      const auto v3 = k3[u];
      const auto v5 = op::sub(v3, r4);
      const auto v6 = op::square(v5);
      x7 = join<Sum>(x7, widen<W>(v6));
      k5[u] = v5;
    }
  }
  const auto r7_ = row_reduce<Sum, 512>(joined<Sum>(x7), reinterpret_cast<float *>(shared + 256));
  const auto r7 = op::div(r7_, 4096.0f);
  const auto v8 = op::add(r7, 9.99999975e-06f);
  const auto v9 = op::rsqrt(v8);
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = lane + u * 512;
    {
      const int i0 = e * W;
      const auto v5 = k5[u];
      const auto v10 = op::mul(v5, v9);
      const auto v11 = load<float, W, 1, 16>(fixed(p.a2 + (i0)));
      const auto v12 = op::mul(v10, v11);
      const auto v13 = load<float, W, 1, 16>(fixed(p.a3 + (i0)));
      const auto v14 = op::add(v12, v13);
      if (live) store<1, 16, true>(p.r0 + (c0 * 4096 + i0), widen<W>(v14));
    }
  }
}

// rows: 16384 blocks of 512 threads, 512 bytes of shared memory
