package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"fusec/graph/atomicfile"
)

// Tensor is a tensor to write. Data is a slice of floats, integers or bools, [F16] or [BF16], row-major.
type Tensor struct {
	Name  string
	Shape []int
	Data  any
}

// F16 is elements of half precision and BF16 of bfloat16, F8E4M3 and F8E5M2 are 8-bit floating-point numbers, all as bits.
type (
	F16    []uint16
	BF16   []uint16
	F8E4M3 []uint8
	F8E5M2 []uint8
)

// Write writes a file. The same tensors, in any order, and the same metadata give the same bytes: tensors are sorted by
// decreasing element size, so that all are aligned, and then by name.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	order := slices.Clone(tensors)
	slices.SortFunc(order, func(a, b Tensor) int {
		da, _ := dtypeOf(a.Data)
		db, _ := dtypeOf(b.Data)
		return cmp.Or(cmp.Compare(dtypeBytes[db], dtypeBytes[da]), cmp.Compare(a.Name, b.Name))
	})
	header, err := header(order, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	raw := make([]byte, 0, chunk)
	for _, t := range order {
		dtype, n := dtypeOf(t.Data)
		step := chunk / dtypeBytes[dtype]
		for i := 0; i < n; i += step {
			if _, err := w.Write(encode(raw, t.Data, i, min(i+step, n))); err != nil {
				return err
			}
		}
	}
	return nil
}

// header makes the length and the JSON header of tensors that are written in the given order.
func header(order []Tensor, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	if len(metadata) > 0 {
		for k, v := range metadata {
			if !utf8.ValidString(k) || !utf8.ValidString(v) {
				return nil, fmt.Errorf("metadata %q: is not UTF-8", k)
			}
		}
		b.WriteString(quote(metadataKey) + ":")
		m, _ := json.Marshal(metadata) // maps of strings always marshal, in the order of the keys
		b.Write(m)
	}
	seen := map[string]bool{}
	at := int64(0)
	for _, t := range order {
		dtype, n := dtypeOf(t.Data)
		elems := 1
		for _, d := range t.Shape {
			elems *= d
		}
		switch {
		case dtype == "":
			return nil, fmt.Errorf("tensor %q: data of type %T cannot be written", t.Name, t.Data)
		case elems != n || slices.ContainsFunc(t.Shape, func(d int) bool { return d < 0 }):
			return nil, fmt.Errorf("tensor %q: %d elements for shape %v", t.Name, n, t.Shape)
		case t.Name == metadataKey || !utf8.ValidString(t.Name):
			return nil, fmt.Errorf("tensor %q: the name cannot be written", t.Name)
		case seen[t.Name]:
			return nil, fmt.Errorf("two tensors are named %q", t.Name)
		}
		seen[t.Name] = true
		if b.Len() > 9 {
			b.WriteByte(',')
		}
		end := at + int64(n)*int64(dtypeBytes[dtype])
		shape, _ := json.Marshal(append([]int{}, t.Shape...))
		fmt.Fprintf(&b, `%s:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, quote(t.Name), dtype, shape, at, end)
		at = end
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-8 > MaxHeader {
		return nil, fmt.Errorf("header of %d bytes is larger than %d", b.Len()-8, MaxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes(), nil
}

func quote(s string) string {
	b, _ := json.Marshal(s) // strings always marshal
	return string(b)
}

// WriteFile writes a file atomically: if anything fails, an existing file is unchanged.
func WriteFile(path string, tensors []Tensor, metadata map[string]string) error {
	err := atomicfile.Write(path, func(w io.Writer) error { return Write(w, tensors, metadata) })
	if err != nil {
		return fmt.Errorf("%s: %w", path, atomicfile.Cause(path, err))
	}
	return nil
}
