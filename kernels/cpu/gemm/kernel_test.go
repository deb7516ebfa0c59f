package gemm

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

func testStreaming[T Float](t *testing.T) {
	rng := rand.New(rand.NewPCG(19, 20))
	for _, k := range kernels[T]() {
		for n := 1; n < 150; n++ {
			const gap = 3
			x, y, alpha := make([]T, 4*(n+gap)), make([]T, n+1), make([]T, 4)
			for _, s := range [][]T{x, y, alpha} {
				for i := range s {
					s[i] = T(rng.NormFloat64())
				}
			}
			var want, terms float64
			for i := range n {
				want += float64(x[i]) * float64(y[i])
				terms += math.Abs(float64(x[i]) * float64(y[i]))
			}
			if got := float64(k.dot(n, &x[0], &y[0])); !(math.Abs(got-want) <= tolerance[T]()*terms) {
				t.Fatalf("%s: dot of %d: got %v, want %v", k.name, n, got, want)
			}
			sums := append([]T(nil), y...)
			k.axpy4(n, &alpha[0], &x[0], n+gap, &sums[0])
			if k.axpy4Ahead != nil {
				again := append([]T(nil), y...)
				k.axpy4Ahead(n, &alpha[0], &x[0], n+gap, &again[0])
				if !slices.Equal(again, sums) {
					t.Fatalf("%s: axpy4Ahead of %d: %v, want %v", k.name, n, again, sums)
				}
			}
			for i := range n {
				want, terms := float64(y[i]), math.Abs(float64(y[i]))
				for r := range alpha {
					v := float64(alpha[r]) * float64(x[r*(n+gap)+i])
					want += v
					terms += math.Abs(v)
				}
				if got := float64(sums[i]); !(math.Abs(got-want) <= tolerance[T]()*terms) {
					t.Fatalf("%s: axpy4 of %d: element %d: got %v, want %v", k.name, n, i, got, want)
				}
			}
			if sums[n] != y[n] {
				t.Fatalf("%s: axpy4 of %d wrote behind the end", k.name, n)
			}
		}
	}
}

func TestStreamingKernels(t *testing.T) {
	t.Run("float32", testStreaming[float32])
	t.Run("float64", testStreaming[float64])
}

// random returns n normal numbers.
func random[T Float](rng *rand.Rand, n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = T(rng.NormFloat64())
	}
	return x
}

// testTiles compares the matrix kernels of each instruction set, with A in panels and in place, with the definition.
func testTiles[T Float](t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	random := func(n int) []T { return random[T](rng, n) }
	const gap = 3
	for _, k := range kernels[T]() {
		// check runs one kernel; a has element (i, p) at place(i, p), n of them.
		check := func(name string, mr, tiles, kc, n int, place func(i, p int) int, run func(a, b, c *T, ldc int, accumulate bool)) {
			t.Helper()
			ldc := k.nr + gap
			a, b := random(n), random(kc*k.nr)
			for _, accumulate := range []bool{false, true} {
				c := random(tiles * mr * ldc)
				before := append([]T(nil), c...)
				run(&a[0], &b[0], &c[0], ldc, accumulate)
				for at, got := range c {
					i, j := at/ldc, at%ldc
					want, terms := float64(before[at]), math.Abs(float64(before[at]))
					if j < k.nr {
						if !accumulate {
							want, terms = 0, 0
						}
						for p := range kc {
							v := float64(a[place(i, p)]) * float64(b[p*k.nr+j])
							want, terms = want+v, terms+math.Abs(v)
						}
					}
					if !(math.Abs(float64(got)-want) <= tolerance[T]()*terms) {
						t.Fatalf("%s %s, %d tiles, k %d, accumulate %v: element %d,%d is %v, want %v", k.name, name, tiles, kc, accumulate, i, j, got,
							want)
					}
				}
			}
		}
		for _, tiles := range []int{1, 3} {
			for _, kc := range []int{1, 3, 4, 9, 64} {
				panels := func(mr int) func(i, p int) int {
					return func(i, p int) int { return (i/mr*kc+p)*mr + i%mr }
				}
				check("tile", k.mr, tiles, kc, tiles*k.mr*kc, panels(k.mr), func(a, b, c *T, ldc int, accumulate bool) {
					k.tile(tiles, kc, a, b, c, ldc, accumulate)
				})
				for _, k := range []*kernel[T]{k, k.few} {
					if k == nil || k.tileAhead == nil {
						continue
					}
					size := tiles * k.mr * kc
					check(fmt.Sprint("tile", k.mr), k.mr, tiles, kc, size, panels(k.mr), func(a, b, c *T, ldc int, accumulate bool) {
						k.tile(tiles, kc, a, b, c, ldc, accumulate)
					})
					check(fmt.Sprint("ahead", k.mr), k.mr, tiles, kc, size, panels(k.mr), func(a, b, c *T, ldc int, accumulate bool) {
						k.tileAhead(tiles, kc, a, b, c, ldc, accumulate)
					})
				}
				if k.narrow == nil {
					continue
				}
				n := k.narrowRows
				check("narrow", n, tiles, kc, tiles*n*kc, panels(n), func(a, b, c *T, ldc int, accumulate bool) {
					k.narrow(tiles, kc, a, b, c, ldc, accumulate)
				})
				if k.tileRows == nil {
					continue
				}
				lda := kc + gap
				check("rows", k.mr, tiles, kc, tiles*k.mr*lda-gap, func(i, p int) int { return i*lda + p },
					func(a, b, c *T, ldc int, accumulate bool) {
						k.tileRows(tiles, kc, lda, a, b, c, ldc, accumulate)
					})
				across := tiles*n + gap
				check("columns", n, tiles, kc, kc*across-gap, func(i, p int) int { return p*across + i },
					func(a, b, c *T, ldc int, accumulate bool) {
						k.tileColumns(tiles, kc, across, a, b, c, ldc, accumulate)
					})
			}
		}
	}
}

// testGather compares the products of rows that lie anywhere with the definition.
func testGather[T Float](t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	for number, m := range Micros[T]() {
		for _, height := range []int{1, 2, 3, m.GatherHeight() - 1, m.GatherHeight(), m.GatherHeight() + 1, 3*m.GatherHeight() + 5} {
			for cols := 1; cols <= m.NR; cols++ {
				pieces := []Piece{{7, rng.IntN(9)}, {0, 4}, {rng.IntN(20), 1 + rng.IntN(1000)}, {3, 300}}[rng.IntN(2):][:2+rng.IntN(2)]
				k, reach := 0, 0
				for _, p := range pieces {
					k, reach = k+p.Len, max(reach, p.At+p.Len)
				}
				const places, gap = 40, 3
				rows := make([]int, tiling.RoundUp(height, m.GatherStep()))
				for i := range rows {
					rows[i] = rng.IntN(places)
				}
				width, ldc := m.PanelOf(cols), cols+gap
				if width < cols || width > m.NR {
					t.Fatalf("kernel %d: a panel of %d for %d columns of %d", number, width, cols, m.NR)
				}
				a, b := random[T](rng, places+reach-1), random[T](rng, k*width)
				cut := CutPieces(pieces)
				if cut.Steps() != k {
					t.Fatalf("pieces %v have %d steps of %d", pieces, cut.Steps(), k)
				}
				c := random[T](rng, height*ldc)
				before := append([]T(nil), c...)
				next := &b[0]
				if cols%2 == 0 {
					next = nil
				}
				finish, finished := drawFinish[T](rng, height, cols)
				m.Gather(&cut, height, rows, &a[0], &b[0], next, &c[0], ldc, cols, finish)
				for at, got := range c {
					i, j := at/ldc, at%ldc
					want, terms := float64(before[at]), 0.0
					if j < cols {
						want = 0
						step := 0
						for _, p := range pieces {
							for e := range p.Len {
								v := float64(a[rows[i]+p.At+e]) * float64(b[step*width+j])
								want, terms, step = want+v, terms+math.Abs(v), step+1
							}
						}
						want, terms = finished(i, j, want, terms)
					}
					if !(math.Abs(float64(got)-want) <= tolerance[T]()*terms) {
						t.Fatalf("kernel %d, %d×%d, pieces %v: element %d,%d is %v, want %v", number, height, cols, pieces, i, j, got, want)
					}
				}
			}
		}
	}
}

// TestGatherQuads compares sums of integers, of every instruction set, with those of 64 bits. They are rounded once for each run of
// pieces; the numbers are small enough for sums that a float32 has, and then the largest.
func TestGatherQuads(t *testing.T) {
	rng := rand.New(rand.NewPCG(25, 26))
	quad := func(v []float32, i int, draw func() byte) {
		*(*[4]byte)(unsafe.Pointer(&v[i])) = [4]byte{draw(), draw(), draw(), draw()}
	}
	for number, k := range quads() {
		m := k.micro()
		for _, height := range []int{1, 2, m.GatherHeight(), 2*m.GatherHeight() + 3} {
			for cols := 1; cols <= m.NR; cols++ {
				const places, reach, ahead = 9, 70, 3
				most := 0 // 1: the largest products
				if cols%5 == 0 {
					most = 1
				}
				a, b := make([]float32, places+reach), make([]float32, reach*m.PanelOf(cols))
				for i := range a {
					quad(a, i, func() byte { return byte(rng.IntN(256) | 255*most) })
				}
				for i := range b {
					quad(b, i, func() byte { return byte(rng.IntN(256)&^(127*most) | 128*most) })
				}
				cut := CutPieces([]Piece{{ahead, rng.IntN(30)}, {0, 1 + rng.IntN(30)}})
				rows := make([]int, tiling.RoundUp(height, m.GatherStep()))
				for i := range rows {
					rows[i] = rng.IntN(places)
				}
				c := make([]float32, height*cols)
				finish, finished := drawFinish[float32](rng, height, cols)
				m.Gather(&cut, height, rows, &a[0], &b[0], nil, &c[0], cols, cols, finish)
				sums := make([]int64, len(c))
				for at, got := range c {
					i, j := at/cols, at%cols
					sum, step := int64(0), 0
					for _, p := range cut.list {
						for e := range p.Len {
							x := *(*[4]uint8)(unsafe.Pointer(&a[rows[i]+p.At+e]))
							w := *(*[4]int8)(unsafe.Pointer(&b[step*m.PanelOf(cols)+j]))
							for q := range x {
								sum += int64(x[q]) * int64(w[q])
							}
							step++
						}
					}
					sums[at] = sum
					want, terms := finished(i, j, float64(sum), math.Abs(float64(sum)))
					if !(math.Abs(float64(got)-want) <= 1e-6*terms) || finish == nil && got != float32(sum) {
						t.Fatalf("kernel %d, %d×%d: element %d,%d is %v, want %v", number, height, cols, i, j, got, want)
					}
				}
				if m.StoresBytes {
					f := drawBytes(rng, sums, height, cols)
					clear(c)
					m.Gather(&cut, height, rows, &a[0], &b[0], nil, &c[0], cols, cols, f.Finish)
					if err := f.check(sums, cols); err != nil || slices.ContainsFunc(c, func(v float32) bool { return v != 0 }) {
						t.Fatalf("kernel %d, %d×%d: %v, sums %v", number, height, cols, err, c)
					}
					for i, v := range sums {
						c[i] = float32(v)
					}
					f = drawBytes(rng, sums, height, cols)
					f.Apply(&c[0], cols, height, cols)
					if err := f.check(sums, cols); err != nil {
						t.Fatalf("applied to %d×%d: %v", height, cols, err)
					}
				}
			}
		}
	}
	if _, err := Quads(); (err == nil) != (quads() != nil) {
		t.Error(err)
	}
}

// A byteFinish is one that stores bytes, with its operands.
type byteFinish struct {
	*Finish[float32]
	bias, scale, shift []float32
	bytes              []byte
}

// drawBytes draws what rounds such sums to bytes, among which there are some that are limited.
func drawBytes(rng *rand.Rand, sums []int64, height, cols int) byteFinish {
	most := int64(1)
	for _, v := range sums {
		most = max(most, v, -v)
	}
	f := byteFinish{Finish: &Finish[float32]{Step: cols + rng.IntN(5), Zero: rng.Int32N(256)}, bias: make([]float32, cols),
		scale: random[float32](rng, cols), shift: random[float32](rng, cols)}
	for i := range f.scale {
		f.scale[i] *= 300 / float32(most)
	}
	if rng.IntN(2) == 0 {
		for i := range f.bias {
			f.bias[i] = float32(rng.Int64N(2*most+1) - most)
		}
		f.Bias = &f.bias[0]
	}
	f.bytes = bytes.Repeat([]byte{77}, (height-1)*f.Step+cols+9)
	f.Low, f.High, f.Scale, f.Shift, f.Bytes = -float32(f.Zero), 255-float32(f.Zero), &f.scale[0], &f.shift[0], &f.bytes[0]
	return f
}

// check compares the bytes with the definition, and those around them with what they were.
func (f *byteFinish) check(sums []int64, cols int) error {
	first := f.bytes
	for at, got := range first {
		i, j := at/f.Step, at%f.Step
		if j >= cols || i*cols+j >= len(sums) {
			if got != 77 {
				return fmt.Errorf("byte %d,%d is written", i, j)
			}
			continue
		}
		want := (float64(sums[i*cols+j])+float64(f.bias[j]))*float64(f.scale[j]) + float64(f.shift[j]) + float64(f.Zero)
		if want = min(max(want, 0), 255); math.Abs(float64(got)-want) > 0.5+1e-3 {
			return fmt.Errorf("byte %d,%d is %d of %v", i, j, got, want)
		}
	}
	return nil
}

// drawFinish draws what follows the sums of a block, nil sometimes, and its definition: it takes a sum and the sum of the
// magnitudes of its terms.
func drawFinish[T Float](rng *rand.Rand, height, cols int) (*Finish[T], func(i, j int, sum, terms float64) (float64, float64)) {
	if rng.IntN(4) == 0 {
		return nil, func(_, _ int, sum, terms float64) (float64, float64) { return sum, terms }
	}
	f := &Finish[T]{Stride: cols + rng.IntN(4), Low: T(math.Inf(-1)), High: T(math.Inf(1))}
	shift, residual := make([]T, cols), make([]T, (height-1)*f.Stride+cols)
	if rng.IntN(2) == 0 {
		shift = random[T](rng, len(shift))
		f.Shift = &shift[0]
	}
	if rng.IntN(2) == 0 {
		residual = random[T](rng, len(residual))
		f.Residual = &residual[0]
	}
	if rng.IntN(2) == 0 {
		f.Low, f.High = T(rng.Float64())-0.5, T(rng.Float64())+0.5
	}
	if rng.IntN(2) == 0 {
		f.Gate = vec.Gate[T]{Slope: T(rng.Float64()) + 0.1, Offset: 0.5, Floor: T(rng.Float64()) - 0.5, Ceiling: 1}
	}
	stride, low, high := f.Stride, float64(f.Low), float64(f.High)
	return f, func(i, j int, sum, terms float64) (float64, float64) {
		a, b := float64(shift[j]), float64(residual[i*stride+j])
		sum, terms = gated(f.Gate, sum+a+b, terms+math.Abs(a)+math.Abs(b))
		return min(max(sum, low), high), terms
	}
}

// gated is a gated sum, and a bound of its error as the magnitude of terms.
func gated[T Float](g vec.Gate[T], sum, terms float64) (float64, float64) {
	if g.Slope == 0 {
		return sum, terms
	}
	wide := vec.Gate[float64]{Slope: float64(g.Slope), Offset: float64(g.Offset), Floor: float64(g.Floor), Ceiling: float64(g.Ceiling)}
	most := max(math.Abs(wide.Floor), math.Abs(wide.Ceiling))
	return wide.Of(sum), terms*most + math.Abs(sum)*(terms*wide.Slope+math.Abs(wide.Offset))
}

// TestFinishNaN checks that gates and bounds let a NaN through.
func TestFinishNaN(t *testing.T) {
	for number, m := range Micros[float32]() {
		for _, cols := range []int{1, m.NR} {
			const height = 3
			nan := float32(math.NaN())
			a, b, c := []float32{nan}, slices.Repeat([]float32{1}, m.NR), make([]float32, height*cols)
			cut := CutPieces([]Piece{{0, 1}})
			rows := make([]int, tiling.RoundUp(height, m.GatherStep()))
			m.Gather(&cut, height, rows, &a[0], &b[0], nil, &c[0], cols, cols, &Finish[float32]{Low: 0, High: 6,
				Gate: vec.Gate[float32]{Slope: 1, Ceiling: 1}})
			for i, v := range c {
				if v == v {
					t.Errorf("kernel %d, %d columns: element %d is %v", number, cols, i, v)
				}
			}
		}
	}
}

func TestGather(t *testing.T) {
	t.Run("float32", testGather[float32])
	t.Run("float64", testGather[float64])
}

func TestTiles(t *testing.T) {
	t.Run("float32", testTiles[float32])
	t.Run("float64", testTiles[float64])
}

// TestFit picks the panels that waste the fewest rows.
func TestFit(t *testing.T) {
	for _, m := range Micros[float32]() {
		for rows := 1; rows < 100; rows++ {
			fit := m.Fit(rows)
			if tiling.RoundUp(rows, fit.MR) > tiling.RoundUp(rows, m.MR) || fit.NR != m.NR || m.MR == 12 && rows == 64 && fit.MR != 8 {
				t.Errorf("panels of %d for %d rows, by default %d", fit.MR, rows, m.MR)
			}
		}
	}
}

func TestKernelNames(t *testing.T) {
	if Kernel[float32]() != kernels32[0].name || Kernel[float64]() != kernels64[0].name {
		t.Error("Kernel does not name the preferred kernel")
	}
	if last := kernels32[len(kernels32)-1]; last.name != "portable" {
		t.Error("the portable kernel is not tested")
	}
}
