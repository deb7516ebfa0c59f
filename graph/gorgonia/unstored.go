package gorgonia

import (
	"fmt"
	"io"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// UnstoredTensor is the value of an inner node that no launch stores. The first call of any of its methods, those of
// tensor.Tensor, computes it, and from then on it holds that value: of the last run before, as far as weights have not been
// changed in place since. They may have been: a machine that trains keeps copies of them from its first run, and from
// each run after one whose inner values were read, so that only a value that is read for the first time in a later round,
// and after the solver's step, is that of weights after the step. A value of which no method has been called is that of
// whichever run was the last. Before a run that was started is waited for, or if its operations fail, methods panic;
// fusec.Machine.Value returns the error instead, and gives a plain value.
//
// A program that asserts that a value is a *tensor.Dense, or gives it to one of the few functions of the tensor package
// that take nothing else, such as tensor.Sum, has to name its node with fusec.WithValues.
type UnstoredTensor struct {
	tensor.Tensor // what was computed; its unexported methods are needed to be a tensor.Tensor
	get           func(found func(gorg.Value)) (gorg.Value, error)
}

// UnstoredScalar is [UnstoredTensor] for a node whose value is a single number: a gorgonia.Scalar.
type UnstoredScalar struct {
	gorg.Scalar
	get func(found func(gorg.Value)) (gorg.Value, error)
}

// Unstored is an [UnstoredTensor] or an [UnstoredScalar].
type Unstored interface {
	gorg.Value
	// Computed is the plain value, or why it cannot be computed.
	Computed() (gorg.Value, error)
}

// NewUnstored is a value for node n that get computes. Get tells found of a value that is new, before anybody else can ask
// for it.
func NewUnstored(n *gorg.Node, get func(found func(gorg.Value)) (gorg.Value, error)) Unstored {
	if Rank(n) == 0 {
		return &UnstoredScalar{Scalar: noScalar, get: get}
	}
	return &UnstoredTensor{Tensor: noTensor, get: get}
}

// Plain is v itself, or what it computes if it is [Unstored].
func Plain(v gorg.Value) (gorg.Value, error) {
	if u, ok := v.(Unstored); ok {
		return u.Computed()
	}
	return v, nil
}

var (
	_ Unstored      = (*UnstoredTensor)(nil)
	_ Unstored      = (*UnstoredScalar)(nil)
	_ tensor.Tensor = (*UnstoredTensor)(nil)
	_ tensor.Densor = (*UnstoredTensor)(nil)
)

// noTensor and noScalar are the values before they are computed. The engine is none of the tensor package's, so that its
// functions ask for the shape before they look at elements.
var (
	noTensor tensor.Tensor = func() *tensor.Dense {
		d := tensor.New(tensor.WithShape(1), tensor.WithBacking([]float64{0}))
		tensor.WithEngine(noEngine{})(d)
		return d
	}()
	noScalar gorg.Scalar = gorg.NewF64(0)
)

// noEngine computes nothing.
type noEngine struct{ tensor.Engine }

// AllocAccessible implements tensor.Engine.
func (noEngine) AllocAccessible() bool { return true }

// Computed implements [Unstored].
func (u *UnstoredTensor) Computed() (gorg.Value, error) {
	return u.get(func(v gorg.Value) { u.Tensor = v.(tensor.Tensor) })
}

// Computed implements [Unstored].
func (u *UnstoredScalar) Computed() (gorg.Value, error) {
	return u.get(func(v gorg.Value) { u.Scalar = v.(gorg.Scalar) })
}

// Value implements gorgonia.Valuer: it is the plain value.
func (u *UnstoredTensor) Value() gorg.Value { return computedOrPanic(u.Computed()) }

// Value implements gorgonia.Valuer: it is the plain value.
func (u *UnstoredScalar) Value() gorg.Value { return computedOrPanic(u.Computed()) }

// computedOrPanic is v: there is no way to return the error.
func computedOrPanic(v gorg.Value, err error) gorg.Value {
	if err != nil {
		panic("fusec: " + err.Error())
	}
	return v
}

// Dense implements tensor.Densor: it is the plain value.
func (u *UnstoredTensor) Dense() *tensor.Dense { return u.Value().(*tensor.Dense) }

// Shape implements tensor.Tensor.
func (u *UnstoredTensor) Shape() tensor.Shape { return u.Dense().Shape() }

// Strides implements tensor.Tensor.
func (u *UnstoredTensor) Strides() []int { return u.Dense().Strides() }

// Dtype implements tensor.Tensor.
func (u *UnstoredTensor) Dtype() tensor.Dtype { return u.Dense().Dtype() }

// Dims implements tensor.Tensor.
func (u *UnstoredTensor) Dims() int { return u.Dense().Dims() }

// Size implements tensor.Tensor.
func (u *UnstoredTensor) Size() int { return u.Dense().Size() }

// DataSize implements tensor.Tensor.
func (u *UnstoredTensor) DataSize() int { return u.Dense().DataSize() }

// RequiresIterator implements tensor.Tensor.
func (u *UnstoredTensor) RequiresIterator() bool { return u.Dense().RequiresIterator() }

// Iterator implements tensor.Tensor.
func (u *UnstoredTensor) Iterator() tensor.Iterator { return u.Dense().Iterator() }

// DataOrder implements tensor.Tensor.
func (u *UnstoredTensor) DataOrder() tensor.DataOrder { return u.Dense().DataOrder() }

// Slice implements tensor.Tensor.
func (u *UnstoredTensor) Slice(s ...tensor.Slice) (tensor.View, error) { return u.Dense().Slice(s...) }

// At implements tensor.Tensor.
func (u *UnstoredTensor) At(at ...int) (any, error) { return u.Dense().At(at...) }

// SetAt implements tensor.Tensor.
func (u *UnstoredTensor) SetAt(v any, at ...int) error { return u.Dense().SetAt(v, at...) }

// Reshape implements tensor.Tensor.
func (u *UnstoredTensor) Reshape(dims ...int) error { return u.Dense().Reshape(dims...) }

// T implements tensor.Tensor.
func (u *UnstoredTensor) T(axes ...int) error { return u.Dense().T(axes...) }

// UT implements tensor.Tensor.
func (u *UnstoredTensor) UT() { u.Dense().UT() }

// Transpose implements tensor.Tensor.
func (u *UnstoredTensor) Transpose() error { return u.Dense().Transpose() }

// Apply implements tensor.Tensor.
func (u *UnstoredTensor) Apply(f any, opts ...tensor.FuncOpt) (tensor.Tensor, error) {
	return u.Dense().Apply(f, opts...)
}

// Zero implements tensor.Tensor.
func (u *UnstoredTensor) Zero() { u.Dense().Zero() }

// Memset implements tensor.Tensor.
func (u *UnstoredTensor) Memset(v any) error { return u.Dense().Memset(v) }

// Data implements tensor.Tensor.
func (u *UnstoredTensor) Data() any { return u.Dense().Data() }

// Eq implements tensor.Tensor.
func (u *UnstoredTensor) Eq(other any) bool { return u.Dense().Eq(other) }

// Clone implements tensor.Tensor.
func (u *UnstoredTensor) Clone() any { return u.Dense().Clone() }

// IsScalar implements tensor.Tensor.
func (u *UnstoredTensor) IsScalar() bool { return u.Dense().IsScalar() }

// ScalarValue implements tensor.Tensor.
func (u *UnstoredTensor) ScalarValue() any { return u.Dense().ScalarValue() }

// Engine implements tensor.Tensor.
func (u *UnstoredTensor) Engine() tensor.Engine { return u.Dense().Engine() }

// IsNativelyAccessible implements tensor.Tensor.
func (u *UnstoredTensor) IsNativelyAccessible() bool { return u.Dense().IsNativelyAccessible() }

// IsManuallyManaged implements tensor.Tensor.
func (u *UnstoredTensor) IsManuallyManaged() bool { return u.Dense().IsManuallyManaged() }

// MemSize implements tensor.Tensor.
func (u *UnstoredTensor) MemSize() uintptr { return u.Dense().MemSize() }

// Uintptr implements tensor.Tensor.
func (u *UnstoredTensor) Uintptr() uintptr { return u.Dense().Uintptr() }

// Format implements tensor.Tensor.
func (u *UnstoredTensor) Format(s fmt.State, verb rune) { u.Dense().Format(s, verb) }

// String implements tensor.Tensor.
func (u *UnstoredTensor) String() string { return u.Dense().String() }

// WriteNpy implements tensor.Tensor.
func (u *UnstoredTensor) WriteNpy(w io.Writer) error { return u.Dense().WriteNpy(w) }

// ReadNpy implements tensor.Tensor.
func (u *UnstoredTensor) ReadNpy(r io.Reader) error { return u.Dense().ReadNpy(r) }

// GobEncode implements tensor.Tensor.
func (u *UnstoredTensor) GobEncode() ([]byte, error) { return u.Dense().GobEncode() }

// GobDecode implements tensor.Tensor.
func (u *UnstoredTensor) GobDecode(data []byte) error { return u.Dense().GobDecode(data) }

// Shape implements gorgonia.Value.
func (u *UnstoredScalar) Shape() tensor.Shape { return u.Value().Shape() }

// Size implements gorgonia.Value.
func (u *UnstoredScalar) Size() int { return u.Value().Size() }

// Data implements gorgonia.Value.
func (u *UnstoredScalar) Data() any { return u.Value().Data() }

// Dtype implements gorgonia.Value.
func (u *UnstoredScalar) Dtype() tensor.Dtype { return u.Value().Dtype() }

// MemSize implements gorgonia.Value.
func (u *UnstoredScalar) MemSize() uintptr { return u.Value().MemSize() }

// Uintptr implements gorgonia.Value.
func (u *UnstoredScalar) Uintptr() uintptr { return u.Value().Uintptr() }

// Format implements gorgonia.Value.
func (u *UnstoredScalar) Format(s fmt.State, verb rune) { u.Value().Format(s, verb) }

// String is the number.
func (u *UnstoredScalar) String() string { return fmt.Sprint(u.Value()) }

// Clone implements gorgonia.CloneErrorer: the copy is a plain value.
func (u *UnstoredScalar) Clone() (any, error) {
	v, err := u.Computed()
	if err != nil {
		return nil, err
	}
	return gorg.CloneValue(v)
}
