package cudatest

// What NVRTC makes of generated kernels.

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// Variable is the environment variable with which [Run] looks at machine code: the names of chips, such as
// "sm_80 sm_90a".
const Variable = "FUSEC_MACHINE_CODE"

// A task is a source to be compiled for a chip.
type task struct {
	name, source, generated string
	chip                    kernels.Chip
}

// compiled are the tasks of this process that were done before.
var compiled = struct {
	sync.Mutex
	keys map[string]bool
}{keys: map[string]bool{}}

// MachineCode compiles the kernels of checks for chips and fails if one is refused, if registers are spilled
// ([nvrtc.Usages]) or instructions are put one after another that were written to overlap ([nvrtc.Losses]), and if a
// product or an attention that was written for Hopper has no wgmma in its machine code. The kernels are those made for
// each chip, and those made for the first one, which a newer chip runs, too. Without NVRTC the test is skipped, unless
// it is required; see [nvrtctest.Open].
func MachineCode(t *testing.T, first kernels.Chip, chips []kernels.Chip, checks ...Check) {
	t.Helper()
	compiler := nvrtctest.Open(t)
	var tasks []task
	for _, c := range checks {
		made, err := c.tasks(first, chips)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		tasks = append(tasks, made...)
	}
	errs := make([]error, len(tasks))
	var wait sync.WaitGroup
	turns := make(chan bool, runtime.GOMAXPROCS(0))
	for i, k := range tasks {
		wait.Go(func() {
			turns <- true

			errs[i] = k.inspect(compiler)
			<-turns
		})
	}
	wait.Wait()
	for i, k := range tasks {
		if errs[i] != nil {
			t.Errorf("%s for %s: %v", k.name, k.chip.Target(), errs[i])
		}
	}
}

// tasks lists what has to be compiled for a check and was not yet. What is written for no chip's own instructions is
// the same text for all: it is compiled for one of them, by its key.
func (c Check) tasks(first kernels.Chip, chips []kernels.Chip) (list []task, err error) {
	compiled.Lock()
	defer compiled.Unlock()
	for i, chip := range chips {
		made := []kernels.Chip{chip}
		if first.Arch <= chip.Arch && first != chip {
			made = append(made, first)
		}
		for _, of := range made {
			p, err := c.generate(of)
			if err != nil {
				return list, err
			}
			source := p.kernel.Source
			key := kernels.Key(source)
			if source == "" || !ownInstructions.MatchString(source) && int(key[0])%len(chips) != i {
				continue
			}
			if key += chip.Target(); !compiled.keys[key] {
				compiled.keys[key] = true
				list = append(list, task{c.Name, source, p.kernel.Generated(), chip})
			}
		}
	}
	return list, nil
}

var (
	ownInstructions = regexp.MustCompile(`mma\.sync|wgmma\.`)
	byWarpgroups    = regexp.MustCompile(`gemm_hopper<|attention_hopper<|attention_grad_(keys|queries)<`)
)

// allowed is how many bytes of spills are let pass. Products of f32 in two parts have two sets of accumulators; what of
// the operands' addresses the second pass over a tile with a NaN needs is kept in memory meanwhile, outside of the loops.
func allowed(generated string) int {
	if strings.Contains(generated, "Split<>") {
		return 64
	}
	return 0
}

// inspect compiles a source and looks at what comes out.
func (k task) inspect(compiler *nvrtc.Compiler) error {
	image, log, err := compiler.Compile(k.source, k.chip)
	if err != nil {
		return err
	}
	var errs []error
	for name, u := range nvrtc.Usages(log) {
		if u.Spills > allowed(k.generated) {
			errs = append(errs, fmt.Errorf("entry %s spills: %+v", name, u))
		}
	}
	for _, loss := range nvrtc.Losses(log) {
		errs = append(errs, errors.New(loss))
	}
	var hopper []string
	for _, text := range strings.Split(k.generated, "KERNEL(")[1:] {
		if byWarpgroups.MatchString(text) {
			name, _, _ := strings.Cut(text, ",")
			hopper = append(hopper, name)
		}
	}
	if len(hopper) == 0 {
		return errors.Join(errs...)
	}
	code, err := compiler.Disassemble(image)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, name := range hopper {
		if !strings.Contains(code[name], "HGMMA") {
			errs = append(errs, fmt.Errorf("entry %s has no HGMMA among its %d instructions", name,
				strings.Count(code[name], ";")))
		}
	}
	return errors.Join(errs...)
}
