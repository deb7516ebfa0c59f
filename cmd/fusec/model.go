package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"strings"

	"fusec"
	"fusec/graph"
	"fusec/graph/memlimit"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/fpga"
)

// stdinName is the argument that stands for standard input.
const stdinName = "-"

// modelArgument takes the one argument of a command that works on a model.
func modelArgument(args []string) (string, error) {
	switch len(args) {
	case 1:
		return args[0], nil
	case 0:
		return "", usage("which model? Give the path of a .graph file, or - for standard input")
	}
	return "", usage("one model at a time, not %d: %s", len(args), strings.Join(args, ", "))
}

// modelName is a model's short name: its file's, without folder and extension.
func modelName(path string) string {
	if path == stdinName {
		return "stdin"
	}
	base := filepath.Base(path)
	return strings.TrimSuffix(base, filepath.Ext(base))
}

// loadGraph reads a graph without weights.
func (e *env) loadGraph(path string) (*graph.Graph, error) {
	if filepath.Ext(path) == aheadExt {
		a, err := fusec.OpenAhead(path)
		if err != nil {
			return nil, err
		}
		return a.Graph, nil
	}
	if path != stdinName {
		return graph.LoadGraph(path)
	}
	src, err := io.ReadAll(io.LimitReader(e.stdin, graph.MaxText+1))
	if err != nil {
		return nil, fmt.Errorf("reading standard input: %w", err)
	}
	return graph.Parse(modelName(path), src, nil)
}

// compileFlags are the flags of every command that compiles.
type compileFlags struct {
	target  string
	threads int
	verify  bool
	disable []string
	budget  int64 // bytes, or 0
	arch    string

	precision fusec.Precision
	ahead     *fusec.Ahead // that the model came with, or nil
	overlay   overlayFlags
}

func (c *compileFlags) declare(f *flagSet) {
	c.target = fusec.Targets()[0]
	f.target(&c.target)
	c.arch = "sm_90a"
	f.StringVar(&c.arch, "arch", c.arch, "the CUDA `CHIP` to plan for where none is asked, such as sm_80 (default sm_90a)")
	f.precision(&c.precision)
	c.overlay.declare(f)
	f.cores(&c.threads, "threads", "run on `N` cores (default: all)")
	f.BoolVar(&c.verify, "verify", false, "check the graph after each pass")
	f.Func("memory-budget", "compute values again rather than let them take more than `SIZE`, such as 64MiB", func(s string) (err error) {
		c.budget, err = parseBytes(s)
		return err
	})
	f.names(&c.disable, "disable", fusec.Passes, "leave out the pass `NAME`; may be repeated")
}

// on says for reports where, and in what precision if not in f32, a program runs.
func on(target, precision string) string {
	if precision == "" || precision == fusec.F32.String() {
		return target
	}
	return target + " in " + precision
}

// options are those for the root package. Of extra those count that are for the target.
func (c *compileFlags) options(extra ...lowering.TargetOption) []fusec.CompileOption {
	all := append([]lowering.TargetOption{cuda.Arch(c.arch)}, c.overlay.options()...)
	opts := []fusec.CompileOption{onTarget(c.target, append(all, extra...)...), fusec.WithPrecision(c.precision)}
	if c.ahead != nil {
		opts = append(opts, fusec.WithAhead(c.ahead))
	}
	if c.threads > 0 {
		opts = append(opts, fusec.WithWorkers(c.threads))
	}
	if c.verify {
		opts = append(opts, fusec.WithVerify())
	}
	if c.budget > 0 {
		opts = append(opts, fusec.WithMemoryBudget(c.budget))
	}
	for _, name := range c.disable {
		opts = append(opts, fusec.WithoutPass(name))
	}
	return opts
}

// onTarget compiles for a target with those of the options that are for it.
func onTarget(target string, opts ...lowering.TargetOption) fusec.Option {
	kind, _, _ := strings.Cut(target, ":")
	var its []lowering.TargetOption
	for _, o := range append(opts, extraOptions...) {
		if o.Of() == kind {
			its = append(its, o)
		}
	}
	return fusec.WithTarget(target, its...)
}

// extraOptions are given to every compilation. Tests have GPUs emulated by them.
var extraOptions []lowering.TargetOption

// planFor plans a graph, and gives the device of the target that the options name.
func planFor[D lowering.Device](g *graph.Graph, opts ...fusec.CompileOption) (device D, p *lowering.Program, err error) {
	if _, p, err = fusec.Plan(g, opts...); err != nil {
		return device, nil, err
	}
	d, err := fusec.PlanDevice(opts...)
	if err != nil {
		return device, nil, err
	}
	return d.(D), p, nil
}

// load reads a graph to be looked at, without weights. One that was compiled ahead of time is looked at where it runs.
func (c *compileFlags) load(e *env, path string) (*graph.Graph, error) {
	if filepath.Ext(path) != aheadExt {
		return e.loadGraph(path)
	}
	a, err := fusec.OpenAhead(path)
	if err != nil {
		return nil, err
	}
	return a.Graph, c.take(a)
}

// plan compiles a graph to be looked at. After an error the trace, if there is one, has the stages until then.
func (c *compileFlags) plan(g *graph.Graph) (*trace.Trace, *lowering.Program, error) {
	if err := c.check(); err != nil {
		return nil, nil, err
	}
	return fusec.Plan(g, c.options()...)
}

// onGPU reports whether the target is a GPU.
func (c *compileFlags) onGPU() bool {
	kind, _, _ := strings.Cut(c.target, ":")
	return kind == "cuda"
}

// check refuses flags that are not for the target.
func (c *compileFlags) check() error { return c.overlay.check(c.target) }

// take has the program be the one that a model came with, if it came with one, and run where that one does.
func (c *compileFlags) take(a *fusec.Ahead) error {
	c.ahead = a
	if a == nil {
		return nil
	}
	if kind, _, _ := strings.Cut(c.target, ":"); kind != a.Target() {
		c.target = a.Target()
	}
	if name := c.overlay.overlay; name != "" && a.Target() == overlayTarget && a.Chip != "the overlay "+name {
		return usage("--overlay %s: the model was compiled for %s", name, a.Chip)
	}
	if c.overlay.calibrate != "" && a.Target() == overlayTarget {
		return usage("--calibrate %s: the model was compiled for %s, with its ranges", c.overlay.calibrate, a.Chip)
	}
	return nil
}

// compile compiles a graph to be run with the given values.
func (c *compileFlags) compile(g *graph.Graph, vals *values, extra []lowering.TargetOption, more ...fusec.CompileOption) (*fusec.Program, error) {
	if err := c.take(vals.ahead); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	samples, err := c.overlay.samples(g)
	if err != nil {
		return nil, err
	}
	extra = append(extra, fpga.Samples(samples...))
	p, err := fusec.Compile(g, append(c.options(extra...), more...)...)
	if err != nil {
		return nil, err
	}
	if err := vals.bind(p); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// valueFlags are the flags of every command that runs a model.
type valueFlags struct {
	seed     uint64
	random   bool
	allowNaN bool
}

// defaultSeed decides the random values where no flag does.
const defaultSeed = 1

func (v *valueFlags) declare(f *flagSet) {
	v.seed = defaultSeed
	f.seed(&v.seed, "`N` decides the random values (default 1)")
	f.BoolVar(&v.random, "random-weights", false, "give the weights random values too, whether or not they are there")
	f.BoolVar(&v.allowNaN, "allow-nan", false, "run although weights hold NaN")
}

// values are what a graph's inputs, parameters and state are given.
type values struct {
	weights map[string]*graph.Tensor // of Param and State nodes
	inputs  map[string]*graph.Tensor
	random  map[string]bool // which of them are random
	ahead   *fusec.Ahead    // that the graph came with, or nil
}

// all are the values by name.
func (v *values) all() map[string]*graph.Tensor {
	all := maps.Clone(v.weights)
	maps.Copy(all, v.inputs)
	return all
}

// load reads a graph and the values for it: weights from the file beside it, the rest random. If lenient, weights that
// are missing become random.
func (v *valueFlags) load(e *env, path string, lenient bool) (*graph.Graph, *values, error) {
	vals := &values{weights: map[string]*graph.Tensor{}, inputs: map[string]*graph.Tensor{}, random: map[string]bool{}}
	g, err := v.weights(e, path, lenient, vals)
	if err != nil {
		return nil, nil, err
	}
	var need int64
	for _, n := range g.Sources() {
		need += n.Type.Bytes()
	}
	if err := memlimit.Check(need); err != nil {
		return nil, nil, fmt.Errorf("the model's inputs and weights: %w", err)
	}
	limits := indexLimits(g)
	for _, n := range g.Sources() {
		to := vals.weights
		if _, input := n.Op.(graph.Input); input {
			to = vals.inputs
		}
		if to[n.Name] == nil {
			to[n.Name] = randomTensor(n, v.seed, limits[n])
			vals.random[n.Name] = true
		}
	}
	return g, vals, nil
}

// weights reads the graph, and its weights into vals.
func (v *valueFlags) weights(e *env, path string, lenient bool, vals *values) (*graph.Graph, error) {
	if filepath.Ext(path) == aheadExt && v.random {
		g, err := v.compiledWeights(path, true, vals)
		vals.weights = map[string]*graph.Tensor{}
		return g, err
	}
	if v.random || path == stdinName {
		g, err := e.loadGraph(path)
		if err == nil && !v.random && !lenient && hasWeights(g) {
			err = errors.New("a graph on standard input comes without weights; --random-weights runs it with random ones")
		}
		return g, err
	}
	if filepath.Ext(path) == aheadExt {
		return v.compiledWeights(path, lenient, vals)
	}
	g, w, err := graph.Load(path)
	if err != nil && onlyMissing(err) {
		if lenient {
			return graph.LoadGraph(path)
		}
		return nil, fmt.Errorf("%w\n--random-weights runs the model without them", err)
	}
	if err != nil {
		return nil, err
	}
	if len(w.Unused) > 0 {
		e.note("%s holds tensors that the graph does not name: %s", graph.WeightsPath(path), strings.Join(firstOf(w.Unused, 5), ", "))
	}
	if !v.allowNaN {
		for _, n := range g.Sources() {
			if err := checkNaN(n, w.Tensors[n.Name]); err != nil {
				return nil, fmt.Errorf("%s: %w; --allow-nan runs the model as it is", graph.WeightsPath(path), err)
			}
		}
	}
	vals.weights = w.Tensors
	return g, nil
}

// compiledWeights is weights for a model that was compiled ahead of time.
func (v *valueFlags) compiledWeights(path string, lenient bool, vals *values) (*graph.Graph, error) {
	a, err := fusec.OpenAhead(path)
	if err != nil {
		return nil, err
	}
	if a.Weights == nil && !lenient && hasWeights(a.Graph) {
		return nil, fmt.Errorf("%s: the model was compiled without weights; --random-weights runs it with random ones", path)
	}
	vals.ahead = a
	if vals.weights = a.Weights; vals.weights == nil {
		vals.weights = map[string]*graph.Tensor{}
	}
	return a.Graph, nil
}

// hasWeights reports whether a graph has parameters or state.
func hasWeights(g *graph.Graph) bool {
	for _, n := range g.Sources() {
		if _, input := n.Op.(graph.Input); !input {
			return true
		}
	}
	return false
}

// onlyMissing reports whether nothing is wrong but that weights are missing.
func onlyMissing(err error) bool {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range list.Unwrap() {
			if !onlyMissing(err) {
				return false
			}
		}
		return true
	}
	_, ok := err.(*graph.MissingWeightsError)
	return ok
}

// firstOf is at most n of the names, and how many more there are.
func firstOf(names []string, n int) []string {
	if len(names) <= n {
		return names
	}
	return append(append([]string(nil), names[:n]...), fmt.Sprintf("and %d more", len(names)-n))
}

// bind gives a program its values.
func (v *values) bind(p *fusec.Program) error {
	for _, m := range []map[string]*graph.Tensor{v.weights, v.inputs} {
		for _, name := range sortedKeys(m) {
			if err := p.Set(name, m[name]); err != nil {
				return err
			}
		}
	}
	return nil
}
