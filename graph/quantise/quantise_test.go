package quantise_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/quantise"
	"fusec/kernels/ref"
)

// model has layers of each kind: read as they are and transposed, by two products, and those that stay.
func model(t *testing.T) *graph.Graph {
	return graphtest.Built(t, func(b *graph.Builder) {
		f32 := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
		x := b.Input("x", f32(3, 72))
		h := b.MatMul(x, b.Param("plain", f32(72, 48)), false, false)
		h = b.MatMul(b.Unary(graph.Relu, h), b.Param("transposed", f32(40, 48)), false, true)
		v := b.Param("viewed", f32(40, 40))
		w := b.Transpose(v, 1, 0)
		h = b.MatMul(b.MatMul(h, w, false, false), w, false, false)
		h = b.MatMul(h, b.Param("small", f32(40, 8)), false, false)
		left := b.Param("left", f32(64, 64))
		b.Output("left", b.MatMul(left, b.Input("z", f32(64, 2)), false, false))
		both := b.Param("both", f32(40, 40))
		b.Output("both", b.MatMul(b.MatMul(b.Input("u", f32(2, 40)), both, false, false), both, false, true))
		out := b.Param("out", f32(40, 40))
		b.Output("out", out)
		b.Output("read", b.MatMul(b.Input("s", f32(2, 40)), out, false, false))
		b.Output("y", h)
	})
}

// TestLayers lists what is stored and what is not.
func TestLayers(t *testing.T) {
	want := map[string]string{"plain": "", "transposed": "", "viewed": "", "small": "less than", "left": "reads it, too",
		"both": "either of its axes", "out": "an output"}
	for _, l := range quantise.Layers(model(t)) {
		reason, ok := want[l.Weight.Name]
		if !ok && l.Weight.Name != "left" || (reason == "") != (l.Reason == "") || !strings.Contains(l.Reason, reason) {
			t.Errorf("%s: %q", l.Weight.Name, l.Reason)
		}
		delete(want, l.Weight.Name)
	}
	delete(want, "left") // no layer: it is the left operand
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// TestQuantise stores weights in each form: the model with them computes nearly the same, and what calibration measures is by
// how much it is off.
func TestQuantise(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	g := model(t)
	weights, in := graphtest.Weights(r, g), graphtest.Values(r, g)
	for name, w := range weights {
		in[name] = w
	}
	want, _, err := ref.Eval(g, in)
	if err != nil {
		t.Fatal(err)
	}
	var layers []quantise.Layer
	for _, l := range quantise.Layers(g) {
		if l.Reason == "" {
			layers = append(layers, l)
		}
	}
	for _, c := range []struct {
		o     quantise.Options
		limit float64
	}{{quantise.Options{Weights: graph.I8}, 0.03}, {quantise.Options{Weights: graph.I8, Group: 16}, 0.08},
		{quantise.Options{Weights: graph.I4, Group: 32}, 0.35}, {quantise.Options{Weights: graph.I4}, 0.5}} {
		moments, err := quantise.Moments(g, layers)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := ref.Eval(moments, in)
		if err != nil {
			t.Fatal(err)
		}
		stored := make([]quantise.Stored, len(layers))
		for i, l := range layers {
			stored[i].Layer = l
			w := weights[l.Weight.Name]
			if stored[i].Q, stored[i].Scale, err = l.Matrix(w, quantise.Importance(i, &layers[i], out, nil), c.o); err != nil {
				t.Fatal(err)
			}
			if e := stored[i].WeightError(w, c.o); e == 0 || e > c.limit {
				t.Errorf("%v: the weights of %s are off by %v", c.o, l.Weight.Name, e)
			}
			if bytes := stored[i].Q.Type.Bytes() + stored[i].Scale.Type.Bytes(); bytes != l.Bytes(c.o) {
				t.Errorf("%s: %d bytes, not %d", l.Weight.Name, bytes, l.Bytes(c.o))
			}
		}
		losses, more, err := quantise.Losses(g, stored, c.o)
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range in {
			more[name] = v
		}
		if out, _, err = ref.Eval(losses, more); err != nil {
			t.Fatal(err)
		}
		for i := range stored {
			off, size := quantise.Lost(i, &stored[i].Layer, out)
			if e := quantise.Relative(off, size); e == 0 || e > c.limit {
				t.Errorf("%v: layer %s is off by %v", c.o, stored[i].Weight.Name, e)
			}
		}
		h, values, err := quantise.Replace(g, weights, stored, c.o)
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range graphtest.Values(r, g) {
			if n := g.Lookup(name); n.Op == graph.Op(graph.Input{Type: v.Type}) {
				values[name] = in[name]
			}
		}
		got, _, err := ref.Eval(h, values)
		if err != nil {
			t.Fatal(err)
		}
		off, size := 0.0, 0.0
		for i, w := range want["y"].Floats() {
			off, size = off+math.Pow(got["y"].Float(i)-w, 2), size+w*w
		}
		if e := quantise.Relative(off, size); e == 0 || e > 2*c.limit {
			t.Errorf("%v: the output is off by %v", c.o, e)
		}
	}
}

// TestZeros stores weights that are all zero, and refuses those that are not finite.
func TestZeros(t *testing.T) {
	g := model(t)
	l := quantise.Layers(g)[0]
	w := graph.NewTensor(l.Weight.Type)
	o := quantise.Options{Weights: graph.I4, Group: 8}
	q, scale, err := l.Matrix(w, nil, o)
	if err != nil || q.Float(3) != 0 || !(scale.Float(0) > 0) {
		t.Errorf("%v: %v times %v", err, q.Float(3), scale.Float(0))
	}
	w.SetFloat(5, math.NaN())
	if _, _, err := l.Matrix(w, nil, o); err == nil || !strings.Contains(err.Error(), "element 5 is NaN") {
		t.Errorf("error %v", err)
	}
	if _, _, err := l.Matrix(graph.NewTensor(graph.TypeOf(graph.F64, 2, 2)), nil, o); err == nil {
		t.Error("weights of another type are taken")
	}
	for _, o := range []quantise.Options{{Weights: graph.F32}, {Weights: graph.I8, Group: 12}, {Weights: graph.I4, Group: -8}} {
		if o.Check() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	if (quantise.Options{Weights: graph.I4, Group: 64}).Check() != nil {
		t.Error("i4 in groups of 64 is refused")
	}
}
