// What stands in for the GPU when a kernel's text is compiled for the processor: the words of CUDA C++ that the text
// uses, as calls of the runtime (runtime.cpp), which runs the threads of a block in turn. It is included before the
// text, with FUSEC_HOST defined; the text itself stands in a namespace of its own, with FUSEC_UNIT its name and
// FUSEC_FIXED where its shared memory of a fixed size begins and ends.

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef FUSEC_HOST
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define DEVICE inline
// Shared memory of a fixed size stands side by side, so that it can be poisoned. Blocks of a cluster have it together,
// so that they must not use it.
#define __shared__ static __attribute__((section(FUSEC_UNIT)))
#endif

struct uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) longlong2 { long long x, y; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Set by the runtime whenever another thread goes on. To a kernel's thread they are constants, of which no access is checked.
#ifdef FUSEC_HOST
extern "C" const uint3 threadIdx, blockIdx, blockDim, gridDim;
#else
extern "C" uint3 threadIdx, blockIdx, blockDim, gridDim;
#endif
constexpr int warpSize = 32;

namespace host {
enum Collective : int { SYNC, SHUFFLE, BALLOT, ANY, ALL, MATCH, ADD, MIN, MAX, UMIN, UMAX, AND, OR, XOR, TOGETHER };
}

// The runtime. Its functions may let other threads run before they return.
extern "C" {
unsigned char *fusec_shared();                       // the block's shared memory
void fusec_barrier(int id, int threads, bool wait);  // threads 0: all of the block
// All threads of a warp that mask names bring a value and take a result. Of a shuffle, from is the lane to read.
uint64_t fusec_collective(host::Collective kind, unsigned mask, uint64_t value, int from);
void fusec_access(const void *p, size_t bytes, bool write);  // of memory that the compiler does not see to be accessed
[[noreturn]] void fusec_fail(const char *message);
void fusec_arrive(int *count, int n);      // adds n to a count of blocks
void fusec_await(const int *count, int n);  // until it is at least n
}

namespace host {

template <class To, class From> inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
inline float float_of(unsigned x) { return bits<float>(x); }
inline unsigned bits_of(float x) { return bits<unsigned>(x); }
float f16_to_float(unsigned short x);
unsigned short float_to_f16(float x);  // to nearest, ties to even

// An entry of a translation unit, in the list of its library.
struct Entry {
  const char *unit, *name;
  void (*run)(const void *params);
  uint64_t params, threads, cluster;
  unsigned char *fixed, *fixed_end;  // shared memory of a fixed size
  Entry *next;
};
static Entry *entries __attribute__((unused));
// What runs while a library is loaded is not watched: the kernel of another device may be running then.
#define UNWATCHED __attribute__((no_sanitize("thread")))
struct Register {
  UNWATCHED Register(Entry &e) {
    e.next = entries;
    entries = &e;
  }
};

template <class T> inline T shuffle(unsigned mask, T x, int from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
  uint64_t v = 0;
  memcpy(&v, &x, sizeof x);
  v = fusec_collective(SHUFFLE, mask, v, from);
  memcpy(&x, &v, sizeof x);
  return x;
}
inline int lane() { return threadIdx.x % 32; }

}  // namespace host

#ifdef FUSEC_HOST
extern "C" UNWATCHED __attribute__((visibility("default"))) const host::Entry *fusec_entries() { return host::entries; }
#endif

#define KERNEL(name, threads, blocks) CLUSTER_KERNEL(name, threads, blocks, 1)
#define LATE_KERNEL(name, threads, blocks) KERNEL(name, threads, blocks)
#define LATE_CLUSTER_KERNEL(name, threads, blocks, cluster) CLUSTER_KERNEL(name, threads, blocks, cluster)
inline void late_read() {}
inline void held_begin() {}
// The same in clusters of so many blocks, side by side in x; see cluster.cuh.
#define CLUSTER_KERNEL(name, threads, blocks, cluster)                                                                 \
  static void name##_kernel(const Params &p);                                                                          \
  static ::host::Entry name##_entry = {FUSEC_UNIT, #name, [](const void *p) { name##_kernel(*(const Params *)p); },     \
                                       sizeof(Params), threads, cluster, FUSEC_FIXED, 0};                              \
  static ::host::Register name##_register(name##_entry);                                                               \
  static void name##_kernel(const Params &p)
// All blocks run together; see hopper.cuh.
#define TOGETHER_KERNEL(name, threads) CLUSTER_KERNEL(name, threads, 1, 0)
#define SHARED unsigned char *const shared = fusec_shared()

inline void __syncthreads() { fusec_barrier(0, 0, true); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { fusec_collective(host::SYNC, mask, 0, 0); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

template <class T> inline T __shfl_sync(unsigned mask, T x, int from, int width = 32) {
  return host::shuffle(mask, x, (host::lane() & ~(width - 1)) | (from & (width - 1)));
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T x, int with, int width = 32) {
  const int from = host::lane() ^ with;
  return host::shuffle(mask, x, from / width <= host::lane() / width ? from : host::lane());
}
template <class T> inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32) {
  const int from = host::lane() + int(by);
  return host::shuffle(mask, x, from / width == host::lane() / width ? from : host::lane());
}
template <class T> inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32) {
  const int from = host::lane() - int(by);
  return host::shuffle(mask, x, from >= host::lane() / width * width ? from : host::lane());
}
inline unsigned __ballot_sync(unsigned mask, int x) { return fusec_collective(host::BALLOT, mask, x != 0, 0); }
inline int __any_sync(unsigned mask, int x) { return fusec_collective(host::ANY, mask, x != 0, 0); }
inline int __all_sync(unsigned mask, int x) { return fusec_collective(host::ALL, mask, x != 0, 0); }
template <class T> inline unsigned __match_any_sync(unsigned mask, T x) {
  uint64_t v = 0;
  memcpy(&v, &x, sizeof x);
  return fusec_collective(host::MATCH, mask, v, 0);
}
inline unsigned __reduce_add_sync(unsigned m, unsigned x) { return fusec_collective(host::ADD, m, x, 0); }
inline int __reduce_add_sync(unsigned m, int x) { return fusec_collective(host::ADD, m, unsigned(x), 0); }
inline unsigned __reduce_min_sync(unsigned m, unsigned x) { return fusec_collective(host::UMIN, m, x, 0); }
inline int __reduce_min_sync(unsigned m, int x) { return fusec_collective(host::MIN, m, unsigned(x), 0); }
inline unsigned __reduce_max_sync(unsigned m, unsigned x) { return fusec_collective(host::UMAX, m, x, 0); }
inline int __reduce_max_sync(unsigned m, int x) { return fusec_collective(host::MAX, m, unsigned(x), 0); }
inline unsigned __reduce_and_sync(unsigned m, unsigned x) { return fusec_collective(host::AND, m, x, 0); }
inline unsigned __reduce_or_sync(unsigned m, unsigned x) { return fusec_collective(host::OR, m, x, 0); }
inline unsigned __reduce_xor_sync(unsigned m, unsigned x) { return fusec_collective(host::XOR, m, x, 0); }

// One thread runs at a time, so that what follows is atomic as it stands.
namespace host {
template <class T, class F> inline T atomic(T *p, F f) {
  const T old = *p;
  *p = f(old);
  return old;
}
}  // namespace host
#define FUSEC_ATOMICS(T)                                                                                               \
  inline T atomicAdd(T *p, T x) { return host::atomic(p, [=](T y) { return y + x; }); }                             \
  inline T atomicMax(T *p, T x) { return host::atomic(p, [=](T y) { return y > x ? y : x; }); }                        \
  inline T atomicMin(T *p, T x) { return host::atomic(p, [=](T y) { return y < x ? y : x; }); }                        \
  inline T atomicExch(T *p, T x) { return host::atomic(p, [=](T) { return x; }); }                                     \
  inline T atomicCAS(T *p, T had, T x) { return host::atomic(p, [=](T y) { return y == had ? x : y; }); }
#define FUSEC_ATOMIC_BITS(T)                                                                                           \
  inline T atomicAnd(T *p, T x) { return host::atomic(p, [=](T y) { return y & x; }); }                                \
  inline T atomicOr(T *p, T x) { return host::atomic(p, [=](T y) { return y | x; }); }                                 \
  inline T atomicXor(T *p, T x) { return host::atomic(p, [=](T y) { return y ^ x; }); }
FUSEC_ATOMICS(int)
FUSEC_ATOMICS(unsigned)
FUSEC_ATOMICS(unsigned long long)
FUSEC_ATOMICS(long long)
FUSEC_ATOMIC_BITS(int)
FUSEC_ATOMIC_BITS(unsigned)
FUSEC_ATOMIC_BITS(unsigned long long)
#undef FUSEC_ATOMICS
#undef FUSEC_ATOMIC_BITS

template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
template <class T> inline T __ldcs(const T *p) { return *p; }
template <class T> inline void __stcs(T *p, T x) { *p = x; }
template <class T> inline void __stcg(T *p, T x) { *p = x; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
  const uint64_t v = uint64_t(y) << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    unsigned b = v >> (s >> 4 * i & 7) * 8 & 0xff;
    if (s >> 4 * i & 8) b = b & 0x80 ? 0xff : 0;
    r |= b << 8 * i;
  }
  return r;
}
inline unsigned __umulhi(unsigned x, unsigned y) { return uint64_t(x) * y >> 32; }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned __int128)x * y >> 64;
}
inline int __float_as_int(float x) { return host::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return host::bits<unsigned>(x); }
inline float __int_as_float(int x) { return host::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return host::bits<float>(x); }
inline long long __double_as_longlong(double x) { return host::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return host::bits<double>(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float rsqrtf(float x) { return float(1.0 / sqrt(double(x))); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
template <class T> inline T max(T x, T y) { return x < y ? y : x; }
template <class T> inline T min(T x, T y) { return y < x ? y : x; }
inline float max(float x, float y) { return fmaxf(x, y); }
inline float min(float x, float y) { return fminf(x, y); }
inline double max(double x, double y) { return fmax(x, y); }
inline double min(double x, double y) { return fmin(x, y); }
// The size of an address in the window of shared memory is 4 bytes on the GPU; here it counts from the block's memory.
inline size_t __cvta_generic_to_shared(const void *p) { return (const unsigned char *)p - fusec_shared(); }
inline void __nanosleep(unsigned) { fusec_collective(host::SYNC, 1u << host::lane(), 0, 0); }
inline void __trap() { fusec_fail("__trap"); }

#include "instructions.h"
