package cpu_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/memlimit"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// TestTooLarge: values of terabytes are refused by the name of the launch that takes the most, and not allocated.
func TestTooLarge(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("how much memory there is is not known")
	}
	const n = 1 << 20 // 4 TiB for n×n numbers of f32
	for name, c := range map[string]struct {
		build func(b *graph.Builder)
		want  string
	}{
		"values": {func(b *graph.Builder) {
			x, y := b.Input("x", graph.TypeOf(graph.F32, n, 1)), b.Input("y", graph.TypeOf(graph.F32, 1, n))
			h := b.MatMul(x, y, false, false)
			b.Output("z", b.MatMul(b.Named(b.MatMul(h, h, false, false), "scores"), b.Input("w", graph.TypeOf(graph.F32, n, 3)), false,
				false))
		}, "scores"},
		"outputs": {func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.F32, n, 1))
			b.Output("y", b.Named(b.Unary(graph.Exp, b.Broadcast(x, graph.ShapeOf(n, n))), "scores"))
		}, "scores"},
	} {
		b := graph.NewBuilder(name)
		c.build(b)
		g := graphtest.Graph(t, b)
		d := cpu.New(cpu.Workers(1))
		e, err := d.Compile(lowered(t, g, d))
		if err == nil {
			e.Close()
		}
		if tooLarge := (*memlimit.Error)(nil); !errors.As(err, &tooLarge) || tooLarge.Need < 4*n*n {
			t.Errorf("%s: error %v", name, err)
			continue
		}
		for _, want := range []string{c.want, "launch ", "takes the most", "a smaller batch", "MemoryBudget"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want one with %q", name, err, want)
			}
		}
	}
}

// TestBindOutput: runs write an output into memory that was bound to it, and a buffer of another role is not bound.
func TestBindOutput(t *testing.T) {
	b := graph.NewBuilder("output")
	typ := graph.TypeOf(graph.F32, 2)
	x := b.Input("x", typ)
	b.Output("y", b.Unary(graph.Exp, x))
	g := graphtest.Graph(t, b)
	d := cpu.New(cpu.Workers(1))
	p := lowered(t, g, d)
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	o := lowering.CloseWhenDropped(e, p)
	defer o.Close()
	in, out := graph.NewTensor(typ), graph.NewTensor(typ)
	input, output := p.Sources(lowering.Input)[0].Buffer, p.Outputs[0].Buffer
	if err := o.Bind(input, in); err != nil {
		t.Fatal(err)
	}
	if ok, err := o.BindOutput(output, out); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := o.Run(); err != nil || out.Float(1) != 1 || o.Output(output) != out {
		t.Errorf("%v, %v", out.Data, err)
	}
	if ok, err := o.BindOutput(input, out); ok || err != nil {
		t.Errorf("an input was bound as an output: %v, %v", ok, err)
	}
	for want, bad := range map[string]*graph.Tensor{"no memory": nil, "of type f32[]": graph.Scalar(graph.F32, 0)} {
		if _, err := o.BindOutput(output, bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, not %s", err, want)
		}
	}
	if ok, err := (lowering.ExecutableDefaults{}).BindOutput(output, out); ok || err != nil {
		t.Errorf("by default %v, %v", ok, err)
	}
}
