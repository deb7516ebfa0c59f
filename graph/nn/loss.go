package nn

import (
	"fmt"
	"math"

	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// CrossEntropy is the mean of [CrossEntropyRows] over the rows that have a label; 0 if there are none.
func CrossEntropy(logits, labels *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(crossEntropy{mean: true}, operand{"logits", logits}, operand{"labels", labels})
}

// CrossEntropyRows is −log softmax(logits) at each row's label, for logits [..., c] and labels [...], which are classes
// from 0 to c−1: integers, or floats, which are rounded down. The result is [...]. A row with a negative label has no
// label, and its loss is 0. Any other label that is not a class gives NaN, because an error is not possible here.
func CrossEntropyRows(logits, labels *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(crossEntropy{}, operand{"logits", logits}, operand{"labels", labels})
}

type crossEntropy struct{ mean bool }

func (d crossEntropy) name() string {
	if d.mean {
		return "CrossEntropy"
	}
	return "CrossEntropyRows"
}

// differentiable implements judge.
func (crossEntropy) differentiable(operand int) bool { return operand != 1 }

// build selects the label's logit by comparing each class number with the label, so that rows are read in order and
// nothing is indexed. Except for values that depend only on the labels, everything has the shape of the logits or is a
// reduction of their rows. Therefore it becomes one launch together with its gradient. The numbers are compared as
// floats, which are exact here.
func (d crossEntropy) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	x, label := args[0], args[1]
	s, dtype := x.Type.Shape, x.Type.DType
	last := s.Rank() - 1
	if last < 0 || !dtype.IsFloat() || label.Type.Shape != s.Drop(graph.IntsOf(last)) || label.Type.DType == graph.Bool {
		return b.Fail(fmt.Errorf("%s of type %v and %s of type %v: want floats [..., c] and numbers [...]",
			x.Where(), x.Type, label.Where(), label.Type))
	}
	classes := s.At(last)
	if dtype == graph.F32 && classes > 1<<24 {
		return b.Fail(fmt.Errorf("%s of type %v: more than %d classes need f64", x.Where(), x.Type, 1<<24))
	}
	numbers := graph.NewTensor(graph.TypeOf(dtype, classes))
	for i := range classes {
		numbers.SetFloat(i, float64(i))
	}
	label = classOf(b, label, dtype)
	zero := b.Scalar(dtype, 0)
	// With t the shift, log Σ exp x − x[label] is log Σ exp(x−t) − (x−t)[label].
	low, _ := shifted(b, x)
	sum := b.Reduce(graph.Sum, b.Unary(graph.Exp, low), false, last)
	is := b.Binary(graph.Eq, b.Broadcast(b.Const(numbers), s), perLine(b, label, s))
	picked := b.Reduce(graph.Sum, b.Add(graph.Select{}, is, b.Unary(graph.Neg, low), zero), false, last)
	loss := b.Binary(graph.Add, b.Unary(graph.Log, sum), picked)

	// NaN for labels outside of the classes.
	known := b.BinaryScalar(graph.Ge, label, 0)
	loss = b.Add(graph.Select{}, known, loss, zero)
	valid := b.BinaryScalar(graph.Lt, label, float64(classes))
	loss = b.Add(graph.Select{}, valid, loss, b.Scalar(dtype, math.NaN()))
	if !d.mean {
		return loss
	}
	all := make([]int, last)
	for i := range all {
		all[i] = i
	}
	count := b.BinaryScalar(graph.Max, b.Reduce(graph.Sum, b.Add(graph.Cast{To: dtype}, known), false, all...), 1)
	return b.Binary(graph.Div, b.Reduce(graph.Sum, loss, false, all...), count)
}

// shifted is x [..., n] minus the largest element of each row, so that exponentials do not overflow, and the shift,
// [...]. The maximum is rounded up: a rounded value has no gradient, and the shift needs none, because it does not
// change the result.
func shifted(b *graph.Builder, x *graph.Node) (low, by *graph.Node) {
	s := x.Type.Shape
	by = b.Unary(graph.Ceil, b.Reduce(graph.MaxOf, x, false, s.Rank()-1))
	return b.Binary(graph.Sub, x, perLine(b, by, s)), by
}

// perLine broadcasts v [...] over the rows of s, [..., n].
func perLine(b *graph.Builder, v *graph.Node, s graph.Shape) *graph.Node {
	return b.Broadcast(b.Reshape(v, s.With(s.Rank()-1, 1).Slice()...), s)
}

// classOf is a label as an integral number of type d.
func classOf(b *graph.Builder, label *graph.Node, d graph.DType) *graph.Node {
	if label.Type.DType.IsFloat() {
		label = b.Unary(graph.Floor, label)
	}
	if label.Type.DType != d {
		label = b.Add(graph.Cast{To: d}, label)
	}
	return label
}
