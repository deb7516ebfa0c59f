package cuda

import (
	"errors"
	"fmt"
	"strings"

	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/cache"
	"fusec/lowering/cuda/driver/cufile"
	"fusec/lowering/cuda/driver/gpu"
	"fusec/lowering/cuda/driver/nccl"
	"fusec/lowering/cuda/driver/nvrtc"
	"fusec/lowering/cuda/pool"
	"fusec/lowering/local"
)

// Target is an NVIDIA GPU.
var Target = lowering.Target{Name: kernels.Name, Synonyms: []string{"gpu", "nvidia"}, Device: "GPU", Groups: true,
	Untuned: Tuned(&kernels.Tuning{}), Queued: Queued(),
	Code: "the kernels' CUDA C++", CodeFormat: "ptx",
	There: func() bool { n, err := Count(); return err == nil && n > 0 },
	Needs: needs, Open: open, Load: load, Flags: []lowering.Flag{{Name: "arch", Chip: true, Default: kernels.H200.Target(),
		Help: "target cuda: the `CHIP` to plan for where no GPU is asked, such as sm_80 (default " + kernels.H200.Target() + ")",
		Check: func(chip string) error {
			_, err := kernels.ChipNamed(chip)
			return err
		},
		Option: func(chip string) lowering.TargetOption { return Arch(chip) }}}}

// Of implements [lowering.TargetOption].
func (Option) Of() string { return Target.Name }

// Arch plans for a chip of the architecture, such as "sm_80", if there is no GPU; the default is that of an H200.
// Programs that run are made for their GPU.
func Arch(name string) Option {
	chip, err := kernels.ChipNamed(name)
	return func(d *Device) {
		if err != nil {
			d.err = errors.Join(d.err, fmt.Errorf("cuda.Arch: %w", err))
			return
		}
		if chip.Arch != 0 {
			d.cfg.Chip = chip
		}
	}
}

// Driver opens GPUs and their compilers with a function instead of NVIDIA's driver, for example with the emulator's,
// which needs no GPU. The index is that of the target. The program closes the returned GPU. If the compiler is nil,
// NVIDIA's is used.
func Driver(open func(index int) (driver.GPU, driver.Compiler, error)) Option {
	return func(d *Device) { d.driver = open }
}

func open(s lowering.Setup) (lowering.Device, error) {
	opts := []Option{Precision(s.Precision)}
	if s.Verify {
		opts = append(opts, Each())
	}
	if s.Group != nil {
		opts = append(opts, In(s.Group))
	}
	d := New(append(opts, lowering.OptionsOf[Option](s)...)...)
	if d.err != nil {
		return nil, d.err
	}
	if !s.Run {
		return d, nil
	}
	if err := d.openGPU(s.Number); err != nil {
		return nil, fmt.Errorf("target %q: %w", s.Name, err)
	}
	return d, nil
}

// gpus are the GPUs of this process.
var gpus = pool.NewShared(gpu.Open)

// primary are those of programs that share the GPU's primary context with others: those in groups, and [Queued] ones.
var primary = pool.NewShared(gpu.OpenPrimary)

// mapped are those of programs whose participants are all of this process.
var mapped = pool.NewShared(gpu.OpenMapped)

// Release frees what closed programs have left for later ones: the GPU's context, and the memory on the GPU and on the
// host. If programs are open, only the memory is freed.
func Release() error { return errors.Join(gpus.Release(), primary.Release(), mapped.Release()) }

// openGPU opens a GPU and its source of images: those compiled ahead of time, or the compiler.
func (d *Device) openGPU(index int) error {
	open := d.driver
	if open == nil {
		open = func(index int) (driver.GPU, driver.Compiler, error) {
			of := gpus
			switch {
			case d.group != nil && d.group.Threads():
				of = mapped
			case d.group != nil || d.queued:
				of = primary
			}
			g, err := of.Open(index)
			return g, nil, err
		}
	}
	g, compiler, err := open(index)
	if err != nil {
		return err
	}
	if a := d.ahead; a != nil {
		if got := g.Chip(); got.Arch != a.chip.Arch {
			err = fmt.Errorf("the model was compiled for %s, and GPU %d, %s, is %s", a.chip.Target(), index, got.Name, got.Target())
		}
		g, compiler = plannedFor{g, a.chip}, a
	} else {
		if compiler == nil {
			compiler, err = compilerWithCache()
		}
		if err == nil && d.cfg.Tuning == nil {
			d.cfg.Tuning, err = local.ReadTuning(d.Name(), g.Chip().Name, kernels.ParseTuning)
		}
	}
	if err != nil {
		return errors.Join(err, g.Close())
	}
	On(g, compiler)(d)
	return nil
}

// compilerWithCache is NVIDIA's run-time compiler with a cache on disk.
func compilerWithCache() (driver.Compiler, error) {
	c, err := nvrtc.Open()
	if err != nil {
		return nil, err
	}
	folder, err := cache.Folder()
	if err != nil {
		return nil, err
	}
	return cache.New(c, folder), nil
}

// plannedFor is a GPU that reports the chip of the plan instead of its own.
type plannedFor struct {
	driver.GPU
	chip kernels.Chip
}

func (p plannedFor) Chip() kernels.Chip { return p.chip }

// Count is the number of GPUs. The error says why it is unknown: fusec was built without CUDA, or there is no driver.
func Count() (int, error) { return gpu.Count() }

// compilerName is the name of the run-time compiler for kernels; the error says where it was searched for.
func compilerName() (string, error) {
	c, err := nvrtc.Open()
	if err != nil {
		return "", err
	}
	version, _, _ := strings.Cut(c.Version(), " --")
	return version + ", " + c.Path(), nil
}

// exchanger is the library by which GPUs exchange values, with its version; the error says where it was searched for.
func exchanger() (string, error) {
	l, err := nccl.Open()
	if err != nil {
		return "", err
	}
	return "NCCL " + l.Version() + ", " + l.Path, nil
}

// fileReader is the library by which GPUs read files; the error says where it was searched for, or why it does not work.
func fileReader() (string, error) {
	l, err := cufile.Open()
	if err != nil {
		return "", err
	}
	return l.Path, nil
}

// Code implements [lowering.Coder]: it is the CUDA C++ of the kernels, or their PTX.
func (d *Device) Code(p *lowering.Program, format string) (string, error) {
	sources := d.Sources(p)
	noun := "kernels"
	if len(sources) == 1 {
		noun = "kernel"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "// %s for %s: %d %s, after their templates (kernels/cuda/src), which are left out here\n", p.Name,
		d.cfg.Chip.Target(), len(sources), noun)
	for _, s := range sources {
		text := s.Generated
		if format != "" {
			c, err := nvrtc.Open()
			if err == nil {
				text, _, err = c.PTX(s.Text, d.cfg.Chip)
			}
			if err != nil {
				return "", fmt.Errorf("%s: %w", s.Where, err)
			}
		}
		fmt.Fprintf(&b, "\n// ==== %s ====\n\n%s\n", s.Where, strings.TrimSpace(text))
	}
	return b.String(), nil
}
