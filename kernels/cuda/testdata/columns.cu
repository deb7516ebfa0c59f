struct Params {
  const float *a0;
  float *partial0;
  float *r0;
};

KERNEL(rows, 256, 1) {
  SHARED;
  constexpr int W = 4;
  const int lane = int(threadIdx.x) / 32, place = int(threadIdx.x) % 32;
  const int base = int(blockIdx.x % 32) * 32;
  const int part = int(blockIdx.x / 32);
  const bool live = true;
  const int index = base + place;
  const bool writes = live && lane == 0;
  const int c0 = index * W;
  Vec<float, W> x2 = splat<W>(Sum::identity<float>());
#pragma unroll 8
  for (int e = int(part) * 964 + lane, end = least(16384, (part + 1) * 964); e < end; e += 8) {
      const int i0 = e;
      const auto v0 = load<float, W, 1, 16>(p.a0 + (i0 * 4096 + c0));
      const auto v1 = op::square(v0);
      x2 = join<Sum>(x2, widen<W>(v1));
  }
  const auto r2_ = column_reduce<Sum, 32, 8>(x2, reinterpret_cast<Vec<float, W> *>(shared));
  if (writes) store<1, 16>(p.partial0 + i64(part) * 4096 + index * W, r2_);
}

KERNEL(finish, 256, 1) {
  SHARED;
  constexpr int W = 1;
  const int column = int(blockIdx.x) * 32 + int(threadIdx.x) % 32;
  const bool live = column < 4096;
  const int index = live ? column : 0;
  const int c0 = index;
  const float r0_ = gather_parts<Sum, 32, 8, 17>(p.partial0, 4096, index, live, reinterpret_cast<float *>(shared));
  if (live && threadIdx.x < 32) {
    const auto v0 = op::sqrt(op::div(r0_, 16384.0f));
    if (live) *(p.r0 + (c0)) = convert<float>(v0);
  }
}

// rows: 544 blocks of 256 threads, 8192 bytes of shared memory
// finish: 128 blocks of 256 threads, 2048 bytes of shared memory
