// Shared parts of the attention templates. A problem P, which is generated, has an attention's sizes and attributes as
// constants, and the layouts of its operands:
//
//	T, L                              an element of q, k, v (without scales) and dout; what is computed in
//	BATCH, HEADS, GROUP               batches; heads of queries in each; how many of them share keys and values
//	QUERIES, KEYS, DEPTH, WIDTH       of a head; of a query and key, of a value
//	SCALE, CAUSAL, WINDOW, TAIL       as in graph.Attention; a WINDOW of 0 is none
//	HAS_MASK, HAS_LENGTHS, PAGE       which optional operands there are
//	DROP, DROP_BITS, KEEP             of graph.DropoutRule, 0 without dropout; 1÷(1−probability)
//	HAS_SCALES, PARTS                 whether k and v are i8, with k_scale and v_scale of one column; see attention_mma.cuh
//	q, k, v, mask, out, lse, …        the matrix of a head: a Strided or Paged
//	length, seed                      of a batch; of the attention
//
// Heads are counted through all batches: head h belongs to batch h÷HEADS and reads keys and values of head h÷GROUP.

// A matrix whose rows are ROW elements apart, and the elements of a row COL. Each row begins at a multiple of ALIGN
// bytes. AHEAD is the number of rows that a thread looks up before it waits for any.
template <class T, i64 ROW_, i64 COL_, int ALIGN_> struct Strided {
  typedef T Element;
  static constexpr i64 ROW = ROW_, COL = COL_;
  static constexpr int ALIGN = ALIGN_, AHEAD = 4;
  T *at;
  DEVICE T *row(int i) const { return at + i * ROW; }
};

// A matrix whose rows are in pages of PAGE rows, STEP elements apart in a pool of PAGES; table lists the pages, its
// entries ENTRY apart. Invalid entries of the table are reported by check_table; here they read page 0.
template <class T, i64 ROW_, i64 COL_, int ALIGN_, int PAGE, i64 STEP, int PAGES, i64 ENTRY> struct Paged {
  typedef T Element;
  static constexpr i64 ROW = ROW_, COL = COL_;
  static constexpr int ALIGN = ALIGN_, AHEAD = 16;
  T *at;
  const i64 *table;
  DEVICE T *row(int i) const {
    const u32 row = u32(i);  // 32-bit division takes fewer instructions
    const u64 page = u64(table[i64(row / PAGE) * ENTRY]);
    return at + (page < u64(PAGES) ? u64(u32(page)) * u64(STEP) : 0) + row % PAGE * ROW;
  }
};

// Stores an element of a matrix.
template <class M, class X> DEVICE void put(const M &m, int row, int c, X x) {
  m.row(row)[c * M::COL] = convert<typename M::Element>(x);
}

template <class L> DEVICE L minus_infinity() { return L(bits_to_float(0xff800000u)); }
DEVICE int smaller(int a, int b) { return a < b ? a : b; }
DEVICE int larger(int a, int b) { return a > b ? a : b; }

// How many keys of a batch count.
template <class P, class Args> DEVICE int valid_keys(const Args &p, int batch) {
  if constexpr (P::HAS_LENGTHS) {
    const i64 n = P::length(p, batch);
    return n < 0 ? 0 : n > P::KEYS ? P::KEYS : int(n);
  } else {
    return P::KEYS;
  }
}

struct Span { int lo, hi; };

// The keys [lo, hi) to which query i may attend by its position; see graph.Attention.Range. Neither end decreases as i
// grows.
template <class P> DEVICE Span reach(int i, int valid) {
  const int at = i + (P::TAIL ? valid : P::KEYS) - P::QUERIES;
  int lo = 0, hi = valid;
  if constexpr (P::CAUSAL) hi = smaller(hi, at + 1);
  if constexpr (P::WINDOW > 0) {
    lo = larger(lo, at - P::WINDOW + 1);
    hi = smaller(hi, at + P::WINDOW);
  }
  hi = larger(hi, 0);
  return {smaller(lo, hi), hi};
}

// The queries [lo, hi) that may attend to any of the keys first … end−1 by position.
template <class P> DEVICE Span askers(int first, int end, int valid) {
  if (first >= valid) return {0, 0};
  const int shift = (P::TAIL ? valid : P::KEYS) - P::QUERIES;  // query i is at the position of key i + shift
  int lo = 0, hi = P::QUERIES;
  if constexpr (P::WINDOW > 0) {
    lo = larger(lo, first - shift - P::WINDOW + 1);
    hi = smaller(hi, smaller(end, valid) - shift + P::WINDOW - 1);
  }
  if constexpr (P::CAUSAL) lo = larger(lo, first - shift);
  return {lo, larger(lo, hi)};
}

// The score of query i and key j, of which product is q·k: scaled and masked.
template <class P, class Args>
DEVICE typename P::L score(const Args &p, int head, int i, int j, Span keys, typename P::L product) {
  typedef typename P::L L;
  if (j < keys.lo || j >= keys.hi) return minus_infinity<L>();
  const L x = product * L(P::SCALE);
  if constexpr (P::HAS_MASK) {
    const auto m = P::mask(p, head);
    const auto e = m.row(i)[j * m.COL];
    if constexpr (P::BOOL) return e ? x : minus_infinity<L>();
    else return x + convert<L>(e);
  } else {
    return x;
  }
}

// Which probabilities of query i and the keys j to j+3 dropout keeps: a bit each, from the lowest.
template <class P> DEVICE u32 kept4(i64 seed, int head, int i, int j) {
  const u64 first = (u64(head) * P::QUERIES + i) * P::KEYS + j;
  u32 group = kept_group<P::DROP_BITS, P::DROP>(u64(seed), first / 32), kept = 0;
#pragma unroll
  for (int c = 0; c < 4; c++) {
    if (c > 0 && (first + c) % 32 == 0) group = kept_group<P::DROP_BITS, P::DROP>(u64(seed), (first + c) / 32);
    kept |= u32(kept_of(group, first + c)) << c;
  }
  return kept;
}

// Reports entries of the batch's table that are not pages although some of their keys are valid.
template <class P, class Args> DEVICE void check_table(const Args &p, int batch, int valid, int thread, int threads) {
  if constexpr (P::PAGE > 0) {
    for (int e = thread; e < (valid + P::PAGE - 1) / P::PAGE; e += threads) {
      const i64 page = P::entry(p, batch, e);
      const i64 where = i64(batch) * (P::KEYS / P::PAGE) + e;
      if (page < 0 || page >= P::PAGES) fail(p.status, STATUS_INDEX, where, page, P::PAGES);
    }
  }
}
