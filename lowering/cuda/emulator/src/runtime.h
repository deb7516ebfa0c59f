// What the parts of the runtime share: the launch that Go hands over, the threads of the block that runs, and failing.

#pragma once
#include "fiber.h"
#include "host.h"

// A Range is memory of the device; see memory in Go. Bytes that were never written have a zero in known.
struct Range {
  uint64_t base, bytes;
  uint8_t *known;
};

// A Launch is what Go hands over, and what it is told; launchRecord in library.go is the same struct.
struct Launch {
  const host::Entry *entry;
  const void *params;
  uint64_t grid[3];
  uint64_t block, shared;
  uint64_t seed;
  const Range *ranges;  // by address
  uint64_t count;
  char error[1024];
};

enum State : uint8_t { FRESH, READY, AT_BARRIER, AT_CLUSTER, IN_COLLECTIVE, AT_COUNTER, AT_COUNT, IN_PRODUCT, DONE };

struct Barrier {
  unsigned expected, arrived;
};

// A Block and its shared memory. The blocks of a cluster run together, and all blocks of a TOGETHER_KERNEL.
struct Block {
  unsigned rank;
  uint3 index;
  Range shared;
  uint64_t *writes;  // who wrote each four bytes of it last; see memory.h
  uint8_t *reading;  // how many products into tensor memory that are not done read each 16 bytes of it
  Barrier barriers[16];
  unsigned ended;  // threads
};

// A Thread of a block.
struct Thread {
  unsigned index;
  State state;
  Block *block;
  void *sp;
  Stack stack;
  Thread *next;  // in the queue of those that can go on
  // Where it waits: at a barrier, in a collective of its warp, at a counter (mbarrier) in shared memory,
  // for a count in memory.
  int barrier;
  host::Collective kind;
  unsigned mask;
  uint64_t value;
  int from;
  const void *counter;
  // Groups of asynchronous work that it began, and of products of its warpgroup.
  unsigned group, bulkGroup;
  bool open, unread;  // copies from shared memory that are in no group yet, or that were not waited for
  unsigned products, committed, productGroups[8];
  uint64_t fenced;  // when it last had the asynchronous engines see what it has written
  uint64_t tensorBefore, tensorAfter;  // when it last ordered accesses of tensor memory before, and after, a barrier
};

#define INTERNAL __attribute__((visibility("hidden")))  // read without a look into a table of addresses
extern INTERNAL Thread *current;                         // null if none runs
extern INTERNAL Thread *threads;                         // of all blocks that run together, block after block
extern INTERNAL unsigned running;                        // how many that are
extern INTERNAL Launch *launch;

// blockOf is a block of the cluster that runs, null if it has no such block.
Block *blockOf(unsigned rank);

// A Random is the generator of Steele and others, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }
  unsigned below(unsigned n) { return uint64_t(uint32_t(next())) * n >> 32; }
};
extern INTERNAL Random chance;

// fail ends the launch with an error that names the kernel, the block and the thread that runs.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char *format, ...);

// ready puts a thread that waited into the queue; pause lets others run until somebody does so for the current one.
void ready(Thread *t);
void pause(State state);
