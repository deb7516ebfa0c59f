// Windows that slide over images [N, C, H, WIDTH]: patches and their sums, pools and their gradients, convolutions. Each
// function computes element e of the result; I is wide enough to count them. P describes the KH·KW taps of a window: at
// position (oy, ox) of OH·OW the first at row oy·SY − TOP, column ox·SX − LEFT, the others DY and DX apart.

// im2col is an element of patches [N, OH, OW, C·KH·KW].
template <class P, class T, class I> DEVICE T im2col(const T *x, I e) {
  const int kx = int(e % P::KW), ky = int(e / P::KW % P::KH);
  I q = e / (P::KW * P::KH);
  const int c = int(q % P::C);
  q /= P::C;
  const int ox = int(q % P::OW), oy = int(q / P::OW % P::OH);
  const i64 n = q / (P::OW * P::OH);
  const int row = oy * P::SY - P::TOP + ky * P::DY, col = ox * P::SX - P::LEFT + kx * P::DX;
  if (row < 0 || row >= P::H || col < 0 || col >= P::WIDTH) return T{};
  return x[((n * P::C + c) * P::H + row) * P::WIDTH + col];
}

// Spot is an element of an image [N, C, H, WIDTH].
template <class P> struct Spot {
  i64 plane;
  int row, col;
  template <class I> DEVICE explicit Spot(I e)
      : plane(e / (I(P::H) * P::WIDTH)), row(int(e / P::WIDTH % P::H)), col(int(e % P::WIDTH)) {}
};

// col2im is the sum of an element's places in patches.
template <class P, class L, class T, class I> DEVICE L col2im(const T *y, I e) {
  const Spot<P> at(e);
  const i64 n = at.plane / P::C, c = at.plane % P::C;
  L sum = 0;
  for (int ky = 0; ky < P::KH; ky++) {
    const int top = at.row + P::TOP - ky * P::DY, oy = top / P::SY;
    if (top < 0 || top % P::SY != 0 || oy >= P::OH) continue;
    for (int kx = 0; kx < P::KW; kx++) {
      const int left = at.col + P::LEFT - kx * P::DX, ox = left / P::SX;
      if (left < 0 || left % P::SX != 0 || ox >= P::OW) continue;
      const i64 patch = ((n * P::OH + oy) * P::OW + ox) * (i64(P::C) * P::KH * P::KW);
      sum = op::add(sum, convert<L>(y[patch + (c * P::KH + ky) * P::KW + kx]));
    }
  }
  return sum;
}

// View is the part of a window inside the image: rows top to bottom−1, columns left to right−1.
template <class P> struct View {
  int top, bottom, left, right;
  DEVICE View(int oy, int ox) {
    const int y = oy * P::SY - P::TOP, x = ox * P::SX - P::LEFT;
    top = y < 0 ? 0 : y;
    left = x < 0 ? 0 : x;
    bottom = least(y + P::KH, P::H);
    right = least(x + P::KW, P::WIDTH);
  }
  // count is the number of elements of a mean.
  template <bool PADDED> DEVICE int count() const {
    if (PADDED) return P::KH * P::KW;
    return bottom > top && right > left ? (bottom - top) * (right - left) : 0;
  }
};

// Pixels finds W elements of images [N, C, HEIGHT, COLS], or with LAST W channels of [N, HEIGHT, COLS, C], from element e on;
// the elements of another row and column of the same channels are at `base` plus those times STEP.
template <class P, int HEIGHT, int COLS, int W, bool LAST> struct Pixels {
  static constexpr int STEP = LAST ? P::C : 1;
  static_assert(LAST || W == 1, "vectors are of channels");
  i64 n, base;
  int c, row, col;
  template <class I> DEVICE explicit Pixels(I e) {
    e *= W;
    const I q = LAST ? e / P::C : e;
    row = int(q / COLS % HEIGHT);
    col = int(q % COLS);
    const i64 plane = q / (I(HEIGHT) * COLS);
    n = LAST ? plane : plane / P::C;
    c = LAST ? int(e % P::C) : int(plane % P::C);
    base = origin(HEIGHT, COLS);
  }
  // origin is where the channels begin in images of another size.
  DEVICE i64 origin(int height, int cols) const {
    return LAST ? n * height * cols * P::C + c : (n * P::C + c) * height * cols;
  }
};

// A Largest is the first of the largest elements of a view for each of W channels, or the first NaN, in lanes of L.
template <class P, class L, int W, int STEP> struct Largest {
  Vec<int, W> at;  // its index in the plane, −1 if the view is empty
  Vec<L, W> value;
  template <class T> DEVICE Largest(const T *x, View<P> v) {
    at = splat<W>(-1);
    value = splat<W>(L(bits_to_float(0xff800000u)));
    for (int row = v.top; row < v.bottom; row++) {
      for (int col = v.left; col < v.right; col++) {
        const int k = row * P::WIDTH + col;
        const Vec<L, W> y = load<L, W, 1, W * int(sizeof(T))>(x + i64(k) * STEP);
#pragma unroll
        for (int i = 0; i < W; i++) {
          if (at[i] < 0 || y[i] > value[i] || (y[i] != y[i] && value[i] == value[i])) {
            at[i] = k;
            value[i] = y[i];
          }
        }
      }
    }
  }
};

// max_pool and avg_pool are W elements of pools: number e of such vectors. Pools of 16 bits are in lanes of float.
template <class P, class L, int W, bool LAST, class T, class I> DEVICE Vec<L, W> max_pool(const T *x, I e) {
  typedef Pixels<P, P::OH, P::OW, W, LAST> Out;
  const Out to(e);
  return Largest<P, L, W, Out::STEP>(x + to.origin(P::H, P::WIDTH), View<P>(to.row, to.col)).value;
}
template <class P, class, int W, bool LAST, bool PADDED, class T, class I> DEVICE Vec<T, W> avg_pool(const T *x, I e) {
  typedef Pixels<P, P::OH, P::OW, W, LAST> Out;
  const Out to(e);
  const T *const from = x + to.origin(P::H, P::WIDTH);
  const View<P> v(to.row, to.col);
  Vec<T, W> sum = splat<W>(T(0));
  for (int row = v.top; row < v.bottom; row++) {
    for (int col = v.left; col < v.right; col++) {
      sum = op::add(sum, load<T, W, 1, W * int(sizeof(T))>(from + i64(row * P::WIDTH + col) * Out::STEP));
    }
  }
  const T count = T(v.template count<PADDED>());
#pragma unroll
  for (int i = 0; i < W; i++) sum[i] /= count;
  return sum;
}

// each_window calls f with the position of every window that contains an element.
template <class P, class At, class F> DEVICE void each_window(const At &at, F f) {
  const int y = at.row + P::TOP, x = at.col + P::LEFT;
  const int top = y < P::KH ? 0 : (y - P::KH) / P::SY + 1, left = x < P::KW ? 0 : (x - P::KW) / P::SX + 1;
  for (int oy = top; oy * P::SY <= y && oy < P::OH; oy++) {
    for (int ox = left; ox * P::SX <= x && ox < P::OW; ox++) f(oy, ox);
  }
}

template <class P, class T, int W, bool LAST, class X, class I> DEVICE Vec<T, W> max_pool_grad(const X *x, const T *dy, I e) {
  typedef Pixels<P, P::H, P::WIDTH, W, LAST> In;
  const In at(e);
  const T *const from = dy + at.origin(P::OH, P::OW);
  Vec<T, W> sum = splat<W>(T(0));
  each_window<P>(at, [&](int oy, int ox) {
    const Largest<P, T, W, In::STEP> most(x + at.base, View<P>(oy, ox));
    const Vec<T, W> d = load<T, W, 1, W * int(sizeof(T))>(from + i64(oy * P::OW + ox) * In::STEP);
#pragma unroll
    for (int i = 0; i < W; i++) {
      if (most.at[i] == at.row * P::WIDTH + at.col) sum[i] += d[i];
    }
  });
  return sum;
}
// max_pool_grad_block stores W channels of a block of SY·SX elements, number e of those that make up images [N, H, WIDTH, C]: a
// window is looked at once for all of them.
template <class P, int W, class T, class X, class I> DEVICE void max_pool_grad_block(T *dx, const X *x, const T *dy, I e) {
  constexpr int ROWS = (P::H + P::SY - 1) / P::SY, COLS = (P::WIDTH + P::SX - 1) / P::SX, ALIGN = W * int(sizeof(T));
  const Pixels<P, ROWS, COLS, W, true> block(e);
  const int row = block.row * P::SY, col = block.col * P::SX;
  const i64 base = block.origin(P::H, P::WIDTH);
  const T *const from = dy + block.origin(P::OH, P::OW);
  Vec<T, W> sum[P::SY * P::SX];
#pragma unroll
  for (int i = 0; i < P::SY * P::SX; i++) sum[i] = splat<W>(T(0));
  const int y = row + P::TOP, left = col + P::LEFT;
  for (int oy = y < P::KH ? 0 : (y - P::KH) / P::SY + 1; oy * P::SY < y + P::SY && oy < P::OH; oy++) {
    for (int ox = left < P::KW ? 0 : (left - P::KW) / P::SX + 1; ox * P::SX < left + P::SX && ox < P::OW; ox++) {
      const Largest<P, T, W, P::C> most(x + base, View<P>(oy, ox));
      const Vec<T, W> d = load<T, W, 1, ALIGN>(from + i64(oy * P::OW + ox) * P::C);
#pragma unroll
      for (int r = 0; r < P::SY; r++) {
#pragma unroll
        for (int c = 0; c < P::SX; c++) {
          if (col + c >= P::WIDTH) continue;
#pragma unroll
          for (int i = 0; i < W; i++) {
            if (most.at[i] == (row + r) * P::WIDTH + col + c) sum[r * P::SX + c][i] += d[i];
          }
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < P::SY; r++) {
#pragma unroll
    for (int c = 0; c < P::SX; c++) {
      if (row + r < P::H && col + c < P::WIDTH)
        store<1, ALIGN>(dx + base + i64((row + r) * P::WIDTH + col + c) * P::C, sum[r * P::SX + c]);
    }
  }
}
template <class P, class, int W, bool LAST, bool PADDED, class T, class I>
DEVICE Vec<T, W> avg_pool_grad(const T *, const T *dy, I e) {
  typedef Pixels<P, P::H, P::WIDTH, W, LAST> In;
  const In at(e);
  const T *const from = dy + at.origin(P::OH, P::OW);
  Vec<T, W> sum = splat<W>(T(0));
  each_window<P>(at, [&](int oy, int ox) {
    const T count = T(View<P>(oy, ox).template count<PADDED>());
    const Vec<T, W> d = load<T, W, 1, W * int(sizeof(T))>(from + i64(oy * P::OW + ox) * In::STEP);
#pragma unroll
    for (int i = 0; i < W; i++) sum[i] += d[i] / count;
  });
  return sum;
}

// Strides are the strides of a value of four axes, in elements.
template <i64 A, i64 B, i64 C, i64 D> struct Strides {
  static DEVICE i64 at(i64 a, i64 b, i64 c, i64 d) { return a * A + b * B + c * C + d * D; }
};

// conv is elements e to e+W−1 of a convolution's result [N, O, OH, OW], or with LAST [N, OH, OW, O], of images x and
// filters w, in L.
template <class P, int W, class L, int O, int G, class XS, class WS, bool LAST, class T, class I>
DEVICE Vec<L, W> conv(const T *x, const T *w, I e) {
  constexpr int per = P::C / G;
  Vec<L, W> r;
  for (int i = 0; i < W; i++, e++) {
    const I q = LAST ? e / O : e;
    const int ox = int(q % P::OW), oy = int(q / P::OW % P::OH), o = int(LAST ? e % O : e / (I(P::OW) * P::OH) % O);
    const i64 n = e / (I(P::OW) * P::OH * O);
    L sum = 0;
    for (int c = 0; c < per; c++) {
      for (int ky = 0; ky < P::KH; ky++) {
        const int row = oy * P::SY - P::TOP + ky * P::DY;
        if (row < 0 || row >= P::H) continue;
        for (int kx = 0; kx < P::KW; kx++) {
          const int col = ox * P::SX - P::LEFT + kx * P::DX;
          if (col < 0 || col >= P::WIDTH) continue;
          sum += convert<L>(x[XS::at(n, o / (O / G) * per + c, row, col)]) * convert<L>(w[WS::at(o, c, ky, kx)]);
        }
      }
    }
    r[i] = sum;
  }
  return r;
}
