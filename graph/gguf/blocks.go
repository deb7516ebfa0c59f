package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"fusec/graph/safetensors"
)

// Floats writes the elements of a tensor to a slice of their number.
func (t *Tensor) Floats(to []float32) error {
	if len(to) != t.Elems() {
		return fmt.Errorf("tensor %q has %d elements, and there is room for %d", t.Name, t.Elems(), len(to))
	}
	switch t.Type {
	case F32:
		for i := range to {
			to[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
		}
	case F16:
		for i := range to {
			to[i] = safetensors.Float16(binary.LittleEndian.Uint16(t.Data[2*i:]))
		}
	case BF16:
		for i := range to {
			to[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(t.Data[2*i:])) << 16)
		}
	case Q8_0, Q4_0:
		size := t.Type.BlockBytes()
		for i := 0; i < len(to); i += BlockElems {
			var q [BlockElems]int8
			scale := t.Type.block(t.Data[i/BlockElems*size:][:size], &q)
			for j, v := range q {
				to[i+j] = scale * float32(v)
			}
		}
	default:
		return fmt.Errorf("tensor %q: %v is not read", t.Name, t.Type)
	}
	return nil
}

// block takes a block apart: its numbers, and what they are multiplied by.
func (t Type) block(b []byte, q *[BlockElems]int8) (scale float32) {
	codes := b[2:]
	if t == Q8_0 {
		for j := range q {
			q[j] = int8(codes[j])
		}
	} else {
		for j, c := range codes[:BlockElems/2] {
			q[j], q[j+BlockElems/2] = int8(c&15)-8, int8(c>>4)-8
		}
	}
	return safetensors.Float16(binary.LittleEndian.Uint16(b))
}

// Codes takes the blocks of a tensor of Q8_0 or Q4_0 apart: the integers, of four bits in two's complement, two in a byte, the
// first in the lower half, and of each block the bits of the f16 that they are multiplied by. Either may be nil: it is left out
// then.
func (t *Tensor) Codes(codes []uint8, scales []uint16) error {
	if t.Type != Q8_0 && t.Type != Q4_0 {
		return fmt.Errorf("tensor %q: %v has no blocks", t.Name, t.Type)
	}
	size := t.Type.BlockBytes()
	blocks := t.Elems() / BlockElems
	if scales != nil && len(scales) != blocks || codes != nil && len(codes) != blocks*(size-2) {
		return fmt.Errorf("tensor %q has %d blocks, and there is room for %d bytes and %d scales", t.Name, blocks, len(codes),
			len(scales))
	}
	for i := range blocks {
		b := t.Data[i*size:][:size]
		if scales != nil {
			scales[i] = binary.LittleEndian.Uint16(b)
		}
		if codes == nil {
			continue
		}
		to := codes[i*(size-2):][:size-2]
		if b = b[2:]; t.Type == Q8_0 {
			copy(to, b)
			continue
		}
		const half = BlockElems / 4
		for j := range half { // the lower halves of all bytes come first; 8 is 0
			x, y := b[2*j], b[2*j+1]
			to[j], to[half+j] = (x&15|y<<4)^0x88, (x>>4|y&0xf0)^0x88
		}
	}
	return nil
}
