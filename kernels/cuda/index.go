package cuda

import (
	"fmt"

	"fusec/graph"
)

var _ = answers.Add(checkedOp(compileScatterAdd)).Add(plain(compileTopK)).Add(plain(compileRoute))

// compileScatterAdd adds rows where indices say. The indices are listed by the row that they name, in their order, so
// that each element of the result is summed by one thread in that order.
func compileScatterAdd(op graph.ScatterAdd, args, results []Operand) (*Kernel, error) {
	u := newUnit(args, results)
	d := results[0].DType
	if d == graph.Bool {
		return nil, fmt.Errorf("scatter_add: CUDA has no sum of %v", d)
	}
	outer, dim, inner := results[0].Layout.Shape.Around(op.Axis, 1)
	count := args[0].Layout.Shape.Elems()
	at := int64(roundUp(4*(dim+1), 256))
	first, cursor := u.scratch("i32", "first", 0), u.scratch("i32", "cursor", at)
	order := u.scratch("i32", "order", 2*at)
	var steps []Step
	if count > 0 {
		steps = append(steps, Step{Params: []Param{Scratch(0)}, Bytes: int64(4 * (dim + 1))})
		check := fmt.Sprintf("const i64 k = checked_index(%s, e, %d, %s);", u.at(0), dim, u.status())
		u.elements("count", "i64", count, "", check, fmt.Sprintf("if (k >= 0) atomicAdd(%s + k + 1, 1);", first))
		u.sharing("scan", "i32", fmt.Sprintf("scan_counts<%d>", blockThreads), first, cursor, dim+1)
		u.sharing("list", "i64", fmt.Sprintf("list_by_row<%d>", blockThreads), u.at(0), count, dim, cursor, order)
		one := [3]int{1, 1, 1}
		steps = append(steps, u.elementStep("count", count),
			Step{Entry: "scan", Grid: one, Block: blockThreads, Shared: blockThreads * 4},
			Step{Entry: "list", Grid: one, Block: blockThreads, Shared: blockThreads * 8})
	}
	m := newMover("scatter_add", u, d, outer, dim, inner, elemsOfAll(args, results))
	zero := fmt.Sprintf("auto sum = splat<W>(%s(0));", lane(d))
	if count == 0 {
		steps = append(steps, m.step(zero, m.store(dim, "j", "sum")))
	} else {
		loop := fmt.Sprintf("for (int q = %s[j]; q < %s[j + 1]; q++)", first, first)
		steps = append(steps, m.step(zero, "#pragma unroll 4", loop, "  sum = op::add(sum, "+m.load(1, count, order+"[q]")+");",
			m.store(dim, "j", "sum")))
	}
	if outer*dim*inner == 0 {
		steps = steps[:len(steps)-1]
		if count == 0 {
			return &Kernel{}, nil
		}
	}
	return u.kernel(2*at+int64(4*count), steps, "moves", "index"), nil
}

// warpRows is the number of rows that a block handles with a warp for each.
const warpRows = blockThreads / 32

// warps writes an entry that does something for each of n rows, with a warp.
func (u *unit) warps(entry, name string, n int, line string) {
	index := fmt.Sprintf("const i64 %s = i64(blockIdx.x) * %d + threadIdx.x / 32;", name, warpRows)
	u.entry(entry, blockThreads, index, fmt.Sprintf("if (%s >= %d) return;", name, n), line)
}

// compileTopK takes the largest of each row: a warp finds one after another.
func compileTopK(op graph.TopK, args, results []Operand) *Kernel {
	u := newUnit(args, results)
	s := args[0].Layout.Shape
	rows, n, _ := s.Around(s.Rank()-1, 1)
	if rows == 0 || op.K == 0 {
		return &Kernel{}
	}
	at := func(result int) string { return fmt.Sprintf("%s + row * %d", u.to(result), op.K) }
	u.warps("top_k", "row", rows, fmt.Sprintf("top_k<%d>(%s + row * %d, %d, Ranked<%s>{%s, %s});", op.K, u.at(0), n, n,
		ctype(args[0].DType), at(0), at(1)))
	step := Step{Entry: "top_k", Grid: [3]int{ceilDiv(rows, warpRows), 1, 1}, Block: blockThreads}
	return u.kernel(0, []Step{step}, "route")
}

// compileRoute decides which tokens go to which experts. By tokens, some threads find the choices of each, and where
// experts take only so many, a block for each expert counts who comes first; by experts, a block for each finds its
// least score that is taken.
func compileRoute(op graph.Route, args, results []Operand) *Kernel {
	u := newUnit(args, results)
	s := args[0].Layout.Shape
	tokens, experts, _ := s.Around(s.Rank()-1, 1)
	if experts == 0 {
		return &Kernel{}
	}
	sent, lost := results[0], results[1]
	fillLost := Step{Params: []Param{Result(1, int64(8*lost.Layout.Offset))}, Bytes: int64(8 * experts)}
	if tokens == 0 {
		return &Kernel{Steps: []Step{fillLost}}
	}
	if op.ExpertChoice {
		fillSent := Step{Params: []Param{Result(0, int64(sent.Layout.Offset))}, Bytes: int64(tokens * experts)}
		perExpert := Step{Entry: "route", Grid: [3]int{experts, 1, 1}, Block: blockThreads, Shared: blockThreads * 4}
		take, count := fmt.Sprintf("take_best<%d>", blockThreads), fmt.Sprintf("count_lost<%d>", blockThreads)
		u.sharing("route", "i32", take, u.at(0), tokens, experts, min(op.Capacity, tokens), u.to(0))
		u.sharing("lost", "i32", count, u.to(0), tokens, experts, u.to(1))
		lost := perExpert
		lost.Entry, lost.Grid[0] = "lost", 1
		return u.kernel(0, []Step{fillLost, fillSent, perExpert, lost}, "route")
	}
	threads := 1 // of a token
	for threads < 32 && threads < experts {
		threads *= 2
	}
	send, choice, scratch := op.Capacity == 0 || op.Capacity >= tokens, "nullptr", int64(0)
	if !send {
		choice, scratch = u.scratch("i32", "choice", 0), int64(4*tokens*op.K)
	}
	u.entry("choose", blockThreads, fmt.Sprintf("choose_experts<%d, %d, %d, %d, %v>(%s, %d, %s, %s, %s);", threads,
		ceilDiv(experts, threads), experts, op.K, send, u.at(0), tokens, u.to(0), u.to(1), choice))
	// There is a thread for each expert, too.
	blocks := ceilDiv(max(tokens*threads, experts), blockThreads)
	steps := []Step{{Entry: "choose", Grid: [3]int{blocks, 1, 1}, Block: blockThreads}}
	if !send {
		warps := 32
		for warps > 1 && (16*warps >= tokens || 4*op.K*warps > 32<<10) {
			warps /= 2
		}
		first := fmt.Sprintf("send_first<%d, %d, %d>", 32*warps, op.K, op.Capacity)
		u.entry("route", 32*warps, "SHARED;", fmt.Sprintf("%s(%s, %d, %d, %s, %s, reinterpret_cast<i32 *>(shared));",
			first, choice, tokens, experts, u.to(0), u.to(1)))
		steps = append(steps, Step{Entry: "route", Grid: [3]int{experts, 1, 1}, Block: 32 * warps, Shared: 4 * op.K * warps})
	}
	return u.kernel(scratch, steps, "route")
}
