package cases

import "fusec/graph"

// Half lists the examples with operands of a 16-bit type: contractions, moves and casts, made of those in F32.
func Half(d graph.DType) []Case {
	var cases []Case
	for _, c := range All(graph.F32) {
		if c.halve(d) {
			cases = append(cases, c)
		}
	}
	m := maker{d: d}
	for _, to := range []graph.DType{graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool, graph.BF16, graph.F16} {
		m.add(d.String()+"_to_"+to.String(), graph.Cast{To: to}, m.between(-9, 9, 3, 2))
	}
	for _, from := range []graph.DType{graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool} {
		x := Arg{Type: graph.TypeOf(from, 5, 3), Lo: -900, Hi: 900}
		m.add(from.String()+"_to_"+d.String(), graph.Cast{To: d}, x)
	}
	return append(cases, m.cases...)
}

// halve turns the operands that may have 16 bits to type d. It reports whether the operation has any.
func (c *Case) halve(d graph.DType) bool {
	moves := false
	switch op := c.Op.(type) {
	case graph.Reshape, graph.Transpose, graph.Broadcast, graph.Slice, graph.Unslice,
		graph.UpdateSlice, graph.Concat, graph.Pad, graph.Im2Col, graph.Copy, graph.Gather:
		moves = true
	case graph.Input:
		c.Op = graph.Input{Type: op.Type.With(d)}
		return true
	}
	args := append([]Arg(nil), c.Args...)
	found := false
	for i := range args {
		if args[i].Type.DType == graph.F32 && (moves || graph.Contracts(c.Op, i)) {
			args[i].Type.DType = d
			found = true
		}
	}
	c.Args = args
	return found
}
