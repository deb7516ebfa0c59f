package cli

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/cpu"

	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/panel"
	"fusec/lowering/local"
)

// Machine describes the computer, for reports.
type Machine struct {
	CPU      string   `json:"cpu"`
	Cores    int      `json:"cores"` // that this process may use
	Features []string `json:"features"`
	GEMM     string   `json:"gemm"`             // the kernel of matrix multiplication
	Panels   string   `json:"panels,omitempty"` // that of products with weights of few bits
	Memory   int64    `json:"memory_bytes,omitempty"`
	Free     int64    `json:"-"` // changes from run to run
	OS       string   `json:"os"`
	Arch     string   `json:"arch"`
	Go       string   `json:"go"`
}

// String names the machine in a line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %s, %s kernels", m.CPU, Plural(m.Cores, "core", "cores"), m.GEMM)
}

// ThisMachine describes the computer that this process runs on.
var ThisMachine = sync.OnceValue(func() Machine {
	m := Machine{CPU: local.Processor(), Cores: runtime.NumCPU(), Features: features(), GEMM: gemm.Kernel[float32](),
		Panels: panel.Kernel(), OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version()}
	mem := local.Fields("/proc/meminfo")
	m.Memory, m.Free = Kibibytes(mem["MemTotal"]), Kibibytes(mem["MemAvailable"])
	return m
})

// Kibibytes reads a size such as "16374892 kB".
func Kibibytes(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(s, " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return n * 1024
}

// features lists the instruction sets that matter to the kernels.
func features() []string {
	list := []string{}
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"avx2", cpu.X86.HasAVX2}, {"fma", cpu.X86.HasFMA}, {"avx512f", cpu.X86.HasAVX512F}, {"avx512bw", cpu.X86.HasAVX512BW},
		{"avx512vnni", cpu.X86.HasAVX512VNNI}, {"avx512bf16", cpu.X86.HasAVX512BF16}, {"amx", cpu.X86.HasAMXTile},
		{"neon", cpu.ARM64.HasASIMD}, {"asimdhp", cpu.ARM64.HasASIMDHP}, {"asimddp", cpu.ARM64.HasASIMDDP}, {"i8mm", cpu.ARM64.HasI8MM},
		{"sve", cpu.ARM64.HasSVE},
	} {
		if f.has {
			list = append(list, f.name)
		}
	}
	return list
}
