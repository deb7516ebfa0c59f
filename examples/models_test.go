package examples

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/examples/train"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/kernels/ref"
)

// tiny are the examples' models, small, in the element type of which there is one, with random inputs and weights.
func tiny(t testing.TB, of tensor.Dtype) map[string]*train.Model {
	t.Helper()
	size := Transformer{Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, Hidden: 6}
	models := map[string]*train.Model{}
	add := func(name string, m *train.Model, err error) {
		if err == nil {
			err = Classify(m)
		}
		if err == nil {
			err = seed(m, 7)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		randomise(t, m)
		models[name] = m
	}
	vit, err := DigitsViT(of, 2, Transformer{Layers: 1, Dim: 6, Heads: 2, KVHeads: 2, Hidden: 5})
	add("digits-vit", vit, err)
	language, err := Language(of, 2, 5, size)
	add("language", language, err)
	moe, err := MoE(of, 2, 5, 3, size)
	add("moe", moe, err)
	karate, err := KarateGCN(of, 7, 9, 4)
	add("karate", karate, err)
	resnet, err := DigitsResNet(of, 3, 2)
	add("resnet", resnet, err)
	unet, err := UNet(of, 2, 2)
	add("unet", unet, err)
	if of == tensor.Float32 {
		mlp, err := DigitsMLP(3)
		add("digits-mlp", mlp, err)
	}
	return models
}

// randomise gives a model's inputs values: indices below the least that any of them may reach, one label in three none.
// Biases and gains are moved from their zeros and ones, so that no gradient can hide.
func randomise(t testing.TB, m *train.Model) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	classes := m.Output.Shape()[len(m.Output.Shape())-1]
	for i, n := range m.Inputs {
		v, err := train.Zeroed(n)
		if err != nil {
			t.Fatal(err)
		}
		switch data := v.Data().(type) {
		case []int:
			for j := range data {
				data[j] = r.IntN(min(classes, 7))
				if i == len(m.Inputs)-1 && j%3 == 1 {
					data[j] = -1
				} else if i < len(m.Inputs)-1 {
					data[j] = r.IntN(7) // vertices of the karate club, or letters
				}
			}
		case []float32:
			for j := range data {
				data[j] = r.Float32()
			}
		case []float64:
			for j := range data {
				data[j] = r.Float64()
			}
		}
	}
	for _, n := range m.Learnables {
		switch data := n.Value().Data().(type) {
		case []float32:
			for j := range data {
				data[j] += float32(0.1 * r.NormFloat64())
			}
		case []float64:
			for j := range data {
				data[j] += 0.1 * r.NormFloat64()
			}
		}
	}
}

// kinds counts the launches of a machine by kind, and the host's operations.
func kinds(t testing.TB, m *fusec.Machine) map[string]int {
	t.Helper()
	count := map[string]int{}
	for i, f := range m.Fusions() {
		count[f.Kind]++
		if _, ok := m.Program().Lowered().Launches[i].Op.(graph.Host); ok {
			t.Errorf("%s %q runs on the host", f.Kind, f.Name)
		}
	}
	return count
}

func machine(t testing.TB, g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) *fusec.Machine {
	t.Helper()
	m := fusec.NewMachine(g, opts...)
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// TestFusions: each model becomes the launches that it should, forward and in training, and nothing runs on the host.
func TestFusions(t *testing.T) {
	forward := map[string]map[string]int{
		"digits-mlp": {"linear": 3},
		"digits-vit": {"attention": 1, "norm": 3, "linear": 8},
		"language":   {"attention": 2, "norm": 5, "linear": 15, "rope": 4, "gather": 1},
		"moe":        {"moe": 2, "attention": 2, "norm": 5, "rope": 4, "gather": 1},
		"resnet":     {"conv": 9, "linear": 1},
		"unet":       {"conv": 11, "pool": 2},
		"karate":     {"linear": 1, "gather": 2, "scatter_add": 3},
	}
	for name, m := range tiny(t, tensor.Float32) {
		t.Run(name, func(t *testing.T) {
			count := kinds(t, machine(t, m.Graph))
			for kind, n := range forward[name] {
				if count[kind] < n {
					t.Errorf("%d launches are %s, want %d: %v", count[kind], kind, n, count)
				}
			}
			if _, err := gorgonia.Grad(m.Cost, m.Learnables...); err != nil {
				t.Fatal(err)
			}
			trained := kinds(t, machine(t, m.Graph, gorgonia.BindDualValues(m.Learnables...)))
			for _, kind := range []string{"attention", "moe"} {
				if n := forward[name][kind]; trained[kind] < n {
					t.Errorf("in training %d launches are %s, want %d: %v", trained[kind], kind, n, trained)
				}
			}
		})
	}
}

// probes is how many elements of each learnable are checked.
const probes = 2

// directions is how many random directions, along which all learnables change, are checked.
const directions = 3

// TestGradients compares the gradients of each model with central differences of its cost, as the reference computes it
// in float64 from the imported graph.
func TestGradients(t *testing.T) {
	models := tiny(t, tensor.Float64)
	models["digits-mlp"] = tiny(t, tensor.Float32)["digits-mlp"] // its weights are float32
	for name, m := range models {
		t.Run(name, func(t *testing.T) {
			h, tol := 1e-5, 1e-8
			if m.Learnables[0].Dtype() == tensor.Float32 {
				h, tol = 0x1p-9, 1e-4
			}
			cost := reference(t, m)
			if _, err := gorgonia.Grad(m.Cost, m.Learnables...); err != nil {
				t.Fatal(err)
			}
			vm := machine(t, m.Graph, gorgonia.BindDualValues(m.Learnables...))
			if err := vm.RunAll(); err != nil {
				t.Fatal(err)
			}
			value, err := fgorgonia.ToTensor(m.Cost.Value())
			if err != nil {
				t.Fatal(err)
			}
			if got, want := value.Float(0), cost(nil); !(math.Abs(got-want) <= tol) {
				t.Errorf("the cost is %v, want %v", got, want)
			}
			r := rand.New(rand.NewPCG(3, 4))
			compare := func(what string, got float64, move []change) {
				back := make([]change, len(move))
				for k, c := range move {
					back[k] = change{c.name, c.i, -c.by}
				}
				if want := (cost(move) - cost(back)) / (2 * h); !(math.Abs(got-want) <= tol*max(1, math.Abs(want))) {
					t.Errorf("the gradient of %s is %v; the difference quotient is %v", what, got, want)
				}
			}
			along, moves, all := make([]float64, directions), make([][]change, directions), 0
			for _, n := range m.Learnables {
				all += n.Shape().TotalSize()
			}
			for _, n := range m.Learnables {
				grad, err := n.Grad()
				if err != nil {
					t.Fatal(err)
				}
				g, err := fgorgonia.ToTensor(grad)
				if err != nil {
					t.Fatal(err)
				}
				for range probes {
					i := r.IntN(g.Type.Shape.Elems())
					compare(fmt.Sprintf("%s, element %d,", n.Name(), i), g.Float(i), []change{{n.Name(), i, h}})
				}
				for k := range moves {
					for i := range g.Type.Shape.Elems() {
						part := float64(1-2*r.IntN(2)) / math.Sqrt(float64(all))
						along[k] += part * g.Float(i)
						moves[k] = append(moves[k], change{n.Name(), i, part * h})
					}
				}
			}
			for k, move := range moves {
				if m.Learnables[0].Dtype() == tensor.Float64 { // float32 rounds such small steps
					compare(fmt.Sprintf("all, along direction %d,", k), along[k], move)
				}
			}
		})
	}
}

// change is a change of an element of a learnable.
type change struct {
	name string
	i    int
	by   float64
}

// reference gives a model's cost in float64 when elements of learnables are changed.
func reference(t testing.TB, m *train.Model) func([]change) float64 {
	t.Helper()
	im, err := fgorgonia.Import(m.Graph, fgorgonia.Options{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := im.Values()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, n := range m.Learnables {
		names[n.Name()] = im.Node(n).Name
	}
	cost := im.Node(m.Cost)
	return func(changes []change) float64 {
		t.Helper()
		was := make([]float64, len(changes))
		for k, c := range changes {
			x := in[names[c.name]]
			was[k] = x.Float(c.i)
			x.SetFloat(c.i, was[k]+c.by)
		}
		defer func() {
			for k, c := range changes {
				in[names[c.name]].SetFloat(c.i, was[k])
			}
		}()
		values, err := ref.Nodes(im.Graph, in, false)
		if err != nil {
			t.Fatal(err)
		}
		return values[cost][0].F[0]
	}
}

// TestSteps trains the convolutional networks on Gorgonia's TapeMachine and on fusec's machine with the same solver: costs,
// weights and running statistics are the same step by step.
func TestSteps(t *testing.T) {
	for _, name := range []string{"resnet", "unet"} {
		t.Run(name, func(t *testing.T) {
			var first [][]float64
			for _, fused := range []bool{false, true} {
				m := tiny(t, tensor.Float64)[name]
				if _, err := gorgonia.Grad(m.Cost, m.Learnables...); err != nil {
					t.Fatal(err)
				}
				vm, bound := gorgonia.VM(nil), gorgonia.BindDualValues(m.Learnables...)
				if fused {
					vm = machine(t, m.Graph, bound)
				} else {
					vm = gorgonia.NewTapeMachine(m.Graph, bound)
					defer vm.Close()
				}
				solver := gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(0.05))
				var seen [][]float64
				see := func(v gorgonia.Value) {
					x, err := fgorgonia.ToTensor(v)
					if err != nil {
						t.Fatal(err)
					}
					seen = append(seen, x.Floats())
				}
				for range 3 {
					if err := vm.RunAll(); err != nil {
						t.Fatal(err)
					}
					see(m.Cost.Value())
					if err := solver.Step(gorgonia.NodesToValueGrads(m.Learnables)); err != nil {
						t.Fatal(err)
					}
					for _, n := range m.Norms {
						seen = append(seen, slices.Clone(n.Mean().Floats()), slices.Clone(n.Variance().Floats()))
					}
					vm.Reset()
				}
				for _, n := range m.Learnables {
					see(n.Value())
				}
				if first == nil {
					first = seen
					continue
				}
				for i, x := range seen {
					for j, v := range x {
						if want := first[i][j]; !(math.Abs(v-want) <= 1e-9*max(1, math.Abs(want))) {
							t.Fatalf("value %d, element %d, is %v; on the TapeMachine it is %v", i, j, v, want)
						}
					}
				}
			}
		})
	}
}

// The first weights follow from the seed and the name alone.
func TestSeed(t *testing.T) {
	draw := func(s uint64) []float64 {
		m, err := Language(tensor.Float64, 1, 2, Transformer{Layers: 1, Dim: 4, Heads: 2, KVHeads: 1, Hidden: 3})
		if err != nil {
			t.Fatal(err)
		}
		if err := seed(m, s); err != nil {
			t.Fatal(err)
		}
		var all []float64
		for _, n := range m.Learnables {
			all = append(all, n.Value().Data().([]float64)...)
		}
		return all
	}
	if !slices.Equal(draw(1), draw(1)) {
		t.Error("the same seed draws other weights")
	}
	if slices.Equal(draw(1), draw(2)) {
		t.Error("another seed draws the same weights")
	}
}

// Sizes that make no sense are errors.
func TestBadSizes(t *testing.T) {
	for _, s := range []Transformer{
		{Layers: 1, Dim: 6, Heads: 4, KVHeads: 2, Hidden: 3}, {Layers: 1, Dim: 8, Heads: 4, KVHeads: 3, Hidden: 3},
	} {
		if _, err := Language(tensor.Float32, 1, 4, s); err == nil {
			t.Errorf("%+v: no error", s)
		}
		if _, err := DigitsViT(tensor.Float32, 1, s); err == nil {
			t.Errorf("%+v: no error", s)
		}
		if _, err := MoE(tensor.Float32, 1, 4, 2, s); err == nil {
			t.Errorf("%+v: no error", s)
		}
	}
}
