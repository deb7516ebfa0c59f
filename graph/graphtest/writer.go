package graphtest

import (
	"fmt"
	"math/rand/v2"

	"fusec/graph"
)

// Writer is shared by the writers of known patterns. Each writes one of the many usual forms of its pattern.
type Writer struct {
	R *rand.Rand
	B *graph.Builder
	D graph.DType // of the floats
	// Operand returns a value of a type. If it is nil, operands are new Inputs and parameters new Params.
	Operand func(name string, t graph.Type) *graph.Node

	names int
}

func (w *Writer) coin() bool        { return w.R.IntN(2) == 0 }
func (w *Writer) one(of ...int) int { return of[w.R.IntN(len(of))] }

func (w *Writer) operand(name string, t graph.Type) *graph.Node {
	if w.Operand != nil {
		return w.Operand(name, t)
	}
	w.names++
	return w.B.Input(fmt.Sprintf("%s%d", name, w.names), t)
}

func (w *Writer) param(name string, t graph.Type) *graph.Node {
	if w.Operand != nil {
		return w.Operand(name, t)
	}
	w.names++
	return w.B.Param(fmt.Sprintf("%s%d", name, w.names), t)
}

// in is an operand of floats.
func (w *Writer) in(name string, dims ...int) *graph.Node {
	return w.operand(name, graph.TypeOf(w.D, dims...))
}

func (w *Writer) softmax(x *graph.Node) *graph.Node {
	return w.B.Add(graph.Softmax{Axis: x.Type.Shape.Rank() - 1}, x)
}

// Mask makes a mask: of Bools, true where keep is; of numbers, 0 there and low elsewhere.
func Mask(d graph.DType, low float64, keep func(index []int) bool, dims ...int) *graph.Tensor {
	t := graph.NewTensor(graph.TypeOf(d, dims...))
	index := make([]int, len(dims))
	for i := range t.Type.Shape.Elems() {
		for k, rest := len(dims)-1, i; k >= 0; k-- {
			index[k], rest = rest%dims[k], rest/dims[k]
		}
		switch kept := keep(index); {
		case d == graph.Bool && kept:
			t.SetFloat(i, 1)
		case d != graph.Bool && !kept:
			t.SetFloat(i, low)
		}
	}
	return t
}
