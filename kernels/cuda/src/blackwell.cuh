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
// The same of a in tensor memory, as tensor_multiply_stored says.
DEVICE void tensor_product_stored(u32 d, u32 a, u64 b, u32 form, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(d),
               "r"(a), "l"(b), "r"(form), "r"(add) : "memory");
}
// Arrives at a barrier when all products are done that this thread has called so far.
DEVICE void tensor_commit(u64 *bar) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
}
// Loads and stores are of 16 lanes and 2·R columns from address `at` on, which is in the quarter of lanes of this warp, a quarter of
// those of its warpgroup. They are done when the function returns. Lane l of the warp has of each eight columns 2·(l % 4) and the
// next, of tensor lane l / 4 and of l / 4 + 8.
#define EIGHT(c, i) \
  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define EACH_32(c, i) EIGHT(c, i), EIGHT(c, i + 8), EIGHT(c, i + 16), EIGHT(c, i + 24)
template <int R> DEVICE void tensor_load(float (&d)[R], u32 at) {
#pragma unroll
  for (int i = 0; i < R; i += 32) {
    asm volatile("tcgen05.ld.sync.aligned.16x256b.x8.b32 {" NAMES_32 "}, [%32];" : EACH_32("=f", i) : "r"(at + 2 * i) : "memory");
  }
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
  pin(d);
}
template <int R> DEVICE void tensor_store(u32 at, const float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; i += 32) {
    asm volatile("tcgen05.st.sync.aligned.16x256b.x8.b32 [%32], {" NAMES_32 "};" ::EACH_32("f", i), "r"(at + 2 * i) : "memory");
  }
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}
// The same of pairs of numbers of 16 bits: a lane of the warp has of each four columns l % 4, of tensor lane l / 4 and of l / 4 + 8.
template <int R> DEVICE void tensor_store(u32 at, const u32 (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; i += 32) {
    asm volatile("tcgen05.st.sync.aligned.16x128b.x16.b32 [%32], {" NAMES_32 "};" ::EACH_32("r", i), "r"(at + 2 * i) : "memory");
  }
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}
#undef EACH_32
#undef EIGHT

#endif

// Describes an operand in shared memory in the swizzle of 128 bytes, as wgmma_operand does: the layouts are the same, and the
// descriptor has a version.
DEVICE u64 tensor_operand(const void *p, int lead, int stride) { return wgmma_operand(p, lead, stride) | u64(1) << 46; }

template <class T> struct TensorType;
template <> struct TensorType<f16> { static constexpr u32 number = 0; };
template <> struct TensorType<bf16> { static constexpr u32 number = 1; };
template <> struct TensorType<tf32> { static constexpr u32 number = 2; };

// What the number of a product says: sums of f32, the types, the transposes, N / 8, 128 / 16.
template <class T, int N, bool TRANS_A, bool TRANS_B> constexpr u32 TENSOR_FORM =
    1u << 4 | TensorType<T>::number << 7 | TensorType<T>::number << 10 | u32(TRANS_A) << 15 | u32(TRANS_B) << 16 |
    u32(N / 8) << 17 | 8u << 24;

// d += a·b for d [128, N] in tensor memory, a [128, K], b [K, N] in shared memory, where K is 16, of tf32 8, and without add the
// old d counts as 0. b is stored [N, K], or with TRANS_B [K, N]; a [128, K], or with TRANS_A [K, 128]. One thread calls it. Its
// products are done in order.
template <class T, int N, bool TRANS_A, bool TRANS_B> DEVICE void tensor_multiply(u32 d, u64 a, u64 b, int add) {
  constexpr bool TF32 = sizeof(T) == 4;
  static_assert(!TF32 || !TRANS_A && !TRANS_B, "tf32 is stored along k");
  tensor_product<TF32>(d, a, b, TENSOR_FORM<T, N, TRANS_A, TRANS_B>, add);
}
// The same of 16-bit operands for a in tensor memory, two neighbours along k in each of eight columns, as tensor_store writes them.
template <class T, int N, bool TRANS_B> DEVICE void tensor_multiply_stored(u32 d, u32 a, u64 b, int add) {
  tensor_product_stored(d, a, b, TENSOR_FORM<T, N, false, TRANS_B>, add);
}

// d = a·bᵀ for a [128, DEPTH] and b [N, DEPTH] in shared memory, of chunks of so many rows. Descriptors are computed here, or the
// thread would keep those of all products in registers.
template <class T, int DEPTH, int N, int A_ROWS> DEVICE void tensor_rows(u32 d, const u8 *a, const u8 *b) {
  const u64 da = here(tensor_operand(a, 16, 1024)), db = here(tensor_operand(b, 16, 1024));
#pragma unroll
  for (int k = 0; k < DEPTH; k += 16) {
    const int chunk = k / 64, in = k % 64 * 2;
    tensor_multiply<T, N, false, false>(d, da + (chunk * A_ROWS * 128 + in >> 4), db + (chunk * N * 128 + in >> 4), k > 0);
  }
}

// d += a·b, or without add d = a·b, for a [128, K] in tensor memory and b [K, N] in shared memory.
template <class T, int K, int N> DEVICE void tensor_columns(u32 d, u32 a, const u8 *b, bool add) {
  const u64 db = here(tensor_operand(b, K * 128, 1024));
#pragma unroll
  for (int k = 0; k < K; k += 16) tensor_multiply_stored<T, N, true>(d, a + k / 2, db + (k * 128 >> 4), add || k > 0);
}

// tensor_open takes tensor memory for a block, all of whose threads call it, and returns the address of the first column; it
// passes through shared memory. Warp 1 takes it, and gives it back in tensor_close.
template <int COLUMNS> DEVICE u32 tensor_open(u32 *at) {
  if (threadIdx.x / 32 == 1) {
    __syncwarp();
    tensor_take<COLUMNS>(at);
    tensor_before();
  }
  __syncthreads();
  tensor_after();
  return *at;
}
template <int COLUMNS> DEVICE void tensor_close(u32 columns) {
  tensor_before();
  __syncthreads();
  tensor_after();
  if (threadIdx.x / 32 == 1) tensor_give_back<COLUMNS>(columns);
}
