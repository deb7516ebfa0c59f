package cpu

import (
	"math"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// A groupNorm normalises groups of channels, which stand side by side: one item is a number of whole groups.
type groupNorm[T float] struct {
	env      *Env
	op       graph.GroupNorm
	args     []Operand
	result   Operand
	channels int // of a group
	plane    int // elements of a channel
	rows     int // groups of all samples
	group    int // per item
	sum      func(x []T) T
	squares  func(x []T, mean T) T
	affine   func(dst, x []T, scale, shift T)
	fma      func(dst, x, scale, shift []T)

	x, y, gamma, beta []T
}

var _ = answers.Add(floats(newGroupNorm[float32], newGroupNorm[float64]))

func newGroupNorm[T float](op graph.GroupNorm, args, results []Operand, env *Env) (Kernel, error) {
	s, code := args[0].Layout.Shape, vec.Of[T]()
	_, _, plane := s.Around(0, 2)
	k := &groupNorm[T]{env: env, op: op, args: args, result: results[0], channels: s.At(1) / op.Groups, plane: plane,
		rows: s.At(0) * op.Groups, sum: code.Reduce(vec.SumOf), squares: code.SumSquaredDeviations(),
		affine: code.FMAVSS(), fma: code.FMAVVV()}
	k.group = max(grain/4/max(k.channels*k.plane, 1), 1)
	return k, nil
}

// Run implements [Kernel].
func (k *groupNorm[T]) Run(args, results []Memory) error {
	if k.result.Layout.Shape.Elems() == 0 {
		return nil
	}
	k.x, k.y = numbers[T](args[0], k.args[0]), numbers[T](results[0], k.result)
	k.gamma, k.beta = numbers[T](args[1], k.args[1]), numbers[T](args[2], k.args[2])
	k.env.Pool.Run(chunks(k.rows, k.group), k)
	k.x, k.y, k.gamma, k.beta = nil, nil, nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *groupNorm[T]) Do(_, item int) {
	n := k.channels * k.plane
	for row := item * k.group; row < min((item+1)*k.group, k.rows); row++ {
		x, y := k.x[row*n:][:n], k.y[row*n:][:n]
		mean := k.sum(x) / T(n)
		r := T(1 / math.Sqrt(float64(k.squares(x, mean)/T(n))+k.op.Eps))
		first := row % k.op.Groups * k.channels
		gamma, beta := k.gamma[first:][:k.channels], k.beta[first:][:k.channels]
		if k.plane == 1 {
			k.affine(y, x, r, -mean*r)
			k.fma(y, y, gamma, beta)
			continue
		}
		for c, g := range gamma {
			at := c * k.plane
			k.affine(y[at:at+k.plane], x[at:at+k.plane], r*g, beta[c]-mean*r*g)
		}
	}
}
