package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// A grower makes graphs in which much can be fused: chains and branches over a few shapes, read here and there, with
// reductions that lead back or not, masks, draws, products and views in between.
type grower struct {
	r      *rand.Rand
	b      *graph.Builder
	d      graph.DType
	values []*graph.Node // floats of type d
	names  int
}

func (g *grower) name(prefix string) string {
	g.names++
	return fmt.Sprintf("%s%d", prefix, g.names)
}

// source is a new input or parameter.
func (g *grower) source(dims ...int) *graph.Node {
	t := graph.TypeOf(g.d, dims...)
	if g.r.IntN(2) == 0 {
		return g.b.Param(g.name("w"), t)
	}
	return g.b.Input(g.name("x"), t)
}

// pick returns a value, mostly a late one.
func (g *grower) pick() *graph.Node {
	n := len(g.values)
	if g.r.IntN(3) > 0 {
		return g.values[n-1-g.r.IntN(min(n, 4))]
	}
	return g.values[g.r.IntN(n)]
}

// like returns a value of x's type: one that is there, a new one, or a number.
func (g *grower) like(x *graph.Node) *graph.Node {
	var same []*graph.Node
	for _, v := range g.values {
		if v.Type == x.Type {
			same = append(same, v)
		}
	}
	switch i := g.r.IntN(6); {
	case i == 0:
		return g.b.Scalar(g.d, g.r.NormFloat64())
	case i == 1:
		return g.source()
	case i == 2 || len(same) == 0:
		return g.spread(x)
	}
	return same[g.r.IntN(len(same))]
}

// spread broadcasts something smaller to x's shape: a row, a column, or what happens to fit.
func (g *grower) spread(x *graph.Node) *graph.Node {
	dims := x.Type.Shape.Slice()
	for i := range dims {
		if g.r.IntN(2) == 0 {
			dims[i] = 1
		}
	}
	if cut := g.r.IntN(len(dims) + 1); g.r.IntN(2) == 0 && !slices.ContainsFunc(dims[:cut], func(d int) bool { return d != 1 }) {
		dims = dims[cut:]
	}
	return g.b.Broadcast(g.source(dims...), x.Type.Shape)
}

func (g *grower) axes(x *graph.Node) []int {
	var axes []int
	for i := range x.Type.Shape.Rank() {
		if g.r.IntN(2) == 0 {
			axes = append(axes, i)
		}
	}
	return axes
}

var tame = []graph.UnaryFn{graph.Tanh, graph.Sigmoid, graph.GeluTanh, graph.Silu, graph.Softplus, graph.Relu, graph.Neg, graph.Abs,
	graph.Square, graph.GeluErf, graph.Sin}

// step adds a value.
func (g *grower) step() {
	b, x := g.b, g.pick()
	s := x.Type.Shape
	rank := s.Rank()
	last := 1
	if rank > 0 {
		last = s.At(rank - 1)
	}
	keep := func(n *graph.Node) { g.values = append(g.values, n) }
	switch g.r.IntN(20) {
	case 0, 1, 2:
		keep(b.Unary(tame[g.r.IntN(len(tame))], x))
	case 3, 4, 5, 6:
		fn := []graph.BinaryFn{graph.Add, graph.Add, graph.Sub, graph.Mul, graph.Max, graph.Min}[g.r.IntN(6)]
		y := g.like(x)
		if g.r.IntN(2) == 0 {
			x, y = y, x
		}
		keep(b.Binary(fn, x, y))
	case 7:
		m := b.Binary([]graph.BinaryFn{graph.Lt, graph.Ge}[g.r.IntN(2)], x, g.like(x))
		if g.r.IntN(3) == 0 {
			m = b.Unary(graph.Not, m)
		}
		keep(b.Add(graph.Select{}, m, g.like(x), x))
	case 8, 9:
		axes := g.axes(x)
		fn := []graph.ReduceFn{graph.Sum, graph.Mean, graph.MaxOf, graph.MinOf}[g.r.IntN(4)]
		y := b.Reduce(fn, x, g.r.IntN(2) == 0, axes...)
		if g.r.IntN(2) == 0 {
			y = b.Unary(graph.Tanh, y)
		}
		keep(y)
		if g.r.IntN(2) == 0 && len(axes) > 0 {
			keep(b.Binary(graph.Sub, x, b.Expand(y, graph.IntsOf(axes...), s)))
		}
	case 10:
		if rank > 0 {
			keep(b.Add(graph.Softmax{Axis: g.r.IntN(rank)}, x))
		}
	case 11:
		if rank > 0 {
			keep(b.Add(graph.LayerNorm{Eps: 1e-2}, x, g.vector(last), g.vector(last)))
		}
	case 12:
		if rank > 0 {
			keep(b.Add(graph.RMSNorm{Eps: 1e-2}, x, g.vector(last)))
		}
	case 13:
		var seed *graph.Node
		if g.r.IntN(2) == 0 {
			seed = b.Scalar(graph.I64, float64(g.r.Int64N(1<<50)))
		} else {
			seed = b.BinaryScalar(graph.Add, b.Input(g.name("seed"), graph.TypeOf(graph.I64)), float64(g.r.Int64N(1<<50)))
		}
		keep(b.Add(graph.Dropout{P: 0.25}, x, seed))
	case 14:
		if rank > 1 {
			keep(b.Transpose(x, g.r.Perm(rank)...))
		}
	case 15:
		if rank > 1 && g.r.IntN(2) == 0 {
			dims := s.Slice()
			keep(b.Reshape(x, append([]int{dims[0] * dims[1]}, dims[2:]...)...))
		} else if rank < 5 {
			at := g.r.IntN(rank + 1)
			keep(b.Reshape(x, slices.Insert(s.Slice(), at, 1)...))
		}
	case 16:
		if axis := g.r.IntN(rank + 1); axis < rank && s.At(axis) > 1 {
			size := 1 + g.r.IntN(s.At(axis)-1)
			keep(b.Slice(x, axis, g.r.IntN(s.At(axis)-size+1), size, 1))
		}
	case 17, 18:
		if rank > 1 {
			n, tb := 1+g.r.IntN(40), g.r.IntN(2) == 0
			w := g.source(last, n)
			if tb {
				w = g.source(n, last)
			}
			if s.Drop(graph.IntsOf(rank-1)).Elems()*n <= 1<<15 {
				keep(b.Binary(graph.Mul, b.MatMul(x, w, false, tb), b.Scalar(g.d, 0.1)))
			}
		}
	case 19:
		i := b.Add(graph.Cast{To: []graph.DType{graph.I32, graph.I64, graph.Bool}[g.r.IntN(3)]}, b.BinaryScalar(graph.Mul, x, 3))
		if i.Type.DType.IsInt() && g.d == graph.F64 && g.r.IntN(2) == 0 {
			i = b.BinaryScalar(graph.Mul, i, 1e9+7)
		}
		keep(b.Unary(graph.Sin, b.Add(graph.Cast{To: g.d}, i)))
	}
}

// vector is n weights: a value that is there, or new.
func (g *grower) vector(n int) *graph.Node {
	for range 3 {
		if v := g.pick(); v.Type.Shape == graph.ShapeOf(n) {
			return v
		}
	}
	return g.source(n)
}

// grown makes a graph with about so many steps.
func grown(r *rand.Rand, steps int) *graph.Graph {
	g := &grower{r: r, b: graph.NewBuilder("grown"), d: []graph.DType{graph.F32, graph.F32, graph.F64}[r.IntN(3)]}
	dims := make([]int, r.IntN(5))
	for i, left := 0, 1<<14; i < len(dims); i++ {
		dims[i] = min(odd(r, 300), max(left, 1))
		if r.IntN(40) == 0 {
			dims[i] = 0
		}
		left /= max(dims[i], 1)
	}
	g.values = []*graph.Node{g.source(dims...)}
	for range steps {
		g.step()
	}
	read := map[*graph.Node]bool{}
	for _, v := range g.values {
		for _, a := range v.Args {
			read[a] = true
		}
	}
	for _, v := range g.values {
		if !read[v] || r.IntN(6) == 0 {
			g.b.Output(g.name("y"), v)
		}
		if r.IntN(8) == 0 {
			g.b.Update(g.b.State(g.name("s"), v.Type), v)
		}
	}
	out, err := g.b.Graph()
	if err != nil {
		panic(err)
	}
	return out
}

// shuffled puts the nodes of a graph in another order in which operands precede users.
func shuffled(r *rand.Rand, g *graph.Graph) {
	users, waits := g.Users(), map[*graph.Node]int{}
	var ready, order []*graph.Node
	for _, n := range g.Nodes {
		if waits[n] = len(n.Args); waits[n] == 0 {
			ready = append(ready, n)
		}
	}
	for len(ready) > 0 {
		i := r.IntN(len(ready))
		n := ready[i]
		ready = slices.Delete(ready, i, i+1)
		order = append(order, n)
		for _, u := range users[n] {
			if waits[u]--; waits[u] == 0 {
				ready = append(ready, u)
			}
		}
	}
	g.Nodes = order
}

// FuzzRegions grows a graph, shuffles its nodes, and compares with the reference, for several numbers of workers.
func FuzzRegions(f *testing.F) {
	for seed := range seeds(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 6))
		g := grown(r, 4+r.IntN(40))
		shuffled(r, g)
		in := values(g)
		check(t, g, in, 1+int(seed%3))
	})
}

// TestWorkers runs one program with 1, 2 and 3 workers and requires the same bits.
func TestWorkers(t *testing.T) {
	for seed := range seeds(25) {
		r := rand.New(rand.NewPCG(seed, 8))
		g := grown(r, 30)
		in := values(g)
		var first []*graph.Tensor
		for workers := 1; workers <= 3; workers++ {
			e, p := compiled(t, g, in, cpu.Workers(workers))
			if err := e.Run(); err != nil {
				t.Fatal(err)
			}
			for i, o := range p.Outputs {
				if workers == 1 {
					first = append(first, e.Output(o.Buffer).Clone())
				} else if !e.Output(o.Buffer).Equal(first[i]) {
					t.Errorf("seed %d: output %q differs between 1 and %d workers", seed, o.Name, workers)
				}
			}
			e.Close()
		}
	}
}

// TestPlan holds that no two buffers that are alive at one time share memory.
func TestPlan(t *testing.T) {
	for seed := range seeds(20) {
		r := rand.New(rand.NewPCG(seed, 9))
		g := grown(r, 60)
		checkPlan(t, lowered(t, g, cpu.New()))
	}
}

// checkPlan replays the launches: every byte that a launch reads must have been written last by the buffer's own
// launch, and no launch may write where it reads.
func checkPlan(t *testing.T, p *lowering.Program) {
	t.Helper()
	owner := make([]int, p.ArenaBytes)
	for i := range owner {
		owner[i] = -1
	}
	bytes := func(b int) []int {
		u := p.Buffers[b]
		if u.Role != lowering.Temp {
			return nil
		}
		if u.Offset%64 != 0 || u.Offset+u.Type.Bytes() > p.ArenaBytes {
			t.Fatalf("buffer %d lies at %d of %d bytes", b, u.Offset, p.ArenaBytes)
		}
		return owner[u.Offset : u.Offset+u.Type.Bytes()]
	}
	for i, l := range p.Launches {
		for _, v := range l.Results {
			for j := range bytes(v.Buffer) {
				bytes(v.Buffer)[j] = v.Buffer
			}
		}
		for _, v := range l.Args {
			for _, o := range bytes(v.Buffer) {
				if o != v.Buffer {
					t.Fatalf("launch %d reads b%d where b%d was written\n%v", i, v.Buffer, o, p)
				}
			}
		}
	}
}

// A sum along the rows of a launch is no column sum, even where the rows' axis comes first because the others have one
// element.
func TestSumAlongLeadingRows(t *testing.T) {
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		b := graph.NewBuilder("leading")
		x := b.Input("x", graph.TypeOf(d, 5, 1))
		y := b.Add(graph.Softmax{Axis: 0}, x)
		b.Output("y", y)
		b.Output("sum", b.Reduce(graph.Sum, b.Binary(graph.Mul, y, x), true, 0))
		g := graphtest.Graph(t, b)
		if p := check(t, g, values(g), 2); len(p.Launches) != 1 {
			t.Errorf("%d launches, want 1:\n%v", len(p.Launches), p)
		}
	}
}
