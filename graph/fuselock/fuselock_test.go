package fuselock_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/fuselock"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
)

const whole = `fuselock 1

target cpu f32
  launches 3
  host 0
  traffic 4096
  memory 1024
  pattern raise gelu-tanh matched 1 missed 0 approximate 1e-05
  pattern raise relu matched 0 missed 2
  fusion elementwise: "a" "a\nb \"c\""
  fusion linear "act" in "block/mlp": "act" "sum" of "b1" "w1"
  fusion matmul/backward in "block/mlp": "+" "sum"×2 of "w1"

target cuda/sm_90a bf16
  refused "it is too small"
  launches 3
  host 1
  traffic 2048
  memory 512
`

func TestRoundTrip(t *testing.T) {
	f, err := fuselock.Parse("x", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	if f.String() != whole {
		t.Errorf("%s", f)
	}
	path := filepath.Join(t.TempDir(), "x.fuselock")
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
	if f, err = fuselock.Read(path); err != nil || f.String() != whole {
		t.Errorf("%v: %s", err, f)
	}
	if s := f.Find("cpu", "f32"); s == nil || s.Fusions[0].Nodes[1] != "a\nb \"c\"" || f.Find("cpu", "bf16") != nil {
		t.Errorf("%+v", s)
	}
	f.Set(fuselock.Section{Target: "cpu", Precision: "bf16"})
	if len(f.Sections) != 3 || f.Sections[0].Precision != "bf16" {
		t.Errorf("%s", f)
	}
}

// A damaged file is refused with the line.
func TestDamaged(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"fuselock 1", "", `x:3: the file does not begin with "fuselock 1"`},
		{"fuselock 1", "fuselock one", `x:1: the file does not begin with "fuselock 1"`},
		{"fuselock 1", "fuselock 1 2", `x:1: "2" is too much`},
		{"fuselock 1", "fuselock 2",
			"x:1: the lock file is of version 2; this version of fusec reads version 1: remove it, and write it again with fusec lock"},
		{"target cpu f32\n", "", `x:3: "launches" before the first target`},
		{"target cpu f32", "target cpu", `x:3: want "target NAME PRECISION"`},
		{"cuda/sm_90a bf16", "cpu f32", "x:14: target cpu f32 is there twice"},
		{"  host 0\n", "", `x:13: target cpu f32 has no "host"`},
		{"  memory 512\n", "", `x:18: target cuda/sm_90a bf16 has no "memory"`},
		{"host 0", "launches 3", `x:5: "launches" is there twice`},
		{"host 0", "hosts 0", `x:5: "hosts" is not known`},
		{"launches 3", "launches -3", `x:4: launches: want a whole number of at least 0, found "-3"`},
		{"launches 3", "launches 99999999999999999999", `x:4: launches: want a whole number`},
		{"traffic 4096", "traffic 4096 bytes", `x:6: "bytes" is too much`},
		{"pattern raise gelu-tanh matched", "pattern raise matched", `x:8: pattern: want "matched"`},
		{"gelu-tanh matched 1 missed", "gelu-tanh matched 1 mist", `x:8: pattern: want "missed", found "mist"`},
		{"matched 1 missed 0", "matched 1 missed none", "x:8: pattern: want a whole number"},
		{"approximate 1e-05", "roughly 1e-05", "x:8: pattern: want exact, reassociated, transformed or approximate, and a bound"},
		{"approximate 1e-05", "approximate nan", "x:8: pattern: want exact, reassociated, transformed or approximate, and a bound"},
		{"pattern raise relu matched 0 missed 2", "pattern raise", "x:9: pattern: want a stage and a name"},
		{`fusion elementwise: "a"`, `fusion elementwise "a"`, "x:10: fusion: want a colon before the nodes"},
		{`fusion elementwise: "a"`, `fusion elementwise: a`, "x:10: fusion: want a name in quotation marks"},
		{"fusion elementwise: \"a\" \"a\\nb \\\"c\\\"\"", "fusion elementwise", "x:10: fusion: want a kind, and nodes after a colon"},
		{`"act" "sum" of`, `of`, "x:11: fusion: it has no nodes"},
		{"matmul/backward", "matmul/sideward", "x:12: fusion: "},
		{`in "block/mlp"`, `in block/mlp`, "x:11: fusion: want a name in quotation marks"},
		{`"sum"×2`, `"sum"×two`, `x:12: fusion: want a whole number of at least 0, found "two"`},
		{`"sum"×2`, `"sum"×0`, "x:12: fusion: 0 more names: want at least 1"},
		{`"sum"×2`, `"sum"×4000000 "a"×4000000`, "x:12: fusion: 4000000 more names: want at least 1, and at most 4194304 in a file"},
		{`"sum"×2`, `"sum"×9000000000000000000`, "x:12: fusion: 9000000000000000000 more names"},
		{`of "b1"`, `of "b1" of`, "x:11: fusion: want a name in quotation marks"},
		{`refused "it is too small"`, "refused 'i'", "x:15: refused: want a name in quotation marks"},
	} {
		text := strings.Replace(whole, c.old, c.new, 1)
		if _, err := fuselock.Parse("x", []byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: %v, want %s", c.new, c.old, err, c.want)
		}
	}
	if f, err := fuselock.Parse("x", []byte("\n")); err != nil || len(f.Sections) > 0 {
		t.Errorf("an empty file: %v, %v", f, err)
	}
	dir := t.TempDir()
	if _, err := fuselock.Read(dir); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a folder: %v", err)
	}
	large := filepath.Join(dir, "large.fuselock")
	if err := os.Truncate(must(os.Create(large)).Name(), fuselock.MaxBytes+1); err != nil {
		t.Fatal(err)
	}
	if _, err := fuselock.Read(large); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a large file: %v", err)
	}
}

func must(f *os.File, err error) *os.File {
	if err != nil {
		panic(err)
	}
	f.Close()
	return f
}

// What the parser takes, it prints so that it takes it again, and prints the same.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("fuselock 1\ntarget a b\nlaunches 0\nhost 0\ntraffic 0\nmemory 0\nfusion \"\": \"\" of"))
	f.Add([]byte("fuselock 2"))
	f.Fuzz(func(t *testing.T, src []byte) {
		file, err := fuselock.Parse("x", src)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "x:") {
				t.Errorf("the error names no line: %v", err)
			}
			return
		}
		text := file.String()
		again, err := fuselock.Parse("x", []byte(text))
		if err != nil || again.String() != text {
			t.Errorf("%v:\n%s\nbecame\n%s", err, text, again)
		}
	})
}

// compiled is the trace of a graph for the CPU.
func compiled(t *testing.T, build func(b *graph.Builder)) *trace.Trace {
	t.Helper()
	tr, _, err := fusec.Plan(graphtest.Built(t, build))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func section(t *testing.T, tr *trace.Trace) *fuselock.Section {
	t.Helper()
	s, err := fuselock.Of(tr)
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

func f32(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }

// layers is a network of layers that are alike, with nodes that have no names. shown names the layers whose products are
// outputs, and plain those without an activation.
func layers(n int, attention, shown bool) func(b *graph.Builder) {
	return func(b *graph.Builder) {
		x := b.Input("x", f32(2, 8, 16))
		for range n {
			scores := b.MatMul(x, x, false, true)
			probs := b.Add(graph.Softmax{Axis: 2}, b.BinaryScalar(graph.Mul, scores, 0.25))
			if attention {
				x = b.MatMul(probs, x, false, false)
			}
			if shown {
				b.Output("probs", probs)
				shown = false
			}
		}
		b.Output("y", b.Unary(graph.Tanh, x))
	}
}

func TestCompare(t *testing.T) {
	twice := compiled(t, layers(2, true, false))
	locked := section(t, twice)
	if v := fuselock.Compare(locked, locked, twice); !v.OK() || v.String() != "" {
		t.Errorf("with itself: %s", v)
	}
	// Of two equal fusions one is lost: its probabilities are read.
	tr := compiled(t, layers(2, true, true))
	v := fuselock.Compare(locked, section(t, tr), tr)
	if len(v.Lost) != 1 || v.Lost[0].Times != 1 || len(v.Worse) == 0 || v.OK() {
		t.Fatalf("%+v", v)
	}
	for _, want := range []string{"lost: fusion attention", "    is launch 1: matmul", "because attention (fuse-attention) stopped at",
		"also handed out as an output", "worse: ", "launches, locked are 3"} {
		if !strings.Contains(v.String(), want) {
			t.Errorf("%q is not in\n%s", want, v)
		}
	}
	// The other way round all is better.
	if v := fuselock.Compare(section(t, tr), locked, twice); !v.OK() ||
		!strings.Contains(v.String(), "better: 3 launches, locked are") {
		t.Errorf("%s", v)
	}
	// A model without the nodes.
	one := compiled(t, func(b *graph.Builder) { b.Output("z", b.Unary(graph.Tanh, b.Input("u", f32(3)))) })
	if v := fuselock.Compare(locked, section(t, one), one); !v.OK() ||
		!strings.Contains(v.String(), "changed: the model has no \"matmul\", \"softmax\", \"x\" any more") {
		t.Errorf("%s", v)
	}
	// What a target refuses, and rules that change more.
	refused := *locked
	refused.Refusal = "no"
	if v := fuselock.Compare(locked, &refused, twice); v.OK() || !strings.Contains(v.String(), "cpu cannot run it: no") {
		t.Errorf("%s", v)
	}
	if v := fuselock.Compare(&refused, locked, twice); !v.OK() || !strings.Contains(v.String(), "cpu can run it") {
		t.Errorf("%s", v)
	}
	rounded := *locked
	rounded.Patterns = append([]fuselock.Pattern{{Stage: "precision", Name: "cast", Matched: 2, Numeric: trace.Approximate(1. / 256)}},
		locked.Patterns...)
	if v := fuselock.Compare(locked, &rounded, twice); v.OK() ||
		!strings.Contains(v.String(),
			"up to 0.00391 of the sum of their terms, locked are 0: cast of precision is approximate ±0.00391") {
		t.Errorf("%s", v)
	}
	if v := fuselock.Compare(&rounded, locked, twice); !v.OK() || !strings.Contains(v.String(), "better: rules change") {
		t.Errorf("%s", v)
	}
	if _, err := fuselock.Of(&trace.Trace{}); err == nil {
		t.Error("a trace without a program has a section")
	}
}

// A fusion that becomes a part of a larger one is kept.
func TestCompareLarger(t *testing.T) {
	build := func(split bool) func(b *graph.Builder) {
		return func(b *graph.Builder) {
			x := b.Input("x", f32(4, 8))
			h := b.Named(b.Unary(graph.Exp, b.Named(b.BinaryScalar(graph.Add, x, 2), "shifted")), "power")
			if split {
				h = b.Add(graph.Concat{Axis: 0}, h, h)
			}
			b.Output("y", b.Named(b.Unary(graph.Tanh, b.Named(b.BinaryScalar(graph.Mul, h, 3), "scaled")), "y"))
		}
	}
	apart, joined := compiled(t, build(true)), compiled(t, build(false))
	before, after := section(t, apart), section(t, joined)
	if len(before.Fusions) != 2 || len(after.Fusions) != 1 {
		t.Fatalf("%v and %v", before.Fusions, after.Fusions)
	}
	if v := fuselock.Compare(before, after, joined); !v.OK() || len(v.Better) == 0 {
		t.Errorf("%s", v)
	}
	if v := fuselock.Compare(after, before, apart); len(v.Lost) != 1 || len(v.Lost[0].Now) != 2 ||
		!strings.Contains(v.String(), "no pattern says why") {
		t.Errorf("%s", v)
	}
}
