// A sum of small values of several GPUs. It is made as in NCCL's protocol LL: a word goes with the number of the sum in one store, so
// that no fence and no second message are needed. Of two places for the terms, the sums take turns: before a participant writes to
// one again, it has had the terms of the sum in between from all others, which have read those of the one before by then.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int PEERS = 8, WORDS = 16384;  // of a sum, at most; see mostPeers and mostSum of peers.go

struct Params {
  u64 *to[PEERS];
  const u32 *x;
  u32 *y, *count;
  const u32 *stop;
  int n, rank, words, b16;
};

__device__ float low(u32 w) { return __uint_as_float(w << 16); }
__device__ float high(u32 w) { return __uint_as_float(w & 0xffff0000u); }
__device__ u32 rounded(float f) {
  const u32 w = __float_as_uint(f);
  if ((w & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u | w >> 16;  // NaN
  return (w + 0x7fffu + (w >> 16 & 1)) >> 16;
}

extern "C" __global__ void __launch_bounds__(1024) sum_small(const __grid_constant__ Params p) {
  const u32 number = *(volatile u32 *)p.count + 1;
  __syncthreads();
  const long turn = long(number & 1) * p.n * WORDS;
  for (int i = threadIdx.x; i < p.words; i += blockDim.x) {
    const u64 word = u64(number) << 32 | p.x[i];
    for (int r = 0; r < p.n; r++) {
      if (r == p.rank) continue;
      u64 *const to = p.to[r] + turn + long(p.rank) * WORDS + i;
      asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
    }
  }
  for (int i = threadIdx.x; i < p.words; i += blockDim.x) {
    float a = 0, b = 0;
    for (int r = 0; r < p.n; r++) {
      u32 w = p.x[i];
      if (r != p.rank) {
        const u64 *const from = p.to[p.rank] + turn + long(r) * WORDS + i;
        u64 word;
        for (int tries = 1;; tries++) {
          asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
          if (u32(word >> 32) == number) break;
          if (tries % 1024 == 0 && *(volatile const u32 *)p.stop) return;
        }
        w = u32(word);
      }
      if (p.b16) {
        a = r ? a + low(w) : low(w);
        b = r ? b + high(w) : high(w);
      } else {
        a = r ? a + __uint_as_float(w) : __uint_as_float(w);
      }
    }
    p.y[i] = p.b16 ? rounded(a) | rounded(b) << 16 : __float_as_uint(a);
  }
  __syncthreads();
  if (threadIdx.x == 0) *p.count = number;
}
