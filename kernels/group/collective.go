package group

import (
	"fmt"

	"fusec/graph"
)

// ResultBytes is the size of the result of a collective operation of n participants on an operand of some bytes.
func ResultBytes(op graph.Collective, bytes, n int) int {
	switch op.(type) {
	case graph.AllGather:
		return bytes * n
	case graph.ReduceScatter:
		return bytes / n
	}
	return bytes
}

// Collective makes a collective operation on values whose parts follow one another, as those along axis 0 do. X and y, of
// [ResultBytes], are aligned to their elements, and do not overlap.
func (t *Team) Collective(op graph.Collective, d graph.DType, x, y []byte) error {
	n := len(t.ranks)
	parts := func(b []byte) [][]byte {
		list := make([][]byte, n)
		for i := range list {
			list[i] = b[len(b)/n*i:][:len(b)/n]
		}
		return list
	}
	switch op := op.(type) {
	case graph.AllReduce:
		return t.Reduce(op.Fn, d, x, y)
	case graph.ReduceScatter:
		return t.ReduceScatter(op.Fn, d, parts(x), y)
	case graph.AllGather:
		return t.Gather(x, y)
	case graph.AllToAll:
		return t.Swap(parts(x), parts(y))
	case graph.Permute:
		send, receive := make([][]byte, n), make([][]byte, n)
		next, last := Neighbours(t.place, op.Shift, n)
		send[next], receive[last] = x, y
		return t.Swap(send, receive)
	case graph.BroadcastFrom:
		if t.place == op.Root {
			copy(y, x)
		}
		return t.Broadcast(y, op.Root)
	}
	return fmt.Errorf("%s is not known", op.OpName())
}
