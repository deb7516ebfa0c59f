package fusec

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/lowering"
)

// The parts of a file that CompileAhead writes, a zip archive, beside those of the target.
const (
	aheadSchema  = "fusec.fuse/1"
	aheadHeader  = "fuse.json" // the schema, and the fields of the target's header
	aheadGraph   = "model.graph"
	aheadWeights = "model.safetensors"
)

// Ahead is a model that was compiled ahead of time for a target: the graph, its weights, and what the target has made of
// it. [Compile] with [WithAhead] runs it: a GPU's driver alone is enough, for example.
type Ahead struct {
	Graph   *graph.Graph
	Weights map[string]*graph.Tensor // by parameter and state; nil if the file holds none
	Chip    string                   // what it was compiled for, such as "sm_90a" or "the overlay sim8"

	target  string
	options []lowering.TargetOption
}

// CompileAhead compiles a graph for the target that the options name, of which no device need be there, and writes what a
// program needs to run on one: the graph, its weights (nil leaves them out), and for a GPU the machine code of its kernels,
// for an overlay the ranges of its values, which are found on samples. The options are those of [Compile]. Progress, if not
// nil, is told how many kernels are done.
func CompileAhead(path string, g *graph.Graph, weights map[string]*graph.Tensor, progress func(done, all int),
	opts ...CompileOption) error {
	cfg, err := newConfig(opts)
	if err != nil {
		return err
	}
	_, program, err := Plan(g, opts...)
	if err != nil {
		return err
	}
	device, err := cfg.device(false)
	if err != nil {
		return err
	}
	compiler, ok := device.(lowering.Ahead)
	if !ok {
		return fmt.Errorf("target %q: nothing is compiled ahead of time for it", cfg.target)
	}
	fields, parts, err := compiler.CompileAhead(program, weights, progress)
	if err != nil {
		return err
	}
	header, err := aheadHeaderOf(fields)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, func(w io.Writer) error { return writeAhead(w, g, weights, header, parts) })
}

// aheadHeaderOf is the schema and the fields of a target's header as one object.
func aheadHeaderOf(fields any) ([]byte, error) {
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	var header bytes.Buffer
	err = json.Indent(&header, []byte(fmt.Sprintf(`{"schema":%q,%s`, aheadSchema, bytes.TrimPrefix(text, []byte("{")))), "", "  ")
	return header.Bytes(), err
}

func writeAhead(w io.Writer, g *graph.Graph, weights map[string]*graph.Tensor, header []byte, parts map[string][]byte) error {
	dir, err := os.MkdirTemp("", "fuse")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := graph.Save(filepath.Join(dir, aheadGraph), g, weights); err != nil {
		return err
	}
	z := zip.NewWriter(w)
	put := func(name string, from io.Reader) error {
		to, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err == nil {
			_, err = io.Copy(to, from)
		}
		return err
	}
	if err := put(aheadHeader, bytes.NewReader(header)); err != nil {
		return err
	}
	for _, name := range []string{aheadGraph, aheadWeights} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // a graph without weights
		}
		if err != nil {
			return err
		}
		err = put(name, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if err := put(name, bytes.NewReader(parts[name])); err != nil {
			return err
		}
	}
	return z.Close()
}

// OpenAhead reads a file that [CompileAhead] wrote.
func OpenAhead(path string) (*Ahead, error) {
	a, err := openAhead(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return a, nil
}

func openAhead(path string) (*Ahead, error) {
	z, err := zip.OpenReader(path)
	if err != nil {
		return nil, fmt.Errorf("not a compiled model: %w", err)
	}
	defer z.Close()
	dir, err := os.MkdirTemp("", "fuse")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var header []byte
	parts := map[string][]byte{}
	if err := unpacks(path, z.File); err != nil {
		return nil, err
	}
	for _, f := range z.File {
		if err := readPart(f, dir, &header, parts); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	var info struct{ Schema string }
	if err := json.Unmarshal(header, &info); header != nil && err != nil {
		return nil, fmt.Errorf("%s: %w", aheadHeader, err)
	}
	if info.Schema != aheadSchema {
		return nil, fmt.Errorf("its schema is %q, not %q", info.Schema, aheadSchema)
	}
	a := &Ahead{}
	for _, t := range targets {
		if t.Load == nil {
			continue
		}
		opts, what, ok, err := t.Load(header, parts)
		if err != nil {
			return nil, err
		}
		if ok {
			a.Chip, a.target, a.options = what, t.Name, opts
		}
	}
	if a.target == "" {
		return nil, errors.New("it was compiled for a target that this version does not know")
	}
	file := filepath.Join(dir, aheadGraph)
	g, w, err := graph.Load(file)
	if missing := (*graph.MissingWeightsError)(nil); errors.As(err, &missing) {
		a.Graph, err = graph.LoadGraph(file)
		return a, err
	}
	if err != nil {
		return nil, err
	}
	a.Graph, a.Weights = g, w.Tensors
	return a, nil
}

// unpacks refuses an archive whose parts have more bytes than the file: [CompileAhead] compresses none, and a small file
// could otherwise fill the memory.
func unpacks(path string, parts []*zip.File) error {
	file, err := os.Stat(path)
	if err != nil {
		return err
	}
	left := uint64(file.Size())
	for _, f := range parts {
		if f.UncompressedSize64 > left {
			return fmt.Errorf("its parts have more bytes than the file, which has %d; they are not compressed in a compiled model",
				file.Size())
		}
		left -= f.UncompressedSize64
	}
	return nil
}

// readPart takes over one part of the archive; the graph and its weights go to files in dir.
func readPart(f *zip.File, dir string, header *[]byte, parts map[string][]byte) error {
	part, err := f.Open()
	if err != nil {
		return err
	}
	defer part.Close()
	r := io.LimitReader(part, int64(f.UncompressedSize64)) // whatever the archive really holds
	if f.Name == aheadGraph || f.Name == aheadWeights {
		to, err := os.Create(filepath.Join(dir, f.Name))
		if err != nil {
			return err
		}
		_, err = io.Copy(to, r)
		return errors.Join(err, to.Close())
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if f.Name == aheadHeader {
		*header = data
	} else {
		parts[f.Name] = data
	}
	return nil
}

// WithAhead has [Compile] take what was compiled ahead of time, for the graph that is stored with it, and its target, if no
// device of that target is named.
func WithAhead(a *Ahead) CompileOption {
	return option(func(c *config) {
		if name, _, _ := strings.Cut(c.target, ":"); name != a.target {
			c.target = a.target
		}
		c.options = append(c.options, a.options...)
	})
}

// Target is the name of the target that it was compiled for.
func (a *Ahead) Target() string { return a.target }
