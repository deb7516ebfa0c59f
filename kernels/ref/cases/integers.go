package cases

import "fusec/graph"

// Integers lists the examples with operands of a type of integers: those of floats with the floats replaced, where the type
// rule allows it, casts, and functions of integers.
func Integers(d graph.DType) []Case {
	m := maker{d: d}
	for _, c := range All(graph.F32) {
		if c, ok := c.whole(d); ok {
			m.cases = append(m.cases, c)
		}
	}
	wide := Arg{Type: graph.TypeOf(d, 3, 5), Wide: true}
	for _, f := range graph.UnaryFns() {
		if f.Of.Has(d) {
			m.add(f.Name+"_wide", graph.Unary{Fn: f.Fn}, wide)
		}
	}
	for _, f := range graph.BinaryFns() {
		y := wide
		switch {
		case !f.Of.Has(d):
			continue
		case f.Fn == graph.Shl || f.Fn == graph.Shr:
			y = integer(d, 0, 8*d.Size()+2, 3, 5)
		case f.Fn == graph.Pow:
			y = integer(d, 0, 9, 3, 5)
		case f.Fails:
			y = integer(d, 1, 100, 3, 5)
		}
		m.add(f.Name+"_wide", graph.Binary{Fn: f.Fn}, wide, y)
	}
	for _, to := range graph.DTypes() {
		m.add("to_"+to.String(), graph.Cast{To: to}, wide)
		if !to.IsInt() {
			m.add("from_"+to.String(), graph.Cast{To: d}, Arg{Type: graph.TypeOf(to, 3, 5), Lo: -400, Hi: 400})
		}
	}
	for _, f := range graph.Reductions() {
		if f.Of.Has(d) {
			m.add(f.Name+"_wide", graph.Reduce{Fn: f.Fn, Axes: graph.IntsOf(1)}, wide)
			m.add(f.Name+"_columns_wide", graph.Reduce{Fn: f.Fn, Axes: graph.IntsOf(0)}, wide)
			m.add(f.Name+"_empty", graph.Reduce{Fn: f.Fn, Axes: graph.IntsOf(1)}, integer(d, 0, 1, 2, 0))
		}
	}
	return m.cases
}

// whole turns the operands of F32 to the type d of integers. It reports whether the operation has any and takes them.
func (c Case) whole(d graph.DType) (Case, bool) {
	args, types := append([]Arg(nil), c.Args...), make([]graph.Type, len(c.Args))
	found := false
	for i := range args {
		if a := &args[i]; a.Type.DType == graph.F32 {
			lo, hi := int(a.Lo), int(a.Hi)+1
			if d.IsUnsigned() || a.Lo > 0 { // also of divisors and exponents
				lo = max(lo, 1)
				hi = max(hi, lo+3)
			}
			*a, found = integer(d, lo, hi, a.Type.Shape.Slice()...), true
		}
		types[i] = args[i].Type
	}
	c.Args, c.Results = args, nil
	if !found {
		return c, false
	}
	if graph.ClassOf(c.Op) == graph.ClassFusion { // which says its types
		return c, false
	}
	_, err := graph.InfoOf(c.Op).Infer(c.Op, types)
	return c, err == nil
}
