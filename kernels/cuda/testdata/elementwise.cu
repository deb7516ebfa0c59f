struct Params {
  const float *a0;
  const float *a1;
  float *r0;
  bf16 *r1;
};

// units computes U units of W elements, 256 apart, from unit first on, of those before end.
template <int W, int U> DEVICE void units(const Params &p, int first, int end) {
  Vec<float, W> k0[U];
  Vec<float, W> k1[U];
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = first + u * 256;
    if (e < end) {
      const int c1 = e % (4096 / W) * W;
      const int c1_ = e / (4096 / W);
      const int c0 = c1_;
      const auto v0 = load<float, W, 1, 16>(p.a0 + (c0 * 4096 + c1));
      const auto v1 = load<float, W, 1, 16>(p.a1 + (c1));
      k0[u] = v0;
      k1[u] = v1;
    }
  }
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = first + u * 256;
    if (e < end) {
      const int c1 = e % (4096 / W) * W;
      const int c1_ = e / (4096 / W);
      const int c0 = c1_;
      const auto v0 = k0[u];
      const auto v1 = k1[u];
      const auto v2 = op::add(v0, v1);
      const auto v3 = op::gelu_tanh(v2);  // "hidden"
      store<1, 16>(p.r0 + (c0 * 4096 + c1), widen<W>(v3));
      store<1, 16>(p.r1 + (c0 * 4096 + c1), widen<W>(v3));
    }
  }
}

KERNEL(elementwise, 256, 1) {
  units<8, 1>(p, int(blockIdx.x) * 256 + int(threadIdx.x), 1048576);
}

// elementwise: 4096 blocks of 256 threads, 0 bytes of shared memory
