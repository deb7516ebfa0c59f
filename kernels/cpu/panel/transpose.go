package panel

import "unsafe"

// A transposer transposes blocks of 8×8 elements of 16 bits: element j of row i of a block of src becomes element i of row j of the
// block of dst. Strides are the distances of the rows of a block, and steps those of blocks, in bytes; there is at least one block.
type transposer = func(blocks int, src *uint16, srcStride, srcStep int, dst *uint16, dstStride, dstStep int)

// transposeOctets is the portable transposer.
func transposeOctets(blocks int, src *uint16, srcStride, srcStep int, dst *uint16, dstStride, dstStep int) {
	at := func(base *uint16, bytes int) *uint16 { return (*uint16)(unsafe.Add(unsafe.Pointer(base), bytes)) }
	for b := range blocks {
		for i := range steps {
			for j := range steps {
				*at(dst, b*dstStep+j*dstStride+2*i) = *at(src, b*srcStep+i*srcStride+2*j)
			}
		}
	}
}
