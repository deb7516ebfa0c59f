// Package cuda makes programs executable on a GPU, with the kernels of package kernels/cuda.
//
// A [Device] generates the CUDA C++ of every launch, has it compiled for the chip, and gives each buffer of the program
// its memory on the GPU. Launches that follow one another are recorded once as a CUDA graph, with the copies of inputs
// before them and those of outputs after them, and a run replays it. What has no kernel here runs on the processor in
// between, with its operands copied to and fro; [lowering.Launch] says so, and why.
//
// Parameters and state live on the GPU. A parameter is copied there when it is bound, and, unless the device is told that
// parameters are frozen, again before each run, unless the program updates it: then the GPU's is the one that counts,
// until [Executable.Sync] brings it back.
package cuda

import (
	"fmt"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/cuda/driver"
)

// Device is a GPU, or the plan of one.
type Device struct {
	cfg    kernels.Config
	frozen bool
	open   func() (driver.GPU, driver.Compiler, error)
	host   *cpu.Device

	made map[made]generated
}

// made is what a kernel was generated from; operands are compared as they are printed.
type made struct {
	op       graph.Op
	operands string
}

type generated struct {
	kernel *kernels.Kernel
	err    error
}

// Option configures a Device.
type Option func(*Device)

// For plans for a chip, which need not be there; the default is an H200.
func For(c kernels.Chip) Option { return func(d *Device) { d.cfg.Chip = c } }

// Precision is what contractions may round to; the default is f32.
func Precision(p kernels.Precision) Option { return func(d *Device) { d.cfg.Precision = p } }

// Frozen declares that parameters change only through Bind, so that they are copied to the GPU once.
func Frozen() Option { return func(d *Device) { d.frozen = true } }

// Portable leaves out the kernels that only one generation of chips can run.
func Portable() Option { return func(d *Device) { d.cfg.Portable = true } }

// On opens the GPU, and its compiler, when the first program is compiled. Each executable closes what it was given.
func On(open func() (driver.GPU, driver.Compiler, error)) Option {
	return func(d *Device) { d.open = open }
}

// New makes a device. Without [On] it only plans.
func New(opts ...Option) *Device {
	d := &Device{cfg: kernels.Config{Chip: kernels.H200}, host: cpu.New(), made: map[made]generated{}}
	for _, o := range opts {
		o(d)
	}
	return d
}

// Name implements lowering.Device.
func (d *Device) Name() string { return "cuda" }

// FallbackAccepts says whether the processor has the kernel that the GPU lacks.
func (d *Device) FallbackAccepts(op graph.Op, args, results []graph.Type) error {
	return d.host.Accepts(op, args, results)
}

// Accepts implements lowering.Device: the error says why there is no kernel.
func (d *Device) Accepts(op graph.Op, args, results []graph.Type) error {
	operands := func(types []graph.Type) (o []kernels.Operand) {
		for _, t := range types {
			o = append(o, kernels.Operand{DType: t.DType, Layout: graph.Contiguous(t.Shape)})
		}
		return
	}
	_, err := d.generate(op, operands(args), operands(results))
	return err
}

// generate makes the kernel of an operation, once.
func (d *Device) generate(op graph.Op, args, results []kernels.Operand) (*kernels.Kernel, error) {
	key := made{op, fmt.Sprint(args, results)}
	if g, ok := d.made[key]; ok {
		return g.kernel, g.err
	}
	k, err := kernels.Compile(op, args, results, d.cfg)
	d.made[key] = generated{k, err}
	return k, err
}

// Place implements lowering.Placer: it sends what has no kernel on the GPU to the processor.
func (d *Device) Place(p *lowering.Program) {
	for i := range p.Launches {
		l := &p.Launches[i]
		if _, err := d.kernel(p, l); err != nil {
			l.Device, l.Reason = d.host.Name(), err.Error()
		}
	}
}

// kernel is the kernel of a launch.
func (d *Device) kernel(p *lowering.Program, l *lowering.Launch) (*kernels.Kernel, error) {
	args := make([]kernels.Operand, len(l.Args))
	for i, v := range l.Args {
		args[i] = kernels.Operand{DType: v.DType, Layout: v.Layout}
	}
	results := make([]kernels.Operand, len(l.Results))
	for i, v := range l.Results {
		o := kernels.Operand{DType: v.DType, Layout: v.Layout}
		for j, a := range l.Args {
			if a.Buffer == v.Buffer {
				o.Over = 1 + j
				break
			}
		}
		role := p.Buffers[v.Buffer].Role
		o.Update = role == lowering.State || role == lowering.Param
		results[i] = o
	}
	return d.generate(l.Op, args, results)
}

// Kernels lists the kernel of every launch, nil for those that run on the processor.
func (d *Device) Kernels(p *lowering.Program) []*kernels.Kernel {
	list := make([]*kernels.Kernel, len(p.Launches))
	for i := range p.Launches {
		if k, err := d.kernel(p, &p.Launches[i]); err == nil {
			list[i] = k
		}
	}
	return list
}

// Compile implements lowering.Device.
func (d *Device) Compile(p *lowering.Program) (lowering.Executable, error) {
	if d.open == nil {
		return nil, fmt.Errorf("this device plans programs and cannot run them")
	}
	d.Place(p)
	return d.newExecutable(p)
}
