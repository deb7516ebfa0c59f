package cuda

import (
	"fmt"

	"fusec/graph"
)

var _ = answers.Add(own(compileBatchNorm)).Add(own(compileGroupNorm))

// compileBatchNorm makes rows of channels: in training of the decomposition, else of elementwise work.
func compileBatchNorm(op graph.BatchNorm, args, results []Operand, cfg Config) (*Kernel, error) {
	if op.Train {
		return decomposed(op, args, results, cfg)
	}
	return compileBody(graph.AnchorNone, args, results, cfg, func(b *graph.Builder, in []*graph.Node) {
		s := args[0].Layout.Shape
		dims := make([]int, s.Rank()-1)
		for i := range dims {
			dims[i] = 1
		}
		dims[0] = s.At(1)
		wide := func(v *graph.Node) *graph.Node { return b.Broadcast(b.Reshape(v, dims...), s) }
		r := b.Unary(graph.Rsqrt, b.BinaryScalar(graph.Add, wide(in[4]), op.Eps))
		y := b.Binary(graph.Mul, b.Binary(graph.Mul, b.Binary(graph.Sub, in[0], wide(in[3])), r), wide(in[1]))
		b.Output("0", b.Binary(graph.Add, y, wide(in[2])))
		b.Output("1", in[3])
		b.Output("2", in[4])
	})
}

// decomposed compiles an operation's decomposition as a body of rows.
func decomposed(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	return compileBody(graph.AnchorRow, args, results, cfg, func(b *graph.Builder, in []*graph.Node) {
		for i, n := range graph.InfoOf(op).Decompose(b, op, in) {
			b.Output(fmt.Sprint(i), n)
		}
	})
}

// compileGroupNorm makes rows of groups of channels.
func compileGroupNorm(op graph.GroupNorm, args, results []Operand, cfg Config) (*Kernel, error) {
	return compileBody(graph.AnchorRow, args, results, cfg, func(b *graph.Builder, in []*graph.Node) {
		s := args[0].Layout.Shape
		_, _, plane := s.Around(0, 2)
		channels := s.At(1) / op.Groups
		x := b.Reshape(in[0], s.At(0), op.Groups, channels, plane)
		t := x.Type.Shape
		wide := func(v *graph.Node) *graph.Node { return b.Broadcast(v, t) }
		d := b.Binary(graph.Sub, x, wide(b.Reduce(graph.Mean, x, true, 2, 3)))
		v := b.Reduce(graph.Mean, b.Unary(graph.Square, d), true, 2, 3)
		y := b.Binary(graph.Mul, d, wide(b.Unary(graph.Rsqrt, b.BinaryScalar(graph.Add, v, op.Eps))))
		y = b.Binary(graph.Mul, y, wide(b.Reshape(in[1], op.Groups, channels, 1)))
		y = b.Binary(graph.Add, y, wide(b.Reshape(in[2], op.Groups, channels, 1)))
		b.Output("0", b.Reshape(y, s.Slice()...))
	})
}
