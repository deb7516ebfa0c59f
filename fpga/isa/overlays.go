package isa

import (
	"fmt"
	"strings"
)

// overlays are the configurations that have a name, the default first.
var overlays = []Config{
	// Everything, for the simulator: 8 × 8 multipliers, 64 KiB in each scratchpad.
	{Name: "sim8", Rows: 8, Cols: 8, WordBytes: 8, XWords: 1024, WWords: 1024, YWords: 1024, Params: 2048, Tables: 4,
		AccBits: 32, Patches: true,
		KeyBlock: 64, HeadDim: 128, QPanels: 4, Norms: true, Experts: 64, ListLen: 1024, Tokens: 1024, TopK: 4, AddrBits: 28},
	// The same with 16 × 16 multipliers, 128 KiB in each scratchpad.
	{Name: "sim16", Rows: 16, Cols: 16, WordBytes: 8, XWords: 1024, WWords: 1024, YWords: 1024, Params: 2048, Tables: 4,
		AccBits: 32, Patches: true,
		KeyBlock: 64, HeadDim: 128, QPanels: 4, Norms: true, Experts: 64, ListLen: 1024, Tokens: 1024, TopK: 4, AddrBits: 28},
	// What an ECP5-85F holds: attention on the array of 8 × 8, no router.
	{Name: "ecp5", Rows: 8, Cols: 8, WordBytes: 8, XWords: 512, WWords: 512, YWords: 512, Params: 1024, Tables: 2, AccBits: 32,
		KeyBlock: 64, HeadDim: 64, QPanels: 2, Norms: true, AddrBits: 24},
	// What an iCE40 HX8K holds: GEMM alone, with multipliers out of logic.
	{Name: "hx8k", Rows: 2, Cols: 2, WordBytes: 2, XWords: 256, WWords: 256, YWords: 256, Params: 64, Tables: 1, AccBits: 24,
		SerialMul: true, AddrBits: 16},
}

// Overlays lists the names of the known configurations, the default first.
func Overlays() (names []string) {
	for _, c := range overlays {
		names = append(names, c.Name)
	}
	return names
}

// Overlay is the configuration of a name.
func Overlay(name string) (Config, error) {
	for _, c := range overlays {
		if c.Name == name {
			return c, nil
		}
	}
	return Config{}, fmt.Errorf("no overlay is called %q: there are %s", name, strings.Join(Overlays(), ", "))
}
