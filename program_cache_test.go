package fusec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/graph"
	"fusec/graph/optim"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/local"
	"fusec/lowering/reuse"
)

// withCache gives a test a program cache of its own.
func withCache(t testing.TB, size, bytes int64) *reuse.Cache {
	t.Helper()
	before := programs
	programs = reuse.New(size, bytes)
	t.Cleanup(func() { programs = before })
	return programs
}

// sentence is a recurrent network over so many steps, with its cost, and gradients of its weights. The names of its nodes
// begin with prefix, and the values of all inputs follow from seed.
type sentence struct {
	g            *gorgonia.ExprGraph
	cost         *gorgonia.Node
	weights      gorgonia.Nodes
	prefix       string
	costAsRead   gorgonia.Value
	hidden, rows int
}

func newSentence(t testing.TB, prefix string, steps int, seed float64, opts ...func(*sentence)) *sentence {
	t.Helper()
	s := &sentence{g: gorgonia.NewGraph(), prefix: prefix, hidden: 5, rows: 3}
	for _, o := range opts {
		o(s)
	}
	in := func(name string, rows, cols int) *gorgonia.Node {
		data := make([]float32, rows*cols)
		for i := range data {
			seed = math.Mod(seed*1.37+0.731, 1)
			data[i] = float32(seed - 0.5)
		}
		return gorgonia.NewMatrix(s.g, tensor.Float32, gorgonia.WithShape(rows, cols), gorgonia.WithName(prefix+name),
			gorgonia.WithValue(tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))))
	}
	wx, wh, wo := in("wx", 4, s.hidden), in("wh", s.hidden, s.hidden), in("wo", s.hidden, 4)
	s.weights = gorgonia.Nodes{wx, wh, wo}
	h := in("h", s.rows, s.hidden)
	for i := range steps {
		x := in(fmt.Sprint("x", i), s.rows, 4)
		h = gorgonia.Must(gorgonia.Tanh(gorgonia.Must(gorgonia.Add(gorgonia.Must(gorgonia.Mul(x, wx)),
			gorgonia.Must(gorgonia.Mul(h, wh))))))
		p := gorgonia.Must(gorgonia.SoftMax(gorgonia.Must(gorgonia.Mul(h, wo))))
		l := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.HadamardProd(gorgonia.Must(gorgonia.Log(p)),
			in(fmt.Sprint("y", i), s.rows, 4)))))
		if s.cost == nil {
			s.cost = l
		} else {
			s.cost = gorgonia.Must(gorgonia.Add(s.cost, l))
		}
	}
	gorgonia.Read(s.cost, &s.costAsRead)
	if _, err := gorgonia.Grad(s.cost, s.weights...); err != nil {
		t.Fatal(err)
	}
	return s
}

// run makes a machine, runs it and returns the cost and all gradients.
func (s *sentence) run(t testing.TB, opts ...gorgonia.VMOpt) (*Machine, []float32) {
	m, got, err := s.try(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return m, got
}

func (s *sentence) try(opts ...gorgonia.VMOpt) (*Machine, []float32, error) {
	m := NewMachine(s.g, append(opts, gorgonia.BindDualValues(s.weights...))...)
	if err := m.RunAll(); err != nil {
		return nil, nil, err
	}
	got := []float32{s.costAsRead.Data().(float32)}
	for _, w := range s.weights {
		d, err := w.Grad()
		if err != nil {
			return nil, nil, err
		}
		got = append(got, d.Data().([]float32)...)
	}
	return m, got, nil
}

// reused reports whether the machine's program was found.
func reused(m *Machine) bool { return m.program.trace == nil }

func closed(t testing.TB, m *Machine) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

func hasNote(tr *trace.Trace, text string) bool {
	return slices.ContainsFunc(tr.Stages[0].Notes, func(n trace.Note) bool { return strings.Contains(n.Text, text) })
}

// The second machine of an equal graph is not compiled, gives the bits that one which was compiled gives, has the same
// trace, and says so. It takes the kernels of a machine that was closed, and makes its own while the first is open.
func TestProgramIsReused(t *testing.T) {
	withCache(t, 10, 1<<20)
	first, _ := newSentence(t, "", 3, 0.1).run(t)
	if reused(first) || hasNote(first.Trace(), "reused") {
		t.Fatal("the first program was found")
	}
	for i := range 4 {
		seed := float64(i) / 10
		m, got := newSentence(t, "", 3, seed).run(t)
		alone, want := newSentence(t, "", 3, seed).run(t, WithoutProgramCache())
		if !reused(m) || reused(alone) {
			t.Fatalf("reused: %v, without the cache: %v", reused(m), reused(alone))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("machine %d gives %v, compiled on its own %v", i, got, want)
		}
		if !reflect.DeepEqual(m.Fusions(), alone.Fusions()) {
			t.Error("the fusions differ")
		}
		if !hasNote(m.Trace(), reusedNote) || hasNote(alone.Trace(), reusedNote) {
			t.Errorf("notes: %v", m.Trace().Stages[0].Notes)
		}
		for j, s := range m.Trace().Stages {
			if other := alone.Trace().Stages[j]; s.Name != other.Name || !reflect.DeepEqual(s.Matches, other.Matches) ||
				graph.Equal(s.Graph, other.Graph) != nil {
				t.Errorf("stage %s differs from that of a program that was compiled", s.Name)
			}
		}
		closed(t, alone)
		if i%2 == 0 { // leaves its kernels to the next
			closed(t, m)
		}
	}
	if m, _ := newSentence(t, "", 4, 0.1).run(t); reused(m) {
		t.Error("a graph of other length was taken for equal")
	}
}

// Labels of a program that was found are those of its own graph: in its trace, fusions, names of sources, and errors.
func TestReusedProgramHasItsOwnLabels(t *testing.T) {
	withCache(t, 10, 1<<20)
	newSentence(t, "first ", 2, 0.1).run(t)
	m, got := newSentence(t, "second ", 2, 0.3).run(t)
	alone, want := newSentence(t, "second ", 2, 0.3).run(t, WithoutProgramCache())
	if !reused(m) || !slices.Equal(got, want) {
		t.Fatalf("reused: %v; it gives %v, compiled on its own %v", reused(m), got, want)
	}
	if s := fmt.Sprint(m.program.program.Sources(lowering.Param)); strings.Contains(s, "first") || !strings.Contains(s, "second wx") {
		t.Errorf("the parameters are %s", s)
	}
	if !reflect.DeepEqual(m.Fusions(), alone.Fusions()) {
		t.Errorf("fusions %v, compiled on its own %v", m.Fusions(), alone.Fusions())
	}
	if got, want := m.Program().Lowered().String(), alone.Program().Lowered().String(); got != want {
		t.Errorf("lowered:\n%s\ncompiled on its own:\n%s", got, want)
	}
	m.Reset()
	if err := m.RunAll(); err != nil { // on the kernels that were labelled otherwise
		t.Fatal(err)
	}

	gather := func(name string) error {
		b := graph.NewBuilder(name)
		x, i := b.Input(name+" table", graph.TypeOf(graph.F32, 4, 3)), b.Input(name+" index", graph.TypeOf(graph.I64, 2))
		b.Output(name+" rows", b.Named(b.Add(graph.Gather{}, x, i), name+" rows"))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Compile(g)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		_, err = p.Run(map[string]*graph.Tensor{name + " table": graph.NewTensor(x.Type), name + " index": graph.Filled(i.Type, 7)})
		return err
	}
	for _, name := range []string{"left", "right"} {
		if err := gather(name); err == nil || !strings.Contains(err.Error(), name+" rows") {
			t.Errorf("the error of %s is %v", name, err)
		}
	}
}

// Graphs whose hashes are equal are told apart.
func TestHashOnlyFindsCandidates(t *testing.T) {
	withCache(t, 100, 1<<24).Hash = func(*graph.Graph) uint64 { return 0 }
	for range 2 {
		for steps := 1; steps < 4; steps++ {
			for rows := 1; rows < 4; rows++ {
				size := func(s *sentence) { s.rows = rows }
				m, got := newSentence(t, "", steps, 0.2, size).run(t)
				alone, want := newSentence(t, "", steps, 0.2, size).run(t, WithoutProgramCache())
				if !slices.Equal(got, want) {
					t.Errorf("%d steps, %d rows: %v, compiled on its own %v", steps, rows, got, want)
				}
				closed(t, m)
				closed(t, alone)
			}
		}
	}
	if n := programs.Len(); n != 9 {
		t.Errorf("%d programs of 9 graphs are kept", n)
	}
}

// Requests for other gradients, and other options, are other programs.
func TestRequestsDiffer(t *testing.T) {
	withCache(t, 100, 1<<24)
	build := func(of int, output string) (*graph.Graph, CompileOption) {
		b := graph.NewBuilder("g")
		x, y := b.Input("x", graph.TypeOf(graph.F64, 3)), b.Input("y", graph.TypeOf(graph.F64, 3))
		cost := b.Reduce(graph.Sum, b.Binary(graph.Mul, b.Unary(graph.Square, x), y), false, 0)
		b.Output("cost", cost)
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		return g, WithGradient(output, cost, []*graph.Node{x, y}[of])
	}
	want := [][]float64{{12, 12, 12}, {4, 4, 4}} // 2xy and x²
	for _, reuse := range []bool{false, true} {
		for of := range want {
			for _, output := range []string{"d", "gradient"} {
				g, o := build(of, output)
				p, err := Compile(g, o)
				if err != nil {
					t.Fatal(err)
				}
				out, err := p.Run(map[string]*graph.Tensor{"x": graph.Filled(graph.TypeOf(graph.F64, 3), 2),
					"y": graph.Filled(graph.TypeOf(graph.F64, 3), 3)})
				if err != nil {
					t.Fatal(err)
				}
				if d := out[output]; d == nil || !slices.Equal(d.Floats(), want[of]) {
					t.Errorf("gradient by operand %d as %q: %v", of, output, out)
				}
				if (p.trace == nil) != (reuse || output == "gradient") {
					t.Errorf("gradient by operand %d as %q: reused %v", of, output, p.trace == nil)
				}
				p.Close()
			}
		}
	}
	newSentence(t, "", 1, 0.2).run(t)
	for name, opts := range map[string][]MachineOption{"a pass less": {WithoutPass("fuse-regions")}, "workers": {WithWorkers(3)},
		"frozen": {WithFrozenParams()}, "verify": {WithVerify()}, "a budget": {WithMemoryBudget(1)}, "watched": {WithWatchNonFinite()},
		"attention": {WithTarget("", cpu.AttentionBlock(8))}} {
		if m, _ := newSentence(t, "", 1, 0.2).run(t, opts...); reused(m) {
			t.Errorf("%s: the program of a machine without the option was found", name)
		}
		if m, _ := newSentence(t, "", 1, 0.2).run(t, opts...); !reused(m) {
			t.Errorf("%s: its own program was not found", name)
		}
	}
}

// Every field of the configuration counts, but for those that are named here with the reason why they do not.
func TestProgramKeyCoversTheConfiguration(t *testing.T) {
	apart := map[string]string{
		"optimizer":    "compared by optimizerKey",
		"gradients":    "compared by the places of their nodes",
		"values":       "outputs of the graph",
		"allValues":    "outputs of the graph",
		"seed":         "a state of each machine",
		"err":          "such a configuration is refused",
		"withoutCache": "does not change the program",
		"unverified":   "does not change the program",
		"target":       "part of what the device shares",
		"options":      "part of what the device shares",
		"workers":      "part of what the device shares",
		"kept":         "how many programs a Specialised has, each with a key of its own",
		"applied":      "counts options",
		"compile":      "names options of Compile",
		"machine":      "names options of machines",
		"special":      "names options of Specialise",
	}
	zero := config{}.key()
	if other := (config{}).key(); !reflect.DeepEqual(&zero, &other) {
		t.Fatal("equal configurations have different keys")
	}
	for i, f := range reflect.VisibleFields(reflect.TypeFor[config]()) {
		var c config
		v := reflect.ValueOf(&c).Elem().Field(i)
		v = reflect.NewAt(f.Type, unsafe.Pointer(v.UnsafeAddr())).Elem()
		if !fill(v) {
			t.Errorf("the test does not know how to set %s of type %v", f.Name, f.Type)
			continue
		}
		key := c.key()
		if same := reflect.DeepEqual(&zero, &key); same != (apart[f.Name] != "") {
			t.Errorf("%s: the key is the same: %v", f.Name, same)
		}
	}
}

// fill sets v to something that is not its zero value.
func fill(v reflect.Value) bool {
	switch v.Type() {
	case reflect.TypeFor[lowering.Device]():
		v.Set(reflect.ValueOf(cpu.New()))
		return true
	case reflect.TypeFor[context.Context]():
		v.Set(reflect.ValueOf(context.Background()))
		return true
	case reflect.TypeFor[error]():
		v.Set(reflect.ValueOf(errors.New("an error")))
		return true
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(77)
	case reflect.Uint8:
		v.SetUint(2)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.String:
		v.SetString("another")
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem())
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Func:
		v.Set(reflect.MakeFunc(v.Type(), func([]reflect.Value) []reflect.Value { return nil }))
	case reflect.Struct:
		return v.NumField() > 0 && fill(v.Field(0))
	default:
		return false
	}
	return true
}

// The cache keeps no more programs and bytes than it is told.
func TestProgramCacheIsBounded(t *testing.T) {
	c := withCache(t, 3, 1<<24)
	for steps := 1; steps < 6; steps++ {
		m, _ := newSentence(t, "", steps, 0.1).run(t)
		closed(t, m)
	}
	if err := c.Check(); err != nil || c.Len() != 3 {
		t.Errorf("%d programs are kept, want 3; %v", c.Len(), err)
	}
	for _, steps := range []int{3, 5, 4} { // those that were used last
		if m, _ := newSentence(t, "", steps, 0.1).run(t); !reused(m) {
			t.Errorf("the program of %d steps is not kept", steps)
		}
	}
	newSentence(t, "", 1, 0.1).run(t) // in place of 3, which now is the one that was used longest ago
	for _, steps := range []int{5, 4, 1, 3} {
		if m, _ := newSentence(t, "", steps, 0.1).run(t); reused(m) != (steps != 3) {
			t.Errorf("%d steps: kept %v", steps, reused(m))
		}
	}

	c = withCache(t, 100, 1<<20)
	for steps := 1; steps < 12; steps++ {
		m, _ := newSentence(t, "", steps, 0.1).run(t)
		closed(t, m)
		if err := c.Check(); err != nil {
			t.Fatalf("after %d graphs: %v", steps, err)
		}
	}
	if c.Len() == 0 || c.Len() == 11 {
		t.Errorf("%d of 11 programs are kept", c.Len())
	}
	c.Clear()
	if m, _ := newSentence(t, "", 11, 0.1).run(t); reused(m) {
		t.Error("a program was found after the cache was cleared")
	}
}

// Machines of equal graphs may be made, run and closed at the same time.
func TestReuseByManyGoroutines(t *testing.T) {
	withCache(t, 2, 1<<20) // of three graphs, so that some are dropped while they are in use
	var want [3][]float32
	for i := range want {
		_, want[i] = newSentence(t, "", 1+i, 0.1*float64(i)).run(t, WithoutProgramCache())
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range 6 {
				k := (i + j) % len(want)
				m, got, err := newSentence(t, fmt.Sprint(i%2), 1+k, 0.1*float64(k)).try()
				if err != nil {
					t.Error(err)
					return
				}
				if !slices.Equal(got, want[k]) {
					t.Errorf("goroutine %d, machine %d: %v, want %v", i, j, got, want[k])
				}
				if j%3 != 0 {
					_ = m.Trace().Stages[0].Notes
				}
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
}

// What a closed program has handed out stays, and nothing of it is left in the program that takes its kernels over.
func TestKernelsOfClosedPrograms(t *testing.T) {
	withCache(t, 10, 1<<20)
	b := graph.NewBuilder("g")
	x, w, s := b.Input("x", graph.TypeOf(graph.F32, 4, 16)), b.Param("w", graph.TypeOf(graph.F32, 16, 16)),
		b.State("s", graph.TypeOf(graph.F32, 4, 16))
	y := b.Binary(graph.Add, b.MatMul(x, w, false, false), s)
	b.Output("y", y)
	b.Update(s, y)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	var outs []*graph.Tensor
	for i := range 4 {
		p, err := Compile(g)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Run(nil); err == nil {
			t.Fatal("a program without inputs ran: it has those of the one before")
		}
		for name, v := range map[string]float64{"x": 1, "w": float64(i + 1)} { // packed once for each program
			typ := x.Type
			if name == "w" {
				typ = w.Type
			}
			if err := p.Set(name, graph.Filled(typ, v)); err != nil {
				t.Fatal(err)
			}
		}
		if i%2 == 0 { // two runs: the state is doubled
			if err := p.Exec(); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Exec(); err != nil {
			t.Fatal(err)
		}
		out, err := p.Output("y")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Exec(); err == nil {
			t.Error("a closed program runs")
		}
		if p.Bytes() == 0 {
			t.Error("a closed program does not know what it held")
		}
		outs = append(outs, out)
	}
	for i, out := range outs {
		want := 16 * float64(i+1)
		if i%2 == 0 {
			want *= 2
		}
		if got := out.Float(5); got != want {
			t.Errorf("program %d: %v, want %v", i, got, want)
		}
	}
}

// A constant that its owner changes after compiling is another constant, and programs that were compiled before keep theirs.
func TestConstantsOfKeptPrograms(t *testing.T) {
	withCache(t, 10, 1<<20)
	k := graph.Filled(graph.TypeOf(graph.F64, 3), 2)
	b := graph.NewBuilder("g")
	x := b.Input("x", graph.TypeOf(graph.F64, 3))
	b.Output("y", b.Binary(graph.Mul, x, b.Const(k)))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	for _, factor := range []float64{2, 5, 2} {
		for i := range 3 {
			k.SetFloat(i, factor)
		}
		p, err := Compile(g)
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.Run(map[string]*graph.Tensor{"x": graph.Filled(x.Type, 1)})
		if err != nil {
			t.Fatal(err)
		}
		if got := out["y"].Float(0); got != factor {
			t.Errorf("1 times %v is %v", factor, got)
		}
	}
}

// Programs with an optimiser are found again if it does the same and its parameters have the same names, which those of
// its states begin with.
func TestOptimizersOfKeptPrograms(t *testing.T) {
	withCache(t, 10, 1<<24)
	step := func(prefix string, o optim.Optimizer) *Machine {
		t.Helper()
		s := newSentence(t, prefix, 2, 0.1)
		m := NewMachine(s.g, WithOptimizer(&o))
		if err := m.RunAll(); err != nil {
			t.Fatal(err)
		}
		return m
	}
	adam := optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.1)}
	first := step("a", adam)
	if m := step("a", adam); !reused(m) || !reflect.DeepEqual(m.Program().States(), first.Program().States()) {
		t.Error("an equal optimiser is not found, or has other states")
	}
	if m := step("b", adam); reused(m) || !slices.Contains(m.Program().States(), "optim/mean/bwh") {
		t.Errorf("states of other parameters are %v", m.Program().States())
	}
	for _, o := range []optim.Optimizer{
		{Rule: optim.SGD{}, Rate: adam.Rate}, {Rule: optim.Adam{Eps: 1}, Rate: adam.Rate}, {Rule: optim.Adam{}, Rate: adam.Rate, Clip: 1},
		{Rule: optim.Adam{}, Rate: adam.Rate, Group: func(name string, _ graph.Type) optim.Group {
			return optim.Group{Frozen: name == "awo"}
		}},
		{Rule: optim.Adam{}, Rate: adam.Rate, Group: func(name string, _ graph.Type) optim.Group { return optim.Group{Rate: 2} }},
	} {
		if m := step("a", o); reused(m) {
			t.Errorf("the program of another optimiser was found for %+v", o)
		}
	}
	own := step("a", optim.Optimizer{Rule: &optim.Adam{}, Rate: adam.Rate})
	if m := step("a", optim.Optimizer{Rule: &optim.Adam{}, Rate: adam.Rate}); reused(m) || !hasNote(own.Trace(), "not kept") {
		t.Error("a rule behind a pointer, which may change, is kept")
	}
}

// hostSum is code that fusec cannot look into.
type hostSum struct{}

func (*hostSum) Do(args []*graph.Tensor) (*graph.Tensor, error) {
	return graph.Scalar(graph.F64, args[0].Float(0)+args[0].Float(1)), nil
}

// Opaque operations are not compared: their graphs are compiled each time, and the trace says why.
func TestOpaqueGraphsAreNotKept(t *testing.T) {
	c := withCache(t, 10, 1<<20)
	for range 2 {
		b := graph.NewBuilder("g")
		x := b.Input("x", graph.TypeOf(graph.F64, 2))
		b.Output("y", b.Named(b.Add(graph.Host{Name: "sum", Type: graph.TypeOf(graph.F64), Impl: &hostSum{}}, x), "total"))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Compile(g)
		if err != nil {
			t.Fatal(err)
		}
		if p.cached != nil || c.Len() != 0 {
			t.Error("a program with an opaque operation is kept")
		}
		if !hasNote(p.Trace(), `host "total"`) || !hasNote(p.Trace(), "not kept") {
			t.Errorf("notes: %v", p.Trace().Stages[0].Notes)
		}
	}
}

// After a run that failed the kernels are not used again.
func TestKernelsOfFailedRuns(t *testing.T) {
	withCache(t, 10, 1<<20)
	b := graph.NewBuilder("g")
	x, i := b.Input("x", graph.TypeOf(graph.F32, 4)), b.Input("i", graph.TypeOf(graph.I64, 2))
	b.Output("y", b.Add(graph.Gather{}, x, i))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range []float64{9, 1, 9, 2} {
		p, err := Compile(g)
		if err != nil {
			t.Fatal(err)
		}
		if n := programs.Spares(p.cached); n != 0 {
			t.Errorf("%d closed programs have left their kernels", n)
		}
		_, err = p.Run(map[string]*graph.Tensor{"x": graph.NewTensor(x.Type), "i": graph.Filled(i.Type, index)})
		if (err != nil) != (index == 9) {
			t.Errorf("index %v: %v", index, err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if n := programs.Spares(p.cached); (n == 1) != (index != 9) {
			t.Errorf("index %v: %d closed programs have left their kernels", index, n)
		}
	}
}

// Machines share a program if nothing that decides what it computes differs in Gorgonia's graphs, whatever their nodes are
// called.
func TestMachinesDiffer(t *testing.T) {
	withCache(t, 100, 1<<24)
	type model struct {
		dtype           tensor.Dtype
		rows            int
		constant        any
		start, end      int
		axis            int
		unary           func(*gorgonia.Node) (*gorgonia.Node, error)
		eps             float64
		by, bound, more bool
		name            string
	}
	same := model{dtype: tensor.Float64, rows: 4, constant: 2.5, start: 1, end: 3, unary: gorgonia.Tanh, eps: 1e-5}
	build := func(m model) bool {
		t.Helper()
		g := gorgonia.NewGraph(gorgonia.WithGraphName(m.name))
		in := func(name string) *gorgonia.Node {
			return gorgonia.NewMatrix(g, m.dtype, gorgonia.WithShape(m.rows, 4), gorgonia.WithName(m.name+name),
				gorgonia.WithInit(gorgonia.Ones()))
		}
		x, y := in("x"), in("y")
		h := gorgonia.Must(m.unary(gorgonia.Must(gorgonia.HadamardProd(x, y))))
		h = gorgonia.Must(gorgonia.Mul(h, gorgonia.NewConstant(m.constant)))
		h = gorgonia.Must(gorgonia.Slice(h, gorgonia.S(m.start, m.end)))
		cost := gorgonia.Must(gorgonia.Sum(gorgonia.Must(gorgonia.Square(gorgonia.Must(gorgonia.Sum(h, m.axis))))))
		weights := gorgonia.Nodes{x, y}
		if m.by {
			weights = weights[:1]
		}
		if _, err := gorgonia.Grad(cost, weights...); err != nil {
			t.Fatal(err)
		}
		var opts []gorgonia.VMOpt
		if m.bound {
			opts = append(opts, gorgonia.BindDualValues(h))
		}
		if m.more {
			opts = append(opts, WithValues(h))
		}
		vm := NewMachine(g, opts...)
		if err := vm.RunAll(); err != nil {
			t.Fatal(err)
		}
		defer vm.Close()
		return reused(vm)
	}
	if build(same) {
		t.Fatal("the first program was found")
	}
	for what, change := range map[string]func(*model){
		"the names": func(m *model) { m.name = "other " },
		"nothing":   func(*model) {},
	} {
		m := same
		if change(&m); !build(m) {
			t.Errorf("%s differs: the program was not found", what)
		}
	}
	for what, change := range map[string]func(*model){
		"an operation":        func(m *model) { m.unary = gorgonia.Sigmoid },
		"an attribute":        func(m *model) { m.axis = 1 },
		"a shape":             func(m *model) { m.rows = 5 },
		"the element type":    func(m *model) { m.dtype, m.constant = tensor.Float32, float32(2.5) },
		"a constant":          func(m *model) { m.constant = 2.25 },
		"a slice":             func(m *model) { m.start, m.end = 2, 4 },
		"the weights":         func(m *model) { m.by = true },
		"the bound gradients": func(m *model) { m.bound = true },
		"the values":          func(m *model) { m.more = true },
	} {
		m := same
		change(&m)
		if build(m) {
			t.Errorf("%s differs: the program was found", what)
		}
		if !build(m) {
			t.Errorf("%s differs: its own program was not found", what)
		}
	}
}

// Errors of a machine whose program was found name the nodes of its own graph.
func TestErrorsOfReusedPrograms(t *testing.T) {
	withCache(t, 10, 1<<20)
	for i, name := range []string{"first", "second"} {
		g := gorgonia.NewGraph()
		x := gorgonia.NewVector(g, tensor.Float64, gorgonia.WithShape(2), gorgonia.WithName(name+" x"))
		y := gorgonia.Must(gorgonia.Log(x))
		gorgonia.WithName(name + " y")(y)
		m := NewMachine(g, gorgonia.WithNaNWatch())
		if reused(m) != (i > 0) {
			t.Errorf("%s machine: reused %v", name, reused(m))
		}
		if err := m.RunAll(); err == nil || !strings.Contains(err.Error(), name+" x") {
			t.Errorf("%s machine without a value: %v", name, err)
		}
		gorgonia.Let(x, tensor.New(tensor.WithBacking([]float64{1, -1})))
		if err := m.RunAll(); err == nil || !strings.Contains(err.Error(), name+" y") {
			t.Errorf("%s machine with NaN: %v", name, err)
		}
		closed(t, m)
	}
}

// namesState is a negation that builds a state of the given name.
type namesState struct {
	gorgonia.Op
	name string
}

func (o *namesState) Build(b *graph.Builder, args []*graph.Node) (*graph.Node, error) {
	return b.Binary(graph.Add, args[0], b.State(o.name, args[0].Type)), b.Err()
}

// A graph that is not well-formed is refused, though one of the same structure was compiled.
func TestReusedGraphsAreVerified(t *testing.T) {
	withCache(t, 10, 1<<20)
	for i, name := range []string{"s", "t", "x"} {
		g := gorgonia.NewGraph()
		x := gorgonia.NewVector(g, tensor.Float64, gorgonia.WithShape(2), gorgonia.WithName("x"), gorgonia.WithInit(gorgonia.Ones()))
		neg := gorgonia.Must(gorgonia.Neg(gorgonia.NewVector(gorgonia.NewGraph(), tensor.Float64, gorgonia.WithShape(2),
			gorgonia.WithName("x"))))
		gorgonia.Must(gorgonia.ApplyOp(&namesState{neg.Op(), name}, x))
		m := NewMachine(g)
		switch err := m.Err(); {
		case name == "x":
			if err == nil || !strings.Contains(err.Error(), "have the same name") {
				t.Errorf("a state is called as an input is: %v", err)
			}
		case err != nil || reused(m) != (i > 0):
			t.Errorf("%v; reused: %v", err, err == nil && reused(m))
		}
		closed(t, m)
	}
}

// What the second machine allocates is bounded, and hardly more if the processor has a tuning, which is read each time.
func TestSecondMachineAllocatesLittle(t *testing.T) {
	each := func(tuning string) float64 {
		t.Setenv(local.Variable, t.TempDir())
		if chip := cpu.New(cpu.Workers(1)).Chip(); tuning != "" { // AllocsPerRun leaves one worker
			if _, err := local.WriteTuning("cpu", chip, "fusec tuning 1 "+chip+tuning); err != nil {
				t.Fatal(err)
			}
		}
		withCache(t, 10, 1<<24)
		s := newSentence(t, "", 10, 0.1)
		make := func() { closed(t, NewMachine(s.g, gorgonia.BindDualValues(s.weights...))) }
		make()
		return testing.AllocsPerRun(20, make) / float64(len(s.g.AllNodes()))
	}
	plain := each("")
	if plain > 9 { // 6.4, and 8.1 under the race detector
		t.Errorf("%.1f allocations for each node of Gorgonia's, want at most 9", plain)
	}
	if tuned := each("\nf32:4x1x28x28:6x5x5:s1x1:d1x1:p2x2x2x2:g1 direct 133108\n"); tuned > plain+0.1 {
		t.Errorf("with a tuning %.2f allocations for each node, without one %.2f", tuned, plain)
	}
}
