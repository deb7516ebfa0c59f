package cuda_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/lowering"
)

// TestMeasure runs a program by the device's clock: updates are made, outputs and inputs are not copied.
func TestMeasure(t *testing.T) {
	f32 := graph.TypeOf(graph.F32, 300)
	g := built(t, func(b *graph.Builder) {
		x, s := b.Input("x", f32), b.State("s", f32)
		next := b.Binary(graph.Add, s, x)
		b.Update(s, next)
		b.Output("y", b.BinaryScalar(graph.Mul, next, 2))
	})
	in := map[string]*graph.Tensor{"x": graph.Filled(f32, 3), "s": graph.NewTensor(f32)}
	e, p := compiled(t, g, in)
	if _, err := e.Measure(1); err == nil || !strings.Contains(err.Error(), "has to run once") {
		t.Errorf("error %v before the first run", err)
	}
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	times, err := e.Measure(4)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range times {
		if len(times) != 4 || d <= 0 {
			t.Errorf("times %v", times)
		}
	}
	y := p.Outputs[0].Buffer
	if v := e.Output(y).Float(7); v != 6 {
		t.Errorf("the output is %v: it was copied", v)
	}
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	if v := e.Output(y).Float(7); v != 36 {
		t.Errorf("the output is %v after 6 runs", v)
	}
}

// TestMeasureReports keeps the reports of launches that may report.
func TestMeasureReports(t *testing.T) {
	x, at := graph.TypeOf(graph.F32, 4, 3), graph.TypeOf(graph.I64, 2)
	g := built(t, func(b *graph.Builder) {
		b.Output("y", b.Add(graph.Gather{}, b.Input("x", x), b.Input("at", at)))
	})
	in := map[string]*graph.Tensor{"x": graph.NewTensor(x), "at": graph.Filled(at, 3)}
	e, _ := compiled(t, g, in)
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Measure(2); err != nil {
		t.Fatal(err)
	}
}

// TestInspect compares the program's account of memory and copies with the driver's.
func TestInspect(t *testing.T) {
	x, w := graph.TypeOf(graph.F32, 64, 48), graph.TypeOf(graph.F32, 48, 40)
	g := built(t, func(b *graph.Builder) {
		b.Output("y", b.Add(graph.Softmax{Axis: 1}, b.MatMul(b.Input("x", x), b.Param("w", w), false, false)))
	})
	in := map[string]*graph.Tensor{"x": graph.NewTensor(x), "w": graph.NewTensor(w)}
	e, p := compiled(t, g, in)
	e.Profile(true)
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	r, err := e.Inspect()
	if err != nil {
		t.Fatal(err)
	}
	if r.CopiesIn != 4*(64*48+48*40) || r.CopiesOut != 4*64*40 || r.Pinned < r.CopiesIn+r.CopiesOut {
		t.Errorf("%d bytes copied in, %d out, %d pinned", r.CopiesIn, r.CopiesOut, r.Pinned)
	}
	if r.Used < e.Memory().Bytes() || r.Taken < r.Used || r.Device == "" || len(r.Kernels) != len(p.Launches) {
		t.Errorf("%+v", r)
	}
	for i, list := range r.Kernels {
		for _, k := range list {
			if k.Entry == "" || k.Blocks < 1 || k.Threads < 1 || k.Resident < 1 ||
				!(k.Occupancy > 0 && k.Occupancy <= 1) {
				t.Errorf("launch %d: %+v", i, k)
			}
		}
		if len(list) == 0 {
			t.Errorf("launch %d has no kernel", i)
		}
	}
	spans := e.Timeline()
	if len(spans) != 2+len(p.Launches) || spans[0].What != lowering.SpanCopyIn ||
		spans[len(spans)-1].What != lowering.SpanCopyOut {
		t.Fatalf("spans %+v", spans)
	}
	for i, s := range spans[1:] {
		if before := spans[i]; s.Start < before.Start+before.Length {
			t.Errorf("%+v begins before %+v ends", s, before)
		}
	}
}
