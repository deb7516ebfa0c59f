package gorgonia

import (
	"fmt"
	"unsafe"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Bind makes v the value of node n, whatever operation n has. A gradient bound to n stays.
func Bind(n *gorg.Node, v gorg.Value) error {
	if err := gorg.UnsafeLet(n, v); err == nil {
		return nil
	}
	// UnsafeLet refuses where the type that Gorgonia inferred for the node is not that of its value.
	return SetValue(n, v)
}

// SetValue makes v the value of node n without a look at v, which need not fit. A gradient bound to n stays. It allocates
// nothing.
func SetValue(n *gorg.Node, v gorg.Value) error {
	l, err := layout()
	if err != nil {
		return err
	}
	if d := dual(n, l); d != nil {
		return d.set("Value", v)
	}
	*(*gorg.Value)(unsafe.Add(unsafe.Pointer(n), l.bound)) = v
	return nil
}

// Unbind takes its value from node n, and its gradient.
func Unbind(n *gorg.Node) {
	if l, err := layout(); err == nil {
		*(*gorg.Value)(unsafe.Add(unsafe.Pointer(n), l.bound)) = nil
	}
}

// dual is the pair of value and gradient that is bound to n, or nil.
func dual(n *gorg.Node, l nodeLayout) *fields {
	v := nodeField[gorg.Value](n, l.bound)
	if v == nil {
		return nil
	}
	switch v.(type) {
	case tensor.Tensor, gorg.Scalar:
		return nil
	}
	f := fieldsOf(v)
	if f.err != nil || f.v.Type().Name() != "dualValue" {
		return nil
	}
	return f
}

// HasDual reports whether n holds a gradient beside its value.
func HasDual(n *gorg.Node) bool {
	l, err := layout()
	return err == nil && dual(n, l) != nil
}

// BindGrad makes t the gradient that n.Grad returns and solvers read. If accumulate is set and n holds a gradient
// already, t is added to it in place, as Gorgonia's machines do until a solver has zeroed it.
func BindGrad(n *gorg.Node, t *graph.Tensor, accumulate bool) error {
	if old := BoundGrad(n); old != nil && elems(old.Shape()) == t.Type.Shape.Elems() {
		if !accumulate {
			return Store(old, t)
		}
		return add(old, t)
	}
	v := n.Value()
	if v == nil {
		return fmt.Errorf("gradient of %s: the node has no value to hold it beside", nameOf(n))
	}
	l, err := layout()
	if err != nil {
		return err
	}
	g, err := newValue(v.Dtype(), v.Shape(), t)
	if err != nil {
		return fmt.Errorf("gradient of %s: %w", nameOf(n), err)
	}
	if d := dual(n, l); d != nil {
		return d.set("d", g)
	}
	gorg.WithGrad(g)(n)
	return nil
}

// GradMemory is the memory of the gradient that n holds, in row-major order; nil if it holds none of this type and
// order. What is added to it is accumulated, as BindGrad does it.
func GradMemory[T float32 | float64](n *gorg.Node) []T {
	d, ok := BoundGrad(n).(*tensor.Dense)
	if !ok || !contiguous(d) {
		return nil
	}
	var memory []T
	switch d.Dtype() {
	case tensor.Float32:
		memory, _ = any(d.Float32s()).([]T)
	case tensor.Float64:
		memory, _ = any(d.Float64s()).([]T)
	}
	return memory
}

// BoundGrad is the gradient that n holds beside its value, or nil. It allocates nothing once there is one.
func BoundGrad(n *gorg.Node) gorg.Value {
	g, err := n.Grad()
	if err != nil || g == nil {
		return nil
	}
	if d := n.Deriv(); d == nil || d.Value() != g {
		return g
	}
	// Without a gradient of its own, n.Grad gives the value of the derivative's node.
	l, err := layout()
	if err != nil {
		return nil
	}
	if d := dual(n, l); d != nil {
		return value[gorg.Value](d, "d")
	}
	return nil
}

// add sums t into v.
func add(v gorg.Value, t *graph.Tensor) error {
	switch v := v.(type) {
	case *gorg.F32:
		if src, ok := t.Data.([]float32); ok {
			*v += gorg.F32(src[0])
			return nil
		}
	case *gorg.F64:
		if src, ok := t.Data.([]float64); ok {
			*v += gorg.F64(src[0])
			return nil
		}
	case *tensor.Dense:
		if !contiguous(v) {
			break
		}
		switch src := t.Data.(type) {
		case []float32:
			if v.Dtype() == tensor.Float32 {
				accumulate(v.Float32s(), src)
				return nil
			}
		case []float64:
			if v.Dtype() == tensor.Float64 {
				accumulate(v.Float64s(), src)
				return nil
			}
		}
	}
	sum := graph.NewTensor(t.Type)
	if err := Load(sum, v); err != nil {
		return err
	}
	for i := range sum.Type.Shape.Elems() {
		sum.SetFloat(i, sum.Float(i)+t.Float(i))
	}
	return Store(v, sum)
}

func accumulate[T float32 | float64](dst, src []T) {
	for i, x := range src {
		dst[i] += x
	}
}
