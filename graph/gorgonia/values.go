package gorgonia

import (
	"fmt"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// DTypeOf is the element type that stands for one of Gorgonia's. Gorgonia's int is I64 and its byte I32.
func DTypeOf(d tensor.Dtype) (graph.DType, error) {
	switch d {
	case tensor.Float32:
		return graph.F32, nil
	case tensor.Float64:
		return graph.F64, nil
	case tensor.Int32, tensor.Byte:
		return graph.I32, nil
	case tensor.Int, tensor.Int64:
		return graph.I64, nil
	case tensor.Bool:
		return graph.Bool, nil
	}
	return graph.Invalid, fmt.Errorf("element type %v is not supported (want float32, float64, int, int32, int64, byte or bool)", d)
}

// dtypeFor is the inverse of DTypeOf for types that have a Gorgonia type of their own.
func dtypeFor(d graph.DType) tensor.Dtype {
	switch d {
	case graph.F32:
		return tensor.Float32
	case graph.F64:
		return tensor.Float64
	case graph.I32:
		return tensor.Int32
	case graph.I64:
		return tensor.Int
	}
	return tensor.Bool
}

// shapeOf checks a shape of Gorgonia's.
func shapeOf(s tensor.Shape) (graph.Shape, error) {
	if len(s) > graph.MaxRank {
		return graph.Shape{}, fmt.Errorf("shape %v has more than %d axes", s, graph.MaxRank)
	}
	r := graph.ShapeOf(s...)
	return r, r.Check()
}

// ToTensor copies a value: a scalar, or a dense tensor of whatever strides and order.
func ToTensor(v gorg.Value) (*graph.Tensor, error) {
	if v == nil {
		return nil, fmt.Errorf("no value")
	}
	d, err := DTypeOf(v.Dtype())
	if err != nil {
		return nil, err
	}
	s, err := shapeOf(v.Shape())
	if err != nil {
		return nil, err
	}
	t := graph.NewTensor(graph.Type{DType: d, Shape: s})
	return t, Load(t, v)
}

// Alias gives v's elements without copying, if they lie in row-major order one after the other and have a Go type that
// graph.Tensor can hold. Whoever writes to the one writes to the other.
func Alias(v gorg.Value) (*graph.Tensor, bool) {
	d, ok := v.(*tensor.Dense)
	if !ok || !contiguous(d) {
		return nil, false
	}
	s, err := shapeOf(d.Shape())
	if err != nil {
		return nil, false
	}
	t := &graph.Tensor{Type: graph.Type{Shape: s}}
	switch d.Dtype() {
	case tensor.Float32:
		t.Type.DType, t.Data = graph.F32, d.Float32s()
	case tensor.Float64:
		t.Type.DType, t.Data = graph.F64, d.Float64s()
	case tensor.Int32:
		t.Type.DType, t.Data = graph.I32, d.Int32s()
	case tensor.Int64:
		t.Type.DType, t.Data = graph.I64, d.Int64s()
	case tensor.Bool:
		t.Type.DType, t.Data = graph.Bool, d.Bools()
	default:
		return nil, false
	}
	return t, true
}

// contiguous reports whether a dense tensor's elements lie in row-major order without gaps.
func contiguous(d *tensor.Dense) bool {
	s, st := d.Shape(), d.Strides()
	if len(s) == 0 {
		return true
	}
	if len(st) != len(s) {
		return len(st) == 1 && st[0] == 1
	}
	n := 1
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] != 1 && st[i] != n {
			return false
		}
		n *= s[i]
	}
	return true
}

// walk visits the elements of a dense tensor in row-major order: i counts them, at is where they lie.
func walk(d *tensor.Dense, visit func(i, at int)) {
	s, st := d.Shape(), d.Strides()
	if len(st) != len(s) { // a vector in two dimensions with one stride
		for i := range s.TotalSize() {
			visit(i, i*st[0])
		}
		return
	}
	index := make([]int, len(s))
	at := 0
	for i := range s.TotalSize() {
		visit(i, at)
		for a := len(s) - 1; a >= 0; a-- {
			index[a]++
			at += st[a]
			if index[a] < s[a] {
				break
			}
			at -= index[a] * st[a]
			index[a] = 0
		}
	}
}

// elems is the number of elements of a shape; that of a scalar is 1.
func elems(s tensor.Shape) int {
	n := 1
	for _, d := range s {
		n *= d
	}
	return n
}

// Load copies v's elements into t, which has as many of the same type; the shapes may differ. It allocates nothing if
// v's elements are contiguous.
func Load(t *graph.Tensor, v gorg.Value) error {
	if v == nil {
		return fmt.Errorf("no value")
	}
	d, err := DTypeOf(v.Dtype())
	if err != nil {
		return err
	}
	if n := elems(v.Shape()); d != t.Type.DType || n != t.Type.Shape.Elems() {
		return fmt.Errorf("value of type %v%v where %v is wanted", d, v.Shape(), t.Type)
	}
	switch v := v.(type) {
	case gorg.Valuer:
		return Load(t, v.Value())
	case *gorg.F32:
		t.Data.([]float32)[0] = float32(*v)
	case *gorg.F64:
		t.Data.([]float64)[0] = float64(*v)
	case *gorg.I:
		t.Data.([]int64)[0] = int64(*v)
	case *gorg.I64:
		t.Data.([]int64)[0] = int64(*v)
	case *gorg.I32:
		t.Data.([]int32)[0] = int32(*v)
	case *gorg.U8:
		t.Data.([]int32)[0] = int32(*v)
	case *gorg.B:
		t.Data.([]bool)[0] = bool(*v)
	case *tensor.Dense:
		loadDense(t, v)
	case tensor.Densor:
		loadDense(t, v.Dense())
	default:
		return fmt.Errorf("value of Go type %T is not supported", v)
	}
	return nil
}

func loadDense(t *graph.Tensor, d *tensor.Dense) {
	switch dst := t.Data.(type) {
	case []float32:
		pull(dst, d.Float32s(), d)
	case []float64:
		pull(dst, d.Float64s(), d)
	case []bool:
		pull(dst, d.Bools(), d)
	case []int32:
		if d.Dtype() == tensor.Byte {
			walk(d, func(i, at int) { dst[i] = int32(d.Uint8s()[at]) })
			return
		}
		pull(dst, d.Int32s(), d)
	case []int64:
		if d.Dtype() == tensor.Int64 {
			pull(dst, d.Int64s(), d)
			return
		}
		src := d.Ints()
		if contiguous(d) {
			for i := range dst {
				dst[i] = int64(src[i])
			}
			return
		}
		walk(d, func(i, at int) { dst[i] = int64(src[at]) })
	}
}

func pull[T any](dst, src []T, d *tensor.Dense) {
	if contiguous(d) {
		copy(dst, src)
		return
	}
	walk(d, func(i, at int) { dst[i] = src[at] })
}

// Store copies t's elements into v, which has as many of the same type; the shapes may differ. It allocates nothing if
// v's elements are contiguous.
func Store(v gorg.Value, t *graph.Tensor) error {
	if v == nil {
		return fmt.Errorf("no value")
	}
	d, err := DTypeOf(v.Dtype())
	if err != nil {
		return err
	}
	if n := elems(v.Shape()); d != t.Type.DType || n != t.Type.Shape.Elems() {
		return fmt.Errorf("value of type %v does not fit into %v%v", t.Type, d, v.Shape())
	}
	switch v := v.(type) {
	case *gorg.F32:
		*v = gorg.F32(t.Data.([]float32)[0])
	case *gorg.F64:
		*v = gorg.F64(t.Data.([]float64)[0])
	case *gorg.I:
		*v = gorg.I(t.Data.([]int64)[0])
	case *gorg.I64:
		*v = gorg.I64(t.Data.([]int64)[0])
	case *gorg.I32:
		*v = gorg.I32(t.Data.([]int32)[0])
	case *gorg.U8:
		*v = gorg.U8(t.Data.([]int32)[0])
	case *gorg.B:
		*v = gorg.B(t.Data.([]bool)[0])
	case *tensor.Dense:
		storeDense(v, t)
	default:
		return fmt.Errorf("value of Go type %T is not supported", v)
	}
	return nil
}

func storeDense(d *tensor.Dense, t *graph.Tensor) {
	switch src := t.Data.(type) {
	case []float32:
		push(d.Float32s(), src, d)
	case []float64:
		push(d.Float64s(), src, d)
	case []bool:
		push(d.Bools(), src, d)
	case []int32:
		if d.Dtype() == tensor.Byte {
			walk(d, func(i, at int) { d.Uint8s()[at] = uint8(src[i]) })
			return
		}
		push(d.Int32s(), src, d)
	case []int64:
		if d.Dtype() == tensor.Int64 {
			push(d.Int64s(), src, d)
			return
		}
		walk(d, func(i, at int) { d.Ints()[at] = int(src[i]) })
	}
}

func push[T any](dst, src []T, d *tensor.Dense) {
	if contiguous(d) {
		copy(dst, src)
		return
	}
	walk(d, func(i, at int) { dst[at] = src[i] })
}

// FromTensor makes a fresh value of t: a scalar value for rank 0, else a dense tensor.
func FromTensor(t *graph.Tensor) gorg.Value {
	v, err := newValue(dtypeFor(t.Type.DType), t.Type.Shape.Slice(), t)
	if err != nil {
		panic("gorgonia: " + err.Error()) // the types were chosen to fit
	}
	return v
}

// FromTensorLike is [FromTensor] with the element type of node n where several of Gorgonia's have t's.
func FromTensorLike(n *gorg.Node, t *graph.Tensor) (gorg.Value, error) {
	d, err := nodeDtype(n)
	if err != nil {
		return nil, err
	}
	if of, err := DTypeOf(d); err != nil || of != t.Type.DType {
		d = dtypeFor(t.Type.DType)
	}
	return newValue(d, t.Type.Shape.Slice(), t)
}

// NewValue makes a fresh value for node n of t, which has n's number of elements and element type.
func NewValue(n *gorg.Node, t *graph.Tensor) (gorg.Value, error) {
	d, err := nodeDtype(n)
	if err != nil {
		return nil, err
	}
	v, err := newValue(d, n.Shape(), t)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", n, err)
	}
	return v, nil
}

func newValue(d tensor.Dtype, s tensor.Shape, t *graph.Tensor) (gorg.Value, error) {
	var v gorg.Value
	if len(s) > 0 {
		v = tensor.New(tensor.Of(d), tensor.WithShape(s...))
	} else {
		switch d {
		case tensor.Float32:
			v = gorg.NewF32(0)
		case tensor.Float64:
			v = gorg.NewF64(0)
		case tensor.Int:
			v = gorg.NewI(0)
		case tensor.Int64:
			v = gorg.NewI64(0)
		case tensor.Int32:
			v = gorg.NewI32(0)
		case tensor.Byte:
			v = gorg.NewU8(0)
		default:
			v = gorg.NewB(false)
		}
	}
	return v, Store(v, t)
}

// nodeDtype is n's element type, for which n.Dtype panics where Gorgonia did not infer it. That is so for operations that
// keep the type of their operand.
func nodeDtype(n *gorg.Node) (tensor.Dtype, error) {
	switch t := n.Type().(type) {
	case tensor.Dtype:
		return t, nil
	case gorg.TensorType:
		if d, ok := t.Of.(tensor.Dtype); ok {
			return d, nil
		}
	}
	l, err := layout()
	if err != nil {
		return tensor.Dtype{}, err
	}
	if c := nodeField[gorg.Nodes](n, l.children); len(c) > 0 {
		return nodeDtype(c[0])
	}
	return tensor.Dtype{}, fmt.Errorf("node %s has no element type", originOf(n).Name)
}
