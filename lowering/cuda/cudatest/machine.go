package cudatest

// Checks of the machine code that NVRTC makes from generated kernels.

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/nvrtc"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// Variable is the environment variable with which [Run] checks machine code: the names of chips, such as "sm_80
// sm_90a".
const Variable = "FUSEC_MACHINE_CODE"

// A task is a source to be compiled for a chip.
type task struct {
	name, source, generated string
	chip                    kernels.Chip
}

// compiled are the finished tasks of this process.
var compiled = struct {
	sync.Mutex
	keys map[string]bool
}{keys: map[string]bool{}}

// MachineCode compiles the kernels of checks, made for the given chips. It fails if a kernel is refused, if registers
// are spilled ([nvrtc.Usages]), if instructions that should overlap are serialised ([nvrtc.Losses]), if the machine code of a
// product or an attention for Hopper has no wgmma, of one in tensor memory no tcgen05, or if it reads uniform registers
// that nothing sets ([nvrtc.Unset]; without $FUSEC_LONG in products and attention for Hopper alone). A kernel with tensor-core
// instructions is compiled for the first target that has them. Each other kernel is compiled for one target, chosen by its key. If
// that is an older chip than the kernel is made for, which has another kernel for the check, then that one is compiled for it, and
// the first for the first target that is not older. Without NVRTC the test is skipped, unless it is required; see [nvrtctest.Open].
func MachineCode(t *testing.T, made, targets []kernels.Chip, checks ...Check) {
	t.Helper()
	compiler := nvrtctest.Open(t)
	var tasks []task
	for _, c := range checks {
		list, err := c.tasks(made, targets)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		tasks = append(tasks, list...)
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

// tasks lists what has to be compiled for a check and was not compiled before.
func (c Check) tasks(made, targets []kernels.Chip) (list []task, err error) {
	compiled.Lock()
	defer compiled.Unlock()
	add := func(k *kernels.Kernel, target kernels.Chip) {
		source := k.Source
		if target.Arch < 90 { // there no launch begins early
			source = plain(k)
		}
		if key := kernels.Key(plain(k)) + target.Target(); !compiled.keys[key] {
			compiled.keys[key] = true
			list = append(list, task{c.Name, source, k.Generated(), target})
		}
	}
	for _, chip := range made {
		p, err := c.generate(chip)
		if err != nil {
			return list, err
		}
		if p.kernel.Source == "" {
			continue
		}
		target := targets[int(kernels.Key(plain(p.kernel))[0])%len(targets)]
		notOlder := ownInstructions.MatchString(p.kernel.Source) // the target has to be as new as the chip
		if !notOlder && target.Arch < chip.Arch {
			// Registers are planned for a chip: on an older one programs may have another kernel.
			if older, err := c.generate(target); err == nil && plain(older.kernel) != plain(p.kernel) {
				add(older.kernel, target)
				notOlder = true
			}
		}
		if notOlder {
			i := slices.IndexFunc(targets, func(t kernels.Chip) bool { return t.Arch >= chip.Arch })
			if i < 0 {
				continue
			}
			target = targets[i]
		}
		add(p.kernel, target)
	}
	return list, nil
}

// plain is a kernel's source without what lets it begin early.
func plain(k *kernels.Kernel) string { return strings.TrimPrefix(k.Source, kernels.EarlyText) }

var (
	ownInstructions = regexp.MustCompile(`mma\.sync|wgmma\.`)
	// What the machine code of a template has to have.
	expected = []struct {
		template    *regexp.Regexp
		instruction string
	}{
		{regexp.MustCompile(`gemm_hopper<|gemm_across<|attention_hopper<|attention_grad_(keys|queries)<`), "HGMMA"},
		{regexp.MustCompile(`gemm_blackwell<`), "UTCHMMA"},
		// Of an operand in tensor memory.
		{regexp.MustCompile(`attention_blackwell<|attention_grad_tensor_(keys|queries)<`), "UTCHMMA tmem["},
	}
)

// allowed is how many bytes of spills are accepted. Products of f32 in two parts have two sets of accumulators. The
// addresses of operands that the second pass over a tile with a NaN needs are spilled meanwhile, outside of the loops.
func allowed(generated string) int {
	if strings.Contains(generated, "Split<>") {
		return 80
	}
	return 0
}

// inspect compiles a source and checks the result.
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
	needs := map[string]string{}
	for _, text := range strings.Split(k.generated, "KERNEL(")[1:] {
		for _, e := range expected {
			if e.template.MatchString(text) {
				name, _, _ := strings.Cut(text, ",")
				needs[name] = e.instruction
			}
		}
	}
	// Reading machine code takes as long as making it, and chips before Turing have no uniform registers.
	if len(needs) == 0 && (os.Getenv("FUSEC_LONG") == "" || k.chip.Arch < 75) {
		return errors.Join(errs...)
	}
	code, err := compiler.Disassemble(image)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for name, text := range code {
		if unset := nvrtc.Unset(text); unset != nil {
			errs = append(errs, fmt.Errorf("entry %s reads %v, which nothing sets", name, unset))
		}
	}
	for name, instruction := range needs {
		if !strings.Contains(code[name], instruction) {
			errs = append(errs, fmt.Errorf("entry %s has no %s among its %d instructions", name, instruction,
				strings.Count(code[name], ";")))
		}
	}
	return errors.Join(errs...)
}
