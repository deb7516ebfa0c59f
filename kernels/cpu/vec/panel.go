package vec

import (
	"math"
	"unsafe"
)

//go:generate go run -C ../internal/gen ./vec -family=panel -pkg=vec -out=../../vec/panel_amd64.s -stubs=../../vec/panel_amd64.go
//go:generate go run -C ../internal/gen ./vec -arch=arm64 -family=panel -pkg=vec -out=../../vec/panel_arm64.s -stubs=../../vec/panel_arm64.go

// A panel is a matrix with contiguous rows that are as long as a matrix kernel's block is wide. The opcodes here work
// down its columns, with one number for each: a softmax of as many rows of scores at once as there are columns, without
// sums across a vector.

// stripKernels are the assembly kernels of one instruction set for float32. They process a strip of the given number of
// columns at a time: x points to one of rows rows, stride elements apart.
type stripKernels struct {
	name    string
	columns int
	max     func(rows, stride int, x, top *float32)
	exp     func(rows, stride int, x, c, sum *float32)
	scale   func(rows, stride int, x, by *float32)
}

// strips lists what this processor can run, the fastest first.
var strips []stripKernels

// stripsOf returns the kernels for panels of so many columns of T, nil if there are none.
func stripsOf[T Float](columns int) *stripKernels {
	if unsafe.Sizeof(*new(T)) != 4 {
		return nil
	}
	for i := range strips {
		if columns%strips[i].columns == 0 {
			return &strips[i]
		}
	}
	return nil
}

func single[T Float](x []T, at int) *float32 { return (*float32)(unsafe.Pointer(&x[at])) }

// PanelMax raises each of top to the greatest element of its column of x. NaN is ignored.
func PanelMax[T Float](x, top []T) {
	width := len(top)
	if len(x) == 0 {
		return
	}
	if k := stripsOf[T](width); k != nil {
		for j := 0; j < width; j += k.columns {
			k.max(len(x)/width, width, single(x, j), single(top, j))
		}
		return
	}
	for ; len(x) > 0; x = x[width:] {
		for j, v := range x[:width] {
			if v > top[j] {
				top[j] = v
			}
		}
	}
}

// PanelExp turns each element of x into e^(x − c), c that of its column, which is not above 1, and adds the results of
// a column to its sum. The assembly has an error of 1 ulp, and gives 0 below 1.2e-38.
func PanelExp[T Float](x, c, sum []T) {
	width := len(c)
	if len(x) == 0 {
		return
	}
	if k := stripsOf[T](width); k != nil {
		for j := 0; j < width; j += k.columns {
			k.exp(len(x)/width, width, single(x, j), single(c, j), single(sum, j))
		}
		return
	}
	for ; len(x) > 0; x = x[width:] {
		for j, v := range x[:width] {
			e := T(math.Exp(float64(v - c[j])))
			x[j] = e
			sum[j] += e
		}
	}
}

// PanelScale multiplies each element of x by that of its column in by.
func PanelScale[T Float](x, by []T) {
	width := len(by)
	if len(x) == 0 {
		return
	}
	if k := stripsOf[T](width); k != nil {
		for j := 0; j < width; j += k.columns {
			k.scale(len(x)/width, width, single(x, j), single(by, j))
		}
		return
	}
	for ; len(x) > 0; x = x[width:] {
		for j, v := range x[:width] {
			x[j] = v * by[j]
		}
	}
}
