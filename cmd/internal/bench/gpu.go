package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/lowering"
)

// How often a work is run on the GPU: as its rivals are, since a GPU at work for longer is slower.
const (
	gpuWarmRuns = 5
	gpuRuns     = 20
	gpuHostRuns = 5 // that are timed with their copies from and to the host
)

// gpuLine is what fusec bench gpu prints about a work: the rivals' line, and what only fusec tells.
type gpuLine struct {
	Workload string  `json:"workload"`
	Peer     string  `json:"peer"`
	MS       float64 `json:"ms,omitempty"` // median by the GPU's clock, with all values on the GPU
	Rate     float64 `json:"rate,omitempty"`
	Unit     string  `json:"unit,omitempty"`
	BestMS   float64 `json:"best_ms,omitempty"`
	HostMS   float64 `json:"host_ms,omitempty"` // by the host's clock, with the copies of inputs and outputs
	// AheadMS is HostMS where the next run's inputs are copied while the present one computes; for training.
	AheadMS  float64 `json:"ahead_ms,omitempty"`
	Launches int     `json:"launches,omitempty"`
	OnHost   int     `json:"on_host,omitempty"` // launches for which the GPU has no kernel
	Error    string  `json:"error,omitempty"`

	kernels []lowering.KernelUse
	bytes   int64 // that have to be moved
	device  string
	times   []float64 // of the runs, in ms
}

// gpu times the works that the words ask for on the GPU, each checked first.
func (b *bencher) gpu(e *cli.Env, words []string) error {
	list, err := gpuWorks(words, b.small)
	if err != nil {
		return err
	}
	target := b.compile.Target
	if b.compile.Kind().Cycles != "" {
		return cli.Usage("fusec bench gpu is not for an overlay; fusec bench model.graph --target fpga times a model on one")
	}
	if !b.compile.OnGPU() {
		target = modelio.GPU().Name
	}
	if err := opens(target); err != nil {
		return err
	}
	if b.prepare {
		return prepareGPU(list, target)
	}
	var lines []gpuLine
	failed, err := b.gpuLines(e, list, target, func(l gpuLine) error {
		lines = append(lines, l)
		if b.json {
			return errors.Join(json.NewEncoder(e.Out).Encode(l), e.Out.Flush())
		}
		return nil
	})
	if err == nil && !b.json {
		err = e.Print(gpuTable(lines))
	}
	if err == nil && failed > 0 {
		err = unmeasured(failed, len(list))
	}
	return err
}

// prepareGPU compiles works at the same time, so that their kernels are in the cache on the disk when they are measured.
func prepareGPU(list []*gpuWork, target string) error {
	errs := make([]error, len(list))
	var wait sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, w := range list {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			errs[i] = w.prepare(target)
			if errs[i] == nil && w.before != nil {
				errs[i] = w.before.prepare(target)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

func (w *gpuWork) prepare(target string) error {
	g, err := w.graph()
	if err != nil {
		return err
	}
	p, err := (&gpuValues{work: w, graph: g}).program(w.precision, modelio.OnTarget(target, w.options...))
	if err = errors.Join(err, p.Close()); err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	return nil
}

// unmeasured is the error of workloads that failed.
func unmeasured(failed, all int) error {
	return fmt.Errorf("%d of %d workloads could not be measured", failed, all)
}

// gpuLines measures works, hands out the line of each, and counts those that failed.
func (b *bencher) gpuLines(e *cli.Env, list []*gpuWork, target string, each func(gpuLine) error) (failed int, err error) {
	show := b.progress(e)
	defer show.Done()
	next := list[0].values
	for i, w := range list {
		if e.Ctx.Err() != nil {
			return failed, e.Ctx.Err()
		}
		show.Show("%d of %d: %s", i+1, len(list), w.name)
		line, err := w.measureOf(func() (*gpuValues, error) {
			v, err := next()
			if i+1 < len(list) {
				if next = list[i+1].values; b.noCopies { // the processor's time does not count
					next = sync.OnceValues(next)
					go next()
				}
			}
			return v, err
		}, target, !b.noCopies)
		if err != nil {
			line.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
			failed++
		}
		if err := each(line); err != nil {
			return failed, err
		}
	}
	return failed, nil
}

// gpuTable prints lines for people.
func gpuTable(lines []gpuLine) string {
	t := cli.NewTable("workload", ">time", ">best", ">rate", "", ">with copies", ">copied ahead", ">launches", "")
	for _, l := range lines {
		if l.Error != "" {
			t.Row(l.Workload, "", "", "", "", "", "", "", l.Error)
			continue
		}
		note := ""
		if l.OnHost > 0 {
			note = fmt.Sprintf("%d on the processor", l.OnHost)
		}
		ms := func(v float64) string { return cli.HumanTime(time.Duration(v * 1e6)) }
		host, ahead := "", ""
		if l.HostMS > 0 {
			host = ms(l.HostMS)
		}
		if l.AheadMS > 0 {
			ahead = ms(l.AheadMS)
		}
		t.Row(l.Workload, ms(l.MS), ms(l.BestMS), cli.Digits(l.Rate), l.Unit, host, ahead, fmt.Sprint(l.Launches), note)
	}
	return t.String()
}

// opens says why nothing can run on a GPU, if that is so.
func opens(target string) error {
	b := graph.NewBuilder("one")
	b.Output("y", b.Unary(graph.Neg, b.Input("x", graph.TypeOf(graph.F32, 1))))
	g, err := b.Graph()
	if err != nil {
		return err
	}
	p, err := fusec.Compile(g, modelio.OnTarget(target))
	return errors.Join(err, p.Close())
}

// measure calls [gpuWork.measureOf] with the work's values.
func (w *gpuWork) measure(target string, copies bool) (gpuLine, error) {
	return w.measureOf(w.values, target, copies)
}

// measureOf compiles the work, checks what it computes of values, and times it, with copies from and to the host as well if they
// are wanted.
func (w *gpuWork) measureOf(values func() (*gpuValues, error), target string, copies bool) (line gpuLine, err error) {
	line = gpuLine{Workload: w.name, Peer: "fusec"}
	v, err := values()
	if err != nil {
		return line, err
	}
	if w.before != nil {
		if err := v.from(w.before, target); err != nil {
			return line, fmt.Errorf("%s: %w", w.before.name, err)
		}
	}
	p, err := v.compile(target, w.precision)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := v.run(p); err != nil {
		return line, err
	}
	if err := w.check(v); err != nil {
		return line, fmt.Errorf("the result is wrong: %w", err)
	}
	line.bytes = 2 * p.Memory().Scratch // written, and read
	for _, l := range p.Lowered().Launches[p.Lowered().Prepared:] {
		line.bytes += l.Bytes
		line.Launches++
		if l.Device != "" {
			line.OnHost++
		}
	}
	found, err := p.Inspect()
	if err != nil {
		return line, err
	}
	line.kernels, line.device = slices.Concat(found.Kernels...), found.Device
	times, err := p.Measure(gpuWarmRuns + gpuRuns)
	if err != nil {
		return line, err
	}
	times = times[gpuWarmRuns:]
	ms := make([]float64, len(times))
	line.BestMS = math.Inf(1)
	for i, t := range times {
		ms[i] = t.Seconds() * 1e3
		line.BestMS = min(line.BestMS, ms[i])
	}
	line.MS, line.times = Median(ms), ms
	line.Rate, line.Unit = w.rate(line.MS/1e3), w.unit
	if !copies {
		return line, nil
	}
	if line.HostMS, err = hostTime(p.Exec); err != nil || w.optimizer == nil {
		return line, err
	}
	line.AheadMS, err = hostTime(func() error { return v.runAhead(p) })
	return line, err
}

// hostTime is the median time of runs by the host's clock, in milliseconds, after one that is not timed.
func hostTime(run func() error) (float64, error) {
	times := make([]float64, 1+gpuHostRuns)
	for i := range times {
		start := time.Now()
		if err := run(); err != nil {
			return 0, err
		}
		times[i] = time.Since(start).Seconds() * 1e3
	}
	return Median(times[1:]), nil
}

// runAhead runs the program on inputs that were copied before, and copies those of the next run.
func (v *gpuValues) runAhead(p *fusec.Program) error {
	if err := p.Start(); err != nil {
		return err
	}
	for _, n := range v.graph.Sources() {
		if _, input := n.Op.(graph.Input); !input {
			continue
		}
		if err := p.Prefetch(n.Name, v.in[n.Name]); err != nil {
			return err
		}
	}
	return p.Wait()
}

// gpuValues are a work's values: random sources, and what a run made of them.
type gpuValues struct {
	work  *gpuWork
	graph *graph.Graph
	in    map[string]*graph.Tensor
	out   map[string]*graph.Tensor
}

// values builds a work's graph and draws its sources.
func (w *gpuWork) values() (*gpuValues, error) {
	g, err := w.graph()
	if err != nil {
		return nil, err
	}
	v := &gpuValues{work: w, graph: g, in: map[string]*graph.Tensor{}}
	drawn := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		name := n.Name
		if w.same != nil {
			name = w.same(name)
		}
		if drawn[name] == nil {
			drawn[name] = w.source(name, n.Type)
		}
		v.in[n.Name] = drawn[name]
	}
	return v, nil
}

// source draws a source.
func (w *gpuWork) source(name string, t graph.Type) *graph.Tensor {
	if fill := w.fill[name]; fill != nil {
		x := graph.NewTensor(t)
		fill(x)
		return x
	}
	scale, ok := w.scale[name]
	if !ok {
		scale = 1
	}
	return normal(name, t, scale)
}

// from runs another work on the same sources, and takes what it makes for sources of its name.
func (v *gpuValues) from(w *gpuWork, target string) (err error) {
	u := &gpuValues{work: w, in: v.in}
	if u.graph, err = w.graph(); err != nil {
		return err
	}
	p, err := u.compile(target, w.precision)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := u.run(p); err != nil {
		return err
	}
	for name, t := range u.out {
		v.in[name] = t.Clone()
	}
	return nil
}

// compile compiles the work's graph and gives it its sources.
func (v *gpuValues) compile(target string, precision fusec.Precision) (*fusec.Program, error) {
	return v.compileWith(precision, modelio.OnTarget(target, v.work.options...))
}

// compileWith is compile with options that name the target.
func (v *gpuValues) compileWith(precision fusec.Precision, opts ...fusec.CompileOption) (*fusec.Program, error) {
	p, err := v.program(precision, opts...)
	if err != nil {
		return nil, err
	}
	for _, n := range v.graph.Sources() {
		if err := p.Set(n.Name, v.in[n.Name]); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// program compiles the work's graph.
func (v *gpuValues) program(precision fusec.Precision, opts ...fusec.CompileOption) (*fusec.Program, error) {
	opts = append(opts, fusec.WithPrecision(precision))
	if v.work.optimizer != nil {
		opts = append(opts, fusec.WithOptimizer(v.work.optimizer))
	}
	return fusec.Compile(v.graph, opts...)
}

// run runs the program once and takes its outputs, which hold until the next run.
func (v *gpuValues) run(p *fusec.Program) (err error) {
	if err := p.Exec(); err != nil {
		return err
	}
	v.out = map[string]*graph.Tensor{}
	for _, o := range v.graph.Outputs {
		if v.out[o.Name], err = p.Output(o.Name); err != nil {
			return err
		}
	}
	return nil
}

// period is after how many elements what is drawn repeats: a prime, so that no two rows of a matrix are the same.
const period = 16777213

// normal draws a tensor from a normal distribution around zero. It depends on name and type alone.
func normal(name string, t graph.Type, scale float64) *graph.Tensor {
	const chunk = 1 << 16
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %v", name, t.Shape)
	r := graph.NewTensor(t)
	n := min(t.Shape.Elems(), period)
	var wait sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for first := 0; first < n; first += chunk {
		wait.Add(1)
		slots <- struct{}{}
		go func() {
			defer wait.Done()
			g := rand.New(rand.NewPCG(h.Sum64(), uint64(first)))
			for i := first; i < min(first+chunk, n); i++ {
				r.SetFloat(i, scale*g.NormFloat64())
			}
			<-slots
		}()
	}
	wait.Wait()
	all := r.Bytes()
	for done := int(t.DType.Span(int64(n))); done < len(all); {
		done += copy(all[done:], all[:done])
	}
	return r
}
