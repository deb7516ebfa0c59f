package cuda_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref/cases"
)

var update = flag.Bool("update", false, "rewrite the files under testdata")

// TestGolden shows what is generated for some bodies: a change of it is seen in review.
func TestGolden(t *testing.T) {
	const f32 = graph.F32
	for _, tt := range []struct {
		name   string
		anchor graph.Anchor
		build  func(b *graph.Builder, in cases.Inputs)
	}{
		{"elementwise", graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			x := in(f32, 2048, 4096)
			h := b.Named(b.Unary(graph.GeluTanh, b.Binary(graph.Add, x, b.Broadcast(in(f32, 4096), x.Type.Shape))), "hidden")
			b.Output("", h)
			b.Output("", b.Add(graph.Cast{To: graph.BF16}, h))
		}},
		{"transposed", graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Binary(graph.Add, in(f32, 3, 100, 200), b.Transpose(in(f32, 3, 200, 100), 0, 2, 1)))
		}},
		{"segments", graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			rate := in(f32)
			for _, n := range []int{1000, 10, 77} {
				w := in(f32, n)
				b.Output("", b.Binary(graph.Sub, w, b.Binary(graph.Mul, in(f32, n), rate)))
			}
		}},
		{"layer_norm", graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			h := b.Unary(graph.GeluTanh, b.Binary(graph.Add, in(f32, 16384, 4096), in(f32, 16384, 4096)))
			b.Output("", b.Add(graph.LayerNorm{Eps: 1e-5}, h, in(f32, 4096), in(f32, 4096)))
		}},
		{"norm_backward", graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			x, dy := in(f32, 4096, 768), in(f32, 4096, 768)
			b.Output("", b.Reduce(graph.Sum, b.Binary(graph.Mul, x, dy), false, 0))
			mean := b.Reduce(graph.Mean, b.Binary(graph.Mul, x, dy), true, 1)
			b.Output("", b.Binary(graph.Sub, dy, b.Binary(graph.Mul, x, b.Broadcast(mean, x.Type.Shape))))
		}},
		{"columns", graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Unary(graph.Sqrt, b.Reduce(graph.Mean, b.Unary(graph.Square, in(f32, 16384, 4096)), false, 0)))
		}},
		{"softmax_long", graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
			b.Output("", b.Add(graph.Softmax{Axis: 1}, in(f32, 512, 50257)))
		}},
	} {
		op, types, err := cases.Bodied(tt.anchor, tt.build)
		if err != nil {
			t.Fatal(err)
		}
		var args, results []kernels.Operand
		for _, u := range types {
			args = append(args, kernels.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape)})
		}
		for _, o := range op.Body.Outputs {
			results = append(results, kernels.Operand{DType: o.Node.Type.DType, Layout: graph.Contiguous(o.Node.Type.Shape)})
		}
		k, err := kernels.Compile(op, args, results, kernels.Config{Chip: kernels.H200})
		if err != nil {
			t.Fatal(err)
		}
		got := k.Generated()
		for _, s := range k.Steps {
			got += fmt.Sprintf("\n// %s: %d blocks of %d threads, %d bytes of shared memory", s.Entry, s.Grid[0], s.Block, s.Shared)
		}
		got += "\n"
		file := filepath.Join("testdata", tt.name+".cu")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s has changed (-update shows how):\n%s", file, got)
		}
	}
}
