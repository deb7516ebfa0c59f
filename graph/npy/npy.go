package npy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"reflect"

	"fusec/graph"
	"fusec/graph/atomicfile"
)

// chunk is how many bytes of data are read or written at a time: a truncated file causes no larger allocation than
// that.
const chunk = 1 << 16

// Read reads one array and nothing after it.
func Read(r io.Reader) (*graph.Tensor, error) {
	h, err := readHeader(r)
	if err != nil {
		return nil, err
	}
	t := graph.Type{DType: kinds[h.descr.kind].dtype, Shape: h.shape}
	data := graph.NewTensor(graph.TypeOf(t.DType, 0)).Data
	raw := make([]byte, chunk)
	for left := int64(t.Shape.Elems()) * int64(h.descr.size()); left > 0; left -= int64(len(raw)) {
		raw = raw[:min(chunk, left)]
		if _, err := io.ReadFull(r, raw); err != nil {
			return nil, truncated(err)
		}
		if data, err = h.descr.appendTo(data, raw); err != nil {
			return nil, err
		}
	}
	x := &graph.Tensor{Type: t, Data: data}
	if h.fortran {
		x = fromFortran(x)
	}
	return x, nil
}

// fromFortran reorders elements whose first index runs fastest.
func fromFortran(x *graph.Tensor) *graph.Tensor {
	switch d := x.Data.(type) {
	case []float32:
		return reorder(x.Type, d)
	case []float64:
		return reorder(x.Type, d)
	case []int32:
		return reorder(x.Type, d)
	case []int64:
		return reorder(x.Type, d)
	case []uint16:
		return reorder(x.Type, d)
	}
	return reorder(x.Type, x.Data.([]bool))
}

func reorder[T any](t graph.Type, from []T) *graph.Tensor {
	to := make([]T, len(from))
	strides := t.Shape.Strides()
	index := make([]int, t.Shape.Rank())
	at := 0
	for _, v := range from {
		to[at] = v
		for i := range index {
			index[i]++
			at += strides[i]
			if index[i] < t.Shape.At(i) {
				break
			}
			at -= strides[i] * index[i]
			index[i] = 0
		}
	}
	return &graph.Tensor{Type: t, Data: to}
}

// Write writes one array. The format has no bf16: such a tensor is refused; cast it to f32.
func Write(w io.Writer, t *graph.Tensor) error {
	if _, ok := descrs[t.Type.DType]; !ok {
		return fmt.Errorf("a tensor of type %v cannot be written", t.Type)
	}
	if _, err := w.Write(appendHeader(nil, t.Type)); err != nil {
		return err
	}
	return writeData(w, t.Data)
}

// writeData writes the elements of a slice in little-endian order.
func writeData(w io.Writer, data any) error {
	all := reflect.ValueOf(data)
	for from := 0; from < all.Len(); from += chunk / 8 {
		part := all.Slice(from, min(from+chunk/8, all.Len())).Interface()
		if err := binary.Write(w, binary.LittleEndian, part); err != nil {
			return err
		}
	}
	return nil
}

// ReadFile reads a file that holds one array. Errors name the file.
func ReadFile(path string) (*graph.Tensor, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, chunk)
	t, err := Read(r)
	if err == nil {
		if _, e := r.ReadByte(); e != io.EOF {
			err = fmt.Errorf("there are bytes after the array of type %v", t.Type)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// WriteFile writes a file atomically: if anything fails, an existing file is unchanged.
func WriteFile(path string, t *graph.Tensor) error {
	err := atomicfile.Write(path, func(w io.Writer) error { return Write(w, t) })
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
