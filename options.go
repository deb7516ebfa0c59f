package fusec

import (
	"context"
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"

	"fusec/fpga/isa"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/optim"
	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/fpga"
	"fusec/passes"
)

// Option configures [NewMachine] and [Compile]. It has the type of Gorgonia's own options, so that both kinds can be
// given to NewMachine; on a machine of Gorgonia's, fusec's options do nothing.
type Option = gorgonia.VMOpt

type config struct {
	target  string
	workers int
	verify  bool
	frozen  bool
	disable map[string]bool
	budget  int64 // bytes for temporary values; 0 is no limit

	precision Precision
	on        lowering.Device // in place of the target; tests put one of their own here

	optimizer      *optim.Optimizer
	watchNonFinite bool
	compare        bool

	attentionBlock int
	chip           kernels.Chip // to plan for; without an architecture it is the default
	ahead          *Ahead
	open           func(index int) (driver.GPU, driver.Compiler, error) // nil for NVIDIA's driver
	kernels        KernelCompiler                                       // nil for fusec's own

	overlay     isa.Config                 // without a name it is the default
	link        string                     // the way to it
	linkLog     func(line string)          // told what opening it does
	linkContext context.Context            // that opening it ends with, or nil
	samples     []map[string]*graph.Tensor // on which values are calibrated
	ranges      []fpga.Range               // that were found on samples before
	routed      map[string]*graph.Tensor   // on which plans for an overlay find where routers send tokens

	dynamicSlices bool
	withoutCache  bool
	unverified    bool // the graph is an import that was not verified
	gorgonia      bool
	noGradients   bool
	values        []*gorgonia.Node // whose values are handed out
	allValues     bool
	seed          int64
	gradients     []passes.Gradient
	err           error
}

// own makes an option that changes a Machine's configuration.
func own(set func(*config)) Option {
	return func(vm gorgonia.VM) {
		if m, ok := vm.(*Machine); ok {
			set(&m.cfg)
		}
	}
}

// WithTarget compiles for the named target; the default is "cpu". [Targets] lists them.
func WithTarget(name string) Option { return own(func(c *config) { c.target = name }) }

// WithArch plans for a CUDA chip of the architecture, such as "sm_80", where there is no GPU to ask; the default is that
// of an H200. Programs that run are made for the GPU that they run on.
func WithArch(name string) Option {
	return own(func(c *config) {
		chip, err := kernels.ChipNamed(name)
		if err != nil && c.err == nil {
			c.err = fmt.Errorf("WithArch: %w", err)
		}
		c.chip = chip
	})
}

// WithDriver opens GPUs, and what compiles for them, by a function instead of NVIDIA's driver: the emulator's, for
// example, which needs no GPU. The index is that of the target. The program closes what it was given.
func WithDriver(open func(index int) (driver.GPU, driver.Compiler, error)) Option {
	return own(func(c *config) { c.open = open })
}

// A KernelCompiler makes a CUDA kernel of a launch. Its error is a refusal, after which the processor does the launch.
type KernelCompiler = func(op graph.Op, args, results []kernels.Operand, cfg kernels.Config) (*kernels.Kernel, error)

// WithKernels makes CUDA kernels by another function than [kernels.Compile]: a rung of a ladder, or a kernel of one's own.
func WithKernels(compile KernelCompiler) Option { return own(func(c *config) { c.kernels = compile }) }

// MaxWorkers is the most that [WithWorkers] takes: more than any machine has cores, for each takes memory.
const MaxWorkers = 1 << 14

// WithWorkers sets the number of cores that run the program; the default is GOMAXPROCS.
func WithWorkers(n int) Option {
	return own(func(c *config) {
		if (n < 1 || n > MaxWorkers) && c.err == nil {
			c.err = fmt.Errorf("WithWorkers(%d): want at least 1 and at most %d", n, MaxWorkers)
		}
		c.workers = n
	})
}

// WithAttentionBlock has attentions, and their gradients, take n queries in a work item and n keys in a step, rounded up
// to what the matrix kernels take at once. The default, 0, chooses both by the shape, for speed. Smaller blocks need less
// scratch. Results differ by rounding.
func WithAttentionBlock(n int) Option {
	return own(func(c *config) {
		if n < 0 && c.err == nil {
			c.err = fmt.Errorf("WithAttentionBlock(%d): want at least 1, or 0 to choose by the shape", n)
		}
		c.attentionBlock = n
	})
}

// WithVerify checks the graph after each pass. On a GPU runs wait for each launch, so that an error names the one that
// went wrong.
func WithVerify() Option { return own(func(c *config) { c.verify = true }) }

// WithFrozenParams declares that weights do not change while the machine lives, so that they are packed once. Without
// it they are read again before each run, since Gorgonia's solvers change them in place.
func WithFrozenParams() Option { return own(func(c *config) { c.frozen = true }) }

// WithDynamicSlices reads where slices start before each run, for programs that change a slice of a graph that is
// already compiled. Without it the run after such a change compiles the graph again, and from the second change on those
// slices are read before each run; a note of the trace says so. A slice that becomes longer or shorter always compiles again.
func WithDynamicSlices() Option { return own(func(c *config) { c.dynamicSlices = true }) }

// WithGorgoniaSemantics has a machine compute what Gorgonia v0.9.18 computes, also where that is wrong, as far as it can be
// imitated: the order of four paddings, the divisor of average pools, the gradients of dropout, of pools and of batch
// normalisation in evaluation, ties, and the others that docs/divergences.md lists. Gradients are those that
// gorgonia.Grad built, so that less of the backward pass is fused. With it a program moves in two steps: first to fusec
// with the same numbers, then to the right ones. Notes of the trace say what is imitated and what cannot be.
func WithGorgoniaSemantics() Option { return own(func(c *config) { c.gorgonia = true }) }

// WithoutGradients leaves out the gradients that gorgonia.Grad was asked for, except those that BindDualValues names: for
// a machine that only evaluates a graph that another one trains. Where a gradient is part of another result, it stays.
func WithoutGradients() Option { return own(func(c *config) { c.noGradients = true }) }

// WithGradient makes [Compile] hand out, as an output of the given name, the gradient of the scalar cost for the node of;
// both are nodes of the graph that is compiled. The backward pass is made from the graph as fused. Machines take the
// gradients that gorgonia.Grad asked for.
func WithGradient(output string, cost, of *graph.Node) Option {
	return own(func(c *config) {
		switch {
		case c.err != nil:
		case cost == nil || of == nil:
			c.err = fmt.Errorf("WithGradient(%q): the cost or the node is nil", output)
		case cost.Type.Shape.Elems() != 1:
			c.err = fmt.Errorf("WithGradient(%q): the cost %s has type %v: a gradient wants a scalar", output, cost.Where(), cost.Type)
		}
		c.gradients = append(c.gradients, passes.Gradient{Cost: cost, Of: of, Output: output})
	})
}

// WithSeed sets the seed of random operations: dropout and noise. The default is 0; the same seed draws the same.
func WithSeed(seed int64) Option { return own(func(c *config) { c.seed = seed }) }

// WithoutPass leaves out a pass of the table, to see what it does or to work around it.
func WithoutPass(name string) Option {
	return own(func(c *config) {
		if c.disable == nil {
			c.disable = map[string]bool{}
		}
		c.disable[name] = true
	})
}

// MemoryBudget limits the memory for temporary values, [lowering.Program.ArenaBytes], to the given number of bytes: what
// does not fit is dropped and computed again when it is needed (gradient checkpointing). Results are the same bits, and
// a smaller budget takes no less work. Inputs, parameters, state, outputs and what kernels set aside for themselves, such
// as packed weights, do not count. If nothing is found that meets the budget, the program takes as little memory as was
// found, and a note in the trace says how much that is. With a budget or without, the CPU refuses a program of more than
// 1 GiB that needs more memory than the machine, or the process's control group, has available. `fusec explain --memory-budget` shows what is computed again.
func MemoryBudget(bytes int64) Option {
	return own(func(c *config) {
		if bytes < 1 && c.err == nil {
			c.err = fmt.Errorf("MemoryBudget(%d): want at least 1 byte", bytes)
		}
		c.budget = bytes
	})
}

// newConfig applies options: fusec's own fill the first result, Gorgonia's the second.
func newConfig(opts []Option) (config, fgorgonia.VMConfig, error) {
	m := &Machine{cfg: config{target: "cpu"}}
	vm, err := fgorgonia.ReadOptions(fgorgonia.TapeMachine, m, opts...)
	return m.cfg, vm, errors.Join(err, m.cfg.err)
}
