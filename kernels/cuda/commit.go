package cuda

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// Collect makes the kernel that brings the reports of n launches together: a [Status] for each stands behind the one
// that StatusPtr points to, which takes the first that is not zero, with the launch's number in Launch.
func Collect(n int) *Kernel {
	u := newUnit(nil, nil)
	status := u.status()
	launches := u.field(Param{Kind: Int32, Bits: uint64(n)}, "i32 ", "launches")
	u.printf("KERNEL(collect, 32, 1) { collect_status(%s, %s); }\n", status, launches)
	return &Kernel{Source: u.source("commit"), Steps: []Step{{Entry: "collect", Grid: [3]int{1, 1, 1}, Block: 32, Params: u.fields}}}
}

// An Overwrite says what an UpdateSlice in place overwrites: Outer times Size bytes, Stride bytes apart, the first of which is
// Row times the start from the beginning.
type Overwrite struct{ Outer, Stride, Size, Row int64 }

// OverwriteOf describes an UpdateSlice of a value by an update.
func OverwriteOf(op graph.UpdateSlice, value, update graph.Type) Overwrite {
	outer, dim, inner := value.Shape.Around(op.Axis, 1)
	row := int64(inner * value.DType.Size())
	return Overwrite{int64(outer), int64(dim) * row, int64(update.Shape.At(op.Axis)) * row, row}
}

// OverwriteAt is how much of the memory that a launch keeps, and of that which is zeroed before a run, what it overwrites takes so
// far.
type OverwriteAt struct{ Kept, Zeroed int64 }

// Next is where the next part has its memory: for the bytes that it overwrites, and for 1 more than the start.
func (a *OverwriteAt) Next(o Overwrite) (kept, zeroed int64) {
	kept, zeroed = roundUp(a.Kept, 16), a.Zeroed
	a.Kept, a.Zeroed = kept+o.Outer*o.Size, zeroed+8
	return kept, zeroed
}

// restored is the number of overwritten parts that one step restores: what the parameter has room for.
const restored = 64

// Restore makes the kernel that takes back, if the run has reported something, what UpdateSlices have written in place, the last
// first. Results are the values that were written to. Each has two arguments: the memory that the launch kept, and what it had
// that was zeroed: 1 more than the start, once the launch has run.
func Restore(list []Overwrite) *Kernel {
	k := &Kernel{}
	for end := len(list); end > 0; end -= restored {
		params := []Param{{Kind: StatusPtr}}
		for i := range restored {
			at := end - 1 - i
			if at < 0 { // the parameter has room for all
				params = append(params, slices.Repeat([]Param{{Kind: Int64}}, 7)...)
				continue
			}
			params = append(params, Result(at, 0), Arg(2*at, 0), Arg(2*at+1, 0))
			for _, n := range []int64{list[at].Outer, list[at].Stride, list[at].Size, list[at].Row} {
				params = append(params, Param{Kind: Int64, Bits: uint64(n)})
			}
		}
		k.Steps = append(k.Steps, Step{Entry: "restore", Grid: [3]int{1, 1, 1}, Block: blockThreads, Params: params})
	}
	u := &unit{}
	u.decls = []string{"Status *status;", fmt.Sprintf("Overwrite part[%d];", restored)}
	u.printf("KERNEL(restore, %d, 1) {\n  if (p.status->code == 0) return;\n", blockThreads)
	u.printf("  for (int i = 0; i < %d; i++) restore_part(p.part[i]);\n}\n", restored)
	k.Source = u.source("commit")
	return k
}

// commitPairs is the number of copies that one step makes: what the parameter has room for.
const commitPairs = 64

// Commit makes the kernel that copies each argument to the result of the same index, contiguous values of the given
// types, unless the run has reported something.
func Commit(types []graph.Type) *Kernel {
	k := &Kernel{}
	for first := 0; first < len(types); first += commitPairs {
		part := types[first:min(first+commitPairs, len(types))]
		params := []Param{{Kind: StatusPtr}}
		most := int64(0)
		for i, t := range part {
			params = append(params, Result(first+i, 0), Arg(first+i, 0), Param{Kind: Int64, Bits: uint64(t.Bytes())})
			most = max(most, t.Bytes())
		}
		for range 3 * (commitPairs - len(part)) { // the parameter has room for all
			params = append(params, Param{Kind: Int64})
		}
		blocks := min(max(ceilDiv(int(most), 16*4*blockThreads), 1), 1024)
		k.Steps = append(k.Steps, Step{Entry: "commit", Grid: [3]int{blocks, len(part), 1}, Block: blockThreads, Params: params})
	}
	u := &unit{}
	u.decls = []string{"Status *status;", "struct { u8 *to; const u8 *from; i64 bytes; } pair[64];"}
	u.printf("KERNEL(commit, %d, 1) {\n  if (p.status->code != 0) return;\n  const auto &c = p.pair[blockIdx.y];\n", blockThreads)
	u.printf("  commit_copy(c.to, c.from, c.bytes, i64(blockIdx.x) * %d + threadIdx.x, i64(gridDim.x) * %d);\n}\n", blockThreads,
		blockThreads)
	k.Source = u.source("commit")
	return k
}
