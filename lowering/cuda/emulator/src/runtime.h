// What the parts of the runtime share: the launch that Go hands over, the threads of the block that runs, and failing.

#pragma once
#include "fiber.h"
#include "host.h"

// A Range is memory of the device; see memory in Go. Bytes that were never written have a zero in known.
struct Range {
  uint64_t base, bytes;
  uint8_t *known;
};

// A Launch is what Go hands over, and what it is told; the same struct stands in launch.go.
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

enum State : uint8_t { FRESH, READY, AT_BARRIER, IN_COLLECTIVE, WAITING, DONE };

// A Thread of the block.
struct Thread {
  unsigned index;
  State state;
  void *sp;
  Stack stack;
  Thread *next;  // in the queue of those that can go on
  // Where it waits: at a barrier, in a collective of its warp, or for something with a name.
  int barrier;
  host::Collective kind;
  unsigned mask;
  uint64_t value;
  int from;
  const char *what;
};

extern Thread *current;
extern Thread *threads;
extern Launch *launch;

// fail ends the launch with an error that names the kernel, the block and the thread that runs.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char *format, ...);

// ready puts a thread that waited into the queue; pause lets others run until somebody does so for the current one.
void ready(Thread *t);
void pause(State state);
