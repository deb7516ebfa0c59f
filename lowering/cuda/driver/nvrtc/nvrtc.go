// Package nvrtc compiles CUDA C++ with NVRTC, NVIDIA's run-time compiler. The library is loaded at its first use, so
// that a program is built without CUDA, and compiles for any chip on a machine without a GPU.
//
// Kernels have their own prelude, so that only the library is needed, and no headers.
package nvrtc

import (
	"fmt"
	"slices"
	"strings"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
)

// Compiler is a loaded NVRTC. Its methods may be called from any goroutine.
type Compiler struct {
	lib     *library
	options []string
}

var _ driver.Compiler = (*Compiler)(nil)

// base are the options of every compilation: the language, functions for the GPU without __device__, and the
// assembler's report of registers and spills, which [Usages] reads.
var base = []string{"--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v"}

// Open finds and loads NVRTC. It is searched for in $FUSEC_NVRTC (a file or a folder) if that is set, else in the
// loader's path, $CUDA_PATH/lib64, /usr/local/cuda*/lib64, the folder of `make cuda-tools`, and among Python's
// packages. The options are added to those of every compilation.
func Open(options ...string) (*Compiler, error) {
	lib, err := open()
	if err != nil {
		return nil, err
	}
	return &Compiler{lib, slices.Concat(base, options)}, nil
}

// Version names the compiler and its options.
func (c *Compiler) Version() string {
	return fmt.Sprintf("NVRTC %d.%d %s", c.lib.major, c.lib.minor, strings.Join(c.options, " "))
}

// Path is the library's file, or its name if the loader found it.
func (c *Compiler) Path() string { return c.lib.path }

// Compile returns the machine code of a source for the chip (a cubin), and the compiler's messages, of which [Usages]
// and [Losses] read the assembler's.
func (c *Compiler) Compile(source string, chip kernels.Chip) (image []byte, log string, err error) {
	if err := c.knows(chip); err != nil {
		return nil, "", err
	}
	made, log, err := c.compile(source, chip.Target(), chip.Target())
	return made.cubin, log, err
}

// CompileBoth is Compile and PTX in one translation.
func (c *Compiler) CompileBoth(source string, chip kernels.Chip) (image []byte, ptx, log string, err error) {
	if err := c.knows(chip); err != nil {
		return nil, "", "", err
	}
	made, log, err := c.compile(source, chip.Target(), chip.Target())
	return made.cubin, made.text(), log, err
}

// PTX returns the PTX to which a source is compiled before it becomes the chip's machine code.
func (c *Compiler) PTX(source string, chip kernels.Chip) (ptx, log string, err error) {
	if err := c.knows(chip); err != nil {
		return "", "", err
	}
	made, log, err := c.compile(source, strings.Replace(chip.Target(), "sm_", "compute_", 1), chip.Target())
	return made.text(), log, err
}

// A translation is what a source becomes.
type translation struct{ cubin, ptx []byte }

func (t translation) text() string { return strings.TrimRight(string(t.ptx), "\x00") }

// compile makes PTX and, unless the architecture is virtual, machine code.
func (c *Compiler) compile(source, architecture, target string) (translation, string, error) {
	if strings.ContainsRune(source, 0) {
		return translation{}, "", fmt.Errorf("the CUDA source has a zero byte at %d", strings.IndexByte(source, 0))
	}
	made, log, result := c.lib.compile(source, append([]string{"--gpu-architecture=" + architecture}, c.options...))
	switch result {
	case success:
		return made, log, nil
	case refused:
		if ptxLine.MatchString(log) {
			virtual := strings.Replace(architecture, "sm_", "compute_", 1)
			made, _, _ := c.lib.compile(source, append([]string{"--gpu-architecture=" + virtual}, c.options...))
			log = quotePTX(log, made.text())
		}
		return translation{}, log, fmt.Errorf("the CUDA compiler refused the source for %s:\n%s", target, strings.TrimSpace(log))
	}
	return translation{}, log, fmt.Errorf("NVRTC %d.%d (%s): compiling for %s: %s\n%s", c.lib.major, c.lib.minor, c.lib.path, target,
		c.lib.name(result), strings.TrimSpace(log))
}

// knows returns an error if the compiler does not support the chip.
func (c *Compiler) knows(chip kernels.Chip) error {
	if slices.Contains(c.lib.chips, chip.Arch) {
		return nil
	}
	if len(c.lib.chips) == 0 {
		return fmt.Errorf("NVRTC %d.%d (%s) lists no chips", c.lib.major, c.lib.minor, c.lib.path)
	}
	advice := "a newer CUDA may"
	if chip.Arch < slices.Min(c.lib.chips) {
		advice = "an older one may"
		if c.lib.major == 13 && chip.Arch >= 50 {
			advice = "CUDA 12's does"
		}
	}
	return fmt.Errorf("NVRTC %d.%d (%s) compiles for sm_%d to sm_%d, not for sm_%d; %s: set %s to its path", c.lib.major,
		c.lib.minor, c.lib.path, slices.Min(c.lib.chips), slices.Max(c.lib.chips), chip.Arch, advice, Variable)
}
