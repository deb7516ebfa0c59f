package graph_test

import (
	"fmt"
	"math"
	"testing"

	"fusec/graph"
)

var allDTypes = append(graph.DTypes(), graph.StoredTypes()...)

func TestTensorOfEveryType(t *testing.T) {
	for _, d := range allDTypes {
		x := graph.Filled(graph.TypeOf(d, 2, 2), 1)
		if fmt.Sprint(x.Floats()) != "[1 1 1 1]" {
			t.Errorf("%v holds %v", d, x.Floats())
		}
		y := x.Clone()
		if !x.Equal(y) {
			t.Errorf("%v: a clone differs", d)
		}
		y.SetFloat(3, 0)
		if x.Equal(y) || x.Float(3) != 1 || y.Float(3) != 0 {
			t.Errorf("%v: a clone shares its data, or a difference is not seen", d)
		}
		x.CopyFrom(y)
		if !x.Equal(y) {
			t.Errorf("%v: CopyFrom left %v", d, x.Floats())
		}
		if x.Equal(graph.NewTensor(graph.TypeOf(d, 4))) {
			t.Errorf("%v: tensors of other shapes are equal", d)
		}
		if s := graph.Scalar(d, 1); s.Type != graph.TypeOf(d) || s.Float(0) != 1 {
			t.Errorf("scalar %v", s)
		}
	}
}

func TestTensorBits(t *testing.T) {
	nan, zero := graph.Scalar(graph.F64, math.NaN()), graph.Scalar(graph.F32, 0)
	if !nan.Equal(nan.Clone()) || zero.Equal(graph.Scalar(graph.F32, math.Copysign(0, -1))) {
		t.Error("Equal does not compare bits")
	}
}

func TestTensorOf(t *testing.T) {
	x := tensor(t, []int32{1, 2, 3}, 3, 1)
	if x.Type != graph.TypeOf(graph.I32, 3, 1) || x.Float(2) != 3 {
		t.Errorf("got %v", x)
	}
	for _, dims := range [][]int{{2}, {-3, -1}, {1, 1, 1, 1, 1, 1, 1, 1, 3}} {
		if _, err := graph.TensorOf([]int32{1, 2, 3}, dims...); err == nil {
			t.Errorf("3 values for %v", dims)
		}
	}
	if graph.DTypeOf[bool]() != graph.Bool || graph.DTypeOf[int64]() != graph.I64 || graph.DTypeOf[float64]() != graph.F64 {
		t.Error("wrong element type")
	}
}

func TestTensorWithoutType(t *testing.T) {
	x := &graph.Tensor{}
	x.SetFloat(0, 1)
	if x.Float(0) != 0 {
		t.Error("a tensor without data holds a value")
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	graph.NewTensor(graph.Type{})
}

// TestCloneLarge: what goroutines copy in parts is whole, also where the last part is not.
func TestCloneLarge(t *testing.T) {
	x := graph.NewTensor(graph.TypeOf(graph.U8, 3<<26-5))
	b := x.Bytes()
	for i := range b {
		b[i] = byte(i>>26 ^ i>>8 ^ i)
	}
	y := x.Clone()
	if !y.Equal(x) {
		t.Error("a clone differs")
	}
	if b[0]++; y.Equal(x) {
		t.Error("the memory is shared")
	}
}
