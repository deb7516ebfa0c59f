package fusec

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gorgonia.org/gorgonia"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/optim"
	"fusec/graph/precision"
	"fusec/kernels/group"
	"fusec/lowering"
	"fusec/passes"
)

// Option configures [Compile] and [NewMachine]. Its type is the one that Gorgonia's options and a [CompileOption] have
// beneath, so that Go takes it for either; on a machine of Gorgonia's it does nothing.
type Option = func(gorgonia.VM)

// CompileOption configures [Compile], [Plan] and [CompileAhead]. Every [Option] is one, and no [MachineOption] is.
type CompileOption func(gorgonia.VM)

// MachineOption configures [NewMachine] and [NewLispMachine]. Gorgonia's own options and every [Option] are such, and no
// [CompileOption] is.
type MachineOption = gorgonia.VMOpt

// config is what options have asked for.
type config struct {
	target  string
	options []lowering.TargetOption
	on      lowering.Device // in place of the target; tests put a device here
	workers int
	verify  bool
	frozen  bool
	disable map[string]bool
	budget  int64 // bytes for temporary values; 0 is no limit

	precision Precision

	optimizer      *optim.Optimizer
	watchNonFinite bool
	compare        bool
	shadow         int    // each launch is compared once in so many runs; 0 for never
	shadowFolder   string // for launches that depart

	dynamicSlices bool
	withoutCache  bool
	unverified    bool // the graph is an import that was not verified
	gorgonia      bool
	noGradients   bool
	values        []*gorgonia.Node // whose values are handed out
	allValues     bool
	seed          int64
	gradients     []passes.Gradient

	group   *group.Group
	devices []string            // the targets of several participants of this process; nil for one
	mesh    graph.Mesh          // in place of the graph's
	splits  map[string][]string // of sources, by name
	zero    int                 // stage of ZeRO
	rounded bool                // participants exchange gradients in bf16

	microbatches int      // of a pipeline; 0 for none
	ends         []string // of its stages, by the names of values

	kept int // programs of a Specialised; 0 for the default

	applied int      // how many options have been
	compile []string // names of those that are for Compile alone
	machine []string // and of those for machines alone
	special []string // and of those for Specialise alone
	err     error
}

// option makes an option of all that takes options.
func option(set func(*config)) Option {
	return func(vm gorgonia.VM) {
		if m, ok := vm.(*Machine); ok {
			m.cfg.applied++
			set(&m.cfg)
		}
	}
}

// ownMachine makes an option of machines.
func ownMachine(name string, set func(*config)) MachineOption {
	return option(func(c *config) {
		c.machine = append(c.machine, name)
		set(c)
	})
}

// fail keeps the first error of an option.
func (c *config) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// newConfig applies options of [Compile]. What was made one by a conversion is refused.
func newConfig(opts []CompileOption) (config, error) {
	c, err := readOptions(opts)
	for _, name := range c.special {
		err = errors.Join(err, fmt.Errorf("%s is for Specialise", name))
	}
	return c, err
}

// readOptions applies options of [Compile] and [Specialise].
func readOptions(opts []CompileOption) (config, error) {
	m := &Machine{cfg: config{target: Targets()[0]}}
	var errs []error
	for i, o := range opts {
		if o == nil {
			errs = append(errs, fmt.Errorf("option %d is nil", i))
			continue
		}
		before := m.cfg.applied
		if err := fgorgonia.Apply(gorgonia.VMOpt(o), m); err != nil || m.cfg.applied == before {
			errs = append(errs, fmt.Errorf("option %d%s is for machines of Gorgonia graphs", i, fgorgonia.After(gorgonia.VMOpt(o))))
		}
	}
	for _, name := range m.cfg.machine {
		errs = append(errs, fmt.Errorf("%s is for machines of Gorgonia graphs", name))
	}
	return m.cfg, errors.Join(append(errs, m.cfg.err)...)
}

// WithTarget compiles for the named target; the default is the first of [Targets]. The options are those of the target's
// package: [fusec/lowering/cpu], [fusec/lowering/cuda] or [fusec/lowering/fpga]. An empty name adds options for the target that
// is named elsewhere. Several names, separated by commas, are those of [WithDevices].
func WithTarget(name string, opts ...lowering.TargetOption) Option {
	return option(func(c *config) {
		if name != "" {
			c.setDevices(strings.Split(name, ","))
		}
		for i, o := range opts {
			if v := reflect.ValueOf(o); !v.IsValid() || v.Kind() == reflect.Func && v.IsNil() {
				c.fail("WithTarget(%q): option %d is nil", name, i)
				continue
			}
			c.options = append(c.options, o)
		}
	})
}

// MaxWorkers is the most that [WithWorkers] takes: more than any machine has cores, for each takes memory.
const MaxWorkers = 1 << 14

// WithWorkers sets the number of cores that run the program; the default is GOMAXPROCS.
func WithWorkers(n int) Option {
	return option(func(c *config) {
		if n < 1 || n > MaxWorkers {
			c.fail("WithWorkers(%d): want at least 1 and at most %d", n, MaxWorkers)
		}
		c.workers = n
	})
}

// Precision names what contractions (matrix products, convolutions, attentions, mixtures of experts) may round to.
// Elementwise work, reductions, norms, losses, parameters and an optimiser's state are in f32 in each of them, and all
// sums are.
type Precision = precision.Precision

// The precisions; see [WithPrecision].
const (
	F32  = precision.F32  // as accurate as f32, by whatever instructions reach it: the default
	TF32 = precision.TF32 // operands of products rounded to 10 bits after the point
	BF16 = precision.BF16 // operands of contractions in bf16, as are the results that later launches read
	F16  = precision.F16  // the same in f16, whose range ends at 6e-8 and 65504: training requires a loss scale
)

// ParsePrecision reads the name of a precision: f32, tf32, bf16 or f16.
func ParsePrecision(name string) (Precision, error) { return precision.Parse(name) }

// WithPrecision lets contractions round. The default is [F32]; nothing is rounded unless it is asked for. Inputs,
// outputs and parameters keep their types. The trace says of each value whether it was rounded, and what stayed in f32
// and why. A target that computes in one precision only refuses the others.
//
// On the CPU, BF16 and F16 are the types in which frozen weights of products are stored: they are half as large, and a product of
// few rows takes half the time. Processors with AVX512-BF16 multiply more rows in BF16 at twice the rate of f32; what the weights
// meet is rounded there, too. So are the products of training with matrices of at least 4096 elements and at least 32 rows, forward
// and backward: both operands are rounded to nearest in each run, and sums, gradients and parameters stay in f32. Attentions,
// convolutions, mixtures of experts and products of two batches stay in f32, and so does everything on processors without these
// instructions.
func WithPrecision(p Precision) Option {
	return option(func(c *config) {
		if !p.Known() {
			c.fail("WithPrecision: %v is not known", p)
		}
		c.precision = p
	})
}

// WithVerify checks the graph after each pass. On a GPU runs wait for each launch, so that an error names the one that
// went wrong.
func WithVerify() Option { return option(func(c *config) { c.verify = true }) }

// WithSeed sets the seed of random operations: dropout and noise. The default is 0; the same seed draws the same.
func WithSeed(seed int64) Option { return option(func(c *config) { c.seed = seed }) }

// WithoutPass leaves out a pass of the table, to see what it does or to work around it. A pass that the program needs is
// refused with the reason.
func WithoutPass(name string) Option { return option(func(c *config) { c.without(name) }) }

// without leaves out a pass.
func (c *config) without(name string) {
	if c.disable == nil {
		c.disable = map[string]bool{}
	}
	c.disable[name] = true
}

// WithoutWinograd has no convolution computed by Winograd's algorithm. Without this option the CPU uses it for convolutions of
// 3×3, and for gradients for their images, where it is faster. Its results differ from those of other algorithms in their rounding
// only, but the error is in proportion to the largest values near an element, not to the terms of the element's own sum: where an
// image has very large values beside small ones that matter, forbid it. [graph.Winograd] states the bound. In a graph that allows
// the algorithm itself, by the attribute winograd, it stays allowed.
func WithoutWinograd() Option { return option(func(c *config) { c.without("winograd") }) }

// WithMemoryBudget limits the memory for temporary values, [lowering.Program.ArenaBytes], to the given number of bytes:
// what does not fit is dropped and computed again when it is needed (gradient checkpointing). Results are the same bits,
// and a smaller budget takes no less work. Inputs, parameters, state, outputs and what kernels set aside for themselves,
// such as packed weights, do not count, and neither does what is prepared once ([lowering.Program.PreparedBytes]). If nothing is
// found that meets the budget, the program takes as little memory as was found, and a note in the trace says how much that is. With
// a budget or without, the CPU refuses a program of more than 1 GiB that needs more memory than the machine, or the process's
// control group, has available. `fusec explain --memory-budget` shows what is computed again.
func WithMemoryBudget(bytes int64) Option {
	return option(func(c *config) {
		if bytes < 1 {
			c.fail("WithMemoryBudget(%d): want at least 1 byte", bytes)
		}
		c.budget = bytes
	})
}

// WithOptimizer makes the update of the parameters part of every run: clipping, loss scale and the optimiser's step are
// compiled with the forward and backward pass, and parameters that are treated alike are updated in one launch.
//
// On a [Machine] these are the nodes that gorgonia.Grad was asked for. On the CPU a run changes their values in place, in
// the memory of the nodes themselves, so Node.Value is always current and may be set between runs. On a device they stay
// on the device: Node.Value is current after [Machine.Sync], and after what syncs by itself, and may be changed in place
// from then until the next run; a new value, as gorgonia.Let gives, is taken up at any time. Their gradients are
// handed out only where gorgonia.BindDualValues, a Read or a watch asks for them; a run after a solver of Gorgonia's has
// used them is refused, since the step would be made twice. With [Compile] they are all parameters
// that the graph's one output of a single number, the cost, depends on; give their first values with [Program.Set] and
// read them with [Program.State].
//
// A run whose gradients or costs are not finite changes no parameter and no moment; see [StepStats.Skipped]. Everything
// that the optimiser keeps is state of the program; see [Machine.State].
func WithOptimizer(o *optim.Optimizer) Option {
	return option(func(c *config) {
		if c.optimizer != nil {
			c.fail("WithOptimizer is given twice")
		}
		if err := o.Check(); err != nil {
			c.fail("WithOptimizer: %w", err)
		}
		c.optimizer = o
	})
}

// WithWatchNonFinite looks at what every launch makes. The first operation that makes NaN of operands without NaN, or an
// infinity of finite ones, ends the run with a [NonFiniteError], and so does a source that holds NaN; no parameter or
// state is changed then. A run that is watched is slower and allocates.
func WithWatchNonFinite() Option { return option(func(c *config) { c.watchNonFinite = true }) }

// WithShadow compares a sample of the launches of runs, such as those of training, with the reference, package [fusec/kernels/ref]:
// each launch once in every so many runs, in each run others, with what float64 makes of the operands that it read. The bound
// is that of the launch's types, 1e-5 of the sum of a result's terms in f32, and follows what [WithPrecision] rounds.
// [Program.Shadow] is the largest departure until now. A launch that departs by more than its bound ends the run with a
// [DepartureError], which names it; no parameter or state is changed, and a later run goes on with other launches. It is
// written, with the values that it read, as the graph fusec-shadow-N.graph into the folder, or the current one if
// none is given; `fusec run --against ref` runs that graph.
//
// The time that comparing takes falls with every. Updates are copied at the end of each run, as with
// [WithWatchNonFinite]; docs/lock.md has the cost of both. Target "fpga", which does not train, compares the runs of inference,
// within what rounding to its integers may do. Target "ref" compares the reference with itself.
func WithShadow(every int, folder ...string) Option {
	return option(func(c *config) {
		switch {
		case every < 1:
			c.fail("WithShadow(%d): want at least 1", every)
		case len(folder) > 1:
			c.fail("WithShadow: %d folders, want one", len(folder))
		}
		c.shadow, c.shadowFolder = every, strings.Join(folder, "")
	})
}

// WithReference compares what every launch makes with what the reference, package [fusec/kernels/ref], makes in float64 of
// the operands that the launch read; [Program.Departures] are the differences. A run that is compared is slow and
// allocates.
func WithReference() Option { return option(func(c *config) { c.compare = true }) }

// watched reports whether something looks at what every launch makes.
func (c *config) watched() bool { return c.watchNonFinite || c.compare || c.shadow > 0 }

// WithoutProgramCache compiles the graph even if an equal one was compiled before, and does not keep the program. Without it
// programs for the CPU are kept, after their machines are closed as well: the 256 that were used last, as long as they
// and the kernels of closed machines together take no more than about 64 MiB. Programs for other targets are never kept,
// nor those of graphs with opaque operations of the user's, of which nobody can tell whether they are equal.
func WithoutProgramCache() Option { return option(func(c *config) { c.withoutCache = true }) }

// WithGradient makes [Compile] hand out, as an output of the given name, the gradient of the scalar cost for the node of;
// both are nodes of the graph that is compiled. The backward pass is made from the graph as fused. Machines take the
// gradients that gorgonia.Grad asked for.
func WithGradient(output string, cost, of *graph.Node) CompileOption {
	return option(func(c *config) {
		c.compile = append(c.compile, "WithGradient")
		switch {
		case cost == nil || of == nil:
			c.fail("WithGradient(%q): the cost or the node is nil", output)
		case cost.Type.Shape.Elems() != 1:
			c.fail("WithGradient(%q): the cost %s has type %v: a gradient requires a scalar", output, cost.Where(), cost.Type)
		}
		c.gradients = append(c.gradients, passes.Gradient{Cost: cost, Of: of, Output: output})
	})
}

// WithFrozenParams declares that weights do not change while the machine lives. They are packed once, and what depends on
// them and on constants alone, such as a transpose, a rounding to 16 bits or the scale of a batch norm, is computed once,
// before the first run, and again after a weight has got another value with gorgonia.Let; see [Fusion.Prepared]. Without
// it they are read again before each run, since Gorgonia's solvers change them in place. In what [Compile] makes they are
// frozen, except those that the graph or an optimiser updates.
func WithFrozenParams() MachineOption {
	return ownMachine("WithFrozenParams", func(c *config) { c.frozen = true })
}

// WithDynamicSlices reads where slices start before each run, for programs that change a slice of a graph that is
// already compiled. Without it the run after such a change compiles the graph again, and from the second change on those
// slices are read before each run; a note of the trace says so. A slice that becomes longer or shorter always compiles again.
func WithDynamicSlices() MachineOption {
	return ownMachine("WithDynamicSlices", func(c *config) { c.dynamicSlices = true })
}

// WithGorgoniaSemantics has a machine compute what Gorgonia v0.9.18 computes, also where that is wrong, as far as it can be
// imitated: the order of four paddings, the divisor of average pools, the gradients of dropout, of pools and of batch
// normalisation in evaluation, ties, and the others that docs/divergences.md lists. Gradients are those that
// gorgonia.Grad built, so that less of the backward pass is fused. With it a program moves in two steps: first to fusec
// with the same numbers, then to the right ones. Notes of the trace say what is imitated and what cannot be.
func WithGorgoniaSemantics() MachineOption {
	return ownMachine("WithGorgoniaSemantics", func(c *config) { c.gorgonia = true })
}

// WithoutGradients leaves out the gradients that gorgonia.Grad was asked for, except those that BindDualValues names: for
// a machine that only evaluates a graph that another one trains. Where a gradient is part of another result, it stays.
func WithoutGradients() MachineOption {
	return ownMachine("WithoutGradients", func(c *config) { c.noGradients = true })
}

// WithValues makes runs hand out the values of inner nodes as plain tensors and scalars; without nodes those of all. A
// program that asserts their type, as in h.Value().(*tensor.Dense), needs this, since other inner values are of type
// [UnstoredTensor]; and one that reads them in every round is faster with it. Values that are handed out are stored,
// which costs memory traffic, and may keep operations from being fused.
func WithValues(nodes ...*gorgonia.Node) MachineOption {
	return ownMachine("WithValues", func(c *config) {
		c.values = append(c.values, nodes...)
		c.allValues = c.allValues || len(nodes) == 0
	})
}

// givesValue reports whether [WithValues] names n.
func (c *config) givesValue(n *gorgonia.Node) bool {
	return c.allValues || slices.Contains(c.values, n)
}
