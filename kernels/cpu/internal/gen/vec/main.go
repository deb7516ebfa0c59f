// Command vec writes the kernels of packages vec, depthwise and winograd of fusec/kernels/cpu as Go
// assembly, one family a run:
//
//	go run ./vec -family=unary -out=unary_amd64.s -stubs=unary_amd64.go -pkg=vec
//	go run ./vec -arch=arm64 -family=unary -out=unary_arm64.s -stubs=unary_arm64.go -pkg=vec
//
// A kernel is described by its body alone: a function from vectors of input
// lanes to a vector of output lanes (package file emit.go has the vocabulary).
// The loop builders put the loads, the unrolled main loop, the masked tail and
// the stores around it: mapKernel (loop.go) for dst[i] = f(x[i], …) and
// reduction (reduce.go) for one number from a slice. Bodies of the cheap
// opcodes are written once for both element widths (width.go).
//
// For Arm the bodies are the same; neon.go has NEON's instructions and the loops, and machine.go the arithmetic of
// addresses for kernels that are described once for both processors.
//
// The output depends on nothing but this program: same source, same bytes.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/mmcloughlin/avo/build"
)

// families maps the value of the flag -family to what emits its kernels.
var families = map[string]func(*generator){
	"unary":    unaryFamily,
	"binary":   binaryFamily,
	"ternary":  ternaryFamily,
	"reduce":   reduceFamily,
	"memory":   memoryFamily,
	"panel":    panelFamily,
	"draw":     drawFamily,
	"window":   windowFamily,
	"winograd": winogradFamily,
}

func main() {
	family := flag.String("family", "",
		"the kernels to write: unary, binary, ternary, reduce, memory, panel, draw, window or winograd")
	table := flag.String("table", "", "the Go file of the tables that say which kernel computes which function")
	arch := flag.String("arch", "amd64", "the processor: amd64 or arm64")
	flag.Parse()
	emit, ok := families[*family]
	if !ok {
		fmt.Fprintf(os.Stderr, "vec: unknown family %q\n", *family)
		os.Exit(2)
	}
	g := newGenerator(*arch)
	emit(g)
	var err error
	if g.file != nil {
		err = g.file.Write()
	} else {
		build.Generate()
	}
	if err == nil && *table != "" {
		err = g.tables.write(*table, *arch)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "vec: %v\n", err)
		os.Exit(1)
	}
}
