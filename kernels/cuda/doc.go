// Package cuda turns graph operations into CUDA C++.
//
// [Compile] makes a [Kernel] of one operation, most often a [graph.Fusion], with the layouts of its operands and
// results: a translation unit and how to start it. It needs no GPU, and gives the same text for the same operation; only
// comments hold the user's names ([Key] leaves them out). All sizes are constants in the text.
//
// A translation unit is the prelude (src/prelude.cuh: vectors of elements, memory access, the instructions that need
// assembly), an anchor's template (src/*.cuh: ordinary C++ templates over a problem and a body) and what is generated:
//
//	struct Params { … };                                    // pointers and tensor maps, filled by the driver's user
//	struct Problem { static constexpr int M = 8192, …; };   // sizes, for the template
//	struct Body { template <int W> … };                     // the fusion's elementwise work over W elements at once
//	KERNEL(linear, 384, 1) { gemm<Problem, Body>(p); }      // the entry
//
// Work that moves more than it computes has its entries generated whole. Elementwise work is a function of units of W
// elements, which a thread loads before it computes them (elementwise.go); many small pieces share a launch and a table
// (segments.go). Rows with reductions go through stages that keep what they need in registers (rows.go, stages.go).
//
// A Body is straight-line code over values Vec<float, W>, one statement a node, with the user's names beside them. The
// same text compiles for the processor against a header that stands in for the GPU in tests (package
// lowering/cuda/emulator).
package cuda
