package attention

import (
	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

func multiply[T Float](x []T, by T) { vec.Of[T]().BinaryVS(graph.Mul)(x, x, by) }

func exponentials[T Float](x []T) { vec.Of[T]().Unary(graph.Exp)(x, x) }
