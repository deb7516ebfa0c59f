package capi

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"fusec/graph"
	_ "fusec/graph/graphtest/untuned"
	"fusec/kernels/ref"
)

// tensor is a DLPack tensor of f32, contiguous unless strides are given.
func tensor(data []float32, dims []int64, strides ...int64) *Tensor {
	t := &Tensor{Data: unsafe.Pointer(unsafe.SliceData(data)), Device: Device{Type: deviceCPU}, NDim: int32(len(dims)),
		DType: DTypeOf(graph.F32), Shape: unsafe.SliceData(dims)}
	if strides != nil {
		t.Strides = unsafe.SliceData(strides)
	}
	return t
}

func elems(dims []int64) int {
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	return int(n)
}

// values reads a tensor that is contiguous.
func values(t *Tensor) []float32 {
	return unsafe.Slice((*float32)(t.Data), elems(unsafe.Slice(t.Shape, t.NDim)))
}

func random(r *rand.Rand, dims ...int64) *Tensor {
	data := make([]float32, elems(dims))
	for i := range data {
		data[i] = float32(r.NormFloat64())
	}
	return tensor(data, dims)
}

func zeros(dims ...int64) *Tensor { return tensor(make([]float32, elems(dims)), dims) }

const model = `fusec graph 1 "model" {
  x = input : f32[3,4]
  w = param : f32[4,2]
  %2 = matmul x w : f32[3,2]
  %3 = unary[fn=tanh] %2 : f32[3,2]
  %4 = reduce[fn=sum axes=[0,1]] %3 : f32[]
  output y = %3
  output loss = %4
}
`

func TestProgram(t *testing.T) {
	p, err := Parse([]byte(model), []string{"threads=1", "gradient=dw:loss:w"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := rand.New(rand.NewPCG(1, 2))
	x, w := random(r, 3, 4), random(r, 4, 2)
	if err := p.Set("w", w); err != nil {
		t.Fatal(err)
	}
	for _, in := range []*Tensor{x, transposed(x, 3, 4)} {
		if err := p.Set("x", in); err != nil {
			t.Fatal(err)
		}
		if err := p.Run(); err != nil {
			t.Fatal(err)
		}
		var y, dw Tensor
		if err := p.Get("y", &y); err != nil {
			t.Fatal(err)
		}
		if err := p.Get("dw", &dw); err != nil {
			t.Fatal(err)
		}
		want, wantDW := make([]float64, 6), make([]float64, 8)
		for i := range 3 {
			for j := range 2 {
				for k := range 4 {
					want[i*2+j] += float64(values(x)[i*4+k]) * float64(values(w)[k*2+j])
				}
				want[i*2+j] = math.Tanh(want[i*2+j])
				for k := range 4 {
					wantDW[k*2+j] += float64(values(x)[i*4+k]) * (1 - want[i*2+j]*want[i*2+j])
				}
			}
		}
		near(t, "y", values(&y), want)
		near(t, "dw", values(&dw), wantDW)
	}
	for k, want := range []string{"x", "w", "", "y loss dw"} {
		vs, err := p.Values(Kind(k))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, v := range vs {
			names = append(names, v.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("values of kind %d: %q, want %q", k, got, want)
		}
	}
	for form, want := range map[string]string{"fusions": `"kind":"linear"`, "trace": `"schema":"fusec.trace/`, "svg": "<svg",
		"html": "<html", "dot": "digraph", "steps": `"steps":0`} {
		text, err := p.Report(form)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("report %s: %v, without %s: %.200s", form, err, want, text)
		}
	}
}

// transposed describes the same values as x by strides, from memory in column-major order.
func transposed(x *Tensor, rows, cols int64) *Tensor {
	data := make([]float32, rows*cols)
	for i := range rows {
		for j := range cols {
			data[j*rows+i] = values(x)[i*cols+j]
		}
	}
	return tensor(data, []int64{rows, cols}, 1, rows)
}

func near(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d elements, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		if math.Abs(float64(got[i])-w) > 2e-5*(1+math.Abs(w)) {
			t.Errorf("%s: element %d is %g, want %g", what, i, got[i], w)
			return
		}
	}
}

// TestTraining trains by an optimiser named in the options, saves, and opens what was saved.
func TestTraining(t *testing.T) {
	text := strings.Replace(model, "  output y = %3\n", "", 1)
	p, err := Parse([]byte(text), []string{"optimizer=sgd", "optimizer.rate=0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := rand.New(rand.NewPCG(3, 4))
	x, w := random(r, 3, 4), random(r, 4, 2)
	before := append([]float32(nil), values(w)...)
	for name, v := range map[string]*Tensor{"x": x, "w": w} {
		if err := p.Set(name, v); err != nil {
			t.Fatal(err)
		}
	}
	var first, last float32
	for i := range 5 {
		if err := p.Run(); err != nil {
			t.Fatal(err)
		}
		var loss Tensor
		if err := p.Get("loss", &loss); err != nil {
			t.Fatal(err)
		}
		if last = values(&loss)[0]; i == 0 {
			first = last
		}
	}
	if !(last < first) {
		t.Errorf("the cost went from %g to %g", first, last)
	}
	for i, v := range values(w) {
		if v != before[i] {
			t.Fatal("training wrote into the caller's weights")
		}
	}
	var now Tensor
	if err := p.Get("w", &now); err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/model.graph"
	if err := p.Save(path); err != nil {
		t.Fatal(err)
	}
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := q.Set("x", x); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Program{p, q} {
		if err := c.Run(); err != nil {
			t.Fatal(err)
		}
	}
	var a, b Tensor
	for c, to := range map[*Program]*Tensor{p: &a, q: &b} {
		if err := c.Get("w", to); err != nil {
			t.Fatal(err)
		}
	}
	for i, v := range values(&a) {
		if v != values(&b)[i] {
			t.Fatalf("weight %d is %g, and from the file %g", i, v, values(&b)[i])
		}
	}
}

// TestRefused gives what cannot be taken.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		options []string
		want    string
	}{
		{[]string{"threads"}, "want name=value"},
		{[]string{"thread=1"}, "did you mean threads?"},
		{[]string{"threads=0"}, "from 1 to"},
		{[]string{"precision=f8"}, "f8"},
		{[]string{"target=tpu"}, "tpu"},
		{[]string{"gradient=a:b"}, "OUTPUT:COST:OF"},
		{[]string{"gradient=a:y:w"}, "not a scalar"},
		{[]string{"gradient=a:loss:v"}, `"v"`},
		{[]string{"gradient=y:loss:w"}, "two outputs are named"},
		{[]string{"optimizer=sgdd"}, "sgdd"},
		{[]string{"optimizer.rate=1"}, "without"},
		{[]string{"optimizer=sgd", "optimizer.speed=1"}, "speed"},
		{[]string{"memory_budget=-1"}, "bytes"},
		{[]string{"target=cuda", "memory=mine"}, "want memory=caller"},
		{[]string{"memory=caller"}, "cuda"},
		{[]string{"dim.batch=-1"}, "size"},
	} {
		if _, err := Parse([]byte(model), c.options); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("options %q: %v, want %q", c.options, err, c.want)
		}
	}
	p, err := Parse([]byte(model), nil)
	if err != nil {
		t.Fatal(err)
	}
	x := zeros(3, 4)
	for want, bad := range map[string]*Tensor{
		"no tensor":             nil,
		"f32[3,5]":              zeros(3, 5),
		"-1 axes":               {NDim: -1},
		"no shape":              {NDim: 2},
		"size -3":               tensor(values(x), []int64{-3, 4}),
		"device type":           {Data: x.Data, Device: Device{Type: 2}, NDim: 2, Shape: x.Shape, DType: x.DType},
		"has no data":           {Device: Device{Type: 1}, NDim: 2, Shape: x.Shape, DType: x.DType},
		"f64[3,4]":              {Data: x.Data, Device: Device{Type: 1}, NDim: 2, Shape: x.Shape, DType: DTypeOf(graph.F64)},
		"of 16 bits in 4 lanes": {Data: x.Data, Device: Device{Type: 1}, NDim: 2, Shape: x.Shape, DType: DType{2, 16, 4}},
	} {
		if err := p.Set("x", bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Set: %v, want %q", err, want)
		}
	}
	if err := p.Set("z", x); err == nil || !strings.Contains(err.Error(), `"z"`) {
		t.Errorf("Set of an unknown name: %v", err)
	}
	if err := p.Run(); err == nil {
		t.Error("a program ran without its values")
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Run(); err != errClosed {
		t.Errorf("a closed program: %v", err)
	}
}

// TestDTypes checks that DLPack's names of element types are read back as the same types.
func TestDTypes(t *testing.T) {
	for _, d := range graph.DTypes() {
		if got := DTypeOf(d).String(); got != d.String() {
			t.Errorf("%v becomes %s", d, got)
		}
	}
}

// TestONNX opens a model whose batch is open.
func TestONNX(t *testing.T) {
	const path = "../../../graph/onnx/testdata/mlp.onnx"
	if _, err := Open(path, nil); err == nil || !strings.Contains(err.Error(), "batch") {
		t.Errorf("without the size: %v", err)
	}
	p, err := Open(path, []string{"dim.batch=3"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	in, err := p.Values(KindInput)
	if err != nil || len(in) != 1 || in[0].Type.Shape.At(0) != 3 {
		t.Errorf("inputs %v, %v", in, err)
	}
	if _, err := Open("../../../testdata/models/lenet.graph", []string{"dim.batch=3"}); err == nil {
		t.Error("a size of a .graph file was taken")
	}
}

// TestKernels compares each kernel and its gradients with the reference, in float64.
func TestKernels(t *testing.T) {
	defer func() {
		if err := FreeKernels(); err != nil {
			t.Error(err)
		}
	}()
	r := rand.New(rand.NewPCG(5, 6))
	rnd := func(dims ...int64) *Tensor { return random(r, dims...) }
	gates := tensor([]float32{0.25, 0, 0.75, 0, 1, 0, 0.5, 0.5, 0, 0, 0, 1, 0, 0, 0}, []int64{5, 3})
	for name, c := range map[string]struct {
		operands []Operand
		y        []int64
		f        func() (forward, error)
		run      func(a []*Tensor, y *Tensor) error
		back     func(a []*Tensor, dy *Tensor, d []*Tensor) error
	}{
		"linear": {[]Operand{{"x", rnd(3, 5)}, {"w", rnd(5, 7)}, {"bias", rnd(7)}}, []int64{3, 7},
			func() (forward, error) { return linear("gelu_erf") },
			func(a []*Tensor, y *Tensor) error { return Linear(a[0], a[1], a[2], nil, "gelu", y) },
			func(a []*Tensor, dy *Tensor, d []*Tensor) error {
				return LinearBackward(a[0], a[1], a[2], "gelu_erf", dy, d[0], d[1], d[2], nil)
			}},
		"attention": {[]Operand{{"q", rnd(2, 4, 3, 8)}, {"k", rnd(2, 2, 5, 8)}, {"v", rnd(2, 2, 5, 6)}}, []int64{2, 4, 3, 6},
			func() (forward, error) { return attention(AttentionOptions{Causal: true}), nil },
			func(a []*Tensor, y *Tensor) error {
				return Attention(a[0], a[1], a[2], nil, AttentionOptions{Causal: true}, y)
			},
			func(a []*Tensor, dy *Tensor, d []*Tensor) error {
				return AttentionBackward(a[0], a[1], a[2], nil, AttentionOptions{Causal: true}, dy, d[0], d[1], d[2])
			}},
		"moe": {moeOperands(rnd(5, 4), gates, rnd(3, 4, 6), rnd(3, 4, 6), rnd(3, 6, 2)), []int64{5, 2},
			func() (forward, error) { return moe("silu") },
			func(a []*Tensor, y *Tensor) error { return MoE(a[0], a[1], a[2], a[3], a[4], "silu", y) },
			func(a []*Tensor, dy *Tensor, d []*Tensor) error {
				return MoEBackward(a[0], a[1], a[2], a[3], a[4], "silu", dy, d[0], d[1], d[2], d[3], d[4])
			}},
		"layer norm": {[]Operand{{"x", rnd(4, 9)}, {"gain", rnd(9)}, {"bias", rnd(9)}}, []int64{4, 9},
			func() (forward, error) { return layerNorm(1e-5), nil },
			func(a []*Tensor, y *Tensor) error { return LayerNorm(a[0], a[1], a[2], 1e-5, y) },
			func(a []*Tensor, dy *Tensor, d []*Tensor) error {
				return LayerNormBackward(a[0], a[1], 1e-5, dy, d[0], d[1], d[2])
			}},
		"rms norm": {[]Operand{{"x", rnd(4, 9)}, {"gain", rnd(9)}}, []int64{4, 9},
			func() (forward, error) { return rmsNorm(1e-6), nil },
			func(a []*Tensor, y *Tensor) error { return RMSNorm(a[0], a[1], 1e-6, y) },
			func(a []*Tensor, dy *Tensor, d []*Tensor) error {
				return RMSNormBackward(a[0], a[1], 1e-6, dy, d[0], d[1])
			}},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := c.f()
			if err != nil {
				t.Fatal(err)
			}
			dy := rnd(c.y...)
			want := reference(t, c.operands, dy, f)
			var args, grads []*Tensor
			for _, o := range c.operands {
				args = append(args, o.Tensor)
				grads = append(grads, zeros(unsafe.Slice(o.Tensor.Shape, o.Tensor.NDim)...))
			}
			for range 2 { // compiled, and found again
				y := zeros(c.y...)
				if err := c.run(args, y); err != nil {
					t.Fatal(err)
				}
				near(t, "y", values(y), want["y"])
				if err := c.back(args, dy, grads); err != nil {
					t.Fatal(err)
				}
				for i, o := range c.operands {
					near(t, "gradient of "+o.Name, values(grads[i]), want[o.Name])
				}
			}
		})
	}
}

// reference computes a kernel's result y and the gradients of its operands by package ref.
func reference(t *testing.T, operands []Operand, dy *Tensor, f forward) map[string][]float64 {
	t.Helper()
	g := graph.New("reference")
	b := graph.Extend(g)
	in, given := inputs{}, map[string]*graph.Tensor{}
	var wrt []*graph.Node
	for _, o := range append(operands[:len(operands):len(operands)], Operand{"dy", dy}) {
		dims, err := o.Tensor.shape()
		if err != nil {
			t.Fatal(err)
		}
		typ := graph.TypeOf(graph.F32, dims...)
		in[o.Name] = b.Input(o.Name, typ)
		if given[o.Name], err = o.Tensor.In(typ); err != nil {
			t.Fatal(err)
		}
		if o.Name != "dy" {
			wrt = append(wrt, in[o.Name])
		}
	}
	y := f(b, in)
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
	grads, err := graph.VJP(g, []*graph.Node{y}, []*graph.Node{in["dy"]}, wrt)
	if err != nil {
		t.Fatal(err)
	}
	b.Output("y", y)
	for i, n := range wrt {
		b.Output(n.Name, grads[i])
	}
	if _, err := b.Graph(); err != nil {
		t.Fatal(err)
	}
	out, _, err := ref.Eval(g, given)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]float64{}
	for name, v := range out {
		want[name] = v.Floats()
	}
	return want
}

func TestKernelsRefused(t *testing.T) {
	x, w := zeros(3, 4), zeros(4, 2)
	for want, err := range map[string]error{
		"no w was given": Linear(x, nil, nil, nil, "", zeros(3, 2)),
		"result y":       Linear(x, w, nil, nil, "", zeros(3, 3)),
		"swosh":          Linear(x, w, nil, nil, "swosh", zeros(3, 2)),
		"parameter":      Linear(x, w, nil, nil, "leaky_relu", zeros(3, 2)),
		"linear: ":       Linear(x, zeros(5, 2), nil, nil, "", zeros(3, 2)),
		"no axis":        LayerNorm(zeros(), nil, nil, 1e-5, zeros()),
		"is wanted":      RMSNormBackward(x, nil, 1e-5, x, nil, zeros(4)),
		"activation is":  MoE(x, x, w, nil, w, "", x),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestCall checks runs on pointers: results in the caller's memory, also those that share memory, and that nothing of it is
// used later.
func TestCall(t *testing.T) {
	p, err := Parse([]byte(`fusec graph 1 "model" {
  x = input : f32[3,4]
  n = input : f32[0,2]
  s = input : f32[]
  w = param : f32[4,2]
  %4 = matmul x w : f32[3,2]
  %5 = binary[fn=mul] %4 s : f32[3,2]
  %6 = unary[fn=tanh] %5 : f32[3,2]
  output y = %6
  output same = %6
  output in = x
  output none = n
}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := rand.New(rand.NewPCG(1, 2))
	x, s, w := random(r, 3, 4), random(r), random(r, 4, 2)
	if err := p.Set("w", w); err != nil {
		t.Fatal(err)
	}
	want := func() []float32 {
		if err := p.Set("x", x); err != nil {
			t.Fatal(err)
		}
		if err := p.Set("n", zeros(0, 2)); err != nil {
			t.Fatal(err)
		}
		if err := p.Set("s", s); err != nil {
			t.Fatal(err)
		}
		if err := p.Run(); err != nil {
			t.Fatal(err)
		}
		var y Tensor
		if err := p.Get("y", &y); err != nil {
			t.Fatal(err)
		}
		return slices.Clone(values(&y))
	}
	first := want()
	for i := range 3 {
		y, same, in := zeros(3, 2), zeros(3, 2), zeros(3, 4)
		at := s.Data
		if i == 2 {
			at = nil // keeps what was set
			if err := p.Set("s", s); err != nil {
				t.Fatal(err)
			}
		}
		results := []unsafe.Pointer{y.Data, same.Data, in.Data, nil}
		if i == 1 {
			results[0] = nil
		}
		if err := p.Call([]unsafe.Pointer{x.Data, nil, at}, results); err != nil {
			t.Fatal(err)
		}
		var view Tensor
		err := p.Get("y", &view)
		if i == 1 {
			if err != nil {
				t.Fatal(err)
			}
			y = &view
		} else if err == nil || !strings.Contains(err.Error(), "memory of a call") {
			t.Errorf("Get after a call: %v", err)
		}
		if !slices.Equal(values(y), first) || !slices.Equal(values(same), first) || !slices.Equal(values(in), values(x)) {
			t.Errorf("call %d: %v, %v and %v, not %v", i, values(y), values(same), values(in), first)
		}
	}
	if err := p.Run(); err == nil || !strings.Contains(err.Error(), "has no value") {
		t.Errorf("Run after a call: %v", err)
	}
	y := zeros(3, 2)
	bad := unsafe.Add(y.Data, 1)
	for message, call := range map[string][2][]unsafe.Pointer{
		"the call has 1":     {{x.Data}, {nil, nil, nil, nil}},
		"the call has 0":     {{x.Data, nil, s.Data}, {}},
		"has no value":       {{nil, nil, s.Data}, {y.Data, nil, nil, nil}},
		"\"y\", of type f32": {{x.Data, nil, s.Data}, {bad, nil, nil, nil}},
	} {
		if err := p.Call(call[0], call[1]); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%v, not %s", err, message)
		}
	}
	if err := p.Call([]unsafe.Pointer{x.Data, nil, s.Data}, []unsafe.Pointer{y.Data, nil, nil, nil}); err != nil {
		t.Fatal(err)
	}
	if got := want(); !slices.Equal(got, first) {
		t.Errorf("after calls %v, not %v", got, first)
	}
	clear(values(y))
	want()
	if values(y)[0] != 0 {
		t.Error("a run wrote into the memory of a call")
	}
	if _, err := p.Pointers(nil, KindInput); err == nil {
		t.Error("a list that is NULL is taken")
	}
}
