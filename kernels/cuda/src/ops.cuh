// The functions of graph.UnaryFn and graph.BinaryFn, of f32, f64 and integers, and over Vec. Their meaning is that of
// package graph; the formulas here are accurate in f32.

namespace op {


template <class T> DEVICE T neg(T x) { return T(-Wide<T>(x)); }
template <class T> DEVICE T abs(T x) { return x < T(0) ? neg(x) : x == T(0) ? T(0) : x; }
template <class T> DEVICE T sign(T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x; }
DEVICE float ceil(float x) { return ceilf(x); }
DEVICE double ceil(double x) { return ::ceil(x); }
DEVICE float floor(float x) { return floorf(x); }
DEVICE double floor(double x) { return ::floor(x); }
DEVICE float round(float x) { return rintf(x); }
DEVICE double round(double x) { return rint(x); }
DEVICE float exp(float x) { return expf(x); }
DEVICE double exp(double x) { return ::exp(x); }
DEVICE float expm1(float x) { return expm1f(x); }
DEVICE double expm1(double x) { return ::expm1(x); }
DEVICE float log(float x) { return logf(x); }
DEVICE double log(double x) { return ::log(x); }
DEVICE float log1p(float x) { return log1pf(x); }
DEVICE double log1p(double x) { return ::log1p(x); }
DEVICE float log2(float x) { return log2f(x); }
DEVICE double log2(double x) { return ::log2(x); }
DEVICE float sqrt(float x) { return sqrtf(x); }
DEVICE double sqrt(double x) { return ::sqrt(x); }
DEVICE float rsqrt(float x) { return 1.0f / sqrtf(x); }
DEVICE double rsqrt(double x) { return 1.0 / ::sqrt(x); }
template <class T> DEVICE T recip(T x) { return T(1) / x; }
template <class T> DEVICE T square(T x) { return T(Wide<T>(x) * Wide<T>(x)); }
template <class T> DEVICE T cube(T x) { return T(Wide<T>(x) * Wide<T>(x) * Wide<T>(x)); }
DEVICE float sin(float x) { return sinf(x); }
DEVICE double sin(double x) { return ::sin(x); }
DEVICE float cos(float x) { return cosf(x); }
DEVICE double cos(double x) { return ::cos(x); }
DEVICE float tan(float x) { return tanf(x); }
DEVICE double tan(double x) { return ::tan(x); }
DEVICE float asin(float x) { return asinf(x); }
DEVICE double asin(double x) { return ::asin(x); }
DEVICE float acos(float x) { return acosf(x); }
DEVICE double acos(double x) { return ::acos(x); }
DEVICE float atan(float x) { return atanf(x); }
DEVICE double atan(double x) { return ::atan(x); }
DEVICE float sinh(float x) { return sinhf(x); }
DEVICE double sinh(double x) { return ::sinh(x); }
DEVICE float cosh(float x) { return coshf(x); }
DEVICE double cosh(double x) { return ::cosh(x); }
DEVICE float asinh(float x) { return asinhf(x); }
DEVICE double asinh(double x) { return ::asinh(x); }
DEVICE float acosh(float x) { return acoshf(x); }
DEVICE double acosh(double x) { return ::acosh(x); }
DEVICE float atanh(float x) { return atanhf(x); }
DEVICE double atanh(double x) { return ::atanh(x); }
DEVICE float tanh(float x) { return tanhf(x); }
DEVICE double tanh(double x) { return ::tanh(x); }
DEVICE float erf(float x) { return erff(x); }
DEVICE double erf(double x) { return ::erf(x); }
DEVICE float erfc(float x) { return erfcf(x); }
DEVICE double erfc(double x) { return ::erfc(x); }
DEVICE float pow(float x, float y) { return powf(x, y); }
DEVICE double pow(double x, double y) { return ::pow(x, y); }
template <class T> DEVICE T sigmoid(T x) {
  const T e = exp(-abs(x));
  return (x >= T(0) ? T(1) : e) / (T(1) + e);
}
#ifdef FUSEC_FAST
// For values that were or will be rounded to 16 bits or tf32: a relative error of 2⁻²⁰ with a third of the
// instructions.
DEVICE float sigmoid(float x) { return recip_approx(1.0f + exp2_approx(-1.4426950408889634f * x)); }
#endif
template <class T> DEVICE T softplus(T x) { return x != x ? x : (x > T(0) ? x : T(0)) + log1p(exp(-abs(x))); }
template <class T> DEVICE T relu(T x) { return x < T(0) ? T(0) : x; }
template <class T> DEVICE T leaky_relu(T x, T alpha) { return x < T(0) ? (alpha == T(0) ? T(0) : alpha * x) : x; }
template <class T> DEVICE T elu(T x, T alpha) { return x < T(0) ? alpha * expm1(x) : x; }
// 0.5·(1 + tanh z) is sigmoid(2z), which does not cancel where z is far below 0. −Inf gives 0.
template <class T> DEVICE T gelu_tanh(T x) {
  const T g = x * sigmoid(T(1.5957691216057308) * (x + T(0.044715) * x * x * x));
  return g != g && x < T(0) ? T(0) : g;
}
#ifdef FUSEC_FAST
// x/2·(1 + t) for the approximation t of a hyperbolic tangent: an error below 2⁻¹²·|x|.
DEVICE float gated(float x, float t) {
  const float h = fmaxf(0.5f * x, -1e30f);
  return h * t + h;
}
DEVICE float gelu_tanh(float x) { return gated(x, tanh_approx(x * (0.7978845608f + 0.0356774081f * (x * x)))); }
DEVICE float silu(float x) { return gated(x, tanh_approx(0.5f * x)); }
// A fit of artanh(erf(x/√2))/x over |x| ≤ 6 by least greatest error of the whole: 3·10⁻⁵.
DEVICE float gelu_erf(float x) {
  const float s = fminf(x * x, 36.0f);
  return gated(x, tanh_approx(x * (0.797507878f + s * (0.0370056510f - 0.000351517557f * s))));
}
#else
// x/(1 + 2ᵗ), with a relative error of 2⁻²⁰ and that of t. The reciprocal, times 2⁸, is 0 only where the result is. −Inf gives 0.
DEVICE float gated(float x, float t) {
  return fmaxf(x, -1e30f) * 0.00390625f * recip_approx(0.00390625f + exp2_approx(t - 8.0f));
}
DEVICE float gelu_tanh(float x) { return gated(x, x * (-2.3022082f - 0.10294324f * (x * x))); }
DEVICE float silu(float x) { return gated(x, -1.44269504f * x); }
// x·Φ(x) = max(x, 0) − t·Φ(−t) for t = |x|. log₂ Φ(−t) is smooth enough for one polynomial: −1 at 0, the rest by least
// greatest error over t ≤ 7 (Remez's exchange), weighted by 1 + t²/4, as the exponent's own rounding grows. Beyond, it
// decreases without bound, so that −Inf gives 0. The error is below 4·10⁻⁷·|x|, and relative to the result below
// 1.5·10⁻⁶ for x ≥ −2 and 10⁻⁵ for x ≥ −7.
DEVICE float gelu_erf(float x) {
  const float t = fminf(fabsf(x), 40.0f);
  float y = -9.08654485e-9f;
  y = y * t + 3.27740651e-7f;
  y = y * t - 4.97159181e-6f;
  y = y * t + 3.95420029e-5f;
  y = y * t - 1.44826540e-4f;
  y = y * t - 2.97916966e-4f;
  y = y * t + 7.33617225e-3f;
  y = y * t - 5.27224503e-2f;
  y = y * t - 0.459123582f;
  y = y * t - 1.15111554f;
  return relu(x) - t * exp2_approx(y * t - 1.0f);
}
#endif
// The slope of gelu_tanh is s + x·s(1 − s)·(2u)′ with s = σ(2u), which is 0 or 1 in f32 from |x| = 12 on. gelu_tanh_with_slope is
// gelu_tanh by the same s, for where both are computed.
DEVICE float gelu_tanh_sigmoid(float t) { return recip_approx(1.0f + exp2_approx(t * (-2.3022082f - 0.10294324f * (t * t)))); }
DEVICE float gelu_tanh_with_slope(float x) {
  const float t = max_nan(x, -12.0f);
  return t * gelu_tanh_sigmoid(min_nan(t, 12.0f));
}
DEVICE float gelu_tanh_slope(float x) {
  const float t = min_nan(max_nan(x, -12.0f), 12.0f), s = gelu_tanh_sigmoid(t);
  return s + fmaf(-s, s, s) * (t * (1.5957691f + 0.214064449f * (t * t)));
}
template <class T> DEVICE T gelu_tanh_with_slope(T x) { return gelu_tanh(x); }
template <class T> DEVICE T gelu_tanh_slope(T x) {
  const T s = sigmoid(T(1.5957691216057308) * (x + T(0.044715) * x * x * x)), p = s * (T(1) - s);
  return p == T(0) ? s : s + x * p * (T(1.5957691216057308) + T(0.21406444881780076) * x * x);
}
#ifdef FUSEC_FAST
// 2·Φ(t) − 1 for |t| ≤ 6, the hyperbolic tangent of gelu_erf; of that and t·φ(t) is the slope, with an error below 2⁻¹¹.
DEVICE float gelu_erf_tanh(float t) {
  const float s = t * t;
  return tanh_approx(t * (0.797507878f + s * (0.0370056510f - 0.000351517557f * s)));
}
DEVICE float gelu_erf_slope(float x) {
  const float t = min_nan(max_nan(x, -6.0f), 6.0f);
  return 0.398942280f * t * exp2_approx(t * t * -0.72134752f) + (0.5f * gelu_erf_tanh(t) + 0.5f);
}
// gelu_erf by the same tangent, for where both are computed.
DEVICE float gelu_erf_with_slope(float x) { return gated(x, gelu_erf_tanh(min_nan(max_nan(x, -6.0f), 6.0f))); }
#else
// φ(t)·(R(t) − t) for t = |x| where x < 0, else 1 minus that. R, the ratio of Φ(−t) and φ(t), over √2π is a polynomial in
// 1/(1 + 0.3t) (a form of Hastings, in Abramowitz and Stegun, 26.2.17) by least greatest error: 6·10⁻⁷·(R + t)/√2π for t ≤ 13.5,
// beyond which φ is 0.
DEVICE float gelu_erf_slope(float x) {
  const float t = fminf(fabsf(x), 20.0f), k = recip_approx(0.3f * t + 1.0f);
  float r = -0.0794856818f;
  r = r * k + 0.222291871f;
  r = r * k - 0.0227357551f;
  r = r * k + 0.146356133f;
  r = r * k + 0.113517470f;
  r = r * k + 0.120055658f;
  const float g = exp2_approx(t * t * -0.72134752f) * (r * k - 0.398942280f * t);
  return x != x ? x : x < 0.0f ? g : 1.0f - g;
}
#endif
template <class T> DEVICE T gelu_erf_slope(T x) {
  const T density = exp(T(-0.5) * x * x) * T(0.39894228040143268);
  return T(0.5) * erfc(T(-0.70710678118654752) * x) + (density == T(0) ? T(0) : x * density);
}
template <class T> DEVICE T gelu_erf(T x) {
  const T g = T(0.5) * x * erfc(T(-0.70710678118654752) * x);
  return g != g && x < T(0) ? T(0) : g;
}
// It stands behind gelu_erf, whose form for f64 it would not find otherwise.
template <class T> DEVICE T gelu_erf_with_slope(T x) { return gelu_erf(x); }
template <class T> DEVICE T silu(T x) {
  const T g = x * sigmoid(x);
  return g != g && x < T(0) ? T(0) : g;
}
DEVICE bool logical_not(bool x) { return !x; }

template <class T> DEVICE T add(T x, T y) { return T(Wide<T>(x) + Wide<T>(y)); }
template <class T> DEVICE T sub(T x, T y) { return T(Wide<T>(x) - Wide<T>(y)); }
template <class T> DEVICE T mul(T x, T y) { return T(Wide<T>(x) * Wide<T>(y)); }
template <class T> DEVICE T div(T x, T y) { return x / y; }
// A Divisor divides many numbers by one. Its reciprocal and the remainder give what a division gives: P. Markstein, "Computation of
// elementary functions on the IBM RISC System/6000 processor", 1990. Where numbers are so great or small that the remainder may not be
// exact, it multiplies in f64.
struct Divisor {
  float y, r;
  bool plain;
  double wide;
  DEVICE explicit Divisor(float y) : y(y), r(1.0f / y) {
    const float size = fabsf(y);
    plain = size > 1e-30f && size < 1e30f;
    wide = plain ? 0 : 1 / double(y);
  }
};
template <int W> DEVICE Vec<float, W> div(Vec<float, W> x, const Divisor &d) {
  if (!d.plain) return map([&](float x) { return float(double(x) * d.wide); }, x);
  return map([&](float x) {
    const float q = x * d.r, rest = fmaf(-q, d.y, x);
    return fabsf(rest) > 0 ? fmaf(rest, d.r, q) : q;  // also where q is −0, infinite or NaN
  }, x);
}
template <class T> DEVICE T max(T x, T y) { return x != x ? x : y != y ? y : x > y ? x : y; }
template <class T> DEVICE T min(T x, T y) { return x != x ? x : y != y ? y : x < y ? x : y; }
#if !defined(FUSEC_HOST) && __CUDA_ARCH__ >= 800
DEVICE float max(float x, float y) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }
DEVICE float min(float x, float y) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }
#endif
DEVICE float rem(float x, float y) { return fmodf(x, y); }
DEVICE double rem(double x, double y) { return ::fmod(x, y); }
template <class T> DEVICE T mod(T x, T y) {
  const T r = rem(x, y);
  return r == T(0) ? y < T(0) ? -T(0) : T(0) : (r < T(0)) != (y < T(0)) ? r + y : r;
}
template <class T> DEVICE T logical_and(T x, T y) { return T(x & y); }
template <class T> DEVICE T logical_or(T x, T y) { return T(x | y); }
template <class T> DEVICE T logical_xor(T x, T y) { return T(x ^ y); }
// A shift by all bits or more, or by a negative number, shifts all out.
template <class T> DEVICE T shl(T x, T y) { return u64(y) < 8 * sizeof(T) ? T(Wide<T>(x) << int(y)) : T(0); }
template <class T> DEVICE T shr(T x, T y) { return T(x >> (u64(y) < 8 * sizeof(T) ? int(y) : int(8 * sizeof(T)) - 1) >> (u64(y) >= 8 * sizeof(T))); }
template <class T> DEVICE bool lt(T x, T y) { return x < y; }
template <class T> DEVICE bool gt(T x, T y) { return x > y; }
template <class T> DEVICE bool le(T x, T y) { return x <= y; }
template <class T> DEVICE bool ge(T x, T y) { return x >= y; }
template <class T> DEVICE bool eq(T x, T y) { return x == y; }
template <class T> DEVICE bool ne(T x, T y) { return x != y; }
template <class T> DEVICE T select(bool c, T x, T y) { return c ? x : y; }


// The same over vectors.
#define UNARY(f) \
  template <class T, int W> DEVICE auto f(Vec<T, W> x) { return map([](T a) { return f(a); }, x); }
#define UNARY_ALPHA(f) \
  template <class T, int W> DEVICE auto f(Vec<T, W> x, T alpha) { return map([=](T a) { return f(a, alpha); }, x); }
#define BINARY(f) \
  template <class T, int W> DEVICE auto f(Vec<T, W> x, Vec<T, W> y) { return map([](T a, T b) { return f(a, b); }, x, y); } \
  template <class T, int W> DEVICE auto f(Vec<T, W> x, T y) { return f(x, splat<W>(y)); } \
  template <class T, int W> DEVICE auto f(T x, Vec<T, W> y) { return f(splat<W>(x), y); }
UNARY(neg) UNARY(abs) UNARY(sign) UNARY(ceil) UNARY(floor) UNARY(round) UNARY(exp) UNARY(expm1) UNARY(log) UNARY(log1p)
UNARY(log2) UNARY(sqrt) UNARY(rsqrt) UNARY(recip) UNARY(square) UNARY(cube) UNARY(sin) UNARY(cos) UNARY(tanh)
UNARY(gelu_tanh_with_slope) UNARY(gelu_erf_with_slope)
UNARY(tan) UNARY(asin) UNARY(acos) UNARY(atan) UNARY(sinh) UNARY(cosh) UNARY(asinh) UNARY(acosh) UNARY(atanh)
UNARY(sigmoid) UNARY(softplus) UNARY(erf) UNARY(relu) UNARY(gelu_tanh) UNARY(gelu_erf)
UNARY(gelu_tanh_slope) UNARY(gelu_erf_slope) UNARY(silu) UNARY(logical_not)
UNARY_ALPHA(leaky_relu) UNARY_ALPHA(elu)
BINARY(add) BINARY(sub) BINARY(mul) BINARY(div) BINARY(pow) BINARY(max) BINARY(min) BINARY(logical_and)
BINARY(rem) BINARY(mod) BINARY(logical_or) BINARY(logical_xor) BINARY(shl) BINARY(shr) BINARY(lt) BINARY(gt) BINARY(le) BINARY(ge) BINARY(eq) BINARY(ne)
#undef UNARY
#undef UNARY_ALPHA
#undef BINARY

// select over vectors: each operand a vector or a scalar, at least one a vector.
template <class T, int W> DEVICE Vec<T, W> select(Vec<bool, W> c, Vec<T, W> x, Vec<T, W> y) {
  Vec<T, W> r;
#pragma unroll
  for (int i = 0; i < W; i++) r[i] = c[i] ? x[i] : y[i];
  return r;
}

template <class To, class T, int W> DEVICE Vec<To, W> cast(Vec<T, W> x) {
  return map([](T a) { return convert<To>(a); }, x);
}
template <class To, class T> DEVICE To cast(T x) { return convert<To>(x); }

}  // namespace op

// Vectors are widened if the generator does not know whether a value is a scalar.
template <int W, class T> DEVICE Vec<T, W> widen(T x) { return splat<W>(x); }
template <int W, class T> DEVICE Vec<T, W> widen(Vec<T, W> x) { return x; }

// Philox-4×32 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); see graph.Philox. key(i, j) is key j of
// round i.
template <int ROUNDS, class Key> DEVICE uint4 philox_rounds(u64 counter, Key key) {
  uint4 c = {u32(counter), u32(counter >> 32), 0, 0};
#pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    const u64 p0 = multiply_wide(c.x, 0xD2511F53u), p1 = multiply_wide(c.z, 0xCD9E8D57u);
    c = {u32(p1 >> 32) ^ c.y ^ key(i, 0), u32(p1), u32(p0 >> 32) ^ c.w ^ key(i, 1), u32(p0)};
  }
  return c;
}
DEVICE u32 philox_key(u64 seed, int i, int j) { return u32(seed >> 32 * j) + i * (j == 0 ? 0x9E3779B9u : 0xBB67AE85u); }
template <int ROUNDS = 10> DEVICE uint4 philox(u64 seed, u64 counter) {
  return philox_rounds<ROUNDS>(counter, [&](int i, int j) { return philox_key(seed, i, j); });
}
DEVICE u32 word_of(uint4 b, u64 i) { return i % 4 == 0 ? b.x : i % 4 == 1 ? b.y : i % 4 == 2 ? b.z : b.w; }

// Which of the elements of the groups from N·first on dropout keeps; see graph.DropoutRule. draw(i) is block i of the generator. N
// groups have whole blocks, or one group a part of one.
template <int BITS, u32 THRESHOLD, int N, class Draw> DEVICE void kept_groups(u32 (&kept)[N], u64 first, Draw draw) {
  constexpr bool WHOLE = N * BITS % 4 == 0;
  const u64 block = WHOLE ? first * (N * BITS / 4) : first * BITS / 4;
  uint4 words;
#pragma unroll
  for (int n = 0; n < N; n++) {
    kept[n] = ~0u;
#pragma unroll
    for (int i = 0; i < BITS; i++) {
      const int at = n * BITS + i;
      if (at % 4 == 0) words = draw(block + at / 4);
      const u32 word = word_of(words, WHOLE ? at : first * BITS + at);
      kept[n] = THRESHOLD >> i & 1 ? kept[n] & word : kept[n] | ~word;
    }
  }
}
template <int BITS, u32 THRESHOLD> DEVICE u32 kept_group(u64 seed, u64 group) {
  u32 kept[1];
  kept_groups<BITS, THRESHOLD>(kept, group, [&](u64 i) { return philox<7>(seed, i); });
  return kept[0];
}
// Whether element i of a group of the generator is kept; see graph.DropoutBit.
DEVICE bool kept_of(u32 group, u64 i) {
  u32 eight = group >> i / 8 % 4 * 2;
#ifndef FUSEC_HOST
  asm("" : "+r"(eight));  // else the bit of each element is moved
#endif
  return eight & 1u << i / 2 % 4 * 8 + i % 2;
}

// dropout keeps element i + j of the value, scaled, or makes it 0.
template <int BITS, u32 THRESHOLD, class T, int W> DEVICE Vec<T, W> dropout(Vec<T, W> x, i64 seed, u64 i, T scale) {
  Vec<T, W> r;
  u32 kept = 0;
#pragma unroll
  for (int j = 0; j < W; j++) {
    if (j == 0 || (i + j) % 32 == 0) kept = kept_group<BITS, THRESHOLD>(u64(seed), (i + j) / 32);
    r[j] = kept_of(kept, i + j) ? x[j] * scale : T(0);
  }
  return r;
}

// Draws is what a thread has of dropout's generator for U units of W elements, APART units apart, in a kernel whose threads have
// units side by side. Where the elements of a warp's units begin at multiples of 32, which ALIGNED says, its threads make each
// group once, and pass words on.
template <int BITS, u32 THRESHOLD, int W, int U, int APART, bool ALIGNED> struct Draws {
  u32 words[U];
  // All threads of the warp make them; first is the thread's first unit.
  DEVICE Draws(u64 seed, u64 first) {
    static_assert(32 % W == 0 && APART % 32 == 0, "whole groups");
    const int lane = threadIdx.x % 32;
    const u64 group = (first - lane) * W / 32;
#pragma unroll
    for (int from = 0; from < U * W; from += 32) {
      const int i = from + lane;  // of the warp's groups, W for each unit
      const u32 word = kept_group<BITS, THRESHOLD>(seed, group + i / W * (APART * W / 32) + i % W);
#pragma unroll
      for (int u = from / W; u < U && u * W < from + 32; u++) words[u] = __shfl_sync(~0u, word, u * W - from + lane * W / 32);
    }
  }
  // drop is dropout of unit u, whose first element has number i.
  template <class T> DEVICE Vec<T, W> drop(Vec<T, W> x, int u, u64 i, T scale) const {
    Vec<T, W> r;
#pragma unroll
    for (int j = 0; j < W; j++) r[j] = kept_of(words[u], i + j) ? x[j] * scale : T(0);
    return r;
  }
};
template <int BITS, u32 THRESHOLD, int W, int U, int APART> struct Draws<BITS, THRESHOLD, W, U, APART, false> {
  u64 seed;
  DEVICE Draws(u64 seed, u64) : seed(seed) {}
  template <class T> DEVICE Vec<T, W> drop(Vec<T, W> x, int, u64 i, T scale) const {
    return dropout<BITS, THRESHOLD>(x, i64(seed), i, scale);
  }
};

namespace op {
// rounded<bf16>(x) is x as a 16-bit type holds it, in f32 lanes.
DEVICE float round_to(bf16, float x) { return bits_to_float(pack_bf16(0.0f, x)); }
DEVICE float round_to(f16, float x) { return to_float(convert<f16>(x)); }
template <class T, class From> DEVICE float rounded(From x) { return round_to(T{}, odd(x)); }
template <class T, class From, int W> DEVICE Vec<float, W> rounded(Vec<From, W> x) { return map([](From a) { return rounded<T>(a); }, x); }
}  // namespace op

namespace op {
// divide is the quotient of integers, truncated; a divisor of zero is reported and gives 0.
template <class T> DEVICE T divide(T x, T y, Status *status) {
  if (y == 0) {
    fail(status, STATUS_DIVISION, 0, 0, 0);
    return 0;
  }
  return T(-1) < T(0) && y == T(-1) ? neg(x) : T(x / y);
}

// remainder is that of the quotient, and modulo that of the quotient rounded down; a divisor of zero is reported and gives 0.
template <class T> DEVICE T remainder(T x, T y, Status *status) {
  const T q = divide(x, y, status);
  return sub(x, mul(q, y));
}
template <class T> DEVICE T modulo(T x, T y, Status *status) {
  const T r = y == 0 ? divide(x, y, status) : remainder(x, y, status);
  return r != 0 && (r < 0) != (y < 0) ? add(r, y) : r;
}

// power is x to the power y of integers, truncated where y is negative; zero to a negative power is reported.
template <class T> DEVICE T power(T x, T y, Status *status) {
  if (y < 0) {
    if (x == 0) fail(status, STATUS_DIVISION, 0, 0, 0);
    if (x != 1 && x != -1) return 0;
    y = -(y % 2);  // a power of ±1 depends only on the parity of the exponent
  }
  T r = 1;
  for (; y > 0; y >>= 1) {
    if (y & 1) r = mul(r, x);
    x = mul(x, x);
  }
  return r;
}

// The same over vectors.
#define CHECKED(f) \
  template <class T, int W> DEVICE Vec<T, W> f(Vec<T, W> x, Vec<T, W> y, Status *status) { \
    return map([=](T a, T b) { return f(a, b, status); }, x, y); \
  } \
  template <class T, int W> DEVICE Vec<T, W> f(Vec<T, W> x, T y, Status *status) { return f(x, splat<W>(y), status); } \
  template <class T, int W> DEVICE Vec<T, W> f(T x, Vec<T, W> y, Status *status) { return f(splat<W>(x), y, status); }
CHECKED(divide) CHECKED(remainder) CHECKED(modulo) CHECKED(power)
#undef CHECKED
}  // namespace op
