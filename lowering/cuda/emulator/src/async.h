// Copies to and from shared memory in the background, and the counters (mbarrier) that tell when they have come.
//
// A copy is checked when it begins, and done at some later time: at the latest when a thread waits for it, or when
// nothing else can go on. Until then its destination counts as never written, so that who reads too early is found.

#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "memory.h"

namespace async {

// A Map is what EncodeMap writes into the 128 bytes of a tensor map.
struct Map {
  char mark[8];
  uint64_t base;
  struct { uint32_t last, box; } axes[5];
  uint64_t strides[4];
  uint32_t rank, size, swizzle;
  // Of columns and rows; steps of 0: none.
  struct __attribute__((packed)) { uint8_t step; int8_t first; uint32_t count; } windows[2];
};
static_assert(sizeof(Map) == 112, "as EncodeMap writes it");

// A Counter is the meaning of the 8 bytes of an mbarrier: a phase is over when no arrival and no byte is missing.
struct Counter {
  uint64_t all : 20, missing : 20, phase : 1;
  int64_t bytes : 23;
};
static_assert(sizeof(Counter) == 8, "an mbarrier");

inline Counter *counter(void *p) {
  if (reinterpret_cast<uint64_t>(p) % 8) fail("an mbarrier at %p, which is no multiple of 8", p);
  memory::access(p, 8, false);
  return static_cast<Counter *>(p);
}

inline void settle(Counter *c) {
  if (c->missing != 0 || c->bytes != 0) return;
  c->missing = c->all;
  c->phase ^= 1;
  for (unsigned i = 0; i < running; i++)
    if (threads[i].state == AT_COUNTER && threads[i].counter == c) ready(&threads[i]);
}

// A Box of a tensor, at coordinates.
struct Box {
  Map map;
  int64_t at[5];
  int64_t offset[2];  // of a tap, along columns and rows

  uint32_t rows() const {
    uint32_t n = 1;
    for (uint32_t i = 1; i < map.rank; i++) n *= map.axes[i].box;
    return n;
  }

  // find says where row r of the box is, if it is in the tensor: of a map with windows, at the r-th position from `at` on, which
  // go along a row of positions, to the next one, and to the next image.
  bool find(uint32_t r, const uint8_t **row) const {
    int64_t x[5];
    bool inside = true;
    *row = reinterpret_cast<const uint8_t *>(map.base);
    for (uint32_t i = 1, rest = r; i < map.rank; i++) {
      x[i] = at[i] + rest % map.axes[i].box;
      rest /= map.axes[i].box;
    }
    if (map.windows[0].step) {
      int64_t carry = r;
      for (int i = 0; i < 2; i++) {
        const auto &w = map.windows[i];
        const int64_t position = (at[1 + i] - w.first) / w.step + carry;
        carry = position / w.count;
        x[1 + i] = position % w.count * w.step + w.first + offset[i];
      }
      x[3] = at[3] + carry;
    }
    for (uint32_t i = 1; i < map.rank; i++) {
      inside = inside && x[i] >= 0 && x[i] <= map.axes[i].last;
      *row += x[i] * int64_t(map.strides[i - 1]);
    }
    return inside;
  }

  // access checks that the parts of the tensor that the box meets are memory, with something in it if they are read.
  void access(bool write) const {
    const int64_t end = int64_t(map.axes[0].last) + 1;
    const int64_t lo = std::max<int64_t>(at[0], 0), hi = std::min<int64_t>(at[0] + map.axes[0].box, end);
    for (uint32_t r = 0, all = rows(); r < all; r++) {
      const uint8_t *row;
      if (find(r, &row) && lo < hi) memory::access(row + lo * map.size, (hi - lo) * map.size, write);
    }
  }
};

// boxOf is the box of a tensor map at coordinates.
inline std::shared_ptr<Box> boxOf(const void *map, const int *at, int rank) {
  auto box = std::make_shared<Box>();
  memcpy(&box->map, map, sizeof box->map);
  const Map &m = box->map;
  if (reinterpret_cast<uint64_t>(map) % 64) fail("a tensor map at %p, which is no multiple of 64", map);
  if (memcmp(m.mark, "fusecmap", 8)) fail("a tensor map that nobody has encoded");
  if (int(m.rank) != rank) fail("%d coordinates for a tensor map of %u axes", rank, m.rank);
  for (int i = 0; i < rank; i++) box->at[i] = at[i];
  return box;
}

// A Copy that is under way.
struct Copy {
  Thread *owner;
  unsigned group;
  uint32_t bytes;
  bool out;      // from shared memory to the device's, else the other way
  bool there;    // or zeros
  Block *block;  // whose shared memory it is to
  uint8_t *to;
  const uint8_t *from;
  Counter *counter;                // or null
  std::shared_ptr<const Box> box;  // or null
};
inline std::vector<Copy> copies;  // in no order

// note says whether what a copy brings to shared memory is there.
inline void note(const Copy &c, uint8_t known) {
  if (c.out) return;
  const uint64_t offset = reinterpret_cast<uint64_t>(c.to) - c.block->shared.base;
  memset(c.block->shared.known + offset, known, c.bytes);
  memset(c.block->writes + offset / 4, 0, c.bytes / 4 * sizeof(uint64_t));
}

// box calls move with each piece of a box, of 16 bytes or what of them is in the tensor, in the tensor and in shared memory. Of a
// box that is copied there, what lies outside of the tensor is zero. Rows of a box are whole pieces.
template <class F> inline void box(const Copy &c, F move) {
  const Map &m = c.box->map;
  const uint32_t width = m.axes[0].box * m.size;
  const int64_t from = c.box->at[0] * m.size, end = (int64_t(m.axes[0].last) + 1) * m.size;
  const uint64_t begin = reinterpret_cast<uint64_t>(c.out ? c.from : c.to);
  for (uint32_t r = 0, rows = c.box->rows(); r < rows; r++) {
    const uint8_t *row;
    const bool inside = c.box->find(r, &row);
    for (uint32_t b = 0; b < width; b += 16) {
      // The swizzle permutes pieces by bits of the address.
      uint64_t p = begin + uint64_t(r) * width + b;
      if (m.swizzle) p ^= (p >> 7 & (m.swizzle / 16 - 1)) << 4;
      uint8_t *const piece = reinterpret_cast<uint8_t *>(p);
      const int64_t x = from + b, lo = std::max<int64_t>(x, 0), hi = std::min(x + 16, end);
      if (!c.out && (!inside || hi - lo < 16)) memset(piece, 0, 16);
      if (inside && lo < hi) move(const_cast<uint8_t *>(row) + lo, piece + (lo - x), hi - lo);
    }
  }
}

// finish does copy number i.
inline void finish(size_t i) {
  const Copy c = std::move(copies[i]);
  if (i + 1 < copies.size()) copies[i] = std::move(copies.back());
  copies.pop_back();
  if (c.box && c.out) box(c, [](uint8_t *tensor, const uint8_t *piece, int64_t bytes) { memcpy(tensor, piece, bytes); });
  else if (c.box) box(c, [](const uint8_t *tensor, uint8_t *piece, int64_t bytes) { memcpy(piece, tensor, bytes); });
  else if (c.there) memcpy(c.to, c.from, c.bytes);
  else memset(c.to, 0, c.bytes);
  note(c, 1);
  if (c.counter) {
    c.counter->bytes -= c.bytes;
    settle(c.counter);
  }
}

inline void start(Copy c) {
  c.owner = current;
  memory::access(c.to, c.bytes, true);
  note(c, 0);
  copies.push_back(std::move(c));
}

// elsewhere is the place in the shared memory of another block of the cluster that p is in this one's.
inline void *elsewhere(const void *p, const Block *b) {
  return reinterpret_cast<void *>(reinterpret_cast<uint64_t>(p) - current->block->shared.base + b->shared.base);
}

}  // namespace async

using async::counter;
using async::Counter;

extern "C" {

void fusec_copy_async(void *to, const void *from, int bytes, bool there) {
  const uint64_t low = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from);
  if (low % bytes) fail("an asynchronous copy of %d bytes from %p to %p, which are not aligned to it", bytes, from, to);
  if (there) memory::access(from, bytes, false);
  async::Copy c = {};
  c.group = current->group;
  c.block = current->block;
  c.to = static_cast<uint8_t *>(to);
  c.from = static_cast<const uint8_t *>(from);
  c.bytes = bytes;
  c.there = there;
  async::start(c);
}
void fusec_copy_commit() { current->group++; }
void fusec_copy_wait(int left) {
  for (size_t i = 0; i < async::copies.size();) {
    const async::Copy &c = async::copies[i];
    if (c.owner == current && !c.out && !c.counter && c.group + left < current->group) async::finish(i);
    else i++;
  }
}

void fusec_counter_init(unsigned long long *p, int count) {
  if (count < 1 || count >= 1 << 20) fail("an mbarrier for %d arrivals", count);
  memory::access(p, 8, true);
  Counter *c = counter(p);
  *c = {};
  c->all = c->missing = count;
}
// rank names a block of the cluster, −1 this one.
void fusec_counter_arrive(unsigned long long *p, int rank, int bytes) {
  if (rank >= 0) {
    const Block *b = blockOf(rank);
    if (!b) fail("arrives at an mbarrier of block %d of its cluster, which there is not", rank);
    if (b->ended == launch->block) fail("arrives at an mbarrier of block %d of its cluster, which has ended", rank);
    p = static_cast<unsigned long long *>(async::elsewhere(p, b));
  }
  Counter *c = rank >= 0 ? reinterpret_cast<Counter *>(p) : counter(p);
  if (bytes < 0 || bytes >= 1 << 20) fail("an mbarrier is to expect %d bytes", bytes);
  c->bytes += bytes;
  c->missing--;
  async::settle(c);
}
// The place of p in the shared memory of a block of the cluster, to be read.
const void *fusec_elsewhere(const void *p, int rank, int bytes) {
  const Block *b = blockOf(rank);
  if (!b) fail("reads shared memory of block %d of its cluster, which there is not", rank);
  if (b->ended == launch->block) fail("reads shared memory of block %d of its cluster, which has ended", rank);
  const Range &own = current->block->shared;
  const uint64_t at = reinterpret_cast<uint64_t>(p) - own.base;
  if (at >= own.bytes || uint64_t(bytes) > own.bytes - at) memory::miss(reinterpret_cast<uint64_t>(p), bytes, false);
  if (!memory::all(b->shared.known + at, bytes)) memory::unwritten(b->shared, at);
  return async::elsewhere(p, b);
}
// Writes to the place of p in the shared memory of a block of the cluster.
void fusec_cluster_send(void *p, const void *x, int bytes, int rank, unsigned long long *bar) {
  Block *b = blockOf(rank);
  if (!b) fail("sends to block %d of its cluster, which there is not", rank);
  if (b->ended == launch->block) fail("sends to block %d of its cluster, which has ended", rank);
  counter(bar);
  Counter *c = static_cast<Counter *>(async::elsewhere(bar, b));
  void *const to = async::elsewhere(p, b);
  memory::access(to, bytes, true);
  memcpy(to, x, bytes);
  memset(b->shared.known + (reinterpret_cast<uint64_t>(to) - b->shared.base), 1, bytes);
  c->bytes -= bytes;
  async::settle(c);
}
void fusec_counter_wait(unsigned long long *p, unsigned phase) {
  Counter *c = counter(p);
  if (c->phase != (phase & 1)) return;
  current->counter = c;
  pause(AT_COUNTER);
}

// offset is that of a tap, for a map with windows.
void fusec_tma_load(void *to, const void *map, unsigned long long *bar, const int *at, int rank, const int *offset, unsigned mask) {
  auto box = async::boxOf(map, at, rank);
  const async::Map &m = box->map;
  if (!offset != !m.windows[0].step) fail("a tensor map %s windows for a copy of the other kind", offset ? "without" : "with");
  for (int i = 0; offset && i < 2; i++) {
    const int64_t along = at[1 + i] - m.windows[i].first;
    if (along < 0 || along % m.windows[i].step || along / m.windows[i].step >= m.windows[i].count)
      fail("a copy begins at %d along axis %d, which is no position of a window", at[1 + i], 1 + i);
    if (offset[i] < 0 || offset[i] > 255) fail("a tap is %d from the first", offset[i]);
    box->offset[i] = offset[i];
  }
  if (reinterpret_cast<uint64_t>(to) % 128) fail("a box is copied to %p, which is no multiple of 128", to);
  async::Copy c = {};
  c.bytes = box->rows() * m.axes[0].box * m.size;
  box->access(false);
  c.box = std::move(box);
  counter(bar);
  for (int k = 0; k < (mask ? 16 : 1); k++) {
    if (mask && !(mask >> k & 1)) continue;
    Block *b = mask ? blockOf(k) : current->block;
    if (!b) fail("a box is copied to block %d of its cluster, which there is not", k);
    c.block = b;
    c.to = static_cast<uint8_t *>(async::elsewhere(to, b));
    c.counter = static_cast<Counter *>(async::elsewhere(bar, b));
    async::start(c);
  }
}
void fusec_bulk_load(void *to, const void *from, int bytes, unsigned long long *bar) {
  const uint64_t low = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | uint64_t(bytes);
  if (bytes < 16 || low % 16) fail("a copy of %d bytes from %p to %p, which are no multiples of 16", bytes, from, to);
  memory::access(from, bytes, false);
  async::Copy c = {};
  c.block = current->block;
  c.to = static_cast<uint8_t *>(to);
  c.from = static_cast<const uint8_t *>(from);
  c.bytes = bytes;
  c.there = true;
  c.counter = counter(bar);
  async::start(c);
}
void fusec_bulk_prefetch(const void *from, int bytes) {
  if (bytes < 16 || (reinterpret_cast<uint64_t>(from) | uint64_t(bytes)) % 16) {
    fail("a prefetch of %d bytes from %p, which are no multiples of 16", bytes, from);
  }
  memory::access(from, bytes, false);
}
void fusec_bulk_store(void *to, const void *from, int bytes) {
  const uint64_t low = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | uint64_t(bytes);
  if (bytes < 16 || low % 16) fail("a copy of %d bytes from %p to %p, which are no multiples of 16", bytes, from, to);
  memory::access(from, bytes, false);
  memory::asynchronous(from, bytes);
  async::Copy c = {};
  c.group = current->bulkGroup;
  c.out = current->unread = current->open = true;
  c.to = static_cast<uint8_t *>(to);
  c.from = static_cast<const uint8_t *>(from);
  c.bytes = bytes;
  c.there = true;
  async::start(c);
}
void fusec_tma_store(const void *map, const void *from, const int *at, int rank) {
  auto box = async::boxOf(map, at, rank);
  if (box->map.windows[0].step) fail("a tensor map with windows for a copy out of shared memory");
  if (reinterpret_cast<uint64_t>(from) % 128) fail("a box is copied from %p, which is no multiple of 128", from);
  async::Copy c = {};
  c.owner = current;
  c.group = current->bulkGroup;
  c.out = current->unread = current->open = true;
  c.from = static_cast<const uint8_t *>(from);
  box->access(true);
  c.box = std::move(box);
  async::box(c, [](uint8_t *, const uint8_t *piece, int64_t bytes) {
    memory::access(piece, bytes, false);
    memory::asynchronous(piece, bytes);
  });
  async::copies.push_back(std::move(c));
}
void fusec_shared_fence() { current->fenced = ++memory::fences; }
void fusec_bulk_commit() {
  current->bulkGroup++;
  current->open = false;
}
void fusec_bulk_wait(int left) {
  current->unread = current->open;
  for (size_t i = 0; i < async::copies.size();) {
    const async::Copy &c = async::copies[i];
    const bool waits = c.owner == current && c.out;
    if (waits && c.group + left < current->bulkGroup) {
      async::finish(i);
    } else {
      current->unread = current->unread || waits;
      i++;
    }
  }
}
}
