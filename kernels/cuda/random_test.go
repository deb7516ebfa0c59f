package cuda_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
)

// pick draws 1 to n.
func (l *list) pick(n int) int { return 1 + l.r.IntN(n) }

// dims draws a shape of the given rank, at times with sizes of one.
func (l *list) dims(rank int) []int {
	d := make([]int, rank)
	for i := range d {
		d[i] = []int{1, 2, 3, 4, 5, 7, 8, 12, 16, 33}[l.r.IntN(10)]
	}
	return d
}

func number(v int) *graph.Tensor {
	t := graph.NewTensor(graph.TypeOf(graph.I64))
	t.Data.([]int64)[0] = int64(v)
	return t
}

// below draws indices below n.
func (l *list) below(n int, d graph.DType, dims ...int) *graph.Tensor {
	return cases.Arg{Type: graph.TypeOf(d, dims...), Lo: 0, Hi: float64(n)}.Draw(l.r)
}

var everyType = []graph.DType{graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool, graph.BF16, graph.F16}

// TestMoves moves elements of all types.
func TestMoves(t *testing.T) {
	l := newList(30)
	for i := range 14 {
		d := everyType[i%len(everyType)]
		rank := l.pick(4)
		axis := l.r.IntN(rank)
		s := l.dims(rank)
		with := func(n int) []int {
			c := append([]int(nil), s...)
			c[axis] = n
			return c
		}
		x := l.tensor(d, s...)
		size, step := l.r.IntN(s[axis]+1), l.pick(2)
		for size > 0 && (size-1)*step >= s[axis] {
			size--
		}
		start := number(l.r.IntN(max(s[axis]-max(size-1, 0)*step, 1)))
		l.add(graph.Slice{Axis: axis, Size: size, Step: step}, x, start)
		l.add(graph.Unslice{Axis: axis, Size: s[axis], Step: step}, l.tensor(d, with(size)...), start)
		part := l.r.IntN(s[axis] + 1)
		l.add(graph.UpdateSlice{Axis: axis}, x, l.tensor(d, with(part)...), number(l.r.IntN(s[axis]-part+1)))
		l.add(graph.Concat{Axis: axis}, x, l.tensor(d, with(l.r.IntN(6))...), l.tensor(d, with(3)...))
		var lo, hi []int
		for range rank {
			lo, hi = append(lo, l.r.IntN(4)), append(hi, l.r.IntN(4))
		}
		l.add(graph.Pad{Lo: graph.IntsOf(lo...), Hi: graph.IntsOf(hi...), Value: 1}, x)
		index := []graph.DType{graph.I32, graph.I64}[i%2]
		l.add(graph.Gather{Axis: axis}, x, l.below(s[axis], index, l.pick(5), l.pick(40)))
	}
	l.run(t)
}

// TestScatterAdd adds many updates to few rows, and few to many.
func TestScatterAdd(t *testing.T) {
	l := newList(31)
	for i := range 12 {
		d := everyType[i%4]
		count, size := []int{0, 1, 5, 300, 700}[l.r.IntN(5)], []int{1, 3, 40, 600}[l.r.IntN(4)]
		s := []int{count, l.pick(9)}
		axis := l.r.IntN(2)
		if axis == 1 {
			s = []int{l.pick(3), count, l.pick(9)}
		}
		index := []graph.DType{graph.I32, graph.I64}[i%2]
		l.add(graph.ScatterAdd{Axis: axis, Size: size}, l.below(size, index, count), l.tensor(d, s...))
	}
	l.run(t)
}

// TestWindows slides over images.
func TestWindows(t *testing.T) {
	l := newList(32)
	for i := range 8 {
		d := everyType[i%2]
		n, c, h, w := l.pick(2), l.pick(3), 6+l.r.IntN(9), 6+l.r.IntN(9)
		x := l.tensor(d, n, c, h, w)
		pair := func(n int) graph.Ints { return graph.IntsOf(l.pick(n), l.pick(n)) }
		pad := graph.IntsOf(l.r.IntN(3), l.r.IntN(3), l.r.IntN(3), l.r.IntN(3))
		p := graph.Im2Col{Kernel: pair(3), Stride: pair(3), Dilation: pair(2), Pad: pad}
		l.add(p, x)
		patches, err := graph.InfoOf(p).Infer(p, []graph.Type{x.Type})
		if err != nil {
			t.Fatal(err)
		}
		l.add(graph.Col2Im{Kernel: p.Kernel, Stride: p.Stride, Dilation: p.Dilation, Pad: pad, H: h, W: w},
			l.tensor(d, patches[0].Shape.Slice()...))
		pool := graph.Pool{Fn: graph.PoolFn(i / 2 % 2), CountPad: i/4%2 == 0, Kernel: pair(4), Stride: pair(4), Pad: pad}
		l.add(pool, x)
		y, err := graph.InfoOf(pool).Infer(pool, []graph.Type{x.Type})
		if err != nil {
			t.Fatal(err)
		}
		l.add(graph.PoolGrad(pool), x, l.tensor(d, y[0].Shape.Slice()...))
		pool.Layout = graph.NHWC
		channels := []int{1, 3, 4, 6, 8}[l.r.IntN(5)]
		image := func(s graph.Shape) *graph.Tensor { return l.tensor(d, s.At(0), s.At(2), s.At(3), channels) }
		last := image(x.Type.Shape)
		l.add(pool, last)
		l.add(graph.PoolGrad(pool), last, image(y[0].Shape))
		groups := l.pick(2)
		conv := graph.Conv2D{Stride: p.Stride, Dilation: p.Dilation, Pad: pad, Groups: groups}
		l.add(conv, l.tensor(d, n, 2*groups, h, w), l.tensor(d, 3*groups, 2, p.Kernel.At(0), p.Kernel.At(1)))
		conv.Dilation, conv.Pad, conv.Groups = graph.IntsOf(1, 1), graph.IntsOf(0, 0, 0, 0), 1
		l.add(conv, l.tensor(d, 1, n, c, groups), l.tensor(d, 1, n, c, groups)) // one element
	}
	l.run(t)
}

// TestPoolSpecial has windows with ties, infinities and NaN, and windows that lie in the padding alone.
func TestPoolSpecial(t *testing.T) {
	l := newList(33)
	x := l.tensor(graph.F32, 2, 2, 9, 9)
	for i := range 2 * 2 * 9 * 9 {
		x.SetFloat(i, []float64{0, 1, 1, math.Inf(-1), math.Inf(1), math.NaN(), -1, 2, 2}[l.r.IntN(9)])
	}
	for _, pad := range []int{0, 3} {
		op := graph.Pool{Kernel: graph.IntsOf(2, 3), Stride: graph.IntsOf(2, 2), Pad: graph.IntsOf(pad, pad, pad, pad)}
		l.add(op, x)
		y, err := graph.InfoOf(op).Infer(op, []graph.Type{x.Type})
		if err != nil {
			t.Fatal(err)
		}
		l.add(graph.PoolGrad(op), x, l.tensor(graph.F32, y[0].Shape.Slice()...))
		op.Layout = graph.NHWC
		last := &graph.Tensor{Type: graph.TypeOf(graph.F32, 1, 9, 9, 4), Data: x.Data}
		l.add(op, last)
		l.add(graph.PoolGrad(op), last, l.tensor(graph.F32, 1, y[0].Shape.At(2), y[0].Shape.At(3), 4))
	}
	l.run(t)
}

// TestSoftmaxSpecial has slices with infinities and NaN, alone or beside numbers.
func TestSoftmaxSpecial(t *testing.T) {
	l := newList(44)
	for _, d := range everyType[:2] {
		x := l.tensor(d, 6, 2, 6)
		for i := range x.Type.Shape.Elems() {
			special := []float64{math.Inf(-1), math.Inf(1), math.NaN(), 1e30, -1e30}
			if k := l.r.IntN(4); k > 0 || i < 12 {
				x.SetFloat(i, special[l.r.IntN(1+i/12)%5])
			}
		}
		for _, axis := range []int{0, 2} {
			l.add(graph.Softmax{Axis: axis}, x)
			l.add(graph.LogSoftmax{Axis: axis}, x)
		}
	}
	l.run(t)
}

// TestRoutes chooses among scores with ties and numbers that are never chosen.
func TestRoutes(t *testing.T) {
	l := newList(34)
	for i := range 12 {
		d := everyType[i%2]
		tokens, experts := []int{1, 5, 40, 300}[l.r.IntN(4)], l.pick(70)
		x := l.tensor(d, tokens, experts)
		if i%3 > 0 {
			for k := range tokens * experts {
				if l.r.IntN(3) == 0 {
					x.SetFloat(k, []float64{0, math.Copysign(0, -1), 1, math.Inf(-1), math.Inf(1), math.NaN(), -2}[l.r.IntN(7)])
				}
			}
		}
		l.add(graph.TopK{K: l.r.IntN(min(experts, 6) + 1)}, x)
		l.add(graph.Route{K: l.pick(min(experts, 4)), Capacity: l.r.IntN(20)}, x)
		l.add(graph.Route{ExpertChoice: true, Capacity: l.pick(20)}, x)
	}
	l.run(t)
}

// TestNorms normalises channels and groups of them.
func TestNorms(t *testing.T) {
	l := newList(35)
	for i, s := range [][]int{{1, 1}, {64, 30}, {2, 3, 7, 40}, {4, 0, 3}} {
		d := everyType[i%2]
		v := func(lo, hi float64) *graph.Tensor {
			return cases.Arg{Type: graph.TypeOf(d, s[1]), Lo: lo, Hi: hi}.Draw(l.r)
		}
		for _, train := range []bool{true, false} {
			l.add(graph.BatchNorm{Eps: 1e-3, Momentum: 0.9, Train: train}, l.tensor(d, s...), v(-2, 2), v(-2, 2), v(-2, 2),
				v(0.5, 2))
		}
	}
	for i, c := range []struct {
		groups int
		shape  []int
	}{{1, []int{1, 1}}, {2, []int{3, 8}}, {4, []int{2, 4, 9}}, {1, []int{3, 5, 17, 19}}, {3, []int{7, 6, 5}}, {2, []int{2, 4, 0}},
		{2, []int{0, 4, 3}}} {
		d := everyType[i%2]
		l.add(graph.GroupNorm{Groups: c.groups, Eps: 1e-3}, l.tensor(d, c.shape...), l.tensor(d, c.shape[1]),
			l.tensor(d, c.shape[1]))
	}
	l.run(t)
}

// TestRowsOfBlocks has rows that the blocks of a cluster hold together, in types of every size, and so many rows that a block
// brings a later one to the L2 cache.
func TestRowsOfBlocks(t *testing.T) {
	l := newList(38)
	for _, c := range []struct {
		d               graph.DType
		rows, n, blocks int
		prefetches      bool
	}{{graph.F32, 3, 36868, 4, false}, {graph.F32, 3, 50257, 4, false}, {graph.BF16, 3, 150000, 8, false},
		{graph.F64, 2, 20001, 4, false}, {graph.I64, 3, 40000, 8, false}, {graph.I8, 1, 40000, 4, false},
		{graph.F32, 2, 200003, 8, false}, {graph.F32, 270, 8192, 1, true}, {graph.F32, 264, 8192, 1, false}} {
		op, types, err := cases.Bodied(graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			x := in(c.d, c.rows, c.n)
			if c.d.Is16() {
				x = b.CastTo(graph.F32, x)
			}
			if c.d.IsFloat() {
				b.Output("", b.CastTo(c.d, b.Add(graph.Softmax{Axis: 1}, x)))
				return
			}
			for _, fn := range []graph.ReduceFn{graph.Sum, graph.MinOf} {
				b.Output("", b.Binary(graph.Sub, x, b.Broadcast(b.Reduce(fn, x, true, 1), x.Type.Shape)))
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		check := l.add(op)
		check.Name = fmt.Sprint(c.d, " ", c.rows, "x", c.n)
		for _, u := range types {
			check.Args = append(check.Args, draw(l.r, u))
		}
		k := kernelOf(t, op, types, kernels.Config{Chip: kernels.H200})
		if k.Steps[0].Grid[0] != c.rows*c.blocks || strings.Contains(k.Generated(), "row_prefetch") != c.prefetches {
			t.Errorf("%s: %d blocks\n%s", check.Name, k.Steps[0].Grid[0], k.Generated())
		}
	}
	l.run(t)
}

// TestRowsInRounds has more rows than clusters run at once: each goes over several. Of norms a cluster exchanges moments: also
// where numbers are large beside their differences, and where results are of the second level.
func TestRowsInRounds(t *testing.T) {
	chip := kernels.H200
	chip.SMs = 4
	l := newList(42)
	norm := func(b *graph.Builder, in cases.Inputs, x *graph.Node) *graph.Node {
		n := x.Type.Shape.At(1)
		return b.Add(graph.LayerNorm{Eps: 1e-3}, x, in(x.Type.DType, n), in(x.Type.DType, n))
	}
	for _, c := range []struct {
		name    string
		d       graph.DType
		rows, n int
		shift   float64
		of      func(b *graph.Builder, in cases.Inputs, x *graph.Node) []*graph.Node
	}{
		{"softmax", graph.F32, 5, 36868, 0, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) []*graph.Node {
			return []*graph.Node{b.Add(graph.Softmax{Axis: 1}, x)}
		}},
		{"one reduction", graph.F32, 7, 40001, 0, func(b *graph.Builder, in cases.Inputs, x *graph.Node) []*graph.Node {
			return []*graph.Node{b.Add(graph.RMSNorm{Eps: 1e-3}, x, in(graph.F32, 40001))}
		}},
		{"integers", graph.I64, 3, 40000, 0, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) []*graph.Node {
			return []*graph.Node{b.Binary(graph.Sub, x, b.Broadcast(b.Reduce(graph.MaxOf, x, true, 1), x.Type.Shape))}
		}},
		{"bytes", graph.I8, 3, 40000, 0, func(b *graph.Builder, _ cases.Inputs, x *graph.Node) []*graph.Node {
			return []*graph.Node{b.Binary(graph.Sub, x, b.Broadcast(b.Reduce(graph.MinOf, x, true, 1), x.Type.Shape))}
		}},
		{"norm", graph.F32, 5, 131072, 0, func(b *graph.Builder, in cases.Inputs, x *graph.Node) []*graph.Node {
			return []*graph.Node{norm(b, in, x)}
		}},
		{"norm of far numbers", graph.F32, 3, 36900, 3000, func(b *graph.Builder, in cases.Inputs, x *graph.Node) []*graph.Node {
			return []*graph.Node{norm(b, in, x)}
		}},
		{"norm of f64", graph.F64, 3, 20001, 1e6, func(b *graph.Builder, in cases.Inputs, x *graph.Node) []*graph.Node {
			return []*graph.Node{norm(b, in, x)}
		}},
		{"norm of bf16", graph.BF16, 3, 150001, 0, func(b *graph.Builder, in cases.Inputs, x *graph.Node) []*graph.Node {
			return []*graph.Node{b.CastTo(graph.BF16, norm(b, in, b.CastTo(graph.F32, x)))}
		}},
		{"moments", graph.F32, 3, 50257, 0, func(b *graph.Builder, in cases.Inputs, x *graph.Node) []*graph.Node {
			mean := b.Reduce(graph.Mean, x, true, 1)
			d := b.Binary(graph.Sub, x, b.Broadcast(mean, x.Type.Shape))
			variance := b.Reduce(graph.Mean, b.Unary(graph.Square, d), true, 1)
			return []*graph.Node{d, b.Binary(graph.Div, d, b.Broadcast(variance, x.Type.Shape)), mean, variance,
				b.Reduce(graph.MaxOf, x, true, 1)}
		}},
		{"two norms", graph.F32, 3, 36865, 0, func(b *graph.Builder, in cases.Inputs, x *graph.Node) []*graph.Node {
			return []*graph.Node{norm(b, in, norm(b, in, x))}
		}},
		{"two means", graph.F32, 3, 36865, 0, func(b *graph.Builder, in cases.Inputs, x *graph.Node) []*graph.Node {
			return []*graph.Node{b.Binary(graph.Add, norm(b, in, x), norm(b, in, b.Unary(graph.Exp, x)))}
		}},
	} {
		op, types, err := cases.Bodied(graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			for _, n := range c.of(b, in, in(c.d, c.rows, c.n)) {
				b.Output("", n)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		check := l.add(op)
		check.Name = c.name
		for i, u := range types {
			x := draw(l.r, u)
			if i == 0 && c.shift != 0 {
				for j := range u.Shape.Elems() {
					x.SetFloat(j, x.Float(j)+c.shift)
				}
			}
			check.Args = append(check.Args, x)
		}
		k := kernelOf(t, op, types, kernels.Config{Chip: chip})
		if s := k.Steps[0]; !s.Rounds || s.Grid[0] > 8 {
			t.Errorf("%s: %d blocks\n%s", c.name, s.Grid[0], k.Generated())
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, chip), l.checks...)
}

// TestRowsDivided divides rows by their greatest numbers: of ordinary size, and so great, small or special that a reciprocal would
// not do.
func TestRowsDivided(t *testing.T) {
	l := newList(43)
	inf := math.Inf(1)
	for _, n := range []int{8, 13, 3000} {
		for i, row := range [][]float64{{1, 2, 3, -0.5}, {1e-38, 3e-38, -2e-38}, {1e-42, 7e-42}, {1e-45}, {1e38, 1e38, 1.2e38},
			{1e-3, -3e38}, {0, -1}, {inf, 1}, {-inf, 2, 0}, {math.NaN(), 1}, {1e-30, -1e5}, {2e-31, -7e-31}, {1e30, 1e29}, {3e38, -1e38}} {
			op, types, err := cases.Bodied(graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
				x := in(graph.F32, 2, n)
				b.Output("", b.Binary(graph.Div, x, b.Broadcast(b.Reduce(graph.MaxOf, x, true, 1), x.Type.Shape)))
			})
			if err != nil {
				t.Fatal(err)
			}
			check := l.add(op)
			check.Name = fmt.Sprint(n, " ", i)
			x := draw(l.r, types[0])
			for j := range n {
				x.SetFloat(j, row[min(j, len(row)-1)])
			}
			check.Args = append(check.Args, x)
		}
	}
	l.run(t)
}

// TestRowsFrozen: few rows read frozen values before the launch waits: gains and biases, or all operands.
func TestRowsFrozen(t *testing.T) {
	l := newList(40)
	for i, c := range []struct {
		rows, n int
		early   bool
	}{{1, 4096, true}, {3, 100, true}, {32, 4096, true}, {132, 1027, true}, {2, 8192, true}, {5, 2, true}, {5, 1, false},
		{40, 33, true}, {133, 1027, false}, {2, 8193, false}} {
		op, types, err := cases.Bodied(graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			x := b.CastTo(graph.F32, in([]graph.DType{graph.F32, graph.BF16}[i%2], c.rows, c.n))
			gain, bias, shift := in(graph.F32, c.n), in(graph.F32, c.n), in(graph.F32, c.rows, 1)
			y := b.Add(graph.LayerNorm{Eps: 1e-2}, b.Binary(graph.Add, x, b.Broadcast(shift, x.Type.Shape)), gain, bias)
			b.Output("", b.CastTo(graph.BF16, y))
			b.Output("", b.Add(graph.Softmax{Axis: 1}, b.Binary(graph.Mul, y, b.Broadcast(gain, y.Type.Shape))))
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range []int{0, 1, 3} { // the first argument that is frozen
			check := l.add(op)
			check.Name = fmt.Sprint(c.rows, "x", c.n, " from ", from)
			check.Compile = func(op graph.Op, args, results []kernels.Operand, cfg kernels.Config) (*kernels.Kernel, error) {
				for j := from; j < len(args); j++ {
					args[j].Frozen = true
				}
				k, err := kernels.Compile(op, args, results, cfg)
				if err == nil && strings.Contains(k.Generated(), "late_read") != (c.early && cfg.Chip.Arch == kernels.H200.Arch) {
					err = fmt.Errorf("of %v:\n%s", cfg.Chip, k.Generated())
				}
				return k, err
			}
			for _, u := range types {
				check.Args = append(check.Args, draw(l.r, u))
			}
		}
	}
	l.run(t)
}

// TestRowsStreamed: rows that the L2 cache cannot hold are streamed past it.
func TestRowsStreamed(t *testing.T) {
	chip := kernels.H200
	chip.L2 = 4096
	l := newList(41)
	for _, rows := range []int{3, 4} { // of 1040 bytes
		x, gain := graph.TypeOf(graph.F32, rows, 260), graph.TypeOf(graph.F32, 260)
		op, types, err := cases.Bodied(graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			y := b.Add(graph.LayerNorm{Eps: 1e-5}, in(graph.F32, x.Shape.Slice()...), in(graph.F32, 260), in(graph.F32, 260))
			b.Output("", y)
		})
		if err != nil {
			t.Fatal(err)
		}
		l.add(op, draw(l.r, x), draw(l.r, gain), draw(l.r, gain))
		k := kernelOf(t, op, types, kernels.Config{Chip: chip})
		if strings.Contains(k.Generated(), "store<1, 16, true>") != (rows == 4) {
			t.Errorf("%d rows:\n%s", rows, k.Generated())
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, chip), l.checks...)
}

// TestRowsReadOnce reduces rows that are read once: blocks make parts of them, on chips with clusters, too.
func TestRowsReadOnce(t *testing.T) {
	l := newList(39)
	for _, s := range [][]int{{16, 50257}, {140, 36865}, {1, 150001}} {
		x := l.tensor(graph.F32, s...)
		l.add(graph.Reduce{Fn: graph.Mean, Axes: graph.IntsOf(1)}, x)
		l.add(graph.Reduce{Fn: graph.MaxOf, Axes: graph.IntsOf(1), Keep: true}, x)
	}
	l.run(t)
}

// TestRowLengths has rows that stay in a few threads' registers, in a block's, and none.
func TestRowLengths(t *testing.T) {
	l := newList(36)
	for i, n := range []int{1, 2, 3, 31, 32, 33, 63, 64, 100, 128, 129, 500, 512, 1000, 1027, 4096, 4100, 20000, 70001} {
		rows := []int{1, 3, 40}[i%3]
		if n > 5000 {
			rows = 2
		}
		op, types, err := cases.Bodied(graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			x := b.Add(graph.Cast{To: graph.F32}, in(graph.BF16, rows, n))
			h := b.Unary(graph.GeluTanh, b.Binary(graph.Add, x, in(graph.F32, rows, n)))
			y := b.Add(graph.LayerNorm{Eps: 1e-2}, h, in(graph.F32, n), in(graph.F32, n))
			b.Output("", b.Add(graph.Cast{To: graph.BF16}, h))
			b.Output("", y)
			if rows > 1 && n > 1 {
				b.Output("", b.Reduce(graph.Sum, b.Binary(graph.Mul, h, y), false, 0))
			}
			b.Output("", b.Add(graph.Softmax{Axis: 1}, y))
		})
		if err != nil {
			t.Fatal(err)
		}
		c := l.add(op)
		c.Name = fmt.Sprint(rows, "x", n)
		for _, u := range types {
			c.Args = append(c.Args, draw(l.r, u))
		}
	}
	l.run(t)
	cudatest.Run(t, cudatest.OpenFor(t, kernels.ChipOf(80)), l.checks...)
}

// TestLayouts reads operands through any strides, in elementwise work and along rows.
func TestLayouts(t *testing.T) {
	l := newList(37)
	for i := range 16 {
		s := l.dims(l.pick(4))
		d := everyType[i%2]
		anchor := []graph.Anchor{graph.AnchorNone, graph.AnchorRow}[i/2%2]
		op, types, err := cases.Bodied(anchor, func(b *graph.Builder, in cases.Inputs) {
			x, y := in(d, s...), in(d, s...)
			z := b.Binary(graph.Add, b.Binary(graph.Mul, x, y), in(d, s...))
			b.Output("", z)
			if anchor == graph.AnchorRow {
				axis := l.r.IntN(len(s))
				b.Output("", b.Binary(graph.Sub, z, b.Broadcast(b.Reduce(graph.Sum, z, true, axis), z.Type.Shape)))
			} else {
				perm := l.r.Perm(len(s))
				b.Output("", b.Transpose(b.Unary(graph.Tanh, z), perm...))
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		c := l.add(op)
		for _, u := range types {
			c.Args = append(c.Args, draw(l.r, u))
			c.ArgLayouts = append(c.ArgLayouts, cudatest.Layout(l.r, u.Shape, true))
		}
	}
	l.run(t)
}

// TestDropoutLayouts draws by the index of an element, wherever it lies.
func TestDropoutLayouts(t *testing.T) {
	l := newList(40)
	for i, s := range [][]int{{1, 1}, {8, 8}, {40, 33}, {1, 70}, {70, 1}, {2, 64, 3}, {64, 3, 32}, {3, 0}} {
		op, types, err := cases.Bodied(graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Add(graph.Dropout{P: 0.4}, b.Unary(graph.Neg, in(everyType[i%2], s...)), in(graph.I64)))
		})
		if err != nil {
			t.Fatal(err)
		}
		x := l.tensor(everyType[i%2], s...)
		for _, layout := range []graph.Layout{turned(types[0].Shape), cudatest.Layout(l.r, types[0].Shape, true)} {
			l.add(op, x, number(i)).ArgLayouts = []graph.Layout{layout, graph.Contiguous(graph.Shape{})}
		}
	}
	l.run(t)
}

// TestDropoutShared draws by warps, whose threads make words for one another: of every width, of one unit and of two, in full
// blocks and others, with elements left over.
func TestDropoutShared(t *testing.T) {
	chip := kernels.H200
	chip.SMs = 1
	l := newList(41)
	for i, c := range []struct {
		d    graph.DType
		p    float64
		dims []int
		more int // operands
	}{
		{graph.BF16, 0.01, []int{1 << 16}, 0}, {graph.BF16, 0.02, []int{3, 21851}, 0}, {graph.F16, 0.5, []int{24577, 8}, 2},
		{graph.F32, 0.25, []int{1 << 15}, 0}, {graph.F32, 0.01, []int{1 << 15}, 0},
		{graph.F32, 0.999, []int{257, 132}, 2}, {graph.F32, 0.2, []int{300, 7}, 1},
		{graph.F32, 0.3, []int{131, 129}, 0},
		{graph.F64, 0.1, []int{5, 3277}, 0}, {graph.F64, 1e-6, []int{1 << 14}, 0}, {graph.BF16, 0.2, []int{8193}, 0},
		{graph.BF16, 0.01, []int{40, 264}, 1}, {graph.BF16, 0.01, []int{31}, 0},
		{graph.BF16, 0.1, []int{131, 129}, 1}, {graph.F16, 0.3, []int{513, 264}, 1}, {graph.F64, 0.3, []int{7, 33}, 2},
	} {
		lane := graph.F32
		if c.d == graph.F64 {
			lane = c.d
		}
		op, types, err := cases.Bodied(graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			x, seed := b.CastTo(lane, in(c.d, c.dims...)), in(graph.I64)
			if c.more > 0 { // a bias, read otherwise than x, and the same seed again
				again := x
				if c.more > 1 { // in a part of its own
					again = b.CastTo(lane, in(c.d, c.dims...))
				}
				b.Output("", b.Add(graph.Dropout{P: c.p}, again, seed))
				bias := b.Broadcast(in(c.d, c.dims[len(c.dims)-1]), x.Type.Shape)
				x = b.Binary(graph.Add, x, b.CastTo(lane, bias))
			}
			b.Output("", b.CastTo(c.d, b.Add(graph.Dropout{P: c.p}, x, seed)))
		})
		if err != nil {
			t.Fatal(err)
		}
		check := l.add(op)
		check.Name = fmt.Sprint(i, c)
		check.Config.Chip = chip
		for _, u := range types {
			check.Args = append(check.Args, draw(l.r, u))
		}
		if text := kernelOf(t, op, types, check.Config).Generated(); strings.Contains(text, "dropout<") {
			t.Errorf("%s: each thread draws for itself:\n%s", check.Name, text)
		}
	}
	l.run(t)
}

// TestRoPE reads heads through strides, with angles that each thread computes and with those of a step before.
func TestRoPE(t *testing.T) {
	for _, pairs := range []int{1 << 16, 0} {
		defer kernels.SetRoPEPairs(kernels.SetRoPEPairs(pairs))
		l := newList(38)
		for i := range 6 {
			x := l.tensor(everyType[i%2], l.pick(2), l.pick(3), l.pick(9), 2*l.pick(9))
			if i == 5 {
				x = l.tensor(graph.F32, 2, 3, 2050) // more frequencies than there is a table for
			}
			c := l.add(graph.RoPE{Base: 10000, Interleaved: i%3 == 0, Inverse: i%5 == 0}, x, number(l.r.IntN(100000)))
			c.ArgLayouts = []graph.Layout{cudatest.Layout(l.r, x.Type.Shape, false)}
		}
		l.run(t)
	}
}

// TestReports finds what kernels cannot do.
func TestReports(t *testing.T) {
	l := newList(39)
	x := l.tensor(graph.F32, 5, 7)
	nothing := []ref.Value{} // is compared
	fails := func(status kernels.StatusCode, op graph.Op, args ...*graph.Tensor) {
		c := l.add(op, args...)
		c.Status, c.Want = status, nothing
	}
	for _, start := range []int{-1, 4} {
		fails(kernels.StatusStart, graph.Slice{Axis: 1, Size: 4, Step: 1}, x, number(start))
		fails(kernels.StatusStart, graph.Unslice{Axis: 1, Size: 10, Step: 1}, x, number(start))
		fails(kernels.StatusStart, graph.UpdateSlice{Axis: 0}, x, l.tensor(graph.F32, 2, 7), number(start))
	}
	fails(kernels.StatusStart, graph.Slice{Axis: 1, Size: 0, Step: 1}, x, number(8))
	bad := l.below(5, graph.I64, 40)
	bad.Data.([]int64)[17] = 5
	fails(kernels.StatusIndex, graph.Gather{Axis: 0}, x, bad)
	fails(kernels.StatusIndex, graph.Gather{Axis: 0}, l.tensor(graph.F32, 5, 0), bad)
	fails(kernels.StatusIndex, graph.ScatterAdd{Axis: 0, Size: 5}, bad, l.tensor(graph.F32, 40, 3))
	zero := graph.NewTensor(graph.TypeOf(graph.I32, 300))
	fails(kernels.StatusDivision, graph.Binary{Fn: graph.Div}, zero, zero)
	fails(kernels.StatusDivision, graph.Binary{Fn: graph.Pow}, zero, graph.Filled(graph.TypeOf(graph.I32), -1))
	l.run(t)
}
