package vec

import (
	"math"

	"golang.org/x/sys/cpu"
)

func init() {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		useAVX2F32(kernels32)
		useAVX2F64(kernels64)
		widenGroups, narrowGroups = widenBlocks, narrowBlocks
	}
}

// useAVX2F32 replaces the opcodes in k that have an assembly kernel.
func useAVX2F32(k *Kernels[float32]) {
	k.unary = [numUnary]func(dst, x []float32){
		Neg: negF32, Abs: absF32, Sign: signF32, Ceil: ceilF32, Floor: floorF32, Round: roundF32, Trunc: truncF32,
		Sin: sinF32, Cos: cosF32, Exp: expF32, Exp2: exp2F32, Expm1: expm1F32,
		Log: logF32, Log2: log2F32, Log1p: log1pF32,
		Square: squareF32, Cube: cubeF32, Sqrt: sqrtF32, Rsqrt: rsqrtF32, Recip: recipF32,
		Tanh: tanhF32, Sigmoid: sigmoidF32, Softplus: softplusF32, Erf: erfF32,
		ReLU: reluF32, GELUTanh: geluTanhF32, GELUErf: geluErfF32, SiLU: siluF32, Not: notF32,
	}
	k.unaryScalar = [numUnaryScalar]func(dst, x []float32, s float32){LeakyReLU: leakyReLUF32, ELU: eluF32}
	pow := [...]func(dst, x []float32, s float32){k.vs[Pow], k.sv[Pow]}
	k.vv = [numBinary]func(dst, a, b []float32){
		Add: addVVF32, Sub: subVVF32, Mul: mulVVF32, Div: divVVF32, Pow: k.vv[Pow], Min: minVVF32, Max: maxVVF32,
		Lt: ltVVF32, Le: leVVF32, Gt: gtVVF32, Ge: geVVF32, Eq: eqVVF32, Ne: neVVF32, And: andVVF32, Or: orVVF32,
	}
	k.vs = [numBinary]func(dst, x []float32, s float32){
		Add: addVSF32, Sub: subVSF32, Mul: mulVSF32, Div: divVSF32, Pow: pow[0], Min: minVSF32, Max: maxVSF32,
		Lt: ltVSF32, Le: leVSF32, Gt: gtVSF32, Ge: geVSF32, Eq: eqVSF32, Ne: neVSF32, And: andVSF32, Or: orVSF32,
	}
	k.sv = [numBinary]func(dst, x []float32, s float32){
		Add: addSVF32, Sub: subSVF32, Mul: mulSVF32, Div: divSVF32, Pow: pow[1], Min: minSVF32, Max: maxSVF32,
		Lt: ltSVF32, Le: leSVF32, Gt: gtSVF32, Ge: geSVF32, Eq: eqSVF32, Ne: neSVF32, And: andSVF32, Or: orSVF32,
	}
	k.reduce = [numReduction]func(x []float32) float32{
		SumOf: sumF32, SumSquaresOf: sumSquaresF32, SumAbsOf: sumAbsF32, ProdOf: prodF32, MaxOf: maxOfF32, MinOf: minOfF32,
	}
	k.fmaVVV, k.fmaVSV, k.fmaVSS = fmaVVVF32, fmaVSVF32, fmaVSSF32
	k.selectVVV, k.selectVVS, k.selectVSV = selectVVVF32, selectVVSF32, selectVSVF32
	k.dot, k.sumSquareDeviations, k.expSubSum = dotF32, sumSquaredDeviationsF32, expSubSumF32
	k.fill, k.keep = fillF32, keepF32
	k.transposeBlocks = transposeBlocksF32
}

// useAVX2F64 replaces the opcodes in k that have an assembly kernel: those that
// need no elementary function.
func useAVX2F64(k *Kernels[float64]) {
	for op, f := range map[Unary]func(dst, x []float64){
		Neg: negF64, Abs: absF64, Sign: signF64, Ceil: ceilF64, Floor: floorF64, Round: roundF64, Trunc: truncF64,
		Square: squareF64, Cube: cubeF64, Sqrt: sqrtF64, Rsqrt: rsqrtF64, Recip: recipF64, ReLU: reluF64, Not: notF64,
	} {
		k.unary[op] = f
	}
	k.unaryScalar[LeakyReLU] = leakyReLUF64
	pow := [...]func(dst, x []float64, s float64){k.vs[Pow], k.sv[Pow]}
	k.vv = [numBinary]func(dst, a, b []float64){
		Add: addVVF64, Sub: subVVF64, Mul: mulVVF64, Div: divVVF64, Pow: k.vv[Pow], Min: minVVF64, Max: maxVVF64,
		Lt: ltVVF64, Le: leVVF64, Gt: gtVVF64, Ge: geVVF64, Eq: eqVVF64, Ne: neVVF64, And: andVVF64, Or: orVVF64,
	}
	k.vs = [numBinary]func(dst, x []float64, s float64){
		Add: addVSF64, Sub: subVSF64, Mul: mulVSF64, Div: divVSF64, Pow: pow[0], Min: minVSF64, Max: maxVSF64,
		Lt: ltVSF64, Le: leVSF64, Gt: gtVSF64, Ge: geVSF64, Eq: eqVSF64, Ne: neVSF64, And: andVSF64, Or: orVSF64,
	}
	k.sv = [numBinary]func(dst, x []float64, s float64){
		Add: addSVF64, Sub: subSVF64, Mul: mulSVF64, Div: divSVF64, Pow: pow[1], Min: minSVF64, Max: maxSVF64,
		Lt: ltSVF64, Le: leSVF64, Gt: gtSVF64, Ge: geSVF64, Eq: eqSVF64, Ne: neSVF64, And: andSVF64, Or: orSVF64,
	}
	k.reduce = [numReduction]func(x []float64) float64{
		SumOf: sumF64, SumSquaresOf: sumSquaresF64, SumAbsOf: sumAbsF64, ProdOf: prodF64, MaxOf: maxOfF64, MinOf: minOfF64,
	}
	k.fmaVVV, k.fmaVSV, k.fmaVSS = fmaVVVF64, fmaVSVF64, fmaVSSF64
	k.selectVVV, k.selectVVS, k.selectVSV = selectVVVF64, selectVVSF64, selectVSVF64
	k.dot, k.sumSquareDeviations = dotF64, sumSquaredDeviationsF64
	k.fill, k.keep = fillF64, keepF64
}

// sinF32 is sin x; what the assembly stops at goes through package math.
func sinF32(dst, x []float32) { byBlocks(dst, x, sinBlocksF32, math.Sin) }

// cosF32 is cos x; what the assembly stops at goes through package math.
func cosF32(dst, x []float32) { byBlocks(dst, x, cosBlocksF32, math.Cos) }

// byBlocks runs a kernel that stops before a group of elements with one that it
// cannot compute. It then takes that group element by element, by the kernel
// again or by f, so that no result depends on what stands beside it.
func byBlocks(dst, x []float32, blocks func(dst, x []float32) int, f func(float64) float64) {
	const group = 24 // elements in an iteration of the kernel
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
				dst[i] = float32(f(float64(v)))
			}
		}
		dst, x = dst[n:], x[n:]
	}
}
