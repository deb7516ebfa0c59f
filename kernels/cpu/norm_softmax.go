package cpu

import (
	"math"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

var _ = answers.Add(own(func(op graph.Softmax, args, results []Operand, env *Env) (Kernel, error) {
	return compileSoftmax(op, op.Axis, false, args, results, env)
})).Add(own(func(op graph.LogSoftmax, args, results []Operand, env *Env) (Kernel, error) {
	return compileSoftmax(op, op.Axis, true, args, results, env)
}))

// compileSoftmax makes the kernel of a softmax that stands alone: along rows a fusion, along an outer axis a kernel
// that works on columns.
func compileSoftmax(op graph.Op, axis int, log bool, args, results []Operand, env *Env) (Kernel, error) {
	if innermost(args[0].Layout.Shape, graph.IntsOf(axis)) {
		return fused(op, args, results, env)
	}
	return byFloat(args[0].DType, newColumnSoftmax[float32], newColumnSoftmax[float64])(axis, log, args[0], results[0], env), nil
}

// A columnSoftmax is a softmax along the middle axis of [outer, count, inner]. One item is a segment of the innermost
// elements: their maxima and sums are vectors in scratch.
type columnSoftmax[T float] struct {
	env                 *Env
	x, y                Operand
	log                 bool
	outer, count, inner int
	width, parts        int

	fill          func(dst []T, s T)
	max, add      func(acc, x []T)
	equal         func(dst, x []T, s T)
	most, least   func(dst, x []T, s T)
	choose        func(dst, m, b []T, s T)
	sub, mul      func(dst, a, b []T)
	exp, ln, flip func(dst, x []T)

	src, dst []T
}

func newColumnSoftmax[T float](axis int, log bool, x, y Operand, env *Env) Kernel {
	code := vec.Of[T]()
	k := &columnSoftmax[T]{env: env, x: x, y: y, log: log,
		fill: code.Fill(), max: code.MaxTo, add: code.AddTo, equal: code.BinaryVS(graph.Eq),
		most: code.BinaryVS(graph.Min), least: code.BinaryVS(graph.Max), choose: code.SelectVSV(),
		sub: code.BinaryVV(graph.Sub), mul: code.BinaryVV(graph.Mul), exp: code.Unary(graph.Exp), ln: code.Unary(graph.Log),
		flip: code.Unary(graph.Recip)}
	k.outer, k.count, k.inner = x.Layout.Shape.Around(axis, 1)
	k.width = min(max(k.inner, 1), segment/4)
	k.parts = chunks(k.inner, k.width)
	env.reserve(3 * roundLine[T](k.width) * x.DType.Size())
	return k
}

// Run implements [Kernel].
func (k *columnSoftmax[T]) Run(args, results []Memory) error {
	if k.outer*k.count*k.inner == 0 {
		return nil
	}
	k.src, k.dst = numbers[T](args[0], k.x), numbers[T](results[0], k.y)
	k.env.Pool.Run(k.outer*k.parts, k)
	k.src, k.dst = nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *columnSoftmax[T]) Do(worker, item int) {
	first := item / k.parts * k.count
	col := item % k.parts * k.width
	n, line := min(k.width, k.inner-col), roundLine[T](k.width)
	scratch := scratchOf[T](k.env, worker, 0, 3*line)
	top, sum, e := scratch[:n], scratch[line:][:n], scratch[2*line:][:n]
	row := func(x []T, i int) []T { return x[(first+i)*k.inner+col:][:n] }

	copy(top, row(k.src, 0))
	for i := 1; i < k.count; i++ {
		k.max(top, row(k.src, i))
	}
	k.most(top, top, greatest[T]()) // infinities are not taken off
	k.least(top, top, -greatest[T]())
	k.fill(sum, 0)
	for i := range k.count {
		y := row(k.dst, i)
		k.sub(y, row(k.src, i), top)
		if k.log {
			k.exp(e, y)
			k.add(sum, e)
			continue
		}
		k.exp(y, y)
		k.add(sum, y)
	}
	k.equal(e, sum, 0)
	k.choose(sum, e, sum, 1) // nothing to divide by where all is −Inf
	if k.log {
		k.ln(sum, sum)
		for i := range k.count {
			k.sub(row(k.dst, i), row(k.dst, i), sum)
		}
		return
	}
	k.flip(sum, sum)
	for i := range k.count {
		k.mul(row(k.dst, i), row(k.dst, i), sum)
	}
}

// greatest is the greatest finite number.
func greatest[T float]() T {
	most := math.MaxFloat64
	if dtypeOf[T]() == graph.F32 {
		most = math.MaxFloat32
	}
	return T(most)
}
