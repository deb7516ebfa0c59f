// Shared parts of the templates of attention's gradient. Probabilities are computed again from the log-sum-exp (Dao et
// al., arXiv 2205.14135, appendix B.4): of query i,
//
//	P = e^(s − top)·share,  ds = P ⊙ (drop(dout·vᵀ) − Δ)
//
// where top is the log-sum-exp and share 1, unless the log-sum-exp is so large that its rounding affects the
// probabilities, as in a row that a finite mask moves to −1e9. Then top is the greatest score and share is one over the
// sum of exponentials, both computed again.

// An AttentionRow has these numbers of a query.
template <class L> struct AttentionRow { L top, share, delta; };

// attention_rows finds the AttentionRow of each query, a warp for each. A query that attends to no key gets values with
// which it adds nothing.
template <class P, class Args> DEVICE void attention_rows(const Args &p) {
  typedef typename P::L L;
  const int lane = threadIdx.x % 32;
  const i64 row = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= i64(P::BATCH) * P::HEADS * P::QUERIES) return;
  const int head = int(row / P::QUERIES), i = int(row % P::QUERIES);
  const L low = minus_infinity<L>();
  const L lse = convert<L>(*P::lse(p, head).row(i));
  const auto out = P::out(p, head);
  const auto dout = P::dout(p, head);
  L delta = 0;
#pragma unroll 4
  for (int c = lane; c < P::WIDTH; c += 32)
    delta += convert<L>(out.row(i)[c * out.COL]) * convert<L>(dout.row(i)[c * dout.COL]);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) delta += __shfl_xor_sync(~0u, delta, d);
  if constexpr (P::HAS_DLSE) delta -= convert<L>(*P::dlse(p, head).row(i));

  L top = lse == low ? L(0) : lse, share = 1;
  if (op::abs(lse) > L(128) && lse != low && lse != -low) {
    const auto q = P::q(p, head);
    const auto k = P::k(p, head / P::GROUP);
    const Span keys = reach<P>(i, valid_keys<P>(p, head / P::HEADS));
    L sum = 0;
    top = low;
    for (int j = keys.lo + lane; j < keys.hi; j += 32) {
      L x = 0;
#pragma unroll 4
      for (int c = 0; c < P::DEPTH; c++) x += convert<L>(q.row(i)[c * q.COL]) * convert<L>(k.row(j)[c * k.COL]);
      x = score<P>(p, head, i, j, keys, x);
      if (x == low) continue;
      if (x > top) {
        sum *= op::exp(top - x);
        top = x;
      }
      sum += op::exp(x - top);
    }
    L most = top;
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      const L other = __shfl_xor_sync(~0u, most, d);
      most = other > most ? other : most;
    }
    sum = top == low ? L(0) : sum * op::exp(top - most);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    top = most == low ? L(0) : most;
    share = most == low ? L(0) : L(1) / sum;
  }
  if (lane == 0) P::rows(p)[row] = {top, share, lse == low ? L(0) : delta};
}
