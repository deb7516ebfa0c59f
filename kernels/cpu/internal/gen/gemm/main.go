// Command gemm generates the assembly of package kernels/cpu/gemm for amd64, or with -arch=arm64 for Arm:
// register-blocked matrix micro-kernels, the copies and transposes that pack
// operands into panels, and the streaming kernels of thin products.
//
// The output depends on nothing but this program, so it can be regenerated and
// compared.
package main

import (
	"flag"
	"fmt"
	"os"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	arch := flag.String("arch", "amd64", "the processor: amd64 or arm64")
	flag.Parse()
	if *arch == "arm64" {
		if err := neonFile().Write(); err != nil {
			fmt.Fprintf(os.Stderr, "gemm: %v\n", err)
			os.Exit(1)
		}
		return
	}
	for _, k := range microKernels {
		k.generate()
	}
	gatherKernels()
	spreadKernels()
	for _, bytes := range panelBytes {
		copyRows(bytes)
	}
	transpose4F32()
	transpose2F32()
	transpose4F64()
	transpose2F64()
	for _, e := range []element{float32s, float64s} {
		dot(e)
		axpy4(e, false)
		axpy4(e, true)
	}
	for _, of := range rowTypes {
		for _, f := range fews {
			f.of = of
			f.dots()
			f.sums()
		}
	}
	Generate()
}
