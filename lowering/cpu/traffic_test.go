package cpu_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	cpukernels "fusec/kernels/cpu"
	"fusec/kernels/cpu/pool"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/passes"
)

// The bytes that a program says its launches move are those of the elements that the kernels really touch: an element
// is read if putting NaN there changes a result, and written if what stood there before the launch is gone after it.
func TestTrafficIsWhatLaunchesTouch(t *testing.T) {
	convolution := func() *graph.Graph {
		b := graph.NewBuilder("convolution")
		x := b.Input("x", graph.TypeOf(graph.F32, 2, 3, 6, 6))
		w := b.Param("w", graph.TypeOf(graph.F32, 4, 3, 3, 3))
		y := b.Add(graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}, x, w)
		y = b.Unary(graph.Tanh,
			b.Binary(graph.Add, y, b.Expand(b.Param("b", graph.TypeOf(graph.F32, 4)), graph.IntsOf(0, 2, 3), y.Type.Shape)))
		y = b.Add(graph.Pool{Fn: graph.AvgPool, Kernel: graph.IntsOf(2, 2), Stride: graph.IntsOf(2, 2), Pad: graph.IntsOf(0, 0, 0, 0)}, y)
		b.Output("y", y)
		g := graphtest.Graph(t, b)
		return g
	}
	training := withGradients(t, block(2, 3, 8, 2, 12))
	training.Name = "training"
	for _, g := range []*graph.Graph{block(2, 3, 8, 2, 12), training, convolution()} {
		t.Run(g.Name, func(t *testing.T) {
			p := lowered(t, g, cpu.New())
			workers := pool.New(1)
			defer workers.Close()
			for i, l := range p.Launches {
				if got := touched(t, p, &l, workers); got != l.Bytes {
					t.Errorf("launch %d, %s: says %d bytes, touches %d\n%v", i, l.Node.Where(), l.Bytes, got, p)
				}
			}
		})
	}
}

// touched counts the bytes that a launch reads and writes.
func touched(t *testing.T, p *lowering.Program, l *lowering.Launch, workers *pool.Pool) int64 {
	t.Helper()
	r := rand.New(rand.NewPCG(3, 3))
	memory := map[int]*graph.Tensor{} // of each buffer
	operands := func(views []lowering.View) (list []cpukernels.Operand) {
		for _, v := range views {
			if b := p.Buffers[v.Buffer]; memory[v.Buffer] == nil {
				memory[v.Buffer] = graphtest.Tensor(r, b.Type)
				if b.Role == lowering.Const {
					memory[v.Buffer] = b.Value.Clone()
				}
			}
			list = append(list, cpukernels.Operand{DType: v.DType, Layout: v.Layout})
		}
		return list
	}
	args, results := operands(l.Args), operands(l.Results)
	kernel, err := cpukernels.Compile(l.Op, args, results, cpukernels.NewEnv(workers))
	if err != nil {
		t.Fatal(err)
	}
	at := func(views []lowering.View) (list []cpukernels.Memory) {
		for _, v := range views {
			list = append(list, cpukernels.MemoryOf(memory[v.Buffer]))
		}
		return list
	}
	in, out := at(l.Args), at(l.Results)
	run := func(before float64) (all []float64) {
		for _, v := range l.Results {
			memory[v.Buffer].CopyFrom(graph.Filled(memory[v.Buffer].Type, before))
		}
		if err := kernel.Run(in, out); err != nil {
			t.Fatal(err)
		}
		for _, v := range l.Results {
			all = append(all, memory[v.Buffer].Floats()...)
		}
		return all
	}

	var n int64
	clean, other := run(3), run(-7)
	i := 0
	for _, v := range l.Results {
		for range memory[v.Buffer].Type.Shape.Elems() {
			if clean[i] == other[i] {
				n += int64(v.DType.Size())
			}
			i++
		}
	}
	seen := map[int]bool{}
	for _, v := range l.Args {
		if seen[v.Buffer] {
			continue
		}
		seen[v.Buffer] = true
		m := memory[v.Buffer]
		for i := range m.Type.Shape.Elems() {
			old := m.Float(i)
			m.SetFloat(i, math.NaN())
			if !slices.Equal(run(3), clean) { // NaN is equal to nothing
				n += int64(v.DType.Size())
			}
			m.SetFloat(i, old)
		}
	}
	return n
}

// A fused transformer block moves at least 40 % fewer bytes than the same block with a launch for each operation.
func TestFusionSavesTraffic(t *testing.T) {
	g := block(4, 128, 256, 8, 1024)
	traffic := func(disable map[string]bool) (n int64) {
		d := cpu.New()
		final, _, err := passes.Run(g, passes.Config{Target: d, Disable: disable})
		if err != nil {
			t.Fatal(err)
		}
		p, err := lowering.Lower(final, d.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range p.Launches {
			n += l.Bytes
		}
		return n
	}
	fused := traffic(nil)
	unfused := traffic(map[string]bool{"raise": true, "fuse-attention": true, "fuse-regions": true})
	if float64(fused) > 0.6*float64(unfused) {
		t.Errorf("the fused block moves %d bytes, the unfused one %d", fused, unfused)
	}
}
