struct Params {
  const float *a0;
  const float *a1;
  float *r0;
};

KERNEL(elementwise, 256, 1) {
  SHARED;
  float *const tile1 = reinterpret_cast<float *>(shared + 0);
  constexpr int U = 4;
  const int x = int(threadIdx.x) % 32;
  const int tile = blockIdx.x;
  const int col0 = tile % 7 * 32, row0 = tile / 7 % 4 * 32;
  const int outer = tile / 28;
  const int c0 = outer;
#pragma unroll
  for (int u = 0; u < 4; u++) {
    const int y = int(threadIdx.x) / 32 + u * 8;
    const int c1 = row0 + x, c2 = col0 + y;
    if (c1 < 100 && c2 < 200) {
      tile1[y * 33 + x] = *(p.a1 + (c0 * 20000 + c1 + c2 * 100));
    }
  }
  __syncthreads();
  float k0[U];
  float k1[U];
#pragma unroll
  for (int u = 0; u < 4; u++) {
    const int y = int(threadIdx.x) / 32 + u * 8;
    const int c2 = col0 + x, c1 = row0 + y;
    if (c1 < 100 && c2 < 200) {
      const auto v0 = convert<float>(*(p.a0 + (c0 * 20000 + c1 * 200 + c2)));
      const auto v1 = convert<float>(tile1[x * 33 + y]);
      k0[u] = v0;
      k1[u] = v1;
    }
  }
#pragma unroll
  for (int u = 0; u < 4; u++) {
    const int y = int(threadIdx.x) / 32 + u * 8;
    const int c2 = col0 + x, c1 = row0 + y;
    if (c1 < 100 && c2 < 200) {
      const auto v0 = k0[u];
      const auto v1 = k1[u];
      const auto v2 = op::add(v0, v1);
      *(p.r0 + (c0 * 20000 + c1 * 200 + c2)) = convert<float>(v2);
    }
  }
}

// elementwise: 84 blocks of 256 threads, 8448 bytes of shared memory
