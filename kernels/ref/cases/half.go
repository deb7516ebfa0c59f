package cases

import (
	"math"

	"fusec/graph"
)

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
	if op, ok := c.Op.(graph.Input); ok {
		c.Op = graph.Input{Type: op.Type.With(d)}
		return true
	}
	args := append([]Arg(nil), c.Args...)
	found := false
	for i := range args {
		if args[i].Type.DType == graph.F32 && (graph.Contracts(c.Op, i) || graph.Moves(c.Op, i) && !graph.Elementwise(c.Op)) {
			args[i].Type.DType = d
			found = true
		}
	}
	c.Args, c.Results = args, nil
	return found
}

// BesideTies is numbers of F64, I32 or I64 so near to the middle between two numbers of a 16-bit type that F32 holds the
// middle alone: rounded to that first, some become the other one.
func BesideTies(from, to graph.DType) *graph.Tensor {
	var list []float64
	for _, whole := range []float64{1, 1 + 2*to.Epsilon()} { // ties go down from the one, up from the other
		middle := (whole + to.Epsilon()) * 0x1p30
		for _, x := range []float64{middle - 1, middle, middle + 1} {
			if from == graph.F64 {
				x /= 0x1p28
			}
			list = append(list, x, -x)
		}
	}
	if from == graph.F64 {
		list = append(list, 1e300, -1e300, 1e-300, math.Inf(1), math.NaN(), 65520*(1-0x1p-40), 0x1p-25*(1+0x1p-40), 0x1p-25)
	}
	t := graph.NewTensor(graph.TypeOf(from, len(list)))
	for i, x := range list {
		t.SetFloat(i, x)
	}
	return t
}
