struct Params {
  const float *a0;
  float *r0;
};

KERNEL(rows, 1024, 1) {
  SHARED;
  constexpr int W = 1;
  const int lane = int(threadIdx.x) % 1024, place = int(threadIdx.x) / 1024;
  const int base = int(blockIdx.x) * 1;
  const bool live = true;
  const int index = base + place;
  const int c0 = index;
  Vec<float, W> x1 = splat<W>(MaxOf::identity<float>());
#pragma unroll 8
  for (int e = lane, end = 50257; e < end; e += 1024) {
      const int i0 = e * W;
      const auto v0 = load<float, W, 1, 4>(p.a0 + (c0 * 50257 + i0));
      x1 = join<MaxOf>(x1, widen<W>(v0));
  }
  const auto r1_ = row_reduce<MaxOf, 1024>(joined<MaxOf>(x1), reinterpret_cast<float *>(shared + 0));
  const auto r1 = r1_;
  const auto v3 = op::min(r1, 3.40282347e+38f);
  const auto v4 = op::max(v3, -3.40282347e+38f);
  Vec<float, W> x7 = splat<W>(Sum::identity<float>());
#pragma unroll 8
  for (int e = lane, end = 50257; e < end; e += 1024) {
      const int i0 = e * W;
      const auto v2 = load<float, W, 1, 4>(p.a0 + (c0 * 50257 + i0));
      const auto v5 = op::sub(v2, v4);
      const auto v6 = op::exp(v5);
      x7 = join<Sum>(x7, widen<W>(v6));
  }
  const auto r7_ = row_reduce<Sum, 1024>(joined<Sum>(x7), reinterpret_cast<float *>(shared + 256));
  const auto r7 = r7_;
  const auto v11 = op::eq(r7, 0.0f);
  const auto v12 = op::select(v11, 1.0f, r7);
#pragma unroll 8
  for (int e = lane, end = 50257; e < end; e += 1024) {
      const int i0 = e * W;
      const auto v8 = load<float, W, 1, 4>(p.a0 + (c0 * 50257 + i0));
      const auto v9 = op::sub(v8, v4);
      const auto v10 = op::exp(v9);
      const auto v13 = op::div(v10, v12);
      if (live) store<1, 4>(p.r0 + (c0 * 50257 + i0), widen<W>(v13));
  }
}

// rows: 512 blocks of 1024 threads, 512 bytes of shared memory
