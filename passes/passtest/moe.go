package passtest

import (
	"fmt"

	"fusec/graph"
)

// MoEWriter writes mixtures of experts over tokens x.
type MoEWriter struct {
	B       *graph.Builder
	X       *graph.Node // [lead..., 4]
	experts int
	names   int
}

// NewMoEWriter declares tokens [lead..., 4] for so many experts.
func NewMoEWriter(b *graph.Builder, experts int, lead ...int) *MoEWriter {
	return &MoEWriter{B: b, X: b.Input("x", F64(append(lead, 4)...)), experts: experts}
}

// Param declares a parameter with a number after its name.
func (w *MoEWriter) Param(name string, dims ...int) *graph.Node {
	w.names++
	return w.B.Param(fmt.Sprintf("%s%d", name, w.names), F64(dims...))
}

// Logits are [lead..., experts].
func (w *MoEWriter) Logits() *graph.Node {
	return w.B.Named(w.B.MatMul(w.X, w.Param("gate", 4, w.experts), false, false), "logits")
}

// Softmax makes gates of logits.
func (w *MoEWriter) Softmax(logits *graph.Node) *graph.Node {
	return w.B.Named(Softmax(w.B, logits), "gates")
}

// Column is column e of gates, repeated to the width 3.
func (w *MoEWriter) Column(gates *graph.Node, e int) *graph.Node {
	last := gates.Type.Shape.Rank() - 1
	c := w.B.Slice(gates, last, e, 1, 1)
	return w.B.Broadcast(c, c.Type.Shape.With(last, 3))
}

// Relu is an expert without biases, from 4 by 5 to 3 elements.
func (w *MoEWriter) Relu(int) *graph.Node {
	h := w.B.Unary(graph.Relu, w.B.MatMul(w.X, w.Param("up", 4, 5), false, false))
	return w.B.MatMul(h, w.Param("down", 5, 3), false, false)
}

// Sum is the sum of the experts, each weighted by its column of gates.
func (w *MoEWriter) Sum(gates *graph.Node, expert func(e int) *graph.Node) *graph.Node {
	var y *graph.Node
	for e := range w.experts {
		t := w.B.Binary(graph.Mul, expert(e), w.Column(gates, e))
		if y == nil {
			y = t
		} else {
			y = w.B.Binary(graph.Add, y, t)
		}
	}
	return y
}

// Statistic repeats a reduction along the last axis of x to the shape of x.
func (w *MoEWriter) Statistic(f graph.ReduceFn, x *graph.Node) *graph.Node {
	return w.B.Broadcast(w.B.Reduce(f, x, true, x.Type.Shape.Rank()-1), x.Type.Shape)
}

// Float is a condition as numbers.
func (w *MoEWriter) Float(c *graph.Node) *graph.Node { return w.B.Add(graph.Cast{To: graph.F64}, c) }

// SumOf is the sum of experts weighted by factors of their width.
func (w *MoEWriter) SumOf(factor func(e int) *graph.Node) *graph.Node {
	var y *graph.Node
	for e := range w.experts {
		t := w.B.Binary(graph.Mul, factor(e), w.Relu(e))
		if y == nil {
			y = t
		} else {
			y = w.B.Binary(graph.Add, y, t)
		}
	}
	return y
}
