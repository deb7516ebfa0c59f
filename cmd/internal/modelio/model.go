// Package modelio reads what commands work on: models, values of their sources, and the flags that say how a model is
// compiled.
package modelio

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/graph"
	"fusec/graph/memlimit"
	"fusec/graph/onnx"
	"fusec/graph/trace"
	"fusec/graph/trace/tracejson"
	"fusec/lowering"
)

// StdinName is the argument that means standard input.
const StdinName = "-"

// ModelArgument takes the one argument of a command that works on a model.
func ModelArgument(args []string) (string, error) {
	switch len(args) {
	case 1:
		return args[0], likely(args[0])
	case 0:
		return "", cli.Usage("which model? Give the path of a .graph or .onnx file, or - for standard input")
	}
	return "", cli.Usage("one model at a time, not %d: %s", len(args), strings.Join(args, ", "))
}

// likely refuses the path of weights, and of a model without its extension.
func likely(path string) error {
	ext := filepath.Ext(path)
	model := strings.TrimSuffix(path, ext) + ".graph"
	if ext == ".safetensors" {
		return cli.Usage("%s has weights: the model is %s", path, model)
	}
	if _, err := os.Stat(path); path != StdinName && errors.Is(err, fs.ErrNotExist) {
		for _, ext := range []string{".graph", onnx.Extension} {
			if _, err := os.Stat(path + ext); err == nil {
				return cli.Usage("%s: no such file; did you mean %s?", path, path+ext)
			}
		}
	}
	return nil
}

// ModelName is a model's short name: its file's, without folder and extension.
func ModelName(path string) string {
	if path == StdinName {
		return "stdin"
	}
	base := filepath.Base(path)
	return strings.TrimSuffix(base, filepath.Ext(base))
}

// IsModel reports whether a path is named as models are.
func IsModel(path string) bool {
	return strings.EqualFold(filepath.Ext(path), ".graph") || isONNX(path)
}

// LoadGraph reads a graph without weights.
func LoadGraph(e *cli.Env, path string, shapes *Shapes) (*graph.Graph, error) {
	if err := shapes.check(path); err != nil {
		return nil, err
	}
	if isONNX(path) {
		m, err := shapes.load(e, path)
		if err != nil {
			return nil, err
		}
		return m.Graph, nil
	}
	if filepath.Ext(path) == AheadExt {
		a, err := fusec.OpenAhead(path)
		if err != nil {
			return nil, err
		}
		return a.Graph, nil
	}
	if path != StdinName {
		return graph.LoadGraph(path)
	}
	src, err := io.ReadAll(io.LimitReader(e.Stdin, graph.MaxText+1))
	if err != nil {
		return nil, fmt.Errorf("reading standard input: %w", err)
	}
	return graph.Parse(ModelName(path), src, nil)
}

// CompileFlags are the flags of every command that compiles.
type CompileFlags struct {
	Target  string
	given   *bool // whether a flag names the target
	Threads int
	verify  bool
	disable []string
	budget  int64 // bytes, or 0

	microbatches int // of a pipeline, or 0
	ends         []string

	noWinograd bool

	Precision fusec.Precision
	Shapes    Shapes
	ahead     *fusec.Ahead // that the model came with, or nil
	Flags     TargetFlags
	calibrate string
}

// Declare declares the flags. The target is one of among, or of all if there are none; the first is the default.
func (c *CompileFlags) Declare(f *cli.FlagSet, among ...string) {
	if len(among) == 0 {
		among = fusec.Targets()
	}
	c.Target = among[0]
	c.given = f.Target(&c.Target, among...)
	f.Precision(&c.Precision)
	if f.Lookup("dim") == nil { // of a command that has a flag of that name
		c.Shapes.Declare(f, "")
	}
	c.Flags.Declare(f, false)
	f.StringVar(&c.calibrate, "calibrate", "",
		"target "+calibrated()+": find ranges on the samples of `FILE`, .npz or .safetensors (default: the run's inputs)")
	f.Threads(&c.Threads, "all")
	f.BoolVar(&c.verify, "verify", false, "check the graph after each pass")
	f.Func("memory-budget", "compute values again rather than let them take more than `SIZE`, such as 64MiB",
		func(s string) (err error) {
			c.budget, err = cli.ParseBytes(s)
			return err
		})
	Pipeline(f, func(microbatches int, ends []string) { c.microbatches, c.ends = microbatches, ends })
	f.BoolVar(&c.noWinograd, "no-winograd", false, "no convolution by Winograd's algorithm, whose errors have a larger bound")
	f.Names(&c.disable, "disable", "pass", fusec.Passes, "leave out the pass `NAME`; may be repeated")
}

// Pipeline declares the flag that cuts a model into stages.
func Pipeline(f *cli.FlagSet, set func(microbatches int, ends []string)) {
	f.Func("pipeline", "a stage of the model on each participant, and a batch as `N` microbatches; N:NAME,NAME ends stages at values",
		func(s string) error {
			number, names, named := strings.Cut(s, ":")
			n, err := strconv.Atoi(number)
			if err != nil || n < 2 || named && names == "" {
				return errors.New("want at least 2 microbatches, and names behind a colon, such as 8 or 8:block1,block2")
			}
			var ends []string
			if named {
				ends = strings.Split(names, ",")
			}
			set(n, ends)
			return nil
		})
}

// On says for reports where, and in what precision if not in f32, a program runs.
func On(target, precision string) string {
	if precision == "" || precision == fusec.F32.String() {
		return target
	}
	return target + " in " + precision
}

// Options are those for the root package. Of extra those count that are for the target.
func (c *CompileFlags) Options(extra ...lowering.TargetOption) []fusec.CompileOption {
	own := append(c.Flags.options(kind(c.Target)), extra...)
	opts := []fusec.CompileOption{OnTarget(c.Target, own...), fusec.WithPrecision(c.Precision)}
	if c.ahead != nil {
		opts = append(opts, fusec.WithAhead(c.ahead))
	}
	if c.Threads > 0 {
		opts = append(opts, fusec.WithWorkers(c.Threads))
	}
	if c.verify {
		opts = append(opts, fusec.WithVerify())
	}
	if c.budget > 0 {
		opts = append(opts, fusec.WithMemoryBudget(c.budget))
	}
	if c.microbatches > 0 {
		opts = append(opts, fusec.WithPipeline(c.microbatches, c.ends...))
	}
	if c.noWinograd {
		opts = append(opts, fusec.WithoutWinograd())
	}
	for _, name := range c.disable {
		opts = append(opts, fusec.WithoutPass(name))
	}
	return opts
}

// Without reports whether the flags leave out a pass.
func (c *CompileFlags) Without(pass string) bool {
	return pass == "winograd" && c.noWinograd || slices.Contains(c.disable, pass)
}

// OnTarget compiles for a target with those of the options that are for it.
func OnTarget(target string, opts ...lowering.TargetOption) fusec.Option {
	kind, _, _ := strings.Cut(target, ":")
	var its []lowering.TargetOption
	for _, o := range append(opts, ExtraOptions...) {
		if o.Of() == kind {
			its = append(its, o)
		}
	}
	return fusec.WithTarget(target, its...)
}

// ExtraOptions are given to every compilation. Tests have GPUs emulated by them.
var ExtraOptions []lowering.TargetOption

// PlanFor plans a graph, and gives the device of the target that the options name.
func PlanFor[D lowering.Device](g *graph.Graph, opts ...fusec.CompileOption) (device D, p *lowering.Program, err error) {
	if _, p, err = fusec.Plan(g, opts...); err != nil {
		return device, nil, err
	}
	d, err := fusec.PlanDevice(opts...)
	if err != nil {
		return device, nil, err
	}
	device, ok := d.(D)
	if !ok {
		return device, nil, errors.New("this is for a program on one device, not for the stages of a pipeline")
	}
	return device, p, nil
}

// Load reads a graph to be looked at, without weights. One that was compiled ahead of time is looked at where it runs.
func (c *CompileFlags) Load(e *cli.Env, path string) (*graph.Graph, error) {
	if filepath.Ext(path) != AheadExt {
		return LoadGraph(e, path, &c.Shapes)
	}
	a, err := fusec.OpenAhead(path)
	if err != nil {
		return nil, err
	}
	return a.Graph, c.Take(a)
}

// Plan compiles a graph to be looked at. After an error the trace, if there is one, has the stages until then.
func (c *CompileFlags) Plan(g *graph.Graph) (*trace.Trace, *lowering.Program, error) {
	if err := c.Check(); err != nil {
		return nil, nil, err
	}
	return fusec.Plan(g, c.Options()...)
}

// About tells where and how a model was compiled, for the JSON of its trace.
func (c *CompileFlags) About(path string) tracejson.About {
	flags := []string{"--target " + c.Target}
	if c.Precision != fusec.F32 {
		flags = append(flags, "--precision "+c.Precision.String())
	}
	if flag := kind(c.Target).ChipFlag(); c.Flags[flag.Name] != "" {
		flags = append(flags, "--"+flag.Name+" "+c.Flags[flag.Name])
	}
	if c.Threads > 0 {
		flags = append(flags, fmt.Sprintf("--threads %d", c.Threads))
	}
	if c.budget > 0 {
		flags = append(flags, fmt.Sprintf("--memory-budget %d", c.budget))
	}
	if c.microbatches > 0 {
		flags = append(flags, strings.TrimSuffix(fmt.Sprintf("--pipeline %d:%s", c.microbatches, strings.Join(c.ends, ",")), ":"))
	}
	if c.noWinograd {
		flags = append(flags, "--no-winograd")
	}
	for _, name := range c.disable {
		flags = append(flags, "--disable "+name)
	}
	return AboutHere(ModelName(path), flags...)
}

// AboutHere tells that a model was compiled by this process on this machine.
func AboutHere(model string, flags ...string) tracejson.About {
	m := cli.ThisMachine()
	return tracejson.About{Model: model, Fusec: cli.Version(), Flags: flags,
		Machine: &tracejson.Machine{CPU: m.CPU, Cores: m.Cores, OS: m.OS, Arch: m.Arch, Go: m.Go}}
}

// Pipelined reports whether the model is cut into stages.
func (c *CompileFlags) Pipelined() bool { return c.microbatches > 0 }

// Take has the program be the one that a model came with, if it came with one, and run where that one does.
func (c *CompileFlags) Take(a *fusec.Ahead) error {
	c.ahead = a
	if a == nil {
		return nil
	}
	if kind, _, _ := strings.Cut(c.Target, ":"); kind != a.Target() {
		if c.given != nil && *c.given {
			return cli.Usage("--target %s: the model was compiled for target %s", c.Target, a.Target())
		}
		c.Target = a.Target()
	}
	flag := kind(c.Target).ChipFlag()
	if chip := c.Flags[flag.Name]; chip != "" && a.Chip != flag.Noun+chip {
		return cli.Usage("--%s %s: the model was compiled for %s", flag.Name, chip, a.Chip)
	}
	if c.calibrate != "" && c.NeedsCalibration() {
		return cli.Usage("--calibrate %s: the model was compiled for %s, with its ranges", c.calibrate, a.Chip)
	}
	return nil
}

// Compile compiles a graph to be run with the given values.
func (c *CompileFlags) Compile(g *graph.Graph, vals *Values, extra []lowering.TargetOption,
	more ...fusec.CompileOption) (*fusec.Program, error) {
	if err := c.Take(vals.Ahead); err != nil {
		return nil, err
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	samples, err := c.Calibration(g)
	if err != nil {
		return nil, err
	}
	p, err := fusec.Compile(g, append(c.Options(append(samples, extra...)...), more...)...)
	if err != nil {
		return nil, err
	}
	if err := vals.Bind(p); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// ValueFlags are the flags of every command that runs a model.
type ValueFlags struct {
	Seed     uint64
	random   bool
	AllowNaN bool
}

// DefaultSeed decides the random values where no flag does.
const DefaultSeed = 1

func (v *ValueFlags) Declare(f *cli.FlagSet) {
	v.Seed = DefaultSeed
	f.Seed(&v.Seed, "`N` decides the random values (default 1)")
	f.BoolVar(&v.random, "random-weights", false, "give the weights random values too, whether or not they are there")
	f.BoolVar(&v.AllowNaN, "allow-nan", false, "run although weights hold NaN")
}

// Values are what a graph's inputs, parameters and state are given.
type Values struct {
	Weights map[string]*graph.Tensor // of Param and State nodes
	Inputs  map[string]*graph.Tensor
	Random  map[string]bool // which of them are random
	Ahead   *fusec.Ahead    // that the graph came with, or nil
}

// All are the values by name.
func (v *Values) All() map[string]*graph.Tensor {
	all := maps.Clone(v.Weights)
	maps.Copy(all, v.Inputs)
	return all
}

// Load reads a graph and the values for it: weights from the file beside it or in it, the rest random. If lenient, weights
// that are missing become random.
func (v *ValueFlags) Load(e *cli.Env, path string, shapes *Shapes, lenient bool) (*graph.Graph, *Values, error) {
	vals := &Values{Weights: map[string]*graph.Tensor{}, Inputs: map[string]*graph.Tensor{}, Random: map[string]bool{}}
	g, err := v.weights(e, path, shapes, lenient, vals)
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
	limits := IndexLimits(g)
	for _, n := range g.Sources() {
		to := vals.Weights
		if _, input := n.Op.(graph.Input); input {
			to = vals.Inputs
		}
		if to[n.Name] == nil {
			to[n.Name] = RandomTensor(n, v.Seed, limits[n])
			vals.Random[n.Name] = true
		}
	}
	return g, vals, nil
}

// weights reads the graph, and its weights into vals.
func (v *ValueFlags) weights(e *cli.Env, path string, shapes *Shapes, lenient bool, vals *Values) (*graph.Graph, error) {
	if filepath.Ext(path) == AheadExt && v.random {
		g, err := v.compiledWeights(path, true, vals)
		vals.Weights = map[string]*graph.Tensor{}
		return g, err
	}
	if v.random || path == StdinName {
		g, err := LoadGraph(e, path, shapes)
		if err == nil && !v.random && !lenient && hasWeights(g) {
			err = errors.New("a graph on standard input comes without weights; --random-weights runs it with random ones")
		}
		return g, err
	}
	if filepath.Ext(path) == AheadExt {
		return v.compiledWeights(path, lenient, vals)
	}
	g, w, err := LoadModel(e, path, shapes)
	if err != nil && onlyMissing(err) {
		if lenient {
			return graph.LoadGraph(path)
		}
		return nil, fmt.Errorf("%w\n--random-weights runs the model without them", err)
	}
	if err != nil {
		return nil, err
	}
	if !v.AllowNaN {
		for _, n := range g.Sources() {
			if err := checkNaN(n, w.Tensors[n.Name]); err != nil {
				return nil, fmt.Errorf("%s: %w; --allow-nan runs the model as it is", weightsOf(path), err)
			}
		}
	}
	vals.Weights = w.Tensors
	return g, nil
}

// compiledWeights is weights for a model that was compiled ahead of time.
func (v *ValueFlags) compiledWeights(path string, lenient bool, vals *Values) (*graph.Graph, error) {
	a, err := fusec.OpenAhead(path)
	if err != nil {
		return nil, err
	}
	if a.Weights == nil && !lenient && hasWeights(a.Graph) {
		return nil, fmt.Errorf("%s: the model was compiled without weights; --random-weights runs it with random ones", path)
	}
	vals.Ahead = a
	if vals.Weights = a.Weights; vals.Weights == nil {
		vals.Weights = map[string]*graph.Tensor{}
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

// Bind gives a program its values.
func (v *Values) Bind(p *fusec.Program) error {
	for _, m := range []map[string]*graph.Tensor{v.Weights, v.Inputs} {
		for _, name := range SortedKeys(m) {
			if err := p.Set(name, m[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// AheadExt is the extension of a model that was compiled ahead of time.
const AheadExt = ".fuse"
