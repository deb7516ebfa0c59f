package attention

import (
	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// opcodes is the instruction set for elements of type T.
func opcodes[T Float]() *vec.Kernels[T] {
	if k, ok := any(vec.F32()).(*vec.Kernels[T]); ok {
		return k
	}
	k, _ := any(vec.F64()).(*vec.Kernels[T])
	return k
}

func multiply[T Float](x []T, by T) { opcodes[T]().BinaryVS(graph.Mul)(x, x, by) }

func exponentials[T Float](x []T) { opcodes[T]().Unary(graph.Exp)(x, x) }
