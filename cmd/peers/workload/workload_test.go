package workload

import (
	"math"
	"slices"
	"testing"
)

func TestGen(t *testing.T) {
	got := Gen(1, 2, 3) // 104742 mod 1000 = 742, then +7919 each
	for i, u := range []float32{742, 661, 580} {
		if want := (u/1000 - 0.5) * 2; got[i] != want {
			t.Errorf("Gen(1, 2)[%d] = %v, want %v", i, got[i], want)
		}
	}
	if x := (Tensor{Ones: true, Shape: []int{2}}).Data(); x[0] != 1 || x[1] != 1 {
		t.Errorf("ones: %v", x)
	}
}

func TestByName(t *testing.T) {
	if w, ok := ByName("block"); !ok || len(w.Tensors) != 13 {
		t.Errorf("block: %v %d", ok, len(w.Tensors))
	}
	if _, ok := ByName("nothing"); ok {
		t.Error("found a workload that is not there")
	}
}

func TestChecksumSeesPlaces(t *testing.T) {
	a, _ := Checksum([]float32{1, 2, 3})
	b, _ := Checksum([]float32{1, 3, 2})
	if a == b {
		t.Error("a permutation has the same checksum")
	}
}

func TestNoise(t *testing.T) {
	x := Noise(3, 0.5, 2, 100000)
	var mean, square float64
	for _, v := range x {
		if v < -0.5 || v >= 1.5 {
			t.Fatalf("%v is outside", v)
		}
		mean += float64(v) / 1e5
		square += float64(v) * float64(v) / 1e5
	}
	if math.Abs(mean-0.5) > 0.01 || math.Abs(square-mean*mean-1.0/3) > 0.01 {
		t.Errorf("mean %v, mean of squares %v", mean, square)
	}
	if slices.Equal(x[:10], Noise(4, 0.5, 2, 10)) {
		t.Error("another seed has the same numbers")
	}
	if got := mix(1); got != 0x688990c0 { // as rivals/conv_networks.py has it
		t.Errorf("mix(1) = %#x", got)
	}
}

// TestNetworks: the networks have the sizes that their papers and libraries give, and each layer's parameters fit.
func TestNetworks(t *testing.T) {
	for name, want := range map[string]struct {
		weights int
		gflops  float64
	}{
		"conv-resnet18": {11689512, 3.63}, "conv-resnet50": {25557032, 8.18}, "conv-mobilenet-v2": {3504872, 0.60},
	} {
		w, _ := ByName(name)
		weights := 0
		for _, l := range w.Net {
			names := l.Tensors
			if l.Kind == LayerNorm {
				names = names[:2] // the statistics are not counted
			}
			for _, x := range w.Tensors {
				if slices.Contains(names, x.Name) {
					weights += x.elems()
				}
			}
		}
		if weights != want.weights || math.Abs(w.FLOPs/1e9-want.gflops) > 0.01 {
			t.Errorf("%s: %d weights, %.3f GFLOP, want %d and %v", name, weights, w.FLOPs/1e9, want.weights, want.gflops)
		}
	}
	for _, w := range convolutions() {
		names := map[string]bool{}
		for i, x := range w.Tensors {
			if names[x.Name] || x.Seed != i+1 || !x.Noise {
				t.Errorf("%s: tensor %d is %+v", w.Name, i, x)
			}
			names[x.Name] = true
		}
		for i, l := range w.Net {
			for _, a := range l.Args {
				if a > i {
					t.Errorf("%s: layer %d reads value %d", w.Name, i, a)
				}
			}
		}
		eight, ok := ByName(w.Name + "-b8")
		if ok && (eight.FLOPs != 8*w.FLOPs || len(eight.Net) != len(w.Net) || eight.Out[0] != 8) {
			t.Errorf("%s: %v FLOP, out %v", eight.Name, eight.FLOPs, eight.Out)
		}
	}
}
