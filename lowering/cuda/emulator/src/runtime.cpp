// The runtime: runs the blocks of a launch one after another, in an order that the seed says, and the threads of a
// block in turn, each to the next point where it waits for others.

#include "runtime.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <numeric>

#include "async.h"
#include "memory.h"
#include "products.h"
#include "tensor.h"

uint3 threadIdx, blockIdx, blockDim, gridDim;

Thread *current, *threads;
unsigned running;
Launch *launch;
Random chance;

static void *scheduler;       // the stack from which threads are started
static bool failed;           // the launch
static bool lazy;             // copies are done when nothing else is left to do, in three launches of four
static Thread *first, *last;  // the queue of threads that can go on
static unsigned *order;       // in which the threads of the blocks begin
static unsigned started, ended;
constexpr unsigned mostThreads = 1024, mostBlocks = 160;  // of a block, that run together
static Stack spare[mostThreads * mostBlocks];
static unsigned spares;
static Block blocks[mostBlocks];
static struct { unsigned waiting, ended; } warps[mostThreads / 32 * mostBlocks];  // lanes in a collective, and those that are done
static Barrier clusterBarrier;

Block *blockOf(unsigned rank) { return rank < running / launch->block ? &blocks[rank] : nullptr; }

// where begins an error with the kernel and the block.
static int where(char *to, size_t size) {
  return snprintf(to, size, "kernel %s, block (%u, %u, %u)", launch->entry->name, blockIdx.x, blockIdx.y, blockIdx.z);
}

void fail(const char *format, ...) {
  int n = where(launch->error, sizeof launch->error);
  n += snprintf(launch->error + n, sizeof launch->error - n, ", thread %u: ", current->index);
  va_list args;
  va_start(args, format);
  vsnprintf(launch->error + n, sizeof launch->error - n, format, args);
  va_end(args);
  failed = true;
  void *abandoned;
  fusec_switch(&abandoned, scheduler);
  __builtin_unreachable();
}
void fusec_fail(const char *message) { fail("%s", message); }

void ready(Thread *t) {
  t->state = READY;
  t->next = nullptr;
  if (last) last->next = t;
  else first = t;
  last = t;
}

void pause(State state) {
  current->state = state;
  fusec_switch(&current->sp, scheduler);
}

static auto &warpOf(const Thread *t) { return warps[t->block->rank * (mostThreads / 32) + t->index / 32]; }

static void enter(Thread *t) {
  current = t;
  blockIdx = t->block->index;
  threadIdx = {t->index, 0, 0};
}

// fresh takes the next thread that has not begun.
static Thread *fresh() { return started < running ? &threads[order[started++]] : nullptr; }

// A stack goes from thread to thread as long as they end without having to wait.
static void begin() {
  for (;;) {
    launch->entry->run(launch->params);
    if (current->unread) fail("returns while copies from shared memory are under way");
    current->state = DONE;
    current->block->ended++;
    warpOf(current).ended |= 1u << current->index % 32;
    ended++;
    Thread *t = fresh();
    if (!t) break;
    t->stack = current->stack;
    current->stack.base = nullptr;
    enter(t);
  }
  fusec_switch(&current->sp, scheduler);
}

// list writes the threads of a block that are as one is, as ranges.
template <class F> static int list(char *to, size_t size, const Thread *of, F like) {
  int n = 0;
  for (unsigned i = 0; i < launch->block; i++) {
    if (!like(of[i])) continue;
    unsigned j = i;
    while (j + 1 < launch->block && like(of[j + 1])) j++;
    if (n < int(size)) n += snprintf(to + n, size - n, j > i ? "%s%u–%u" : "%s%u", n ? ", " : "", i, j);
    i = j;
  }
  return n < int(size) ? n : int(size) - 1;
}

// stuck reports what the threads of a block wait for when none can go on.
static void stuck() {
  static bool told[mostThreads];
  memset(told, 0, sizeof told);
  Block *block = blocks;
  while (block->ended == launch->block) block++;
  const Thread *of = threads + block->rank * launch->block;
  blockIdx = block->index;
  char *to = launch->error;
  const size_t size = sizeof launch->error;
  size_t n = where(to, size);
  n += snprintf(to + n, size - n, ": the threads wait for each other");
  for (unsigned i = 0; i < launch->block && n < size - 200; i++) {
    const Thread &t = of[i];
    if (told[i]) continue;
    auto like = [&](const Thread &u) {
      const bool same = u.state == t.state && (t.state != AT_BARRIER || u.barrier == t.barrier) &&
                        (t.state != IN_COLLECTIVE || (u.kind == t.kind && u.mask == t.mask)) &&
                        ((t.state != AT_COUNTER && t.state != AT_COUNT) || u.counter == t.counter);
      if (same) told[u.index] = true;
      return same;
    };
    n += snprintf(to + n, size - n, "; ");
    n += list(to + n, size - n - 160, of, like);
    const Barrier &b = block->barriers[t.barrier];
    auto say = [&](const char *format, auto... what) { n += snprintf(to + n, size - n, format, what...); };
    switch (t.state) {
      case AT_BARRIER: say(" at barrier %d (%u of %u came)", t.barrier, b.arrived, b.expected); break;
      case AT_CLUSTER: say(" at the cluster's barrier (%u of %u came)", clusterBarrier.arrived, running); break;
      case IN_COLLECTIVE: say(" in a collective of the lanes %08x of their warp", t.mask); break;
      case IN_PRODUCT: say(" for a product of their warpgroup"); break;
      case AT_COUNT: say(" for a count of blocks, which is %d", *static_cast<const int *>(t.counter)); break;
      case AT_COUNTER: {
        const Counter &c = *static_cast<const Counter *>(t.counter);
        const unsigned long long at = reinterpret_cast<uint64_t>(t.counter) - block->shared.base;
        say(" at the mbarrier at byte %llu of shared memory (%d arrivals, %d bytes missing)", at, int(c.missing),
            int(c.bytes));
        break;
      }
      default: say(" have returned");
    }
  }
  failed = true;
}

unsigned char *fusec_shared() { return reinterpret_cast<unsigned char *>(current->block->shared.base); }

// release lets threads go on, in some order.
template <class F> static void release(F waits) {
  const unsigned from = chance.below(running);
  for (unsigned i = 0, at = from; i < running; i++) {
    Thread &t = threads[order[at]];
    if (waits(t)) ready(&t);
    if (++at == running) at = 0;
  }
}

void fusec_barrier(int id, int count, bool wait) {
  const unsigned all = launch->block;
  if (id < 0 || id > 15) fail("barrier %d: there are 16", id);
  if (count < 0 || unsigned(count) > all || (count % 32 && unsigned(count) != all))
    fail("barrier %d: %d is no number of whole warps of a block of %u", id, count, all);
  Barrier &b = current->block->barriers[id];
  const unsigned expected = count ? count : all;
  if (b.arrived && b.expected != expected)
    fail("comes to barrier %d for %u threads, others came for %u", id, expected, b.expected);
  b.expected = expected;
  if (++b.arrived < expected) {
    if (wait) {
      current->barrier = id;
      pause(AT_BARRIER);
    }
    return;
  }
  b.arrived = 0;
  release([&](const Thread &t) { return t.state == AT_BARRIER && t.block == current->block && t.barrier == id; });
}

int fusec_rank() { return current->block->rank; }

void fusec_cluster_barrier() {
  if (++clusterBarrier.arrived < running) return pause(AT_CLUSTER);
  clusterBarrier.arrived = 0;
  release([](const Thread &t) { return t.state == AT_CLUSTER; });
}

// A thread that waits for a count is woken by each that counts, and looks again.
void fusec_arrive(int *count, int n) {
  memory::access(count, 4, true);
  *count += n;
  release([&](const Thread &t) { return t.state == AT_COUNT && t.counter == count; });
}
void fusec_await(const int *count, int n) {
  memory::access(count, 4, false);
  while (*count < n) {
    current->counter = count;
    pause(AT_COUNT);
  }
}

// A Call is what a lane brings to an instruction that is the whole warp's.
struct Call {
  void (*f)(void *const *lanes);
  void *mine;
};
static void call(Thread *lanes) {
  void *all[32];
  auto of = [&](int i) { return reinterpret_cast<Call *>(lanes[i].value); };
  for (int i = 0; i < 32; i++) {
    if (of(i)->f != of(0)->f) fail("lane %d of the warp is at another instruction than lane 0", i);
    all[i] = of(i)->mine;
  }
  of(0)->f(all);
}

// combine gives every lane its result when all have come.
static void combine(Thread *lanes, unsigned mask, host::Collective kind) {
  using namespace host;
  if (kind == TOGETHER) return call(lanes);
  uint64_t all = 0;
  bool begun = false;
  uint64_t value[32];
  for (int i = 0; i < 32; i++) {
    if (!(mask >> i & 1)) continue;
    const uint64_t v = value[i] = lanes[i].value;
    const uint32_t x = v, y = all;
    switch (kind) {
      case BALLOT: all |= v << i; break;
      case ANY: all |= v; break;
      case ALL: all = begun ? all & v : v; break;
      case ADD: all = x + y; break;
      case MIN: all = begun && int32_t(y) < int32_t(x) ? y : x; break;
      case MAX: all = begun && int32_t(y) > int32_t(x) ? y : x; break;
      case UMIN: all = begun && y < x ? y : x; break;
      case UMAX: all = begun && y > x ? y : x; break;
      case AND: all = begun ? x & y : x; break;
      case OR: all = x | y; break;
      case XOR: all = x ^ y; break;
      default: break;
    }
    begun = true;
  }
  for (int i = 0; i < 32; i++) {
    if (!(mask >> i & 1)) continue;
    Thread &t = lanes[i];
    t.value = all;
    if (kind == SHUFFLE) {
      if (t.from < 0 || t.from > 31 || !(mask >> t.from & 1))
        fail("a shuffle with the mask %08x: lane %d reads lane %d, which takes no part", mask, i, t.from);
      t.value = value[t.from];
    } else if (kind == MATCH) {
      t.value = 0;
      for (int j = 0; j < 32; j++)
        if (mask >> j & 1 && value[j] == value[i]) t.value |= 1ull << j;
    }
  }
}

uint64_t fusec_collective(host::Collective kind, unsigned mask, uint64_t value, int from) {
  const unsigned lane = current->index % 32, warp = current->index - lane;
  Thread *lanes = current - lane;
  if (launch->block - warp < 32 && mask == 0xffffffffu) mask >>= 32 - (launch->block - warp);
  if (!(mask >> lane & 1)) fail("a collective with the mask %08x, of which lane %u is no part", mask, lane);
  current->kind = kind;
  current->mask = mask;
  current->value = value;
  current->from = from;
  auto &w = warpOf(current);
  const unsigned others = mask & ~(1u << lane);
  if (others & w.ended) fail("a collective with the mask %08x: lane %d has returned", mask, __builtin_ctz(others & w.ended));
  const unsigned missing = others & ~w.waiting;
  for (unsigned left = others; left; left &= left - 1) {
    const int i = __builtin_ctz(left);
    if (missing >> i & 1) break;
    if (lanes[i].kind != kind || lanes[i].mask != mask)
      fail("a collective with the mask %08x: lane %d is in another, with the mask %08x", mask, i, lanes[i].mask);
    if (missing) break;  // the last to come looks at all
  }
  if (missing) {
    w.waiting |= 1u << lane;
    pause(IN_COLLECTIVE);
    return current->value;
  }
  combine(lanes, mask, kind);
  w.waiting &= ~mask;
  for (unsigned left = others; left; left &= left - 1) ready(&lanes[__builtin_ctz(left)]);
  return current->value;
}

void fusec_together(void (*f)(void *const *lanes), void *mine) {
  if (launch->block - current->index / 32 * 32 < 32) fail("an instruction of a warp that is not whole");
  Call c = {f, mine};
  fusec_collective(host::TOGETHER, 0xffffffffu, reinterpret_cast<uint64_t>(&c), 0);
}

void fusec_access(const void *p, size_t bytes, bool write) { memory::access(p, bytes, write); }

// The calls that the compiler puts before loads and stores.
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void **) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_read_range(void *p, unsigned long n) { memory::access(p, n, false); }
void __tsan_write_range(void *p, unsigned long n) { memory::access(p, n, true); }
void *__tsan_memcpy(void *to, const void *from, unsigned long n) {
  memory::access(from, n, false);
  memory::access(to, n, true);
  return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, unsigned long n) {
  memory::access(from, n, false);
  memory::access(to, n, true);
  return memmove(to, from, n);
}
void *__tsan_memset(void *to, int x, unsigned long n) {
  memory::access(to, n, true);
  return memset(to, x, n);
}
#define ACCESS(n)                                                                \
  void __tsan_read##n(void *p) { memory::access(p, n, false); }                  \
  void __tsan_write##n(void *p) { memory::access(p, n, true); }                  \
  void __tsan_unaligned_read##n(void *p) { memory::access(p, n, false); }        \
  void __tsan_unaligned_write##n(void *p) { memory::access(p, n, true); }        \
  void __tsan_volatile_read##n(void *p) { memory::access(p, n, false); }         \
  void __tsan_volatile_write##n(void *p) { memory::access(p, n, true); }         \
  void __tsan_unaligned_volatile_read##n(void *p) { memory::access(p, n, false); } \
  void __tsan_unaligned_volatile_write##n(void *p) { memory::access(p, n, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
#undef ACCESS
}

// Signals: what the processor refuses ends the launch, not the process.
static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction before[4];
static long runner;  // the thread of the process that runs the launch
static int caughtSignal;
static void *faultAddress;

static void handle(int signal, siginfo_t *info, void *context) {
  int i = 0;
  while (caught[i] != signal) i++;
  if (!current || syscall(SYS_gettid) != runner) {  // somebody else's
    if (before[i].sa_flags & SA_SIGINFO) {
      before[i].sa_sigaction(signal, info, context);
    } else if (before[i].sa_handler != SIG_IGN && before[i].sa_handler != SIG_DFL) {
      before[i].sa_handler(signal);
    } else {
      sigaction(signal, &before[i], nullptr);
    }
    return;
  }
  caughtSignal = signal;
  faultAddress = info->si_addr;
  // The thread goes on in the scheduler, on the scheduler's stack.
  ucontext_t *c = static_cast<ucontext_t *>(context);
#if defined(__x86_64__)
  c->uc_mcontext.gregs[REG_RSP] = reinterpret_cast<greg_t>(scheduler);
  c->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(fusec_restore);
#else
  c->uc_mcontext.sp = reinterpret_cast<uint64_t>(scheduler);
  c->uc_mcontext.pc = reinterpret_cast<uint64_t>(fusec_restore);
#endif
}

// fault reports what a signal said.
static void fault() {
  int n = where(launch->error, sizeof launch->error);
  n += snprintf(launch->error + n, sizeof launch->error - n, ", thread %u: ", current->index);
  char *to = launch->error + n;
  const size_t size = sizeof launch->error - n;
  if (caughtSignal == SIGFPE) snprintf(to, size, "an integer is divided by zero");
  else if (caughtSignal == SIGILL) snprintf(to, size, "an instruction that cannot be executed");
  else if (!current->stack.guarded(faultAddress)) snprintf(to, size, "accesses the address %p, where no memory is", faultAddress);
  else snprintf(to, size, "more than %zu bytes of local variables", Stack::size);
  failed = true;
}

// provide makes a block ready to run. Its shared memory ends at a page that cannot be touched.
static bool provide(Block *b) {
  static uint8_t *room[mostBlocks], *known[mostBlocks];
  static uint64_t *writes[mostBlocks];
  static uint8_t *reading[mostBlocks];
  constexpr size_t most = 256 << 10, guard = 64 << 10;
  if (!threads) {
    threads = static_cast<Thread *>(calloc(mostThreads * mostBlocks, sizeof(Thread)));
    order = static_cast<unsigned *>(malloc(mostThreads * mostBlocks * sizeof(unsigned)));
  }
  uint8_t *&memory = room[b->rank];
  if (!memory) {
    void *p = mmap(nullptr, most + 2 * guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    known[b->rank] = static_cast<uint8_t *>(malloc(most));
    writes[b->rank] = static_cast<uint64_t *>(malloc(most / 4 * sizeof(uint64_t)));
    reading[b->rank] = static_cast<uint8_t *>(malloc(most / 16));
    if (p == MAP_FAILED || !known[b->rank] || !writes[b->rank] || !reading[b->rank] || !threads || !order) return false;
    memory = static_cast<uint8_t *>(p);
    mprotect(memory, guard, PROT_NONE);
    mprotect(memory + guard + most, guard, PROT_NONE);
  }
  if (b->rank == 0) {
    static uint8_t knownFixed[256 << 10];
    const uint64_t fixed = launch->entry->fixed_end - launch->entry->fixed;
    if (fixed > sizeof knownFixed) return false;
    memory::fixed = {reinterpret_cast<uint64_t>(launch->entry->fixed), fixed, knownFixed};
    memset(launch->entry->fixed, 0xff, fixed);
    memset(knownFixed, 0, fixed);
  }
  const size_t bytes = launch->shared, rounded = (bytes + 1023) / 1024 * 1024;
  b->shared = {reinterpret_cast<uint64_t>(memory + guard + most - rounded), bytes, known[b->rank]};
  memset(reinterpret_cast<void *>(b->shared.base), 0xff, bytes);
  memset(b->shared.known, 0, bytes);
  b->writes = writes[b->rank];
  memset(b->writes, 0, (bytes + 3) / 4 * sizeof(uint64_t));
  b->reading = reading[b->rank];
  memset(b->reading, 0, (bytes + 15) / 16);
  memset(b->barriers, 0, sizeof b->barriers);
  b->ended = 0;
  return true;
}

// arrange puts the threads in the order in which they begin: warps in any, their lanes upwards or downwards.
static void arrange() {
  const unsigned n = launch->block, each = (n + 31) / 32, warps = running / n * each;
  static unsigned warp[mostThreads / 32 * mostBlocks];
  for (unsigned i = 0; i < warps; i++) {
    const unsigned j = chance.below(i + 1);
    warp[i] = warp[j];
    warp[j] = i;
  }
  unsigned at = 0;
  for (unsigned i = 0; i < warps; i++) {
    const unsigned from = warp[i] / each * n + warp[i] % each * 32, left = n - warp[i] % each * 32;
    const unsigned lanes = left < 32 ? left : 32;
    const bool down = chance.below(2);
    for (unsigned l = 0; l < lanes; l++) order[at++] = from + (down ? lanes - 1 - l : l);
  }
}

// finished looks for work that was begun and that nobody waited for.
static void finished() {
  const char *what = nullptr;
  for (const async::Copy &c : async::copies)
    if (c.counter) what = "copies to shared memory are under way";
  for (const products::Group &g : products::groups)
    if (!g.queue.empty()) what = "products of a warpgroup are under way";
  for (const tensor::Memory &m : tensor::memories)
    if (m.taken) what = "tensor memory is taken";
  if (!what) return;
  const int n = where(launch->error, sizeof launch->error);
  snprintf(launch->error + n, sizeof launch->error - n, ": the block ends while %s", what);
  failed = true;
}

// some does any work that is under way; false if there is none.
static bool some() {
  const unsigned copies = async::copies.size(), all = copies + tensor::waiting();
  if (all == 0) return false;
  const unsigned i = chance.below(all);
  if (i < copies) async::finish(i);
  else tensor::step(i - copies);
  return true;
}

// run runs blocks that run together, of which there may be one, to their end.
static void run() {
  const unsigned n = launch->block;
  first = last = nullptr;
  started = ended = 0;
  clusterBarrier = {};
  async::copies.clear();
  for (products::Group &g : products::groups) g.queue.clear(), g.done = 0;
  for (tensor::Memory &m : tensor::memories) tensor::clear(m);
  arrange();
  for (unsigned i = 0; i < running / n; i++) {
    for (unsigned w = 0; w < (n + 31) / 32; w++) {
      const unsigned left = n - 32 * w;
      warps[i * (mostThreads / 32) + w] = {0, left < 32 ? ~0u << left : 0};
    }
  }
  for (unsigned i = 0; i < running; i++) {
    threads[i] = {};
    threads[i].index = i % n;
    threads[i].block = &blocks[i / n];
  }
  while (ended < running && !failed) {
    if ((!async::copies.empty() || tensor::waiting()) && !lazy && chance.below(4) == 0) some();
    Thread *t = first;
    if (t) {
      first = t->next;
      if (!first) last = nullptr;
    } else if ((t = fresh())) {
      if (spares) t->stack = spare[--spares];
      else if (!t->stack.make()) abort();
      t->sp = prepare(t->stack.top, begin);
    } else if (some()) {
      continue;
    } else {
      stuck();
      break;
    }
    enter(t);
    t->state = READY;
    fusec_switch(&scheduler, t->sp);
    if (caughtSignal) fault();
    if (current->state == DONE && current->stack.base) {
      spare[spares++] = current->stack;
      current->stack.base = nullptr;
    }
  }
  if (!failed) finished();
  for (unsigned i = 0; i < running; i++)
    if (threads[i].stack.base) spare[spares++] = threads[i].stack;
  current = nullptr;
}

// fusec_launch runs all blocks and returns whether none failed.
extern "C" bool fusec_launch(Launch *l) {
  l->error[0] = 0;
  launch = l;
  memory::last = nullptr;
  failed = false;
  caughtSignal = 0;
  chance.state = l->seed;
  lazy = chance.below(4) != 0;
  runner = syscall(SYS_gettid);
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < 4; i++) sigaction(caught[i], &action, &before[i]);
  gridDim = {unsigned(l->grid[0]), unsigned(l->grid[1]), unsigned(l->grid[2])};
  blockDim = {unsigned(l->block), 1, 1};
  // A walk over all clusters with a stride that has no divisor in common with their number.
  const unsigned together = l->entry->cluster ? l->entry->cluster : l->grid[0];
  if (together > mostBlocks) {
    snprintf(l->error, sizeof l->error, "%u blocks at once, of at most %u", together, mostBlocks);
    failed = true;
  }
  running = together * l->block;
  const uint64_t wide = l->grid[0] / together, n = wide * l->grid[1] * l->grid[2];
  uint64_t step = n > 1 ? chance.next() % n : 1, at = n > 1 ? chance.next() % n : 0;
  while (std::gcd(step, n) != 1) step++;
  for (uint64_t i = 0; i < n && !failed; i++, at = (at + step) % n) {
    for (unsigned k = 0; k < together; k++) {
      Block &b = blocks[k];
      b.rank = k;
      const uint64_t yz = at / wide;
      b.index = {unsigned(at % wide * together + k), unsigned(yz % l->grid[1]), unsigned(yz / l->grid[1])};
      if (!provide(&b)) {
        snprintf(l->error, sizeof l->error, "no memory for a block");
        failed = true;
      }
    }
    if (!failed) run();
  }
  for (int i = 0; i < 4; i++) sigaction(caught[i], &before[i], nullptr);
  launch = nullptr;
  return !failed;
}

namespace host {

float f16_to_float(unsigned short x) {
  const unsigned sign = x << 16 & 0x80000000u, rest = x & 0x7fff;
  if (rest >= 0x7c00) return float_of(sign | (rest > 0x7c00 ? 0x7fc00000u : 0x7f800000u));
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));  // the exponent counts from another number
}

unsigned short float_to_f16(float x) {
  const unsigned short sign = bits_of(x) >> 16 & 0x8000;
  const float a = fabsf(x);
  if (a != a) return sign | 0x7e00;
  if (a >= 65520.0f) return sign | 0x7c00;
  if (a < 0x1p-14f) return sign | (bits_of(a + 0.5f) - bits_of(0.5f));  // the last bit of the sum is 2^-24
  const unsigned u = bits_of(a);
  return sign | (u - (112u << 23) + 0xfff + (u >> 13 & 1)) >> 13;
}

}  // namespace host
