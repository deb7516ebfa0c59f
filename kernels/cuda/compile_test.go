package cuda_test

import (
	"fmt"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// normOp is a norm whose result is rounded.
func normOp(t *testing.T) (op graph.Op, args, results []cuda.Operand) {
	t.Helper()
	return bodied(t, graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
		b.Output("", b.CastTo(graph.BF16, b.Add(graph.RMSNorm{Eps: 1e-5}, in(graph.F32, 1, 4096), in(graph.F32, 4096))))
	})
}

// bodied is a fusion and its operands, which are contiguous.
func bodied(t *testing.T, anchor graph.Anchor, write func(*graph.Builder, cases.Inputs)) (op graph.Op, args,
	results []cuda.Operand) {
	t.Helper()
	op, types, err := cases.Bodied(anchor, write)
	if err != nil {
		t.Fatal(err)
	}
	made, err := graph.InfoOf(op).Infer(op, types)
	if err != nil {
		t.Fatal(err)
	}
	return op, rowMajor(types), rowMajor(made)
}

// TestEarly: on Hopper all steps of a kernel begin before those before them have ended, unless they exchange something or wait by
// themselves. Kernels whose blocks take much shared memory do so if they are told to.
func TestEarly(t *testing.T) {
	op, args, results := normOp(t)
	for _, c := range []struct {
		cfg  cuda.Config
		want bool
	}{
		{cuda.Config{Chip: cuda.H200}, true},
		{cuda.Config{Chip: cuda.H200, Portable: true}, false},
		{cuda.Config{Chip: cuda.ChipOf(80)}, false},
		{cuda.Config{Chip: cuda.ChipOf(100)}, false},
	} {
		k, err := cuda.Compile(op, args, results, c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range k.Steps {
			if s.Early != c.want || strings.HasPrefix(k.Source, cuda.EarlyText) != c.want {
				t.Errorf("%+v: step %s: %v", c.cfg, s.Entry, s.Early)
			}
		}
	}
	cfg := cuda.Config{Chip: cuda.H200}
	for name, k := range map[string]*cuda.Kernel{
		"a fill":          {Steps: []cuda.Step{{Bytes: 4}}},
		"waits by itself": {Source: "x", Steps: []cuda.Step{{Entry: "a"}, {Entry: "b", Early: true}}},
		"exchanges":       {Source: "x", Steps: []cuda.Step{{Entry: "a"}, {Exchange: &cuda.Exchange{}}}},
	} {
		if cfg.StartEarly(k); k.Steps[0].Early || strings.HasPrefix(k.Source, cuda.EarlyText) {
			t.Errorf("%s: %+v", name, k)
		}
	}
	k := &cuda.Kernel{Source: "x", Steps: []cuda.Step{{Entry: "a"}, {Bytes: 4}, {Entry: "b"}}}
	if cfg.StartEarly(k); !k.Steps[0].Early || k.Steps[1].Early || !k.Steps[2].Early {
		t.Errorf("with a fill: %+v", k.Steps)
	}
	for _, large := range []bool{false, true} {
		k := &cuda.Kernel{Source: "x", Steps: []cuda.Step{{Entry: "a", Shared: 200 << 10}, {Entry: "b"}}}
		cfg.EarlyLarge = large
		cfg.StartEarly(k)
		if k.Steps[0].Early != large || k.Steps[1].Early != large || strings.Contains(k.Source, "FUSEC_HOLDS") != large {
			t.Errorf("large blocks early %v: %+v", large, k)
		}
	}
}

// TestEarlyWaits: the compiler moves no load of a launch that begins early before the wait.
func TestEarlyWaits(t *testing.T) {
	compiler := nvrtctest.Open(t)
	op, args, results := normOp(t)
	k, err := cuda.Compile(op, args, results, cuda.Config{Chip: cuda.H200})
	if err != nil {
		t.Fatal(err)
	}
	image, _, err := compiler.Compile(k.Source, cuda.H200)
	if err != nil {
		t.Fatal(err)
	}
	code, err := compiler.Disassemble(image)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range code {
		before, after, found := strings.Cut(text, "ACQBULK")
		if !found || strings.Contains(before, "LDG") || !strings.Contains(after, "LDG") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// TestEarlyLargeWaits: a product on Hopper's own instructions prepares its barriers before it waits, and then reads, by the copy
// engine and by threads, before it lets the next launch begin.
func TestEarlyLargeWaits(t *testing.T) {
	op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		y := b.MatMul(in(graph.BF16, 8192, 768), in(graph.BF16, 768, 768), false, false)
		b.Output("", b.Binary(graph.Add, y, in(graph.F32, 8192, 768)))
	})
	results := rowMajor([]graph.Type{graph.TypeOf(graph.F32, 8192, 768)})
	k, err := cuda.Compile(op, rowMajor(types), results, cuda.Config{Chip: cuda.H200, Precision: cuda.BF16, EarlyLarge: true})
	if err != nil {
		t.Fatal(err)
	}
	compiler := nvrtctest.Open(t)
	image, _, err := compiler.Compile(k.Source, cuda.H200)
	if err != nil {
		t.Fatal(err)
	}
	code, err := compiler.Disassemble(image)
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(code["matmul"], "ACQBULK")
	reads := func(s string) bool { return strings.Contains(s, "LDG") || strings.Contains(s, "UTMALDG") }
	if !found || reads(before) || !reads(after) || !strings.Contains(before, "SYNCS") || strings.Contains(before, "PREEXIT") ||
		!strings.Contains(after, "PREEXIT") {
		t.Errorf("%s", code["matmul"])
	}
}

// TestLate: a product of few rows that awaits launches beside it loads what only its body reads after the wait, and other operands
// are not late.
func TestLate(t *testing.T) {
	op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		y := b.MatMul(in(graph.BF16, 2, 512), in(graph.BF16, 512, 512), false, false)
		b.Output("", b.Binary(graph.Mul, y, in(graph.F32, 2, 512)))
	})
	args := rowMajor(types)
	cfg := cuda.Config{Chip: cuda.H200, Beside: true, Awaits: true}
	results := rowMajor([]graph.Type{graph.TypeOf(graph.F32, 2, 512)})
	if k, err := cuda.Compile(op, args, results, cfg); err != nil || k.Late != nil {
		t.Errorf("late without frozen weights: %v, %v", k.Late, err)
	}
	args[1].Frozen = true
	k, err := cuda.Compile(op, args, results, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(k.Late) != "[2]" {
		t.Errorf("late: %v", k.Late)
	}
	compiler := nvrtctest.Open(t)
	image, _, err := compiler.Compile(k.Source, cuda.H200)
	if err != nil {
		t.Fatal(err)
	}
	code, err := compiler.Disassemble(image)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range code {
		before, after, found := strings.Cut(text, "ACQBULK")
		if !found || strings.Contains(before, "LDG") || strings.Contains(before, "STG") || !strings.Contains(after, "LDG") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}
