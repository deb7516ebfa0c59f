// Features of Hopper: the copy engine (TMA) and barriers that count its bytes, which later chips have, too; products of a
// warpgroup (wgmma) on operands in shared memory, which sm_90a has alone; and the division of registers among warpgroups. See
// the PTX ISA. For the emulator they are in host.h.

#ifndef FUSEC_HOST

// A tensor map is made by the driver; see cuTensorMapEncodeTiled. Its place in Params is the address for the engine.
struct alignas(64) TensorMap { u64 words[16]; };

DEVICE u32 shared_address(const void *p) { return u32(__cvta_generic_to_shared(p)); }

// A barrier in shared memory counts arrivals and bytes; its phase, 0 or 1, changes when both are complete.
DEVICE void barrier_init(u64 *bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
// Makes the initialised barriers visible to the copy engine.
DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_arrive(u64 *bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
// An arrival that also announces bytes.
DEVICE void barrier_expect(u64 *bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
DEVICE bool barrier_try(u64 *bar, u32 phase) {
  u32 done;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(shared_address(bar)), "r"(phase)
               : "memory");
  return done;
}
// Waits until the phase of that parity is over.
DEVICE void barrier_wait(u64 *bar, u32 phase) {
#ifdef SPIN_LIMIT
  for (long long i = 0; i < SPIN_LIMIT; i++)
    if (barrier_try(bar, phase)) return;
  __trap();
#else
  while (!barrier_try(bar, phase)) {}
#endif
}

// An arrival at the same barrier of another block of the cluster. It does not order memory accesses, which would cost a fence of the whole device: the arrival announces only reads by
// wgmma that have been waited for.
DEVICE void barrier_arrive_at(u64 *bar, int rank) {
  asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(shared_address(bar)), "r"(rank)
               : "memory");
}

// Named barriers of the block, 1 to 15: sync waits for the given number of threads, arrive does not wait.
DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Copies a box of a tensor into shared memory.
DEVICE void tma_load(void *to, const TensorMap *map, u64 *bar, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
// The same into the shared memory, at the same offset, of every block of the cluster in mask. The barrier of each block
// counts its bytes.
DEVICE void tma_multicast(void *to, const TensorMap *map, u64 *bar, int c0, int c1, int c2, int c3, u32 mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(u16(mask))
      : "memory");
}
// The cache policy of what is read once, as createpolicy makes it of L2::evict_first for all.
constexpr u64 READ_ONCE = 0x12f0000000000000;
// The same, of what is read once: it is the first to leave the L2 cache.
DEVICE void tma_stream(void *to, const TensorMap *map, u64 *bar, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(READ_ONCE)
      : "memory");
}
DEVICE void tma_stream(void *to, const TensorMap *map, u64 *bar, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
      ::"r"(shared_address(to)), "l"(map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(READ_ONCE)
      : "memory");
}
// Copies channels from c on of patches of images, by a tensor map with windows, for the positions from (x, y) of image n on:
// along a row of them, then the next rows, then the next images. The tap is (dx, dy) from each. What is outside is 0.
DEVICE void tma_patches(void *to, const TensorMap *map, u64 *bar, int c, int x, int y, int n, int dx, int dy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2], "
      "{%7, %8};" ::"r"(shared_address(to)), "l"(map), "r"(shared_address(bar)), "r"(c), "r"(x), "r"(y), "r"(n), "h"(u16(dx)),
      "h"(u16(dy))
      : "memory");
}
DEVICE void tma_patches_multicast(void *to, const TensorMap *map, u64 *bar, int c, int x, int y, int n, int dx, int dy, u32 mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(shared_address(to)), "l"(map), "r"(shared_address(bar)), "r"(c),
      "r"(x), "r"(y), "r"(n), "h"(u16(dx)), "h"(u16(dy)), "h"(u16(mask))
      : "memory");
}
// Copies bytes, a multiple of 16 as both addresses are, into shared memory.
DEVICE void bulk_load(void *to, const void *from, int bytes, u64 *bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)) : "memory");
}
// The same, of what is read once.
DEVICE void bulk_stream(void *to, const void *from, int bytes, u64 *bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(READ_ONCE) : "memory");
}
// Brings bytes to the L2 cache.
DEVICE void bulk_prefetch(const void *from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
DEVICE void tma_prefetch(const TensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// A number in device memory that other blocks write by store_release, after what they wrote before it.
DEVICE int load_acquire(const int *p) {
  int x;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}
DEVICE void store_release(int *p, int x) { asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(x) : "memory"); }
// The blocks of a launch that run at the same time wait for one another at counts in device memory: count_arrive adds n, and
// announces what the thread has written, and what others have written that it has waited for; count_await waits until there are n.
DEVICE void count_arrive(int *count, int n) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(count), "r"(n) : "memory");
}
DEVICE void count_await(const int *count, int n) {
  while (load_acquire(count) < n) {}
}
// An entry whose blocks run at the same time.
#define TOGETHER_KERNEL(name, threads) KERNEL(name, threads, 1)
// Adds to numbers in device memory without waiting for it.
DEVICE void add4(float4 *p, float x, float y, float z, float w) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

template <int N> DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most N groups are under way.
template <int N> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Keeps the compiler from moving accesses of these registers across this place.
template <int N> DEVICE void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Keeps the compiler from computing what depends on x before this place, and from keeping that in registers.
DEVICE u64 here(u64 x) { asm volatile("" : "+l"(x)); return x; }

// Describes an operand in shared memory in the swizzle of 128 bytes: rows of 128 bytes, eight to an atom of 1024. stride
// is the distance of atoms along the rows' axis, lead along the other where that is longer than 128 bytes.
DEVICE u64 wgmma_operand(const void *p, int lead, int stride) {
  return u64((shared_address(p) & 0x3ffff) >> 4) | u64(lead >> 4) << 16 | u64(stride >> 4) << 32 | u64(1) << 62;
}
// Wgmma<T, N>::multiply: d += a·b for a [64, K] in shared memory or registers, b [K, N] in shared memory, where K is 16,
// of tf32 8, and without add the old d counts as 0. In shared memory b is stored [N, K], or with TRANS [K, N]; a [64, K],
// or with TRANS_A [K, 64]. tf32 has no transposes.
template <class T, int N> struct Wgmma;
#define R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define R8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define R16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define R24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define R32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define R40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define R48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define R56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define R64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define R72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define R80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define R88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define R96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define R104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define R112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define R120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define NAMES_4 "%0, %1, %2, %3"
#define NAMES_8 R0
#define NAMES_16 R0 ", " R8
#define NAMES_32 R0 ", " R8 ", " R16 ", " R24
#define NAMES_36 NAMES_32 ", %32, %33, %34, %35"
#define NAMES_40 NAMES_32 ", " R32
#define NAMES_48 NAMES_40 ", " R40
#define NAMES_56 NAMES_48 ", " R48
#define NAMES_64 NAMES_56 ", " R56
#define NAMES_72 NAMES_64 ", " R64
#define NAMES_80 NAMES_72 ", " R72
#define NAMES_88 NAMES_80 ", " R80
#define NAMES_96 NAMES_88 ", " R88
#define NAMES_104 NAMES_96 ", " R96
#define NAMES_112 NAMES_104 ", " R104
#define NAMES_120 NAMES_112 ", " R112
#define NAMES_128 NAMES_120 ", " R120
#define REGS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define REGS_8 D8(0)
#define REGS_16 D8(0), D8(8)
#define REGS_32 D8(0), D8(8), D8(16), D8(24)
#define REGS_36 REGS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define REGS_40 REGS_32, D8(32)
#define REGS_48 REGS_40, D8(40)
#define REGS_56 REGS_48, D8(48)
#define REGS_64 REGS_56, D8(56)
#define REGS_72 REGS_64, D8(64)
#define REGS_80 REGS_72, D8(72)
#define REGS_88 REGS_80, D8(80)
#define REGS_96 REGS_88, D8(88)
#define REGS_104 REGS_96, D8(96)
#define REGS_112 REGS_104, D8(104)
#define REGS_120 REGS_112, D8(112)
#define REGS_128 REGS_120, D8(120)
#define WGMMA(T, N, R, I0, I1, I2, I3, I4, I5, I6)                                                                     \
  template <> struct Wgmma<T, N> {                                                                                     \
    template <bool TRANS, bool TRANS_A = false> static DEVICE void multiply(float (&d)[R], u64 a, u64 b, int add) {    \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I2 ", 0;\n"                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" NAMES_##R "}, %" #I0 ", %" #I1     \
                   ", p, 1, 1, %" #I4 ", %" #I3 ";\n}"                                                                 \
                   : REGS_##R                                                                                          \
                   : "l"(a), "l"(b), "r"(add), "n"(int(TRANS)), "n"(int(TRANS_A)));                                    \
    }                                                                                                                  \
    template <bool TRANS> static DEVICE void multiply(float (&d)[R], const u32 *a, u64 b, int add) {                   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I5 ", 0;\n"                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" NAMES_##R "}, {%" #I0 ", %" #I1    \
                   ", %" #I2 ", %" #I3 "}, %" #I4 ", p, 1, 1, %" #I6 ";\n}"                                            \
                   : REGS_##R                                                                                          \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(int(TRANS)));                   \
    }                                                                                                                  \
  };
#define WGMMA_OF(T)                                                                                                    \
  WGMMA(T, 8, 4, 4, 5, 6, 7, 8, 9, 10)                                                                                 \
  WGMMA(T, 16, 8, 8, 9, 10, 11, 12, 13, 14)                                                                            \
  WGMMA(T, 32, 16, 16, 17, 18, 19, 20, 21, 22)                                                                         \
  WGMMA(T, 64, 32, 32, 33, 34, 35, 36, 37, 38)                                                                         \
  WGMMA(T, 72, 36, 36, 37, 38, 39, 40, 41, 42)                                                                         \
  WGMMA(T, 80, 40, 40, 41, 42, 43, 44, 45, 46)                                                                         \
  WGMMA(T, 96, 48, 48, 49, 50, 51, 52, 53, 54)                                                                         \
  WGMMA(T, 112, 56, 56, 57, 58, 59, 60, 61, 62)                                                                        \
  WGMMA(T, 128, 64, 64, 65, 66, 67, 68, 69, 70)                                                                        \
  WGMMA(T, 144, 72, 72, 73, 74, 75, 76, 77, 78)                                                                        \
  WGMMA(T, 160, 80, 80, 81, 82, 83, 84, 85, 86)                                                                        \
  WGMMA(T, 176, 88, 88, 89, 90, 91, 92, 93, 94)                                                                        \
  WGMMA(T, 192, 96, 96, 97, 98, 99, 100, 101, 102)                                                                     \
  WGMMA(T, 224, 112, 112, 113, 114, 115, 116, 117, 118)                                                                \
  WGMMA(T, 256, 128, 128, 129, 130, 131, 132, 133, 134)
WGMMA_OF(bf16)
WGMMA_OF(f16)
// f32 in memory, of which the product reads the upper 19 bits.
struct tf32 { float value; };
DEVICE float round_tf32(float x) { u32 r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return bits_to_float(r); }
#define WGMMA_TF32(N, R, I0, I1, I2, I3, I4, I5)                                                                       \
  template <> struct Wgmma<tf32, N> {                                                                                  \
    template <bool TRANS, bool TRANS_A = false> static DEVICE void multiply(float (&d)[R], u64 a, u64 b, int add) {    \
      static_assert(!TRANS && !TRANS_A, "tf32 has no transposes");                                                     \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I2 ", 0;\n"                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" NAMES_##R "}, %" #I0 ", %" #I1          \
                   ", p, 1, 1;\n}"                                                                                     \
                   : REGS_##R                                                                                          \
                   : "l"(a), "l"(b), "r"(add));                                                                        \
    }                                                                                                                  \
    template <bool TRANS> static DEVICE void multiply(float (&d)[R], const u32 *a, u64 b, int add) {                   \
      static_assert(!TRANS, "tf32 has no transposes");                                                                 \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I5 ", 0;\n"                                                   \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" NAMES_##R "}, {%" #I0 ", %" #I1         \
                   ", %" #I2 ", %" #I3 "}, %" #I4 ", p, 1, 1;\n}"                                                      \
                   : REGS_##R                                                                                          \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                    \
    }                                                                                                                  \
  };
WGMMA_TF32(64, 32, 32, 33, 34, 35, 36, 37)
WGMMA_TF32(128, 64, 64, 65, 66, 67, 68, 69)
WGMMA_TF32(192, 96, 96, 97, 98, 99, 100, 101)
WGMMA_TF32(256, 128, 128, 129, 130, 131, 132, 133)

// Stores four matrices of 8 × 8 elements of 16 bits turned: a thread has of matrix j the elements [g][2t, 2t+1], which become
// [2t, 2t+1][g]. Lane i names where row i%8 of matrix i/8 goes. Or two matrices, of the first 16 lanes.
DEVICE void store_turned(void *row, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
DEVICE void store_turned(void *row, const u32 (&r)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
               ::"r"(shared_address(row)), "r"(r[0]), "r"(r[1]) : "memory");
}

// Copies bytes, a multiple of 16 as both addresses are, out of shared memory, where they were written before a
// shared_fence of the threads that wrote them. bulk_commit ends a thread's group of copies, and bulk_read_wait waits
// until all its groups but the last N have been read.
DEVICE void bulk_store(void *to, const void *from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
// Copies a box out of shared memory, as far as it lies in the tensor; see bulk_store.
DEVICE void tma_store(const TensorMap *map, const void *from, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
               ::"l"(map), "r"(shared_address(from)), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N = 0> DEVICE void bulk_read_wait() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
DEVICE void shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif
