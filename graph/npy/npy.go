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
	t := graph.Type{DType: h.descr.dtype, Shape: h.shape}
	var data []byte // doubled as it is read
	for size := t.Bytes(); int64(len(data)) < size || data == nil; {
		done := data
		data = graph.NewTensor(graph.TypeOf(graph.U8, int(min(size, max(chunk, 2*int64(len(done))))))).Bytes()
		next := data[copy(data, done):]
		if _, err := io.ReadFull(r, next); err != nil {
			return nil, truncated(err)
		}
		if err := h.descr.check(next, len(done)); err != nil {
			return nil, err
		}
		h.descr.toNative(next)
	}
	x := graph.TensorAt(data, t)
	if h.fortran {
		x = fromFortran(x)
	}
	return x, nil
}

// fromFortran reorders elements whose first index runs fastest.
func fromFortran(x *graph.Tensor) *graph.Tensor {
	y, size := graph.NewTensor(x.Type), x.Type.DType.Size()
	from, to := x.Bytes(), y.Bytes()
	strides := x.Type.Shape.Strides()
	index := make([]int, len(strides))
	at := 0
	for i := 0; i < len(from); i += size {
		copy(to[at*size:][:size], from[i:])
		for i := range index {
			index[i]++
			at += strides[i]
			if index[i] < x.Type.Shape.At(i) {
				break
			}
			at -= strides[i] * index[i]
			index[i] = 0
		}
	}
	return y
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
		return nil, fmt.Errorf("%s: %w", path, atomicfile.Cause(path, err))
	}
	return t, nil
}

// WriteFile writes a file atomically: if anything fails, an existing file is unchanged.
func WriteFile(path string, t *graph.Tensor) error {
	err := atomicfile.Write(path, func(w io.Writer) error { return Write(w, t) })
	if err != nil {
		return fmt.Errorf("%s: %w", path, atomicfile.Cause(path, err))
	}
	return nil
}
