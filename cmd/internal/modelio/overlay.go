package modelio

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fusec/cmd/internal/cli"
	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/graph/npy"
	"fusec/graph/safetensors"
)

// Samples reads values of the inputs of a graph from a file, .npz or .safetensors; an array named like an input is
// a value of it, or, with an axis before its own, as many values as that is long; arrays of several inputs have equally many.
func Samples(g *graph.Graph, path string) ([]map[string]*graph.Tensor, error) {
	arrays, err := readArrays(path)
	if err != nil {
		return nil, err
	}
	var list []map[string]*graph.Tensor
	for _, name := range SortedKeys(arrays) {
		n := g.Lookup(name)
		if n == nil {
			return nil, fmt.Errorf("%s: the model has no input %q", path, name)
		}
		if _, input := n.Op.(graph.Input); !input {
			return nil, fmt.Errorf("%s: %q is a %s, not an input", path, name, n.Op.OpName())
		}
		values, err := split(arrays[name], n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if list == nil {
			for range values {
				list = append(list, map[string]*graph.Tensor{})
			}
		}
		if len(values) != len(list) {
			return nil, fmt.Errorf("%s: %d values of %q where others have %d", path, len(values), name,
				len(list))
		}
		for i, v := range values {
			list[i][name] = v
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s holds no arrays", path)
	}
	return list, nil
}

// split cuts an array into values of a node.
func split(t *graph.Tensor, n *graph.Node) ([]*graph.Tensor, error) {
	want := n.Type.Shape
	if s := t.Type.Shape; s != want && (s.Rank() != want.Rank()+1 || s.Drop(graph.IntsOf(0)) != want || s.At(0) == 0) {
		return nil, fmt.Errorf("%q has shape %v; %s is %v, with or without an axis of samples before it", n.Name,
			t.Type.Shape, n.Where(), n.Type)
	}
	t, err := Convert(t, n.Type.DType)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", n.Name, err)
	}
	var list []*graph.Tensor
	for at := 0; at < t.Type.Shape.Elems(); at += want.Elems() {
		v := graph.NewTensor(n.Type)
		for i := range want.Elems() {
			v.SetFloat(i, t.Float(at+i))
		}
		list = append(list, v)
	}
	return list, nil
}

// readArrays reads all arrays of a file by name.
func readArrays(path string) (map[string]*graph.Tensor, error) {
	switch filepath.Ext(path) {
	case ".npz":
		return readZipped(path)
	case ".safetensors":
		f, err := safetensors.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		arrays := map[string]*graph.Tensor{}
		for _, info := range f.Tensors() {
			data, err := f.Read(info.Name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			d := graph.DTypeOfSlice(data)
			if d == graph.Invalid || len(info.Shape) > graph.MaxRank {
				return nil, fmt.Errorf("%s: %q: %s of shape %v is no value of a model", path, info.Name, info.DType,
					info.Shape)
			}
			arrays[info.Name] = &graph.Tensor{Type: graph.TypeOf(d, info.Shape...), Data: data}
		}
		return arrays, nil
	}
	return nil, cli.Usage("--calibrate %s: want a .npz or .safetensors file", path)
}

// A .npz file may unpack to ZippedFree bytes, or to zippedRatio times its own size if that is more.
const (
	ZippedFree  = 64 << 20
	zippedRatio = 32
)

// unpacks refuses an archive whose parts unpack to so much that a small file could fill the memory.
func unpacks(path string, parts []*zip.File) error {
	file, err := os.Stat(path)
	if err != nil {
		return err
	}
	limit := max(ZippedFree, zippedRatio*uint64(file.Size()))
	left := limit
	for _, f := range parts {
		if f.UncompressedSize64 > left {
			return fmt.Errorf("%s: its arrays unpack to more than %s, from %s: save them without compression (numpy.savez)", path,
				cli.HumanBytes(int64(limit)), cli.HumanBytes(file.Size()))
		}
		left -= f.UncompressedSize64
	}
	return nil
}

// readZipped reads the arrays of a .npz file: a zip archive of .npy files.
func readZipped(path string) (map[string]*graph.Tensor, error) {
	z, err := zip.OpenReader(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err // which names the file
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, atomicfile.Cause(path, err))
	}
	defer z.Close()
	if err := unpacks(path, z.File); err != nil {
		return nil, err
	}
	arrays := map[string]*graph.Tensor{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, f.Name, err)
		}
		t, err := npy.Read(io.LimitReader(r, int64(f.UncompressedSize64))) // whatever the archive really holds
		if err = errors.Join(err, r.Close()); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, f.Name, err)
		}
		arrays[strings.TrimSuffix(f.Name, ".npy")] = t
	}
	return arrays, nil
}
