package cuda

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// LinearBackward is the gradient of a linear layer y = x·w + b as one operation: of x [m,k], w [k,n] and dy [m,n], all
// f32, it makes dx = dy·wᵀ, dw = xᵀ·dy and db [n], the column sums of dy. No pass makes a body of two products, and no
// target takes it: it is what the rungs of [BackwardLadder] compile.
func LinearBackward(m, k, n int) (graph.Fusion, error) {
	b := graph.NewBuilder("backward")
	x, w := b.Input("x", graph.TypeOf(graph.F32, m, k)), b.Input("w", graph.TypeOf(graph.F32, k, n))
	dy := b.Input("dy", graph.TypeOf(graph.F32, m, n))
	b.Output("dx", b.MatMul(dy, w, false, true))
	b.Output("dw", b.MatMul(x, dy, true, false))
	b.Output("db", b.Reduce(graph.Sum, dy, false, 0))
	body, err := b.Graph()
	return graph.Fusion{Anchor: graph.AnchorMatMul, Kind: graph.KindLinear, Body: body}, err
}

// BackwardLadder climbs from the definition of a linear layer's gradient to one launch. The rungs take [LinearBackward]
// with operands and results of any layout, and add nothing atomically: the order of each sum is that of its terms.
func BackwardLadder() []Rung {
	return []Rung{
		{"backward naive", "The definition: a launch for each gradient, which reads all of dy, a thread for each element.",
			backwardRung("backward naive", (*linearBackward).naive)},
		{"backward fused", "One launch by tiles; those of dw add up db from the pieces of dy that they multiply.",
			backwardRung("backward fused", (*linearBackward).fused)},
	}
}

// A linearBackward is a kernel of the ladder in the making.
type linearBackward struct {
	*unit
	m, k, n int
	steps   []Step
}

// backwardRung makes the function of a rung.
func backwardRung(name string, write func(*linearBackward)) func(op graph.Op, args, results []Operand, cfg Config) (
	*Kernel, error) {
	return func(op graph.Op, args, results []Operand, _ Config) (*Kernel, error) {
		l, err := newLinearBackward(op, args, results)
		if err != nil {
			return nil, fmt.Errorf("the rung %s is for the gradient of a linear layer: %w", name, err)
		}
		write(l)
		if len(l.steps) == 0 {
			return &Kernel{}, nil
		}
		for i := range l.steps {
			l.steps[i].Params = l.fields
		}
		return &Kernel{Source: l.source("ladder_backward"), Steps: l.steps}, nil
	}
}

func newLinearBackward(op graph.Op, args, results []Operand) (*linearBackward, error) {
	f, ok := op.(graph.Fusion)
	if !ok || len(args) != 3 || len(results) != 3 || args[0].Layout.Shape.Rank() != 2 ||
		args[1].Layout.Shape.Rank() != 2 {
		return nil, fmt.Errorf("not for %s of %d operands", op.OpName(), len(args))
	}
	x, w := args[0].Layout.Shape, args[1].Layout.Shape
	l := &linearBackward{unit: newUnit(args, results), m: x.At(0), k: x.At(1), n: w.At(1)}
	want, err := LinearBackward(l.m, l.k, l.n)
	if err != nil {
		return nil, err
	}
	return l, graph.Equal(f.Body, want.Body)
}

// matrix is the C++ expression of an operand or result as a Strided; a vector is a matrix of one row.
func (l *linearBackward) matrix(typ, at string, layout graph.Layout) string {
	rank := layout.Shape.Rank()
	row := 0
	if rank > 1 {
		row = layout.Stride[rank-2]
	}
	return fmt.Sprintf("Strided<%s>{%s + %d, %d, %d}", typ, at, layout.Offset, row, layout.Stride[rank-1])
}

func (l *linearBackward) operand(i int) string {
	return l.matrix("const float", l.arg(i), l.args[i].Layout)
}

func (l *linearBackward) gradient(i int) string {
	return l.matrix("float", l.result(i), l.results[i].Layout)
}

// step adds a launch of blocks of 256 threads.
func (l *linearBackward) step(entry string, blocks, shared int, text string) {
	if blocks == 0 {
		return
	}
	l.printf("KERNEL(%s, 256, 1) {\n%s}\n", entry, text)
	l.steps = append(l.steps, Step{Entry: entry, Grid: [3]int{blocks, 1, 1}, Block: 256, Shared: shared})
}

// naive writes a launch for each gradient.
func (l *linearBackward) naive() {
	x, w, dy := l.operand(0), l.operand(1), l.operand(2)
	product := func(entry string, rows, cols, depth int, a, b, c string) {
		l.step(entry, ceilDiv(rows*cols, 256), 0,
			fmt.Sprintf("  backward_naive<%d, %d, %d>(%s, %s, %s);\n", rows, cols, depth, a, b, c))
	}
	product("dx", l.m, l.k, l.n, dy, w+".transposed()", l.gradient(0))
	product("dw", l.k, l.n, l.m, x+".transposed()", dy, l.gradient(1))
	l.step("db", ceilDiv(l.n, 256), 0, fmt.Sprintf("  backward_columns<%d, %d>(%s, %s);\n", l.m, l.n, dy, l.gradient(2)))
}

// fused writes one launch: its first blocks compute the tiles of dw, and db, the others those of dx. Where dw is empty
// there is still a row of its tiles, for db.
func (l *linearBackward) fused() {
	const side, shared = 64, 2 * 16 * (64 + 1) * 4
	x, w, dy, db := l.operand(0), l.operand(1), l.operand(2), l.gradient(2)
	ofW := max(ceilDiv(l.k, side), 1) * ceilDiv(l.n, side)
	ofX := ceilDiv(l.m, side) * ceilDiv(l.k, side)
	var text strings.Builder
	part := func(condition string, rows, cols, depth int, kInner, sums bool, tile, a, b, c string) {
		fmt.Fprintf(&text, "  if (%s) {\n    backward_tile<%d, %d, %d, %t, %t>(%s, %s, %s,\n        %s, %s);\n  }\n",
			condition, rows, cols, depth, kInner, sums, tile, a, b, c, db)
	}
	if ofW > 0 {
		part(fmt.Sprintf("blockIdx.x < %d", ofW), l.k, l.n, l.m, false, true, "blockIdx.x", x+".transposed()", dy,
			l.gradient(1))
	}
	if ofX > 0 {
		part(fmt.Sprintf("blockIdx.x >= %d", ofW), l.m, l.k, l.n, true, false, fmt.Sprintf("blockIdx.x - %d", ofW), dy,
			w+".transposed()", l.gradient(0))
	}
	l.step("backward", ofW+ofX, shared, text.String())
}
