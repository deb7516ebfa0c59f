package graph

import "fmt"

// Shared parts of the type rules of the operation table. A rule returns the types of the results, or an error. The
// caller adds the names of the operation and the operands.

// one is a list of one result. It is appended to the operands' types if their list has capacity. So a rule that passes
// some of its operands to another rule has to clip their list.
func one(args []Type, t Type) ([]Type, error) { return append(args, t)[len(args):], nil }

// accumulators are the types of the gradients of values of the given types.
func accumulators(types []Type) []Type {
	out := make([]Type, len(types))
	for i, t := range types {
		out[i] = t.Accumulator()
	}
	return out
}

func inferSame(_ Op, args []Type) ([]Type, error) { return args[:1], nil }

// wantFloat refuses types other than f32 and f64.
func wantFloat(t Type) error {
	if !t.DType.IsFloat() {
		return fmt.Errorf("needs f32 or f64, not %v", t.DType)
	}
	return nil
}

// wantComputed refuses 16-bit types, which are only moved, converted and contracted.
func wantComputed(t Type) error {
	if t.DType.Is16() {
		return fmt.Errorf("of %v: only casts, moves and contractions take 16-bit elements; cast to f32 first", t.DType)
	}
	return nil
}

// wantSummed refuses types that have no sum.
func wantSummed(t Type) error {
	if t.DType == Bool {
		return fmt.Errorf("of %v", t.DType)
	}
	return wantComputed(t)
}

// wantContracted refuses types that contractions do not read.
func wantContracted(t Type) error {
	if !t.DType.IsReal() {
		return fmt.Errorf("needs f32, f64, bf16 or f16, not %v", t.DType)
	}
	return nil
}

func wantLens(want int, l ...Ints) error {
	for _, x := range l {
		if x.Len() != want {
			return fmt.Errorf("attribute %v should have %d values", x, want)
		}
	}
	return nil
}

func wantRank(s Shape, r int) error {
	if s.Rank() != r {
		return fmt.Errorf("needs rank %d, not shape %v", r, s)
	}
	return nil
}

func checkAxes(axes Ints, rank int) error {
	var seen Ints
	for i := range axes.Len() {
		a := axes.At(i)
		if a < 0 || a >= rank {
			return fmt.Errorf("axis %d of a tensor of rank %d", a, rank)
		}
		if seen.Has(a) {
			return fmt.Errorf("axis %d is given twice", a)
		}
		seen.v[seen.n] = a
		seen.n++
	}
	return nil
}

func wantVectors(d DType, n int, args []Type) error {
	for _, t := range args {
		if t != TypeOf(d, n) {
			return fmt.Errorf("needs %v, not %v", TypeOf(d, n), t)
		}
	}
	return nil
}
