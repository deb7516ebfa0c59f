// Means and variances of columns in one pass. A thread sums the differences of its elements from the first of them, and their
// squares, so that nothing cancels where the mean is large; what several threads have is combined as by T. Chan, G. Golub and
// R. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", Stanford 1979.

// A Moment is what is known of some numbers: how many there are, their mean, and the sum of the squares of their differences
// from it.
template <class T> struct Moment {
  T n, mean, squares;
  DEVICE T variance() const { return squares / n; }
};

// Moments joins what is known of two sets of numbers.
struct Moments {
  template <class M> static DEVICE M identity() { return M{0, 0, 0}; }
  template <class M> static DEVICE M join(const M &x, const M &y) {
    const auto n = x.n + y.n, part = n > 0 ? y.n / n : n, far = y.mean - x.mean;
    return M{n, x.mean + far * part, x.squares + y.squares + far * far * (x.n * part)};
  }
};

// A MomentSum is the numbers of a thread, for W columns.
template <class T, int W> struct MomentSum {
  Vec<T, W> first, sum = {}, squares = {};
  int n = 0;
  DEVICE void add(const Vec<T, W> &x) {
#pragma unroll
    for (int i = 0; i < W; i++) {
      if (n == 0) first[i] = x[i];
      const T d = x[i] - first[i];
      sum[i] += d;
      squares[i] += d * d;
    }
    n++;
  }
  DEVICE Vec<Moment<T>, W> get() const {
    Vec<Moment<T>, W> m;
#pragma unroll
    for (int i = 0; i < W; i++) {
      const T far = n > 0 ? sum[i] / T(n) : T(0), rest = squares[i] - sum[i] * far;
      m[i] = n > 0 ? Moment<T>{T(n), first[i] + far, rest > T(0) ? rest : rest == rest ? T(0) : rest} : Moment<T>{0, 0, 0};
    }
    return m;
  }
};

template <class T, int W> DEVICE Vec<T, W> means(const Vec<Moment<T>, W> &m) {
  Vec<T, W> v;
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = m[i].mean;
  return v;
}
template <class T, int W> DEVICE Vec<T, W> variances(const Vec<Moment<T>, W> &m) {
  Vec<T, W> v;
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = m[i].variance();
  return v;
}

// store_moments writes those of W columns.
template <class T, int W> DEVICE void store_moments(Moment<T> *to, const Vec<Moment<T>, W> &m) {
#pragma unroll
  for (int i = 0; i < W; i++) to[i] = m[i];
}
