// Package graph is fusec's intermediate representation: a directed acyclic graph of pure tensor operations.
//
// A [Graph] holds [Node]s in topological order. A node has one operation, its operands, one type and one value. If an
// operation has several results, the node's value is the first, and [Result] nodes give the others. An operation ([Op])
// is a small comparable struct whose exported fields are its attributes. Its meaning, its operands, the types of its
// results, its cost, its decomposition and its gradient are in one row of one table, [Ops]. Adding an operation means
// adding a row.
//
// Conventions that hold for every operation:
//
//   - Shapes are static and row-major; a scalar has rank 0; a dimension may be 0.
//   - Elementwise operations take operands of one shape; an operand of rank 0 is broadcast. Every other
//     broadcast is an explicit [Broadcast] node, whose operand is aligned at the last axis as in NumPy.
//   - Operations are pure. State is a [State] node and an [Update], committed when a run has succeeded.
//   - Axes count from 0 and are never negative.
//
// The three kinds of operation are primitives, composites and [Fusion]. A composite (Softmax, LayerNorm, …) has one
// decomposition into primitives, which is its meaning. A Fusion has a graph inside, its body, and computes the body in
// one launch.
//
// Operations on images have two axes of space. Those over one and three axes are made of them by functions of the builder:
// [Builder.Convolve], [Builder.ConvolveTransposed], [Builder.MaxPool], [Builder.AvgPool] and [Builder.LpPool], which take a
// [Window] with padding before and after each axis, dilation and windows that end outside.
//
// The package does not depend on front ends, passes or targets.
package graph
