package cuda_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/passes/passtest"
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

// decoder is what a decoder does to a product's queries, keys and values, which have places of their own in caches, and an
// attention of them. Then a row of a table is read,
// which may not be there.
func decoder(b *graph.Builder) {
	const heads, kv, d, capacity = 4, 2, 6, 7
	at, index := b.Input("at", graph.TypeOf(graph.I64)), b.Input("index", graph.TypeOf(graph.I64, 1))
	other := b.Input("other", graph.TypeOf(graph.I64))
	x := b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 3, 5)), b.Param("w", graph.TypeOf(graph.F32, 5, (heads+2*kv)*d)), false, false)
	part := func(first, n int) *graph.Node { return b.Reshape(b.Slice(x, 1, first*d, n*d, 1), 3, n, 1, d) }
	turned := func(x *graph.Node) *graph.Node { return b.Add(graph.RoPE{Base: 100}, x, at) }
	half := func(x *graph.Node) *graph.Node { return b.CastTo(graph.BF16, x) }
	keys := b.Cache("keys", 2, capacity, half(turned(part(heads, kv))), at)
	values := b.Cache("values", 2, capacity, half(part(heads+kv, kv)), other)
	op := graph.Attention{Scale: 0.5}
	y := b.CastTo(graph.F32, b.Add(op, half(turned(part(0, heads))), keys, values))
	row := b.Add(graph.Gather{Axis: 0}, b.Param("table", graph.TypeOf(graph.F32, 2, d)), index)
	b.Output("y", b.Binary(graph.Add, y, b.Broadcast(row, y.Type.Shape)))
}

// TestMovesOverwritten: rotations, casts and writes into caches are one launch, which writes in place. What a run that fails has
// written is taken back.
func TestMovesOverwritten(t *testing.T) {
	for name, opts := range map[string][]cuda.Option{"recorded": nil, "each": {cuda.Each()}, "apart": {cuda.Apart()}} {
		t.Run(name, func(t *testing.T) { runDecoder(t, opts...) })
	}
}

// TestMovesOwn: rows of a cache that one launch alone overwrites are kept before it waits. A cache that two launches write is the
// own of neither.
func TestMovesOwn(t *testing.T) {
	d := cuda.New(cuda.Precision(kernels.BF16))
	p := passtest.Lowered(t, built(t, decoder), d, true)
	keeps := 0
	for i, k := range d.Kernels(p) {
		if f, ok := p.Launches[i].Op.(graph.Fusion); !ok || f.Anchor != graph.AnchorMoves {
			continue
		}
		for _, text := range strings.Split(k.Generated(), "DEVICE void ")[1:] {
			if at := strings.Index(text, "keep<"); at >= 0 {
				keeps++
				if at > strings.Index(text, "late_read();") {
					t.Errorf("kept after it waits:\n%s", text)
				}
			}
		}
	}
	if keeps != 2 {
		t.Errorf("%d parts are kept\n%v", keeps, p)
	}
	p = passtest.Lowered(t, built(t, func(b *graph.Builder) {
		at, cache := b.Input("at", graph.TypeOf(graph.I64)), b.State("cache", graph.TypeOf(graph.F32, 3, 7))
		write := func(into, x *graph.Node) *graph.Node { return b.Add(graph.UpdateSlice{Axis: 1}, into, x, at) }
		first := write(cache, b.Input("x", graph.TypeOf(graph.F32, 3, 1)))
		b.Update(cache, write(first, b.Reduce(graph.Sum, first, true, 1)))
	}), d, true)
	writes := 0
	for i := range p.Launches {
		if _, ok := p.Launches[i].Op.(graph.UpdateSlice); ok {
			writes++
			if own := cuda.Own(p, i); own[0] || !own[2] {
				t.Errorf("launch %d has of its own %v", i, own)
			}
		}
	}
	if writes != 2 {
		t.Errorf("%d writes\n%v", writes, p)
	}
}

func runDecoder(t *testing.T, opts ...cuda.Option) {
	g := built(t, decoder)
	in := values(g)
	at, index := graph.NewTensor(g.Lookup("at").Type), graph.NewTensor(g.Lookup("index").Type)
	other := graph.NewTensor(g.Lookup("other").Type)
	in["at"], in["other"], in["index"] = at, other, index
	state := map[string]*graph.Tensor{"keys": in["keys"].Clone(), "values": in["values"].Clone()}
	e, p := compiledOf(t, g, in, true, append(opts, cuda.Precision(kernels.BF16))...)
	moves := 0
	for i := p.Prepared; i < len(p.Launches); i++ {
		switch op := p.Launches[i].Op.(type) {
		case graph.RoPE, graph.UpdateSlice:
			t.Errorf("launch %d is %s", i, op.OpName())
		case graph.Fusion:
			if op.Anchor == graph.AnchorMoves {
				moves++
			}
		}
	}
	for _, u := range p.Updates {
		if u.Target != u.Value {
			t.Errorf("%q is copied", p.Buffers[u.Target].Name)
		}
	}
	if moves != 1 {
		t.Fatalf("%d launches of moves\n%v", moves, p)
	}
	bound := map[string]*graph.Tensor{"x": in["x"], "w": in["w"], "table": in["table"], "at": at, "other": other, "index": index}
	for name, v := range map[string]*graph.Tensor{"at": at, "other": other, "index": index, "keys": state["keys"],
		"values": state["values"]} {
		if err := e.Bind(bufferOf(t, p, name), v); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		at, other, index float64
		want             string
	}{{at: 2, other: 2}, {at: 3, other: 3, index: 2, want: "gather: index 2"}, {at: 7, other: 7, want: " 7"},
		{at: 7, other: 1, want: " 7"}, {at: 2, other: 8, want: " 8"}, {at: 6, other: 0, index: 1}} {
		at.SetFloat(0, c.at)
		other.SetFloat(0, c.other)
		index.SetFloat(0, c.index)
		for name, v := range state {
			bound[name] = v.Clone()
		}
		wanted, updated, err := ref.EvalBound(g, bound)
		if got := e.Run(); c.want != "" {
			wants(t, got, c.want)
			updated = map[string]ref.Value{"keys": ref.FromTensor(bound["keys"]), "values": ref.FromTensor(bound["values"])}
		} else if err := errors.Join(err, got, ref.Check(e.Output(p.Outputs[0].Buffer), wanted["y"])); err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		if err := e.Sync(); err != nil {
			t.Fatal(err)
		}
		for name, v := range state {
			if err := ref.Check(v, updated[name]); err != nil {
				t.Errorf("run %d: %q: %v", i, name, err)
			}
		}
	}
}
