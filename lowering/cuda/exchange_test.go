package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/group"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// together runs a function for each of n participants, with the transport of goroutines.
func together(t *testing.T, n int, patience time.Duration, f func(g *group.Group) error) {
	t.Helper()
	var all sync.WaitGroup
	errs := make([]error, n)
	for r, transport := range group.Local(n, patience) {
		all.Go(func() {
			g := group.New(transport)
			if errs[r] = f(g); errs[r] != nil {
				g.Abort(errs[r])
			}
		})
	}
	all.Wait()
	for r, err := range errs {
		if err != nil {
			t.Errorf("participant %d of %d: %v", r, n, err)
		}
	}
}

// emulatedGPU gives an emulated GPU.
func emulatedGPU(t testing.TB) (driver.GPU, driver.Compiler) {
	t.Helper()
	g, c, err := emulator.Open(emulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return g, c
}

// openOf gives the device of one of n participants: an emulated one where there are fewer GPUs.
func openOf(t testing.TB, rank, n int) (driver.GPU, driver.Compiler) {
	t.Helper()
	if len(sizes(t)) < n {
		return emulatedGPU(t)
	}
	return openFor(t, rank)
}

// TestExchanges is the conformance suite of communicators, between all devices and groups of some of them.
func TestExchanges(t *testing.T) {
	for _, n := range sizes(t) {
		together(t, n, 0, func(g *group.Group) error {
			gpu, _ := openFor(t, g.Rank())
			if err := cudatest.Exchanges(gpu, g.All()); err != nil {
				return err
			}
			if n > 2 && (g.Rank() == 0 || g.Rank() == 2) {
				team, err := g.Team([]int{2, 0})
				if err != nil {
					return err
				}
				if err := cudatest.Exchanges(gpu, team); err != nil {
					return fmt.Errorf("a team of two: %w", err)
				}
			}
			return gpu.Close()
		})
	}
}

// participants compiles a graph for the participants of its mesh, runs it some times and compares outputs and updates with
// the reference, which has the inputs of all.
func participants(t *testing.T, g *graph.Graph, runs int, opts ...cuda.Option) {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 5))
	in := make([]map[string]*graph.Tensor, g.Mesh.Size())
	for i := range in {
		in[i] = map[string]*graph.Tensor{}
		for _, n := range g.Nodes {
			if graph.IsSource(n.Op) && n.Name != "" {
				in[i][n.Name] = graphtest.Tensor(r, n.Type)
			}
		}
	}
	want, updates, err := ref.Mesh(g, in)
	if err != nil {
		t.Fatal(err)
	}
	together(t, len(in), 0, func(of *group.Group) error {
		gpu, compiler := openFor(t, of.Rank())
		d := cuda.New(append([]cuda.Option{cuda.On(gpu, compiler), cuda.In(of)}, opts...)...)
		p, err := lowering.Lower(g, d.Name(), d.Lowering()...)
		if err != nil {
			return err
		}
		e, err := d.Compile(p)
		if err != nil {
			return err
		}
		rank := of.Rank()
		for range runs {
			for i, b := range p.Buffers {
				switch b.Role {
				case lowering.Input, lowering.Param, lowering.State:
					if err := e.Bind(i, in[rank][b.Name].Clone()); err != nil {
						return err
					}
				}
			}
			if err := e.Run(); err != nil {
				return err
			}
			for _, o := range p.Outputs {
				if err := ref.Check(e.Output(o.Buffer), want[rank][o.Name]); err != nil {
					return fmt.Errorf("output %s: %w", o.Name, err)
				}
			}
			for i, b := range p.Buffers {
				if b.Role == lowering.State {
					if err := e.Sync(i); err != nil {
						return err
					}
				}
			}
		}
		_ = updates
		return e.Close()
	})
}

// TestCollectives compares the programs of all participants, over groups along some axes of a mesh, with the reference: every
// collective operation, on values whose parts follow one another or not, with small ones in buckets and without.
func TestCollectives(t *testing.T) {
	for _, mesh := range meshes(t) {
		for _, over := range []graph.MeshAxes{1, 2, 3} {
			if over &= mesh.All(); over == 0 || mesh.Parts(over) == 1 && mesh.Size() > 1 {
				continue
			}
			of := graph.Group{Over: mesh.Names(over), Parts: mesh.Parts(over)}
			ops := []graph.Op{graph.AllGather{Axis: 0, Group: of}, graph.AllGather{Axis: 1, Group: of},
				graph.AllToAll{Split: 1, Join: 1, Group: of}, graph.AllToAll{Split: 0, Join: 2, Group: of},
				graph.AllToAll{Split: 2, Join: 0, Group: of},
				graph.Part{Axis: 0, Group: of}, graph.Part{Axis: 2, Group: of}, graph.Permute{Shift: 1, Group: of},
				graph.Permute{Shift: -4, Group: of},
				graph.BroadcastFrom{Root: of.Parts - 1, Group: of}, graph.AllReduce{Fn: graph.MaxOf, Group: graph.Group{Over: of.Over}}}
			for _, f := range []graph.ReduceFn{graph.Sum, graph.Mean, graph.MaxOf, graph.MinOf} {
				ops = append(ops, graph.AllReduce{Fn: f, Group: of}, graph.ReduceScatter{Fn: f, Axis: 0, Group: of},
					graph.ReduceScatter{Fn: f, Axis: 1, Group: of})
			}
			b := graph.NewBuilder("")
			n := 6
			for n%mesh.Size() != 0 {
				n += 6
			}
			for k, typ := range []graph.Type{graph.TypeOf(graph.F32, n, 2*n, n), graph.TypeOf(graph.I16, n, n, 3*n),
				graph.TypeOf(graph.U8, n, n, n), graph.TypeOf(graph.F32, 0, n, n)} {
				x := b.Input(fmt.Sprint("x", k), typ)
				for i, op := range ops {
					if typ.DType.IsInt() && strings.Contains(fmt.Sprintf("%+v", op), "Fn:mean") {
						continue
					}
					b.Output(fmt.Sprintf("y%d_%d_%s", k, i, op.OpName()), b.Add(op, x))
				}
			}
			g, err := b.Graph()
			if err != nil {
				t.Fatal(err)
			}
			g.Mesh = mesh
			t.Run(fmt.Sprintf("%s_over_%s", mesh, of.Over), func(t *testing.T) {
				participants(t, g, 3)
				participants(t, g, 2, cuda.Bucket(1))
				participants(t, g, 1, cuda.Each(), cuda.Apart())
			})
		}
	}
}

// TestBeside has chains of exchanges whose results and operands share memory with what other launches read and write: a launch
// that does not wait reads what is not there, because the emulator makes exchanges as late as it may.
func TestBeside(t *testing.T) {
	mesh := meshes(t)[0]
	r := rand.New(rand.NewPCG(3, 1))
	for range 4 * effort {
		b := graph.NewBuilder("")
		x := b.Input("x", graph.TypeOf(graph.F32, 24, 16))
		w := b.Param("w", graph.TypeOf(graph.F32, 16, 16))
		live := []*graph.Node{x, b.Unary(graph.Tanh, x)}
		for i := range 30 {
			from := live[r.IntN(len(live))]
			of := graph.Group{Over: mesh.Names(mesh.All()), Parts: mesh.Size()}
			var y *graph.Node
			switch r.IntN(7) {
			case 0:
				y = b.Add(graph.AllReduce{Fn: graph.Mean, Group: of}, from)
			case 1:
				y = b.Add(graph.Permute{Shift: 1, Group: of}, from)
			case 2:
				y = b.Add(graph.AllGather{Axis: r.IntN(2), Group: of}, b.Add(graph.Part{Axis: 0, Group: of}, from))
				y = b.Reshape(y, y.Type.Shape.Slice()...)
				if y.Type.Shape != from.Type.Shape {
					y = from
				}
			case 3:
				y = b.MatMul(from, w, false, false)
			default:
				y = b.Binary(graph.Add, b.Unary(graph.Tanh, from), live[r.IntN(len(live))])
			}
			if live = append(live, y); len(live) > 5 {
				live = live[1:]
			}
			if i%10 == 9 {
				b.Output(fmt.Sprint("y", i), b.Add(graph.Copy{}, y))
			}
		}
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		g.Mesh = mesh
		participants(t, g, 3)
	}
}

// TestLostParticipant ends a run when another participant fails, with its error.
func TestLostParticipant(t *testing.T) {
	n := max(meshes(t)[0].Size(), 2)
	b := graph.NewBuilder("")
	b.Output("y", b.Add(graph.AllReduce{Fn: graph.Sum}, b.Input("x", graph.TypeOf(graph.F32, 100))))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	g.Mesh = graph.Mesh{{Name: "data", Size: n}}
	stop := errors.New("participant 1 has failed")
	var ran sync.WaitGroup
	ran.Add(n)
	together(t, n, time.Minute, func(of *group.Group) error {
		gpu, compiler := openOf(t, of.Rank(), n)
		d := cuda.New(cuda.On(gpu, compiler), cuda.In(of))
		p, err := lowering.Lower(g, d.Name(), d.Lowering()...)
		if err != nil {
			return err
		}
		e, err := d.Compile(p)
		if err != nil {
			return err
		}
		if err := e.Bind(0, graph.NewTensor(p.Buffers[0].Type)); err != nil {
			return err
		}
		if err := e.Run(); err != nil {
			return err
		}
		ran.Done()
		if of.Rank() == 1 {
			ran.Wait()
			of.Abort(stop)
			return e.Close()
		}
		err = e.Run()
		var lost *group.LostError
		if !errors.As(err, &lost) || lost.Rank != 1 || !errors.Is(err, stop) {
			return fmt.Errorf("the run ends with %v", err)
		}
		if again := e.Run(); !errors.Is(again, stop) {
			return fmt.Errorf("the next run ends with %v", again)
		}
		return e.Close()
	})
}

// TestAloneRefused refuses an exchange in a program that runs alone.
func TestAloneRefused(t *testing.T) {
	b := graph.NewBuilder("")
	b.Output("y", b.Add(graph.Permute{Shift: 1, Group: graph.Group{Parts: 2}}, b.Input("x", graph.TypeOf(graph.F32, 4))))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	gpu, compiler := open(t)
	d := cuda.New(cuda.On(gpu, compiler))
	p, err := lowering.Lower(g, d.Name(), d.Lowering()...)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Compile(p)
	wants(t, err, "launch 1, permute")
	wants(t, err, "runs alone: run it in a group")
}

// exchanging has exchanges that one bucket takes, one with several steps, and a launch on the processor between them.
func exchanging(b *graph.Builder) {
	of := graph.Group{Over: "a", Parts: 2}
	x := b.Input("x", graph.TypeOf(graph.F32, 4, 6))
	u := b.Add(graph.AllReduce{Fn: graph.Mean, Group: of}, b.Unary(graph.Tanh, x))
	v := b.Add(graph.AllReduce{Fn: graph.Sum, Group: of}, b.Unary(graph.Exp, x))
	h := b.Add(graph.Host{Name: "half", Type: u.Type, Impl: half{}}, b.Binary(graph.Mul, u, v))
	b.Output("y", b.Unary(graph.Tanh, b.Add(graph.AllGather{Axis: 1, Group: of}, h)))
}

// TestExchangeDriverErrors lets calls of the driver of one participant fail, one in each round: its run ends with the driver's
// error, that of the other with a LostError which names the participant, and nothing is held in the end.
func TestExchangeDriverErrors(t *testing.T) {
	g := built(t, exchanging)
	g.Mesh, g.Parts = graph.Mesh{{Name: "a", Size: 2}}, true
	in := values(g)
	gpus, compilers := [2]driver.GPU{}, [2]driver.Compiler{}
	for r := range gpus {
		gpus[r], compilers[r] = openOf(t, r, len(gpus))
	}
	failed := 0
	for done := false; !done; failed += stride {
		var all sync.WaitGroup
		var errs [2]error
		for r, transport := range group.Local(2, time.Minute) {
			all.Go(func() {
				of, c := group.New(transport), countedGPU(gpus[r])
				if r == 0 {
					c.left = failed
				}
				if errs[r] = live(t, g, in, cuda.New(cuda.On(c, compilers[r]), cuda.In(of)), false); errs[r] != nil {
					of.Abort(errs[r])
				}
				c.none(t)
			})
		}
		all.Wait()
		var lost *group.LostError
		switch done = errs[0] == nil; {
		case done && errs[1] != nil:
			t.Errorf("without a failure: %v", errs[1])
		case !done && (!errors.Is(errs[0], errDriver) || errs[1] != nil && (!errors.As(errs[1], &lost) || lost.Rank != 0)):
			t.Fatalf("call %d: errors %v and %v", failed, errs[0], errs[1])
		}
	}
	if failed < 80 {
		t.Errorf("%d calls failed", failed)
	}
	for _, gpu := range gpus {
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLargeExchanges compares exchanges of large values, which copy engines make where GPUs reach one another's memory, with the
// reference: sums in one bucket with small ones, of parts that are not of one size, written over operands or not.
func TestLargeExchanges(t *testing.T) {
	for _, mesh := range meshes(t) {
		of := graph.Group{Over: mesh.Names(mesh.All()), Parts: mesh.Size()}
		b := graph.NewBuilder("")
		sum := func(i int, x *graph.Node) {
			b.Output(fmt.Sprint("sum", i), b.Add(graph.AllReduce{Fn: graph.Sum, Group: of}, x))
		}
		large := 1 << 9 // all exchanges of emulated GPUs are made alike
		if effort > 1 {
			large = 1 << 18
		}
		sizes := []int{large + 3, 77, 1, large/2 + 5, large / 2}
		for i, n := range sizes {
			sum(i, b.Unary(graph.Tanh, b.Input(fmt.Sprint("x", i), graph.TypeOf(graph.F32, n))))
			half := b.Input(fmt.Sprint("half", i), graph.TypeOf(graph.BF16, n*mesh.Size()))
			sum(len(sizes)+i, half)
			b.Output(fmt.Sprint("part", i), b.Add(graph.ReduceScatter{Fn: graph.Sum, Group: of}, half))
		}
		x := b.Input("x", graph.TypeOf(graph.BF16, mesh.Size(), 2*large))
		for i, op := range []graph.Op{graph.Permute{Shift: 1, Group: of}, graph.AllGather{Group: of}, graph.AllToAll{Group: of}} {
			b.Output(fmt.Sprint("y", i), b.Add(op, x))
		}
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		g.Mesh = mesh
		participants(t, g, 2)
	}
}

// TestStepsAhead has two mixtures, one of what another participant sends. The other one begins before that has come, in each kind
// of run, and a run that is measured tells both its parts.
func TestStepsAhead(t *testing.T) {
	mesh := meshes(t)[0]
	of := graph.Group{Over: mesh.Names(mesh.All()), Parts: mesh.Size()}
	op := graph.MoE{Experts: 3, Activation: graph.Tanh, Stacked: true, TopK: 2}
	b := graph.NewBuilder("")
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	x := b.Input("x", f(24, 16))
	weights := []*graph.Node{b.Param("up", f(3, 16, 8)), b.Param("down", f(3, 8, 16))}
	gates := b.Unary(graph.Relu, b.Input("gates", f(24, 3)))
	mixture := func(x *graph.Node) *graph.Node { return b.Add(op, append([]*graph.Node{x, gates}, weights...)...) }
	back := b.Add(graph.Permute{Shift: -1, Group: of}, mixture(b.Add(graph.Permute{Shift: 1, Group: of}, x)))
	own := mixture(x)
	b.Output("y", b.Binary(graph.Add, own, back))
	b.Output("loads", b.Add(graph.Result{Index: 1}, own))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	g.Mesh = mesh
	participants(t, g, 2)
	participants(t, g, 2, cuda.Each())
	in := values(g)
	together(t, mesh.Size(), 0, func(of *group.Group) error {
		gpu, compiler := openFor(t, of.Rank())
		d := cuda.New(cuda.On(gpu, compiler), cuda.In(of))
		p, err := lowering.Lower(g, d.Name(), d.Lowering()...)
		if err != nil {
			return err
		}
		e, err := d.Compile(p)
		if err != nil {
			return err
		}
		for i, b := range p.Buffers {
			if b.Role == lowering.Input || b.Role == lowering.Param {
				if err := e.Bind(i, in[b.Name].Clone()); err != nil {
					return err
				}
			}
		}
		e.Profile(true)
		if err := e.Run(); err != nil {
			return err
		}
		spans := make([]int, len(p.Launches))
		for _, s := range e.Timeline() {
			if _, ok := p.Launches[s.Launch].Op.(graph.MoE); ok && s.What == lowering.SpanLaunch {
				spans[s.Launch]++
			}
		}
		slices.Sort(spans)
		if list := spans[len(spans)-2:]; mesh.Size() > 1 && !slices.Equal(list, []int{1, 2}) {
			return fmt.Errorf("the mixtures have %v spans", list)
		}
		return e.Close()
	})
}
