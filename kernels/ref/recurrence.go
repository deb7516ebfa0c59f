package ref

import (
	"math"

	"fusec/graph"
)

var _ = formulas.Add(composite(recurrence))

// recurrence computes each element of each step's state from its formula.
func recurrence(op graph.Recurrence, a []Value, types []graph.Type) ([]Value, error) {
	x, r := a[0], a[1]
	steps, n, columns := x.Type.Shape.At(0), x.Type.Shape.At(1), x.Type.Shape.At(2)
	h := r.Type.Shape.At(0)
	out := make([]Value, op.Cell.Results())
	for i := range out {
		out[i] = zeros(types[i])
	}
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for s := range n {
		state := append([]float64(nil), a[2].F[s*h:(s+1)*h]...)
		memory := make([]float64, h)
		if op.Cell == graph.LSTM {
			copy(memory, a[3].F[s*h:])
		}
		for i := range steps {
			t := i
			if op.Reverse {
				t = steps - 1 - i
			}
			// of is the product of v with column j of gate g.
			of := func(v []float64, g, j int) (sum float64) {
				for k, u := range v {
					sum += u * r.F[k*columns+g*h+j]
				}
				return sum
			}
			in := func(g, j int) float64 { return x.F[(t*n+s)*columns+g*h+j] }
			gate := func(g, j int) float64 { return in(g, j) + of(state, g, j) }
			next, reset := make([]float64, h), make([]float64, h)
			for j := range h {
				if op.Cell == graph.GRU {
					reset[j] = sigmoid(gate(1, j)) * state[j]
				}
			}
			for j := range h {
				switch op.Cell {
				case graph.TanhCell:
					next[j] = math.Tanh(gate(0, j))
				case graph.ReluCell:
					next[j] = max(gate(0, j), 0)
				case graph.LSTM:
					memory[j] = sigmoid(gate(2, j))*memory[j] + sigmoid(gate(0, j))*math.Tanh(gate(3, j))
					next[j] = sigmoid(gate(1, j)) * math.Tanh(memory[j])
					out[1].F[(t*n+s)*h+j] = memory[j]
				default:
					z, u := sigmoid(gate(0, j)), in(2, j)
					if op.Cell == graph.GRU {
						u += of(reset, 2, j)
					} else {
						u += sigmoid(gate(1, j)) * (of(state, 2, j) + a[3].F[j])
					}
					next[j] = (1-z)*math.Tanh(u) + z*state[j]
				}
			}
			state = next
			copy(out[0].F[(t*n+s)*h:], state)
		}
	}
	return out, nil
}
