package gemm

import (
	"fmt"
	"slices"
	"testing"

	"fusec/kernels/cpu/tiling"
)

func ExamplePack() {
	// Two reduction steps of five columns, in panels of four.
	src := []float32{
		1, 2, 3, 4, 5,
		6, 7, 8, 9, 10,
	}
	dst := make([]float32, PackedLen(4, 2, 5))
	Pack(dst, 4, 2, 5, src, 5, 1)
	fmt.Println(dst[:8])
	fmt.Println(dst[8:])
	// Output:
	// [1 2 3 4 6 7 8 9]
	// [5 0 0 0 10 0 0 0]
}

func testPackLayout[T Float](t *testing.T) {
	const guard = 777
	for _, kern := range kernels[T]() {
		for _, width := range []int{4, 6, 8, 12, 16, 32} {
			for _, k := range []int{1, 3, 4, 7, 8, 9, 25} {
				for n := 1; n <= 2*width+1; n++ {
					for _, s := range [][2]int{{n + 2, 1}, {1, k + 1}, {3, 3 * k}, {0, 1}, {1, 0}} {
						src := filled[T]((k-1)*s[0] + (n-1)*s[1] + 1)
						dst := slices.Repeat([]T{guard}, PackedLen(width, k, n)+8)
						kern.pack(dst, width, k, n, src, s[0], s[1])
						for i := range tiling.RoundUp(n, width) {
							for p := range k {
								var want T
								if i < n {
									want = src[p*s[0]+i*s[1]]
								}
								if got := dst[(i/width*k+p)*width+i%width]; got != want {
									t.Fatalf("%s: %d×%d, width %d, strides %v: element %d, %d is %v, want %v", kern.name, k, n, width, s, p, i, got, want)
								}
							}
						}
						for _, v := range dst[PackedLen(width, k, n):] {
							if v != guard {
								t.Fatalf("%s: %d×%d, width %d, strides %v: wrote behind the end", kern.name, k, n, width, s)
							}
						}
					}
				}
			}
		}
	}
}

func TestPackLayout(t *testing.T) {
	t.Run("float32", testPackLayout[float32])
	t.Run("float64", testPackLayout[float64])
}

func TestPackChecksItsArguments(t *testing.T) {
	Pack[float32](nil, 4, 0, 3, nil, 1, 1)
	for name, call := range map[string]func(){
		"dst":    func() { Pack(make([]float32, 15), 4, 3, 5, make([]float32, 15), 5, 1) },
		"src":    func() { Pack(make([]float32, 24), 4, 3, 5, make([]float32, 14), 5, 1) },
		"stride": func() { Pack(make([]float32, 24), 4, 3, 5, make([]float32, 15), -5, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a bad %s is accepted", name)
				}
			}()
			call()
		}()
	}
}

func TestOffsets(t *testing.T) {
	got, err := Offsets([]int{2, 3}, []int{100, 0})
	if want := []int{0, 0, 0, 100, 100, 100}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	got, err = Offsets(nil, nil)
	if err != nil || !slices.Equal(got, []int{0}) {
		t.Errorf("no dimensions: got %v, %v", got, err)
	}
	if _, err := Offsets([]int{2}, nil); err == nil {
		t.Error("a missing stride is accepted")
	}
	if _, err := Offsets([]int{-2}, []int{1}); err == nil {
		t.Error("a negative dimension is accepted")
	}
}
