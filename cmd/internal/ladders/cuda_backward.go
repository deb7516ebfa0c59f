package ladders

import (
	"fmt"
	"strings"

	"fusec/graph"
	"fusec/kernels/cuda"
)

// LinearBackward is the gradient of a linear layer y = x·w + b as one operation: of x [m,k], w [k,n] and dy [m,n], all
// f32, it makes dx = dy·wᵀ, dw = xᵀ·dy and db [n], the column sums of dy. No pass makes a body of two products, and no
// target takes it: the variants of [CUDABackward] compile it.
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

// CUDABackward lists variants from the definition of a linear layer's gradient to one launch. They take [LinearBackward]
// with operands and results of any layout, and add nothing atomically: the order of each sum is that of its terms.
var CUDABackward = []CUDAVariant{
	{"backward naive", "The definition: a launch for each gradient, which reads all of dy, a thread for each element.",
		backwardVariant("backward naive", (*linearBackward).naive)},
	{"backward fused", "One launch by tiles; those of dw add up db from the pieces of dy that they multiply.",
		backwardVariant("backward fused", (*linearBackward).fused)},
}

// A linearBackward is a kernel of these variants in the making.
type linearBackward struct {
	*cudaKernel
	m, k, n int
}

// backwardVariant makes the Compile of a variant.
func backwardVariant(name string, write func(*linearBackward)) func(op graph.Op, args, results []cuda.Operand,
	cfg cuda.Config) (*cuda.Kernel, error) {
	return func(op graph.Op, args, results []cuda.Operand, _ cuda.Config) (*cuda.Kernel, error) {
		l, err := newLinearBackward(op, args, results)
		if err != nil {
			return nil, fmt.Errorf("the variant %s is for the gradient of a linear layer: %w", name, err)
		}
		write(l)
		return l.kernel(), nil
	}
}

func newLinearBackward(op graph.Op, args, results []cuda.Operand) (*linearBackward, error) {
	f, ok := op.(graph.Fusion)
	if !ok || len(args) != 3 || len(results) != 3 || args[0].Layout.Shape.Rank() != 2 ||
		args[1].Layout.Shape.Rank() != 2 {
		return nil, fmt.Errorf("not for %s of %d operands", op.OpName(), len(args))
	}
	kernel, err := newCUDAKernel(args, results)
	if err != nil {
		return nil, err
	}
	x, w := args[0].Layout.Shape, args[1].Layout.Shape
	l := &linearBackward{cudaKernel: kernel, m: x.At(0), k: x.At(1), n: w.At(1)}
	want, err := LinearBackward(l.m, l.k, l.n)
	if err != nil {
		return nil, err
	}
	return l, graph.Equal(f.Body, want.Body)
}

func (l *linearBackward) operand(i int) string  { return l.arg(i, l.args[i].Layout) }
func (l *linearBackward) gradient(i int) string { return l.result(i, l.results[i].Layout) }

// naive writes a launch for each gradient.
func (l *linearBackward) naive() {
	x, w, dy := l.operand(0), l.operand(1), l.operand(2)
	l.product("dx", 1, l.m, l.k, l.n, dy, w+".transposed()", l.gradient(0))
	l.product("dw", 1, l.k, l.n, l.m, x+".transposed()", dy, l.gradient(1))
	l.step("db", ceilDiv(l.n, 256), 256, 0, fmt.Sprintf("  column_sums<%d, %d>(%s, %s);\n", l.m, l.n, dy, l.gradient(2)))
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
	l.step("backward", ofW+ofX, 256, shared, text.String())
}
