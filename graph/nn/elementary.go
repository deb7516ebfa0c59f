package nn

import (
	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// The operations that correspond to a single operation of package graph, with the same operands.

// LayerNorm normalises the last axis of x [..., d] to mean 0 and variance 1 (biased, plus eps), times gamma [d], plus
// beta [d] (Ba et al., arXiv 1607.06450).
func LayerNorm(x, gamma, beta *gorgonia.Node, eps float64) (*gorgonia.Node, error) {
	d := single{graph.LayerNorm{Eps: eps}, "LayerNorm"}
	return apply(d, operand{"x", x}, operand{"gamma", gamma}, operand{"beta", beta})
}

// RMSNorm divides x [..., d] by √(mean of squares along the last axis + eps), times gamma [d] (Zhang and Sennrich,
// arXiv 1910.07467).
func RMSNorm(x, gamma *gorgonia.Node, eps float64) (*gorgonia.Node, error) {
	return apply(single{graph.RMSNorm{Eps: eps}, "RMSNorm"}, operand{"x", x}, operand{"gamma", gamma})
}

// ReLU is max(x, 0), with the derivative 0 at 0.
func ReLU(x *gorgonia.Node) (*gorgonia.Node, error) { return unary("ReLU", graph.Relu, x) }

// GELU is 0.5x(1+erf(x/√2)) (Hendrycks and Gimpel, arXiv 1606.08415).
func GELU(x *gorgonia.Node) (*gorgonia.Node, error) { return unary("GELU", graph.GeluErf, x) }

// GELUTanh is GELU's approximation 0.5x(1+tanh(√(2/π)(x+0.044715x³))).
func GELUTanh(x *gorgonia.Node) (*gorgonia.Node, error) { return unary("GELUTanh", graph.GeluTanh, x) }

// SiLU is x·sigmoid(x).
func SiLU(x *gorgonia.Node) (*gorgonia.Node, error) { return unary("SiLU", graph.Silu, x) }

func unary(label string, fn graph.UnaryFn, x *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(single{graph.Unary{Fn: fn}, label}, operand{"x", x})
}

// SwiGLU is SiLU(gate)⊙x, elementwise (Shazeer, arXiv 2002.05202).
func SwiGLU(gate, x *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(swiglu{}, operand{"gate", gate}, operand{"x", x})
}

type swiglu struct{}

func (swiglu) name() string { return "SwiGLU" }

func (swiglu) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	return b.Binary(graph.Mul, b.Unary(graph.Silu, args[0]), args[1])
}

// Embedding gathers the rows of a table [n, ...] at indices [i...], as [i..., ...]. Indices are integers; one outside 0
// to n−1 is an error of the run.
func Embedding(table, indices *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(single{graph.Gather{Axis: 0}, "Embedding"}, operand{"table", table}, operand{"indices", indices})
}
