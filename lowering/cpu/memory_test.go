package cpu_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/memlimit"
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
			b.Output("z", b.MatMul(b.Named(b.MatMul(h, h, false, false), "scores"), b.Input("w", graph.TypeOf(graph.F32, n, 3)), false, false))
		}, "scores"},
		"outputs": {func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.F32, n, 1))
			b.Output("y", b.Named(b.Unary(graph.Exp, b.Broadcast(x, graph.ShapeOf(n, n))), "scores"))
		}, "scores"},
	} {
		b := graph.NewBuilder(name)
		c.build(b)
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
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
