package cpu

import (
	"slices"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// A domain is an iteration space: outer axes, walked one index after another, and inner axes, which a segment covers.
// Their sizes are kept after axes that are adjacent for every access have been merged.
type domain struct {
	outer []int
	inner []int // at least one
	rows  int   // product of outer
	n     int   // product of inner
}

// An access is how a program reads an argument or writes a result: for each axis of the domain a stride.
type access struct {
	buf    int // index of the argument or result
	dtype  graph.DType
	layout graph.Layout // over the iteration space's shape
	outer  []int        // the strides that newDomain made of it
	inner  []int
}

// newDomain cuts the axes of shape s into outer ones and, from axis split on, inner ones, and merges axes where all
// accesses allow.
func newDomain(s graph.Shape, split int, accesses []*access) domain {
	return newDomain3(s, 0, split, accesses)
}

// newDomain3 is newDomain for three groups of axes: 0 to a and a to b are outer ones, never merged with each other.
func newDomain3(s graph.Shape, a, b int, accesses []*access) domain {
	var d domain
	first := mergeAxes(s, 0, a, accesses, func(x *access) *[]int { return &x.outer })
	d.outer = append(first, mergeAxes(s, a, b, accesses, func(x *access) *[]int { return &x.outer })...)
	d.inner = mergeAxes(s, b, s.Rank(), accesses, func(x *access) *[]int { return &x.inner })
	if len(d.inner) == 0 {
		d.inner = []int{1}
		for _, x := range accesses {
			x.inner = []int{1}
		}
	}
	d.rows, d.n = 1, 1
	for _, x := range d.outer {
		d.rows *= x
	}
	for _, x := range d.inner {
		d.n *= x
	}
	return d
}

// outermost moves all inner axes but the last few to the outer ones.
func (d *domain) outermost(few int, accesses []*access) {
	from := len(d.inner) - few
	for _, i := range d.inner[:from] {
		d.rows *= i
		d.n /= max(i, 1)
	}
	d.outer = append(d.outer, d.inner[:from]...)
	d.inner = d.inner[from:]
	for _, a := range accesses {
		a.outer = append(a.outer, a.inner[:from]...)
		a.inner = a.inner[from:]
	}
}

// line is the size of the innermost axis.
func (d *domain) line() int { return d.inner[len(d.inner)-1] }

// mergeAxes appends axes lo to hi of s, merged where all accesses allow, to the strides that list picks, and returns
// their sizes.
func mergeAxes(s graph.Shape, lo, hi int, accesses []*access, list func(*access) *[]int) []int {
	var dims []int
	for axis := lo; axis < hi; axis++ {
		size := s.At(axis)
		if size == 1 {
			continue
		}
		merge := len(dims) > 0
		for _, a := range accesses {
			st := *list(a)
			merge = merge && st[len(st)-1] == a.layout.Stride[axis]*size
		}
		if merge {
			dims[len(dims)-1] *= size
		} else {
			dims = append(dims, size)
		}
		for _, a := range accesses {
			st := list(a)
			if merge {
				(*st)[len(*st)-1] = a.layout.Stride[axis]
			} else {
				*st = append(*st, a.layout.Stride[axis])
			}
		}
	}
	return dims
}

// at is the offset of the first element of a row.
func (a *access) at(d *domain, row int) int {
	switch len(d.outer) {
	case 0:
		return a.layout.Offset
	case 1:
		return a.layout.Offset + row*a.outer[0]
	}
	off := a.layout.Offset
	for i := len(d.outer) - 1; i > 0; i-- {
		off += row % d.outer[i] * a.outer[i]
		row /= d.outer[i]
	}
	return off + row*a.outer[0]
}

// direct reports whether a segment's elements stand side by side.
func (a *access) direct(d *domain) bool {
	step := 1
	for i, size := range slices.Backward(d.inner) {
		if a.inner[i] != step {
			return false
		}
		step *= size
	}
	return true
}

// repeats reports whether all lines of the innermost axis are the same.
func (a *access) repeats() bool {
	some := func(strides []int) bool { return slices.ContainsFunc(strides, func(s int) bool { return s != 0 }) }
	return !some(a.outer) && !some(a.inner[:len(a.inner)-1])
}

// each calls f for the runs of equally spaced elements that make up elements start to start+n of a row: from is the
// position in the segment, off the offset in the buffer relative to the row.
func (a *access) each(d *domain, start, n int, f func(from, off, count, stride int)) {
	if a.direct(d) {
		f(0, start, n, 1)
		return
	}
	last := len(d.inner) - 1
	size, stride := d.inner[last], a.inner[last]
	for from := 0; from < n; {
		i := (start + from) % size
		rest := (start + from) / size
		off := i * stride
		for k := last - 1; k >= 0; k-- {
			off += rest % d.inner[k] * a.inner[k]
			rest /= d.inner[k]
		}
		count := min(size-i, n-from)
		f(from, off, count, stride)
		from += count
	}
}

// load converts elements start to start+len(dst) of the row at off into lanes.
func load[T float](dst []T, a *access, d *domain, m Memory, off, start int) {
	a.each(d, start, len(dst), func(from, rel, count, stride int) {
		get(dst[from:from+count], a.dtype, m, off+rel, stride)
	})
}

// get converts equally spaced elements of type d, from at on, into lanes.
func get[T float](dst []T, d graph.DType, m Memory, at, stride int) {
	switch d {
	case graph.F32:
		gather(dst, elems[float32](m)[at:], stride)
	case graph.F64:
		gather(dst, elems[float64](m)[at:], stride)
	case graph.Bool:
		src := elems[bool](m)[at:]
		if stride == 1 {
			vec.FromMask(dst, src)
			break
		}
		for i := range dst {
			dst[i] = 0
			if src[i*stride] {
				dst[i] = 1
			}
		}
	case graph.BF16, graph.F16:
		src := elems[uint16](m)[at:]
		if stride == 1 {
			vec.FromHalf(dst, src, d)
			break
		}
		for i := range dst {
			dst[i] = T(d.From16(src[i*stride]))
		}
	default:
		integerLanes[T](d).get(dst, m, at, stride)
	}
}

// gather converts strided numbers into lanes.
func gather[T, E float](dst []T, src []E, stride int) {
	if stride == 1 {
		vec.Convert(dst, src)
		return
	}
	for i := range dst {
		dst[i] = T(src[i*stride])
	}
}

// store converts lanes into elements start to start+len(src) of the row at off.
func store[T float](src []T, a *access, d *domain, m Memory, off, start int) {
	a.each(d, start, len(src), func(from, rel, count, stride int) {
		put(src[from:from+count], a.dtype, m, off+rel, stride)
	})
}

// put converts lanes into equally spaced elements of type d from at on.
func put[T float](src []T, d graph.DType, m Memory, at, stride int) {
	switch d {
	case graph.F32:
		scatter(elems[float32](m)[at:], src, stride)
	case graph.F64:
		scatter(elems[float64](m)[at:], src, stride)
	case graph.Bool:
		dst := elems[bool](m)[at:]
		if stride == 1 {
			vec.ToMask(dst, src)
			break
		}
		for i, v := range src {
			dst[i*stride] = v != 0
		}
	case graph.BF16, graph.F16: // of which the lanes hold numbers already
		dst := elems[uint16](m)[at:]
		if stride == 1 {
			vec.ToHalf(dst, src, d)
			break
		}
		for i, v := range src {
			dst[i*stride] = d.Bits16(float64(v))
		}
	default:
		integerLanes[T](d).put(src, m, at, stride)
	}
}

// scatter converts lanes into strided numbers.
func scatter[T float, E float](dst []E, src []T, stride int) {
	if stride == 1 {
		vec.Convert(dst[:len(src)], src)
		return
	}
	for i, v := range src {
		dst[i*stride] = E(v)
	}
}
