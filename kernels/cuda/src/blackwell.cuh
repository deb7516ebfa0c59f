// Features of Blackwell's chips for servers only (sm_100a, sm_103a): products of a block (tcgen05) on operands in shared memory,
// whose sums are in tensor memory, 128 lanes of 512 columns of 32 bits for each multiprocessor. See the PTX ISA. The copy engine
// and its barriers are as on Hopper: hopper.cuh. For the emulator they are in host.h.

#ifndef FUSEC_HOST

// Takes COLUMNS of tensor memory, a power of two of at least 32, and writes the address of the first to shared memory. A whole
// warp calls it, and the same warp gives them back.
template <int COLUMNS> DEVICE void tensor_take(u32 *at) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared_address(at)), "n"(COLUMNS)
               : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
template <int COLUMNS> DEVICE void tensor_give_back(u32 at) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(at), "n"(COLUMNS));
}
// Order accesses of tensor memory before, and after, a barrier by which threads wait for each other.
DEVICE void tensor_before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
DEVICE void tensor_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// d += a·b, as tensor_multiply says.
template <bool TF32> DEVICE void tensor_product(u32 d, u64 a, u64 b, u32 form, int add) {
  if constexpr (TF32) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1.kind::tf32 [%0], %1, %2, %3, p;\n}" ::"r"(d),
                 "l"(a), "l"(b), "r"(form), "r"(add) : "memory");
  } else {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
                 "l"(a), "l"(b), "r"(form), "r"(add) : "memory");
  }
}
// Arrives at a barrier when all products are done that this thread has called so far.
DEVICE void tensor_commit(u64 *bar) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
}
// Reads 16 lanes of 64 columns from address `at` on, which is in the quarter of lanes of this warp, a quarter of those of its
// warpgroup. Lane l of the warp gets of each eight columns 2·(l % 4) and the next, of tensor lane l / 4 and of l / 4 + 8.
DEVICE void tensor_load(float (&d)[32], u32 at) {
  asm volatile("tcgen05.ld.sync.aligned.16x256b.x8.b32 {" NAMES_32 "}, [%32];\ntcgen05.wait::ld.sync.aligned;"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]), "=f"(d[8]),
                 "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]), "=f"(d[16]),
                 "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]), "=f"(d[24]),
                 "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
               : "r"(at)
               : "memory");
}

#endif

// Describes an operand in shared memory in the swizzle of 128 bytes, as wgmma_operand does: the layouts are the same, and the
// descriptor has a version.
DEVICE u64 tensor_operand(const void *p, int lead, int stride) { return wgmma_operand(p, lead, stride) | u64(1) << 46; }

template <class T> struct TensorType;
template <> struct TensorType<f16> { static constexpr u32 number = 0; };
template <> struct TensorType<bf16> { static constexpr u32 number = 1; };
template <> struct TensorType<tf32> { static constexpr u32 number = 2; };

// d += a·b for d [128, N] in tensor memory, a [128, K], b [K, N] in shared memory, where K is 16, of tf32 8, and without add the
// old d counts as 0. b is stored [N, K], or with TRANS_B [K, N]; a [128, K], or with TRANS_A [K, 128]. One thread calls it. Its
// products are done in order.
template <class T, int N, bool TRANS_A, bool TRANS_B> DEVICE void tensor_multiply(u32 d, u64 a, u64 b, int add) {
  constexpr bool TF32 = sizeof(T) == 4;
  constexpr u32 TYPE = TensorType<T>::number;
  static_assert(!TF32 || !TRANS_A && !TRANS_B, "tf32 is stored along k");
  // Sums of f32, the types, the transposes, N / 8, 128 / 16.
  constexpr u32 FORM = 1u << 4 | TYPE << 7 | TYPE << 10 | u32(TRANS_A) << 15 | u32(TRANS_B) << 16 | u32(N / 8) << 17 | 8u << 24;
  tensor_product<TF32>(d, a, b, FORM, add);
}
