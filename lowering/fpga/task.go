package fpga

import (
	"fmt"
	"math"

	"fusec/graph"
	"fusec/lowering"
)

// taskKind is what a task computes before its epilogue.
type taskKind uint8

const (
	taskGemm      taskKind = iota // x·wᵀ
	taskAffine                    // x
	taskMul                       // x ⊙ y
	taskNorm                      // x, row by row normalised
	taskAttention                 // softmax(q·kᵀ)·v
	taskMoE                       // a mixture of experts
	taskTranspose                 // the transpose of x
	taskConv                      // x, an image, convolved
	taskMax                       // the maximum of each window of x, an image
)

var taskNames = [...]string{"gemm", "affine", "mul", "norm", "attention", "moe", "transpose", "conv", "max"}

// String gives the kind's name.
func (k taskKind) String() string { return taskNames[k] }

// A task is one operation of the overlay in a launch: a computation of one kind, and EXEC's processing of its results.
//
//	result = act(kind(x, …)·scale + bias + residual·share)
type task struct {
	launch int
	kind   taskKind
	node   *graph.Node // whose value is the result: of the body of part or, if that is nil, of the fusion's
	part   *graph.Segment
	x      matrix
	weight *weight // of a gemm: its second operand, if that is constant; of a convolution: its filters, nil if all are 1
	window *window // of a convolution and a maximum
	w      matrix  // otherwise
	y      matrix  // of a product
	op     graph.Op
	terms  []term
	res    *matrix
	share  float64     // the factor of the residual
	pre    *graph.Node // whose value enters act; nil if that is x
	act    activation
	out    matrix

	swapped bool // a gemm that makes the transpose of its result
	heads   *heads
	experts *experts

	preCalibre calibre
	codes      codes
}

// weight is a constant matrix of a product: element (k, n) is at Offset + k·Stride[0] + n·Stride[1] of the source.
type weight struct {
	from source
	k, n int
}

// source is a value that the host knows before a run: a buffer that is bound or constant, or a constant of a body.
type source struct {
	buffer int           // or −1
	tensor *graph.Tensor // then this
	layout graph.Layout
}

// values gives the element at (i, j), i counted over all axes but the last.
func (s source) values(bound []*graph.Tensor) (func(i, j int) float64, error) {
	t := s.tensor
	if s.buffer >= 0 {
		t = bound[s.buffer]
	}
	if t == nil {
		return nil, fmt.Errorf("no value")
	}
	rank := s.layout.Shape.Rank()
	if rank == 0 {
		return func(int, int) float64 { return t.Float(s.layout.Offset) }, nil
	}
	if rank <= 2 {
		var di int
		if rank == 2 {
			di = s.layout.Stride[0]
		}
		dj := s.layout.Stride[rank-1]
		return func(i, j int) float64 { return t.Float(s.layout.Offset + i*di + j*dj) }, nil
	}
	flat, ok := s.layout.Reshape(graph.ShapeOf(s.layout.Shape.Elems()/max(s.layout.Shape.At(rank-1), 1),
		s.layout.Shape.At(rank-1)))
	if !ok {
		return nil, fmt.Errorf("its rows do not follow one another at one distance")
	}
	return source{buffer: s.buffer, tensor: s.tensor, layout: flat}.values(bound)
}

// term is a step of a chain on the way from the array to the activation: value fn v, or v fn value, with v one number
// for each column.
type term struct {
	fn   graph.BinaryFn
	left bool // v comes first
	v    source
}

// activation is a function of one number. Relu is done by EXEC itself, all others by a table.
type activation struct {
	name string
	f    func(float64) float64
	relu bool
}

// then puts a function behind another.
func (a activation) then(name string, relu bool, f func(float64) float64) activation {
	if a.f == nil {
		return activation{name, f, relu}
	}
	g := a.f
	return activation{a.name + ", " + name, func(x float64) float64 { return f(g(x)) }, a.relu && relu}
}

// table reports whether the activation needs a table.
func (a activation) table() bool { return a.f != nil && !a.relu }

// unary is the activation of an operation.
func unary(op graph.Unary) (name string, relu bool, f func(float64) float64) {
	return op.Fn.String(), op.Fn == graph.Relu, func(x float64) float64 { return op.Fn.Eval(x, op.Alpha) }
}

// text describes a task, for printed programs.
func (t *task) text() string {
	s := t.kind.String()
	switch t.kind {
	case taskGemm:
		n := t.w.rows
		if t.weight != nil {
			n = t.weight.n
		}
		s = fmt.Sprintf("%s %d×%d×%d", s, t.x.rows, n, t.x.cols)
	case taskConv, taskMax:
		w := t.window
		s = fmt.Sprintf("%s %d×%d of %d×%d×%d×%d → %d×%d×%d", s, w.kh, w.kw, w.images, w.h, w.w, w.c, w.oh, w.ow, w.o)
		if w.groups > 1 && t.kind == taskConv {
			s += fmt.Sprintf(", %d groups", w.groups)
		}
	case taskAttention:
		d := t.heads.dims
		s = fmt.Sprintf("%s of %d heads, %d×%d, %d wide", s, d.Heads*d.Batch.Elems(), d.Queries, d.Keys, d.Depth)
		if t.heads.op.Causal {
			s += ", causal"
		}
	case taskMoE:
		e := t.experts
		s = fmt.Sprintf("%s of %d experts, %d for a token, %d×%d×%d×%d", s, e.op.Experts, e.topK, e.dims.Tokens,
			e.dims.Width,
			e.dims.Hidden, e.dims.Result)
	case taskNorm:
		s = fmt.Sprintf("%s %d×%d", t.op.OpName(), t.x.rows, t.x.cols)
	default:
		s = fmt.Sprintf("%s %d×%d", s, t.x.rows, t.x.cols)
	}
	if len(t.terms) > 0 {
		s += ", scale and bias"
	}
	if t.res != nil {
		s += ", + " + t.res.v.name
	}
	if t.act.f != nil {
		s += ", " + t.act.name
	}
	if t.swapped {
		s += ", transposed"
	}
	return s + " → " + t.out.v.name
}

// flops is what a task multiplies, for estimates.
func (t *task) products() int64 {
	switch t.kind {
	case taskGemm:
		n := t.w.rows
		if t.weight != nil {
			n = t.weight.n
		}
		return int64(t.x.rows) * int64(n) * int64(t.x.cols)
	case taskConv:
		w := t.window
		return int64(w.pixels()) * int64(w.o) * int64(w.c/w.groups*w.taps())
	case taskAttention:
		d := t.heads.dims
		return int64(d.Batch.Elems()*d.Heads) * int64(d.Queries) * int64(d.Keys) * int64(d.Depth+d.Width)
	case taskMoE:
		d, matrices := t.experts.dims, 1
		if t.experts.op.Gated {
			matrices = 2
		}
		return int64(d.Tokens*t.experts.topK) * int64(d.Hidden) * int64(matrices*d.Width+d.Result)
	}
	return 0
}

// inLaunch names a launch in an error, which counts from 1.
func inLaunch(p *lowering.Program, i int, err error) error {
	return fmt.Errorf("launch %d, %s: %w", i+1, p.Launches[i].Node.Where(), err)
}

// finite reports whether x is a number.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
