// Package passes turns the graph that a user wrote into the graph that a target runs.
//
// A pass is a row of one table ([All]): its name, what it does in one line, its function, and what it must come after
// and why. [Run] clones the graph, runs the passes in order, and writes down in a [trace.Trace] what each of them did:
// a snapshot of the graph, the rewrites, the missed fusions, what stayed as it was and why.
//
//	         strip-grad   simplify     raise        differentiate  fuse-regions
//	                                                               ┌──────────┐
//	x  w      x  w         x  w         x  w         x  w          │ x  w     │
//	│  │      │  │         │  │         │  │         │  │ ╲        │ │  │  ╲  │
//	matmul    matmul       matmul       matmul       matmul  …     │ matmul … │
//	│ ╲       │ ╲          │ ╲          │            │     ╲       │ │        │
//	│  ≥ 0    │  ≥ 0       │  ≥ 0       relu         relu   ∇      │ relu     │
//	│ ╱       │ ╱          │ ╱          │            │     ╱       └──────────┘
//	⊙  …∇     ⊙ ─ d/dw     ⊙ ─ d/dw     └─ d/dw
//
// This package holds the table, the front door, and the passes about gradients and memory. The other passes are in packages that
// share package rewrite and do not import each other: simplify, raise, attention, moe, narrow, layout,
// weights, fuse and recompute. Package pattern is the matcher. Package constant evaluates what follows from constants.
//
// Passes know the graph and no target. They ask a [Target] what it can do.
//
// Two of the passes, simplify and raise, are lists of local rewrites. They share a driver, [rewrite.Rewriter], which walks the
// graph from operands to users, so that a rewrite sees its operands in final form, and repeats that until nothing changes.
// The searches of attention and moe use it as well. A rewrite is pure: it makes a new value for a node and its readers read that
// instead; what nothing reads any more is dropped. So a value with further readers stays.
package passes
