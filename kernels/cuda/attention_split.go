package cuda

import (
	"fmt"
	"math"

	"fusec/graph"
)

// Attention of f32 on Hopper, by products of f16: src/attention_split.cuh.

const (
	// splitScale is what queries and keys are multiplied by, and 64.0f there.
	splitScale = 64
	// largestRows are the values that a block of attention_largest reads.
	largestRows = 256
	// What this attention does in a ns in strict f32, and the portable one.
	splitFlops, attentionFlops = 150000, 48000
)

// splitTime is what the steps of such an attention take beside their work, in ns.
var splitTime = 12000

// forwardSplit is attention of f32 on Hopper. A portable one is beside it, for operands whose numbers f16 cannot hold.
func (a *attentionProblem) forwardSplit() (*Kernel, bool) {
	if a.grad || a.dtype != graph.F32 || !a.out.there() {
		return nil, false
	}
	split := *a
	split.parts = 2
	if !a.cfg.strict() {
		split.parts = 1
	}
	portable, ok := a.mmaTile()
	if !ok || !split.hopperShape() || !a.splitPays() || a.splitPieces() > math.MaxInt32-255 {
		return nil, false
	}
	return split.splitKernel(portable), true
}

// splitPays reports whether the copies should take less time than they save.
func (a *attentionProblem) splitPays() bool {
	d := a.dims
	queries, keys := a.heads()*d.Queries, a.groups()*d.Keys
	work := 2 * queries * d.Keys * (d.Depth + d.Width)
	if a.op.Causal {
		work /= 2
	}
	moved := 12 * (queries*d.Depth + keys*(d.Depth+d.Width))
	return work/splitFlops+moved/finishBytes+splitTime < work/attentionFlops
}

// splitPieces are the pieces of eight elements that queries, keys and values have.
func (a *attentionProblem) splitPieces() int {
	d := a.dims
	return (a.heads()*d.Queries*d.Depth + a.groups()*d.Keys*(d.Depth+d.Width)) / 8
}

// splitKernel puts the kernel together, with a portable one of that tile.
func (a *attentionProblem) splitKernel(portable attentionTile) *Kernel {
	d, t := a.dims, a.attentionTiling()
	u := newUnit(a.args, a.results)
	u.printf("namespace portable {\n")
	a.problem(u)
	u.printf("}\n\n")

	// The scratch memory: the counter of attention_hopper, whether numbers are too large, the largest values; and the parts.
	largest := 4 * a.groups() * d.Width
	cleared := int64(8 + largest)
	scratch := roundUp(cleared, 256)
	wide, most := u.scratch("u32", "wide", 4), u.scratch("u32", "largest", 8)
	var parts, maps [3]string
	for i, x := range []struct{ heads, rows, columns, box int }{
		{a.heads(), d.Queries, d.Depth, 64 * t.groups}, {a.groups(), d.Keys, d.Depth, t.keys}, {a.groups(), d.Keys, d.Width, t.keys},
	} {
		name := string("qkv"[i])
		l := graph.Contiguous(graph.ShapeOf(a.parts, x.heads, x.rows, x.columns))
		if a.parts == 1 { // as attention_hopper finds other operands
			l = graph.Contiguous(graph.ShapeOf(d.Batch.Elems(), x.heads/d.Batch.Elems(), x.rows, x.columns))
		}
		parts[i] = u.scratch("f16", name+"_parts", scratch)
		maps[i] = u.tensorMap(name, Scratch(scratch), graph.F16, l, x.box)
		scratch = roundUp(scratch+int64(2*l.Shape.Elems()), 256)
	}

	steps := []Step{{Params: []Param{Scratch(0)}, Bytes: cleared}}
	add := func(entry string, blocks int, call string) {
		u.printf("KERNEL(%s, 256, 1) {\n  %s;\n}\n", entry, call)
		steps = append(steps, Step{Entry: entry, Grid: [3]int{blocks, 1, 1}, Block: 256})
	}
	add("largest", a.groups()*ceilDiv(d.Keys, largestRows),
		fmt.Sprintf("attention_largest<portable::Problem, %d>(p, %s)", largestRows, most))
	add("split", ceilDiv(a.splitPieces(), 256), fmt.Sprintf("attention_split<portable::Problem, %d>(p, %s, %s, %s, %s, %s)", a.parts,
		parts[0], parts[1], parts[2], most, wide))
	attend, scratch := a.hopperForward(u, scratch, maps, fmt.Sprintf("  if (*%s) return;\n", wide), ", "+most)
	steps = append(steps, attend...)
	steps = append(steps, a.mmaStep(u, portable, "attention_portable", "portable::Problem", fmt.Sprintf("if (*%s) ", wide)))
	return a.hopperKernel(u, scratch, steps)
}
