// Package cpu computes graph operations on the processor's cores.
//
// [Compile] turns one operation, most often a [graph.Fusion], with the layouts of its operands and results into a
// [Kernel]. A kernel is bound to no memory: [Kernel.Run] is given the buffers, and allocates nothing.
//
// A Fusion's elementwise work becomes a short vector program ([program]): straight-line code whose instructions each
// run over a segment of up to [segment] elements that stays in the first-level cache. The anchor decides when the
// program runs: over chunks of the iteration space (elementwise.go), over each row with its reductions in between
// (rows.go), over blocks that are reduced (reduce.go), or over each tile of a matrix product as soon as it is finished
// (matmul.go). Operands are read through their strides; what is contiguous is read in place.
//
// Attention and mixtures of experts have packages of their own, which know nothing of graphs' bodies; the kernels here
// bring them the views of operands and results (attention.go, moe.go), and a mixture its activation as a vector program
// (moe_hidden.go).
//
// Sums over the rows of a product or of a row kernel are further results of it (columns.go): each block of rows has its
// own, and they are added up when all are done.
//
// Work is cut by shape alone and every sum has one order, so results are the same bits for any number of workers.
package cpu
