package ref

import (
	"math"
	"slices"

	"fusec/graph"
)

// The magnitudes: how far an implementation may be off, in units of ε. The package comment gives the rules.

// mag is element i's magnitude, 0 if v has none.
func (v *Value) mag(i int) float64 {
	if v.Mag == nil {
		return 0
	}
	return v.Mag[i]
}

// exact tells whether all magnitudes are 0, and bounded whether all are finite.
func (v Value) exact() bool {
	return !slices.ContainsFunc(v.Mag, func(m float64) bool { return m != 0 })
}
func (v Value) bounded() bool {
	return !slices.ContainsFunc(v.Mag, func(m float64) bool { return math.IsInf(m, 0) || math.IsNaN(m) })
}

// off is how far element i may be off, in absolute terms.
func (v *Value) off(i int) float64 { return v.Type.DType.Tolerance() * v.mag(i) }

// doubt makes every element unsure if an element of what decided about them is.
func (v Value) doubt(by Value) Value {
	for i := range by.I {
		if by.mag(i) != 0 {
			for j := range v.Mag {
				v.Mag[j] = unsure
			}
		}
	}
	return v
}

// size is |x|, or 0 where x is not finite: an infinity adds no error, it must match.
func size(x float64) float64 {
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return 0
	}
	return math.Abs(x)
}

// settle is the magnitude of a result v of type d that adds terms to what it carries. Results that are not finite must
// match unless an operand was unsure; those beyond the range of f32 are unsure there, and so are those whose terms are.
func settle(v, terms, carried float64, d graph.DType) float64 {
	mag := terms + carried
	switch {
	case math.IsNaN(mag) || math.IsInf(mag, 0):
		return unsure
	case math.IsNaN(v):
		return 0
	case d != graph.F64 && terms > math.MaxFloat32: // parts of a sum may be infinite
		return unsure
	case math.IsInf(v, 0):
		return 0
	case math.Abs(v) > most(d):
		return unsure
	case terms > 0:
		return mag + least(d)/d.Tolerance()
	}
	return mag
}

// least is the smallest normal number of a floating-point type.
func least(d graph.DType) float64 {
	switch d {
	case graph.F32, graph.BF16:
		return 0x1p-126
	case graph.F16:
		return 0x1p-14
	}
	return 0x1p-1022
}

// most is the largest finite number of a type that sums are kept in, so that of BF16 is F32's.
func most(d graph.DType) float64 {
	switch d {
	case graph.F32, graph.BF16:
		return math.MaxFloat32
	case graph.F16:
		return 65504
	}
	return math.MaxFloat64
}

// deviation is |w−v|; 0 for equal infinities and two NaNs, +Inf if only one is finite.
func deviation(v, w float64) float64 {
	if v == w || math.IsNaN(v) && math.IsNaN(w) {
		return 0
	}
	if d := math.Abs(w - v); !math.IsNaN(d) {
		return d
	}
	return unsure
}

// terms is the magnitude that the row of a function names, for the sizes of its result and of its arguments.
func terms(b graph.Bound, result, arguments float64) float64 {
	switch b.Terms {
	case graph.OfResult:
		return result
	case graph.OfArguments:
		return arguments
	case graph.OfBoth:
		return result + arguments
	case graph.Exact:
		return 0
	}
	return unsure
}

func unaryBound(fn graph.UnaryFn, f func(float64) float64, x, v Value) []float64 {
	mag := make([]float64, v.Len())
	for i := range v.I {
		mag[i] = x.mag(i)
	}
	bound := fn.Info().Bound
	for i := range v.F {
		d := x.off(i)
		carried := 0.0
		if d > 0 {
			carried = max(deviation(v.F[i], f(x.F[i]-d)), deviation(v.F[i], f(x.F[i]+d)))
		}
		// Where the corners do not show the extremes: a NaN that may be a number, a pole inside the interval, a wave.
		switch {
		case d > 0 && math.IsNaN(x.F[i]), d == unsure: // an unsure operand may be a NaN
			carried = unsure
		case bound.Pole && d > 0 && math.Abs(x.F[i]) <= d:
			carried = unsure
		case bound.Poles && d > 0 && (2*d >= math.Pi || f(x.F[i]-d) > f(x.F[i]+d)):
			carried = unsure
		case size(x.F[i]) == math.Abs(x.F[i]) && math.IsInf(v.F[i], 0) && bound.Overflows: // beyond the range even of f64
			mag[i] = unsure
			continue
		case bound.Wave:
			carried = max(carried, min(d, 2))
		case bound.Gated:
			carried += size(x.F[i]) * least(v.Type.DType)
		}
		mag[i] = settle(v.F[i], terms(bound, size(v.F[i]), size(x.F[i])), carried/v.Type.DType.Tolerance(), v.Type.DType)
	}
	return mag
}

func binaryBound(fn graph.BinaryFn, x, y, v Value) []float64 {
	mag := make([]float64, v.Len())
	xs, ys, ex, ey := x.step(), y.step(), x.Type.DType.Tolerance(), y.Type.DType.Tolerance()
	for i := range mag {
		j, k := i*xs, i*ys
		switch {
		case x.F == nil:
			mag[i] = max(x.mag(j), y.mag(k))
			// A sure operand that decides alone outweighs an unsure one.
			if decides := truth(fn == graph.Or); x.Type.DType == graph.Bool && (fn == graph.And || fn == graph.Or) {
				if x.mag(j) == 0 && x.I[j] == decides || y.mag(k) == 0 && y.I[k] == decides {
					mag[i] = 0
				}
			}
		case fn.Compares():
			if d := x.off(j) + y.off(k); d > 0 && deviation(x.F[j], y.F[k]) <= d {
				mag[i] = unsure
			}
		default:
			mag[i] = arithmeticBound(fn, x.F[j], ex*x.mag(j), y.F[k], ey*y.mag(k), v.F[i], v.Type.DType)
		}
	}
	return mag
}

// arithmeticBound is the magnitude of v = f(x, y), with x off by dx and y by dy.
func arithmeticBound(fn graph.BinaryFn, x, dx, y, dy, v float64, d graph.DType) float64 {
	carried, info := 0.0, fn.Info()
	if dx != 0 || dy != 0 {
		for _, a := range [...]float64{x - dx, x, x + dx} {
			for _, b := range [...]float64{y - dy, y, y + dy} {
				carried = max(carried, deviation(v, info.Eval(a, b)))
			}
		}
	}
	bound := info.Bound
	if bound.Pole && dy > 0 && math.Abs(y) <= dy || dx > 0 && math.IsNaN(x) || dy > 0 && math.IsNaN(y) {
		carried = unsure
	}
	if bound.Jumps && dx+dy > 0 {
		q := math.Floor(x / y)
		for _, a := range [...]float64{x - dx, x + dx} {
			if math.Abs(y) <= dy || math.Floor(a/(y-dy)) != q || math.Floor(a/(y+dy)) != q {
				carried = unsure
			}
		}
	}
	return settle(v, terms(bound, size(v), size(x)+size(y)), carried/d.Tolerance(), d)
}

// customBound is the magnitude of element i, v = eval(x), of a function of which nothing is known but its values: its error is
// relative to the sizes of its result and of its operands together. What the operands carry is added up, each moved alone,
// twice over for what they do together; an unsure operand may be a NaN, too.
func customBound(eval func([]float64) float64, x []float64, v float64, args []Value, i int) float64 {
	d, terms, carried := args[0].Type.DType, size(v), 0.0
	for k, a := range args {
		terms += size(x[k])
		if off := a.off(a.at(i)); off > 0 {
			at := x[k]
			x[k] = at - off
			most := deviation(v, eval(x))
			x[k] = at + off
			most = max(most, deviation(v, eval(x)))
			if off == unsure {
				x[k] = math.NaN()
				most = max(most, deviation(v, eval(x)))
			}
			carried += 2 * most
			x[k] = at
		}
	}
	return settle(v, terms, carried/d.Tolerance(), d)
}

func chooseBound(cond, a, b, v Value) []float64 {
	mag := make([]float64, v.Len())
	cs, as, bs := cond.step(), a.step(), b.step()
	for i := range mag {
		c, j, k := i*cs, i*as, i*bs
		switch {
		case cond.mag(c) != 0:
			if v.F == nil {
				mag[i] = max(a.mag(j), b.mag(k))
				if a.I[j] != b.I[k] {
					mag[i] = unsure
				}
				continue
			}
			mag[i] = size(v.F[i]) + max(a.mag(j), b.mag(k)) + deviation(a.F[j], b.F[k])/v.Type.DType.Tolerance()
		case cond.I[c] != 0:
			mag[i] = a.mag(j)
		default:
			mag[i] = b.mag(k)
		}
	}
	return mag
}

func castBound(x, v Value) []float64 {
	mag := make([]float64, v.Len())
	d := v.Type.DType
	for i := range mag {
		switch off := x.off(i); {
		case d.Is16():
			mag[i] = roundingBound(x.float(i), off, v.F[i], d)
		case x.F != nil && v.F != nil:
			terms := 0.0
			if d == graph.F32 && x.Type.DType == graph.F64 {
				terms = size(v.F[i])
			}
			mag[i] = settle(v.F[i], terms, x.mag(i)*x.Type.DType.Tolerance()/d.Tolerance(), d)
		case v.F != nil && x.Type.DType == graph.Bool && x.mag(i) != 0:
			mag[i] = 1/d.Tolerance() + 1 // 0 or 1
		case v.F != nil:
			terms := size(v.F[i])
			if terms <= 1<<24 { // exact in f32
				terms = 0
			}
			mag[i] = settle(v.F[i], terms, x.mag(i), d)
		case x.F == nil:
			mag[i] = x.mag(i)
		case math.IsInf(off, 1):
			mag[i] = unsure
		case d == graph.Bool:
			if off > 0 && size(x.F[i]) <= off {
				mag[i] = unsure
			}
		case d.Truncate(x.F[i]-off) != d.Truncate(x.F[i]+off):
			mag[i] = unsure
		}
	}
	return mag
}

// roundingBound is the magnitude of v, x rounded to a 16-bit type d, where x may be off by so much: 0 if it is not off.
// Else another number may be rounded, either way, and not only where the interval of x spans a tie: a kernel that rounds
// within a composite may round x up to a factor that it divides by later.
func roundingBound(x, off, v float64, d graph.DType) float64 {
	if off == 0 {
		return 0
	}
	carried := max(deviation(v, d.Round(x-off)), deviation(v, d.Round(x+off)), off+2*d.Tolerance()*size(v))
	return settle(v, 1, carried/d.Tolerance(), d)
}

func reduceBound(row *graph.ReduceInfo, x, v Value, index []int) []float64 {
	mag := make([]float64, v.Len())
	if v.F == nil {
		for i, j := range index {
			mag[j] = max(mag[j], x.mag(i))
		}
		return mag
	}
	switch row.Bound {
	case graph.OfFactors:
		// Multiplying the sizes, and the sizes and what they are off, gives how far the product may be off.
		// In some order the small factors may underflow before they meet the large ones, or the large ones overflow.
		exact, wide := make([]float64, len(mag)), make([]float64, len(mag))
		small, large := make([]float64, len(mag)), make([]float64, len(mag))
		for j := range mag {
			exact[j], wide[j], small[j], large[j] = 1, 1, 1, 1
		}
		for i, j := range index {
			exact[j] *= size(x.F[i])
			wide[j] *= size(x.F[i]) + x.off(i)
			small[j] *= min(math.Abs(x.F[i]), 1)
			large[j] *= max(math.Abs(x.F[i]), 1)
		}
		for j := range mag {
			mag[j] = (wide[j]-exact[j])/v.Type.DType.Tolerance() + exact[j]
			if under := least(v.Type.DType); small[j] < under {
				mag[j] += under * large[j] / v.Type.DType.Tolerance()
			}
			if large[j] > most(v.Type.DType) {
				mag[j] = unsure
			}
		}
	case graph.OfOne:
		for i, j := range index {
			mag[j] = max(mag[j], x.mag(i))
		}
	case graph.OfTerms:
		for i, j := range index {
			mag[j] += size(x.F[i]) + x.mag(i)
		}
		if row.Averages {
			n := float64(x.Len()) / float64(v.Len())
			for j := range mag {
				mag[j] /= n
			}
		}
	}
	for j := range mag {
		if row.Bound == graph.OfOne {
			mag[j] = settle(v.F[j], 0, mag[j], v.Type.DType)
		} else {
			mag[j] = settle(v.F[j], mag[j], 0, v.Type.DType)
		}
	}
	return mag
}

// bilinear computes f(a, b), linear in both, and its magnitude, by f itself: |a|·(m_b + |b|) + m_a·(|b| + ε·m_b). The
// magnitudes of operands of another ε, those of 16 bits, are put in units of the result's.
func bilinear(a, b Value, bound bool, f func(a, b Value) Value) Value {
	v := f(a, b)
	if bound {
		v.bilinearBound(a, b, f, f)
	}
	return v
}

// bilinearBound sets the magnitudes of v = f(a, b), with those of f's terms by sum, which is f itself or not below it.
func (v *Value) bilinearBound(a, b Value, f, sum func(a, b Value) Value) {
	// part makes a value of the elements' sizes times s plus their magnitudes times m.
	part := func(x Value, s, m float64) Value {
		p := zeros(x.Type)
		for i := range p.F {
			p.F[i] = s*size(x.F[i]) + m*x.mag(i)
			if m == 0 {
				p.F[i] = s * size(x.F[i])
			}
		}
		return p
	}
	// An infinity times what may be 0, or of either sign, may be anything.
	infinite := func(x *Value, i int) bool { return math.IsInf(x.F[i], 0) }
	nearZero := func(x *Value, i int) bool { return x.off(i) > 0 && math.Abs(x.F[i]) <= x.off(i) }
	mask := func(x *Value, is func(*Value, int) bool) (m Value, any bool) {
		for i := range x.F {
			if is(x, i) {
				if !any {
					m, any = zeros(x.Type), true
				}
				m.F[i] = 1
			}
		}
		return m, any
	}
	doubtful := make([]bool, v.Len())
	for _, is := range [][2]func(*Value, int) bool{{infinite, nearZero}, {nearZero, infinite}} {
		p, anyA := mask(&a, is[0])
		if !anyA {
			continue
		}
		q, anyB := mask(&b, is[1])
		if !anyB {
			continue
		}
		for i, n := range f(p, q).F {
			doubtful[i] = doubtful[i] || n > 0
		}
	}
	eps := v.Type.DType.Tolerance()
	a, b = a.inUnits(eps), b.inUnits(eps)
	x := sum(part(a, 1, 0), part(b, 1, 1))
	y := zeros(v.Type)
	if !a.exact() || !b.bounded() { // else zeros times numbers
		y = sum(part(a, 0, 1), part(b, 1, eps))
	}
	v.Mag = x.F
	for i := range v.Mag {
		v.Mag[i] = settle(v.F[i], v.Mag[i]+y.F[i], 0, v.Type.DType)
		if doubtful[i] {
			v.Mag[i] = unsure
		}
	}
}

// inUnits is v with its magnitudes in units of eps, whatever its own type's.
func (v Value) inUnits(eps float64) Value {
	own := v.Type.DType.Tolerance()
	if own == eps || v.Mag == nil {
		return v
	}
	mag := make([]float64, len(v.Mag))
	for i, m := range v.Mag {
		mag[i] = m * own / eps
	}
	v.Mag = mag
	return v
}
