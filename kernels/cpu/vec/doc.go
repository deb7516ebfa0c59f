// Package vec has the vector opcodes of fusec's tile programs.
//
// The opcodes are the functions of package graph, and operations that combine elements ([Reduction], dot products,
// fused multiplications).
//
// An elementwise chain runs opcode by opcode over a tile of some hundred elements that stays in the first-level cache.
// Each opcode is only one loop over contiguous slices, without allocations or goroutines. A program looks up its
// opcodes when it is compiled, and stores one func value for each instruction:
//
//	k := vec.F32()
//	scale, gelu := k.BinaryVS(graph.Mul), k.Unary(graph.GeluErf)
//	…
//	scale(tile, tile, 0.125)
//	gelu(tile, tile)
//
// # Rules for all opcodes
//
// An opcode works on as many elements as the shortest of its slices has, as the
// built-in copy does, and returns no error. Its destination may be the same slice as any of its
// sources, but must not overlap one that starts elsewhere. Truth values are 1 and 0; any value other than 0, NaN
// included, counts as true.
//
// Special values are as in package math, denormals included, except that Sigmoid, Softplus, Silu, GeluTanh and GeluErf
// on float32 may give 0 where the exact result is smaller than 1e-36.
//
// # Implementations
//
// On amd64 with AVX2 and FMA, and on arm64 with NEON, the float32 opcodes, and the float64 ones that need no elementary
// function, are assembly written by the generator in kernels/cpu/internal/gen/vec. The body of an opcode is described once
// for both. Everything else is portable Go that computes in float64 (Portable). The choice is made when the program
// starts. Assembly and Go need not agree in the last bit, but either gives the same bits for the same input
// each time: the result for an element does not depend on its position, and the order of a reduction depends only on
// its length.
//
// Random words ([Words]) are the same bits in all of them: portable Go, NEON, AVX2, and AVX-512 where there is AVX-512 F.
//
// # Accuracy
//
// Float64 opcodes are as accurate as package math. The portable float32 opcodes
// are rounded from float64, so they are off by little more than half a unit in
// the last place. TestAccuracy has the bounds on the errors of the assembly, over
// dense and random arguments: 1 to 5 units in the last place. Below −1 the two
// forms of GELU lose relative accuracy with growing |x|, since the error of the
// exponent is multiplied by it: up to 3e-6 of the result at −5, which is 1e-12 of
// x. Below −6, where |GeluErf(x)| < 6e-9, its error is at most 1e-12. A power is a call for each element, except for
// the scalar powers 2, 3 and −1.
package vec

//go:generate go run -C ../internal/gen ./vec -family=unary -pkg=vec -out=../../vec/unary_amd64.s -stubs=../../vec/unary_amd64.go -table=../../vec/unary_table_amd64.go
//go:generate go run -C ../internal/gen ./vec -family=binary -pkg=vec -out=../../vec/binary_amd64.s -stubs=../../vec/binary_amd64.go -table=../../vec/binary_table_amd64.go
//go:generate go run -C ../internal/gen ./vec -family=ternary -pkg=vec -out=../../vec/ternary_amd64.s -stubs=../../vec/ternary_amd64.go
//go:generate go run -C ../internal/gen ./vec -family=reduce -pkg=vec -out=../../vec/reduce_amd64.s -stubs=../../vec/reduce_amd64.go
//go:generate go run -C ../internal/gen ./vec -family=memory -pkg=vec -out=../../vec/memory_amd64.s -stubs=../../vec/memory_amd64.go
//go:generate go run -C ../internal/gen ./vec -family=draw -pkg=vec -out=../../vec/draw_amd64.s -stubs=../../vec/draw_amd64.go
//go:generate go run -C ../internal/gen ./vec -arch=arm64 -family=unary -pkg=vec -out=../../vec/unary_arm64.s -stubs=../../vec/unary_arm64.go -table=../../vec/unary_table_arm64.go
//go:generate go run -C ../internal/gen ./vec -arch=arm64 -family=binary -pkg=vec -out=../../vec/binary_arm64.s -stubs=../../vec/binary_arm64.go -table=../../vec/binary_table_arm64.go
//go:generate go run -C ../internal/gen ./vec -arch=arm64 -family=ternary -pkg=vec -out=../../vec/ternary_arm64.s -stubs=../../vec/ternary_arm64.go
//go:generate go run -C ../internal/gen ./vec -arch=arm64 -family=reduce -pkg=vec -out=../../vec/reduce_arm64.s -stubs=../../vec/reduce_arm64.go
//go:generate go run -C ../internal/gen ./vec -arch=arm64 -family=memory -pkg=vec -out=../../vec/memory_arm64.s -stubs=../../vec/memory_arm64.go
//go:generate go run -C ../internal/gen ./vec -arch=arm64 -family=draw -pkg=vec -out=../../vec/draw_arm64.s -stubs=../../vec/draw_arm64.go
