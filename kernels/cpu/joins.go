package cpu

import (
	"errors"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// A join is the code of a reduction where elements are joined one by one.
type join[T number] struct {
	two func(a, b T) T
	// run joins count equally spaced elements with v.
	run func(v T, src []T, count, stride int) T
}

// joins has the code of each reduction.
func joins[T number]() map[graph.ReduceFn]join[T] {
	sum := join[T]{func(a, b T) T { return a + b }, func(v T, src []T, count, stride int) T {
		for i := range count {
			v += src[i*stride]
		}
		return v
	}}
	return map[graph.ReduceFn]join[T]{
		graph.Sum:  sum,
		graph.Mean: sum,
		graph.Prod: {func(a, b T) T { return a * b }, func(v T, src []T, count, stride int) T {
			for i := range count {
				v *= src[i*stride]
			}
			return v
		}},
		graph.MaxOf: {func(a, b T) T { return max(a, b) }, func(v T, src []T, count, stride int) T {
			for i := range count {
				v = max(v, src[i*stride])
			}
			return v
		}},
		graph.MinOf: {func(a, b T) T { return min(a, b) }, func(v T, src []T, count, stride int) T {
			for i := range count {
				v = min(v, src[i*stride])
			}
			return v
		}},
	}
}

// reductions is the vector code of each reduction.
var reductions = map[graph.ReduceFn]vec.Reduction{
	graph.Sum: vec.SumOf, graph.Mean: vec.SumOf, graph.Prod: vec.ProdOf, graph.MaxOf: vec.MaxOf, graph.MinOf: vec.MinOf,
}

// A poolCode is how a kind of pool is computed.
type poolCode uint8

const (
	oneElement  poolCode = iota // an element of the window, to which the gradient goes
	allElements                 // all elements take part
)

// pools is the code of each kind of pool.
var pools = map[graph.PoolFn]poolCode{graph.MaxPool: oneElement, graph.AvgPool: allElements}

func init() {
	err := errors.Join(graph.CheckReductions("cpu", joins[float32]()), graph.CheckReductions("cpu's vectors", reductions),
		graph.CheckPools("cpu", pools))
	if err != nil {
		panic(err)
	}
}
