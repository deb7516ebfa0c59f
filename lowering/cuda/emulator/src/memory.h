// Memory accesses: the compiler puts a call before each load and store of a kernel, as it does for a tool that finds
// races (-fsanitize=thread), and the calls are answered here. An access has to lie in memory that was allocated, or in
// the block's shared memory, and what is read has to have been written before.

#pragma once
#include <stdio.h>

#include "runtime.h"

namespace memory INTERNAL {

inline const Range *last;  // the range that was found last
inline Range fixed;        // the shared memory of a fixed size of all kernels of the library

inline const Range *find(uint64_t p) {
  const Range &shared = current->block->shared;
  if (p - shared.base < shared.bytes) return &shared;
  if (p - fixed.base < fixed.bytes) return &fixed;
  if (last && p - last->base < last->bytes) return last;
  if (p - reinterpret_cast<uint64_t>(launch->params) < launch->entry->params) return nullptr;
  size_t lo = 0, hi = launch->count;
  while (lo < hi) {
    const size_t mid = (lo + hi) / 2;
    const Range &r = launch->ranges[mid];
    if (p - r.base < r.bytes) return last = &r;
    if (p < r.base) hi = mid;
    else lo = mid + 1;
  }
  return nullptr;
}

// Memory around each range belongs to nobody: within so many bytes an address is taken for a miss of it, and elsewhere
// for memory that is no device's, such as the stack.
constexpr uint64_t near = 1 << 16;

// label names a range by the field of the kernel's parameter that points into it.
inline void label(char *to, size_t size, const Range &r) {
  if (&r == &current->block->shared || &r == &fixed) {
    snprintf(to, size, "%sshared memory of %llu bytes", &r == &fixed ? "fixed " : "", (unsigned long long)r.bytes);
    return;
  }
  int n = snprintf(to, size, "the memory of %llu bytes", (unsigned long long)r.bytes);
  for (size_t i = 0; i + 8 <= launch->entry->params; i += 8) {
    uint64_t p;
    memcpy(&p, static_cast<const uint8_t *>(launch->params) + i, 8);
    if (p - r.base >= r.bytes) continue;
    snprintf(to + n, size - n, " at byte %zu of Params", i);
    return;
  }
}

inline void miss(uint64_t p, size_t bytes, bool write) {
  if (p - reinterpret_cast<uint64_t>(launch->params) < launch->entry->params) return;
  const char *verb = write ? "writes" : "reads";
  auto tell = [&](const Range &r) {
    const bool after = p >= r.base;
    const uint64_t far = after ? p - (r.base + r.bytes) : r.base - p;
    char name[128];
    label(name, sizeof name, r);
    fail("%s %zu bytes, %llu bytes %s %s", verb, bytes, (unsigned long long)far,
         after ? "behind the end of" : "before the beginning of", name);
  };
  const Range &shared = current->block->shared;
  if (p + near > shared.base && p < shared.base + shared.bytes + near) tell(shared);
  const Range *nearest = nullptr;
  uint64_t least = near;
  for (uint64_t i = 0; i < launch->count; i++) {
    const Range &r = launch->ranges[i];
    const uint64_t d = p < r.base ? r.base - p : p - (r.base + r.bytes);
    if (d < least) least = d, nearest = &r;
  }
  if (nearest) tell(*nearest);
}

// unwritten reports the first byte from an offset on that was never written.
inline void unwritten(const Range &r, uint64_t offset) {
  while (r.known[offset]) offset++;
  char name[128];
  label(name, sizeof name, r);
  fail("reads byte %llu of %s, which was never written", (unsigned long long)offset, name);
}

template <class T> inline bool ones(const uint8_t *known) {
  T x;
  memcpy(&x, known, sizeof x);
  return x == T(0x0101010101010101ull);
}

// all tells whether all bytes are known: at once if they are as many as a register has.
inline bool all(const uint8_t *known, size_t bytes) {
  switch (bytes) {
    case 1: return ones<uint8_t>(known);
    case 2: return ones<uint16_t>(known);
    case 4: return ones<uint32_t>(known);
    case 8: return ones<uint64_t>(known);
    case 16: return ones<uint64_t>(known) && ones<uint64_t>(known + 8);
  }
  return !memchr(known, 0, bytes);
}

// Copies out of shared memory, and products with operands there, see what a thread has written after it has called shared_fence, or
// the thread that starts them has. Writes are numbered by the fences before them: above the 16 bits of the thread's index plus 1.
inline uint64_t fences;

inline void written(uint64_t offset, size_t bytes) {
  for (uint64_t i = offset / 16; i <= (offset + bytes - 1) / 16; i++)
    if (current->block->reading[i]) fail("writes byte %llu of shared memory, which a product under way reads", (unsigned long long)(16 * i));
  const uint64_t x = fences << 16 | (current->index + 1);
  for (uint64_t i = offset / 4; i <= (offset + bytes - 1) / 4; i++) current->block->writes[i] = x;
}
inline void asynchronous(const void *at, size_t bytes) {
  if (!current) return;
  const Block &b = *current->block;
  const uint64_t offset = reinterpret_cast<uint64_t>(at) - b.shared.base;
  if (offset >= b.shared.bytes) return;
  for (uint64_t i = offset / 4; i <= (offset + bytes - 1) / 4; i++) {
    const uint64_t x = b.writes[i], when = x >> 16;
    if (x == 0 || current->fenced > when) continue;
    const Thread &by = threads[b.rank * launch->block + (x & 0xffff) - 1];
    if (by.fenced <= when) fail("an asynchronous read of byte %llu of shared memory, which thread %u wrote without shared_fence since", (unsigned long long)(4 * i), by.index);
  }
}

__attribute__((always_inline)) inline void access(const void *at, size_t bytes, bool write) {
  if (!current || bytes == 0) return;
  const uint64_t p = reinterpret_cast<uint64_t>(at);
  if (p - reinterpret_cast<uint64_t>(current->stack.base) < Stack::whole) return;
  const Range *r = find(p);
  if (!r) return miss(p, bytes, write);
  if (bytes > r->base + r->bytes - p) miss(r->base + r->bytes, p + bytes - r->base - r->bytes, write);
  uint8_t *known = r->known + (p - r->base);
  if (write) {
    memset(known, 1, bytes);
    if (r == &current->block->shared) written(p - r->base, bytes);
  } else if (!all(known, bytes)) {
    unwritten(*r, p - r->base);
  }
}

}  // namespace memory
