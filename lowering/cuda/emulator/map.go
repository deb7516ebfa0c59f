//go:build linux && (amd64 || arm64)

package emulator

// Tensor maps, as the runtime reads them.

import (
	"encoding/binary"
	"fmt"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
)

// mapMark is the start of a tensor map, which distinguishes it from other bytes.
const mapMark = 0x70616d6365737566 // "fusecmap"

// EncodeMap writes struct TensorMap of src/async.h, after the checks of a GPU's driver.
func (g *gpu) EncodeMap(m *kernels.TensorMap, base driver.Ptr, to *[128]byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.alive("EncodeMap"); err != nil {
		return err
	}
	rank, size := len(m.Dims), m.DType.Size()
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("EncodeMap: "+format, args...)
	}
	switch {
	case rank < 1 || rank > 5 || len(m.Strides) != rank-1 || len(m.Box) != rank:
		return refuse("%d sizes, %d strides and %d sizes of the box", rank, len(m.Strides), len(m.Box))
	case base%16 != 0:
		return refuse("the tensor begins at %#x, which is no multiple of 16", uint64(base))
	case m.Swizzle != 0 && m.Swizzle != 32 && m.Swizzle != 64 && m.Swizzle != 128:
		return refuse("a swizzle of %d bytes", m.Swizzle)
	case int(m.Box[0])*size%16 != 0:
		return refuse("a box %d elements of %v wide, which are no multiple of 16 bytes", m.Box[0], m.DType)
	case m.Swizzle != 0 && int(m.Box[0])*size > m.Swizzle:
		return refuse("a box %d elements of %v wide, which is more than the swizzle of %d bytes", m.Box[0], m.DType,
			m.Swizzle)
	}
	for i, s := range m.Strides {
		if s%16 != 0 || s >= 1<<40 {
			return refuse("stride %d of %d bytes, which is no multiple of 16 below 2⁴⁰", i+1, s)
		}
	}
	for i := range rank {
		if m.Dims[i] < 1 || m.Dims[i] > 1<<32 || m.Box[i] < 1 || m.Box[i] > 256 {
			return refuse("axis %d of %d elements with a box of %d", i, m.Dims[i], m.Box[i])
		}
	}
	*to = [128]byte{}
	b := to[:0]
	put := func(x uint64) { b = binary.LittleEndian.AppendUint64(b, x) }
	put(mapMark)
	put(uint64(base))
	for i := range 5 { // elements minus one, so that 2³² fits, and the box
		var dim, box uint32
		if i < rank {
			dim, box = uint32(m.Dims[i]-1), m.Box[i]
		}
		b = binary.LittleEndian.AppendUint32(b, dim)
		b = binary.LittleEndian.AppendUint32(b, max(box, 1))
	}
	for i := range 4 {
		var stride uint64
		if i < rank-1 {
			stride = m.Strides[i]
		}
		put(stride)
	}
	for _, x := range []int{rank, size, m.Swizzle, int(m.DType)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return nil
}
