package vec

import (
	"math"
	"slices"
	"testing"
)

func TestGatherScatter(t *testing.T) {
	x := randoms[float32](60, 1, false)
	for stride := range 5 {
		dst := make([]float32, 13)
		Gather(dst, x, stride)
		for i, v := range dst {
			if v != x[i*stride] {
				t.Fatalf("gather by %d: [%d] is %v", stride, i, v)
			}
		}
		back := make([]float32, 60)
		Scatter(back, stride, dst)
		if stride > 0 {
			for i, v := range dst {
				if back[i*stride] != v {
					t.Fatalf("scatter by %d: [%d] is %v", stride, i*stride, back[i*stride])
				}
			}
		}
	}
}

func TestTranspose(t *testing.T) {
	eachImplementation(t, testTranspose[float32], testTranspose[float64])
}

func testTranspose[T Float](t *testing.T, k *Kernels[T]) {
	for _, shape := range [][2]int{
		{0, 5}, {5, 0}, {1, 1}, {1, 9}, {9, 1}, {7, 7}, {8, 8}, {8, 16}, {24, 8}, {9, 17}, {17, 9}, {63, 65},
		{64, 64}, {65, 130}, {200, 73}, {16, 4}, {23, 37}, {40, 70}, {3, 16}, {3, 100}, {2, 40},
	} {
		testTransposeOf(t, k, shape[0], shape[1], shape[0]+2)
		testTransposeOf(t, k, shape[0], shape[1], shape[0])
	}
}

// testTransposeOf has rows of the result ldDst elements apart.
func testTransposeOf[T Float](t *testing.T, k *Kernels[T], rows, cols, ldDst int) {
	ldSrc := cols + 3
	src, dst := randoms[T](rows*ldSrc, 1, false), make([]T, cols*ldDst+1)
	for i := range dst {
		dst[i] = guard
	}
	k.Transpose(dst, ldDst, src, ldSrc, rows, cols)
	for at, got := range dst {
		j, i := at/max(ldDst, 1), at%max(ldDst, 1)
		want := T(guard)
		if i < rows && j < cols {
			want = src[i*ldSrc+j]
		}
		if got != want {
			t.Fatalf("%d×%d to %d: [%d, %d] is %v, want %v", rows, cols, ldDst, j, i, got, want)
		}
	}
}

func TestTransposeShort(t *testing.T) {
	for _, c := range []struct{ dst, src int }{{63, 64}, {64, 63}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic for slices of %d and %d", c.dst, c.src)
				}
			}()
			F32().Transpose(make([]float32, c.dst), 8, make([]float32, c.src), 8, 8, 8)
		}()
	}
}

func TestConvertFloats(t *testing.T) {
	for _, n := range lengths() {
		narrow := randoms[float32](n, 1, true)
		wide := run(t, n, nil, func(dst []float64) { Convert(dst, narrow) })
		for i, v := range narrow {
			if wide[i] != float64(v) && v == v {
				t.Fatalf("float64(%v) is %v", v, wide[i])
			}
		}
		x := randoms[float64](n, 2, true)
		got := run(t, n, nil, func(dst []float32) { Convert(dst, x) })
		for i, v := range x {
			if got[i] != float32(v) && v == v {
				t.Fatalf("float32(%v) is %v", v, got[i])
			}
		}
	}
}

// TestMasks converts numbers to masks and back, and writes nothing beside them.
func TestMasks(t *testing.T) {
	testMasks[float32](t)
	testMasks[float64](t)
}

func testMasks[T Float](t *testing.T) {
	for _, n := range lengths() {
		x := randoms[T](n, 3, true)
		for i := range x {
			if i%3 == 0 {
				x[i] = 0
			}
			if i%5 == 0 {
				x[i] = T(math.Copysign(0, -1))
			}
		}
		room := make([]bool, n+32)
		mask := room[16 : 16+n : 16+n]
		ToMask(mask, x)
		for i, m := range room {
			if at := i - 16; at < 0 || at >= n {
				if m {
					t.Fatalf("length %d: wrote outside the destination, at %d", n, at)
				}
			} else if m != (x[at] != 0) {
				t.Fatalf("length %d: the mask of %v is %v", n, x[at], m)
			}
		}
		for i, v := range run(t, n, nil, func(dst []T) { FromMask(dst, mask) }) {
			if v != 0 && v != 1 || (v == 1) != mask[i] {
				t.Fatalf("length %d: %v became %v", n, mask[i], v)
			}
		}
	}
}

func TestConvertIntegers(t *testing.T) {
	inf := math.Inf(1)
	x := []float64{0, 1.9, -1.9, math.NaN(), inf, -inf, 1e10, -1e10, 1e300, 2147483646.5, -2147483648.5}
	i32 := make([]int32, len(x))
	Convert(i32, x)
	want32 := []int32{0, 1, -1, 0, math.MaxInt32, math.MinInt32, math.MaxInt32, math.MinInt32, math.MaxInt32, 2147483646,
		math.MinInt32}
	if !slices.Equal(i32, want32) {
		t.Errorf("int32: %v, want %v", i32, want32)
	}
	i64 := make([]int64, len(x))
	Convert(i64, x)
	want64 := []int64{0, 1, -1, 0, math.MaxInt64, math.MinInt64, 1e10, -1e10, math.MaxInt64, 2147483646, -2147483648}
	if !slices.Equal(i64, want64) {
		t.Errorf("int64: %v, want %v", i64, want64)
	}
	Convert(i64, []float32{float32(inf), -1.5})
	if i64[0] != math.MaxInt64 || i64[1] != -1 {
		t.Errorf("int64: %v", i64[:2])
	}
	f := make([]float32, 2)
	Convert(f, []int64{1<<53 + 1, -3})
	if f[0] != 1<<53 || f[1] != -3 {
		t.Errorf("float32: %v", f)
	}
	Convert(i32, []int64{1<<32 + 5})
	if i32[0] != 5 {
		t.Errorf("int32 of int64: %d", i32[0])
	}
}
