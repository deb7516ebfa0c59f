// Draws from rows of logits, in the arithmetic of graph.SampleWeight: sums are of integers, so that their order does not matter.

// A block has one SampleRoom: sums by a digit of keys, those of warps, and what one thread tells all.
template <int THREADS> struct SampleRoom {
  static constexpr int DIGIT = 11, SUMS = 1 << DIGIT;
  u64 sums[SUMS];
  u64 warps[THREADS / 32];
  u64 left;
  u32 digit, at;
};

// sample_key maps logits to integers in the same order, NaN to 0.
DEVICE u32 sample_key(float x) {
  if (x != x) return 0;
  const u32 u = float_to_bits(x == 0.0f ? 0.0f : x);
  return u ^ (u >> 31 ? 0xffffffffu : 0x80000000u);
}
DEVICE float sample_logit(u32 key) { return bits_to_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu)); }

// sample_weight is 2^40 times e^((x − most) ÷ temperature).
DEVICE u64 sample_weight(float x, float most, double scale) {
  if (x == most) return u64(1) << 40;
  const double z = (double(most) - double(x)) * scale;
  if (!(z < 41.0 * 4294967296.0)) return 0;
  const u64 whole = u64(z), f = u32(whole);
  u64 p = 48550;
  p = 639488 - (p * f >> 32);
  p = 5712048 - (p * f >> 32);
  p = 41304489 - (p * f >> 32);
  p = 238387495 - (p * f >> 32);
  p = 1031764939 - (p * f >> 32);
  p = 2977044471ull - (p * f >> 32);
  p = 4294967296ull - (p * f >> 32);
  return p << 8 >> (whole >> 32);
}

// sums_before is the sum of the numbers of the threads before this one, and in all.
template <int THREADS> DEVICE u64 sums_before(u64 x, u64 *all, u64 *warps) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  u64 sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const u64 other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // of what was read before
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  u64 before = 0, total = 0;
  for (int i = 0; i < THREADS / 32; i++) {
    if (i == warp) before = total;
    total += warps[i];
  }
  *all = total;
  return before + sum - x;
}

// sample_cut finds the last key of the shortest beginning of a row, in the order of falling keys, that has a sum, and what of the
// sum is left for the elements with this key. add(f) calls f with keys of the thread, and what they add; together they have the
// sum. It goes digit by digit.
template <int THREADS, class A> DEVICE u32 sample_cut(A add, u64 *sum, SampleRoom<THREADS> *room) {
  typedef SampleRoom<THREADS> R;
  constexpr int EACH = R::SUMS / THREADS;
  u32 last = 0, mask = 0;
  u64 left = *sum;
  for (int shift = 32; shift > 0;) {
    const int bits = shift < R::DIGIT ? shift : R::DIGIT;
    shift -= bits;
    __syncthreads();
    for (int i = threadIdx.x; i < R::SUMS; i += THREADS) room->sums[i] = 0;
    __syncthreads();
    add([&](u32 key, u64 n) {
      if ((key & mask) == last) atomicAdd(room->sums + (key >> shift & ((1u << bits) - 1)), n);
    });
    __syncthreads();
    const int first = R::SUMS - 1 - int(threadIdx.x) * EACH;  // of the digits of this thread, which fall
    u64 own = 0, all;
#pragma unroll
    for (int i = 0; i < EACH; i++) own += room->sums[first - i];
    u64 before = sums_before<THREADS>(own, &all, room->warps);
    if (before < left && left <= before + own) {
      int d = first;
      for (; before + room->sums[d] < left; d--) before += room->sums[d];
      room->digit = u32(d);
      room->left = left - before;
    }
    __syncthreads();
    last |= room->digit << shift;
    mask |= ((1u << bits) - 1) << shift;
    left = room->left;
  }
  *sum = left;
  return last;
}

// sample lets a block draw from a row of n logits.
template <int THREADS, class T>
DEVICE void sample(const T *logits, i64 n, float temperature, i64 top_k, float top_p, i64 seed, u64 counter, i64 *to,
                   SampleRoom<THREADS> *room) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  // The greatest logit, the first of equal ones.
  u64 best = 0;
#pragma unroll 4
  for (i64 i = threadIdx.x; i < n; i += THREADS) {
    const u64 x = u64(sample_key(float(logits[i]))) << 32 | u32(~u32(i));
    best = x > best ? x : best;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const u64 x = __shfl_xor_sync(0xffffffffu, best, step);
    best = x > best ? x : best;
  }
  if (lane == 0) room->warps[warp] = best;
  __syncthreads();
  for (int i = 0; i < THREADS / 32; i++) best = room->warps[i] > best ? room->warps[i] : best;
  const u32 most_key = u32(best >> 32);
  if (!(temperature > 0.0f) || most_key == 0) {
    if (threadIdx.x == 0) *to = ~u32(best);
    return;
  }
  const float most = sample_logit(most_key);
  const double scale = 1.4426950408889634 * 4294967296.0 / double(temperature);
  const auto weight = [&](float x) { return sample_weight(x, most, scale); };
  // Elements with keys above last may be drawn, and the first ties of those with this key.
  u32 last = 0;
  u64 ties = 0;
  if (top_k > 0 && top_k < n) {
    ties = u64(top_k);
    last = sample_cut<THREADS>([&](auto f) {
      for (i64 i = threadIdx.x; i < n; i += THREADS) f(sample_key(float(logits[i])), 1);
    }, &ties, room);
  }
  if (top_p > 0.0f && top_p < 1.0f) {
    const u64 tie = last ? weight(sample_logit(last)) : 0;
    const auto weights = [&](auto f) {
      for (i64 i = threadIdx.x; i < n; i += THREADS) {
        const float x = float(logits[i]);
        const u32 key = sample_key(x);
        const u64 w = key > last ? weight(x) : 0;
        if (w != 0) f(key, w);
      }
      if (threadIdx.x == 0) f(last, ties * tie);
    };
    u64 own = 0, total;
    weights([&](u32, u64 w) { own += w; });
    sums_before<THREADS>(own, &total, room->warps);
    const u64 part = u64(double(top_p) * 18446744073709551616.0);
    u64 share = __umul64hi(part, total) + (part * total != 0);
    share += share == 0;
    const u32 cut = sample_cut<THREADS>(weights, &share, room);
    const u64 each = weight(sample_logit(cut));
    ties = (share + each - 1) / each;
    last = cut;
  }
  // Each thread has consecutive elements from here on.
  const i64 chunk = (n + THREADS - 1) / THREADS, begin = threadIdx.x * chunk, end = begin + chunk < n ? begin + chunk : n;
  const u64 tie = last ? weight(sample_logit(last)) : 0;
  u64 equal = 0, own = 0, all;
  for (i64 i = begin; i < end; i++) {
    const float x = float(logits[i]);
    const u32 key = sample_key(x);
    if (key > last) own += weight(x);
    equal += last != 0 && key == last;
  }
  const u64 had = sums_before<THREADS>(equal, &all, room->warps);
  u64 room_for = ties > had ? ties - had : 0;
  own += (equal < room_for ? equal : room_for) * tie;
  u64 before = sums_before<THREADS>(own, &all, room->warps);
  const uint4 words = philox(u64(seed), counter);
  const u64 mark = __umul64hi(u64(words.y) << 32 | words.x, all);
  if (mark < before || mark >= before + own) return;
  for (i64 i = begin; i < end; i++) {
    const float x = float(logits[i]);
    const u32 key = sample_key(x);
    u64 w = 0;
    if (key > last) {
      w = weight(x);
    } else if (last != 0 && key == last && room_for > 0) {
      w = tie;
      room_for--;
    }
    before += w;
    if (mark < before) {
      *to = i;
      return;
    }
  }
}
