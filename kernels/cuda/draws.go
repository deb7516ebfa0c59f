package cuda

import (
	"fmt"
	"strings"

	"fusec/graph"
)

var _ = answers.Add(plain(compileRandom)).Add(own(compileRoPE))

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

// ropePairs is up to how many pairs each thread computes the angle of its pair, on chips that are fast in f64.
var ropePairs = 1 << 16

// ropeTable is up to how many pairs of a row have their frequencies in a table.
const ropeTable = 1 << 10

// ropePairs is up to how many pairs the chip computes angles so.
func (c *Config) ropePairs() int {
	if c.Chip.Arch%10 != 0 { // the architectures of workstations have few units for f64
		return ropePairs / 8
	}
	return ropePairs
}

// ropeAngle writes a table of that name, unless there is one, and gives the text that computes the cosine and sine of pair j of a
// row of d elements. Operands are the first position and, if there are any, the divisors.
func (u *unit) ropeAngle(op graph.RoPE, operands []int, d int, table string) func(to, j, position string) string {
	divisors, stride := "nullptr", 0
	if len(operands) > 1 {
		divisors, stride = u.at(operands[1]), u.args[operands[1]].Layout.Stride[0]
	}
	frequency := func(j string) string {
		return fmt.Sprintf("op::pow(%s, -2.0 * (%s) / %d)", literal(graph.F64, op.Base, nil), j, d)
	}
	if d/2 <= ropeTable {
		if head := fmt.Sprintf("__device__ const double %s[] = {", table); !strings.Contains(u.text.String(), head) {
			numbers := make([]string, d/2)
			for j := range numbers {
				numbers[j] = literal(graph.F64, op.Angle(1, j, d, 1), nil)
			}
			u.printf("%s%s};\n\n", head, strings.Join(numbers, ", "))
		}
		frequency = func(j string) string { return fmt.Sprintf("%s[%s]", table, j) }
	}
	return func(to, j, position string) string {
		return fmt.Sprintf("rope_angle(%s, %s, int(%s), *(%s) + %s, %v, %s, %d);", to, frequency(j), j, u.at(operands[0]), position,
			op.Inverse, divisors, stride)
	}
}

// compileRoPE turns pairs by angles that are computed in f64: each by the thread that turns it, or, if there are many, by a step
// before that.
func compileRoPE(op graph.RoPE, args, results []Operand, cfg Config) (*Kernel, error) {
	u := newUnit(args, results)
	l := args[0].Layout
	s := l.Shape
	last := s.Rank() - 1
	n, d := s.At(last-1), s.At(last)
	pairs := s.Elems() / 2
	if pairs == 0 {
		return &Kernel{}, nil
	}
	typ := lane(args[0].DType)
	second, step := op.Pairs(d)
	angle := u.ropeAngle(op, []int{1, 2}[:len(args)-1], d, "frequencies")
	var runs []run
	at := fmt.Sprint(l.Offset)
	for i := range last {
		runs = append(runs, run{s.At(i), i, fmt.Sprint("c", i)})
		at += fmt.Sprintf(" + i64(c%d) * %d", i, l.Stride[i])
	}
	runs = append(runs, run{d / 2, last, fmt.Sprint("c", last)})
	at += fmt.Sprintf(" + i64(c%d) * %d", last, l.Stride[last]*step)
	row := fmt.Sprintf("i64(e / %d) * %d + c%d * %d", d/2, d, last, step)
	index := indexType(pairs)
	coordinates := split("e", index, runs, false, "")
	turn := fmt.Sprintf("rope_turn(%s + %s, %d, %s + %s, %d, ", u.arg(0), at, second*l.Stride[last], u.to(0), row, second)
	if pairs <= cfg.ropePairs() {
		u.elements("turn", index, pairs, coordinates, typ+" angle[2];",
			angle("angle", fmt.Sprintf("c%d", last), fmt.Sprintf("c%d", last-1)), turn+"angle);")
		return u.kernel(0, []Step{u.elementStep("turn", pairs)}, "draws"), nil
	}
	angles := u.scratch(typ, "angles", 0)
	u.elements("angles", "i64", n*d/2, "", angle(angles+" + 2 * e", fmt.Sprintf("e %% %d", d/2), fmt.Sprintf("e / %d", d/2)))
	u.elements("turn", index, pairs, coordinates, fmt.Sprintf("%s%s + (i64(c%d) * %d + c%d) * 2);", turn, angles, last-1, d/2, last))
	steps := []Step{u.elementStep("angles", n*d/2), u.elementStep("turn", pairs)}
	return u.kernel(int64(n*d*args[0].DType.Size()), steps, "draws"), nil
}
