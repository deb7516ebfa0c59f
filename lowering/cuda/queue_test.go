package cuda_test

import (
	"errors"
	"slices"
	"testing"
	"time"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/passes/passtest"
)

// picks takes rows of a product by an index, which may be out of range.
func picks(b *graph.Builder) {
	y := b.Unary(graph.GeluTanh, b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 6, 8)), b.Param("w", graph.TypeOf(graph.F32, 8, 8)),
		false, false))
	b.Output("p", b.Add(graph.Softmax{Axis: 1}, y))
	b.Output("rows", b.Add(graph.Gather{Axis: 0}, y, b.Input("index", graph.TypeOf(graph.I64, 3))))
	b.Input("unused", graph.TypeOf(graph.F32, 2))
}

// A queuer runs a program in memory that a test has allocated on the GPU.
type queuer struct {
	lowering.Queuer
	p      *lowering.Program
	gpu    driver.GPU
	stream driver.Stream
	taken  []driver.Ptr
}

// onQueue compiles a graph for runs in the caller's memory, and binds its parameters.
func onQueue(g *graph.Graph, in map[string]*graph.Tensor, p *lowering.Program, d *cuda.Device, gpu driver.GPU) (*queuer, error) {
	e, err := d.Compile(p)
	if err != nil {
		return nil, err
	}
	q, ok := lowering.QueuerOf(e)
	if !ok {
		return nil, errors.New("runs are not queued")
	}
	r := &queuer{Queuer: q, p: p, gpu: gpu}
	for i, b := range p.Buffers {
		if b.Role == lowering.Param {
			err = errors.Join(err, e.Bind(i, in[b.Name].Clone()))
		}
	}
	if err == nil {
		r.stream, err = gpu.NewStream()
	}
	return r, err
}

// memory allocates memory for a run, with the values of the inputs.
func (q *queuer) memory(in map[string]*graph.Tensor) (*lowering.QueuedRun, error) {
	r := &lowering.QueuedRun{At: make([]uintptr, len(q.p.Buffers))}
	take := func(n int64) (uintptr, error) {
		at, err := q.gpu.Alloc(max(n, 1))
		if err == nil {
			q.taken = append(q.taken, at)
		}
		return uintptr(at), err
	}
	for i, b := range q.p.Buffers {
		if b.Role != lowering.Input && b.Role != lowering.Output {
			continue
		}
		var err error
		if r.At[i], err = take(b.Type.Bytes()); err != nil {
			return nil, err
		}
		if b.Role == lowering.Input {
			if err := q.write(r, i, in[b.Name]); err != nil {
				return nil, err
			}
		}
	}
	var err error
	r.Scratch, err = take(q.QueueBytes())
	return r, err
}

func (q *queuer) write(r *lowering.QueuedRun, buffer int, t *graph.Tensor) error {
	b := t.Bytes()
	return errors.Join(q.stream.CopyIn(driver.Ptr(r.At[buffer]), unsafe.Pointer(unsafe.SliceData(b)), int64(len(b))), q.stream.Sync())
}

// read is an output's value.
func (q *queuer) read(r *lowering.QueuedRun, o lowering.Binding) (*graph.Tensor, error) {
	t := graph.NewTensor(q.p.Buffers[o.Buffer].Type)
	b := t.Bytes()
	from := driver.Ptr(r.At[o.Buffer])
	err := errors.Join(q.stream.CopyOut(unsafe.Pointer(unsafe.SliceData(b)), from, int64(len(b))), q.stream.Sync())
	return t, err
}

// close closes the program, and with it the GPU, after the memory.
func (q *queuer) close() error {
	err := q.Wait()
	for _, at := range q.taken {
		err = errors.Join(err, q.gpu.Free(at))
	}
	if q.stream != nil {
		err = errors.Join(err, q.stream.Close())
	}
	return errors.Join(err, q.Close())
}

// queues compiles a graph for runs in the caller's memory.
func queues(t *testing.T, g *graph.Graph, in map[string]*graph.Tensor, opts ...cuda.Option) *queuer {
	t.Helper()
	gpu, compiler := open(t)
	d := cuda.New(append(opts, cuda.On(gpu, compiler), cuda.Queued())...)
	q, err := onQueue(g, in, passtest.Lowered(t, g, d, true), d, gpu)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func queueMemory(t *testing.T, q *queuer, in map[string]*graph.Tensor) *lowering.QueuedRun {
	t.Helper()
	r, err := q.memory(in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestQueue runs programs in memory that comes again, which is recorded, and in other memory, more than is remembered, and
// compares each run with the reference and with the bits of the first.
func TestQueue(t *testing.T) {
	for name, c := range map[string]struct {
		build func(*graph.Builder)
		opts  []cuda.Option
	}{
		"on the GPU": {picks, nil}, "on both": {onBoth, nil}, "prepared": {rounded(8, true), nil},
		"apart": {picks, []cuda.Option{cuda.Apart()}},
		"gradients": {func(b *graph.Builder) {
			params, ds := sloped(t, b, 3, 6, 16)
			for i, d := range ds {
				b.Output("d"+params[i].Name, d)
			}
		}, nil},
		"nothing": {func(b *graph.Builder) {
			b.Output("none", b.Unary(graph.Tanh, b.Input("x", graph.TypeOf(graph.F32, 0, 4))))
			b.Output("y", b.Unary(graph.Tanh, b.Input("z", graph.TypeOf(graph.F32, 4))))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := built(t, c.build)
			in := values(g)
			if index := in["index"]; index != nil {
				index.SetFloat(0, 5)
			}
			want, _, err := ref.EvalBound(g, in)
			if err != nil {
				t.Fatal(err)
			}
			q := queues(t, g, in, c.opts...)
			if whole, _, err := cuda.CheckBranches(cuda.New(c.opts...), q.p); err != nil || whole > 0 != (name == "gradients") {
				t.Errorf("%d launches in branches, %v", whole, err)
			}
			first := map[string]*graph.Tensor{}
			var runs []*lowering.QueuedRun
			for range 10 {
				runs = append(runs, queueMemory(t, q, in))
			}
			runs = append(slices.Clone(runs[:3]), runs...) // 0, 1 and 2 are recorded
			runs = append(runs, runs[:3]...)               // and forgotten in between
			for i, r := range runs {
				r.Stream = 0
				for range 1 + i%2 {
					if err := q.Queue(r); err != nil {
						t.Fatal(err)
					}
				}
				if err := q.Wait(); err != nil {
					t.Fatal(err)
				}
				for _, o := range q.p.Outputs {
					got, err := q.read(r, o)
					if err != nil {
						t.Fatal(err)
					}
					if err := ref.Check(got, want[o.Name]); err != nil {
						t.Errorf("run %d, %q: %v", i, o.Name, err)
					}
					if first[o.Name] == nil {
						first[o.Name] = got
					}
					if !got.Equal(first[o.Name]) {
						t.Errorf("run %d: %q differs from that of the first", i, o.Name)
					}
				}
			}
			if m := q.Memory(); m.Arena != 0 || m.Outputs != 0 || m.Kernels < 0 {
				t.Errorf("the program holds %+v", m)
			}
			if err := q.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestQueueParameters binds a parameter again: the next run reads it.
func TestQueueParameters(t *testing.T) {
	for name, build := range map[string]func(*graph.Builder){"in its own form": picks, "prepared": rounded(8, false)} {
		g := built(t, build)
		in := values(g)
		q := queues(t, g, in)
		r := queueMemory(t, q, in)
		for i := range 4 {
			if i == 2 {
				in["w"] = in["w"].Clone()
				in["w"].SetFloat(3, 7)
				if err := q.Bind(bufferOf(t, q.p, "w"), in["w"].Clone()); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(q.Queue(r), q.Wait()); err != nil {
				t.Fatal(err)
			}
			want, _, err := ref.EvalBound(g, in)
			if err != nil {
				t.Fatal(err)
			}
			got, err := q.read(r, q.p.Outputs[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := ref.Check(got, want[q.p.Outputs[0].Name]); err != nil {
				t.Errorf("%s, run %d: %v", name, i, err)
			}
		}
		if err := q.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestQueueReports queues runs one of which has an index that is out of range: a later call gives its error, once.
func TestQueueReports(t *testing.T) {
	g := built(t, picks)
	in := values(g)
	good := in["index"]
	q := queues(t, g, in)
	r := queueMemory(t, q, in)
	index := func(v float64) {
		t.Helper()
		bad := good.Clone()
		bad.SetFloat(1, v)
		if err := q.write(r, bufferOf(t, q.p, "index"), bad); err != nil {
			t.Fatal(err)
		}
	}
	queue := func(n int) (failed []error) {
		t.Helper()
		for range n {
			if err := q.Queue(r); err != nil {
				failed = append(failed, err)
			}
		}
		return failed
	}
	const about = "gather: index 6, element 1 of the indices, is outside 0..5"
	for _, n := range []int{1, 3, 40, 100} { // fewer and more than there are places for reports
		index(6)
		failed := queue(1)
		if err := q.stream.Sync(); err != nil {
			t.Fatal(err)
		}
		index(2)
		failed = append(failed, queue(n)...)
		if err := q.Wait(); err != nil {
			failed = append(failed, err)
		}
		if len(failed) != 1 {
			t.Fatalf("%d runs: errors %v", n, failed)
		}
		wants(t, failed[0], about)
		wants(t, failed[0], "launch ")
		if err := q.Wait(); err != nil {
			t.Errorf("the error is told again: %v", err)
		}
	}
	index(6)
	if len(queue(1)) > 0 {
		t.Fatal("the first run after a failure fails")
	}
	wants(t, q.Wait(), about)
	if err := q.close(); err != nil {
		t.Error(err)
	}
}

// TestQueueRefuses names what a run lacks, and what programs do not run so.
func TestQueueRefuses(t *testing.T) {
	g := built(t, picks)
	in := values(g)
	q := queues(t, g, in)
	r := queueMemory(t, q, in)
	x := bufferOf(t, q.p, "x")
	for want, change := range map[string]func(r *lowering.QueuedRun){
		`input "x" has no memory`:   func(r *lowering.QueuedRun) { r.At[x] = 0 },
		`input "x" is at`:           func(r *lowering.QueuedRun) { r.At[x] += 16 },
		"the run has no memory for": func(r *lowering.QueuedRun) { r.Scratch = 0 },
		"temporary values are at":   func(r *lowering.QueuedRun) { r.Scratch += 32 },
		"addresses for":             func(r *lowering.QueuedRun) { r.At = r.At[1:] },
		`output "p" has no memory`:  func(r *lowering.QueuedRun) { r.At[bufferOf(t, q.p, "p")] = 0 },
	} {
		bad := &lowering.QueuedRun{Scratch: r.Scratch, At: slices.Clone(r.At)}
		change(bad)
		wants(t, q.Queue(bad), want)
	}
	for _, err := range []error{q.Run(), q.Start(), q.Bind(x, in["x"])} {
		if !errors.Is(err, lowering.ErrQueued) {
			t.Errorf("error %v, want %v", err, lowering.ErrQueued)
		}
	}
	if q.Output(q.p.Outputs[0].Buffer) != nil {
		t.Error("the program has an output of its own")
	}
	if err := errors.Join(q.Queue(r), q.Sync()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(q.close(), q.Close(), q.Wait()); err != nil {
		t.Error(err)
	}
	wants(t, q.Queue(r), "the program is closed")

	for want, opts := range map[string][]cuda.Option{
		"with states": nil, "in a group": {cuda.In(group.New(group.Local(1, time.Second)[0]))},
	} {
		d := cuda.New(append(opts, cuda.On(open(t)), cuda.Queued())...)
		_, err := d.Compile(passtest.Lowered(t, built(t, layer), d, true))
		wants(t, err, want)
	}
}

// TestQueueDriverErrors lets each call of the driver fail in turn, in the life of a program whose runs are queued: the error comes
// back, and nothing is held in the end.
func TestQueueDriverErrors(t *testing.T) {
	gpu, compiler := open(t)
	for name, build := range map[string]func(*graph.Builder){"on the GPU": picks, "on both": onBoth, "prepared": rounded(8, false)} {
		g := built(t, build)
		in := values(g)
		failed := 0
		for {
			c := countedGPU(gpu)
			c.left = failed
			d := cuda.New(cuda.On(c, compiler), cuda.Queued())
			q, err := onQueue(g, in, passtest.Lowered(t, g, d, true), d, c)
			if err == nil {
				err = q.live(in)
			}
			if q != nil {
				c.left = -1
				if e := q.close(); err == nil {
					err = e
				}
			}
			c.none(t)
			if err == nil {
				break
			}
			if !errors.Is(err, errDriver) {
				t.Fatalf("%s, call %d: error %v", name, failed, err)
			}
			failed++
		}
		if failed < 30 {
			t.Errorf("%s, %d calls failed", name, failed)
		}
	}
	if err := gpu.Close(); err != nil {
		t.Error(err)
	}
}

// live queues runs in some sets of memory, and binds a parameter between them.
func (q *queuer) live(in map[string]*graph.Tensor) error {
	r, err := q.memory(in)
	if err != nil {
		return err
	}
	other := &lowering.QueuedRun{Scratch: r.Scratch, At: slices.Clone(r.At)}
	for _, r := range []*lowering.QueuedRun{r, r, other, r} {
		if err := q.Queue(r); err != nil {
			return err
		}
	}
	for i, b := range q.p.Buffers {
		if b.Role == lowering.Param {
			if err := q.Bind(i, in[b.Name].Clone()); err != nil {
				return err
			}
		}
	}
	return errors.Join(q.Queue(r), q.Wait())
}
