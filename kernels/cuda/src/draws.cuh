// Random numbers, in the arithmetic of graph.RandomAt, and the rotations of graph.RoPE.

// fraction maps a word to [0,1) by its 24 high bits.
DEVICE double fraction(u32 w) { return double(w >> 8) * (1.0 / 16777216.0); }

DEVICE Vec<double, 4> uniform_block(uint4 w, double a, double b) {
  const u32 words[4] = {w.x, w.y, w.z, w.w};
  Vec<double, 4> r;
#pragma unroll
  for (int i = 0; i < 4; i++) r[i] = a + (b - a) * fraction(words[i]);
  return r;
}

// normal_block is two pairs by the transform of Box and Muller.
DEVICE Vec<double, 4> normal_block(uint4 w, double a, double b) {
  const u32 words[4] = {w.x, w.y, w.z, w.w};
  Vec<double, 4> r;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const double radius = op::sqrt(-2.0 * op::log(fraction(words[i]) + 1.0 / 16777216.0));
    const double angle = 6.283185307179586 * fraction(words[i + 1]);
    r[i] = a + b * radius * op::cos(angle);
    r[i + 1] = a + b * radius * op::sin(angle);
  }
  return r;
}

// bernoulli_block is 1 where a word is below the threshold, or always.
DEVICE Vec<double, 4> bernoulli_block(uint4 w, double, double, u32 threshold, bool always) {
  const u32 words[4] = {w.x, w.y, w.z, w.w};
  Vec<double, 4> r;
#pragma unroll
  for (int i = 0; i < 4; i++) r[i] = always || words[i] < threshold ? 1.0 : 0.0;
  return r;
}

// rope_angle gives the cosine and sine of pair j at a position. Divisors are stride apart, or null for ones.
template <class T>
DEVICE void rope_angle(T *to, double frequency, int j, i64 position, bool inverse, const double *divisors, int stride) {
  if (divisors) frequency /= divisors[j * stride];
  const double angle = double(position) * frequency;
  const double s = op::sin(angle);
  to[0] = T(op::cos(angle));
  to[1] = T(inverse ? -s : s);
}

// rope_turned is the pair at x and second elements after it, rotated.
template <class T, class L> DEVICE Vec<T, 2> rope_turned(const T *x, i64 second, const L *angle) {
  const L u = convert<L>(x[0]), v = convert<L>(x[second]), c = angle[0], s = angle[1];
  return {{convert<T>(u * c - v * s), convert<T>(v * c + u * s)}};
}

// rope_turn writes that pair to y and `to` elements after it.
template <class T, class L> DEVICE void rope_turn(const T *x, i64 second, T *y, i64 to, const L *angle) {
  const Vec<T, 2> pair = rope_turned(x, second, angle);
  y[0] = pair[0];
  y[to] = pair[1];
}
