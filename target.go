package fusec

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/cache"
	"fusec/lowering/cuda/driver/gpu"
	"fusec/lowering/cuda/driver/nvrtc"
	"fusec/lowering/cuda/pool"
	"fusec/lowering/ref"
)

// Targets lists the targets that programs can be compiled for, the default first. "cuda" takes the number of a GPU:
// "cuda:1" is the second. "fpga" is the overlay of package fusec/fpga; see [WithOverlay] and [WithLink]. "ref" is the
// reference that all others are checked by: float64, and slow.
func Targets() []string { return []string{"cpu", "cuda", "fpga", "ref"} }

// device makes the target that the configuration names: to run programs, or only to plan them.
func (c *config) device(run bool) (lowering.Device, error) {
	if c.on != nil {
		return c.on, nil
	}
	name, number, numbered := strings.Cut(c.target, ":")
	switch {
	case name == "cpu" && !numbered:
		if c.precision != F32 {
			return nil, fmt.Errorf("target %q computes in f32; precision %v wants target cuda", c.target, c.precision)
		}
		return c.cpuDevice(), nil
	case name == "cuda":
		index := 0
		if numbered {
			var err error
			if index, err = strconv.Atoi(number); err != nil || index < 0 {
				return nil, fmt.Errorf("target %q: want cuda, or cuda:N for GPU number N, from 0 on", c.target)
			}
		}
		return c.cudaDevice(index, run)
	case name == "fpga" && !numbered:
		return c.fpgaDevice(run)
	case name == "ref" && !numbered:
		if c.precision != F32 {
			return nil, fmt.Errorf("target %q computes in float64; precision %v requires target cuda", c.target, c.precision)
		}
		return ref.Device{}, nil
	}
	return nil, fmt.Errorf("target %q is not known; this version compiles for %s", c.target, strings.Join(Targets(), ", "))
}

func (c *config) cpuDevice() *cpu.Device {
	var opts []cpu.Option
	if c.workers > 0 {
		opts = append(opts, cpu.Workers(c.workers))
	}
	if c.frozen {
		opts = append(opts, cpu.Frozen())
	}
	if c.attentionBlock > 0 {
		opts = append(opts, cpu.AttentionBlock(c.attentionBlock))
	}
	return cpu.New(opts...)
}

func (c *config) cudaDevice(index int, run bool) (*cuda.Device, error) {
	opts := []cuda.Option{cuda.Precision(kernelPrecisions[c.precision])}
	if c.frozen {
		opts = append(opts, cuda.Frozen())
	}
	if c.verify {
		opts = append(opts, cuda.Each())
	}
	if c.chip.Arch != 0 {
		opts = append(opts, cuda.For(c.chip))
	}
	if c.kernels != nil {
		opts = append(opts, cuda.By(c.kernels))
	}
	if !run {
		return cuda.New(opts...), nil
	}
	g, compiler, err := c.openGPU(index)
	if err != nil {
		return nil, fmt.Errorf("target %q: %w", c.target, err)
	}
	if c.ahead == nil { // what was compiled ahead of time knows no measurements of this machine
		tuning, err := readTuning(g.Chip().Name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("target %q: %w", c.target, err), g.Close())
		}
		opts = append(opts, cuda.Tuned(tuning))
	}
	return cuda.New(append(opts, cuda.On(g, compiler))...), nil
}

// gpus are the GPUs of this process.
var gpus = pool.NewShared(gpu.Open)

// ReleaseGPUs gives back what closed programs have left with this process for those to come: their GPU's context, and
// the memory on it and on the host. Where programs are open, the memory alone.
func ReleaseGPUs() error { return gpus.Release() }

// openGPU opens a GPU and what makes images for it: what was compiled ahead of time, or the compiler.
func (c *config) openGPU(index int) (driver.GPU, driver.Compiler, error) {
	open := c.open
	if open == nil {
		open = func(index int) (driver.GPU, driver.Compiler, error) {
			g, err := gpus.Open(index)
			return g, nil, err
		}
	}
	g, compiler, err := open(index)
	switch {
	case err != nil:
		return nil, nil, err
	case c.ahead != nil:
		if got := g.Chip(); got.Arch != c.ahead.chip.Arch {
			err = fmt.Errorf("the model was compiled for %s, and GPU %d, %s, is %s", c.ahead.Chip, index, got.Name, got.Target())
		}
		g, compiler = plannedFor{g, c.ahead.chip}, c.ahead
	case compiler == nil:
		compiler, err = cudaCompiler()
	}
	if err != nil {
		g.Close()
		return nil, nil, err
	}
	return g, compiler, nil
}

// cudaCompiler is NVIDIA's run-time compiler behind a cache on disk.
func cudaCompiler() (driver.Compiler, error) {
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

// plannedFor is a GPU for which kernels were made as the plan said, not as it is.
type plannedFor struct {
	driver.GPU
	chip kernels.Chip
}

func (p plannedFor) Chip() kernels.Chip { return p.chip }

// GPUs is how many GPUs there are. The error says why they cannot be asked for: fusec was built without CUDA, or there
// is no driver.
func GPUs() (int, error) { return gpu.Count() }

// CUDACompiler names the run-time compiler that kernels are compiled with; the error says where it was looked for.
func CUDACompiler() (string, error) {
	c, err := nvrtc.Open()
	if err != nil {
		return "", err
	}
	version, _, _ := strings.Cut(c.Version(), " --")
	return version + ", " + c.Path(), nil
}
