// Bits for the kernels of attention_hopper.cuh and attention_grad_hopper.cuh: which scores a mask lets through, or which
// weights dropout keeps. Rows are [sets, QUERIES, KEY_WORDS]: bit b of word w of a query is key 32·w + b. Columns, which the
// gradient for keys reads, are [sets, KEYS, QUERY_WORDS]: bits of queries for each key. A mask has one set for each head that
// differs from others, dropout one for each head. Bits beyond the last key or query mean nothing.
//
// Problem P has QUERIES, KEYS, KEY_WORDS and QUERY_WORDS.

// attention_bits stores the bits of 32 queries and 32 keys; a warp does so. word(set, query, key) is the word of the lane's
// query and the 32 keys from key on. Columns may be null.
template <class P, class F> DEVICE void attention_bits(int sets, u32 *rows, u32 *columns, F word) {
  constexpr int ACROSS = P::KEY_WORDS, DOWN = P::QUERY_WORDS;
  const int lane = threadIdx.x % 32;
  const i64 block = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (block >= i64(sets) * DOWN * ACROSS) return;
  const int across = int(block % ACROSS), down = int(block / ACROSS % DOWN), set = int(block / (ACROSS * DOWN));
  const int query = 32 * down + lane, key = 32 * across;
  const u32 bits = word(set, query, key);
  if (query < P::QUERIES) rows[(i64(set) * P::QUERIES + query) * P::KEY_WORDS + across] = bits;
  if (!columns) return;
  u32 column = 0;
#pragma unroll
  for (int b = 0; b < 32; b++) {
    const u32 votes = __ballot_sync(~0u, bits >> b & 1);
    if (lane == b) column = votes;
  }
  if (key + lane < P::KEYS) columns[(i64(set) * P::KEYS + key + lane) * P::QUERY_WORDS + down] = column;
}

// attention_mask_bits is the whole entry for a mask of Booleans; at(set) is the address of its first element.
template <class P, class F> DEVICE void attention_mask_bits(int sets, u32 *rows, u32 *columns, F at) {
  attention_bits<P>(sets, rows, columns, [&](int set, int query, int key) {
    const int lane = threadIdx.x % 32, first = query - lane;
    const auto *mask = at(set) + i64(first) * P::MASK_ROW + i64(key + lane) * P::MASK_COL;
    u32 bits = 0;
#pragma unroll 8
    for (int r = 0; r < 32; r++) {
      const bool there = first + r < P::QUERIES && key + lane < P::KEYS;
      const u32 votes = __ballot_sync(~0u, there && mask[i64(r) * P::MASK_ROW]);
      if (lane == r) bits = votes;
    }
    return bits;
  });
}

// Which numbers of a word are at least the threshold of dropout: a bit each, from the lowest. Several are compared at a time, by
// the carry into the highest bit of each, which a multiplication then brings together.
template <class P> DEVICE u32 kept_numbers(u32 x) {
  if constexpr (P::DROP_BITS == 32) return x >= P::DROP;
  constexpr u32 one = P::DROP_BITS == 8 ? 0x01010101 : 0x00010001, half = 1u << P::DROP_BITS - 1, high = half * one;
  u32 carry = (x & ~high) + ((P::DROP <= half ? half : 2 * half) - P::DROP) * one;
  carry = (P::DROP <= half ? carry | x : carry & x) & high;
  return P::DROP_BITS == 8 ? carry * 0x00204081u >> 28 : carry * 0x00008001u >> 30;
}

// The seed of dropout, and the same with the keys of all rounds in registers, for a thread that draws much.
struct Seed {
  u64 seed;
  DEVICE uint4 draw(u64 block) const { return philox(seed, block); }
};
struct SeedKeys : Seed {
  u32 keys[10][2];
  DEVICE explicit SeedKeys(u64 seed) : Seed{seed} {
#pragma unroll
    for (int i = 0; i < 20; i++) {
      u32 &key = keys[i / 2][i % 2];
      key = philox_key(seed, i / 2, i % 2);
#ifndef FUSEC_HOST
      asm("" : "+r"(key));  // else it is computed for each block
#endif
    }
  }
  DEVICE uint4 draw(u64 block) const {
    return philox_rounds(block, [&](int i, int j) { return keys[i][j]; });
  }
};

// The bits of dropout for a query and the 32 keys from key on.
template <class P, class S> DEVICE u32 dropout_bits(const S &seed, int head, int query, int key) {
  u32 bits = 0;
  const u64 first = (u64(head) * P::QUERIES + query) * P::KEYS + key;
  constexpr int IN = 128 / P::DROP_BITS;  // numbers in a block of the generator
  if constexpr (P::KEYS % IN == 0) {
#pragma unroll
    for (int c = 0; c < 32; c += IN) {
      const uint4 words = seed.draw(first / IN + c / IN);
      const u32 four[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int w = 0; w < 4; w++) bits |= kept_numbers<P>(four[w]) << c + w * IN / 4;
    }
  } else {
#pragma unroll 1
    for (int c = 0; c < 32; c += 4) bits |= kept4<P>(i64(seed.seed), head, query, key + c) << c;
  }
  return bits;
}

// Scores that causality masks need no bits of dropout.
template <class P> DEVICE bool may_count(int query, int key) {
  return query < P::QUERIES && key < P::KEYS && !(P::CAUSAL && !P::TAIL && key > query + P::KEYS - P::QUERIES);
}

// attention_drop_bits is the whole entry for dropout.
template <class P> DEVICE void attention_drop_bits(i64 seed, u32 *rows, u32 *columns) {
  attention_bits<P>(P::BATCH * P::HEADS, rows, columns, [&](int head, int query, int key) {
    return may_count<P>(query, key) ? dropout_bits<P>(Seed{u64(seed)}, head, query, key) : 0;
  });
}

// attention_drop_rows is the same without columns. A thread makes four words of a query.
template <class P> DEVICE void attention_drop_rows(i64 seed, u32 *rows) {
  constexpr int EACH = 4, ACROSS = P::KEY_WORDS / EACH;
  static_assert(P::KEY_WORDS % EACH == 0, "a query has whole pieces");
  const i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x, row = at / ACROSS;
  const int query = int(row % P::QUERIES), key = int(at % ACROSS) * 32 * EACH;
  if (row >= i64(P::BATCH * P::HEADS) * P::QUERIES) return;
  const SeedKeys keys{u64(seed)};
  u32 bits[EACH] = {};
  if (may_count<P>(query, key)) {
#pragma unroll
    for (int i = 0; i < EACH; i++) bits[i] = dropout_bits<P>(keys, int(row / P::QUERIES), query, key + 32 * i);
  }
  reinterpret_cast<uint4 *>(rows)[at] = uint4{bits[0], bits[1], bits[2], bits[3]};
}
