package graph_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/safetensors"
)

// model is a small graph with a parameter, a state and a constant that is too large for the text form.
func model(t testing.TB) (*graph.Graph, map[string]*graph.Tensor) {
	t.Helper()
	b := graph.NewBuilder("model")
	x := b.Input("x", graph.TypeOf(graph.F32, 5, 100))
	w := b.Param("w", graph.TypeOf(graph.F32, 100, 5))
	s := b.State("s", graph.TypeOf(graph.F32, 5, 5))
	mask := b.Const(graphtest.Tensor(rand.New(rand.NewPCG(1, 2)), graph.TypeOf(graph.F32, 5, 5)))
	y := b.Binary(graph.Mul, b.MatMul(x, w, false, false), mask)
	b.Output("y", y)
	b.Update(s, y)
	g := graphtest.Graph(t, b)
	return g, graphtest.Weights(rand.New(rand.NewPCG(3, 4)), g)
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.graph")
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 7))
		g := graphtest.Random(r, graphtest.Options{Nodes: 40, Halves: true})
		weights := graphtest.Weights(r, g)
		if err := os.RemoveAll(graph.WeightsPath(path)); err != nil {
			t.Fatal(err)
		}
		if err := graph.Save(path, g, weights); err != nil {
			t.Fatal(err)
		}
		h, w, err := graph.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := graph.Equal(g, h); err != nil {
			t.Fatal(err)
		}
		if len(w.Tensors) != len(weights) || len(w.Unused) != 0 {
			t.Fatalf("%d weights, want %d; unused %v", len(w.Tensors), len(weights), w.Unused)
		}
		for name, v := range weights {
			if !v.Equal(w.Tensors[name]) {
				t.Fatalf("weight %q changed", name)
			}
		}
		h, err = graph.LoadGraph(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := graph.Equal(g, h); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEveryTypeInFiles saves parameters, states and constants of every element type, with all bits, inline and beside the text.
func TestEveryTypeInFiles(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	b := graph.NewBuilder("types")
	weights := map[string]*graph.Tensor{}
	random := func(d graph.DType, n int) *graph.Tensor {
		x := graph.NewTensor(graph.TypeOf(d, n))
		for i := range n {
			if d.IsInt() {
				x.SetInt(i, int64(r.Uint64()))
			} else {
				x.SetFloat(i, float64(r.IntN(2)))
			}
		}
		return x
	}
	for _, d := range append(graph.DTypes(), graph.StoredTypes()...) {
		weights["w_"+d.String()], weights["s_"+d.String()] = random(d, 5), random(d, 3)
		b.Output("w"+d.String(), b.Param("w_"+d.String(), graph.TypeOf(d, 5)))
		b.Output("s"+d.String(), b.State("s_"+d.String(), graph.TypeOf(d, 3)))
		b.Output("short"+d.String(), b.Const(random(d, graph.MaxInline)))
		b.Output("long"+d.String(), b.Const(random(d, graph.MaxInline+1)))
	}
	g := graphtest.Graph(t, b)
	path := filepath.Join(t.TempDir(), "m.graph")
	if err := graph.Save(path, g, weights); err != nil {
		t.Fatal(err)
	}
	h, w, err := graph.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := graph.Equal(g, h); err != nil {
		t.Error(err)
	}
	for name, v := range weights {
		if !v.Equal(w.Tensors[name]) {
			t.Errorf("%s is %v, want %v", name, w.Tensors[name], v)
		}
	}
}

func TestNaNWeights(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.graph")
	g, weights := model(t)
	weights["w"].SetFloat(3, math.NaN())
	if err := graph.Save(path, g, weights); err != nil {
		t.Fatal(err)
	}
	_, w, err := graph.Load(path)
	if err != nil || !math.IsNaN(w.Tensors["w"].Float(3)) {
		t.Errorf("%v, %v", w, err)
	}
}

func TestSaveIsDeterministic(t *testing.T) {
	dir := t.TempDir()
	g, weights := model(t)
	read := func(path string) string {
		if err := graph.Save(path, g, weights); err != nil {
			t.Fatal(err)
		}
		a, err1 := os.ReadFile(path)
		b, err2 := os.ReadFile(graph.WeightsPath(path))
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return string(a) + string(b)
	}
	if read(filepath.Join(dir, "a.graph")) != read(filepath.Join(dir, "b.graph")) {
		t.Error("the files differ")
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.graph")
	wpath := graph.WeightsPath(path)
	g, weights := model(t)
	if err := graph.Save(path, g, weights); err != nil {
		t.Fatal(err)
	}
	mask := graph.Constants(g)["fusec.const/3"]
	weight := func(name string, v *graph.Tensor) safetensors.Tensor {
		return safetensors.Tensor{Name: name, Shape: v.Type.Shape.Slice(), Data: v.Data}
	}
	w, s, c := weight("w", weights["w"]), weight("s", weights["s"]), weight("fusec.const/3", mask)
	other := weight("w", graph.NewTensor(graph.TypeOf(graph.F32, 500)))
	double := weight("w", graph.NewTensor(graph.TypeOf(graph.F64, 100, 5)))
	for _, tc := range []struct {
		want    string
		tensors []safetensors.Tensor
	}{
		{`has no weight "w"`, []safetensors.Tensor{s, c}},
		{`has no weight "w", "s"`, []safetensors.Tensor{c}},
		{`has no weight "fusec.const/3"`, []safetensors.Tensor{w, s}},
		{`weight "w" has the shape [500], not that of f32[100,5]`, []safetensors.Tensor{other, s, c}},
		{`weight "w" has elements of dtype F64, not those of f32[100,5]`, []safetensors.Tensor{double, s, c}},
	} {
		if err := safetensors.WriteFile(wpath, tc.tensors, nil); err != nil {
			t.Fatal(err)
		}
		_, _, err := graph.Load(path)
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), wpath) {
			t.Errorf("error %v, want one with %q that names the file", err, tc.want)
		}
		var missing *graph.MissingWeightsError
		if strings.Contains(tc.want, "has no weight") != errors.As(err, &missing) {
			t.Errorf("%q: errors.As gives %v", tc.want, missing)
		}
	}

	if err := safetensors.WriteFile(wpath, []safetensors.Tensor{w, s, c, weight("z", mask), weight("a", mask)}, nil); err != nil {
		t.Fatal(err)
	}
	_, got, err := graph.Load(path)
	if err != nil || strings.Join(got.Unused, " ") != "a z" {
		t.Errorf("unused %v (%v), want [a z]", got, err)
	}

	if err := os.Truncate(wpath, 100); err != nil {
		t.Fatal(err)
	}
	if _, _, err := graph.Load(path); err == nil || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("truncated weights: %v", err)
	}
	plain := filepath.Join(dir, "plain.graph") // two weights, one file, one error
	text := "fusec graph 1 \"plain\" {\n  a = param : f32[2]\n" +
		"  b = param : f32[2]\n  output a = a\n  output b = b\n}\n"
	if err := errors.Join(os.WriteFile(plain, []byte(text), 0o666),
		os.WriteFile(graph.WeightsPath(plain), nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := graph.Load(plain); err == nil || strings.Count(err.Error(), "plain.safetensors") != 1 {
		t.Errorf("empty weights: %v", err)
	}
	if err := os.Remove(wpath); err != nil {
		t.Fatal(err)
	}
	if _, err := graph.LoadGraph(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing constants: %v", err)
	}
	for _, p := range []string{dir, filepath.Join(dir, "none.graph")} {
		if _, _, err := graph.Load(p); err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("Load(%s): %v", p, err)
		}
	}
}

func TestMissingWeightsFile(t *testing.T) {
	_, _, err := graph.Load("testdata/mlp.graph")
	var missing *graph.MissingWeightsError
	if !errors.As(err, &missing) || !missing.NoFile || len(missing.Names) != 4 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	many := &graph.MissingWeightsError{Path: "m", Names: strings.Fields("a b c d e f g")}
	if want := `m: has no weight "a", "b", "c", "d", "e" and 2 more`; many.Error() != want {
		t.Errorf("got %v, want %s", many, want)
	}
	if g, err := graph.LoadGraph("testdata/mlp.graph"); err != nil || g.Name != "mlp" {
		t.Errorf("the graph alone: %v", err)
	}
}

// TestSaveFails checks that what cannot be saved is refused and changes no file.
func TestSaveFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.graph")
	wpath := graph.WeightsPath(path)
	g, weights := model(t)
	if err := graph.Save(path, g, weights); err != nil {
		t.Fatal(err)
	}
	oldText, _ := os.ReadFile(path)
	oldWeights, _ := os.ReadFile(wpath)
	with := func(name string, v *graph.Tensor) map[string]*graph.Tensor {
		m := map[string]*graph.Tensor{name: v}
		for k, v := range weights {
			if _, ok := m[k]; !ok {
				m[k] = v
			}
		}
		return m
	}
	invalid, _ := model(t)
	invalid.Nodes[0].ID = 1
	reserved, _ := model(t)
	reserved.Nodes[1].Name = "fusec.const/9"
	long, _ := model(t)
	long.Nodes[4].Name = strings.Repeat("x", graph.MaxLine)
	latin, _ := model(t)
	latin.Nodes[1].Name = "\xff"
	for want, try := range map[string]func() error{
		"has no weight":             func() error { return graph.Save(path, g, with("w", nil)) },
		"is f32[100,5], its weight": func() error { return graph.Save(path, g, with("w", graph.NewTensor(graph.TypeOf(graph.F64)))) },
		"holds 0 elements": func() error {
			return graph.Save(path, g, with("w", &graph.Tensor{Type: graph.TypeOf(graph.F32, 100, 5)}))
		},
		`weight "v" belongs to no parameter`: func() error { return graph.Save(path, g, with("v", weights["w"])) },
		`weight "x" belongs to no parameter`: func() error { return graph.Save(path, g, with("x", weights["w"])) },
		"the same ID":                        func() error { return graph.Save(path, invalid, weights) },
		"are kept for constants":             func() error { return graph.Save(path, reserved, with("fusec.const/9", weights["w"])) },
		"the line has more than":             func() error { return graph.Save(path, long, weights) },
		"cannot be written": func() error {
			return graph.Save(path, latin, map[string]*graph.Tensor{"\xff": weights["w"], "s": weights["s"]})
		},
		"would replace the weights":    func() error { return graph.Save(path, g, nil) },
		"the name of the weights file": func() error { return graph.Save(wpath, g, weights) },
		"no such file":                 func() error { return graph.Save(filepath.Join(dir, "none", "m.graph"), g, weights) },
		"not a regular file":           func() error { return graph.Save(dir, g, weights) },
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %.300v, want one with %q", err, want)
		}
	}
	newText, _ := os.ReadFile(path)
	newWeights, _ := os.ReadFile(wpath)
	if !bytes.Equal(oldText, newText) || !bytes.Equal(oldWeights, newWeights) {
		t.Error("a failed Save changed a file")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestSaveWithoutWeights(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.graph")
	g, err := graph.LoadGraph("testdata/mlp.graph")
	if err != nil {
		t.Fatal(err)
	}
	old := []byte("weights of the user's")
	graphtest.WriteFile(t, graph.WeightsPath(path), old)
	if err := graph.Save(path, g, nil); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(graph.WeightsPath(path)); !bytes.Equal(got, old) {
		t.Error("the weights file was touched")
	}
	withConst, _ := model(t)
	path = filepath.Join(dir, "c.graph")
	if err := graph.Save(path, withConst, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := graph.LoadGraph(path); err != nil {
		t.Error(err)
	}
}
