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
// Writes x, of 4, 8 or 16 bytes, to where p is in the shared memory of a block of the cluster, whose barrier counts the bytes.
template <class T> DEVICE void cluster_send(T *p, T x, int rank, u64 *bar) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "");
  union { T x; u32 w[sizeof(T) / 4]; } u;
  u.x = x;
  const u32 to = u32(__cvta_generic_to_shared(p)), at = u32(__cvta_generic_to_shared(bar));
#define SEND(TYPE, WORDS, ...)                                                                                              \
  asm volatile("{\n.reg .b32 p, b;\nmapa.shared::cluster.u32 p, %0, %2;\nmapa.shared::cluster.u32 b, %1, %2;\n"              \
               "st.async.shared::cluster.mbarrier::complete_tx::bytes" TYPE " [p], " WORDS ", [b];\n}" ::"r"(to), "r"(at),  \
               "r"(rank), __VA_ARGS__ : "memory")
  if constexpr (sizeof(T) == 4) SEND(".b32", "%3", "r"(u.w[0]));
  else if constexpr (sizeof(T) == 8) SEND(".v2.b32", "{%3, %4}", "r"(u.w[0]), "r"(u.w[1]));
  else SEND(".v4.b32", "{%3, %4, %5, %6}", "r"(u.w[0]), "r"(u.w[1]), "r"(u.w[2]), "r"(u.w[3]));
#undef SEND
}
// What is at p in the shared memory of another block, written before a barrier of all.
template <class T> DEVICE T cluster_read(const T *p, int rank) {
  const volatile T *far;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(far) : "l"(p), "r"(rank) : "memory");
  return *far;
}

#endif

// cluster_agrees returns what x is in the first block of the cluster, for all its threads. Nothing is in shared memory yet.
DEVICE bool cluster_agrees(bool x) {
  SHARED;
  int *const said = reinterpret_cast<int *>(shared);
  if (threadIdx.x == 0) *said = x;
  cluster_sync();
  x = cluster_read(said, 0);
  cluster_sync();
  return x;
}
