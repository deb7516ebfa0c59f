package cpu_test

import (
	"errors"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// refusing is a host operation that fails when its operand's first element is not 0.
type refusing struct{}

func (*refusing) Do(args []*graph.Tensor) (*graph.Tensor, error) {
	if args[0].Float(0) != 0 {
		return nil, errors.New("as it was told")
	}
	return args[0].Clone(), nil
}

// A cacheStep is a graph that keeps a cache [2,6,3] as state; whether its updates may be made in place.
type cacheStep struct {
	name    string
	inPlace int // launches
	build   func(b *graph.Builder, cache, update, start *graph.Node)
}

var overwrite = graph.UpdateSlice{Axis: 1}

var cacheSteps = []cacheStep{
	{"plain", 1, func(b *graph.Builder, cache, update, start *graph.Node) {
		b.Output("old", b.Reduce(graph.Sum, cache, false, 0, 1, 2))
		y := b.Add(overwrite, cache, update, start)
		b.Update(cache, y)
		b.Output("new", b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 1))
	}},
	{"alone", 1, func(b *graph.Builder, cache, update, start *graph.Node) {
		b.Update(cache, b.Add(overwrite, cache, update, start))
	}},
	{"chain", 2, func(b *graph.Builder, cache, update, start *graph.Node) {
		y := b.Add(overwrite, cache, update, start)
		y = b.Add(overwrite, y, b.Unary(graph.Neg, update), b.BinaryScalar(graph.Add, start, 2))
		b.Update(cache, y)
		b.Output("new", b.Reduce(graph.Sum, y, false, 1))
	}},
	{"read later", 0, func(b *graph.Builder, cache, update, start *graph.Node) {
		y := b.Add(overwrite, cache, update, start)
		b.Update(cache, y)
		b.Output("both", b.Binary(graph.Sub, y, cache))
	}},
	{"link read later", 0, func(b *graph.Builder, cache, update, start *graph.Node) {
		y := b.Add(overwrite, cache, update, start)
		z := b.Add(overwrite, y, update, b.BinaryScalar(graph.Add, start, 1))
		b.Update(cache, z)
		b.Output("both", b.Binary(graph.Sub, z, y))
	}},
	{"handed out", 0, func(b *graph.Builder, cache, update, start *graph.Node) {
		y := b.Add(overwrite, cache, update, start)
		b.Update(cache, y)
		b.Output("whole", y)
	}},
	{"of itself", 0, func(b *graph.Builder, cache, update, start *graph.Node) {
		b.Update(cache, b.Add(overwrite, cache, cache, b.Scalar(graph.I64, 0)))
		b.Output("x",
			b.Reduce(graph.Sum, b.Binary(graph.Mul, update, b.Broadcast(b.Add(graph.Cast{To: graph.F32}, start), update.Type.Shape)), false,
				1))
	}},
	{"crossed", 2, func(b *graph.Builder, cache, update, start *graph.Node) {
		// Each is overwritten with a part of the other's old value.
		other := b.State("other", cache.Type)
		part := graph.Slice{Axis: 1, Size: 2, Step: 1}
		b.Update(cache, b.Add(overwrite, cache, b.Add(part, other, start), start))
		b.Update(other, b.Add(overwrite, other, b.Add(part, cache, start), b.BinaryScalar(graph.Add, start, 1)))
		b.Output("x", b.Reduce(graph.Sum, update, false, 1))
	}},
	{"of another", 1, func(b *graph.Builder, cache, update, start *graph.Node) {
		other := b.State("other", cache.Type)
		y := b.Add(overwrite, cache, update, start)
		b.Update(cache, y)
		b.Update(other, b.Add(overwrite, y, update, b.BinaryScalar(graph.Add, start, 1)))
	}},
}

func (c cacheStep) graph(t *testing.T, fails bool) *graph.Graph {
	return built(t, func(b *graph.Builder) {
		cache := b.State("cache", graph.TypeOf(graph.F32, 2, 6, 3))
		c.build(b, cache, b.Input("update", graph.TypeOf(graph.F32, 2, 2, 3)), b.Input("start", graph.TypeOf(graph.I64)))
		if fails {
			flag := b.Input("fail", graph.TypeOf(graph.F32, 1))
			b.Output("host", b.Add(graph.Host{Name: "fails", Type: flag.Type, Impl: &refusing{}}, flag))
		}
	})
}

// step binds the values of one step, runs, and compares what comes out and what is kept with the reference.
func step(t *testing.T, g *graph.Graph, e lowering.Executable, p *lowering.Program, in map[string]*graph.Tensor) {
	t.Helper()
	want, updates, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range in {
		if err := e.Bind(bufferOf(t, p, name), v); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	for _, o := range p.Outputs {
		if err := ref.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
			t.Errorf("output %q: %v\n%v", o.Name, err, p)
		}
	}
	for name, v := range updates {
		if err := ref.Check(in[name], v); err != nil {
			t.Errorf("state %q: %v\n%v", name, err, p)
		}
	}
}

// TestUpdateInPlace runs several steps of each kind, in place or with a copy.
func TestUpdateInPlace(t *testing.T) {
	for _, c := range cacheSteps {
		t.Run(c.name, func(t *testing.T) {
			g := c.graph(t, false)
			for _, workers := range []int{1, 2} {
				in := values(g)
				e, p := compiled(t, g, in, cpu.Workers(workers))
				defer e.Close()
				got := 0
				for _, l := range p.Launches {
					if l.Kind() == "update_slice" && p.Buffers[l.Results[0].Buffer].Role == lowering.State {
						got++
						if l.Args[0].Buffer != l.Results[0].Buffer || l.Bytes != 2*2*2*3*4+8 {
							t.Errorf("in place from %v to %v, %d bytes", l.Args[0], l.Results[0], l.Bytes)
						}
					}
				}
				if got != c.inPlace {
					t.Errorf("%d launches in place, want %d\n%v", got, c.inPlace, p)
				}
				for start := range 3 {
					in["start"].SetFloat(0, float64(start))
					in["update"].SetFloat(start, float64(10+start))
					step(t, g, e, p, in)
				}
			}
		})
	}
}

// TestUpdateFails fails at the start of a slice, in a second one, and in a launch after them: all state stays as it
// was, and the next run is right.
func TestUpdateFails(t *testing.T) {
	for _, c := range cacheSteps {
		t.Run(c.name, func(t *testing.T) {
			g := c.graph(t, true)
			in := values(g)
			in["fail"] = graph.NewTensor(graph.TypeOf(graph.F32, 1))
			e, p := compiled(t, g, in, cpu.Workers(2))
			defer e.Close()
			in["start"].SetFloat(0, 1)
			step(t, g, e, p, in)
			for _, bad := range []struct {
				start, fail float64
				want        string
			}{{2, 1, "as it was told"}, {5, 0, "slice from 5: 2 elements, 1 apart, do not fit into dimension 1 of 6 elements"},
				{3, 1, ""}, {-1, 0, "slice from -1"}} {
				if c.name == "of itself" && bad.fail == 0 {
					continue // its start is a constant
				}
				before := in["cache"].Clone()
				in["start"].SetFloat(0, bad.start)
				in["update"].SetFloat(0, 99)
				in["fail"].SetFloat(0, bad.fail)
				if err := e.Run(); err == nil || !strings.Contains(err.Error(), bad.want) {
					t.Errorf("start %v: error %v, want %q", bad.start, err, bad.want)
				}
				if !in["cache"].Equal(before) {
					t.Errorf("start %v: a run that failed changed the state", bad.start)
				}
			}
			in["start"].SetFloat(0, 0)
			in["fail"].SetFloat(0, 0)
			step(t, g, e, p, in)
		})
	}
}

// TestUpdateConstantStart is refused when compiling.
func TestUpdateConstantStart(t *testing.T) {
	for _, start := range []float64{-1, 5} {
		g := built(t, func(b *graph.Builder) {
			cache := b.State("cache", graph.TypeOf(graph.F32, 2, 6, 3))
			b.Update(cache, b.Named(b.Add(overwrite, cache, b.Input("x", graph.TypeOf(graph.F32, 2, 2, 3)), b.Scalar(graph.I64, start)),
				"mine"))
		})
		_, err := lowering.Lower(g, "cpu")
		if err == nil || !strings.Contains(err.Error(), `"mine"`) ||
			!strings.Contains(err.Error(), "is out of range: 2 elements into axis 1 of 6") {
			t.Errorf("start %v: error %v", start, err)
		}
	}
}
