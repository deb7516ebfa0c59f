package cuda_test

import (
	"errors"
	"fmt"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cuda"
)

// caches are updated at starts that the inputs give, one of them twice and in many caches more than one step of the end
// restores; then a row of a table is read, which may not be there, and a user's operation runs, which may fail.
func caches(fail *error) func(b *graph.Builder) {
	return func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 2, 3, 4))
		start, second, index := b.Input("start", graph.TypeOf(graph.I64)), b.Input("second", graph.TypeOf(graph.I64)),
			b.Input("index", graph.TypeOf(graph.I64, 1))
		keys := b.State("keys", graph.TypeOf(graph.F32, 2, 9, 4))
		once := b.Add(graph.UpdateSlice{Axis: 1}, keys, x, start)
		twice := b.Add(graph.UpdateSlice{Axis: 1}, once, b.Unary(graph.Neg, x), second)
		b.Update(keys, twice)
		half := b.State("half", graph.TypeOf(graph.BF16, 7, 3))
		rows := b.Reshape(b.Slice(b.Slice(x, 2, 0, 3, 1), 0, 0, 1, 1), 3, 3)
		b.Update(half, b.Add(graph.UpdateSlice{Axis: 0}, half, b.CastTo(graph.BF16, rows), start))
		for i := range 70 {
			s := b.State(fmt.Sprint("more ", i), graph.TypeOf(graph.F32, 2, 9, 4))
			b.Update(s, b.Add(graph.UpdateSlice{Axis: 1}, s, x, start))
		}
		picked := b.Add(graph.Gather{Axis: 0}, b.Param("table", graph.TypeOf(graph.F32, 5, 4)), index)
		sum := b.Reduce(graph.Sum, twice, false, 0, 1)
		sum = b.Add(graph.Host{Name: "may fail", Type: sum.Type, Impl: mayFail{fail}}, sum)
		b.Output("y", b.Binary(graph.Add, sum, b.Reshape(picked, 4)))
	}
}

// mayFail is a user's operation that passes its operand on, or fails.
type mayFail struct{ err *error }

func (m mayFail) Do(args []*graph.Tensor) (*graph.Tensor, error) { return args[0].Clone(), *m.err }

// TestOverwritten updates caches in place: the program has no copy of one. A run that fails, in whatever way, leaves them as
// they were, and the next goes on from there.
func TestOverwritten(t *testing.T) {
	var fail error
	g := built(t, caches(&fail))
	in := values(g)
	onHost := func(op graph.Op, args, results []kernels.Operand, cfg kernels.Config) (*kernels.Kernel, error) {
		if _, ok := op.(graph.UpdateSlice); ok {
			return nil, errors.New("not here")
		}
		return kernels.Compile(op, args, results, cfg)
	}
	for name, opts := range map[string][]cuda.Option{
		"recorded": nil, "each": {cuda.Each()}, "apart": {cuda.Apart()}, "on the processor": {cuda.By(onHost)},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := compiled(t, g, in, opts...)
			for _, u := range p.Updates {
				if u.Target != u.Value {
					t.Fatalf("%q is copied\n%v", p.Buffers[u.Target].Name, p)
				}
			}
			state := map[string]*graph.Tensor{}
			for i, b := range p.Buffers {
				if b.Role == lowering.State {
					state[b.Name] = in[b.Name].Clone()
					if err := e.Bind(i, state[b.Name]); err != nil {
						t.Fatal(err)
					}
				}
			}
			bound := map[string]*graph.Tensor{"x": in["x"], "table": in["table"]}
			for _, name := range []string{"start", "second", "index"} {
				bound[name] = graph.NewTensor(g.Lookup(name).Type)
				if err := e.Bind(bufferOf(t, p, name), bound[name]); err != nil {
					t.Fatal(err)
				}
			}
			for i, c := range []struct {
				start, second, index float64
				fail                 error
				want                 string
			}{
				{start: 2, second: 4},
				{start: 3, second: 1, index: 5, want: "gather: index 5"},
				{start: 1, second: 3, fail: errors.New("as asked"), want: "as asked"},
				{start: 7, second: 2, want: " 7"},
				{start: 3, second: 7, want: " 7"},
				{start: 4, second: 3, index: 4},
				{start: 0, second: 0, index: -1, want: "gather: index -1"},
			} {
				bound["start"].SetFloat(0, c.start)
				bound["second"].SetFloat(0, c.second)
				bound["index"].SetFloat(0, c.index)
				fail = c.fail
				want := map[string]ref.Value{}
				for name, v := range state {
					bound[name] = v.Clone()
					want[name] = ref.FromTensor(bound[name])
				}
				err := e.Run()
				if c.want != "" {
					wants(t, err, c.want)
				} else if err != nil {
					t.Fatal(err)
				} else if _, want, err = ref.EvalBound(g, bound); err != nil {
					t.Fatal(err)
				}
				if err := e.Sync(); err != nil {
					t.Fatal(err)
				}
				for name, v := range state {
					if err := ref.Check(v, want[name]); err != nil {
						t.Errorf("run %d: %q: %v", i, name, err)
					}
				}
			}
		})
	}
}
