// Package cuda runs programs on a GPU, with the kernels of package kernels/cuda.
//
// A [Device] generates the CUDA C++ of every launch, compiles it for the chip, and allocates the program's buffers on
// the GPU. Consecutive launches are recorded once as a CUDA graph, with the copies of inputs before them and those of
// outputs after them, and a run replays it. A launch without a CUDA kernel runs on the processor in between, with its
// operands copied there and back; [lowering.Launch] says so, and why.
//
// Parameters and state are stored on the GPU. A parameter is copied there when it is bound. It is copied again before
// each run, unless parameters are frozen or the program updates it: in that case the value on the GPU is the current
// one, until [Executable.Sync] copies it back.
package cuda

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"fusec/graph"
	"fusec/graph/trace"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/group"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/estimate"
)

// Device is a GPU, or the plan of one.
type Device struct {
	lowering.Defaults
	cfg      kernels.Config
	each     bool  // wait for each launch
	apart    bool  // each buffer has a separate allocation
	queued   bool  // runs take the caller's memory
	branches int   // beside the main one of a run
	hidden   int64 // bytes of hidden values that may be kept
	host     *cpu.Device

	// group is the participants with which programs run, or nil; see exchanges for the rest.
	group          *group.Group
	exchangeBlocks int
	spare          int // multiprocessors that launches leave to an exchange beside them; less than 0: as many as it has blocks
	bucket         int64

	gpu      driver.GPU
	compiler driver.Compiler
	driver   func(index int) (driver.GPU, driver.Compiler, error) // opens GPUs; nil for NVIDIA's
	ahead    *ahead                                               // kernels that were compiled ahead of time, or nil
	err      error                                                // from an option

	// compile makes the kernels.
	compile KernelCompiler
	joins   bool // products may be one kernel
	made    map[made]generated
}

// made is the key of a generated kernel; operands are compared in printed form.
type made struct {
	op       graph.Op
	operands string
}

type generated struct {
	kernel *kernels.Kernel
	err    error
	again  string // of the gradient of a mixture: why it computes hidden values again
	trace.Company
}

// Option configures a Device.
type Option func(*Device)

// For plans for a chip, which need not exist on this machine; the default is an H200.
func For(c kernels.Chip) Option { return func(d *Device) { d.cfg.Chip = c } }

// Precision is the format to which contractions may round; the default is f32.
func Precision(p kernels.Precision) Option { return func(d *Device) { d.cfg.Precision = p } }

// Each waits for each launch before the next, so that an error names the launch that failed. It is slower.
func Each() Option { return func(d *Device) { d.each = true } }

// Apart gives each buffer, and the scratch of each launch, a separate allocation instead of a part of one block, so
// that the emulator and compute-sanitizer find accesses outside of a buffer. It takes more memory.
func Apart() Option { return func(d *Device) { d.apart = true } }

// Portable disables the kernels that only one generation of chips can run.
func Portable() Option { return func(d *Device) { d.cfg.Portable = true } }

// TensorMemory lets products and attention use tcgen05 on chips that have it (sm_100a, sm_103a). Nobody has run these kernels on
// such a chip; the default are those of every chip since sm_80.
func TensorMemory() Option { return func(d *Device) { d.cfg.TensorMemory = true } }

// Tuned uses the kernel variants that were measured as fastest on the chip. Without this option a target that is opened by its name
// takes what `fusec tune` has kept for the chip; an empty Tuning has rules choose.
func Tuned(t *kernels.Tuning) Option { return func(d *Device) { d.cfg.Tuning = t } }

// A KernelCompiler makes the kernel of a launch. Its error is a refusal, and the launch runs on the processor.
type KernelCompiler = func(op graph.Op, args, results []kernels.Operand, cfg kernels.Config) (*kernels.Kernel, error)

// By makes the kernels with another function than [kernels.Compile]: a variant to measure, or the caller's kernel.
func By(compile KernelCompiler) Option {
	return func(d *Device) { d.compile, d.joins = compile, false }
}

// In runs programs in a group, each participant of which has a GPU of its own.
func In(g *group.Group) Option { return func(d *Device) { d.group = g } }

// Bucket has collective operations put together until they send some bytes; the default is [DefaultBucket]. With 1 each is an
// exchange of its own.
func Bucket(bytes int64) Option { return func(d *Device) { d.bucket = bytes } }

// ExchangeBlocks has an exchange beside launches take at most n blocks of threads; the default is [DefaultExchangeBlocks]. 0 leaves
// the number to NCCL.
func ExchangeBlocks(n int) Option {
	return func(d *Device) {
		if d.exchangeBlocks = n; n < 0 {
			d.err = errors.Join(d.err, fmt.Errorf("cuda.ExchangeBlocks: %d blocks", n))
		}
	}
}

// Spare has launches beside an exchange leave it n multiprocessors; the default is as many as it takes blocks.
func Spare(n int) Option { return func(d *Device) { d.spare = n } }

// On runs programs on a GPU that has been opened, and plans for its chip. The first executable closes it; so does
// [Device.Close] if there is none.
func On(gpu driver.GPU, compiler driver.Compiler) Option {
	return func(d *Device) { d.gpu, d.compiler, d.cfg.Chip = gpu, compiler, gpu.Chip() }
}

// New makes a device. Without [On] it only plans. Options that are nil are ignored.
func New(opts ...Option) *Device {
	d := &Device{bucket: DefaultBucket, exchangeBlocks: DefaultExchangeBlocks, spare: -1, branches: DefaultBranches,
		hidden: DefaultHidden,
		cfg:    kernels.Config{Chip: kernels.H200},
		host:   cpu.New(), compile: kernels.Compile, joins: true, made: map[made]generated{}}
	for _, o := range opts {
		if o != nil {
			o(d)
		}
	}
	return d
}

// Name implements lowering.Device.
func (d *Device) Name() string { return "cuda" }

// FallbackAccepts says whether the processor has a kernel that the GPU lacks.
func (d *Device) FallbackAccepts(op graph.Op, args, results []graph.Type) error {
	return d.host.Accepts(op, args, results)
}

// generate makes the kernel of an operation, once.
func (d *Device) generate(op graph.Op, args, results []kernels.Operand, cfg kernels.Config) (*kernels.Kernel, error) {
	key := made{op, fmt.Sprint(args, results, cfg.Mesh, cfg.Chip.SMs, cfg.Leads, cfg.Beside, cfg.Awaits, cfg.KeepHidden)}
	if g, ok := d.made[key]; ok {
		return g.kernel, g.err
	}
	k, err := d.compile(op, args, results, cfg)
	d.made[key] = generated{kernel: k, err: err}
	return k, err
}

// links are those of NVLink between two H200, by which a small all_reduce takes 24 µs, and large ones send 313 GB/s
// (docs/scale.md).
var links = estimate.Links{Rate: 313e9, Latency: 12 * time.Microsecond}

// Place implements lowering.Device: it sends what has no kernel on the GPU to the processor.
func (d *Device) Place(p *lowering.Program) {
	var scratch, exchanging, kept int64 // at most
	mixtures := mixturesOf(p)
	for i, g := range d.generateAll(p) {
		l, k := &p.Launches[i], g.kernel
		if g.err != nil {
			l.Device, l.Reason = d.host.Name(), g.err.Error()
			continue
		}
		l.Source = legend(p, i, k) + k.Generated()
		if k.Way != "" {
			l.Way = k.Way + ", tuned"
		}
		if mixtures[i] < 0 {
			kept += roundUp(k.Kept)
		}
		if k.Exchanges() {
			exchanging = max(exchanging, roundUp(k.Scratch))
		} else {
			scratch = max(scratch, roundUp(k.Scratch))
		}
	}
	p.ScratchBytes = scratch + exchanging + kept
	estimate.Exchanges(p, links)
}

// Describe implements [lowering.Device]: it says for which chip the kernels are, which launches run beside others or in the
// kernels of others, and which hidden values are kept.
func (d *Device) Describe(t *trace.Trace, p *lowering.Program) {
	t.Chip = d.cfg.Chip.Target()
	list := d.generateAll(p)
	for i, g := range list {
		p.Launches[i].Company = g.Company
	}
	noteHidden(t, p, list)
}

// kernel is the kernel of a launch, which may run beside exchanges.
func (d *Device) kernel(p *lowering.Program, l *lowering.Launch, cfg kernels.Config, beside bool, held heldBuffers) (
	*kernels.Kernel, error) {
	args, results := operands(p, l, held)
	if beside {
		for i := range args {
			args[i].Frozen = false
		}
		spare := d.spare
		if spare < 0 {
			spare = d.exchangeBlocks
		}
		cfg.Chip.SMs = max(cfg.Chip.SMs-spare, 1)
	}
	if _, ok := l.Op.(graph.Collective); ok {
		if cfg.Mesh = p.Mesh; d.group != nil {
			cfg.Rank = d.group.Rank()
		}
	}
	return d.generate(l.Op, args, results, cfg)
}

// operands are a launch's arguments and results.
func operands(p *lowering.Program, l *lowering.Launch, held heldBuffers) (args, results []kernels.Operand) {
	args, results = l.Operands()
	for i, v := range l.Args {
		args[i].Frozen, args[i].Given = held.fixed[v.Buffer], held.given[v.Buffer]
		args[i].Own = args[i].Given || held.writer[v.Buffer] == l
	}
	for i, v := range l.Results {
		role := p.Buffers[v.Buffer].Role
		results[i].Update = role == lowering.State || role == lowering.Param
	}
	return args, results
}

// heldBuffers are those that no launch of a run writes. Fixed ones are of constants, of frozen parameters and of what the prepared
// part makes; given ones are these and of the other sources. Of those that one launch writes, writer has it.
type heldBuffers struct {
	fixed, given map[int]bool
	writer       map[int]*lowering.Launch
}

// heldBuffersOf are those of a program.
func heldBuffersOf(p *lowering.Program) heldBuffers {
	fixed, given, writer := map[int]bool{}, map[int]bool{}, map[int]*lowering.Launch{}
	for i, b := range p.Buffers {
		if b.Role == lowering.Const || b.Role == lowering.Param && p.Frozen {
			fixed[i] = true
		}
		given[i] = true
	}
	for i := range p.Launches {
		for _, v := range p.Launches[i].Results {
			if i < p.Prepared {
				fixed[v.Buffer] = true
			} else {
				writer[v.Buffer] = &p.Launches[i]
				if !given[v.Buffer] { // it has another
					writer[v.Buffer] = nil
				}
				delete(fixed, v.Buffer)
				delete(given, v.Buffer)
			}
		}
	}
	for _, u := range p.Updates {
		delete(fixed, u.Target)
	}
	return heldBuffers{fixed, given, writer}
}

// Kernels lists the kernel of every launch, nil for those that run on the processor.
func (d *Device) Kernels(p *lowering.Program) []*kernels.Kernel {
	list := make([]*kernels.Kernel, len(p.Launches))
	for i, g := range d.generateAll(p) {
		if g.err == nil {
			list[i] = g.kernel
		}
	}
	return list
}

// A Source is a source text of a program's kernels, with the first launch that uses it. Generated is the part of the
// text that was generated for the launch, after a legend of its operands; the rest are templates.
type Source struct{ Where, Text, Generated string }

// Sources lists what has to be compiled for a program, each text once.
func (d *Device) Sources(p *lowering.Program) []Source {
	var list []Source
	seen := map[string]bool{}
	add := func(where, head string, k *kernels.Kernel) {
		if k != nil && len(k.Steps) > 0 && k.Source != "" && !seen[k.Source] {
			seen[k.Source] = true
			list = append(list, Source{where, k.Source, head + k.Generated()})
		}
	}
	for i, k := range d.Kernels(p) {
		l := &p.Launches[i]
		add(fmt.Sprintf("launch %d, %s", i+1, l.Node.Where()), legend(p, i, k), k)
	}
	for _, k := range d.ending(p) {
		add("the end of the run", "", k)
	}
	return list
}

// legend is a comment that says which values of the program the operands and results of launch i are, and of those that its kernel
// computes, too.
func legend(p *lowering.Program, i int, k *kernels.Kernel) string {
	var b strings.Builder
	say := func(what string, views []lowering.View) {
		for i, v := range views {
			u := p.Buffers[v.Buffer]
			fmt.Fprintf(&b, "// %s%d is %s %v", what, i, u.Role, u.Type)
			if u.Name != "" {
				fmt.Fprintf(&b, " %q", u.Name)
			}
			b.WriteByte('\n')
		}
	}
	n := together(k)
	for j, l := range p.Launches[i : i+n] {
		if n > 1 {
			fmt.Fprintf(&b, "// product%d:\n", j)
		}
		say("a", l.Args)
		say("r", l.Results)
	}
	b.WriteByte('\n')
	return b.String()
}

// ending makes the kernels that end a run: one collects the launches' reports, the next takes back what was written in place if
// there are any, and the last copies updates if there is none.
func (d *Device) ending(p *lowering.Program) [3]*kernels.Kernel {
	var types []graph.Type
	for _, u := range p.Updates {
		if u.Target != u.Value {
			types = append(types, p.Buffers[u.Target].Type)
		}
	}
	var parts []kernels.Overwrite
	for _, o := range overwriting(p) {
		parts = append(parts, o.Overwrite)
	}
	list := [3]*kernels.Kernel{kernels.Collect(len(p.Launches)), kernels.Restore(parts), kernels.Commit(types)}
	for _, k := range list {
		d.cfg.StartEarly(k)
	}
	return list
}

// An overwritten is a result that is written over a part of a State in place.
type overwritten struct {
	kernels.Overwrite
	launch, buffer int
	kept, zeroed   int64 // where in the launch's memory what was there is kept, and the start
}

// overwriting lists what launches on the GPU write so.
func overwriting(p *lowering.Program) (list []overwritten) {
	for i := range p.Launches {
		l := &p.Launches[i]
		if l.Device != "" {
			continue
		}
		var at kernels.OverwriteAt
		for r, v := range l.Results {
			if update := overwrites(p, l, r); update != nil {
				o := kernels.OverwriteOf(update.Op.(graph.UpdateSlice), update.Type, update.Args[1].Type)
				kept, zeroed := at.Next(o)
				list = append(list, overwritten{o, i, v.Buffer, kept, zeroed})
			}
		}
	}
	return list
}

// overwrites is the UpdateSlice by which a result of a launch is a part of a State that is written in place; nil if it is none.
func overwrites(p *lowering.Program, l *lowering.Launch, result int) *graph.Node {
	arg, update := l.Overwrites(result)
	b := l.Results[result].Buffer
	if update == nil || l.Args[arg].Buffer != b || p.Buffers[b].Role != lowering.State {
		return nil
	}
	return update
}

// Compile implements lowering.Device.
func (d *Device) Compile(p *lowering.Program) (lowering.Executable, error) {
	if d.gpu == nil {
		return nil, errors.New("the device has no GPU open: it plans programs, or has compiled one already")
	}
	d.Place(p)
	e, err := d.newExecutable(p)
	d.gpu = nil // owned by the executable from here on
	return e, err
}

// Close closes the GPU if no executable has taken it.
func (d *Device) Close() error {
	if d.gpu == nil {
		return nil
	}
	gpu := d.gpu
	d.gpu = nil
	return gpu.Close()
}
