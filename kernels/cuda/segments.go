package cuda

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// A table is segments that differ in nothing but the addresses of their operands and the number of their elements, as
// the updates of all parameters do. One function computes them all, told by a row of the parameter what to work on; so
// text and compile time do not grow with their number.
type table struct {
	work *elementwise // of the first
	text string
	rows [][]Param // the fields of each: addresses, elements, and the first of its blocks
}

// compileParts makes the kernel of parts that may run in any order. Tables take as many steps as their rows need.
func compileParts(parts []body.Part, cfg Config) (*Kernel, error) {
	var tables []*table
	var customs []graph.CustomFn
	for _, s := range parts {
		u := newUnit(s.Args, s.Results)
		u.prefix = "s."
		e, err := newElementwise(u, s.Program, cfg, false, nil)
		if err != nil {
			return nil, err
		}
		if e.n == 0 {
			continue
		}
		customs = append(customs, u.customs...)
		e.units = max(min(2, inFlight/(e.w*max(len(s.Args), 1))), 1)
		text := u.guard() + e.function("units", "const Row &s")
		key := func(t *table) bool {
			return t.text == text && t.work.w == e.w && t.work.typ == e.typ && slices.Equal(t.work.u.decls, u.decls)
		}
		i := slices.IndexFunc(tables, key)
		if i < 0 {
			i = len(tables)
			tables = append(tables, &table{work: e, text: text})
		}
		tables[i].add(e, s.Segment)
	}
	k := &Kernel{}
	var text strings.Builder
	text.WriteString(preamble() + customText(customs))
	for i, t := range tables {
		k.Steps = append(k.Steps, t.steps(&text, i)...)
	}
	if len(tables) > 0 {
		k.Source = text.String()
	}
	return k, nil
}

// add appends a segment's row. Fields name operands of the segment; in the row they name those of the launch.
func (t *table) add(e *elementwise, s graph.Segment) {
	row := slices.Clone(e.u.fields)
	for i, f := range row {
		switch f.Kind {
		case ArgPtr:
			row[i].Index = s.Args[f.Index]
		case ResultPtr:
			row[i].Index = s.Results[f.Index]
		}
	}
	t.rows = append(t.rows, append(row, Param{Kind: Int64, Bits: uint64(e.n)}))
}

// steps writes a table's entry and returns its starts.
func (t *table) steps(text *strings.Builder, number int) []Step {
	e := t.work
	name := fmt.Sprintf("segments%d", number)
	block := blockThreads * e.units
	perStep := min(MaxParams/(8*(len(e.u.fields)+2)), len(t.rows))
	fmt.Fprintf(text, "namespace table_%s {\nstruct Row {\n", name)
	for _, d := range e.u.decls {
		fmt.Fprintf(text, "  %s\n", d)
	}
	fmt.Fprintf(text, "  i64 n;      // elements\n  i64 first;  // block\n};\nstruct Params {\n  Row rows[%d];\n};\n%s\n", perStep,
		e.function("units", "const Row &s"))
	fmt.Fprintf(text, `KERNEL(%s, %d, 1) {
  int i = 0, last = %d;
  while (i < last) {  // the last row whose first block is not after this one
    const int middle = (i + last + 1) / 2;
    if (p.rows[middle].first <= blockIdx.x) i = middle;
    else last = middle - 1;
  }
  const Row &s = p.rows[i];
%s  const %s first = %s(blockIdx.x - s.first) * %d + int(threadIdx.x);
  units<%d, %d>(s, first, %s(s.n / %d));
`, name, blockThreads, perStep-1, e.u.guard(), e.typ, e.typ, block, e.w, e.units, e.typ, e.w)
	if e.w > 1 && len(e.runs) == 1 {
		fmt.Fprintf(text, "  if (first < %d) units<1, 1>(s, %s(s.n - s.n %% %d) + first, %s(s.n));\n", e.w, e.typ, e.w, e.typ)
	}
	text.WriteString("}\n}  // namespace\n\n")

	var steps []Step
	for rows := range slices.Chunk(t.rows, perStep) {
		step := Step{Entry: name, Block: blockThreads, Grid: [3]int{0, 1, 1}}
		for i := range perStep {
			row, first := rows[min(i, len(rows)-1)], math.MaxInt64 // beyond the last row nothing begins
			if i < len(rows) {
				first = step.Grid[0]
				units := int(row[len(row)-1].Bits) / e.w
				step.Grid[0] += max(ceilDiv(units, block), 1)
			}
			step.Params = append(step.Params, row...)
			step.Params = append(step.Params, Param{Kind: Int64, Bits: uint64(first)})
		}
		steps = append(steps, step)
	}
	return steps
}
