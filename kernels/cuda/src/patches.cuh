// Convolutions as products; see gemm.cuh for Problem. The matrix of an operand that is an image is not in memory. Its
// rows are positions of a window that slides over images [N, H, WIDTH, channels], its columns taps of the window with
// channels: column t is channel t % C of tap t / C, in row t / C / KW of the window. P::Image describes it, as constants:
//
//	int C, KH, KW;                   channels; rows and columns of taps
//	int FILLED;                      channels that are in memory; the others are 0
//	int OH, OW;                      positions
//	int H, WIDTH;                    of the image
//	int SY, SX, Y0, X0, DY, DX;      position (oy, ox) has tap (ky, kx) at row oy·SY + Y0 + ky·DY, column ox·SX + X0 + kx·DX
//	int ROWS, COLS;                  of the matrix
//	i64 S_N, S_Y, S_X, S_C;          strides of the image, in elements
//	typedef … Offset;                wide enough for offsets within the images
//
// With A_KINNER, k counts the columns, else the rows. Elements outside of the image are zero.

constexpr int NOWHERE = -(1 << 30);

// A PatchRow is a position, a PatchColumn a tap and channel: where they are in the image, and how far into memory.
template <class I> struct PatchRow {
  int y, x;
  typename I::Offset at;
  DEVICE PatchRow() {}
  DEVICE explicit PatchRow(int row) {
    const int ox = row % I::OW, q = row / I::OW, oy = q % I::OH;
    typedef typename I::Offset O;
    y = row < I::ROWS ? oy * I::SY + I::Y0 : NOWHERE;
    x = ox * I::SX + I::X0;
    at = O(q / I::OH) * O(I::S_N) + O(oy * I::SY + I::Y0) * O(I::S_Y) + O(x) * O(I::S_X);
  }
};
template <class I> struct PatchColumn {
  int y, x;
  typename I::Offset at;
  DEVICE PatchColumn() {}
  DEVICE explicit PatchColumn(int column) {
    const int c = column % I::C, tap = column / I::C, kx = tap % I::KW, ky = tap / I::KW;
    typedef typename I::Offset O;
    y = column < I::COLS && c < I::FILLED ? ky * I::DY : NOWHERE;
    x = kx * I::DX;
    at = O(c) * O(I::S_C) + O(ky * I::DY) * O(I::S_Y) + O(x) * O(I::S_X);
  }
};

// inside reports whether an element is in the image.
template <class I> DEVICE bool inside(const PatchRow<I> &row, const PatchColumn<I> &column) {
  return u32(row.y + column.y) < u32(I::H) && u32(row.x + column.x) < u32(I::WIDTH);
}

// A PatchWalk finds the pieces of VEC elements that a thread of THREADS copies: piece i of EACH is number
// threadIdx.x + i·THREADS of the OUTER×BK elements of a step. Positions that do not change from step to step are kept, if they
// are few.
template <class I, bool KINNER, int OUTER, int BK, int VEC, int THREADS> struct PatchWalk {
  static constexpr int ROW = (KINNER ? BK : OUTER) / VEC, ALL = OUTER * BK / VEC, EACH = (ALL + THREADS - 1) / THREADS;
  static constexpr bool KEPT = KINNER && EACH <= 8;
  static_assert(THREADS % ROW == 0, "the pieces of a thread are one below another");
  PatchRow<I> rows[KEPT ? EACH : 1];
  int first;
  PatchColumn<I> column;
  DEVICE explicit PatchWalk(int outer) : first(outer) {
    if constexpr (KEPT) {
#pragma unroll
      for (int i = 0; i < EACH; i++) rows[i] = place(i);
    }
    if constexpr (!KINNER) column = PatchColumn<I>(outer + threadIdx.x % ROW * VEC);
  }
  // at goes to the step of the product that begins at k.
  DEVICE void at(int k) {
    if constexpr (KINNER) {
      column = PatchColumn<I>(k + threadIdx.x % ROW * VEC);
    } else {
      first = k;
    }
  }
  DEVICE PatchRow<I> place(int i) const { return PatchRow<I>(first + (int(threadIdx.x) + i * THREADS) / ROW); }
  DEVICE PatchRow<I> row(int i) const {
    if constexpr (KEPT) {
      return rows[i];
    } else {
      return place(i);
    }
  }
};

// packed is element e of filters as a matrix [G, TAPS·PIXELS·CPAD, PITCH]: row k is channel k % CPAD of tap k / CPAD. There are
// ACROSS·PIXELS taps in a row, of which those from SHIFT on are the KW of the filters; C channels and N columns; what else there is
// is zero.
template <int TAPS, int ACROSS, int KW, int PIXELS, int SHIFT, int C, int CPAD, int N, int PITCH, i64 S_Y, i64 S_X, i64 S_C,
          i64 S_N, i64 S_G, class T, class I>
DEVICE T packed(const T *w, I e) {
  const int n = int(e % PITCH), c = int(e / PITCH % CPAD), tap = int(e / (I(PITCH) * CPAD) % (TAPS * PIXELS));
  const i64 g = e / (I(PITCH) * CPAD * (TAPS * PIXELS));
  const int kx = tap % (ACROSS * PIXELS) - SHIFT;
  if (c >= C || n >= N || kx < 0 || kx >= KW) return T{};
  return w[g * S_G + tap / (ACROSS * PIXELS) * S_Y + kx * S_X + c * S_C + n * S_N];
}

// widened is piece e of W channels of images whose C channels are filled up with zeros to CPAD. Rows are WIDTH pixels from number
// FIRST on, of which the images have those from 0 to SIZE.
template <int W, int C, int CPAD, int HEIGHT, int WIDTH, int FIRST, int SIZE, i64 S_N, i64 S_Y, i64 S_X, i64 S_C, class T, class I>
DEVICE Vec<T, W> widened(const T *x, I e) {
  const int c = int(e % (CPAD / W)) * W, col = int(e / (CPAD / W) % WIDTH) + FIRST, row = int(e / (I(CPAD / W) * WIDTH) % HEIGHT);
  const T *const at = x + e / (I(CPAD / W) * WIDTH * HEIGHT) * S_N + row * S_Y + col * S_X;
  Vec<T, W> v;
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = c + i < C && u32(col) < u32(SIZE) ? at[(c + i) * S_C] : T{};
  return v;
}
