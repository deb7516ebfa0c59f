package vec

// A Gate multiplies a number by a bounded linear function of it: x·min(max(x·Slope + Offset, Floor), Ceiling). Hard-swish is one
// (A. Howard et al., "Searching for MobileNetV3", arXiv 1905.02244). A Gate with Slope 0 leaves numbers as they are. Assembly knows
// the order of the fields.
type Gate[T Float] struct {
	Slope, Offset, Floor, Ceiling T
}

// Of is the gated x.
func (g *Gate[T]) Of(x T) T {
	if g.Slope == 0 {
		return x
	}
	t := x*g.Slope + g.Offset
	if t < g.Floor {
		t = g.Floor
	}
	if t > g.Ceiling {
		t = g.Ceiling
	}
	return x * t
}
