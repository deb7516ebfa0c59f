package rtl_test

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"fusec/fpga/isa"
	"fusec/fpga/rtl"
	"fusec/fpga/sim"
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

// newBench builds the simulation of a module of this package, or of one of testdata around them. The module may need a
// configuration.
func newBench(t *testing.T, top string, in, out []port, configs ...isa.Config) *bench {
	t.Helper()
	var set, get strings.Builder
	for _, p := range in {
		fmt.Fprintf(&set, "    if (scanf(\"%%llx\", &v) != 1) break; top.%s = v;\n", p.name)
	}
	for _, p := range out {
		fmt.Fprintf(&get, "    printf(\"%%llx \", (unsigned long long)top.%s);\n", p.name)
	}
	source := fmt.Sprintf(
		`// Each line of input holds the inputs of a cycle; each line of output the outputs just before the clock's edge.
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
	c := unitConfig()
	if len(configs) > 0 {
		c = configs[0]
	}
	return &bench{simulated(t, c, sim.Bench{Top: top, Main: []byte(source)}), in, out}
}

// simulated builds a bench around a module of this package or of testdata. They are kept in the user's cache folder.
func simulated(t testing.TB, c isa.Config, b sim.Bench) string {
	t.Helper()
	testtools.Need(t, "verilator", "g++")
	files := fstest.MapFS{}
	for _, from := range []fs.FS{rtl.Files, os.DirFS("testdata")} {
		names, err := fs.Glob(from, "*.sv")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := fs.ReadFile(from, name)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = &fstest.MapFile{Data: text}
		}
	}
	program, err := sim.BuildBench(context.Background(), c, sim.Options{Sources: files, Check: true}, b)
	if err != nil {
		t.Fatal(err)
	}
	return program
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
