// The matrix instructions: loads of fragments, products of a warp (mma.sync) and of a warpgroup (wgmma). Products are
// summed in f64 and rounded to f32 once for each instruction; tensor cores add in another order and with fewer bits.

#pragma once
#include <deque>

#include "memory.h"

namespace products {

enum Kind : int { BF16, F16, TF32 };

inline float element(Kind k, uint32_t x) {
  switch (k) {
    case BF16: return host::float_of(x << 16);
    case F16: return host::f16_to_float(x);
    default: return host::float_of(x & 0xffffe000u);  // the hardware reads the upper 19 bits
  }
}
// part is element i of 16 bits in a word.
inline float part(Kind k, uint32_t word, int i) { return element(k, word >> 16 * i & 0xffff); }

// unpack makes of the registers of a warp the rows [16, K] of a left operand.
inline void unpack(Kind k, int lane, const uint32_t *a, double (*to)[16]) {
  const int g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; i++) {
    const int row = g + i % 2 * 8;
    if (k == TF32) {
      to[row][t + i / 2 * 4] = element(k, a[i]);
    } else {
      for (int e = 0; e < 2; e++) to[row][2 * t + i / 2 * 8 + e] = part(k, a[i], e);
    }
  }
}

// CLONES compiles a function for several processors, one of which is chosen when the library is loaded.
#if defined(__x86_64__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default"))) static
#else
#define CLONES static
#endif

// Elements are held as f64: a product of two is exact.
constexpr int MOST = 256;  // columns

// multiply adds to each of n sums, a multiple of 8, the products of a row of one operand and a column [depth, n] of the other, in
// the order of their elements.
CLONES void multiply(double *sums, int n, int depth, const double *a, const double (*b)[MOST]) {
  typedef double Eight __attribute__((vector_size(64), aligned(8), may_alias));
  for (int j = 0; j < n; j += 8) {
    Eight s = *reinterpret_cast<const Eight *>(sums + j);
    for (int k = 0; k < depth; k++) s += a[k] * *reinterpret_cast<const Eight *>(b[k] + j);
    *reinterpret_cast<Eight *>(sums + j) = s;
  }
}

// A Warp is what a thread brings to a product of its warp.
struct Warp {
  Kind kind;
  float *d;
  const uint32_t *a, *b;
};
inline void warp(void *const *lanes) {
  static double a[16][16], b[16][MOST];
  const Kind kind = static_cast<Warp *>(lanes[0])->kind;
  const int depth = kind == TF32 ? 8 : 16;
  for (int l = 0; l < 32; l++) {
    const Warp &w = *static_cast<Warp *>(lanes[l]);
    const int g = l / 4, t = l % 4;
    unpack(kind, l, w.a, a);
    for (int i = 0; i < 2; i++) {
      if (kind == TF32) b[t + 4 * i][g] = element(kind, w.b[i]);
      else
        for (int e = 0; e < 2; e++) b[2 * t + 8 * i + e][g] = part(kind, w.b[i], e);
    }
  }
  for (int row = 0; row < 16; row++) {
    double sums[8];
    auto d = [&](int col) { return static_cast<Warp *>(lanes[row % 8 * 4 + col / 2])->d + row / 8 * 2 + col % 2; };
    for (int col = 0; col < 8; col++) sums[col] = *d(col);
    multiply(sums, 8, depth, a[row], b);
    for (int col = 0; col < 8; col++) *d(col) = float(sums[col]);
  }
}

// Matrices is what a thread brings to a load of four matrices of eight rows of 16 bytes.
struct Matrices {
  uint32_t *r;
  const uint8_t *row;
  bool transposed;
};
inline void load(void *const *lanes) {
  uint16_t m[4][8][8];
  for (int l = 0; l < 32; l++) memcpy(m[l / 8][l % 8], static_cast<Matrices *>(lanes[l])->row, 16);
  for (int l = 0; l < 32; l++) {
    const Matrices &to = *static_cast<Matrices *>(lanes[l]);
    const int g = l / 4, t = l % 4;
    for (int j = 0; j < 4; j++)
      to.r[j] = to.transposed ? m[j][2 * t][g] | uint32_t(m[j][2 * t + 1][g]) << 16
                              : m[j][g][2 * t] | uint32_t(m[j][g][2 * t + 1]) << 16;
  }
}

// A Product of a warpgroup, [64, N], that is under way. It is done when all threads have come to it, at some time until
// one waits for it.
struct Product {
  Kind kind;
  int n;
  uint64_t a, b;
  bool registers, transA, transB, add;
  unsigned came;
  float *d[128];
  uint32_t words[128][4];  // of a, if it is in registers
};
struct Group {
  std::deque<Product> queue;
  unsigned done;  // products that are done
};
inline Group groups[8 * 16];  // of each block of a cluster
inline Group &group() { return groups[current->block->rank * 8 + current->index / 128]; }

// An Operand reads a matrix [outer, k] in shared memory through its descriptor: addresses and distances in units of 16
// bytes, and how the pieces of 16 bytes are permuted.
struct Operand {
  uint64_t start, lead, stride, span;  // span is the swizzle's bytes
  Kind kind;
  bool transposed;

  Operand(uint64_t d, Kind k, bool t) : kind(k), transposed(t) {
    static const uint64_t spans[] = {16, 128, 64, 32};
    start = current->block->shared.base + ((d & 0x3fff) << 4);
    lead = (d >> 16 & 0x3fff) << 4;
    stride = (d >> 32 & 0x3fff) << 4;
    span = spans[d >> 62];
    if (d >> 49 & 7) fail("a matrix descriptor with a base offset");
    if (transposed && span == 16) fail("a transposed operand without a swizzle");
  }
  // piece finds the 16 bytes that begin with an element: elements along k or, transposed, along the other axis.
  const void *piece(int outer, int k) const {
    const uint64_t size = kind == TF32 ? 4 : 2;
    uint64_t p = start;
    if (transposed) {
      const uint64_t x = outer * size;
      p += x / span * lead + x % span + k / 8 * stride + k % 8 * span;
    } else if (span == 16) {
      p += outer / 8 * stride + outer % 8 * 16 + k * size / 16 * lead;
    } else {
      p += outer / 8 * stride + outer % 8 * span + k * size;
    }
    p ^= (p >> 7 & (span / 16 - 1)) << 4;
    memory::access(reinterpret_cast<void *>(p), 16, false);
    memory::asynchronous(reinterpret_cast<void *>(p), 16);
    return reinterpret_cast<void *>(p);
  }
  // pieces gives f the pieces of n rows, a multiple of 8, each with the place of its first element.
  template <class F> void pieces(int n, F f) const {
    const int each = kind == TF32 ? 4 : 8, depth = 2 * each;
    for (int outer = 0; outer < n; outer += transposed ? each : 1)
      for (int k = 0; k < depth; k += transposed ? 1 : each) f(piece(outer, k), outer, k);
  }
  // read gives f each element with its place.
  template <class F> void read(int n, F f) const {
    const int each = kind == TF32 ? 4 : 8;
    pieces(n, [&](const void *p, int outer, int k) {
      uint32_t words[4];
      memcpy(words, p, 16);
      for (int e = 0; e < each; e++) {
        const float x = kind == TF32 ? element(kind, words[e]) : part(kind, words[e / 2], e % 2);
        f(outer + (transposed ? e : 0), k + (transposed ? 0 : e), x);
      }
    });
  }
};

inline void run(const Product &p) {
  static double a[64][16], b[16][MOST];
  const int depth = p.kind == TF32 ? 8 : 16;
  if (p.registers) {
    for (int t = 0; t < 128; t++) unpack(p.kind, t % 32, p.words[t], a + t / 32 * 16);
  } else {
    Operand(p.a, p.kind, p.transA).read(64, [](int i, int k, float x) { a[i][k] = x; });
  }
  Operand(p.b, p.kind, p.transB).read(p.n, [](int j, int k, float x) { b[k][j] = x; });
  for (int row = 0; row < 64; row++) {
    double sums[MOST];
    auto d = [&](int col) { return p.d[row / 16 * 32 + row % 8 * 4 + col % 8 / 2] + col / 8 * 4 + row % 16 / 8 * 2 + col % 2; };
    for (int col = 0; col < p.n; col++) sums[col] = p.add ? *d(col) : 0;
    multiply(sums, p.n, depth, a[row], b);
    for (int col = 0; col < p.n; col++) *d(col) = float(sums[col]);
  }
}

// step does the oldest product if all have come to it.
inline bool step(Group &g) {
  if (g.queue.empty() || g.queue.front().came < 128) return false;
  run(g.queue.front());
  g.queue.pop_front();
  g.done++;
  return true;
}

}  // namespace products

extern "C" {

void fusec_mma(int kind, float *d, const unsigned *a, const unsigned *b) {
  products::Warp w = {products::Kind(kind), d, a, b};
  fusec_together(products::warp, &w);
}

// Integers is what a lane brings to mma_integers: its part of d, a and b.
namespace products {
struct Integers { int *d; const unsigned *a, *b; };
inline void integers(void *const *lanes) {
  auto of = [&](int i) { return static_cast<const Integers *>(lanes[i]); };
  for (int i = 0; i < 32; i++) {
    for (int e = 0; e < 4; e++) {
      const int row = i / 4 + e / 2 * 8, column = i % 4 * 2 + e % 2;
      unsigned sum = of(i)->d[e];
      for (int k = 0; k < 32; k++) {
        const int lane = k % 16 / 4, shift = k % 4 * 8;
        const unsigned a = of(row % 8 * 4 + lane)->a[row / 8 + k / 16 * 2] >> shift;
        const unsigned b = of(column * 4 + lane)->b[k / 16] >> shift;
        sum += unsigned(int(int8_t(a)) * int(int8_t(b)));
      }
      of(i)->d[e] = int(sum);
    }
  }
}
}  // namespace products
void fusec_mma_integers(int *d, const unsigned *a, const unsigned *b) {
  products::Integers w = {d, a, b};
  fusec_together(products::integers, &w);
}

void fusec_load_matrices(unsigned *r, const void *row, bool transposed) {
  if (reinterpret_cast<uint64_t>(row) % 16) fail("a row of a matrix at %p, which is no multiple of 16", row);
  memory::access(row, 16, false);
  products::Matrices m = {r, static_cast<const uint8_t *>(row), transposed};
  fusec_together(products::load, &m);
}

void fusec_product(int kind, int n, float *d, const unsigned *words, unsigned long long a, unsigned long long b,
                   bool transA, bool transB, bool add) {
  using namespace products;
  Group &g = group();
  if (current->index / 128 * 128 + 128 > launch->block) fail("a product of a warpgroup that is not whole");
  const unsigned at = current->products++ - g.done;
  if (at >= g.queue.size()) g.queue.emplace_back();
  Product &p = g.queue[at];
  const int t = current->index % 128;
  if (p.came == 0) {
    p.kind = Kind(kind), p.n = n, p.a = a, p.b = b;
    p.registers = words, p.transA = transA, p.transB = transB, p.add = add;
  } else if (p.kind != kind || p.n != n || p.a != a || p.b != b || p.registers != !!words || p.transA != transA ||
             p.transB != transB || p.add != add) {
    fail("a product of a warpgroup for which its threads bring different operands");
  }
  p.d[t] = d;
  if (words) memcpy(p.words[t], words, sizeof p.words[t]);
  if (++p.came < 128) return;
  while (chance.below(2) && step(g)) {}
  for (unsigned i = current->index / 128 * 128, end = i + 128; i < end; i++) {
    Thread &o = threads[current->block->rank * launch->block + i];
    if (o.state == IN_PRODUCT) ready(&o);
  }
}
void fusec_product_commit() {
  current->productGroups[current->committed++ % 8] = current->products;
}
void fusec_product_wait(int left) {
  products::Group &g = products::group();
  if (left >= 8) fail("a wait that leaves %d groups of products", left);
  if (current->committed <= unsigned(left)) return;
  const unsigned need = current->productGroups[(current->committed - 1 - left) % 8];
  while (g.done < need)
    if (!products::step(g)) pause(IN_PRODUCT);
}
}
