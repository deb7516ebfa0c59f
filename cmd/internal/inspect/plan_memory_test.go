package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"fusec"
	"fusec/cmd/internal/clitest"
	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/group"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
)

// plannedWay is a way of splitting a graph over participants.
type plannedWay struct {
	name         string
	graph        func(t *testing.T) *graph.Graph
	mesh         string
	splits       []string // as --split has them
	zero         int
	microbatches int
}

func layersGraph(t *testing.T) *graph.Graph {
	t.Helper()
	g, err := graph.Parse("layers.graph", []byte(layersText), nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func attentionGraph(t *testing.T) *graph.Graph {
	return graphtest.Built(t, func(b *graph.Builder) {
		x := graph.TypeOf(graph.F32, 16, 2048, 128)
		b.Output("y", b.Add(graph.Attention{Scale: 0.125, Causal: true}, b.Input("q", x), b.Input("k", x), b.Input("v", x)))
	})
}

func expertsGraph(t *testing.T) *graph.Graph {
	const tokens, width, hidden, experts = 4096, 1024, 2048, 16
	return graphtest.Built(t, func(b *graph.Builder) {
		f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
		x := b.Input("x", f(tokens, width))
		scores := b.Add(graph.Softmax{Axis: 1}, b.MatMul(x, b.Param("router", f(width, experts)), false, false))
		gates := b.Add(graph.Select{}, b.Add(graph.Route{K: 2}, scores), scores, b.Scalar(graph.F32, 0))
		b.Output("y", b.Add(graph.MoE{Experts: experts, Activation: graph.GeluErf, Stacked: true, TopK: 2}, x, gates,
			b.Param("up", f(experts, width, hidden)), b.Param("down", f(experts, hidden, width))))
	})
}

var plannedWays = []plannedWay{
	{name: "data", graph: layersGraph, mesh: "data=2"},
	{name: "ZeRO 1", graph: layersGraph, mesh: "data=2", zero: 1},
	{name: "ZeRO 3", graph: layersGraph, mesh: "data=2", zero: 3},
	{name: "tensor", graph: layersGraph, mesh: "tensor=2", splits: []string{"w1=_,tensor", "w2=tensor,_", "x=_,_", "y=_,_"}},
	{name: "data and tensor", graph: layersGraph, mesh: "data=2,tensor=2", splits: []string{"w1=_,tensor", "w2=tensor,_"}},
	{name: "sequence", graph: attentionGraph, mesh: "sequence=2",
		splits: []string{"q=_,sequence,_", "k=_,sequence,_", "v=_,sequence,_"}},
	{name: "expert", graph: expertsGraph, mesh: "expert=2", splits: []string{"x=expert,_", "up=expert,_,_", "down=expert,_,_"}},
	{name: "pipeline", graph: layersGraph, mesh: "stage=2", microbatches: 4},
}

// args are the way's flags of fusec plan.
func (w *plannedWay) args() []string {
	list := []string{"--mesh", w.mesh}
	for _, s := range w.splits {
		list = append(list, "--split", s)
	}
	if w.zero > 0 {
		list = append(list, "--zero", fmt.Sprint(w.zero))
	}
	if w.microbatches > 0 {
		list = append(list, "--pipeline", fmt.Sprint(w.microbatches))
	}
	return list
}

// options are the way's for compiling.
func (w *plannedWay) options() (list []fusec.CompileOption) {
	if w.microbatches > 0 {
		list = append(list, fusec.WithPipeline(w.microbatches))
	} else {
		list = append(list, fusec.WithMesh(w.mesh))
	}
	for _, s := range w.splits {
		name, axes, _ := strings.Cut(s, "=")
		list = append(list, fusec.WithSplit(name, strings.Split(axes, ",")...))
	}
	if w.zero > 0 {
		list = append(list, fusec.WithZeRO(w.zero))
	}
	return list
}

// blank is a GPU that has memory, and runs nothing. Methods that it lacks are not called.
type blank struct {
	driver.GPU
	blankQueue
	taken int64
	host  [][]byte
}

func (g *blank) Chip() kernels.Chip                                   { return kernels.H200 }
func (g *blank) Memory() (free, total int64, err error)               { return 1<<40 - g.taken, 1 << 40, nil }
func (g *blank) Free(driver.Ptr) error                                { return nil }
func (g *blank) FreeHost(unsafe.Pointer) error                        { return nil }
func (g *blank) Load([]byte) (driver.Module, error)                   { return g, nil }
func (g *blank) Unload() error                                        { return nil }
func (g *blank) Function(string) (driver.Function, error)             { return g, nil }
func (g *blank) Resources() driver.Resources                          { return driver.Resources{} }
func (g *blank) Occupancy(block, shared int) (int, error)             { return 1, nil }
func (g *blank) NewStream() (driver.Stream, error)                    { return g.blankQueue, nil }
func (g *blank) NewUrgentStream() (driver.Stream, error)              { return g.blankQueue, nil }
func (g *blank) NewEvent() (driver.Event, error)                      { return g.blankQueue, nil }
func (g *blank) Compile(string, kernels.Chip) ([]byte, string, error) { return nil, "", nil }
func (g *blank) Version() string                                      { return "" }
func (g *blank) Close() error                                         { return nil }

func (g *blank) EncodeMap(*kernels.TensorMap, driver.Ptr, *[128]byte) error { return nil }

func (g *blank) Alloc(bytes int64) (driver.Ptr, error) {
	at := driver.Ptr(1<<32 + g.taken)
	g.taken += bytes
	return at, nil
}

func (g *blank) AllocHost(bytes int64) (unsafe.Pointer, error) {
	b := make([]byte, bytes)
	g.host = append(g.host, b)
	return unsafe.Pointer(unsafe.SliceData(b)), nil
}

// blankQueue is a stream and an event.
type blankQueue struct {
	driver.Stream
	driver.Event
}

func (blankQueue) CopyIn(driver.Ptr, unsafe.Pointer, int64) error { return nil }
func (blankQueue) Fill(driver.Ptr, byte, int64) error             { return nil }
func (blankQueue) Sync() error                                    { return nil }
func (blankQueue) Close() error                                   { return nil }

// taken compiles a graph for each participant, and gives the most memory that one of them has taken.
func (w *plannedWay) taken(t *testing.T, g *graph.Graph) (most int64) {
	t.Helper()
	mesh, err := graph.ParseMesh(w.mesh)
	if err != nil {
		t.Fatal(err)
	}
	n := mesh.Size()
	taken, errs := make([]int64, n), make([]error, n)
	var wait sync.WaitGroup
	for r, transport := range group.Local(n, 2*time.Minute) {
		wait.Go(func() {
			one := &blank{}
			open := cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) { return one, one, nil })
			errs[r] = func() (err error) {
				p, err := fusec.Compile(g, append(w.options(), fusec.CompileOption(fusec.WithGroup(group.New(transport))),
					fusec.CompileOption(fusec.WithTarget("cuda", open)))...)
				if err != nil {
					return err
				}
				taken[r] = one.taken
				return p.Close()
			}()
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%s: %v", w.name, err)
	}
	for _, bytes := range taken {
		most = max(most, bytes)
	}
	return most
}

// TestPlanMemory compares the memory that plans predict with what programs take of their GPUs, for each way of splitting.
func TestPlanMemory(t *testing.T) {
	for _, w := range plannedWays {
		g := w.graph(t)
		path := filepath.Join(t.TempDir(), "planned.graph")
		if err := graph.Save(path, g, nil); err != nil {
			t.Fatal(err)
		}
		var rep PlanReport
		args := append([]string{"plan", path, "--json", "--target", "cuda"}, w.args()...)
		if err := json.Unmarshal([]byte(clitest.Good(t, args...)), &rep); err != nil {
			t.Fatal(err)
		}
		planned, taken := rep.Ways[0].Memory, w.taken(t, g)
		if d := planned - taken; d > taken/50 || -d > taken/50 {
			t.Errorf("%s: %d bytes are planned, and %d taken", w.name, planned, taken)
		}
	}
}
