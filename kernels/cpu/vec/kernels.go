package vec

import "fusec/graph"

// Float is an element type of the opcodes.
type Float interface{ float32 | float64 }

// Kernels is one implementation of all opcodes on elements of type T. The functions that it returns are shared, safe
// for concurrent use, and allocate nothing. Looking up an opcode that does not exist panics with an index error.
type Kernels[T Float] struct {
	unary       []func(dst, x []T)      // by graph.UnaryFn: those without a parameter
	unaryScalar []func(dst, x []T, s T) // by graph.UnaryFn: those with a parameter
	vv          []func(dst, a, b []T)   // by graph.BinaryFn
	vs, sv      []func(dst, x []T, s T)
	reduce      [numReduction]func(x []T) T

	fmaVVV, selectVVV   func(dst, a, b, c []T)
	fmaVSV              func(dst, a, c []T, s T)
	fmaVSS              func(dst, a []T, s, t T)
	selectVVS           func(dst, m, a []T, s T)
	selectVSV           func(dst, m, b []T, s T)
	roundMul, roundDiv  func(dst, x []T, s, zero, lo, hi T)
	dot                 func(a, b []T) T
	sumSquareDeviations func(x []T, c T) T
	expSubSum           func(dst, x []T, c T) T
	fill                func(dst []T, s T)
	keep                func(dst, x []T, kept []uint32, scale T)

	// transposeBlocks transposes a matrix with sides that are positive
	// multiples of 8; nil where there is no such kernel.
	transposeBlocks func(dst *T, ldDst int, src *T, ldSrc, rows, cols int)
	// transposeLines transposes a matrix whose rows are a positive multiple of
	// lineRows, and its columns one of lineCols; nil where there is no such kernel.
	transposeLines func(dst *T, ldDst int, src *T, ldSrc, rows, cols int)
	// interleave transposes three rows of n elements, a positive multiple of
	// lineRows, into one line; nil where there is no such kernel.
	interleave func(dst, src *T, ldSrc, n int)
}

// The implementations in use: portable, and what init replaces.
var (
	kernels32 = Portable[float32]()
	kernels64 = Portable[float64]()
)

// F32 returns the fastest float32 opcodes that this processor runs.
func F32() *Kernels[float32] { return kernels32 }

// F64 returns the fastest float64 opcodes that this processor runs.
func F64() *Kernels[float64] { return kernels64 }

// Of is [F32] or [F64], whichever is for elements of type T.
func Of[T Float]() *Kernels[T] {
	if k, ok := any(kernels32).(*Kernels[T]); ok {
		return k
	}
	return any(kernels64).(*Kernels[T])
}

// Unary returns op, which has no parameter, in the form dst[i] = op(x[i]).
func (k *Kernels[T]) Unary(op graph.UnaryFn) func(dst, x []T) { return k.unary[op] }

// UnaryScalar returns op, which has a parameter, in the form dst[i] = op(x[i], s).
func (k *Kernels[T]) UnaryScalar(op graph.UnaryFn) func(dst, x []T, s T) { return k.unaryScalar[op] }

// BinaryVV returns op in the form dst[i] = op(a[i], b[i]).
func (k *Kernels[T]) BinaryVV(op graph.BinaryFn) func(dst, a, b []T) { return k.vv[op] }

// BinaryVS returns op in the form dst[i] = op(x[i], s).
func (k *Kernels[T]) BinaryVS(op graph.BinaryFn) func(dst, x []T, s T) { return k.vs[op] }

// BinarySV returns op in the form dst[i] = op(s, x[i]).
func (k *Kernels[T]) BinarySV(op graph.BinaryFn) func(dst, x []T, s T) { return k.sv[op] }

// FMAVVV returns dst[i] = a[i]·b[i] + c[i], rounded once.
func (k *Kernels[T]) FMAVVV() func(dst, a, b, c []T) { return k.fmaVVV }

// FMAVSV returns dst[i] = a[i]·s + c[i], rounded once. With c = dst it is axpy.
func (k *Kernels[T]) FMAVSV() func(dst, a, c []T, s T) { return k.fmaVSV }

// FMAVSS returns dst[i] = a[i]·s + t, rounded once.
func (k *Kernels[T]) FMAVSS() func(dst, a []T, s, t T) { return k.fmaVSS }

// SelectVVV returns dst[i] = a[i] where m[i] ≠ 0, else b[i].
func (k *Kernels[T]) SelectVVV() func(dst, m, a, b []T) { return k.selectVVV }

// SelectVVS returns dst[i] = a[i] where m[i] ≠ 0, else s.
func (k *Kernels[T]) SelectVVS() func(dst, m, a []T, s T) { return k.selectVVS }

// SelectVSV returns dst[i] = s where m[i] ≠ 0, else b[i].
func (k *Kernels[T]) SelectVSV() func(dst, m, b []T, s T) { return k.selectVSV }

// RoundMul returns dst[i] = min(max(round(x[i]·s) + zero, lo), hi): a quantisation, whose scale is 1/s. Halves are rounded to even.
func (k *Kernels[T]) RoundMul() func(dst, x []T, s, zero, lo, hi T) { return k.roundMul }

// RoundDiv is [Kernels.RoundMul] with x[i] ÷ s.
func (k *Kernels[T]) RoundDiv() func(dst, x []T, s, zero, lo, hi T) { return k.roundDiv }

// Reduce returns op over one slice.
func (k *Kernels[T]) Reduce(op Reduction) func(x []T) T { return k.reduce[op] }

// Dot returns Σ a[i]·b[i].
func (k *Kernels[T]) Dot() func(a, b []T) T { return k.dot }

// SumSquaredDeviations returns Σ (x[i] − c)².
func (k *Kernels[T]) SumSquaredDeviations() func(x []T, c T) T { return k.sumSquareDeviations }

// ExpSubSum returns dst[i] = e^(x[i] − c), whose result is Σ dst[i]: the pass of
// a softmax that follows the search for the greatest element c.
func (k *Kernels[T]) ExpSubSum() func(dst, x []T, c T) T { return k.expSubSum }

// Fill returns dst[i] = s.
func (k *Kernels[T]) Fill() func(dst []T, s T) { return k.fill }

// Keep returns dst[i] = x[i]·scale where bit [graph.DropoutBit] of i in kept[i/32] is 1, else 0: dropout by the bits of [Kept].
func (k *Kernels[T]) Keep() func(dst, x []T, kept []uint32, scale T) { return k.keep }

// Axpy sets dst[i] += s·x[i], rounded once.
func (k *Kernels[T]) Axpy(dst, x []T, s T) { k.fmaVSV(dst, x, dst, s) }

// AddTo sets acc[i] += x[i].
func (k *Kernels[T]) AddTo(acc, x []T) { k.vv[graph.Add](acc, acc, x) }

// MulTo sets acc[i] *= x[i].
func (k *Kernels[T]) MulTo(acc, x []T) { k.vv[graph.Mul](acc, acc, x) }

// MaxTo sets acc[i] to the greater of acc[i] and x[i], as Max.
func (k *Kernels[T]) MaxTo(acc, x []T) { k.vv[graph.Max](acc, acc, x) }

// argBlock is how many elements ArgMax compares by their maximum before it
// looks at one of them.
const argBlock = 256

// ArgMax returns the index of the first greatest element, or of the first NaN
// if there is one, or −1 if x is empty.
func (k *Kernels[T]) ArgMax(x []T) int {
	if len(x) == 0 {
		return -1
	}
	best, start := x[0], 0
	for i := 0; i < len(x); i += argBlock {
		m := k.reduce[MaxOf](x[i:min(i+argBlock, len(x))])
		if m != m || m > best {
			best, start = m, i
		}
		if m != m {
			break
		}
	}
	for i := start; ; i++ {
		if x[i] == best || best != best && x[i] != x[i] {
			return i
		}
	}
}
