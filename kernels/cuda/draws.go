package cuda

import (
	"fmt"

	"fusec/graph"
)

// compileRandom draws four elements a thread, a block of the generator, in the arithmetic of [graph.RandomAt].
func compileRandom(op graph.Random, args, results []Operand) *Kernel {
	u := newUnit(args, results)
	n := results[0].Layout.Shape.Elems()
	if n == 0 {
		return &Kernel{}
	}
	d := results[0].DType
	more := ""
	if op.Dist == graph.Bernoulli {
		more = fmt.Sprintf(", %du, %v", graph.RandomThreshold(min(max(op.A, 0), 1-0x1p-32)), op.A >= 1)
	}
	blocks := ceilDiv(n, 4)
	block := fmt.Sprintf("const auto x = %s_block(philox(u64(*(%s)), u64(e)), %s, %s%s);", op.Dist, u.at(0),
		literal(graph.F64, op.A, nil), literal(graph.F64, op.B, nil), more)
	u.elements("random", "i64", blocks, "", block, fmt.Sprintf("for (int i = 0; i < 4 && e * 4 + i < %dll; i++)", n),
		fmt.Sprintf("  %s[%d + e * 4 + i] = convert<%s>(x[i]);", u.result(0), results[0].Layout.Offset, ctype(d)))
	return u.kernel(0, []Step{u.elementStep("random", blocks)}, "draws")
}

// compileRoPE turns pairs by a table of angles, which the first step computes in f64.
func compileRoPE(op graph.RoPE, args, results []Operand) *Kernel {
	u := newUnit(args, results)
	l := args[0].Layout
	s := l.Shape
	last := s.Rank() - 1
	n, d := s.At(last-1), s.At(last)
	pairs := s.Elems() / 2
	if pairs == 0 {
		return &Kernel{}
	}
	typ := lane(args[0].DType)
	angles := u.scratch(typ, "angles", 0)
	second, step := op.Pairs(d)
	divisors, stride := "nullptr", 0
	if len(args) > 2 {
		divisors, stride = u.at(2), args[2].Layout.Stride[0]
	}
	u.elements("angles", "i64", n*d/2, "", fmt.Sprintf("rope_angle(%s, e, %d, %s, *(%s), %v, %s, %d);",
		angles, d, literal(graph.F64, op.Base, nil), u.at(1), op.Inverse, divisors, stride))
	var runs []run
	at := fmt.Sprint(l.Offset)
	for i := range last {
		runs = append(runs, run{s.At(i), i, fmt.Sprint("c", i)})
		at += fmt.Sprintf(" + i64(c%d) * %d", i, l.Stride[i])
	}
	runs = append(runs, run{d / 2, last, fmt.Sprint("c", last)})
	at += fmt.Sprintf(" + i64(c%d) * %d", last, l.Stride[last]*step)
	row := fmt.Sprintf("i64(e / %d) * %d + c%d * %d", d/2, d, last, step)
	angle := fmt.Sprintf("%s + (i64(c%d) * %d + c%d) * 2", angles, last-1, d/2, last)
	turn := fmt.Sprintf("rope_turn(%s + %s, %d, %s + %s, %d, %s);", u.arg(0), at, second*l.Stride[last], u.to(0), row, second, angle)
	index := indexType(pairs)
	u.elements("turn", index, pairs, split("e", index, runs, false, ""), turn)
	steps := []Step{u.elementStep("angles", n*d/2), u.elementStep("turn", pairs)}
	return u.kernel(int64(n*d*args[0].DType.Size()), steps, "draws")
}
