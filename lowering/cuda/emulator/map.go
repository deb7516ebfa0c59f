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
	case m.Windows != nil && (rank != 4 || len(m.Box) != 2 || !m.Windows.Valid(m.Dims)):
		return refuse("windows %+v on images of sizes %d, and a box of sizes %d", *m.Windows, m.Dims, m.Box)
	case rank < 1 || rank > 5 || len(m.Strides) != rank-1 || m.Windows == nil && len(m.Box) != rank:
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
	most := []uint32{256, 256, 256, 256, 256}
	if m.Windows != nil {
		most[1] = 1024
	}
	for i, box := range m.Box {
		if box < 1 || box > most[i] {
			return refuse("a box of %d elements along axis %d", box, i)
		}
	}
	for i, n := range m.Dims {
		if n < 1 || n > 1<<32 {
			return refuse("axis %d of %d elements", i, n)
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
			dim = uint32(m.Dims[i] - 1)
		}
		if i < len(m.Box) {
			box = m.Box[i]
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
	for _, x := range []int{rank, size, m.Swizzle} {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	for i := range 2 { // steps of 0: no windows
		var w [3]int
		if m.Windows != nil {
			w = [3]int{m.Windows.First[i], m.Windows.Count[i], m.Windows.Step[i]}
		}
		b = append(b, byte(w[2]), byte(int8(w[0])))
		b = binary.LittleEndian.AppendUint32(b, uint32(w[1]))
	}
	return nil
}
