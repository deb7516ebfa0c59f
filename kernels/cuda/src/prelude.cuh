// The start of every translation unit: number types, vectors of elements, and access to memory. It needs no file of the
// toolkit. With FUSEC_HOST, the GPU's instructions are replaced by functions of host.h.

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#ifndef FUSEC_HOST
#define DEVICE __device__ __forceinline__
// On sm_90 and later chips the launch after this one may begin, where it is one that waits itself for the end of what is before it.
DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
DEVICE void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Such a launch calls these at its beginning, before it reads what others have written and before it writes, and at its end. With
// FUSEC_LEADS the next launch runs beside it, and so begins when all that is before this one has ended. With FUSEC_BESIDE it is such
// a next launch, which waits only so that it ends after the one before it, or with FUSEC_AWAITS in early_body, which comes before what
// its body alone reads and before it writes. With FUSEC_HOLDS it does not let the next launch begin, whose blocks would crowd where
// there is room, until it calls held_begin.
#ifdef FUSEC_HOLDS
DEVICE void held_begin() { let_next_begin(); }
#else
DEVICE void held_begin() {}
#endif
#ifdef FUSEC_BESIDE
DEVICE void early_begin() { let_next_begin(); }
DEVICE void early_read() {}
#ifdef FUSEC_AWAITS
DEVICE void early_body() { wait_for_previous(); }
DEVICE void early_end() {}
#else
DEVICE void early_body() {}
DEVICE void early_end() { wait_for_previous(); }
#endif
#elif defined(FUSEC_LEADS)
DEVICE void early_begin() {}
DEVICE void early_read() { wait_for_previous(), let_next_begin(); }
DEVICE void early_body() {}
DEVICE void early_end() {}
#else
#ifdef FUSEC_HOLDS
DEVICE void early_begin() {}
#else
DEVICE void early_begin() { let_next_begin(); }
#endif
DEVICE void early_read() { wait_for_previous(); }
DEVICE void early_body() {}
DEVICE void early_end() {}
#endif
// An entry with one parameter p, of type Params of the namespace around it. With FUSEC_EARLY its launch may begin before those before
// it have ended. That of a LATE_ENTRY waits for them when it calls late_read.
#ifdef FUSEC_EARLY
#define ENTRY_THAT(waits, bounds, name)                                       \
  DEVICE void name##_after(const Params &p);                                  \
  extern "C" __global__ void bounds name(const __grid_constant__ Params p) {  \
    early_begin();                                                            \
    waits;                                                                    \
    name##_after(p);                                                          \
    early_end();                                                              \
  }                                                                           \
  DEVICE void name##_after(const Params &p)
#define ENTRY(bounds, name) ENTRY_THAT(early_read(), bounds, name)
#define LATE_ENTRY(bounds, name) ENTRY_THAT(, bounds, name)
DEVICE void late_read() { early_read(); }
#else
#define ENTRY(bounds, name) extern "C" __global__ void bounds name(const __grid_constant__ Params p)
#define LATE_ENTRY(bounds, name) ENTRY(bounds, name)
DEVICE void late_read() {}
#endif
// KERNEL(name, threads, blocks) { … } has at least the given number of blocks on a multiprocessor.
#define KERNEL(name, threads, blocks) ENTRY(__launch_bounds__(threads, blocks), name)
#define LATE_KERNEL(name, threads, blocks) LATE_ENTRY(__launch_bounds__(threads, blocks), name)
#define SHARED extern __shared__ __align__(1024) u8 shared[]  // the dynamic shared memory
#endif

// Integer tells which types are integers, and Wide in which type their sums and products wrap; of other types it is the type.
template <class T> struct Integer { static constexpr bool value = false; typedef T wide; };
#define INTEGER(T, W) \
  template <> struct Integer<T> { static constexpr bool value = true; typedef W wide; };
INTEGER(i8, u32) INTEGER(u8, u32) INTEGER(i16, u32) INTEGER(u16, u32) INTEGER(i32, u32) INTEGER(u32, u32) INTEGER(i64, u64) INTEGER(u64, u64)
#undef INTEGER
template <class T> using Wide = typename Integer<T>::wide;

// The 16-bit types are their bits; arithmetic on them is done in f32.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

#ifndef FUSEC_HOST
// prefetch brings the line of an address to the L2 cache.
DEVICE void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// permute chooses four of the eight bytes of y and x by the digits of `how`; 8 more is the sign of a byte in all its bits.
DEVICE u32 permute(u32 x, u32 y, u32 how) { u32 r; asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(how)); return r; }
// Of u64(x) * y, NVRTC makes a product of 64 bits where it does not see that the upper halves are 0.
DEVICE u64 multiply_wide(u32 x, u32 y) { u64 r; asm("mul.wide.u32 %0, %1, %2;" : "=l"(r) : "r"(x), "r"(y)); return r; }
DEVICE float bits_to_float(u32 x) { return __uint_as_float(x); }
DEVICE u32 float_to_bits(float x) { return __float_as_uint(x); }
DEVICE float multiply_up(float x, float y) { float z; asm("mul.rp.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }
DEVICE float to_float(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE u16 to_f16_bits(float x) { u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
// 2^x and 1/x to about 22 bits, the hyperbolic tangent to about 11.
DEVICE float exp2_approx(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float recip_approx(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#if __CUDA_ARCH__ >= 750
DEVICE float tanh_approx(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#endif
#if __CUDA_ARCH__ >= 800
// Two numbers in one word, the first in the low half.
DEVICE u32 pack_f16(float x, float y) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x)); return r; }
DEVICE u32 pack_bf16(float x, float y) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x)); return r; }
// The larger and the smaller of two numbers, or NaN if one is.
DEVICE float max_nan(float x, float y) { float z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }
DEVICE float min_nan(float x, float y) { float z; asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }
// Of cvt.rn.bf16.f32, whose result is used in 32 bits, ptxas makes F2F, an instruction of the unit that computes exp2.
DEVICE u16 to_bf16_bits(float x) { return u16(pack_bf16(x, 0.0f)); }
#define HAVE_PAIRS
#endif
#else
DEVICE void prefetch(const void *) {}
DEVICE u32 permute(u32 x, u32 y, u32 how) {
  const u64 all = u64(y) << 32 | x;
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    const u32 byte = u32(all >> 8 * (how >> 4 * i & 7) & 0xff);
    r |= (how >> 4 * i & 8 ? byte / 128 * 255 : byte) << 8 * i;
  }
  return r;
}
DEVICE u64 multiply_wide(u32 x, u32 y) { return u64(x) * y; }
DEVICE float tanh_approx(float x) { return tanhf(x); }
DEVICE float bits_to_float(u32 x) { return host::float_of(x); }
DEVICE u32 float_to_bits(float x) { return host::bits_of(x); }
DEVICE float multiply_up(float x, float y) {
  const float z = x * y;
  return double(z) < double(x) * double(y) ? nextafterf(z, INFINITY) : z;
}
DEVICE float to_float(f16 x) { return host::f16_to_float(x.bits); }
DEVICE u16 to_f16_bits(float x) { return host::float_to_f16(x); }
#endif
#ifndef HAVE_PAIRS
DEVICE float max_nan(float x, float y) { return x != x || y != y ? x + y : fmaxf(x, y); }
DEVICE float min_nan(float x, float y) { return x != x || y != y ? x + y : fminf(x, y); }
DEVICE u32 pack_f16(float x, float y) { return to_f16_bits(x) | u32(to_f16_bits(y)) << 16; }
// Rounding to nearest, ties to even, of the upper half; a NaN stays a NaN.
DEVICE u16 to_bf16_bits(float x) {
  u32 u = float_to_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return u16(u >> 16 | 0x40);
  return u16((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
DEVICE u32 pack_bf16(float x, float y) { return to_bf16_bits(x) | u32(to_bf16_bits(y)) << 16; }
#endif
DEVICE float to_float(bf16 x) { return bits_to_float(u32(x.bits) << 16); }

// odd is x in f32, rounded to odd: rounded again, to 16 bits, it is the number nearest to x. Numbers that f32
// represents are unchanged.
DEVICE float odd(double x) {
  const float y = float(x);
  if (double(y) == x) return y;
  const u32 bits = float_to_bits(y);
  return bits_to_float((fabs(double(y)) > fabs(x) ? bits - 1 : bits) | 1);
}
DEVICE float odd(float x) { return x; }
DEVICE float odd(bool x) { return x; }
DEVICE float odd(i32 x) { return odd(double(x)); }
DEVICE float odd(i64 x) { return odd(double(x)); }
template <class T> DEVICE float odd(T x) { return odd(double(x)); }

// convert<To>(x) is x as another type, as graph.Cast defines it: to an integer by truncation, saturating, NaN to 0; to
// bool whether it is not zero; to 16 bits by one rounding.
template <class T> struct Fraction { static constexpr bool value = false; };
template <> struct Fraction<float> { static constexpr bool value = true; };
template <> struct Fraction<double> { static constexpr bool value = true; };
template <class To, class From> DEVICE To truncated(From x) {
  if (x != x) return 0;
  if constexpr (To(-1) < To(0)) {
    const From limit = From(u64(1) << (8 * sizeof(To) - 1));  // a power of two: exact
    if (x >= limit) return To((u64(1) << (8 * sizeof(To) - 1)) - 1);
    if (x < -limit) return To(u64(1) << (8 * sizeof(To) - 1));
  } else {
    if (x <= From(0)) return 0;
    if (x >= From(2) * From(u64(1) << (8 * sizeof(To) - 1))) return To(-1);
  }
  return To(x);
}
template <class To, class From> struct Convert {
  static DEVICE To of(From x) {
    if constexpr (Integer<To>::value && Fraction<From>::value) {
      return truncated<To>(x);
    } else {
      return To(x);
    }
  }
};
template <class T> struct Convert<T, T> { static DEVICE T of(T x) { return x; } };
template <class To> struct Convert<To, bf16> { static DEVICE To of(bf16 x) { return Convert<To, float>::of(to_float(x)); } };
template <class To> struct Convert<To, f16> { static DEVICE To of(f16 x) { return Convert<To, float>::of(to_float(x)); } };
template <> struct Convert<bf16, bf16> { static DEVICE bf16 of(bf16 x) { return x; } };
template <> struct Convert<f16, f16> { static DEVICE f16 of(f16 x) { return x; } };
template <class From> struct Convert<bf16, From> { static DEVICE bf16 of(From x) { return bf16{to_bf16_bits(odd(x))}; } };
template <class From> struct Convert<f16, From> { static DEVICE f16 of(From x) { return f16{to_f16_bits(odd(x))}; } };
template <class From> struct Convert<bool, From> { static DEVICE bool of(From x) { return x != From(0); } };
template <> struct Convert<bool, bool> { static DEVICE bool of(bool x) { return x; } };
template <class To, class From> DEVICE To convert(From x) { return Convert<To, From>::of(x); }
DEVICE u32 pack2(bf16, float x, float y) { return pack_bf16(x, y); }
DEVICE u32 pack2(f16, float x, float y) { return pack_f16(x, y); }

// Vec is W neighbouring elements of the iteration space, in registers.
template <class T, int W> struct Vec {
  T v[W];
  DEVICE T &operator[](int i) { return v[i]; }
  DEVICE const T &operator[](int i) const { return v[i]; }
};

template <int W, class T> DEVICE Vec<T, W> splat(T x) {
  Vec<T, W> r;
#pragma unroll
  for (int i = 0; i < W; i++) r[i] = x;
  return r;
}

// map applies f to each element, or to pairs of elements; a scalar is broadcast.
template <class F, class T, int W> DEVICE auto map(F f, Vec<T, W> x) {
  Vec<decltype(f(x[0])), W> r;
#pragma unroll
  for (int i = 0; i < W; i++) r[i] = f(x[i]);
  return r;
}
template <class F, class T, class U, int W> DEVICE auto map(F f, Vec<T, W> x, Vec<U, W> y) {
  Vec<decltype(f(x[0], y[0])), W> r;
#pragma unroll
  for (int i = 0; i < W; i++) r[i] = f(x[i], y[i]);
  return r;
}
template <class F, class T, class U, int W> DEVICE auto map(F f, Vec<T, W> x, U y) { return map(f, x, splat<W>(y)); }
template <class F, class T, class U, int W> DEVICE auto map(F f, T x, Vec<U, W> y) { return map(f, splat<W>(x), y); }

// Words are moved between memory and registers 16, 8, 4, 2 or 1 bytes at a time.
template <int BYTES> struct Word;
template <> struct Word<1> { typedef u8 type; };
template <> struct Word<2> { typedef u16 type; };
template <> struct Word<4> { typedef u32 type; };
template <> struct Word<8> { typedef uint2 type; };
template <> struct Word<16> { typedef uint4 type; };

constexpr DEVICE int least(int a, int b) { return a < b ? a : b; }
constexpr DEVICE int greatest(int a, int b) { return a > b ? a : b; }

// A Fixed is a pointer to memory that nothing writes during the launch: reads may be moved before earlier stores.
template <class T> struct Fixed { const T *p; };
template <class T> DEVICE Fixed<T> fixed(const T *p) { return {p}; }
// Keeps the compiler from computing what depends on x before this place, and so from keeping it for later turns of a loop.
DEVICE int this_turn(int x) {
#ifndef FUSEC_HOST
  asm volatile("" : "+r"(x));
#endif
  return x;
}
template <class V, class T> DEVICE V read(const T *p, i64 i) { return reinterpret_cast<const V *>(p)[i]; }
template <class V, class T> DEVICE V read(Fixed<T> p, i64 i) {
  typedef typename Word<sizeof(V)>::type word;
  union { word w; V v; } u;
#ifndef FUSEC_HOST
  u.w = __ldg(reinterpret_cast<const word *>(p.p) + i);
#else
  u.w = reinterpret_cast<const word *>(p.p)[i];
#endif
  return u.v;
}
template <class T> struct Pointed;
template <class T> struct Pointed<const T *> { typedef T type; };
template <class T> struct Pointed<T *> { typedef T type; };
template <class T> struct Pointed<Fixed<T>> { typedef T type; };

// load reads W elements, STRIDE apart, that begin at p, into lanes of type L. ALIGN is a power of two of which p is known
// to be a multiple, in bytes.
template <class L, int W, int STRIDE, int ALIGN, class P> DEVICE Vec<L, W> load(P p) {
  typedef typename Pointed<P>::type T;
  Vec<L, W> r;
  if constexpr (STRIDE == 0) {
    r = splat<W>(convert<L>(read<T>(p, 0)));
  } else if constexpr (STRIDE == 1 && W > 1 && ALIGN > int(sizeof(T))) {
    constexpr int bytes = least(least(ALIGN, 16), W * int(sizeof(T)));
    constexpr int n = bytes / int(sizeof(T));
    typedef typename Word<bytes>::type word;
#pragma unroll
    for (int i = 0; i < W / n; i++) {
      union { word w; T t[n]; } u;
      u.w = read<word>(p, i);
#pragma unroll
      for (int j = 0; j < n; j++) r[i * n + j] = convert<L>(u.t[j]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < W; i++) r[i] = convert<L>(read<T>(p, i64(i) * STRIDE));
  }
  return r;
}

// store writes W elements, STRIDE apart, from p on; see load. STREAMED ones are the first to leave the L2 cache.
template <int STRIDE, int ALIGN, bool STREAMED = false, class T, class L, int W> DEVICE void store(T *p, const Vec<L, W> &x) {
  if constexpr (STRIDE == 1 && W > 1 && ALIGN > int(sizeof(T))) {
    constexpr int bytes = least(least(ALIGN, 16), W * int(sizeof(T)));
    constexpr int n = bytes / int(sizeof(T));
    typedef typename Word<bytes>::type word;
#pragma unroll
    for (int i = 0; i < W / n; i++) {
      union { word w; T t[n]; } u;
      if constexpr (sizeof(T) == 2 && n > 1 && sizeof(L) == 4) {
        u32 *pairs = reinterpret_cast<u32 *>(&u.w);
#pragma unroll
        for (int j = 0; j < n / 2; j++) pairs[j] = pack2(T{}, x[i * n + 2 * j], x[i * n + 2 * j + 1]);
      } else {
#pragma unroll
        for (int j = 0; j < n; j++) u.t[j] = convert<T>(x[i * n + j]);
      }
#ifndef FUSEC_HOST
      if constexpr (STREAMED) __stcs(reinterpret_cast<word *>(p) + i, u.w);
      else
#endif
        reinterpret_cast<word *>(p)[i] = u.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < W; i++) p[i64(i) * STRIDE] = convert<T>(x[i]);
  }
}

// Status is the report of a run; see kernels.Status. The first report is kept.
struct Status {
  i32 code, unused;
  i64 where, value, limit;
};
enum { STATUS_INDEX = 1, STATUS_START = 2, STATUS_LENGTH = 3, STATUS_DIVISION = 4 };
DEVICE void fail(Status *s, i32 code, i64 where, i64 value, i64 limit) {
  if (atomicCAS(&s->code, 0, code) == 0) {
    s->where = where;
    s->value = value;
    s->limit = limit;
  }
}
