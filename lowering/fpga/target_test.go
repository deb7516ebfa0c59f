package fpga_test

import (
	"encoding/json"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fusec"
	"fusec/fpga/isa"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering"
	"fusec/lowering/fpga"
)

// Options that make no sense are refused, and so is what the target does not do.
func TestOverlayOptions(t *testing.T) {
	g, _, err := graph.Load("../../testdata/models/digits-mlp.graph")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		opts []fusec.CompileOption
		want string
	}{
		{[]fusec.CompileOption{fusec.WithTarget("", fpga.Overlay("big"))}, `no overlay is called "big"`},
		{[]fusec.CompileOption{fusec.WithTarget("", fpga.For(isa.Config{Name: "odd", Rows: 3}))}, "Rows: want a power of two"},
		{[]fusec.CompileOption{fusec.WithTarget("", fpga.Link("carrier-pigeon"))}, "carrier-pigeon"},
		{[]fusec.CompileOption{fusec.WithTarget("", fpga.Overlay("hx8k"))}, "addresses of 16 bits reach 65536"},
		{[]fusec.CompileOption{fusec.WithPrecision(fusec.BF16)}, "integers of 8 bits"},
		{[]fusec.CompileOption{fusec.WithTarget("", fpga.Samples(map[string]*graph.Tensor{"pixels": nil}))}, `no value for "pixels"`},
	} {
		p, err := fusec.Compile(g, append([]fusec.CompileOption{fusec.WithTarget("fpga")}, c.opts...)...)
		if err == nil { // a link is opened by the first run
			for _, n := range g.Sources() {
				if err := p.Set(n.Name, graph.NewTensor(n.Type)); err != nil {
					t.Fatal(err)
				}
			}
			err = p.Exec()
			p.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one about %q", err, c.want)
		}
	}
	b := graph.NewBuilder("cost")
	w := b.Param("w", graph.TypeOf(graph.F32, 4))
	cost := b.Reduce(graph.Sum, b.Unary(graph.Square, w), false, 0)
	b.Output("cost", cost)
	trained, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	_, err = fusec.Compile(trained, fusec.WithTarget("fpga"), fusec.WithGradient("dw", cost, w))
	if err == nil || !strings.Contains(err.Error(), "which is too coarse for gradients") {
		t.Errorf("gradients on the overlay: %v", err)
	}
	if _, err := fusec.Compile(g, fusec.WithTarget("fpga:1")); err == nil ||
		!strings.Contains(err.Error(), "is not known") {
		t.Errorf("target fpga:1: %v", err)
	}
}

// A model is compiled ahead of time on samples, and runs from the file with the ranges that were found.
func TestAhead(t *testing.T) {
	b := graph.NewBuilder("small")
	x, w := b.Input("x", graph.TypeOf(graph.F32, 4, 16)), b.Param("w", graph.TypeOf(graph.F32, 16, 8))
	b.Output("y", b.MatMul(x, w, false, false))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	in, weights := map[string]*graph.Tensor{"x": graphtest.Tensor(r, x.Type)}, graphtest.Weights(r, g)
	path := filepath.Join(t.TempDir(), "small.fuse")
	log := func(string) {}
	options := func(more ...lowering.TargetOption) fusec.Option {
		return fusec.WithTarget("fpga", append(more, fpga.Link("model"), fpga.LinkLog(t.Context(), log))...)
	}
	if err := fusec.CompileAhead(path, g, weights, nil, options()); err == nil || !strings.Contains(err.Error(), "samples") {
		t.Errorf("without samples: %v", err)
	}
	if err := fusec.CompileAhead(path, g, weights, nil, options(fpga.Samples(in))); err != nil {
		t.Fatal(err)
	}
	a, err := fusec.OpenAhead(path)
	if err != nil {
		t.Fatal(err)
	}
	if a.Target() != "fpga" || !strings.HasPrefix(a.Chip, "the overlay ") {
		t.Errorf("compiled for %s, %s", a.Target(), a.Chip)
	}
	var results []*graph.Tensor
	for _, opt := range [][]fusec.CompileOption{{options(fpga.Samples(in))}, {fusec.WithAhead(a), options()}} {
		p, err := fusec.Compile(a.Graph, opt...)
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range a.Weights {
			if err := p.Set(name, v); err != nil {
				t.Fatal(err)
			}
		}
		out, err := p.Run(in)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, out["y"])
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(results[0].Data.([]float32), results[1].Data.([]float32)) {
		t.Errorf("from the file %v, compiled here %v", results[1], results[0])
	}
}

// TestOverlaySizes refuses overlays whose memories are too small, and sizes of units that they lack, as a file may have them.
func TestOverlaySizes(t *testing.T) {
	for want, change := range map[string]func(*isa.Config){
		`overlay "sim8" has a memory of 1 words`:                         func(c *isa.Config) { c.XWords = 1 },
		`overlay "sim8" has HeadDim -13 and QPanels 4 without attention`: func(c *isa.Config) { c.KeyBlock, c.HeadDim = 0, -13 },
		`overlay "sim8" has ListLen 1024, Tokens -1 and TopK 4 without`:  func(c *isa.Config) { c.Experts, c.Tokens = 0, -1 },
	} {
		overlay, err := isa.Overlay("sim8")
		if err != nil {
			t.Fatal(err)
		}
		change(&overlay)
		header, err := json.Marshal(map[string]any{"overlay": overlay})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := fpga.Target.Load(header, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// FuzzAhead reads headers of models compiled ahead of time that are changed at random, byte by byte and in one number of the
// overlay: they are refused, or a model compiles for what they describe, or does not, with an error.
func FuzzAhead(f *testing.F) {
	b := graph.NewBuilder("small")
	x, w := b.Input("x", graph.TypeOf(graph.F32, 4, 16)), b.Param("w", graph.TypeOf(graph.F32, 16, 8))
	b.Output("y", b.Unary(graph.Tanh, b.MatMul(x, w, false, false)))
	g, err := b.Graph()
	if err != nil {
		f.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 6))
	weights := graphtest.Weights(r, g)
	for i, name := range isa.Overlays()[:2] {
		overlay, err := isa.Overlay(name)
		if err != nil {
			f.Fatal(err)
		}
		for j, ranges := range [][]fpga.Range{nil, {{Value: "x", Lo: -1, Hi: 1, Seen: true}}, make([]fpga.Range, 4)} {
			header, err := json.Marshal(map[string]any{"overlay": overlay, "ranges": ranges})
			if err != nil {
				f.Fatal(err)
			}
			fields := 1
			if i+j == 0 {
				fields = reflect.TypeFor[isa.Config]().NumField()
			}
			for field := range fields {
				f.Add(header, uint(field), int64(64))
			}
		}
	}
	f.Add([]byte("{}"), uint(0), int64(0))
	f.Fuzz(func(t *testing.T, header []byte, field uint, number int64) {
		var info struct {
			Overlay *isa.Config  `json:"overlay"`
			Ranges  []fpga.Range `json:"ranges"`
		}
		if json.Unmarshal(header, &info) == nil && info.Overlay != nil {
			v := reflect.ValueOf(info.Overlay).Elem()
			if v = v.Field(int(field % uint(v.NumField()))); v.CanInt() {
				v.SetInt(number)
			} else if v.CanUint() {
				v.SetUint(uint64(number))
			}
			var err error
			if header, err = json.Marshal(info); err != nil {
				t.Fatal(err)
			}
		}
		opts, _, ok, err := fpga.Target.Load(header, nil)
		if err != nil || !ok {
			return
		}
		opts = append(opts, fpga.Link("model"), fpga.LinkLog(t.Context(), func(string) {}))
		p, err := fusec.Compile(g, fusec.WithTarget("fpga", opts...))
		if err != nil {
			return
		}
		defer p.Close()
		for name, v := range weights {
			if err := p.Set(name, v); err != nil {
				t.Fatal(err)
			}
		}
	})
}
