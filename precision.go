package fusec

import (
	"fmt"

	kernels "fusec/kernels/cuda"
	"fusec/passes"
)

// Precision names what contractions (matrix products, convolutions, attentions, mixtures of experts) may round to.
// Elementwise work, reductions, norms, losses, parameters and an optimiser's state are in f32 in each of them, and all
// sums are.
type Precision = passes.Precision

// The precisions; see [WithPrecision].
const (
	F32  = passes.F32  // as accurate as f32, by whatever instructions reach it: the default
	TF32 = passes.TF32 // operands of products rounded to 10 bits after the point
	BF16 = passes.BF16 // operands of contractions in bf16, as are the results that later launches read
	F16  = passes.F16  // the same in f16, whose range ends at 6e-8 and 65504: training wants a loss scale
)

// ParsePrecision reads the name of a precision: f32, tf32, bf16 or f16.
func ParsePrecision(name string) (Precision, error) { return passes.ParsePrecision(name) }

// WithPrecision lets contractions round. The default is [F32]; nothing is rounded unless it is asked for. Inputs,
// outputs and parameters keep their types. The trace says of each value whether it was rounded, and what stayed in f32
// and why. The target "cpu" has f32 only.
func WithPrecision(p Precision) Option {
	return own(func(c *config) {
		if p > F16 && c.err == nil {
			c.err = fmt.Errorf("WithPrecision: %v is not known", p)
		}
		c.precision = p
	})
}

// kernelPrecisions are the precisions as CUDA kernels are asked for.
var kernelPrecisions = map[Precision]kernels.Precision{F32: kernels.F32, TF32: kernels.TF32, BF16: kernels.BF16, F16: kernels.F16}
