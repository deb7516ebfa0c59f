// Tensor memory and the products into it (tcgen05). Products of a block are done in the order in which they were called, each at
// some later time: at the latest when nothing else can go on. Sums are made as those of other matrix instructions are.

#pragma once
#include <deque>
#include <optional>

#include "async.h"
#include "products.h"

namespace tensor {

constexpr unsigned lanes = 128, columns = 512;

// A Form is what the number of a product says of its formats and its size.
struct Form {
  unsigned m, n;
  products::Kind kind;
  bool transA, transB;

  Form(uint32_t x, bool tf32) {
    static const products::Kind kinds[] = {products::F16, products::BF16, products::TF32};
    const uint32_t type = x >> 7 & 7;
    m = (x >> 24 & 31) * 16, n = (x >> 17 & 63) * 8;
    transA = x >> 15 & 1, transB = x >> 16 & 1;
    if ((x & ~0x1f7ffc00u & ~0x3bfu) || (x >> 4 & 3) != 1) fail("a product into tensor memory of the form %08x", x);
    if (type > 2 || (type == 2) != tf32 || (x >> 10 & 7) != type) fail("a product into tensor memory of the types %08x", x);
    if (m != lanes || n < 16 || n > 256 || n % 16) fail("a product into tensor memory of %u by %u", m, n);
    if (tf32 && (transA || transB)) fail("a product of tf32 that is not stored along k");
    kind = kinds[type];
  }
};

struct Product {
  Block *block;
  Form form;
  unsigned column;
  std::optional<products::Operand> a;  // or it is in tensor memory, from column stored on
  unsigned stored;
  products::Operand b;
  bool add;

  unsigned depth() const { return form.kind == products::TF32 ? 8 : 16; }
  // hold counts the product among those that read its operands in shared memory, or with −1 no more.
  void hold(int by) const {
    auto count = [&](const void *p, int, int) { block->reading[(reinterpret_cast<uint64_t>(p) - block->shared.base) / 16] += by; };
    if (a) a->pieces(lanes, count);
    b.pieces(form.n, count);
  }
};
// A Step is a product, or an arrival at a counter.
struct Step {
  std::optional<Product> product;
  Counter *counter;
};

// What is in a column of 16 lanes.
enum Content : uint8_t { NOTHING, SUMS, PAIRS };  // numbers of f32, or two of 16 bits for each

// Time counts accesses of tensor memory and what orders them.
inline uint64_t now;

// A Touch is the last access of a column of 16 lanes: by a warp, of which it names the first thread, or null by a product.
struct Touch {
  const Thread *by;
  uint64_t when;
  bool write;
};

// Memory is that of a block: the columns that it has taken, with what is in them.
struct Memory {
  std::deque<Step> queue;
  unsigned first, taken;
  Content content[columns][lanes / 16];
  // Products that are not done which write a column, and which read it.
  unsigned writing[columns], reading[columns];
  Touch touched[columns][lanes / 16];
  uint32_t at[lanes][columns];
};
inline Memory memories[16];
inline Memory &mine() { return memories[current->block->rank]; }

inline void clear(Memory &m) {
  m.queue.clear();
  m.taken = 0;
}

// columnOf is the first of n columns at an address, which have to be this block's.
inline unsigned columnOf(uint32_t at, unsigned n) {
  const Memory &m = mine();
  const unsigned c = at & 0xffff;
  if (c < m.first || c + n > m.first + m.taken) fail("columns %u to %u of tensor memory, of which it has %u from %u on", c, c + n - 1, m.taken, m.first);
  return c;
}

// has looks whether a column has a content, in 16 lanes.
inline void has(const Memory &m, unsigned column, unsigned sixteen, Content content) {
  const Content found = m.content[column][sixteen];
  if (found == NOTHING) fail("reads column %u of tensor memory, which was never written", column);
  if (found != content) fail("reads column %u of tensor memory as %s, which it has not", column, content == SUMS ? "numbers of f32" : "pairs of 16 bits");
}

inline const Thread *warpOf(const Thread *t) { return t - t->index % 32; }

// touch is an access by this thread's warp, or by a product that this thread starts. The last access may have been another warp's,
// or that of a product that is done: then the threads of that warp have to have ordered it before a barrier since, and the ones of
// this access after a barrier. Products are in order among themselves.
inline void touch(Memory &m, unsigned column, unsigned sixteen, bool write, bool product) {
  Touch &last = m.touched[column][sixteen];
  const Thread *const by = warpOf(current);
  if (last.by != by && (last.by || !product) && (last.write || write)) {
    for (int l = 0; l < 32; l++) {
      if (last.by && last.by[l].tensorBefore < last.when) fail("accesses column %u of tensor memory, as another warp has without tensor_before since", column);
      if ((product ? current : by + l)->tensorAfter < last.when) fail("accesses column %u of tensor memory without tensor_after since others have", column);
    }
  }
  if (!product) last = {by, ++now, write};
}

// A product has accessed a column.
inline void touched(Memory &m, unsigned column, bool write) {
  for (Touch &t : m.touched[column]) t = {nullptr, now, write};
}

inline void multiply(Memory &m, const Product &p) {
  static double a[lanes][16], b[16][products::MOST];
  now++;
  p.hold(-1);
  if (p.a) {
    p.a->read(lanes, [](int i, int k, float x) { a[i][k] = x; });
  } else {
    for (unsigned i = 0; i < lanes; i++)
      for (unsigned k = 0; k < p.depth(); k++) a[i][k] = products::part(p.form.kind, m.at[i][p.stored + k / 2], k % 2);
    for (unsigned k = 0; k < p.depth(); k += 2) {
      m.reading[p.stored + k / 2]--;
      touched(m, p.stored + k / 2, false);
    }
  }
  p.b.read(p.form.n, [](int j, int k, float x) { b[k][j] = x; });
  for (unsigned i = 0; i < lanes; i++) {
    double sums[products::MOST];
    uint32_t *const d = m.at[i] + p.column;
    for (unsigned j = 0; j < p.form.n; j++) sums[j] = p.add ? host::float_of(d[j]) : 0;
    products::multiply(sums, p.form.n, p.depth(), a[i], b);
    for (unsigned j = 0; j < p.form.n; j++) d[j] = host::bits_of(float(sums[j]));
  }
  for (unsigned j = 0; j < p.form.n; j++) {
    m.writing[p.column + j]--;
    touched(m, p.column + j, true);
  }
}

// waiting is how many blocks have something to do, and step does the oldest of the i-th. Operands were looked at when the product
// was called: no thread runs.
inline unsigned waiting() {
  unsigned n = 0;
  for (const Memory &m : memories) n += !m.queue.empty();
  return n;
}
inline void step(unsigned i) {
  for (Memory &m : memories) {
    if (m.queue.empty() || i-- > 0) continue;
    Thread *was = current;
    current = nullptr;
    const Step s = std::move(m.queue.front());
    m.queue.pop_front();
    if (s.product) {
      multiply(m, *s.product);
    } else {
      s.counter->missing--;
      async::settle(s.counter);
    }
    current = was;
    return;
  }
}

// A Request is what a lane brings to an instruction of its warp.
struct Request {
  uint32_t *address;
  void *d;
  uint32_t at;
  unsigned columns;
};
inline const Request &first(void *const *lanes) {
  const Request &r = *static_cast<Request *>(lanes[0]);
  for (int l = 1; l < 32; l++) {
    const Request &o = *static_cast<Request *>(lanes[l]);
    if (o.address != r.address || o.at != r.at || o.columns != r.columns) fail("lanes of a warp that name different tensor memory");
  }
  return r;
}

inline void take(void *const *lanes) {
  const Request &r = first(lanes);
  Memory &m = mine();
  if (r.columns < 32 || r.columns > columns || (r.columns & (r.columns - 1))) fail("takes %u columns of tensor memory", r.columns);
  if (m.taken) fail("takes tensor memory twice");
  m.taken = r.columns;
  memset(m.content, 0, sizeof m.content);
  memset(m.writing, 0, sizeof m.writing);
  memset(m.reading, 0, sizeof m.reading);
  m.first = chance.below((columns - r.columns) / 32 + 1) * 32;
  now++;
  for (auto &column : m.touched)
    for (Touch &t : column) t = {warpOf(current), now, true};
  memory::access(r.address, 4, true);
  *r.address = m.first;
}

inline void giveBack(void *const *lanes) {
  const Request &r = first(lanes);
  Memory &m = mine();
  if (r.columns != m.taken || r.at != m.first) fail("gives back %u columns of tensor memory at %08x, of %u at %u", r.columns, r.at, m.taken, m.first);
  if (!m.queue.empty()) fail("gives tensor memory back while products are under way");
  for (unsigned j = m.first; j < m.first + m.taken; j++)
    for (unsigned i = 0; i < tensor::lanes / 16; i++) touch(m, j, i, true, false);
  m.taken = 0;
}

// accessed are the columns and the first lane of an access of 16 lanes and 64 columns, which has to be this warp's.
inline unsigned accessed(const Request &r, unsigned *from) {
  *from = r.at >> 16;
  if (*from % 16 || *from / 32 != current->index / 32 % 4) fail("accesses lanes of tensor memory from %u on, which another warp can", *from);
  return columnOf(r.at, 64);
}

inline void load(void *const *lanes) {
  unsigned from;
  Memory &m = mine();
  const unsigned c = accessed(first(lanes), &from);
  for (unsigned j = c; j < c + 64; j++) {
    if (m.writing[j]) fail("reads column %u of tensor memory while a product is under way", j);
    has(m, j, from / 16, SUMS);
    touch(m, j, from / 16, false, false);
  }
  for (int l = 0; l < 32; l++) {
    float *d = static_cast<float *>(static_cast<Request *>(lanes[l])->d);
    for (int i = 0; i < 32; i++) d[i] = host::float_of(m.at[from + l / 4 + i / 2 % 2 * 8][c + i / 4 * 8 + l % 4 * 2 + i % 2]);
  }
}

template <Content CONTENT> void store(void *const *lanes) {
  unsigned from;
  Memory &m = mine();
  const unsigned c = accessed(first(lanes), &from);
  for (unsigned j = c; j < c + 64; j++) {
    if (m.writing[j] || m.reading[j]) fail("writes column %u of tensor memory while a product is under way", j);
    touch(m, j, from / 16, true, false);
    m.content[j][from / 16] = CONTENT;
  }
  for (int l = 0; l < 32; l++) {
    const uint32_t *d = static_cast<uint32_t *>(static_cast<Request *>(lanes[l])->d);
    for (int i = 0; i < 32; i++) {
      if (CONTENT == SUMS) m.at[from + l / 4 + i / 2 % 2 * 8][c + i / 4 * 8 + l % 4 * 2 + i % 2] = d[i];
      else m.at[from + l / 4 + i % 2 * 8][c + i / 2 * 4 + l % 4] = d[i];
    }
  }
}

// start puts a product into the queue.
inline void start(uint32_t d, const Product &p) {
  if (d >> 16) fail("a product into tensor memory from lane %u on", d >> 16);
  p.hold(1);
  Memory &m = mine();
  if (!p.a) {
    for (unsigned j = p.stored; j < p.stored + p.depth() / 2; j++) {
      for (unsigned i = 0; i < lanes / 16; i++) {
        has(m, j, i, PAIRS);
        touch(m, j, i, false, true);
      }
      m.reading[j]++;
    }
  }
  for (unsigned j = p.column; j < p.column + p.form.n; j++) {
    for (unsigned i = 0; i < lanes / 16; i++) {
      if (p.add) has(m, j, i, SUMS);
      touch(m, j, i, true, true);
      m.content[j][i] = SUMS;
    }
    m.writing[j]++;
  }
  m.queue.push_back({p, nullptr});
}

inline void descriptor(uint64_t x) {
  if ((x >> 46 & 7) != 1 || x >> 61 != 2) fail("a matrix descriptor %016llx for tensor memory", (unsigned long long)x);
}

}  // namespace tensor

extern "C" {

void fusec_tensor_take(unsigned *address, int columns) {
  tensor::Request r = {address, nullptr, 0, unsigned(columns)};
  fusec_together(tensor::take, &r);
}
void fusec_tensor_give_back(unsigned at, int columns) {
  tensor::Request r = {nullptr, nullptr, at, unsigned(columns)};
  fusec_together(tensor::giveBack, &r);
}
void fusec_tensor_before() { current->tensorBefore = ++tensor::now; }
void fusec_tensor_after() { current->tensorAfter = ++tensor::now; }
void fusec_tensor_load(float *d, unsigned at) {
  tensor::Request r = {nullptr, d, at, 0};
  fusec_together(tensor::load, &r);
}
void fusec_tensor_store(unsigned at, const void *d, bool pairs) {
  tensor::Request r = {nullptr, const_cast<void *>(d), at, 0};
  fusec_together(pairs ? tensor::store<tensor::PAIRS> : tensor::store<tensor::SUMS>, &r);
}
void fusec_tensor_product(bool tf32, unsigned d, unsigned long long a, unsigned long long b, unsigned form, bool add) {
  tensor::descriptor(a);
  tensor::descriptor(b);
  const tensor::Form f(form, tf32);
  const products::Operand left(a, f.kind, f.transA), right(b, f.kind, f.transB);
  tensor::start(d, {current->block, f, tensor::columnOf(d, f.n), left, 0, right, add});
}
void fusec_tensor_product_stored(unsigned d, unsigned a, unsigned long long b, unsigned form, bool add) {
  tensor::descriptor(b);
  const tensor::Form f(form, false);
  if (f.transA) fail("a transposed operand in tensor memory");
  if (a >> 16) fail("an operand in tensor memory from lane %u on", a >> 16);
  const products::Operand right(b, f.kind, f.transB);
  tensor::start(d, {current->block, f, tensor::columnOf(d, f.n), std::nullopt, tensor::columnOf(a, 8), right, add});
}
void fusec_tensor_commit(unsigned long long *bar) { tensor::mine().queue.push_back({std::nullopt, counter(bar)}); }
}
