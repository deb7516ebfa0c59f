// Bits for the kernels of attention_hopper.cuh and attention_grad_hopper.cuh: which scores a mask lets through, or which
// weights dropout keeps. Rows are [sets, QUERIES, KEY_WORDS]. Columns, which the gradient for keys reads, are
// [sets, KEYS, QUERY_WORDS]: bits of queries for each key. A mask has one set for each head that differs from others, dropout one
// for each head. Bits beyond the last key or query mean nothing.
//
// Bits lie in the order in which threads have the accumulators of a product (see attention_hopper.cuh): of each block of 128 keys,
// or queries, bit 2j + e of word w is number 8j + 2w + e.
//
// Problem P has QUERIES, KEYS, KEY_WORDS and QUERY_WORDS.

constexpr int BIT_BLOCK = 128;
// The number, in its block, of a bit of a word.
DEVICE int number_of_bit(int word, int bit) { return bit / 2 * 8 + word * 2 + bit % 2; }

// attention_bits stores the bits of a block of keys for the queries that one word of a block of queries has; a warp does so.
// words(bits, set, down, query, key) makes the four words of the lane's query, which is one of those of word `down`.
template <class P, class F> DEVICE void attention_bits(int sets, u32 *rows, u32 *columns, F words) {
  constexpr int ACROSS = P::KEY_WORDS / 4, DOWN = P::QUERY_WORDS;
  const int lane = threadIdx.x % 32;
  const i64 block = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (block >= i64(sets) * DOWN * ACROSS) return;
  const int across = int(block % ACROSS), down = int(block / ACROSS % DOWN), set = int(block / (ACROSS * DOWN));
  const int query = down / 4 * BIT_BLOCK + number_of_bit(down % 4, lane), key = across * BIT_BLOCK;
  u32 bits[4] = {};
  words(bits, set, down, query, key);
  if (query < P::QUERIES) {
    reinterpret_cast<uint4 *>(rows)[(i64(set) * P::QUERIES + query) * ACROSS + across] = uint4{bits[0], bits[1], bits[2], bits[3]};
  }
  if (!columns) return;
#pragma unroll
  for (int w = 0; w < 4; w++) {
    u32 column = 0;
#pragma unroll
    for (int b = 0; b < 32; b++) {
      const u32 votes = __ballot_sync(~0u, bits[w] >> b & 1);
      if (lane == b) column = votes;
    }
    const int at = key + number_of_bit(w, lane);
    if (at < P::KEYS) columns[(i64(set) * P::KEYS + at) * P::QUERY_WORDS + down] = column;
  }
}

// attention_mask_bits is the whole entry for a mask of Booleans; at(set) is the address of its first element.
template <class P, class F> DEVICE void attention_mask_bits(int sets, u32 *rows, u32 *columns, F at) {
  attention_bits<P>(sets, rows, columns, [&](u32 (&bits)[4], int set, int down, int, int key) {
    const int lane = threadIdx.x % 32, queries = down / 4 * BIT_BLOCK;
    const auto *mask = at(set);
#pragma unroll 8
    for (int r = 0; r < 32; r++) {
      const int query = queries + number_of_bit(down % 4, r);
#pragma unroll
      for (int w = 0; w < 4; w++) {
        const int k = key + number_of_bit(w, lane);
        const bool there = query < P::QUERIES && k < P::KEYS;
        const u32 votes = __ballot_sync(~0u, there && mask[i64(query) * P::MASK_ROW + i64(k) * P::MASK_COL]);
        if (lane == r) bits[w] = votes;
      }
    }
  });
}

// Which numbers of a word are at least the threshold of dropout: the highest bit of each. Several are compared at a time, by the
// carry into that bit.
template <class P> DEVICE u32 kept_numbers(u32 x) {
  if constexpr (P::DROP_BITS == 32) return x >= P::DROP ? 1u << 31 : 0;
  constexpr u32 one = P::DROP_BITS == 8 ? 0x01010101 : 0x00010001, half = 1u << P::DROP_BITS - 1, high = half * one;
  const u32 carry = (x & ~high) + ((P::DROP <= half ? half : 2 * half) - P::DROP) * one;
  return (P::DROP <= half ? carry | x : carry & x) & high;
}
// The same for four numbers, from word i of a block of the generator on: the highest bit of each byte.
template <class P> DEVICE u32 kept_bytes(const u32 (&words)[4], int i) {
  if constexpr (P::DROP_BITS == 8) return kept_numbers<P>(words[i]);
  if constexpr (P::DROP_BITS == 16) return permute(kept_numbers<P>(words[i]), kept_numbers<P>(words[i + 1]), 0x7531);
  u32 kept = 0;
#pragma unroll
  for (int t = 0; t < 4; t++) kept |= kept_numbers<P>(words[t]) >> 24 - 8 * t;
  return kept;
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

// The bits of dropout for a query and the block of keys from key on.
template <class P, class S> DEVICE void dropout_bits(u32 (&bits)[4], const S &seed, int head, int query, int key) {
  const u64 first = (u64(head) * P::QUERIES + query) * P::KEYS + key;
  constexpr int IN = 128 / P::DROP_BITS;  // numbers in a block of the generator
  if constexpr (P::KEYS % IN == 0) {
    // Four neighbouring keys have two bits of one word and two of the next, which are made as the halves of one number.
    u32 halves[2][2] = {};
#pragma unroll
    for (int c = 0; c < BIT_BLOCK; c += IN) {
      const uint4 words = seed.draw(first / IN + c / IN);
      const u32 four[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < IN / 4; i++) {
        u32 &half = halves[c / (BIT_BLOCK / 2)][(c / 4 + i) % 2];
        half = half >> 2 | (kept_bytes<P>(four, i * 16 / IN) * 0x81 & 0xc000c000);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      bits[2 * i] = permute(halves[0][i], halves[1][i], 0x5410);
      bits[2 * i + 1] = permute(halves[0][i], halves[1][i], 0x7632);
    }
  } else {
#pragma unroll 1
    for (int b = 0; b < 32; b += 2) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const u32 kept = kept4<P>(i64(seed.seed), head, query, key + 4 * b + 4 * i);
        bits[2 * i] |= (kept & 3) << b;
        bits[2 * i + 1] |= kept >> 2 << b;
      }
    }
  }
}

// Scores that causality masks need no bits of dropout.
template <class P> DEVICE bool may_count(int query, int key) {
  return query < P::QUERIES && key < P::KEYS && !(P::CAUSAL && !P::TAIL && key > query + P::KEYS - P::QUERIES);
}

// attention_drop_bits is the whole entry for dropout.
template <class P> DEVICE void attention_drop_bits(i64 seed, u32 *rows, u32 *columns) {
  attention_bits<P>(P::BATCH * P::HEADS, rows, columns, [&](u32 (&bits)[4], int head, int, int query, int key) {
    if (may_count<P>(query, key)) dropout_bits<P>(bits, Seed{u64(seed)}, head, query, key);
  });
}

// attention_drop_rows is the same without columns. A thread makes the bits of a query and a block of keys, and then of others.
template <class P> DEVICE void attention_drop_rows(i64 seed, u32 *rows) {
  constexpr int ACROSS = P::KEY_WORDS / 4;
  constexpr i64 ALL = i64(P::BATCH * P::HEADS) * P::QUERIES * ACROSS;
  const SeedKeys keys{u64(seed)};
  for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < ALL; at += i64(gridDim.x) * blockDim.x) {
    const i64 row = at / ACROSS;
    const int query = int(row % P::QUERIES), key = int(at % ACROSS) * BIT_BLOCK;
    u32 bits[4] = {};
    if (may_count<P>(query, key)) dropout_bits<P>(bits, keys, int(row / P::QUERIES), query, key);
    reinterpret_cast<uint4 *>(rows)[at] = uint4{bits[0], bits[1], bits[2], bits[3]};
  }
}
