// The blocks of a cluster, on sm_90 and later chips. For the emulator they are in host.h.

#ifndef FUSEC_HOST

// An entry whose blocks form clusters along x, at least so many blocks on a multiprocessor.
#define CLUSTER_KERNEL(name, threads, blocks, cluster) \
  ENTRY(__cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, blocks), name)
#define LATE_CLUSTER_KERNEL(name, threads, blocks, cluster) \
  LATE_ENTRY(__cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, blocks), name)

// This block's number.
DEVICE int cluster_rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return int(r); }
// A barrier of all their threads.
DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// The same, without making what was written before it visible, in two parts.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }
// Writes x to where p is in the shared memory of another block, whose barrier counts the bytes.
DEVICE void cluster_send(float *p, float x, int rank, u64 *bar) {
  asm volatile("{\n.reg .b32 p, b;\nmapa.shared::cluster.u32 p, %0, %3;\nmapa.shared::cluster.u32 b, %2, %3;\n"
               "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [p], %1, [b];\n}"
               ::"r"(u32(__cvta_generic_to_shared(p))), "r"(float_to_bits(x)), "r"(u32(__cvta_generic_to_shared(bar))), "r"(rank)
               : "memory");
}
DEVICE void cluster_send(float4 *p, float4 x, int rank, u64 *bar) {
  asm volatile("{\n.reg .b32 p, b;\nmapa.shared::cluster.u32 p, %0, %6;\nmapa.shared::cluster.u32 b, %5, %6;\n"
               "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [p], {%1, %2, %3, %4}, [b];\n}"
               ::"r"(u32(__cvta_generic_to_shared(p))), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w),
               "r"(u32(__cvta_generic_to_shared(bar))), "r"(rank) : "memory");
}
// What is at p in the shared memory of another block, written before a barrier of all.
template <class T> DEVICE T cluster_read(const T *p, int rank) {
  const volatile T *far;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(far) : "l"(p), "r"(rank) : "memory");
  return *far;
}

#endif
