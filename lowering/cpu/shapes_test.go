package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering"
)

// odd draws a size from 1 to about limit, often just off a power of two.
func odd(r *rand.Rand, limit int) int {
	switch r.IntN(4) {
	case 0:
		return 1 + r.IntN(3)
	case 1:
		n := 1 << r.IntN(8)
		return min(max(n+r.IntN(3)-1, 1), limit)
	}
	return 1 + r.IntN(limit)
}

var activations = []graph.UnaryFn{graph.Relu, graph.Sigmoid, graph.Tanh, graph.GeluTanh, graph.GeluErf, graph.Silu,
	graph.Softplus, graph.Exp, graph.Square, graph.Abs}

// kernels counts the launches that are not the copy of a value that is handed out twice.
func kernels(p *lowering.Program) int {
	n := 0
	for _, l := range p.Launches {
		if _, ok := l.Op.(graph.Copy); !ok {
			n++
		}
	}
	return n
}

// TestLinears multiplies, with all that may follow in the same launch.
func TestLinears(t *testing.T) {
	for seed := range seeds(120) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			d := []graph.DType{graph.F32, graph.F32, graph.F64}[r.IntN(3)]
			b := graph.NewBuilder("linear")
			m, n, k := odd(r, 200), odd(r, 300), odd(r, 300)
			ta, tb := r.IntN(3) == 0, r.IntN(3) == 0
			dims := func(batch []int, rows, cols int, trans bool) graph.Type {
				if trans {
					rows, cols = cols, rows
				}
				return graph.TypeOf(d, append(append([]int(nil), batch...), rows, cols)...)
			}
			var ba, bb []int
			switch r.IntN(5) {
			case 0:
				ba = []int{1 + r.IntN(4)}
			case 1:
				ba = []int{1 + r.IntN(3), 1 + r.IntN(3)}
				bb = ba
			case 2:
				ba, bb = []int{2, 1}, []int{3}
			}
			x, w := b.Input("x", dims(ba, m, k, ta)), b.Param("w", dims(bb, k, n, tb))
			y := b.MatMul(x, w, ta, tb)
			s := y.Type.Shape
			if r.IntN(2) == 0 {
				y = b.Binary(graph.Add, y, b.Broadcast(b.Param("bias", graph.TypeOf(d, n)), s))
			}
			if r.IntN(3) == 0 { // one number per row
				y = b.Binary(graph.Mul, y, b.Broadcast(b.Param("scale", graph.TypeOf(d, m, 1)), s))
			}
			if r.IntN(3) > 0 {
				y = b.Unary(activations[r.IntN(len(activations))], y)
			}
			if r.IntN(3) == 0 {
				b.Output("hidden", y)
			}
			if r.IntN(2) == 0 {
				y = b.Binary(graph.Add, y, b.Input("residual", y.Type))
			}
			if r.IntN(3) == 0 {
				y = b.Add(graph.Select{}, b.Binary(graph.Gt, y, b.Scalar(d, 0.25)), y, b.Scalar(d, -1))
			}
			if rank := s.Rank(); rank == 4 && r.IntN(2) == 0 {
				y = b.Reshape(b.Transpose(y, 0, 2, 1, 3), s.At(0)*m, s.At(1)*n)
			} else if r.IntN(4) == 0 {
				y = b.Reshape(y, s.Elems())
			}
			b.Output("y", y)
			g := graphtest.Graph(t, b)
			p := check(t, g, values(g), 1+int(seed%3))
			if n := kernels(p); n != 1 {
				t.Errorf("%d launches, want 1\n%v\n%v", n, graph.Print(g), p)
			}
		})
	}
}

// TestReductions reduces any axes, with work before and after.
func TestReductions(t *testing.T) {
	fns := []graph.ReduceFn{graph.Sum, graph.Mean, graph.MaxOf, graph.MinOf, graph.Prod}
	for seed := range seeds(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			d := []graph.DType{graph.F32, graph.F32, graph.F64}[r.IntN(3)]
			b := graph.NewBuilder("reduce")
			dims := make([]int, 1+r.IntN(4))
			size := 1
			for i := range dims {
				limit := 40
				if i == 0 && len(dims) < 3 {
					limit = 3000
				}
				dims[i] = odd(r, limit)
				size *= dims[i]
			}
			var axes []int
			for i := range dims {
				if r.IntN(2) == 0 {
					axes = append(axes, i)
				}
			}
			if len(axes) == 0 {
				axes = []int{r.IntN(len(dims))}
			}
			x := b.Input("x", graph.TypeOf(d, dims...))
			if r.IntN(2) == 0 {
				x = b.Binary(graph.Mul, b.Unary(graph.Tanh, x), b.Input("z", x.Type))
			}
			fn := fns[r.IntN(len(fns))]
			y := b.Reduce(fn, x, r.IntN(2) == 0, axes...)
			if r.IntN(2) == 0 {
				y = b.Unary(graph.Sigmoid, b.BinaryScalar(graph.Mul, y, 0.01))
			}
			if r.IntN(3) == 0 {
				y = b.Binary(graph.Add, y, b.Input("other", y.Type))
			}
			if r.IntN(3) == 0 { // back to the full shape
				y = b.Binary(graph.Sub, x, b.Expand(y, graph.IntsOf(axes...), x.Type.Shape))
			}
			if r.IntN(4) == 0 {
				b.Output("second", b.Reduce(graph.Sum, b.Unary(graph.Square, x), false, axes...))
			}
			b.Output("y", y)
			g := graphtest.Graph(t, b)
			check(t, g, values(g), 1+int(seed%3))
		})
	}
}

// TestConvolutions convolves with strides, dilation, padding, groups and what may follow.
func TestConvolutions(t *testing.T) {
	for seed := range seeds(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 4))
			d := []graph.DType{graph.F32, graph.F32, graph.F64}[r.IntN(3)]
			b := graph.NewBuilder("conv")
			groups := 1 + r.IntN(2)
			in, out := groups*(1+r.IntN(4)), groups*(1+r.IntN(8))
			kh, kw := 1+r.IntN(4), 1+r.IntN(4)
			op := graph.Conv2D{Stride: graph.IntsOf(1+r.IntN(2), 1+r.IntN(2)), Dilation: graph.IntsOf(1+r.IntN(2), 1+r.IntN(2)),
				Pad: graph.IntsOf(r.IntN(3), r.IntN(3), r.IntN(3), r.IntN(3)), Groups: groups}
			width := 7 + r.IntN(20)
			if r.IntN(4) == 0 { // one position in a row
				width = 1 + r.IntN(9)
				kw = 1 + (width+op.Pad.At(1)+op.Pad.At(3)-1)/op.Dilation.At(1)
			}
			x := b.Input("x", graph.TypeOf(d, 1+r.IntN(3), in, 7+r.IntN(20), width))
			y := b.Add(op, x, b.Param("w", graph.TypeOf(d, out, in/groups, kh, kw)))
			s := y.Type.Shape
			if r.IntN(2) == 0 {
				y = b.Binary(graph.Add, y, b.Broadcast(b.Param("bias", graph.TypeOf(d, out, 1, 1)), s))
			}
			if r.IntN(2) == 0 {
				y = b.Unary(graph.Relu, y)
			}
			if r.IntN(3) == 0 {
				y = b.Binary(graph.Add, y, b.Broadcast(b.Input("column", graph.TypeOf(d, s.At(3))), s))
			}
			b.Output("y", y)
			g := graphtest.Graph(t, b)
			if p := check(t, g, values(g), 1+int(seed%3)); len(p.Launches) != 1 {
				t.Errorf("%d launches, want 1\n%v", len(p.Launches), p)
			}
		})
	}
}

// TestRowComposites normalises along an axis, with work around.
func TestRowComposites(t *testing.T) {
	for seed := range seeds(80) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			d := []graph.DType{graph.F32, graph.F32, graph.F64}[r.IntN(3)]
			b := graph.NewBuilder("rows")
			n := odd(r, 1500)
			x := b.Input("x", graph.TypeOf(d, odd(r, 20), odd(r, 9), n))
			y := x
			if r.IntN(2) == 0 {
				y = b.Binary(graph.Add, x, b.Input("residual", x.Type))
			}
			vector := func(name string) *graph.Node { return b.Param(name, graph.TypeOf(d, n)) }
			want := 1
			switch r.IntN(5) {
			case 0: // along another axis than the last it stands alone
				y, want = b.Add(graph.Softmax{Axis: r.IntN(3)}, y), 3
			case 1:
				y = b.Add(graph.LogSoftmax{Axis: 2}, y)
			case 2:
				y = b.Add(graph.LayerNorm{Eps: 1e-5}, y, vector("gamma"), vector("beta"))
			case 3:
				y = b.Add(graph.RMSNorm{Eps: 1e-6}, y, vector("gamma"))
			case 4:
				y = b.Add(graph.Softmax{Axis: 2}, b.BinaryScalar(graph.Mul, y, 3))
			}
			if r.IntN(2) == 0 {
				y = b.Unary(graph.Silu, y)
			}
			b.Output("y", y)
			g := graphtest.Graph(t, b)
			if n == 1 { // nothing to combine
				want = 3
			}
			if p := check(t, g, values(g), 1+int(seed%3)); len(p.Launches) > want {
				t.Errorf("%d launches, want %d\n%v", len(p.Launches), want, p)
			}
		})
	}
}
