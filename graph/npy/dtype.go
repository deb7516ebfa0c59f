package npy

import (
	"encoding/binary"
	"fmt"

	"fusec/graph"
)

// descr is an element type as the header spells it: byte order, kind, size.
type descr struct {
	order binary.ByteOrder
	kind  string // of kinds
	dtype graph.DType
}

// kinds are the element types as the format spells them, without byte order: a letter and the size in bytes. It has none
// for bf16.
var kinds = map[string]graph.DType{"b1": graph.Bool, "f2": graph.F16, "f4": graph.F32, "f8": graph.F64}

// descrs gives the descr with which each element type is written.
var descrs = map[graph.DType]string{}

func init() {
	for _, d := range graph.IntegerTypes() {
		letter := "i"
		if d.IsUnsigned() {
			letter = "u"
		}
		kinds[fmt.Sprint(letter, d.Size())] = d
	}
	for kind, d := range kinds {
		order := "<"
		if d.Size() == 1 {
			order = "|"
		}
		descrs[d] = order + kind
	}
}

func parseDescr(s string) (d descr, err error) {
	if len(s) < 2 {
		return d, fmt.Errorf("element type %q is not supported", s)
	}
	d.kind = s[1:]
	var ok bool
	d.dtype, ok = kinds[d.kind]
	switch {
	case !ok:
		return d, fmt.Errorf("element type %q is not supported", s)
	case s[0] == '<' || s[0] == '|' && d.dtype.Size() == 1:
		d.order = binary.LittleEndian
	case s[0] == '>':
		d.order = binary.BigEndian
	case s[0] == '=':
		d.order = binary.NativeEndian
	default:
		return d, fmt.Errorf("element type %q has no byte order", s)
	}
	return d, nil
}

func (d descr) size() int { return d.dtype.Size() }

// check refuses bytes that are no Bools; before is the number of elements before raw.
func (d descr) check(raw []byte, before int) error {
	if d.dtype != graph.Bool {
		return nil
	}
	for i, b := range raw {
		if b > 1 {
			return fmt.Errorf("element %d is %d, neither 0 nor 1", before+i, b)
		}
	}
	return nil
}

// toNative changes the byte order of the elements in raw to the machine's.
func (d descr) toNative(raw []byte) {
	one := []byte{1, 0}
	if d.order.Uint16(one) == binary.NativeEndian.Uint16(one) {
		return
	}
	for size := d.size(); len(raw) > 0; raw = raw[size:] {
		for i, j := 0, size-1; i < j; i, j = i+1, j-1 {
			raw[i], raw[j] = raw[j], raw[i]
		}
	}
}
