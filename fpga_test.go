package fusec_test

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/cmd/models/zoo"
	"fusec/examples"
	"fusec/fpga/isa"
	"fusec/fpga/testtools"
	"fusec/graph"
	"fusec/graph/npy"
	"fusec/lowering/fpga"
)

// onOverlay compiles for the overlay's model.
func onOverlay(t *testing.T, g *graph.Graph, weights map[string]*graph.Tensor, opts ...fusec.CompileOption) *fusec.Program {
	t.Helper()
	p, err := fusec.Compile(g, append([]fusec.CompileOption{fusec.WithTarget("fpga", fpga.Link("model"))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, w := range weights {
		if err := p.Set(name, w); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// digitImages are the first n images, which the model was trained on.
func digitImages(t *testing.T, n int) *graph.Tensor {
	t.Helper()
	known, _ := digits(t)
	x, err := graph.TensorOf(known.Images[:n*examples.DigitPixels], n, examples.DigitPixels)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// The overlay classifies the test images of digits as well as the float program, calibrated on images that the model
// was trained on, on the overlay that has everything and, in batches that its memory holds, on the smallest.
func TestDigitsOnTheOverlay(t *testing.T) {
	const images, floatRight = 360, 346
	_, weights, err := graph.Load(filepath.Join(models, "digits-mlp.graph"))
	if err != nil {
		t.Fatal(err)
	}
	pixels, err := npy.ReadFile(filepath.Join(models, "digits-mlp.pixels.npy"))
	if err != nil {
		t.Fatal(err)
	}
	_, test := digits(t)
	for overlay, batch := range map[string]int{"sim8": 360, "sim16": 120, "ecp5": 360, "hx8k": 60} {
		path := filepath.Join(t.TempDir(), "digits.graph")
		if err := fusec.Save(path, zoo.DigitsMLP(batch).Graph); err != nil {
			t.Fatal(err)
		}
		g, err := graph.LoadGraph(path)
		if err != nil {
			t.Fatal(err)
		}
		p := onOverlay(t, g, weights.Tensors, fusec.WithTarget("", fpga.Overlay(overlay),
			fpga.Samples(map[string]*graph.Tensor{"pixels": digitImages(t, batch)})))
		right := 0
		for from := 0; from < images; from += batch {
			part, err := graph.TensorOf(pixels.Data.([]float32)[from*64:(from+batch)*64], batch, 64)
			if err != nil {
				t.Fatal(err)
			}
			out, err := p.Run(map[string]*graph.Tensor{"pixels": part})
			if err != nil {
				t.Fatal(err)
			}
			logits := out[g.Outputs[0].Name].Floats()
			for i, label := range test.Labels[from : from+batch] {
				row := logits[i*10 : (i+1)*10]
				if slices.Index(row, slices.Max(row)) == label {
					right++
				}
			}
		}
		t.Logf("%s: %d of %d images are classified right, %d in floating point", overlay, right, images, floatRight)
		if math.Abs(float64(right-floatRight)) > 0.005*images {
			t.Errorf("%s: %d of %d images are classified right, in floating point %d", overlay, right, images,
				floatRight)
		}
		for i, l := range p.Lowered().Launches {
			counted, estimated := p.Counts().Launches[i].Get(fpga.Cycles), l.Estimates.Get(fpga.Cycles)
			if l.Device != "" || counted == 0 || estimated == 0 {
				t.Errorf("%s: launch %d runs on %q, because %q; %v cycles counted, %v estimated", overlay, i,
					l.Device, l.Reason, counted, estimated)
			}
		}
	}
}

// The hardware, simulated, gives the digits the same logits to the bit as its model in Go, and counts cycles.
func TestDigitsOnTheSimulator(t *testing.T) {
	testtools.Need(t, "verilator", "g++", "make")
	_, weights, err := graph.Load(filepath.Join(models, "digits-mlp.graph"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "digits.graph")
	if err := fusec.Save(path, zoo.DigitsMLP(60).Graph); err != nil {
		t.Fatal(err)
	}
	g, err := graph.LoadGraph(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := isa.Overlay("hx8k")
	if err != nil {
		t.Fatal(err)
	}
	var logits [2][]float64
	for i, link := range []string{"model", "sim"} {
		p := onOverlay(t, g, weights.Tensors, fusec.WithTarget("", fpga.Overlay("hx8k"), fpga.Link(link)))
		out, err := p.Run(map[string]*graph.Tensor{"pixels": digitImages(t, 60)})
		if err != nil {
			t.Fatal(err)
		}
		logits[i] = out[g.Outputs[0].Name].Floats()
		for k, c := range p.Counts().Launches {
			ideal := p.Lowered().Launches[k].FLOPs / 2 / int64(cfg.Rows*cfg.Cols)
			cycles, multiplying := c.Get(fpga.Cycles), c.Get(fpga.Multiplying)
			if link == "sim" && (cycles < multiplying || multiplying < float64(ideal/2)) { // the model's are by rule of thumb
				t.Errorf("%s: launch %d took %v cycles, %v of them multiplying; %d would do", link, k, cycles, multiplying, ideal)
			}
		}
	}
	if !slices.Equal(logits[0], logits[1]) {
		t.Error("the simulator and the model differ")
	}
}

// The saved models run on the overlay, and say by how much they depart.
func TestModelsOnTheOverlay(t *testing.T) {
	long(t)
	for _, m := range []struct {
		name string
		host int     // launches on the processor
		rms  float64 // of the results' range
	}{
		{"transformer-block", 0, 0.005},
		{"moe-block", 0, 0.02},
		{"moe-top2", 0, 0.02},
		{"lenet", 0, 0.02},
	} {
		t.Run(m.name, func(t *testing.T) {
			g, weights, err := graph.Load(filepath.Join(models, m.name+".graph"))
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(3, 4))
			in := map[string]*graph.Tensor{}
			for _, n := range g.Sources() {
				if _, ok := n.Op.(graph.Input); ok {
					in[n.Name] = graph.NewTensor(n.Type)
					for i := range n.Type.Shape.Elems() {
						in[n.Name].SetFloat(i, r.Float64()*2-1)
					}
				}
			}
			p := onOverlay(t, g, weights.Tensors)
			p.Profile(true)
			out, err := p.Run(in)
			if err != nil {
				t.Fatal(err)
			}
			host := 0
			for i, l := range p.Lowered().Launches {
				if l.Device != "" {
					host++
					if l.Reason == "" {
						t.Errorf("launch %d runs on the processor without a reason", i)
					}
				}
				t.Logf("launch %d, %s: %v %s", i, l.Kind(), p.Counts().Launches[i], l.Reason)
			}
			if host != m.host {
				t.Errorf("%d launches run on the processor, want %d", host, m.host)
			}
			c, err := fusec.Compile(g)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for name, w := range weights.Tensors {
				if err := c.Set(name, w); err != nil {
					t.Fatal(err)
				}
			}
			want, err := c.Run(in)
			if err != nil {
				t.Fatal(err)
			}
			for name, w := range want {
				lo, hi, sum := 0.0, 0.0, 0.0
				for i := range w.Type.Shape.Elems() {
					d := out[name].Float(i) - w.Float(i)
					sum += d * d
					lo, hi = min(lo, w.Float(i)), max(hi, w.Float(i))
				}
				if rms := math.Sqrt(sum/float64(w.Type.Shape.Elems())) / (hi - lo); !(rms <= m.rms) {
					t.Errorf("%s is off by %.3f %% rms of its range, want %.3f %%", name, 100*rms, 100*m.rms)
				}
			}
		})
	}
}

// A machine in place of Gorgonia's runs a graph on the overlay, reads weights again when they change, and refuses to train.
func TestMachineOnTheOverlay(t *testing.T) {
	model := zoo.DigitsMLP(16)
	images := tensor.New(tensor.WithShape(16, 64), tensor.WithBacking(make([]float32, 16*64)))
	if err := gorgonia.Let(model.Input, images); err != nil {
		t.Fatal(err)
	}
	m := fusec.NewMachine(model.Graph, fusec.WithTarget("fpga", fpga.Link("model")))
	if m.Err() != nil {
		t.Fatal(m.Err())
	}
	defer m.Close()
	for _, f := range m.Program().Lowered().Launches {
		if f.Device != "" {
			t.Errorf("%s runs on %q: %s", f.Kind(), f.Device, f.Reason)
		}
	}
	if err := m.RunAll(); err != nil {
		t.Fatal(err)
	}
	m.Reset()
	if err := m.RunAll(); err != nil {
		t.Fatal(err)
	}
	if n := m.Program().Counts().Program.Get(fpga.Quantised); n != 1 {
		t.Errorf("weights that do not change were made integers %v times", n)
	}
	g := gorgonia.NewGraph()
	w := gorgonia.NewMatrix(g, gorgonia.Float32, gorgonia.WithShape(4, 4), gorgonia.WithName("w"), gorgonia.WithInit(gorgonia.Ones()))
	cost := gorgonia.Must(gorgonia.Sum(gorgonia.Must(gorgonia.Square(w))))
	if _, err := gorgonia.Grad(cost, w); err != nil {
		t.Fatal(err)
	}
	trainer := fusec.NewMachine(g, gorgonia.BindDualValues(w), fusec.WithTarget("fpga", fpga.Link("model")))
	if err := trainer.Err(); err == nil || !strings.Contains(err.Error(), "which is too coarse for gradients") {
		t.Errorf("training on the overlay: %v", err)
	}
	reader := fusec.NewMachine(g, fusec.WithoutGradients(), fusec.WithTarget("fpga", fpga.Link("model")))
	if err := reader.Err(); err != nil {
		t.Error(err)
	}
	defer reader.Close()
}
