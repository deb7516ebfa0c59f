package vec

import (
	"math"
	"unsafe"
)

//go:generate go run -C ../internal/gen ./vec -family=panel -pkg=vec -out=../../vec/panel_amd64.s -stubs=../../vec/panel_amd64.go

// A panel is a matrix whose rows, one after another in a slice, are as long as a matrix kernel's block is wide. The
// opcodes here go down its columns, with one number for each: a softmax of as many rows of scores at once as there are
// columns, without a sum across a vector.

// stripColumns is how many columns the assembly handles at a time.
const stripColumns = 16

// The kernels of float32, nil where there are none. x points to a strip of stripColumns columns of rows rows, stride
// elements apart.
var (
	maxStrip   func(rows, stride int, x, top *float32)
	expStrip   func(rows, stride int, x, c, sum *float32)
	scaleStrip func(rows, stride int, x, by *float32)
)

// strips reports whether panels of so many columns of T go through the assembly.
func strips[T Float](columns int) bool {
	return maxStrip != nil && unsafe.Sizeof(*new(T)) == 4 && columns%stripColumns == 0
}

func single[T Float](x []T, at int) *float32 { return (*float32)(unsafe.Pointer(&x[at])) }

// PanelMax raises each of top to the greatest element of its column of x. NaN is passed over.
func PanelMax[T Float](x, top []T) {
	width := len(top)
	if len(x) == 0 {
		return
	}
	if strips[T](width) {
		for j := 0; j < width; j += stripColumns {
			maxStrip(len(x)/width, width, single(x, j), single(top, j))
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
	if strips[T](width) {
		for j := 0; j < width; j += stripColumns {
			expStrip(len(x)/width, width, single(x, j), single(c, j), single(sum, j))
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
	if strips[T](width) {
		for j := 0; j < width; j += stripColumns {
			scaleStrip(len(x)/width, width, single(x, j), single(by, j))
		}
		return
	}
	for ; len(x) > 0; x = x[width:] {
		for j, v := range x[:width] {
			x[j] = v * by[j]
		}
	}
}
