package formal

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fusec/fpga/isa"
	"fusec/fpga/rtl"
	"fusec/fpga/testtools"
)

// whole has everything that a check may look for, bare nothing.
var (
	whole = isa.Config{Name: "whole", Rows: 8, Cols: 8, WordBytes: 8, XWords: 64, WWords: 64, YWords: 64,
		Params: 16, Tables: 1, AccBits: 32,
		KeyBlock: 8, HeadDim: 32, QPanels: 2, Norms: true, Experts: 16, ListLen: 64, Tokens: 64, TopK: 3, AddrBits: 20}
	bare = isa.Config{Name: "bare", Rows: 4, Cols: 4, WordBytes: 2, XWords: 64, WWords: 64, YWords: 64,
		Params: 16, Tables: 1, AccBits: 24,
		SerialMul: true, AddrBits: 16}
)

// wide has words of 16 bytes, which hold half a descriptor.
func wide() isa.Config {
	c := whole
	c.Name, c.Rows, c.Cols, c.WordBytes, c.KeyBlock = "wide", 16, 16, 16, 16
	return c
}

// TestProofs proves each module: a base case from reset, then the step of the induction over as many cycles.
func TestProofs(t *testing.T) {
	testtools.Need(t, "yosys", "yosys-smtbmc", "z3")
	for _, p := range []struct {
		name    string
		config  isa.Config
		top     string
		files   []string
		params  string
		defines string
		depth   int
	}{
		{"queue", whole, "fx_fifo", []string{"fx_fifo.sv"}, "-set WIDTH 2 -set DEPTH 8", "-DFX_PROVE_FIFO", 6},
		{"short queue", whole, "fx_fifo", []string{"fx_fifo.sv"}, "-set WIDTH 1 -set DEPTH 2", "-DFX_PROVE_FIFO", 6},
		{"semaphores", whole, "fx_semaphores", []string{"fx_semaphores.sv"}, "-set COUNT 4", "", 4},
		{"arbiter", whole, "fx_arbiter", []string{"fx_arbiter.sv", "fx_fifo.sv"},
			"-set BURSTS 4 -set ADDR_BITS 8 -set WORD_BYTES 2", "", 5},
		{"check", whole, "check", []string{"fx_check.sv", "check.sv"}, "", "", 10},
		{"check of wide words", wide(), "check", []string{"fx_check.sv", "check.sv"}, "", "", 6},
		{"check of a bare overlay", bare, "check", []string{"fx_check.sv", "check.sv"}, "", "", 34},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, f := range p.files {
				text, err := rtl.Files.ReadFile(f)
				if err != nil {
					text, err = os.ReadFile(f)
				}
				if err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(dir, f), text)
			}
			write(t, filepath.Join(dir, "fx_config.svh"), []byte(p.config.Header()))
			script := fmt.Sprintf("read_verilog -sv -formal -I. %s %s; ", p.defines, strings.Join(p.files, " "))
			if p.params != "" {
				script += fmt.Sprintf("chparam %s %s; ", p.params, p.top)
			}
			// Gates instead of words: the solver is some hundred times faster on them.
			script += fmt.Sprintf("prep -flatten -top %s; memory_map; async2sync; dffunmap; "+
				"techmap; abc -g AND,XOR; opt_clean; write_smt2 -wires proof.smt2", p.top)
			tool(t, dir, "yosys", "-q", "-p", script)
			depth := fmt.Sprint(p.depth)
			tool(t, dir, "yosys-smtbmc", "-s", "z3", "-t", depth, "proof.smt2")
			tool(t, dir, "yosys-smtbmc", "-s", "z3", "-i", "-t", depth, "proof.smt2")
		})
	}
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}
}

// tool runs a program that must end well.
func tool(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir = dir
	if said, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, said)
	}
}
