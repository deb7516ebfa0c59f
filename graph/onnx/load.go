package onnx

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/graph/onnx/internal/pb"
)

// Options say what a model leaves open.
type Options struct {
	// Dims binds symbolic sizes of inputs by name. A size without a name is named after its input and axis: x[0].
	Dims map[string]int
	// Inputs are values of inputs, by name. Their shapes bind symbolic sizes. Where an operator needs a value to know
	// the shape of its result, the value, if it is of the input's type, becomes part of the graph.
	Inputs map[string]*graph.Tensor
}

// Model is a model that was read.
type Model struct {
	Graph   *graph.Graph
	Weights map[string]*graph.Tensor // of the parameters, by name
	Fixed   []string                 // inputs whose given values the graph depends on, sorted
	Open    []string                 // sizes of inputs that the model leaves open, by the names of [Options.Dims], sorted
}

// MaxFile bounds the size of a model's file, which a protocol buffer limits to 2 GiB.
const MaxFile = 1<<31 - 1

// Extension is that of a model's file.
const Extension = ".onnx"

// Load reads the model at path. External data is read from files in the model's folder, and from nowhere else.
func Load(path string, o Options) (*Model, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, atomicfile.Cause(path, err))
	}
	return read(path, data, filepath.Dir(path), o)
}

// Read reads a model from memory. It may have no external data. The name is that of the model in errors.
func Read(name string, data []byte, o Options) (*Model, error) { return read(name, data, "", o) }

func read(path string, data []byte, dir string, o Options) (*Model, error) {
	if len(data) > MaxFile {
		return nil, fmt.Errorf("%s: a model has at most %d bytes", path, MaxFile)
	}
	var p pb.ModelProto
	if err := (proto.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: maxDepth}).Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("%s: this is no ONNX model: %w", path, errors.Unwrap(err))
	}
	base := filepath.Base(path)
	m := &importer{file: base, files: &folder{dir: dir}, options: o, g: graph.New(strings.TrimSuffix(base, Extension)),
		weights: map[string]*graph.Tensor{}, fixed: map[string]bool{}, names: map[string]int{}, tensors: map[*pb.TensorProto]*value{},
		whole: map[*graph.Node]*graph.Node{}}
	defer m.files.close()
	if err := m.model(&p); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r := &Model{Graph: m.g, Weights: m.weights}
	for name := range m.fixed {
		r.Fixed = append(r.Fixed, name)
	}
	slices.Sort(r.Fixed)
	r.Open = slices.Sorted(maps.Keys(m.open))
	return r, nil
}

// maxDepth bounds how deep messages are nested: graphs in nodes of graphs.
const maxDepth = 200
