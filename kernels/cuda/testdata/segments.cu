namespace table_segments0 {
struct Row {
  const float *a1;
  const float *a2;
  const float *a0;
  float *r0;
  i64 n;      // elements
  i64 first;  // block
};
struct Params {
  Row rows[3];
};
// units computes U units of W elements, 256 apart, from unit first on, of those before end.
template <int W, int U> DEVICE void units(const Row &s, int first, int end) {
  Vec<float, W> k0[U];
  Vec<float, W> k1[U];
  const auto v2 = convert<float>(*(s.a0 + (0)));
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = first + u * 256;
    if (e < end) {
      const int c0 = e * W;
      const auto v0 = load<float, W, 1, 16>(s.a1 + (c0));
      const auto v1 = load<float, W, 1, 16>(s.a2 + (c0));
      k0[u] = v0;
      k1[u] = v1;
    }
  }
#pragma unroll
  for (int u = 0; u < U; u++) {
    const int e = first + u * 256;
    if (e < end) {
      const int c0 = e * W;
      const auto v0 = k0[u];
      const auto v1 = k1[u];
      const auto v3 = op::mul(v1, v2);
      const auto v4 = op::sub(v0, v3);
      store<1, 16>(s.r0 + (c0), widen<W>(v4));
    }
  }
}

KERNEL(segments0, 256, 1) {
  int i = 0, last = 2;
  while (i < last) {  // the last row whose first block is not after this one
    const int middle = (i + last + 1) / 2;
    if (p.rows[middle].first <= blockIdx.x) i = middle;
    else last = middle - 1;
  }
  const Row &s = p.rows[i];
  const int first = int(blockIdx.x - s.first) * 256 + int(threadIdx.x);
  units<4, 1>(s, first, int(s.n / 4));
  if (first < 4) units<1, 1>(s, int(s.n - s.n % 4) + first, int(s.n));
}
}  // namespace


// segments0: 3 blocks of 256 threads, 0 bytes of shared memory
