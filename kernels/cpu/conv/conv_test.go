package conv

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/vec"
)

// tolerance is the bound of an element's error, relative to the sum of its terms' absolute values.
func tolerance[T gemm.Float]() float64 {
	if _, single := any(T(0)).(float32); single {
		return 1e-5
	}
	return 1e-14
}

// A spec is a convolution of n images h×w of c channels with o filters kh×kw.
type spec struct {
	n, h, w, c, o, kh, kw int
	op                    graph.Conv2D
}

// square is a convolution of square images and filters with a border.
func square(n, c, o, size, k, stride, pad, groups int) spec {
	return spec{n, size, size, c, o, k, k, graph.Conv2D{Stride: graph.IntsOf(stride, stride), Dilation: graph.IntsOf(1, 1),
		Pad: graph.IntsOf(pad, pad, pad, pad), Groups: groups}}
}

func (s spec) String() string {
	return fmt.Sprintf("%d×%d×%d×%d,%d×%d→%d,stride=%v,dilation=%v,pad=%v,groups=%d",
		s.n, s.h, s.w, s.c, s.kh, s.kw, s.o, s.op.Stride, s.op.Dilation, s.op.Pad, s.op.Groups)
}

// config is the convolution of contiguous operands.
func (s spec) config() Config[float32] { return configOf[float32](s) }

func configOf[T gemm.Float](s spec) Config[T] {
	return Config[T]{Op: s.op, X: graph.Contiguous(graph.ShapeOf(s.n, s.h, s.w, s.c)),
		W: graph.Contiguous(graph.ShapeOf(s.kh, s.kw, s.c/s.op.Groups, s.o)), RowStride: max(s.o, 1)}
}

// flops counts multiplications and additions.
func flops[T gemm.Float](k *Plan[T]) float64 {
	return 2 * float64(k.Rows()) * float64(k.cfg.W.Shape.Elems())
}

// random returns n normal numbers.
func random[T gemm.Float](rng *rand.Rand, n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = T(rng.NormFloat64())
	}
	return x
}

// reference is the convolution by definition, in float64, and for each element the sum of its terms' absolute values.
// Rows have O elements.
func reference[T gemm.Float](k *Plan[T], x, w []T) (y, terms []float64) {
	cfg := &k.cfg
	out, xs, ws := cfg.W.Shape.At(3), cfg.X.Stride, cfg.W.Stride
	per := out / cfg.Op.Groups
	ch := cfg.W.Shape.At(2)
	y, terms = make([]float64, k.Rows()*out), make([]float64, k.Rows()*out)
	for at := range y {
		o, pixel := at%out, at/out
		ox, oy, n := pixel%k.w.out, pixel/k.w.out%k.h.out, pixel/k.w.out/k.h.out
		for i := range k.h.taps {
			iy := oy*k.h.stride + i*k.h.dilation - k.h.pad
			for j := range k.w.taps {
				ix := ox*k.w.stride + j*k.w.dilation - k.w.pad
				if iy < 0 || iy >= k.h.in || ix < 0 || ix >= k.w.in {
					continue
				}
				for c := range ch {
					v := float64(x[cfg.X.Offset+n*xs[0]+iy*xs[1]+ix*xs[2]+(o/per*ch+c)*xs[3]]) *
						float64(w[cfg.W.Offset+i*ws[0]+j*ws[1]+c*ws[2]+o*ws[3]])
					y[at] += v
					terms[at] += math.Abs(v)
				}
			}
		}
	}
	return y, terms
}

// adds1 is an epilogue that adds 1 to each element.
type adds1[T gemm.Float] struct {
	y  []T
	ld int
}

func (m *adds1[T]) Tile(_, _, row, col, rows, cols int) {
	for i := row; i < row+rows; i++ {
		for j := col; j < col+cols; j++ {
			m.y[i*m.ld+j]++
		}
	}
}

// drawFinish draws what follows the sums of any number of rows, or nothing, and its definition.
func drawFinish[T gemm.Float](rng *rand.Rand,
	out int) (of func(rows int) *Finish[T], apply func(row, col int, sum, terms float64) (float64, float64)) {
	if rng.IntN(3) == 0 {
		return func(int) *Finish[T] { return nil }, func(_, _ int, sum, terms float64) (float64, float64) { return sum, terms }
	}
	f := &Finish[T]{RowStride: out + rng.IntN(3), Low: T(math.Inf(-1)), High: T(math.Inf(1))}
	if rng.IntN(2) == 0 {
		f.Low, f.High = T(rng.Float64())-0.5, T(rng.Float64())+0.5
	}
	if rng.IntN(2) == 0 {
		f.Gate = vec.Gate[T]{Slope: 0.25, Offset: 0.5, Ceiling: 1}
	}
	if rng.IntN(2) == 0 {
		f.Shift = random[T](rng, out)
	}
	with := rng.IntN(2) == 0
	return func(rows int) *Finish[T] {
			if with && f.Residual == nil {
				f.Residual = random[T](rng, rows*f.RowStride)
			}
			return f
		}, func(row, col int, sum, terms float64) (float64, float64) {
			for _, v := range [][2]int{{0, col}, {1, row*f.RowStride + col}} {
				if x := [][]T{f.Shift, f.Residual}[v[0]]; x != nil {
					sum, terms = sum+float64(x[v[1]]), terms+math.Abs(float64(x[v[1]]))
				}
			}
			if f.Gate.Slope != 0 {
				gate := vec.Gate[float64]{Slope: 0.25, Offset: 0.5, Ceiling: 1}
				sum, terms = gate.Of(sum), terms*(2+math.Abs(sum))
			}
			return min(max(sum, float64(f.Low)), float64(f.High)), terms
		}
}

// check compares a convolution with its definition, for 1 to 3 workers, with packed filters, and in bands of any size.
func check[T gemm.Float](t *testing.T, rng *rand.Rand, cfg Config[T], micro gemm.Micro[T]) {
	t.Helper()
	const gap = 5
	x, w := random[T](rng, Extent(cfg.X)), random[T](rng, Extent(cfg.W))
	out := cfg.W.Shape.At(3)
	var first []T
	finish, finished := drawFinish[T](rng, out)
	for workers := 1; workers <= 3; workers++ {
		p := pool.New(workers)
		defer p.Close()
		for _, packed := range []bool{false, true} {
			cfg := cfg
			if packed {
				var err error
				if cfg.Filters, err = newFilters(cfg.Op.Groups, cfg.W, p, micro); err != nil {
					t.Fatal(err)
				}
				if err := cfg.Filters.Update(w); err != nil {
					t.Fatal(err)
				}
			}
			cfg.Band = rng.IntN(2) * (1 + rng.IntN(400))
			k, err := newPlan(cfg, p, nil, micro)
			if err != nil {
				t.Fatal(err)
			}
			y := random[T](rand.New(rand.NewPCG(1, 2)), max((k.Rows()-1)*cfg.RowStride+out, 0)+gap)
			before := append([]T(nil), y...)
			m := &adds1[T]{y: y, ld: cfg.RowStride}
			if err := k.Run(x, w, y, finish(k.Rows()), m); err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = y
				want, terms := reference(k, x, w)
				for at, v := range y {
					row, col := at/cfg.RowStride, at%cfg.RowStride
					if row >= k.Rows() || col >= out {
						if v != before[at] {
							t.Fatalf("%v→%v %+v: element %d, outside of the result, has been written", cfg.X.Shape, cfg.W.Shape, cfg.Op, at)
						}
						continue
					}
					exact, sum := finished(row, col, want[row*out+col], terms[row*out+col])
					exact, sum = exact+1, sum+1
					if !(math.Abs(float64(v)-exact) <= tolerance[T]()*sum) {
						t.Fatalf("%v→%v %+v: row %d, column %d is %v, want %v", cfg.X.Shape, cfg.W.Shape, cfg.Op, row, col, v, exact)
					}
				}
				continue
			}
			for at := range y {
				if y[at] != first[at] {
					t.Fatalf("%v→%v %+v: %d workers, packed %v: element %d differs", cfg.X.Shape, cfg.W.Shape, cfg.Op, workers, packed, at)
				}
			}
		}
	}
}
