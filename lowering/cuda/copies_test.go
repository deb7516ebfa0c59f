package cuda_test

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/passes/passtest"
)

// A copying GPU counts the copies to a GPU that its streams begin.
type copying struct {
	driver.GPU
	copies *int
}

func (c copying) NewStream() (driver.Stream, error) {
	s, err := c.GPU.NewStream()
	return copyingStream{s, c.copies}, err
}

type copyingStream struct {
	driver.Stream
	copies *int
}

func (s copyingStream) CopyIn(dst driver.Ptr, src unsafe.Pointer, n int64) error {
	*s.copies++
	return s.Stream.CopyIn(dst, src, n)
}

func (s copyingStream) EndCapture() (driver.Graph, error) {
	g, err := s.Stream.EndCapture()
	return copyingGraph{g}, err
}

type copyingGraph struct{ driver.Graph }

func (g copyingGraph) Launch(s driver.Stream) error { return g.Graph.Launch(s.(copyingStream).Stream) }

// TestCopiesAtOnce: the inputs of a run are one copy, whatever lies between them in the program.
func TestCopiesAtOnce(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 65))
		y := b.Binary(graph.Mul, x, b.Param("w", graph.TypeOf(graph.F32, 65)))
		b.Input("empty", graph.TypeOf(graph.F32, 0))
		scale := b.Input("scale", graph.TypeOf(graph.F32))
		b.Output("y", b.Binary(graph.Mul, y, b.Broadcast(scale, y.Type.Shape)))
		b.Output("z", b.Binary(graph.Add, x, b.Input("z in", graph.TypeOf(graph.F32, 65))))
	})
	gpu, compiler := open(t)
	copies := 0
	d := cuda.New(cuda.On(copying{gpu, &copies}, compiler))
	p := passtest.Lowered(t, g, d, true)
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for run := range 2 {
		in := graphtest.Values(rand.New(rand.NewPCG(5, uint64(run))), g)
		for i, b := range p.Buffers {
			if b.Role == lowering.Input || b.Role == lowering.Param {
				if err := e.Bind(i, in[b.Name].Clone()); err != nil {
					t.Fatal(err)
				}
			}
		}
		copies = 0
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
		if want := 2 - run; copies != want { // of the parameter, and of the inputs in what is recorded once
			t.Errorf("run %d begins %d copies, not %d", run+1, copies, want)
		}
		want, _, err := ref.EvalBound(g, in)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range p.Outputs {
			if err := ref.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
				t.Errorf("%s: %v", o.Name, err)
			}
		}
	}
}
