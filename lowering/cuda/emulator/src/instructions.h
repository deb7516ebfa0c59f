// The instructions of tensor cores and of the copy engine, by the names that the kernels' mma.cuh, hopper.cuh and blackwell.cuh
// give them; see there for what they mean.

#pragma once

extern "C" {
// All lanes of the warp come with what f is given; f is called once.
void fusec_together(void (*f)(void *const *lanes), void *mine);
void fusec_mma(int kind, float *d, const unsigned *a, const unsigned *b);
void fusec_mma_integers(int *d, const unsigned *a, const unsigned *b);
void fusec_load_matrices(unsigned *r, const void *row, bool transposed);
void fusec_copy_async(void *to, const void *from, int bytes, bool there);
void fusec_copy_commit();
void fusec_copy_wait(int left);
void fusec_counter_init(unsigned long long *p, int count);
void fusec_counter_arrive(unsigned long long *p, int rank, int bytes);
void fusec_counter_wait(unsigned long long *p, unsigned phase);
void fusec_tma_load(void *to, const void *map, unsigned long long *bar, const int *at, int rank, const int *offset,
                    unsigned mask);
void fusec_bulk_load(void *to, const void *from, int bytes, unsigned long long *bar);
void fusec_bulk_prefetch(const void *from, int bytes);
void fusec_bulk_store(void *to, const void *from, int bytes);
void fusec_shared_fence();
void fusec_bulk_commit();
void fusec_bulk_wait(int left);
void fusec_tma_store(const void *map, const void *from, const int *at, int rank);
int fusec_rank();
const void *fusec_elsewhere(const void *p, int rank, int bytes);
void fusec_cluster_barrier();
void fusec_cluster_send(void *p, const void *x, int bytes, int rank, unsigned long long *bar);
// A product of a warpgroup; words are the left operand's if it is in registers.
void fusec_product(int kind, int n, float *d, const unsigned *words, unsigned long long a, unsigned long long b,
                   bool transA, bool transB, bool add);
void fusec_product_commit();
void fusec_product_wait(int left);
void fusec_tensor_take(unsigned *address, int columns);
void fusec_tensor_give_back(unsigned at, int columns);
void fusec_tensor_before();
void fusec_tensor_after();
void fusec_tensor_product(bool tf32, unsigned d, unsigned long long a, unsigned long long b, unsigned form, bool add);
void fusec_tensor_product_stored(unsigned d, unsigned a, unsigned long long b, unsigned form, bool add);
void fusec_tensor_commit(unsigned long long *bar);
void fusec_tensor_load(float *d, unsigned at);
void fusec_tensor_store(unsigned at, const void *d, bool pairs);
}

namespace host {
// kind tells the types of 16 bits by what the bits of 1 mean, and f32, which stands for tf32, by its size.
template <class T> inline int kind() {
  if constexpr (sizeof(T) == 2) return to_float(T{0x3f80}) == 1.0f ? 0 : 1;
  else return 2;
}
}  // namespace host

// mma.cuh
template <int BYTES> inline void copy_async(void *to, const void *from, bool there) {
  fusec_copy_async(to, from, BYTES, there);
}
inline void copy_commit() { fusec_copy_commit(); }
template <int N> inline void copy_wait() { fusec_copy_wait(N); }
template <bool TRANS> inline void load_matrices(unsigned (&r)[4], const void *row) {
  fusec_load_matrices(r, row, TRANS);
}
template <class T> inline void mma(T, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  fusec_mma(host::kind<T>(), d, a, b);
}
inline void mma_integers(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { fusec_mma_integers(d, a, b); }
inline unsigned to_tf32(unsigned x) {
  return (x & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : (x + 0x1000u) & 0xffffe000u;
}

// hopper.cuh
struct alignas(64) TensorMap { unsigned long long words[16]; };
struct tf32 { float value; };
template <int N> inline void store_turned(void *row, const unsigned (&r)[N]) {
  const int lane = host::lane(), column = lane % 8;
  unsigned short elements[8];
  for (int q = 0; q < N; q++) {
    for (int i = 0; i < 8; i++) {
      const unsigned two = __shfl_sync(0xffffffffu, r[q], i * 4 + column / 2);
      if (q == lane / 8) elements[i] = (unsigned short)(two >> 16 * (column % 2));
    }
  }
  for (int i = 0; lane < 8 * N && i < 8; i++) static_cast<unsigned short *>(row)[i] = elements[i];
}
inline unsigned shared_address(const void *p) { return __cvta_generic_to_shared(p); }
inline void barrier_init(unsigned long long *bar, int arrivals) { fusec_counter_init(bar, arrivals); }
inline void barrier_init_done() {}
inline void barrier_arrive(unsigned long long *bar) { fusec_counter_arrive(bar, -1, 0); }
inline void barrier_expect(unsigned long long *bar, int bytes) { fusec_counter_arrive(bar, -1, bytes); }
inline void barrier_wait(unsigned long long *bar, unsigned phase) { fusec_counter_wait(bar, phase); }
inline int cluster_rank() { return fusec_rank(); }
inline void barrier_arrive_at(unsigned long long *bar, int rank) { fusec_counter_arrive(bar, rank, 0); }
template <class T> inline T cluster_read(const T *p, int rank) {
  return *static_cast<const T *>(fusec_elsewhere(p, rank, sizeof(T)));
}
inline void cluster_sync() { fusec_cluster_barrier(); }
inline void cluster_arrive() { fusec_cluster_barrier(); }
inline void cluster_wait() {}
template <class T> inline void cluster_send(T *p, T x, int rank, unsigned long long *bar) {
  fusec_cluster_send(p, &x, sizeof x, rank, bar);
}
inline void early_begin() {}
inline void early_read() {}
inline void early_body() {}
inline void early_end() {}
inline void named_sync(int id, int threads) { fusec_barrier(id, threads, true); }
inline void named_arrive(int id, int threads) { fusec_barrier(id, threads, false); }
template <class Map, class... Int> inline void tma_load(void *to, const Map *map, unsigned long long *bar, Int... at) {
  const int c[] = {int(at)...};
  fusec_tma_load(to, map, bar, c, sizeof...(at), nullptr, 0);
}
template <class Map>
inline void tma_multicast(void *to, const Map *map, unsigned long long *bar, int c0, int c1, int c2, int c3,
                          unsigned mask) {
  const int c[] = {c0, c1, c2, c3};
  fusec_tma_load(to, map, bar, c, 4, nullptr, mask);
}
template <class Map>
inline void tma_patches(void *to, const Map *map, unsigned long long *bar, int c, int x, int y, int n, int dx, int dy) {
  const int at[] = {c, x, y, n}, offset[] = {dx, dy};
  fusec_tma_load(to, map, bar, at, 4, offset, 0);
}
template <class Map>
inline void tma_patches_multicast(void *to, const Map *map, unsigned long long *bar, int c, int x, int y, int n, int dx, int dy,
                                  unsigned mask) {
  const int at[] = {c, x, y, n}, offset[] = {dx, dy};
  fusec_tma_load(to, map, bar, at, 4, offset, mask);
}
inline void bulk_load(void *to, const void *from, int bytes, unsigned long long *bar) {
  fusec_bulk_load(to, from, bytes, bar);
}
inline void bulk_stream(void *to, const void *from, int bytes, unsigned long long *bar) { bulk_load(to, from, bytes, bar); }
inline void bulk_store(void *to, const void *from, int bytes) { fusec_bulk_store(to, from, bytes); }
inline void bulk_commit() { fusec_bulk_commit(); }
template <int N = 0> inline void bulk_read_wait() { fusec_bulk_wait(N); }
template <class Map, class... Int> inline void tma_store(const Map *map, const void *from, Int... at) {
  const int c[] = {int(at)...};
  fusec_tma_store(map, from, c, sizeof...(at));
}
inline void shared_fence() { fusec_shared_fence(); }
template <class Map, class... Int> inline void tma_stream(void *to, const Map *map, unsigned long long *bar, Int... at) {
  tma_load(to, map, bar, at...);
}
inline void bulk_prefetch(const void *from, int bytes) { fusec_bulk_prefetch(from, bytes); }
template <class Map> inline void tma_prefetch(const Map *) {}
inline int load_acquire(const int *p) { return *p; }
inline void store_release(int *p, int x) { *p = x; }
inline void count_arrive(int *count, int n) { fusec_arrive(count, n); }
inline void count_await(const int *count, int n) { fusec_await(count, n); }
inline void add4(float4 *p, float x, float y, float z, float w) { p->x += x, p->y += y, p->z += z, p->w += w; }
template <int N> inline void more_registers() {}
template <int N> inline void fewer_registers() {}
inline void wgmma_fence() {}
inline void wgmma_commit() { fusec_product_commit(); }
template <int N> inline void wgmma_wait() { fusec_product_wait(N); }
template <int N> inline void pin(float (&)[N]) {}
inline unsigned long long here(unsigned long long x) { return x; }
inline unsigned long long wgmma_operand(const void *p, int lead, int stride) {
  typedef unsigned long long u;
  return u((shared_address(p) & 0x3ffff) >> 4) | u(lead >> 4) << 16 | u(stride >> 4) << 32 | u(1) << 62;
}
template <class T, int N> struct Wgmma {
  template <bool TRANS, bool TRANS_A = false, int R>
  static void multiply(float (&d)[R], unsigned long long a, unsigned long long b, int add) {
    static_assert(R == N / 2, "a thread's part of [64, N]");
    fusec_product(host::kind<T>(), N, d, nullptr, a, b, TRANS_A, TRANS, add);
  }
  template <bool TRANS, int R> static void multiply(float (&d)[R], const unsigned *a, unsigned long long b, int add) {
    static_assert(R == N / 2, "a thread's part of [64, N]");
    fusec_product(host::kind<T>(), N, d, a, 0, b, false, TRANS, add);
  }
};
inline float round_tf32(float x) { return host::float_of(to_tf32(host::bits_of(x))); }
inline float exp2_approx(float x) { return exp2f(x); }
inline float recip_approx(float x) { return 1.0f / x; }

// blackwell.cuh
template <int COLUMNS> inline void tensor_take(unsigned *at) { fusec_tensor_take(at, COLUMNS); }
template <int COLUMNS> inline void tensor_give_back(unsigned at) { fusec_tensor_give_back(at, COLUMNS); }
inline void tensor_before() { fusec_tensor_before(); }
inline void tensor_after() { fusec_tensor_after(); }
template <bool TF32> inline void tensor_product(unsigned d, unsigned long long a, unsigned long long b, unsigned form, int add) {
  fusec_tensor_product(TF32, d, a, b, form, add);
}
inline void tensor_product_stored(unsigned d, unsigned a, unsigned long long b, unsigned form, int add) {
  fusec_tensor_product_stored(d, a, b, form, add);
}
inline void tensor_commit(unsigned long long *bar) { fusec_tensor_commit(bar); }
template <int R> inline void tensor_load(float (&d)[R], unsigned at) {
  for (int i = 0; i < R; i += 32) fusec_tensor_load(d + i, at + 2 * i);
}
template <int R> inline void tensor_store(unsigned at, const float (&d)[R]) {
  for (int i = 0; i < R; i += 32) fusec_tensor_store(at + 2 * i, d + i, false);
}
template <int R> inline void tensor_store(unsigned at, const unsigned (&d)[R]) {
  for (int i = 0; i < R; i += 32) fusec_tensor_store(at + 2 * i, d + i, true);
}
