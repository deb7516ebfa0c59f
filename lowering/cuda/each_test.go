package cuda_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/emulator"
)

// TestEach has the second of two launches read memory that is not there. Launch by launch, the error names it. It is
// always the emulator that runs this: a GPU would serve the process no more.
func TestEach(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		x := b.Reduce(graph.Sum, b.Input("x", graph.TypeOf(graph.F32, 4, 8)), false, 0)
		b.Output("y", b.Add(graph.Softmax{Axis: 0}, x))
	})
	wild := &kernels.Kernel{
		Source: kernels.Prelude() + "struct Params { const float *a0; float *r0; };\n" +
			"KERNEL(wild, 8, 1) { p.r0[threadIdx.x] = *reinterpret_cast<const float *>(u64(64)); }\n",
		Steps: []kernels.Step{{Entry: "wild", Grid: [3]int{1, 1, 1}, Block: 8,
			Params: []kernels.Param{kernels.Arg(0, 0), kernels.Result(0, 0)}}},
	}
	made := 0
	compile := func(op graph.Op, args, results []kernels.Operand, cfg kernels.Config) (*kernels.Kernel, error) {
		if f, ok := op.(graph.Fusion); ok && f.Kind == graph.KindSoftmax {
			made++
			return wild, nil
		}
		return kernels.Compile(op, args, results, cfg)
	}
	gpu, compiler, err := emulator.Open(emulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := cuda.New(cuda.On(gpu, compiler), cuda.By(compile), cuda.Each())
	p := lowered(t, g, d)
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
	for i, b := range p.Buffers {
		if b.Role == lowering.Input {
			if err := e.Bind(i, in[b.Name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if made == 0 {
		t.Fatalf("no launch is the wild one:\n%v", p)
	}
	if err := e.Run(); err == nil || !strings.Contains(err.Error(), "launch 2, ") {
		t.Errorf("error %v", err)
	}
	if err := e.Run(); err == nil || !strings.Contains(err.Error(), "launch 2, ") {
		t.Errorf("error %v of a second run", err)
	}
}

// TestApart has a launch read 4 bytes behind its operand: in one block that is another buffer, apart it is found.
func TestApart(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 64))
		b.Output("y", b.Unary(graph.Tanh, x))
		b.Output("z", b.Binary(graph.Add, b.Input("behind", graph.TypeOf(graph.F32, 64)), x))
	})
	wild := &kernels.Kernel{
		Source: kernels.Prelude() + "struct Params { const float *a0; float *r0; };\n" +
			"KERNEL(wild, 64, 1) { p.r0[threadIdx.x] = p.a0[threadIdx.x + 1]; }\n",
		Steps: []kernels.Step{{Entry: "wild", Grid: [3]int{1, 1, 1}, Block: 64,
			Params: []kernels.Param{kernels.Arg(0, 0), kernels.Result(0, 0)}}},
	}
	compile := func(op graph.Op, args, results []kernels.Operand, cfg kernels.Config) (*kernels.Kernel, error) {
		if len(args) == 1 {
			return wild, nil
		}
		return kernels.Compile(op, args, results, cfg)
	}
	for _, apart := range []bool{false, true} {
		gpu, compiler, err := emulator.Open(emulator.Options{})
		if err != nil {
			t.Fatal(err)
		}
		opts := []cuda.Option{cuda.On(gpu, compiler), cuda.By(compile)}
		if apart {
			opts = append(opts, cuda.Apart())
		}
		d := cuda.New(opts...)
		p := lowered(t, g, d)
		e, err := d.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for name, v := range values(g) {
			if err := e.Bind(bufferOf(t, p, name), v); err != nil {
				t.Fatal(err)
			}
		}
		err = e.Run()
		if found := err != nil && strings.Contains(err.Error(), "0 bytes behind the end of the memory of 256 bytes"); found != apart {
			t.Errorf("apart %v: error %v\n%v", apart, err, p)
		}
	}
}
