// Package precision names what contractions (matrix products, convolutions, attentions, mixtures of experts) may round to.
package precision

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// Precision names what contractions may round to. It is the caller's choice: nothing is rounded that was not asked for.
// Elementwise work, reductions, norms, losses, parameters and an optimiser's state are in f32 in each of them, and all sums
// are.
type Precision uint8

// The precisions.
const (
	F32  Precision = iota // as accurate as f32, by whatever instructions reach it: the default
	TF32                  // operands of products rounded to 10 bits after the point by the target
	BF16                  // operands of contractions in bf16, as are the results that later launches read
	F16                   // the same in f16, whose range ends at 6e-8 and 65504: training requires a loss scale
)

var names = [...]string{"f32", "tf32", "bf16", "f16"}

// Known reports whether p is one of the precisions.
func (p Precision) Known() bool { return int(p) < len(names) }

// String gives the name: f32, tf32, bf16 or f16.
func (p Precision) String() string {
	if p.Known() {
		return names[p]
	}
	return fmt.Sprintf("precision %d", uint8(p))
}

// Parse is the inverse of [Precision.String].
func Parse(name string) (Precision, error) {
	if i := slices.Index(names[:], name); i >= 0 {
		return Precision(i), nil
	}
	return F32, fmt.Errorf("precision %q is not known: want f32, tf32, bf16 or f16", name)
}

// Half is the 16-bit type that operands are rounded to; Invalid if they stay as they are.
func (p Precision) Half() graph.DType {
	switch p {
	case BF16:
		return graph.BF16
	case F16:
		return graph.F16
	}
	return graph.Invalid
}
