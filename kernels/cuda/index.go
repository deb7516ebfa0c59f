package cuda

import (
	"fmt"

	"fusec/graph"
)

// compileScatterAdd adds rows where indices say. The indices are listed by the row that they name, in their order, so
// that each element of the result is summed by one thread in that order.
func compileScatterAdd(op graph.ScatterAdd, args, results []Operand) (*Kernel, error) {
	u := newUnit(args, results)
	d := results[0].DType
	if d == graph.Bool {
		return nil, fmt.Errorf("scatter_add: CUDA has no sum of %v", d)
	}
	outer, dim, inner := around(results[0].Layout.Shape, op.Axis, 1)
	count := args[0].Layout.Shape.Elems()
	at := int64(roundUp(4*(dim+1), 256))
	first, cursor, order := u.scratch("i32", "first", 0), u.scratch("i32", "cursor", at), u.scratch("i32", "order", 2*at)
	var steps []Step
	if count > 0 {
		steps = append(steps, Step{Params: []Param{Scratch(0)}, Bytes: int64(4 * (dim + 1))})
		u.elements("count", "i64", count, "", fmt.Sprintf("const i64 k = checked_index(%s, e, %d, %s);", u.at(0), dim, u.status()),
			fmt.Sprintf("if (k >= 0) atomicAdd(%s + k + 1, 1);", first))
		steps = append(steps, u.elementStep("count", count))
		u.printf("KERNEL(scan, %d, 1) {\n  SHARED;\n  scan_counts<%d>(%s, %s, %d, reinterpret_cast<i32 *>(shared));\n}\n\n", blockThreads,
			blockThreads, first, cursor, dim+1)
		u.printf("KERNEL(list, %d, 1) {\n  SHARED;\n  list_by_row<%d>(%s, %d, %d, %s, %s, reinterpret_cast<i64 *>(shared));\n}\n\n", blockThreads,
			blockThreads, u.at(0), count, dim, cursor, order)
		steps = append(steps, Step{Entry: "scan", Grid: [3]int{1, 1, 1}, Block: blockThreads, Shared: blockThreads * 4},
			Step{Entry: "list", Grid: [3]int{1, 1, 1}, Block: blockThreads, Shared: blockThreads * 8})
	}
	m := newMover("scatter_add", u, d, outer, dim, inner, elemsOfAll(args, results))
	zero := fmt.Sprintf("auto sum = splat<W>(%s(0));", lane(d))
	if count == 0 {
		steps = append(steps, m.step(zero, m.store(dim, "j", "sum")))
	} else {
		steps = append(steps, m.step(zero, fmt.Sprintf("for (int q = %s[j]; q < %s[j + 1]; q++) sum = op::add(sum, %s);", first, first,
			m.load(1, count, order+"[q]")), m.store(dim, "j", "sum")))
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

// compileTopK takes the largest of each row: a warp finds one after another.
func compileTopK(op graph.TopK, args, results []Operand) *Kernel {
	u := newUnit(args, results)
	s := args[0].Layout.Shape
	rows, n, _ := around(s, s.Rank()-1, 1)
	if rows == 0 || op.K == 0 {
		return &Kernel{}
	}
	u.printf("KERNEL(top_k, %d, 1) {\n  const i64 row = i64(blockIdx.x) * %d + threadIdx.x / 32;\n  if (row >= %d) return;\n", blockThreads,
		warpRows, rows)
	u.printf("  top_k<%d>(%s + row * %d, %d, Ranked<%s>{%s + %d + row * %d, %s + %d + row * %d});\n}\n", op.K, u.at(0), n, n,
		ctype(args[0].DType), u.result(0), results[0].Layout.Offset, op.K, u.result(1), results[1].Layout.Offset, op.K)
	step := Step{Entry: "top_k", Grid: [3]int{ceilDiv(rows, warpRows), 1, 1}, Block: blockThreads}
	return u.kernel(0, []Step{step}, "route")
}

// compileRoute decides which tokens go to which experts. By tokens, a warp finds the choices of each, and a block for
// each expert counts who comes first; by experts, a block for each finds its least score that is taken.
func compileRoute(op graph.Route, args, results []Operand) *Kernel {
	u := newUnit(args, results)
	s := args[0].Layout.Shape
	tokens, experts, _ := around(s, s.Rank()-1, 1)
	if experts == 0 {
		return &Kernel{}
	}
	sent, lost := results[0], results[1]
	steps := []Step{{Params: []Param{Result(1, int64(8*lost.Layout.Offset))}, Bytes: int64(8 * experts)}}
	if tokens == 0 {
		return &Kernel{Steps: steps}
	}
	steps = append(steps, Step{Params: []Param{Result(0, int64(sent.Layout.Offset))}, Bytes: int64(tokens * experts)})
	to := fmt.Sprintf("%s + %d", u.result(0), sent.Layout.Offset)
	drop := fmt.Sprintf("%s + %d", u.result(1), lost.Layout.Offset)
	perExpert := Step{Entry: "route", Grid: [3]int{experts, 1, 1}, Block: blockThreads, Shared: blockThreads * 4}
	scratch := int64(0)
	if op.ExpertChoice {
		u.printf("KERNEL(route, %d, 1) {\n  SHARED;\n  take_best<%d>(%s, %d, %d, %d, %s, reinterpret_cast<i32 *>(shared));\n}\n\n", blockThreads,
			blockThreads, u.at(0), tokens, experts, min(op.Capacity, tokens), to)
		u.printf("KERNEL(lost, %d, 1) {\n  SHARED;\n  count_lost<%d>(%s, %d, %d, %s, reinterpret_cast<i32 *>(shared));\n}\n", blockThreads,
			blockThreads, to, tokens, experts, drop)
		steps = append(steps, perExpert, Step{Entry: "lost", Grid: [3]int{1, 1, 1}, Block: blockThreads, Shared: blockThreads * 4})
	} else {
		choice := u.scratch("i32", "choice", 0)
		scratch = int64(4 * tokens * op.K)
		u.printf("KERNEL(choose, %d, 1) {\n  const i64 token = i64(blockIdx.x) * %d + threadIdx.x / 32;\n  if (token >= %d) return;\n", blockThreads,
			warpRows, tokens)
		u.printf("  top_k<%d>(%s + token * %d, %d, Chosen{%s + token * %d});\n}\n\n", op.K, u.at(0), experts, experts, choice, op.K)
		u.printf("KERNEL(route, %d, 1) {\n  SHARED;\n  send_first<%d, %d, %d>(%s, %d, %d, %s, %s, reinterpret_cast<i32 *>(shared));\n}\n",
			blockThreads, blockThreads, op.K, op.Capacity, choice, tokens, experts, to, drop)
		steps = append(steps, Step{Entry: "choose", Grid: [3]int{ceilDiv(tokens, warpRows), 1, 1}, Block: blockThreads}, perExpert)
	}
	return u.kernel(scratch, steps, "route")
}
