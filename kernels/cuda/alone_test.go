package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/lowering/cuda/cudatest"
)

// A list collects checks.
type list struct {
	r      *rand.Rand
	checks []cudatest.Check
}

func newList(seed uint64) *list { return &list{r: rand.New(rand.NewPCG(seed, 1))} }

// add appends the check of an operation on operands; its name counts.
func (l *list) add(op graph.Op, args ...*graph.Tensor) *cudatest.Check {
	l.checks = append(l.checks, cudatest.Check{Name: fmt.Sprint(op.OpName(), len(l.checks)), Op: op, Args: args})
	return &l.checks[len(l.checks)-1]
}

func (l *list) tensor(d graph.DType, dims ...int) *graph.Tensor {
	return draw(l.r, graph.TypeOf(d, dims...))
}

func (l *list) run(t *testing.T) {
	t.Helper()
	cudatest.Run(t, cudatest.Open(t), l.checks...)
}

// shapes with odd sizes, sizes of one, and nothing.
var shapes = [][]int{{1, 1, 1}, {3, 5, 7}, {33, 2, 65}, {1, 300, 9}, {4, 16, 64}, {2, 0, 3}}

func TestRowsAlone(t *testing.T) {
	l := newList(20)
	for i, s := range shapes {
		d := []graph.DType{graph.F32, graph.F64}[i%2]
		x := l.tensor(d, s...)
		for axis := range 3 {
			l.add(graph.Softmax{Axis: axis}, x)
			l.add(graph.LogSoftmax{Axis: axis}, x)
			for fn := graph.Sum; fn <= graph.MinOf; fn++ {
				if int(fn)%3 != axis && i > 1 {
					continue
				}
				if fn == graph.Prod && x.Type.Shape.Elems() > 200 {
					continue // beyond the range
				}
				l.add(graph.Reduce{Fn: fn, Axes: graph.IntsOf(axis), Keep: axis == 0}, x)
				l.add(graph.Reduce{Fn: fn, Axes: graph.IntsOf(axis, (axis+1)%3), Keep: axis == 1}, x)
			}
		}
		l.add(graph.Reduce{Fn: graph.Sum, Axes: graph.IntsOf(2, 1, 0)}, x)
		l.add(graph.LayerNorm{Eps: 1e-3}, x, l.tensor(d, s[2]), l.tensor(d, s[2]))
		l.add(graph.RMSNorm{Eps: 1e-3}, x, l.tensor(d, s[2]))
	}
	l.run(t)
}

// TestSoftmaxMasked has slices all at −Inf, which give zeros.
func TestSoftmaxMasked(t *testing.T) {
	l := newList(21)
	x := l.tensor(graph.F32, 3, 4, 5)
	for i := range x.Type.Shape.Elems() {
		if i%5 == 2 || i < 25 {
			x.SetFloat(i, math.Inf(-1))
		}
	}
	for axis := range 3 {
		l.add(graph.Softmax{Axis: axis}, x)
	}
	l.run(t)
}

// TestIntegerReductions are exact, and wrap.
func TestIntegerReductions(t *testing.T) {
	l := newList(22)
	for _, d := range []graph.DType{graph.I32, graph.I64} {
		for _, s := range [][]int{{5, 7}, {70, 33}, {1, 3000}, {3000, 2}, {3, 0}, {0, 3}} {
			x := l.tensor(d, s...)
			for fn := graph.Sum; fn <= graph.MinOf; fn++ {
				if fn != graph.Mean {
					l.add(graph.Reduce{Fn: fn, Axes: graph.IntsOf(0)}, x)
					l.add(graph.Reduce{Fn: fn, Axes: graph.IntsOf(1), Keep: true}, x)
					l.add(graph.Reduce{Fn: fn, Axes: graph.IntsOf(0, 1)}, x)
				}
			}
		}
	}
	l.run(t)
}

// TestLongSums holds the error of sums of many f32 numbers of one sign.
func TestLongSums(t *testing.T) {
	l := newList(23)
	x := graph.Filled(graph.TypeOf(graph.F32, 1<<17, 2), 0.1)
	l.add(graph.Reduce{Fn: graph.Sum, Axes: graph.IntsOf(0)}, x)
	l.add(graph.Reduce{Fn: graph.Mean, Axes: graph.IntsOf(0, 1)}, x)
	l.run(t)
}

// TestCopy reads operands of every layout, and pads them.
func TestCopy(t *testing.T) {
	l := newList(24)
	for i := range 21 {
		s := []int{1 + l.r.IntN(40), 1 + l.r.IntN(5), 1 + l.r.IntN(70), 1 + l.r.IntN(3)}[:1+l.r.IntN(4)]
		d := []graph.DType{graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool, graph.BF16, graph.F16}[i%7]
		x := l.tensor(d, s...)
		l.add(graph.Copy{}, x).ArgLayouts = []graph.Layout{cudatest.Layout(l.r, x.Type.Shape, true)}
		pad := graph.IntsOf([]int{1, 0, 2, 1}[:len(s)]...)
		l.add(graph.Pad{Lo: pad, Hi: pad, Value: 1}, x).ArgLayouts = []graph.Layout{cudatest.Layout(l.r, x.Type.Shape, true)}
	}
	l.run(t)
}
