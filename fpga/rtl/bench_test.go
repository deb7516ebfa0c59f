package rtl_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"fusec/fpga/isa"
	"fusec/fpga/testtools"
)

// port is an input or output of a module, of at most 64 bits.
type port struct {
	name string
	bits int
}

// bench is a module under test, simulated by Verilator.
type bench struct {
	program string
	in, out []port
}

// newBench builds the simulation of a module of this package, or of one of testdata around them. The module may need a configuration.
func newBench(t *testing.T, top string, parameters map[string]int, in, out []port, configs ...isa.Config) *bench {
	t.Helper()
	dir := t.TempDir()
	var set, get strings.Builder
	for _, p := range in {
		fmt.Fprintf(&set, "    if (scanf(\"%%llx\", &v) != 1) break; top.%s = v;\n", p.name)
	}
	for _, p := range out {
		fmt.Fprintf(&get, "    printf(\"%%llx \", (unsigned long long)top.%s);\n", p.name)
	}
	source := fmt.Sprintf(`// Each line of input holds the inputs of a cycle; each line of output the outputs just before the clock's edge.
#include <cstdio>
#include "V%s.h"
int main() {
  V%[1]s top;
  unsigned long long v;
  for (;;) {
%[2]s    top.clk = 0; top.eval();
%[3]s    printf("\n");
    top.clk = 1; top.eval();
  }
}
`, top, set.String(), get.String())
	harness := filepath.Join(dir, "main.cpp")
	if err := os.WriteFile(harness, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--cc", "--exe", "--build", "-O3", "-CFLAGS", "-O1", "--x-initial", "unique", "-y", here, "--Mdir", dir, "--top-module", top,
		"-Wno-fatal", "-Wno-lint", "-o", "bench"}
	for _, c := range configs {
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "fx_config.svh"), []byte(c.Header()), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-I"+dir)
	}
	source = filepath.Join(here, top+".sv")
	if _, err := os.Stat(source); err != nil {
		source = filepath.Join(here, "testdata", top+".sv")
	}
	for name, v := range parameters {
		args = append(args, fmt.Sprintf("-G%s=%d", name, v))
	}
	testtools.Need(t, "verilator", "g++", "make")
	cmd := exec.Command("verilator", append(args, source, harness)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("verilator: %v\n%s", err, out)
	}
	return &bench{filepath.Join(dir, "bench"), in, out}
}

// run gives the module the inputs, cycle by cycle, and returns its outputs, those of cycle i before the clock's edge that ends it.
func (b *bench) run(t *testing.T, cycles [][]uint64) [][]uint64 {
	t.Helper()
	var in strings.Builder
	for _, values := range cycles {
		for _, v := range values {
			in.WriteString(strconv.FormatUint(v, 16))
			in.WriteByte(' ')
		}
		in.WriteByte('\n')
	}
	cmd := exec.Command(b.program)
	cmd.Stdin, cmd.Stderr = strings.NewReader(in.String()), os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	results := make([][]uint64, 0, len(cycles))
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		values := make([]uint64, len(words))
		for i, w := range words {
			if values[i], err = strconv.ParseUint(w, 16, 64); err != nil {
				t.Fatal(err)
			}
		}
		results = append(results, values)
	}
	if len(results) != len(cycles) {
		t.Fatalf("%d cycles of output for %d of input", len(results), len(cycles))
	}
	return results
}
