// Fibers: the threads of a block, each on a stack of its own, that hand the processor to one another by themselves. A
// switch saves the registers that a function must keep, and nothing else: about a nanosecond.

#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

// fusec_switch saves where it was called in *save and goes on where `to` was saved. fusec_restore is its second half; a
// signal handler sends a thread there that cannot go on.
extern "C" void fusec_switch(void **save, void *to);
extern "C" void fusec_restore();

#if defined(__x86_64__)
asm(R"(
.text
.globl fusec_switch
.hidden fusec_switch
.type fusec_switch, @function
fusec_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
.globl fusec_restore
.hidden fusec_restore
fusec_restore:
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size fusec_switch, .-fusec_switch
)");
inline void *prepare(uint8_t *top, void (*start)()) {
  void **sp = reinterpret_cast<void **>(top) - 8;
  for (int i = 0; i < 8; i++) sp[i] = nullptr;
  sp[6] = reinterpret_cast<void *>(start);
  return sp;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl fusec_switch
.hidden fusec_switch
.type fusec_switch, %function
fusec_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
.globl fusec_restore
.hidden fusec_restore
fusec_restore:
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size fusec_switch, .-fusec_switch
)");
inline void *prepare(uint8_t *top, void (*start)()) {
  void **sp = reinterpret_cast<void **>(top) - 20;
  for (int i = 0; i < 20; i++) sp[i] = nullptr;
  sp[11] = reinterpret_cast<void *>(start);
  return sp;
}
#else
#error "the emulator knows x86-64 and arm64"
#endif

// A Stack is memory that grows downwards to a page that cannot be touched. Stacks begin at different places in their pages: else
// what they use would share few lines of the processor's caches.
struct Stack {
  static constexpr size_t size = 256 << 10, guard = 64 << 10, shift = 17 * 64, shifts = 61;
  static constexpr size_t whole = guard + size + shift * shifts;
  uint8_t *base, *top;
  bool make() {
    static unsigned made;
    void *p = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    mprotect(p, guard, PROT_NONE);
    base = static_cast<uint8_t *>(p);
    top = base + guard + size + shift * (made++ % shifts);
    return true;
  }
  bool guarded(const void *p) const { return p >= base && p < base + guard; }
};
