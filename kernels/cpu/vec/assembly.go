//go:build amd64 || arm64

package vec

import (
	"fmt"

	"fusec/graph"
)

func init() {
	if err := checkAssembly(unaryF32, unaryScalarF32, binaryVVF32); err != nil {
		panic(err)
	}
	if hasAssembly() {
		useAssemblyF32(kernels32)
		useAssemblyF64(kernels64)
		widenGroups, narrowGroups = widenBlocks, narrowBlocks
		u8ToF32, i8ToF32, f32ToU8, f32ToI8 = u8ToF32Blocks, i8ToF32Blocks, f32ToU8Blocks, f32ToI8Blocks
		maskToF32, maskToF64, maskOfF32, maskOfF64 = maskToF32Blocks, maskToF64Blocks, maskOfF32Blocks, maskOfF64Blocks
		groupsF16 = halfGroups{widenF16Blocks, narrowF16Blocks, roundF16Blocks}
		groupsBF16 = halfGroups{widenBF16Blocks, narrowBF16Blocks, roundBF16Blocks}
	}
}

// portable are the functions that take a call for each element.
var portable = map[graph.BinaryFn]bool{graph.Pow: true, graph.Rem: true, graph.Mod: true, graph.Xor: true}

// checkAssembly reports a function of float32 without an assembly kernel. Those of float64 that have none are portable.
func checkAssembly(unary map[graph.UnaryFn]func(dst, x []float32), scalar map[graph.UnaryFn]func(dst, x []float32, s float32),
	binary map[graph.BinaryFn]func(dst, a, b []float32)) error {
	const missing = "vec: kernels/cpu/internal/gen/vec has no " + instructions + " for %s of float32"
	for _, f := range graph.UnaryFns() {
		if f.Fn.HasAlpha() && scalar[f.Fn] == nil || !f.Fn.HasAlpha() && unary[f.Fn] == nil {
			return fmt.Errorf(missing, f.Name)
		}
	}
	for _, f := range graph.BinaryFns() {
		if f.Of != graph.Integers && !portable[f.Fn] && binary[f.Fn] == nil {
			return fmt.Errorf(missing, f.Name)
		}
	}
	return nil
}

// put replaces the opcodes that have an assembly kernel.
func put[Fn ~uint8, K any](table []K, kernels map[Fn]K) {
	for fn, k := range kernels {
		table[fn] = k
	}
}

// useAssemblyF32 replaces the opcodes in k that have an assembly kernel.
func useAssemblyF32(k *Kernels[float32]) {
	put(k.unary, unaryF32)
	put(k.unaryScalar, unaryScalarF32)
	put(k.vv, binaryVVF32)
	put(k.vs, binaryVSF32)
	put(k.sv, binarySVF32)
	k.reduce = [numReduction]func(x []float32) float32{
		SumOf: sumF32, SumSquaresOf: sumSquaresF32, ProdOf: prodF32, MaxOf: maxOfF32, MinOf: minOfF32,
	}
	k.fmaVVV, k.fmaVSV, k.fmaVSS = fmaVVVF32, fmaVSVF32, fmaVSSF32
	k.selectVVV, k.selectVVS, k.selectVSV = selectVVVF32, selectVVSF32, selectVSVF32
	k.roundMul, k.roundDiv = roundMulF32, roundDivF32
	k.dot, k.sumSquareDeviations, k.expSubSum = dotF32, sumSquaredDeviationsF32, expSubSumF32
	k.fill, k.keep = fillF32, keepF32
	k.transposeBlocks = transposeBlocksF32
	useWiderF32(k)
}

// useAssemblyF64 replaces the opcodes in k that have an assembly kernel: those that
// need no elementary function.
func useAssemblyF64(k *Kernels[float64]) {
	put(k.unary, unaryF64)
	put(k.unaryScalar, unaryScalarF64)
	put(k.vv, binaryVVF64)
	put(k.vs, binaryVSF64)
	put(k.sv, binarySVF64)
	k.reduce = [numReduction]func(x []float64) float64{
		SumOf: sumF64, SumSquaresOf: sumSquaresF64, ProdOf: prodF64, MaxOf: maxOfF64, MinOf: minOfF64,
	}
	k.fmaVVV, k.fmaVSV, k.fmaVSS = fmaVVVF64, fmaVSVF64, fmaVSSF64
	k.selectVVV, k.selectVVS, k.selectVSV = selectVVVF64, selectVVSF64, selectVSVF64
	k.roundMul, k.roundDiv = roundMulF64, roundDivF64
	k.dot, k.sumSquareDeviations = dotF64, sumSquaredDeviationsF64
	k.fill, k.keep = fillF64, keepF64
}

// byBlocks completes a kernel that stops before a group of elements with one that it
// cannot compute. It then takes that group element by element, by the kernel
// again or by fn's reference, so that no result depends on its neighbours.
func byBlocks(blocks func(dst, x []float32) int, fn graph.UnaryFn) func(dst, x []float32) {
	const group = 24 // elements in an iteration of the kernel
	return func(dst, x []float32) {
		dst, x = cut1(dst, x)
		for {
			done := blocks(dst, x)
			dst, x = dst[done:], x[done:]
			if len(x) == 0 {
				return
			}
			n := min(len(x), group)
			for i, v := range x[:n] {
				if blocks(dst[i:i+1], x[i:i+1]) == 0 {
					dst[i] = float32(fn.Eval(float64(v), 0))
				}
			}
			dst, x = dst[n:], x[n:]
		}
	}
}
