// Sums of values of several GPUs.

// sum_small adds up small values of all. It is made as in NCCL's protocol LL: a word goes with the number of the sum in one store, so
// that no fence and no second message are needed. Of two places for the terms, the sums take turns: before a participant writes to
// one again, it has had the terms of the sum in between from all others, which have read those of the one before by then.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int PEERS = 8, WORDS = 16384;  // of a sum, at most; see mostPeers and mostSum of peers.go

struct Small {
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

extern "C" __global__ void __launch_bounds__(1024) sum_small(const __grid_constant__ Small p) {
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

// sum_large adds up terms that are in the own memory, or of which there are few; see sums.go.

constexpr int SEGMENTS = 24;  // in a launch, at most

struct Segment {
  const void *from[PEERS];
  void *to[PEERS];
  long n;
  int results, b16;
};

struct Large {
  Segment list[SEGMENTS];
  int count, n;
};

// Values are 16 bytes of a term, as numbers.
struct Values {
  float f[8];
};

__device__ Values values(uint4 v, bool b16) {
  const u32 w[] = {v.x, v.y, v.z, v.w};
  Values a;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    a.f[2 * i] = b16 ? low(w[i]) : __uint_as_float(w[i]);
    a.f[2 * i + 1] = high(w[i]);  // of bf16 only
  }
  return a;
}

__device__ uint4 words(const Values &a, bool b16) {
  u32 w[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    w[i] = b16 ? rounded(a.f[2 * i]) | rounded(a.f[2 * i + 1]) << 16 : __float_as_uint(a.f[2 * i]);
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

__device__ float number(const void *p, long i, bool b16) {
  return b16 ? __uint_as_float(u32(((const unsigned short *)p)[i]) << 16) : ((const float *)p)[i];
}

extern "C" __global__ void __launch_bounds__(512) sum_large(const __grid_constant__ Large p) {
  const long threads = long(gridDim.x) * blockDim.x;
  for (int k = 0; k < p.count; k++) {
    // Small segments, whose terms are far away, are of different blocks.
    const long thread = long((blockIdx.x + k * (gridDim.x / SEGMENTS)) % gridDim.x) * blockDim.x + threadIdx.x;
    const Segment &s = p.list[k];
    u64 all = 0;  // addresses
    for (int r = 0; r < p.n; r++) all |= u64(s.from[r]);
    for (int r = 0; r < s.results; r++) all |= u64(s.to[r]);
    const int each = s.b16 ? 8 : 4;
    const long whole = all % 16 == 0 ? s.n / each : 0;
    for (long i = thread; i < whole; i += threads) {
      uint4 terms[PEERS];
#pragma unroll
      for (int r = 0; r < PEERS; r++) {
        if (r < p.n) terms[r] = ((const uint4 *)s.from[r])[i];
      }
      Values sum = values(terms[0], s.b16);
#pragma unroll
      for (int r = 1; r < PEERS; r++) {
        if (r >= p.n) continue;
        const Values v = values(terms[r], s.b16);
#pragma unroll
        for (int j = 0; j < 8; j++) sum.f[j] += v.f[j];
      }
      for (int r = 0; r < s.results; r++) ((uint4 *)s.to[r])[i] = words(sum, s.b16);
    }
    for (long i = whole * each + thread; i < s.n; i += threads) {
      float sum = number(s.from[0], i, s.b16);
      for (int r = 1; r < p.n; r++) sum += number(s.from[r], i, s.b16);
      for (int r = 0; r < s.results; r++) {
        if (s.b16) {
          ((unsigned short *)s.to[r])[i] = rounded(sum);
        } else {
          ((float *)s.to[r])[i] = sum;
        }
      }
    }
  }
}
