// Draws from rows of logits, in the arithmetic of graph.SampleWeight: sums are of integers, so that their order does not matter.

// SampleShared is what a block has in shared memory: sums by a digit of keys, elements that may be drawn, of which a block finds
// KEPT at most and the parts of a row ROOM, sums of warps, and what one thread tells all.
template <int THREADS> struct SampleShared {
  static constexpr int DIGIT = 11, SUMS = 1 << DIGIT, KEPT = 1024, ROOM = 3072;
  u64 sums[SUMS];
  u64 kept[ROOM];
  u64 warps[THREADS / 32], equals[THREADS / 32];
  u64 left;
  u32 digit, count;
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
template <int THREADS, class A> DEVICE u32 sample_cut(A add, u64 *sum, SampleShared<THREADS> *shared) {
  typedef SampleShared<THREADS> R;
  constexpr int EACH = R::SUMS / THREADS;
  u32 last = 0, mask = 0;
  u64 left = *sum;
  for (int shift = 32; shift > 0;) {
    const int bits = shift < R::DIGIT ? shift : R::DIGIT;
    shift -= bits;
    __syncthreads();
    for (int i = threadIdx.x; i < R::SUMS; i += THREADS) shared->sums[i] = 0;
    __syncthreads();
    add([&](u32 key, u64 n) {
      if ((key & mask) == last) atomicAdd(shared->sums + (key >> shift & ((1u << bits) - 1)), n);
    });
    __syncthreads();
    const int first = R::SUMS - 1 - int(threadIdx.x) * EACH;  // of the digits of this thread, which fall
    u64 own = 0, all;
#pragma unroll
    for (int i = 0; i < EACH; i++) own += shared->sums[first - i];
    u64 before = sums_before<THREADS>(own, &all, shared->warps);
    if (before < left && left <= before + own) {
      int d = first;
      for (; before + shared->sums[d] < left; d--) before += shared->sums[d];
      shared->digit = u32(d);
      shared->left = left - before;
    }
    __syncthreads();
    last |= shared->digit << shift;
    mask |= ((1u << bits) - 1) << shift;
    left = shared->left;
  }
  *sum = left;
  return last;
}

// sample_each calls f with the place and the value of each element of a row that is this thread's. It reads 16 bytes at a time.
template <int THREADS, class T, class F> DEVICE void sample_each(const T *row, i64 n, F f) {
  constexpr int VECTOR = 16 / sizeof(T), AHEAD = 4;
  const i64 odd = i64((16 - u64(row) % 16) % 16 / sizeof(T)), head = odd < n ? odd : n;
  const i64 vectors = (n - head) / VECTOR, tail = head + vectors * VECTOR;
  if (threadIdx.x < head) f(i64(threadIdx.x), float(row[threadIdx.x]));
  if (tail + threadIdx.x < n) f(tail + threadIdx.x, float(row[tail + threadIdx.x]));
  const uint4 *from = reinterpret_cast<const uint4 *>(row + head);
  for (i64 first = threadIdx.x; first < vectors; first += AHEAD * THREADS) {
    union {
      uint4 bits[AHEAD];
      T x[AHEAD][VECTOR];
    } u;
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      if (first + a * THREADS < vectors) u.bits[a] = from[first + a * THREADS];
    }
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const i64 v = first + a * THREADS;
      if (v >= vectors) break;
#pragma unroll
      for (int j = 0; j < VECTOR; j++) f(head + v * VECTOR + j, float(u.x[a][j]));
    }
  }
}

// A SampleRow is a row of logits or, if kept is set, those of its elements that may be drawn, in order, each with its place and
// its key. each calls f with the keys that are this thread's.
template <int THREADS, class T> struct SampleRow {
  const T *logits;
  const u64 *kept;
  i64 size;
  template <class F> DEVICE void each(F f) const {
    if (kept) {
      for (int i = threadIdx.x; i < size; i += THREADS) f(u32(kept[i]));
    } else {
      sample_each<THREADS>(logits, size, [&](i64, float x) { f(sample_key(x)); });
    }
  }
  DEVICE u32 key(i64 i) const { return kept ? u32(kept[i]) : sample_key(float(logits[i])); }
  DEVICE i64 place(i64 i) const { return kept ? i64(kept[i] >> 32) : i; }
};

// sample_share is the sum of weights that the greatest elements must have, as graph.SampleShare has it.
DEVICE u64 sample_share(float top_p, u64 total) {
  const u64 part = u64(double(top_p) * 18446744073709551616.0);
  const u64 share = __umul64hi(part, total) + (part * total != 0);
  return share + (share == 0);
}

// sample_among draws an element. 0 for top_k or top_p leaves all. Those that row does not have weigh rest, and none of them is left by top_p.
template <int THREADS, class R>
DEVICE void sample_among(const R &row, u64 rest, float most, double scale, i64 top_k, float top_p, u64 random, i64 *to,
                         SampleShared<THREADS> *shared) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const auto weight = [&](u32 key) { return sample_weight(sample_logit(key), most, scale); };
  // Elements with keys above last may be drawn, and the first ties of those with this key.
  u32 last = 0;
  u64 ties = 0;
  if (top_k > 0) {
    ties = u64(top_k);
    last = sample_cut<THREADS>([&](auto f) { row.each([&](u32 key) { f(key, 1); }); }, &ties, shared);
  }
  if (top_p > 0.0f) {
    const u64 tie = last ? weight(last) : 0;
    const auto weights = [&](auto f) {
      row.each([&](u32 key) {
        const u64 w = key > last ? weight(key) : 0;
        if (w != 0) f(key, w);
      });
      if (threadIdx.x == 0) f(last, ties * tie);
    };
    u64 own = 0, total;
    weights([&](u32, u64 w) { own += w; });
    sums_before<THREADS>(own, &total, shared->warps);
    u64 share = sample_share(top_p, total + rest);
    const u32 cut = sample_cut<THREADS>(weights, &share, shared);
    const u64 each = weight(cut);
    ties = (share + each - 1) / each;
    last = cut;
  }
  const u64 tie = last ? weight(last) : 0;
  // What elements begin to end weigh is mark or less before the one that is drawn; had have the key last before them.
  i64 begin = 0, end = row.size;
  u64 mark = 0, had = 0, all;
  const bool long_row = row.size > 16 * THREADS;
  if (long_row) {  // first the part of a warp, which has consecutive elements
    constexpr int WARPS = THREADS / 32;
    const i64 part = (row.size + WARPS - 1) / WARPS, first = warp * part, past = first + part < row.size ? first + part : row.size;
    u64 own = 0, equal = 0;
#pragma unroll 2
    for (i64 i = first + lane; i < past; i += 32) {
      const u32 key = row.key(i);
      if (key > last) own += weight(key);
      equal += last != 0 && key == last;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      own += __shfl_xor_sync(0xffffffffu, own, step);
      equal += __shfl_xor_sync(0xffffffffu, equal, step);
    }
    __syncthreads();
    if (lane == 0) {
      shared->warps[warp] = own;
      shared->equals[warp] = equal;
    }
    __syncthreads();
    const auto weighs = [&](int w, u64 before) {
      const u64 free = ties > before ? ties - before : 0, n = shared->equals[w];
      return shared->warps[w] + (n < free ? n : free) * tie;
    };
    all = 0;
    for (int w = 0; w < WARPS; w++) {
      all += weighs(w, had);
      had += shared->equals[w];
    }
    mark = __umul64hi(random, all);
    had = 0;
    for (int w = 0; w < WARPS; w++) {
      const u64 n = weighs(w, had);
      begin = w * part;
      if (mark < n) break;
      mark -= n;
      had += shared->equals[w];
    }
    end = begin + part < row.size ? begin + part : row.size;
  }
  // Then that of a thread.
  const i64 part = (end - begin + THREADS - 1) / THREADS;
  i64 first = begin + threadIdx.x * part;
  const i64 past = first + part < end ? first + part : end;
  u64 equal = 0, own = 0;
  for (i64 i = first; i < past; i++) {
    const u32 key = row.key(i);
    if (key > last) own += weight(key);
    equal += last != 0 && key == last;
  }
  had += sums_before<THREADS>(equal, &all, shared->warps);
  u64 ties_left = ties > had ? ties - had : 0;
  own += (equal < ties_left ? equal : ties_left) * tie;
  u64 before = sums_before<THREADS>(own, &all, shared->warps);
  if (!long_row) mark = __umul64hi(random, all);
  if (mark < before || mark >= before + own) return;
  for (; first < past; first++) {
    const u32 key = row.key(first);
    if (key > last) {
      before += weight(key);
    } else if (last != 0 && key == last && ties_left > 0) {
      before += tie;
      ties_left--;
    }
    if (mark < before) {
      *to = row.place(first);
      return;
    }
  }
}

// sample_sort copies different numbers to where they stand in their order.
template <int THREADS> DEVICE void sample_sort(const u64 *from, u32 count, u64 *to) {
  for (u32 i = threadIdx.x; i < count; i += THREADS) {
    const u64 x = from[i];
    int before = 0;
    for (u32 j = 0; j < count; j++) before += from[j] < x;
    to[before] = x;
  }
}

// sample_greatest finds the greatest of the elements of this thread, from number `first` of a row on, and the first of equal ones, as
// key and inverted place.
template <int THREADS, class T> DEVICE u64 sample_greatest(const T *logits, i64 first, i64 size) {
  u64 best = 0;
  sample_each<THREADS>(logits + first, size, [&](i64 i, float value) {
    const u64 x = u64(sample_key(value)) << 32 | u32(~u32(first + i));
    best = x > best ? x : best;
  });
  return best;
}

// sample_kept keeps the elements of a row that may be drawn, in their order, and gives their number, or 0 if they are too many. The
// greatest keys of the threads bound them; this thread's is greatest. For top_p alone the bound is the key in the middle. rest is what the others weigh, if top_k is 0.
template <int THREADS, class T>
DEVICE int sample_kept(const T *logits, i64 n, u32 greatest, float most, double scale, i64 top_k, float top_p, u64 *rest,
                       SampleShared<THREADS> *shared) {
  typedef SampleShared<THREADS> R;
  u32 *bounds = reinterpret_cast<u32 *>(shared->sums + R::KEPT);
  bounds[threadIdx.x] = greatest;
  if (threadIdx.x == 0) shared->count = 0;
  __syncthreads();
  int above = 0;
#pragma unroll 8
  for (int i = 0; i < THREADS; i++) above += bounds[i] > greatest || (bounds[i] == greatest && i < int(threadIdx.x));
  if (above == (top_k > 0 ? int(top_k) : THREADS / 2) - 1) shared->digit = greatest;
  __syncthreads();
  const u32 least = shared->digit;
  u64 own = 0, all = 0, kept = 0;
  sample_each<THREADS>(logits, n, [&](i64 i, float x) {
    const u32 key = sample_key(x);
    const u64 w = top_k > 0 ? 0 : sample_weight(x, most, scale);
    own += w;
    if (key < least) return;
    kept += w;
    const u32 at = atomicAdd(&shared->count, 1u);
    if (at < R::KEPT) shared->sums[at] = u64(i) << 32 | key;
  });
  __syncthreads();
  const u32 count = shared->count;
  if (count > R::KEPT) return 0;
  if (top_k == 0) {
    u64 total;
    sums_before<THREADS>(own, &all, shared->warps);
    sums_before<THREADS>(kept, &total, shared->warps);
    if (total < sample_share(top_p, all)) return 0;
    *rest = all - total;
  }
  sample_sort<THREADS>(shared->sums, count, shared->kept);
  __syncthreads();
  return int(count);
}

// sample_best finds the greatest logit of a row, the first of equal ones, as key and inverted place. greatest is the greatest key of
// this thread.
template <int THREADS, class T> DEVICE u64 sample_best(const T *logits, i64 n, u32 *greatest, SampleShared<THREADS> *shared) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  u64 best = sample_greatest<THREADS>(logits, 0, n);
  *greatest = u32(best >> 32);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const u64 x = __shfl_xor_sync(0xffffffffu, best, step);
    best = x > best ? x : best;
  }
  if (lane == 0) shared->warps[warp] = best;
  __syncthreads();
  for (int i = 0; i < THREADS / 32; i++) best = shared->warps[i] > best ? shared->warps[i] : best;
  return best;
}

// SampleParts is what a block finds in one of the parts of a row, in memory: the greatest logit, the first of equal ones, as key and
// inverted place; how many elements may be among the greatest top_k of the row, or more than MOST if it does not know them; and
// these in their order, as place and key. Where there is no bound to look for, it looks for nothing.
struct SampleParts {
  static constexpr int MOST = 256, SIZE = 2 + MOST;
  static constexpr int GROUPS = 128, TOP = 64;  // the greatest top_k that is served: the parts' elements rarely are too many for it
};

// SamplePartShared is what such a block has in shared memory.
template <int THREADS> struct SamplePartShared {
  u64 found[SampleParts::MOST];
  u64 warps[THREADS / 32];
  u32 bounds[SampleParts::GROUPS];
  u32 least, count;
};

// sample_part lets a block look at part number `part` of a row of n logits. The greatest keys of groups of threads bound those that
// may be among the greatest.
template <int THREADS, int PARTS, class T>
DEVICE void sample_part(const T *logits, i64 n, int part, float temperature, i64 top_k, u64 *to, SamplePartShared<THREADS> *shared) {
  typedef SampleParts R;
  constexpr int VECTOR = 16 / sizeof(T), SHARE = THREADS / R::GROUPS;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const i64 each = ((n + PARTS - 1) / PARTS + VECTOR - 1) / VECTOR * VECTOR, first = part * each;
  const i64 size = each < n - first ? each : n - first;
  const bool greedy = !(temperature > 0.0f), served = top_k > 0 && top_k <= R::TOP;
  if (!greedy && !served) {
    if (threadIdx.x == 0) to[0] = 0, to[1] = R::MOST + 1;
    return;
  }
  if (threadIdx.x == 0) shared->count = 0;
  u64 best = sample_greatest<THREADS>(logits, first, size);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    if (step == SHARE && lane % SHARE == 0) shared->bounds[threadIdx.x / SHARE] = u32(best >> 32);
    const u64 x = __shfl_xor_sync(0xffffffffu, best, step);
    best = x > best ? x : best;
  }
  if (lane == 0) shared->warps[warp] = best;
  __syncthreads();
  for (int i = 0; i < THREADS / 32; i++) best = shared->warps[i] > best ? shared->warps[i] : best;
  if (threadIdx.x == 0) to[0] = best;
  if (greedy) {
    if (threadIdx.x == 0) to[1] = R::MOST + 1;
    return;
  }
  if (threadIdx.x < R::GROUPS) {
    const u32 own = shared->bounds[threadIdx.x];
    int above = 0;
#pragma unroll 8
    for (int i = 0; i < R::GROUPS; i++) above += shared->bounds[i] > own || (shared->bounds[i] == own && i < int(threadIdx.x));
    if (above == int(top_k) - 1) shared->least = own;
  }
  __syncthreads();
  const u32 least = shared->least;
  sample_each<THREADS>(logits + first, size, [&](i64 i, float value) {
    const u32 key = sample_key(value);
    if (key < least) return;
    const u32 at = atomicAdd(&shared->count, 1u);
    if (at < R::MOST) shared->found[at] = u64(first + i) << 32 | key;
  });
  __syncthreads();
  const u32 count = shared->count;
  if (threadIdx.x == 0) to[1] = count;
  if (count > R::MOST) return;
  sample_sort<THREADS>(shared->found, count, to + 2);
}

// sample_gather takes what was found in the parts of a row. It gives the number of elements that may be drawn, or 0 if it has not
// all of them.
template <int THREADS, int PARTS> DEVICE int sample_gather(const u64 *parts, u64 *best, SampleShared<THREADS> *shared) {
  typedef SampleParts R;
  static_assert(PARTS <= 32, "a warp has a thread for each part");
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  u64 top = lane < PARTS ? parts[lane * R::SIZE] : 0;
  const u32 count = lane < PARTS ? u32(parts[lane * R::SIZE + 1]) : 0;
  u32 past = count;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const u64 x = __shfl_xor_sync(0xffffffffu, top, step);
    const u32 other = __shfl_up_sync(0xffffffffu, past, step);
    top = x > top ? x : top;
    if (lane >= step) past += other;
  }
  *best = top;
  const u32 all = __shfl_sync(0xffffffffu, past, 31);
  if (__any_sync(0xffffffffu, count > R::MOST) || all > SampleShared<THREADS>::ROOM) return 0;
  for (int i = warp; i < PARTS; i += THREADS / 32) {
    const u32 here = __shfl_sync(0xffffffffu, count, i), first = __shfl_sync(0xffffffffu, past, i) - here;
    for (u32 j = lane; j < here; j += 32) shared->kept[first + j] = parts[i * R::SIZE + 2 + j];
  }
  __syncthreads();
  return int(all);
}

// sample lets a block draw from a row of n logits, of whose parts others have told what they found, if there are any.
template <int THREADS, int PARTS, class T>
DEVICE void sample(const T *logits, i64 n, float temperature, i64 top_k, float top_p, i64 seed, u64 counter, i64 *to,
                   const u64 *parts, SampleShared<THREADS> *shared) {
  const bool greedy = !(temperature > 0.0f);
  u64 best = 0;
  u32 greatest = 0;
  int kept = 0;
  if constexpr (PARTS > 0) kept = sample_gather<THREADS, PARTS>(parts, &best, shared);
  if (PARTS == 0 || (kept == 0 && !greedy)) best = sample_best<THREADS>(logits, n, &greatest, shared);
  const u32 most_key = u32(best >> 32);
  if (greedy || most_key == 0) {
    if (threadIdx.x == 0) *to = ~u32(best);
    return;
  }
  const float most = sample_logit(most_key);
  const double scale = 1.4426950408889634 * 4294967296.0 / double(temperature);
  if (top_k < 0 || top_k >= n) top_k = 0;
  if (!(top_p > 0.0f && top_p < 1.0f)) top_p = 0.0f;
  const uint4 words = philox(u64(seed), counter);
  const u64 random = u64(words.y) << 32 | words.x;
  u64 rest = 0;
  if (kept == 0 && n > 4 * THREADS && top_k <= THREADS && (top_k > 0 || top_p > 0.0f)) {
    kept = sample_kept<THREADS>(logits, n, greatest, most, scale, top_k, top_p, &rest, shared);
  }
  const SampleRow<THREADS, T> row = {logits, kept > 0 ? shared->kept : nullptr, kept > 0 ? kept : n};
  sample_among<THREADS>(row, rest, most, scale, top_k, top_p, random, to, shared);
}
