package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
)

// normBlock is the number of elements whose squares a block adds up.
const normBlock = 64 * blockThreads

var _ = answers.Add(plain(compileSquaredNorm))

// compileSquaredNorm sums the squares of all operands in f64: blocks of each, and then what the blocks give, in an order
// that only sizes decide.
func compileSquaredNorm(_ graph.SquaredNorm, args, results []Operand) *Kernel {
	var text strings.Builder
	text.WriteString(preamble("rows", "squared_norm"))
	k := &Kernel{}
	blocks := 0
	for _, d := range []graph.DType{graph.F32, graph.BF16, graph.F16, graph.F64} {
		var rows [][]Param
		for i, a := range args {
			if n := a.Layout.Shape.Elems(); a.DType == d && n > 0 {
				rows = append(rows, []Param{Arg(i, int64(a.Layout.Offset*d.Size())), {Kind: Int64, Bits: uint64(n)},
					{Kind: Int64, Bits: uint64(blocks)}})
				blocks += ceilDiv(n, normBlock)
			}
		}
		if len(rows) == 0 {
			continue
		}
		const perStep = (MaxParams - 32) / 24
		n := min(len(rows), perStep)
		fmt.Fprintf(&text, `namespace of_%v {
struct Row { const %s *x; i64 n, first; };
struct Params { double *partial; i64 base, rows; Row row[%d]; };
KERNEL(squares_%v, %d, 1) {
  SHARED;
  sum_squares<%d, %d>(p.row, int(p.rows), p.base + blockIdx.x, p.partial, reinterpret_cast<double *>(shared));
}
}  // namespace

`, d, ctype(d), n, d, blockThreads, blockThreads, normBlock)
		for part := range slices.Chunk(rows, n) {
			base := part[0][2].Bits
			last := part[len(part)-1]
			s := Step{Entry: fmt.Sprintf("squares_%v", d), Block: blockThreads, Shared: blockThreads * 8,
				Grid: [3]int{int(last[2].Bits-base) + ceilDiv(int(last[1].Bits), normBlock), 1, 1}}
			s.Params = []Param{Scratch(0), {Kind: Int64, Bits: base}, {Kind: Int64, Bits: uint64(len(part))}}
			for i := range n {
				s.Params = append(s.Params, part[min(i, len(part)-1)]...)
			}
			k.Steps = append(k.Steps, s)
		}
	}
	fmt.Fprintf(&text, `struct Params { const double *partial; double *y; };
KERNEL(squared_norm, %d, 1) {
  SHARED;
  const double sum = sum_doubles<%d>(p.partial, %d, reinterpret_cast<double *>(shared));
  if (threadIdx.x == 0) *p.y = sum;
}
`, blockThreads, blockThreads, blocks)
	k.Steps = append(k.Steps, Step{Entry: "squared_norm", Grid: [3]int{1, 1, 1}, Block: blockThreads, Shared: blockThreads * 8,
		Params: []Param{Scratch(0), Result(0, int64(8*results[0].Layout.Offset))}})
	k.Scratch = int64(8 * max(blocks, 1))
	k.Source = text.String()
	return k
}
