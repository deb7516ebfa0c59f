// Bits for the kernels of attention_hopper.cuh and attention_grad_hopper.cuh: which scores a mask lets through, or which
// weights dropout keeps. Rows are [sets, QUERIES, KEY_WORDS]. Columns, which the gradient for keys reads, are
// [sets, KEYS, QUERY_WORDS]: bits of queries for each key. A mask has one set for each head that differs from others, dropout one
// for each head. Bits beyond the last key or query mean nothing.
//
// Bits lie in the order in which threads have the accumulators of a product (see attention_hopper.cuh): of each block of 128 keys,
// or queries, bit 2j + e of word w is number 8j + 2w + e.
//
// Problem P has QUERIES, KEYS, KEY_WORDS and QUERY_WORDS.

constexpr int BIT_BLOCK = 128, BLOCK_WARPS = 8;  // the warps of a block of threads
// The number, in its block, of a bit of a word.
DEVICE int number_of_bit(int word, int bit) { return bit / 2 * 8 + word * 2 + bit % 2; }

// Bit l of lane b's result is bit b of lane l's x. Squares of bits beside the diagonal change places, from the greatest to the least.
DEVICE u32 transpose_bits(u32 x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 16; n > 0; n /= 2) {
    const u32 low = ~0u / ((1u << n) + 1), other = __shfl_xor_sync(~0u, x, n);
    const bool upper = lane & n;
    const u32 own = upper ? ~low : low, turn = upper ? 32 - n : n;
    x = x & own | (other << turn | other >> 32 - turn) & ~own;
  }
  return x;
}

// attention_bits stores the bits of a block of keys for the queries that one word of a block of queries has; a warp does so, and
// four warps a block of queries. words(bits, set, down, query, key) makes the four words of the lane's query, which is one of those
// of word `down`.
template <class P, class F> DEVICE void attention_bits(int sets, u32 *rows, u32 *columns, F words) {
  constexpr int ACROSS = P::KEY_WORDS / 4, DOWN = P::QUERY_WORDS / 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 block = i64(blockIdx.x) * (blockDim.x / 128) + warp / 4;
  const bool there = block < i64(sets) * DOWN * ACROSS;
  const int across = int(block % ACROSS), down = int(block / ACROSS % DOWN), set = int(block / (ACROSS * DOWN));
  const int query = down * BIT_BLOCK + number_of_bit(warp % 4, lane), key = across * BIT_BLOCK;
  u32 bits[4] = {};
  if (there) words(bits, set, 4 * down + warp % 4, query, key);
  if (there && query < P::QUERIES) {
    reinterpret_cast<uint4 *>(rows)[(i64(set) * P::QUERIES + query) * ACROSS + across] = uint4{bits[0], bits[1], bits[2], bits[3]};
  }
  if (!columns) return;
  // The words of a key, one of each warp, meet in shared memory, where keys are turned to avoid bank conflicts.
  __shared__ __align__(16) u32 turned[BLOCK_WARPS / 4][BIT_BLOCK][4];
  const auto place = [](int i) { return i / 8 * 8 + (i + i / 8) % 8; };
#pragma unroll
  for (int w = 0; w < 4; w++) turned[warp / 4][place(number_of_bit(w, lane))][warp % 4] = transpose_bits(bits[w]);
  __syncthreads();
  const int at = threadIdx.x % BIT_BLOCK;
  if (there && key + at < P::KEYS) {
    reinterpret_cast<uint4 *>(columns)[(i64(set) * P::KEYS + key + at) * DOWN + down] =
        *reinterpret_cast<const uint4 *>(turned[warp / 4][place(at)]);
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

// The generator of dropout with the keys of all rounds in registers, for a thread that draws much.
struct Draw {
  u32 keys[7][2];
  DEVICE explicit Draw(u64 seed) {
#pragma unroll
    for (int i = 0; i < 14; i++) {
      u32 &key = keys[i / 2][i % 2];
      key = philox_key(seed, i / 2, i % 2);
#ifndef FUSEC_HOST
      asm("" : "+r"(key));  // else it is computed for each block
#endif
    }
  }
  DEVICE uint4 operator()(u64 block) const {
    return philox_rounds<7>(block, [&](int i, int j) { return keys[i][j]; });
  }
};

// The bits of dropout for a query and the block of keys from key on.
template <class P> DEVICE void dropout_bits(u32 (&bits)[4], const Draw &draw, int head, int query, int key) {
  const u64 row = u64(head) * P::QUERIES + query;
  if constexpr (P::KEYS % BIT_BLOCK == 0) {
    // Byte w of each group becomes a byte of word w.
    u32 groups[4];
    kept_groups<P::DROP_BITS, P::DROP>(groups, row * (P::KEYS / BIT_BLOCK) + key / BIT_BLOCK, draw);
    u32 halves[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      halves[i][0] = permute(groups[2 * i], groups[2 * i + 1], 0x5140);
      halves[i][1] = permute(groups[2 * i], groups[2 * i + 1], 0x7362);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      bits[2 * i] = permute(halves[0][i], halves[1][i], 0x5410);
      bits[2 * i + 1] = permute(halves[0][i], halves[1][i], 0x7632);
    }
  } else {
    const u64 first = row * P::KEYS + key;
    u32 groups[5];
#pragma unroll
    for (int i = 0; i < 5; i++) {
      u32 one[1];
      kept_groups<P::DROP_BITS, P::DROP>(one, first / 32 + i, draw);
      groups[i] = one[0];
    }
    // Elements 2p and 2p + 1 of the groups, of each eighth element from there on.
    const auto pairs = [&](int p) {
      const u32 byte = p % 4, how = byte + 4 << 4 | byte;
      const u32 x = permute(permute(groups[0], groups[1], how), permute(groups[2], groups[3], how), 0x5410);
      return u32((u64(permute(groups[4], 0, how)) << 32 | x) >> p / 4 * 2);
    };
    const int skip = P::KEYS % 8 == 0 ? int(first % 32) / 8 * 8 : int(first % 32);
#pragma unroll
    for (int w = 0; w < 4; w++) {
      bits[w] = pairs(skip / 2 + w);
      if (P::KEYS % 2 != 0 && skip % 2 != 0) {
        bits[w] = bits[w] >> 1 & 0x55555555u | pairs(skip / 2 + w + 1) << 1 & 0xaaaaaaaau;
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
  const Draw draw{u64(seed)};
  attention_bits<P>(P::BATCH * P::HEADS, rows, columns, [&](u32 (&bits)[4], int head, int, int query, int key) {
    if (may_count<P>(query, key)) dropout_bits<P>(bits, draw, head, query, key);
  });
}

// attention_drop_rows is the same without columns. A thread makes the bits of a query and a block of keys, and then of others.
template <class P> DEVICE void attention_drop_rows(i64 seed, u32 *rows) {
  constexpr int ACROSS = P::KEY_WORDS / 4;
  constexpr i64 ALL = i64(P::BATCH * P::HEADS) * P::QUERIES * ACROSS;
  const Draw draw{u64(seed)};
  for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < ALL; at += i64(gridDim.x) * blockDim.x) {
    const i64 row = at / ACROSS;
    const int query = int(row % P::QUERIES), key = int(at % ACROSS) * BIT_BLOCK;
    u32 bits[4] = {};
    if (may_count<P>(query, key)) dropout_bits<P>(bits, draw, int(row / P::QUERIES), query, key);
    reinterpret_cast<uint4 *>(rows)[at] = uint4{bits[0], bits[1], bits[2], bits[3]};
  }
}
