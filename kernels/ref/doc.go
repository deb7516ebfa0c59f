// Package ref is the reference: every operation of the graph in the plainest Go that is right, in float64. It is the
// oracle of all tests and is never optimised.
//
// [Eval] computes a graph with all float arithmetic in float64, whatever the nodes' element types, so that an f32
// graph gives the float64 truth on the given f32 inputs. Integers are exact, and wrap as their own type does.
//
// # Error bounds
//
// [EvalBound] gives each value v a magnitude m beside it: an implementation in f32 is expected within ε·m of v, with
// ε = 1e-5 (1e-12 for one in f64). [Check] compares by it. The magnitude is an error in units of ε, propagated like
// this, where d = ε·m is how far an operand may be off:
//
//   - An input, a constant and whatever only moves elements adds nothing: m stays, and is 0 where no arithmetic came
//     before. Such values must match to the bit.
//   - Sums, products of matrices and convolutions add Σ|terms|, and carry their operands' errors: the product of a and
//     b has m = Σ |a|·m_b + m_a·|b| + ε·m_a·m_b + |a·b|.
//   - A convolution that may be computed by Winograd's algorithm adds the sum of the sizes of that algorithm's terms
//     instead, and carries errors with them; see [graph.Winograd]. Where an operand that a tile depends on is not finite,
//     or beyond 1/64 of the range, the tile is unsure.
//   - An elementwise function f adds |f|, and carries the largest |f(x±d) − f(x)| ÷ ε over the corners of its
//     operands' intervals. For smooth f that is |f′|·m to first order; near a kink, a jump or the edge of the domain
//     it is still right. The forms of GELU add |x|, since their formula is a sum of terms of that size; additions and
//     subtractions add |x| + |y|. Functions that need no rounding (negation, absolute value, sign, ceil, floor, round,
//     ReLU, maximum, minimum) add nothing.
//   - A cast to 16 bits rounds, here as there: of an operand that is not off it must match to the bit. Else it carries
//     where the corners of the operand's interval are rounded to, and a unit of its last place at least. Magnitudes of
//     values of 16 bits are in units of theirs, ε = 2⁻⁸ for bf16 and 2⁻¹¹ for f16.
//   - A reduction to the maximum or minimum adds nothing and carries the largest error among its candidates.
//   - A composite has the magnitude of its decomposition. A host operation is taken to magnify no error.
//
// Decisions on a knife edge are tolerated. A comparison is unsure if its operands differ by no more than their
// errors; whatever is decided by it (a Select, a mask cast to numbers, the winner of a max-pool) gets a magnitude that
// covers both ways. Where that cannot be said in numbers (an index, a row of a table, a value beyond the range of f32,
// a divisor that may be 0), the magnitude is +Inf and the value is not checked. Everywhere else NaN and infinities must
// match exactly. To allow for underflow, what adds anything adds the smallest normal number too.
package ref
