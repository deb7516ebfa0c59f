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
	var placed []*Value // by offset
	for _, i := range order {
		v := &values[i]
		size := Align(v.Bytes)
		var at int64
		for _, q := range placed {
			if q.First > v.Last || q.Last < v.First {
				continue
			}
			if q.Offset >= at+size {
				break
			}
			at = max(at, q.Offset+Align(q.Bytes))
		}
		v.Offset = at
		bytes = max(bytes, at+size)
		p, _ := slices.BinarySearchFunc(placed, at, func(q *Value, at int64) int { return cmp.Compare(q.Offset, at) })
		placed = slices.Insert(placed, p, v)
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
