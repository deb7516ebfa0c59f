package cuda

import (
	"fmt"
	"math"
	"strings"

	"fusec/graph"
)

// Attention of f32 on Hopper, by products of f16: src/attention_split.cuh, src/attention_grad_split.cuh.

const (
	// splitScale is what queries and keys are multiplied by: 64.0f in src/attention_split.cuh.
	splitScale = 64
	// largestRows are the values that a block of attention_largest reads.
	largestRows = 256
	// largestPieces are the pieces of eight elements that a thread of attention_grad_largest reads.
	largestPieces = 8
	// Floating-point operations in a ns: of this attention in strict f32, and of the portable one.
	splitFlops, attentionFlops = 150000, 48000
	// What a block takes to pass an element of the keys and values, in ps: in strict f32 of this attention and of the portable one,
	// and the same in tf32. In a gradient each takes three times as long.
	splitPass, portablePass         = 167, 667
	splitPassTF32, portablePassTF32 = 111, 400
)

// splitTime is what the steps of such an attention take beside their work, in ns.
var splitTime = 12000

// forwardSplit is attention of f32 on Hopper. A portable one is beside it, for operands whose numbers f16 cannot hold.
func (a *attentionProblem) forwardSplit() (*Kernel, bool) {
	if a.grad || !a.out.there() {
		return nil, false
	}
	portable, ok := a.mmaTile()
	split, fits := a.split()
	if !ok || !fits {
		return nil, false
	}
	return split.splitKernel(portable), true
}

// split is the problem with parts of f16; ok is false if it does not serve, or does not pay.
func (a *attentionProblem) split() (split *attentionProblem, ok bool) {
	s := *a
	s.parts = 2
	if !a.cfg.strict() {
		s.parts = 1
	}
	return &s, a.dtype == graph.F32 && s.hopperShape() && s.splitPays() && a.splitPieces() <= math.MaxInt32-255
}

// splitPays reports whether the copies should take less time than they save. Either attention takes as long as its work, or as a
// block takes to pass all keys, if that is longer: there are few tiles of queries then.
func (a *attentionProblem) splitPays() bool {
	d := a.dims
	queries, keys := a.heads()*d.Queries, a.groups()*d.Keys
	pass := d.Keys * (d.Depth + d.Width)
	work := 2 * queries * pass
	if a.op.Causal {
		work /= 2
	}
	portable, split := pass*portablePass/1000, pass*splitPass/1000 // ns, as are all times here
	if a.parts == 1 {
		portable, split = pass*portablePassTF32/1000, pass*splitPassTF32/1000
	}
	if a.op.HasLengths || a.op.Window > 0 { // blocks do not pass all keys
		portable, split = 0, 0
	}
	if a.grad { // five products in place of two, and several passes
		work, portable, split = work*5/2, 3*portable, 3*split
	}
	moved := 12 * (queries*d.Depth + keys*(d.Depth+d.Width))
	return splitTime+moved/finishBytes+max(work/splitFlops, split) < max(work/attentionFlops, portable)
}

// splitPieces are the pieces of eight elements that queries, keys, values and the result's gradient have.
func (a *attentionProblem) splitPieces() int {
	n := 0
	for _, x := range a.splitOperands() {
		n += x.heads * x.rows * x.columns / 8
	}
	return n
}

// A splitOperand is an operand that is copied in parts.
type splitOperand struct {
	name                 string
	heads, rows, columns int
}

func (a *attentionProblem) splitOperands() []splitOperand {
	d := a.dims
	list := []splitOperand{
		{"q", a.heads(), d.Queries, d.Depth},
		{"k", a.groups(), d.Keys, d.Depth},
		{"v", a.groups(), d.Keys, d.Width},
	}
	if a.grad {
		list = append(list, splitOperand{"dout", a.heads(), d.Queries, d.Width})
	}
	return list
}

// splitCopies places the parts of the operands in the scratch memory from byte scratch on. It returns their addresses, the tensor
// map of each by a name and the rows of a box, and how far they reach.
func (a *attentionProblem) splitCopies(u *unit, scratch int64) (parts []string, maps func(name string, i, rows int) string,
	end int64) {
	var at []int64
	var layouts []graph.Layout
	for _, x := range a.splitOperands() {
		l := graph.Contiguous(graph.ShapeOf(a.parts, x.heads, x.rows, x.columns))
		if a.parts == 1 { // as the kernels find other operands
			l = graph.Contiguous(graph.ShapeOf(a.dims.Batch.Elems(), x.heads/a.dims.Batch.Elems(), x.rows, x.columns))
		}
		parts = append(parts, u.scratch("f16", x.name+"_parts", scratch))
		at, layouts = append(at, scratch), append(layouts, l)
		scratch = roundUp(scratch+int64(2*l.Shape.Elems()), 256)
	}
	maps = func(name string, i, rows int) string {
		return u.tensorMap(name, Scratch(at[i]), graph.F16, layouts[i], rows)
	}
	return parts, maps, scratch
}

// splitSteps writes the entries that find the largest numbers, in so many blocks, and make the copies, by these calls, and returns
// their steps. The first bytes of the scratch memory are cleared before.
func (a *attentionProblem) splitSteps(u *unit, cleared int64, blocks int, largest, split string) []Step {
	u.printf("KERNEL(largest, 256, 1) {\n  %s;\n}\nKERNEL(split, 256, 1) {\n  %s;\n}\n", largest, split)
	return []Step{
		{Params: []Param{Scratch(0)}, Bytes: cleared},
		{Entry: "largest", Grid: [3]int{blocks, 1, 1}, Block: 256},
		{Entry: "split", Grid: [3]int{ceilDiv(a.splitPieces(), 256), 1, 1}, Block: 256},
	}
}

// portableProblem writes the Problem of a portable kernel, in a namespace.
func (a *attentionProblem) portableProblem(u *unit) {
	u.printf("namespace portable {\n")
	a.problem(u)
	u.printf("}\n\n")
}

// splitKernel puts the kernel together, with a portable one of that tile.
func (a *attentionProblem) splitKernel(portable attentionTile) *Kernel {
	d, t := a.dims, a.attentionTiling()
	u := newUnit(a.args, a.results)
	a.portableProblem(u)
	// The scratch memory: the counter of attention_hopper, whether numbers are too large, the largest values; and the parts.
	cleared := int64(8 + 4*a.groups()*d.Width)
	wide, most := u.scratch("u32", "wide", 4), u.scratch("u32", "largest", 8)
	parts, maps, scratch := a.splitCopies(u, roundUp(cleared, 256))
	q, k, v := maps("q", 0, 64*t.groups), maps("k", 1, t.keys), maps("v", 2, t.keys)
	steps := a.splitSteps(u, cleared, a.groups()*ceilDiv(d.Keys, largestRows),
		fmt.Sprintf("attention_largest<portable::Problem, %d>(p, %s)", largestRows, most),
		fmt.Sprintf("attention_split<portable::Problem, %d>(p, %s, %s, %s)", a.parts, strings.Join(parts, ", "), most, wide))
	counter := u.scratch("int", "counter", 0)
	attend, scratch := a.hopperForward(u, scratch, counter, [3]string{q, k, v}, fmt.Sprintf("  if (*%s) return;\n", wide), ", "+most)
	steps = append(steps, attend...)
	steps = append(steps, a.mmaStep(u, portable, "attention_portable", "portable::Problem", fmt.Sprintf("if (*%s) ", wide)))
	return a.hopperKernel(u, scratch, steps)
}

// gradSplit is the gradient of attention of f32 on Hopper. A portable one is beside it, too. In tf32 the gradients of scores stay
// in the range of f16 without a gradient of the log-sum-exp, and with dropout of at most a half.
func (a *attentionProblem) gradSplit() (*Kernel, bool) {
	keys, queries, ok := a.gradTiles()
	s, fits := a.split()
	if !ok || !fits || s.parts == 1 && (a.dlse.there() || a.op.Dropout > 0.5) {
		return nil, false
	}
	u := newUnit(s.args, s.results)
	// The scratch memory: whether numbers are too large, and the largest; the parts; the rows' numbers of both gradients.
	const cleared = 32
	wide, most := u.scratch("u32", "wide", 0), u.scratch("u32", "most", 8)
	parts, maps, scratch := s.splitCopies(u, 256)
	at := scratch
	s.rowsAt = roundUp(at+s.gradNumbers(), 256)
	scratch = roundUp(s.rowsAt+s.gradRows(), 256)
	s.portableProblem(u)
	first := fmt.Sprintf("  if (*%s) return;\n", wide)
	blocks := 0
	for _, x := range s.splitOperands() {
		if s.gradPairs() || x.name == "v" || x.name == "dout" {
			blocks += ceilDiv(x.heads*x.rows*x.columns/8, 256*largestPieces)
		}
	}
	split, twin, more := "attention_grad_split<portable::Problem, Problem>", "(f16 *)nullptr", ""
	if s.gradPairs() {
		split, parts, twin, more = "attention_grad_pair_split<portable::Problem>", parts[:3], parts[3], ", "+wide
	}
	products, scratch := s.hopperBackward(u, at, scratch, maps, twin, first, ", "+most, more)
	steps := s.splitSteps(u, cleared, blocks,
		fmt.Sprintf("attention_grad_largest<portable::Problem, %d, %t>(p, %s)", largestPieces, s.gradPairs(), most),
		fmt.Sprintf("%s(p, %s, %s, %s)", split, strings.Join(parts, ", "), most, wide))
	steps = append(steps, products...)
	steps = append(steps, s.gradSteps(u, keys, queries, "portable_", "portable::Problem", fmt.Sprintf("if (*%s) ", wide))...)
	return s.hopperKernel(u, scratch, steps), true
}
