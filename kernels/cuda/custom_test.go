package cuda_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// registered registers a custom function of one operand for a test of this process.
func registered(t *testing.T, name graph.CustomFn, body string) graph.CustomFn {
	t.Helper()
	if name.Info() == nil { // with -count the test runs again
		bodies := map[string]string{}
		if body != "" {
			bodies[cuda.Name] = body
		}
		err := graph.RegisterCustom(graph.CustomInfo{Name: name, Operands: 1, Bodies: bodies,
			Eval: func(x []float64) float64 { return x[0] }})
		if err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// compiledAlone is the kernel of a custom function of one operand.
func compiledAlone(f graph.CustomFn) (*cuda.Kernel, error) {
	o := []cuda.Operand{{DType: graph.F32, Layout: graph.Contiguous(graph.ShapeOf(5, 7))}}
	return cuda.Compile(graph.Custom{Fn: f}, o, o, cuda.Config{Chip: cuda.H200})
}

// TestCustom: a function is defined once in a source, and one without a body is refused with the reason.
func TestCustom(t *testing.T) {
	f, types := fused(t, graph.AnchorNone, func(b *graph.Builder, in inputs) {
		x := b.Custom(graphtest.Softsign, in(graph.F32, 33))
		b.Output("y", b.Custom(graphtest.Blend, b.Custom(graphtest.Softsign, x), x, b.Scalar(graph.F32, 0.5)))
		b.Output("z", b.Custom(graphtest.Softsign, in(graph.F32, 7)))
	})
	var operands [2][]cuda.Operand
	for _, u := range types {
		operands[0] = append(operands[0], cuda.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape)})
	}
	for _, o := range f.Body.Outputs {
		operands[1] = append(operands[1], cuda.Operand{DType: o.Node.Type.DType, Layout: graph.Contiguous(o.Node.Type.Shape)})
	}
	k, err := cuda.Compile(f, operands[0], operands[1], cuda.Config{Chip: cuda.H200})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"softsign", "blend"} {
		if n := strings.Count(k.Source, "DEVICE T custom_test_"+name+"("); n != 1 {
			t.Errorf("%s is defined %d times in\n%s", name, n, k.Generated())
		}
	}
	const want = "the custom function test_go_only has no body for CUDA"
	if _, err := compiledAlone(registered(t, "test_go_only", "")); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestCustomMistakes: messages of the compiler give the function and the line of its body.
func TestCustomMistakes(t *testing.T) {
	k, err := compiledAlone(registered(t, "test_mistake", "const T a = x0;\nreturn b;"))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = nvrtctest.Open(t).Compile(k.Source, cuda.H200)
	if err == nil || !strings.Contains(err.Error(), "custom function test_mistake(2): error") {
		t.Errorf("error %v", err)
	}
}
