package isa

import "encoding/binary"

// Append appends the record in its memory format.
func (r Record) Append(to []byte) []byte {
	to = binary.LittleEndian.AppendUint32(to, uint32(r.Bias))
	to = binary.LittleEndian.AppendUint16(to, uint16(r.Mul))
	return append(to, r.Shift, 0)
}

// RecordFrom reads a record from its 8 bytes: the hardware keeps 24 bits of bias and 6 of the shift.
func RecordFrom(b []byte) Record {
	return Record{
		Bias:  int32(binary.LittleEndian.Uint32(b)) << 8 >> 8,
		Mul:   int16(binary.LittleEndian.Uint16(b[4:])),
		Shift: b[6] & 63,
	}
}
