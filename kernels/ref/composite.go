package ref

import (
	"fmt"
	"math"

	"fusec/graph"
)

// composite is a formula for an operation that has a decomposition. Its magnitudes are those of the decomposition.
func composite[O graph.Op](f func(op O, args []Value, types []graph.Type) ([]Value, error)) (string, formula) {
	var of O
	return of.OpName(), func(op graph.Op, args []Value, types []graph.Type, bound bool) ([]Value, error) {
		out, err := f(op.(O), args, types)
		if err != nil || !bound {
			return out, err
		}
		meaning, err := Decomposed(op, args)
		if err != nil {
			return nil, err
		}
		for i := range out {
			out[i].Mag = meaning[i].Mag
			// What has no weight and is not finite may be left out, or be multiplied by 0.
			for j, v := range out[i].F {
				if deviation(v, meaning[i].F[j]) == unsure {
					out[i].Mag[j] = unsure
				}
			}
		}
		return out, nil
	}
}

// Decomposed computes a composite through its decomposition into primitives, with magnitudes.
func Decomposed(op graph.Op, args []Value) ([]Value, error) {
	info := graph.InfoOf(op)
	if info == nil || info.Decompose == nil {
		return nil, fmt.Errorf("%s has no decomposition", op.OpName())
	}
	b := graph.Extend(graph.New(op.OpName())) // which looks up no callers
	in := make([]*graph.Node, len(args))
	for i, a := range args {
		in[i] = b.Input(fmt.Sprintf("x%d", i), a.Type)
	}
	for i, n := range info.Decompose(b, op, in) {
		b.Output(fmt.Sprintf("y%d", i), n)
	}
	g, err := b.Graph()
	if err != nil {
		return nil, err
	}
	return evalArgs(g, args, true, nil)
}

// rows lists the elements of each line of a tensor along an axis.
func rows(s graph.Shape, axis int) [][]int {
	return split(s, func(at []int) int {
		at = append([]int(nil), at...)
		at[axis] = 0
		return offset(s.With(axis, 1), at)
	})
}

// channels lists the elements of each channel of [n,c,...].
func channels(s graph.Shape) [][]int {
	r := split(s, func(at []int) int { return at[1] })
	for len(r) < s.At(1) {
		r = append(r, nil)
	}
	return r
}

var _ = formulas.Add(composite(func(op graph.GroupNorm, a []Value, _ []graph.Type) ([]Value, error) {
	y, _, _ := normalise(a[0], op.Eps, groups(a[0].Type.Shape, op.Groups))
	return []Value{affine(y, a[1], a[2], 1)}, nil
}))

// groups lists the elements of each sample's groups of channels of [n,c,...].
func groups(s graph.Shape, g int) [][]int {
	return split(s, func(at []int) int { return at[0]*g + at[1]*g/s.At(1) })
}

// split collects the elements of a tensor by number.
func split(s graph.Shape, number func(at []int) int) [][]int {
	var r [][]int
	each(s, func(i int, at []int) {
		k := number(at)
		for len(r) <= k {
			r = append(r, nil)
		}
		r[k] = append(r[k], i)
	})
	return r
}

var _ = formulas.Add(composite(func(op graph.Softmax, a []Value, _ []graph.Type) ([]Value, error) {
	return []Value{softmax(a[0], op.Axis, false)}, nil
}))

var _ = formulas.Add(composite(func(op graph.LogSoftmax, a []Value, _ []graph.Type) ([]Value, error) {
	return []Value{softmax(a[0], op.Axis, true)}, nil
}))

func softmax(x Value, axis int, log bool) Value {
	v := zeros(x.Type)
	for _, row := range rows(x.Type.Shape, axis) {
		top := math.Inf(-1)
		for _, i := range row {
			top = max(top, x.F[i])
		}
		top = min(max(top, -math.MaxFloat64), math.MaxFloat64)
		sum := 0.0
		for _, i := range row {
			sum += math.Exp(x.F[i] - top)
		}
		for _, i := range row {
			switch {
			case log && sum == 0:
				v.F[i] = math.Inf(-1)
			case log:
				v.F[i] = x.F[i] - top - math.Log(sum)
			case sum != 0:
				v.F[i] = math.Exp(x.F[i]-top) / sum
			}
		}
	}
	return v
}

var _ = formulas.Add(composite(func(op graph.LayerNorm, a []Value, _ []graph.Type) ([]Value, error) {
	last := a[0].Type.Shape.Rank() - 1
	y, _, _ := normalise(a[0], op.Eps, rows(a[0].Type.Shape, last))
	return []Value{affine(y, a[1], a[2], last)}, nil
}))

// normalise subtracts each set's mean and divides by √(variance + eps). It also returns the means and the (biased)
// variances.
func normalise(x Value, eps float64, sets [][]int) (y Value, mean, variance []float64) {
	y = zeros(x.Type)
	for _, set := range sets {
		n, m, v := float64(len(set)), 0.0, 0.0
		for _, i := range set {
			m += x.F[i]
		}
		m /= n
		for _, i := range set {
			v += (x.F[i] - m) * (x.F[i] - m)
		}
		v /= n
		for _, i := range set {
			y.F[i] = (x.F[i] - m) / math.Sqrt(v+eps)
		}
		mean, variance = append(mean, m), append(variance, v)
	}
	return y, mean, variance
}

// affine multiplies by gamma and adds beta, vectors along an axis.
func affine(x, gamma, beta Value, axis int) Value {
	each(x.Type.Shape, func(i int, at []int) {
		x.F[i] = x.F[i]*gamma.F[at[axis]] + beta.F[at[axis]]
	})
	return x
}

var _ = formulas.Add(composite(func(op graph.RMSNorm, a []Value, _ []graph.Type) ([]Value, error) {
	return []Value{rmsNorm(a[0], a[1], op.Eps)}, nil
}))

func rmsNorm(x, gamma Value, eps float64) Value {
	v := zeros(x.Type)
	for _, row := range rows(x.Type.Shape, x.Type.Shape.Rank()-1) {
		sq := 0.0
		for _, i := range row {
			sq += x.F[i] * x.F[i]
		}
		rms := math.Sqrt(sq/float64(len(row)) + eps)
		for k, i := range row {
			v.F[i] = x.F[i] / rms * gamma.F[k]
		}
	}
	return v
}

var _ = formulas.Add(composite(func(op graph.BatchNorm, a []Value, _ []graph.Type) ([]Value, error) {
	return batchNorm(op, a), nil
}))

func batchNorm(op graph.BatchNorm, args []Value) []Value {
	x, mean, variance := args[0], args[3], args[4]
	if !op.Train {
		y := zeros(x.Type)
		each(x.Type.Shape, func(i int, at []int) {
			y.F[i] = (x.F[i] - mean.F[at[1]]) / math.Sqrt(variance.F[at[1]]+op.Eps)
		})
		return []Value{affine(y, args[1], args[2], 1), mean, variance}
	}
	y, m, v := normalise(x, op.Eps, channels(x.Type.Shape))
	newMean, newVariance := zeros(mean.Type), zeros(variance.Type)
	for c := range m {
		n := float64(x.Len()) / float64(len(m))
		newMean.F[c] = op.Momentum*mean.F[c] + (1-op.Momentum)*m[c]
		newVariance.F[c] = op.Momentum*variance.F[c] + (1-op.Momentum)*v[c]*n/max(n-1, 1)
	}
	return []Value{affine(y, args[1], args[2], 1), newMean, newVariance}
}

var _ = formulas.Add(moved(host))

// host runs the user's code on operands rounded to their own types.
func host(op graph.Host, args []Value, t graph.Type) (Value, error) {
	if op.Impl == nil {
		return Value{}, fmt.Errorf("%s has no implementation here", op.Name)
	}
	in := make([]*graph.Tensor, len(args))
	carried := 0.0
	for i, a := range args {
		in[i] = a.Rounded()
		for _, m := range a.Mag {
			carried = max(carried, m)
		}
	}
	out, err := op.Impl.Do(in)
	if err != nil {
		return Value{}, err
	}
	if out.Type != t {
		return Value{}, fmt.Errorf("%s gave a value of type %v, not %v", op.Name, out.Type, t)
	}
	v := FromTensor(out)
	for i := range v.Mag {
		v.Mag[i] = carried
		if v.F != nil {
			v.Mag[i] = settle(v.F[i], size(v.F[i]), carried, t.DType)
		}
	}
	return v, nil
}
