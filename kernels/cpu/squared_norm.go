package cpu

import (
	"sort"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// A squaredNorm kernel sums the squares of all operands in one run over the pool. Every operand is cut into blocks by
// its size alone; the blocks' sums are added two by two, so that the result is the same on any number of workers.
type squaredNorm struct {
	env     *Env
	x       []Operand
	y       Operand
	first   []int // by operand: its first block; then the number of all
	partial []float64

	args []Memory
}

var _ = answers.Add(moves(newSquaredNorm))

func newSquaredNorm(_ graph.SquaredNorm, args, results []Operand, env *Env) Kernel {
	k := &squaredNorm{env: env, x: args, y: results[0], first: make([]int, len(args)+1)}
	for i, a := range args {
		k.first[i+1] = k.first[i] + chunks(a.Layout.Shape.Elems(), grain)
	}
	k.partial = make([]float64, k.first[len(args)])
	env.reserve(segment * graph.F64.Size())
	return k
}

// Run implements [Kernel].
func (k *squaredNorm) Run(args, results []Memory) error {
	k.args = args
	k.env.Pool.Run(len(k.partial), k)
	k.args = nil
	for to, from := range pairs(len(k.partial)) {
		k.partial[to] += k.partial[from]
	}
	numbers[float64](results[0], k.y)[0] = k.partial[0]
	return nil
}

// Do sums one block; see pool.Task.
func (k *squaredNorm) Do(worker, item int) {
	i := sort.SearchInts(k.first, item+1) - 1
	o, sum := k.x[i], vec.Of[float64]().Reduce(vec.SumSquaresOf)
	from := (item - k.first[i]) * grain
	to := min(from+grain, o.Layout.Shape.Elems())
	k.partial[item] = 0
	if o.DType == graph.F64 {
		k.partial[item] = sum(numbers[float64](k.args[i], o)[from:to])
		return
	}
	wide := scratchOf[float64](k.env, worker, 0, segment)
	for at := from; at < to; at += segment {
		part := wide[:min(segment, to-at)]
		if o.DType.Is16() {
			vec.FromHalf(part, elems[uint16](k.args[i])[o.Layout.Offset+at:], o.DType)
		} else {
			vec.Convert(part, numbers[float32](k.args[i], o)[at:][:len(part)])
		}
		k.partial[item] += sum(part)
	}
}

func (k *squaredNorm) bytes() int64 { return int64(len(k.partial)) * int64(graph.F64.Size()) }
