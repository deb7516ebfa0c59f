// Package arena gives values places in one block of memory by their lifetimes. What plans a program and what trades
// memory for work both count with it, so that they agree to the byte.
package arena

import (
	"cmp"
	"slices"
)

// alignment of values in bytes: a cache line, and what vector loads like.
const alignment = 64

// Align is n bytes rounded up to the size that a value of n bytes takes.
func Align(n int64) int64 { return (n + alignment - 1) / alignment * alignment }

// Value is memory that is in use from step First to step Last, both included.
type Value struct {
	Bytes       int64
	First, Last int
	Offset      int64 // in bytes from the start of the arena; set by [Place]
}

// Place gives every value an offset, so that two values share memory only if one's last step comes before the other's
// first, and returns the size of the arena in bytes. Values are placed by falling size, each in the lowest gap that
// holds it ("greedy by size", Y. Pisarchyk and J. Lee, "Efficient Memory Management for Deep Neural Net Inference",
// arXiv 2001.03288).
func Place(values []Value) (bytes int64) {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(values[b].Bytes, values[a].Bytes) })
	steps := 0
	for _, v := range values {
		steps = max(steps, v.Last+1)
	}
	taken := newTimeline(steps)
	for _, i := range order {
		v := &values[i]
		v.Offset = 0
		if v.Bytes > 0 {
			v.Offset = taken.lowest(Align(v.Bytes), v.First, v.Last)
			taken.take(span{v.Offset, v.Offset + Align(v.Bytes)}, v.First, v.Last)
			bytes = max(bytes, v.Offset+Align(v.Bytes))
		}
	}
	return bytes
}

// Peak is the most bytes in use at one step, and the first step at which that is so; no arena can be smaller. Values
// lie in steps from 0 to steps-1.
func Peak(values []Value, steps int) (bytes int64, at int) {
	change := make([]int64, steps+1)
	for _, v := range values {
		size := Align(v.Bytes)
		change[v.First] += size
		change[v.Last+1] -= size
	}
	var now int64
	for i, c := range change {
		if now += c; now > bytes {
			bytes, at = now, i
		}
	}
	return bytes, at
}
