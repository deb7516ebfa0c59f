// Package graph is fusec's intermediate representation: a directed acyclic graph of pure tensor operations.
//
// A [Graph] holds [Node]s in topological order. A node has one operation, its operands, one type and one value; an
// operation with several results gives the first as its own value and the others through [Result] nodes. An
// operation ([Op]) is a small comparable struct whose exported fields are its attributes. What is known of it (its
// meaning, its operands, the types of its results, its cost, its decomposition and its gradient) stands in one row
// of one table, [Ops]. Adding an operation is adding a row.
//
// Conventions that hold for every operation:
//
//   - Shapes are static and row-major; a scalar has rank 0; a dimension may be 0.
//   - Elementwise operations take operands of one shape; an operand of rank 0 stands for all elements. Every other
//     broadcast is an explicit [Broadcast] node, whose operand is aligned at the last axis as in NumPy.
//   - Operations are pure. State is a [State] node and an [Update], committed when a run has succeeded.
//   - Axes count from 0 and are never negative.
//
// The three kinds of operation are primitives, composites and [Fusion]. A composite (Softmax, LayerNorm, …) has one
// decomposition into primitives, which is its meaning. A Fusion holds a graph of its own, its body, and computes what
// the body computes in one launch.
//
// The package knows nothing of where graphs come from, of passes or of targets.
package graph
