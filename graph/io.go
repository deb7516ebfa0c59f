package graph

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fusec/graph/atomicfile"
	"fusec/graph/safetensors"
)

// Weights are the values of a graph's parameters and state in a file.
type Weights struct {
	Tensors map[string]*Tensor // by the names of the Param and State nodes
	Unused  []string           // names of tensors in the file that the graph does not use, sorted; they were not read
}

// MissingWeightsError reports that a weights file lacks tensors. It wraps [fs.ErrNotExist].
type MissingWeightsError struct {
	Path   string   // of the weights file
	NoFile bool     // whether the whole file is missing
	Names  []string // of the Param, State and Const nodes without a value
}

// Error names the file and the first of the missing tensors.
func (e *MissingWeightsError) Error() string {
	const most = 5
	names := make([]string, min(len(e.Names), most))
	for i := range names {
		names[i] = fmt.Sprintf("%q", e.Names[i])
	}
	s := strings.Join(names, ", ")
	if n := len(e.Names) - most; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	if e.NoFile {
		return fmt.Sprintf("%s: the weights file is missing; it should hold %s", e.Path, s)
	}
	return fmt.Sprintf("%s: has no weight %s", e.Path, s)
}

// Unwrap makes the error an [fs.ErrNotExist].
func (e *MissingWeightsError) Unwrap() error { return fs.ErrNotExist }

// WeightsPath is the path of the weights of the graph at path: model.safetensors next to model.graph.
func WeightsPath(path string) string {
	return strings.TrimSuffix(path, filepath.Ext(path)) + ".safetensors"
}

// Load reads a graph and its weights. Every Param and State needs a tensor of its name and type; the error for missing
// tensors is a *[MissingWeightsError]. A caller that does not need the values uses [LoadGraph]. Tensors that the graph
// does not use are listed and not read. Values are not checked and may be NaN.
func Load(path string) (*Graph, *Weights, error) {
	f := openWeights(path)
	defer f.close()
	g, err := f.graph(path)
	if err != nil {
		return nil, nil, err
	}
	if f.err != nil && !f.missing {
		for _, n := range g.Sources() {
			if _, ok := n.Op.(Input); !ok {
				return nil, nil, f.err // reported once, not for each weight; it names the file
			}
		}
	}
	w := &Weights{Tensors: map[string]*Tensor{}}
	missing := &MissingWeightsError{Path: f.path, NoFile: f.missing}
	var errs []error
	for _, n := range g.Sources() {
		if _, ok := n.Op.(Input); ok {
			continue
		}
		t, err := f.tensor(n.Name, n.Type)
		switch {
		case errors.Is(err, errNoTensor):
			missing.Names = append(missing.Names, n.Name)
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %s: %w", f.path, n.Where(), err))
		default:
			w.Tensors[n.Name] = t
		}
	}
	if len(missing.Names) > 0 {
		errs = append(errs, missing)
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs[:min(len(errs), maxErrors)]...)
	}
	w.Unused = f.unused()
	return g, w, nil
}

// LoadGraph reads a graph without the values of its parameters and state, which need not exist. Constants too large
// for the text form are part of the graph: they are read from the weights file, which must exist then.
func LoadGraph(path string) (*Graph, error) {
	f := openWeights(path)
	defer f.close()
	return f.graph(path)
}

// weightsFile is the weights file of a graph, open while the graph is read.
type weightsFile struct {
	path    string
	file    *safetensors.File // nil if it cannot be read
	err     error             // why
	missing bool              // there is no such file
	used    map[string]bool
}

func openWeights(path string) *weightsFile {
	f := &weightsFile{path: WeightsPath(path), used: map[string]bool{}}
	f.file, f.err = safetensors.Open(f.path)
	f.missing = errors.Is(f.err, fs.ErrNotExist)
	return f
}

func (f *weightsFile) close() {
	if f.file != nil {
		f.file.Close()
	}
}

// errNoTensor reports that there is no tensor of the given name.
var errNoTensor = errors.New("no such tensor")

// tensor reads the tensor of a name and checks its type. F16 and BF16 are read as they are or converted to f32, as t
// requires.
func (f *weightsFile) tensor(name string, t Type) (*Tensor, error) {
	switch {
	case f.missing:
		return nil, errNoTensor
	case f.err != nil:
		return nil, f.err
	}
	info, ok := f.file.Lookup(name)
	if !ok {
		return nil, errNoTensor
	}
	f.used[name] = true
	if t.DType == I4 {
		return readNibbles(f.file, info, t)
	}
	if !slices.Equal(info.Shape, t.Shape.Slice()) {
		return nil, fmt.Errorf("weight %q has the shape %v, not that of %v", name, info.Shape, t)
	}
	data, err := readTensor(f.file, info, t.DType)
	if err != nil {
		return nil, err
	}
	r := &Tensor{t, data}
	if r.Check() != nil {
		return nil, fmt.Errorf("weight %q has elements of dtype %s, not those of %v", name, info.DType, t)
	}
	return r, nil
}

// readNibbles reads an I4 value, which the format has no dtype for: it is a vector of its bytes.
func readNibbles(f *safetensors.File, info safetensors.Info, t Type) (*Tensor, error) {
	if info.DType != "U8" || !slices.Equal(info.Shape, []int{int(t.Bytes())}) {
		return nil, fmt.Errorf("weight %q is %s of shape %v; of %v there are %d bytes of dtype U8", info.Name, info.DType, info.Shape, t,
			t.Bytes())
	}
	data, err := f.Read(info.Name)
	if err != nil {
		return nil, err
	}
	r := &Tensor{t, data}
	if n := t.Shape.Elems(); n%2 == 1 {
		SetNibble(data.([]uint8), n, 0)
	}
	return r, r.Check()
}

// readTensor reads the elements of a tensor. Elements of 16 bits, and of 8-bit floating-point types, are not converted if that is
// the requested type.
func readTensor(f *safetensors.File, info safetensors.Info, want DType) (any, error) {
	if info.DType == "BF16" && want == BF16 || info.DType == "F16" && want == F16 {
		return f.ReadBits(info.Name)
	}
	if info.DType == "F8_E4M3" && want == F8E4M3 || info.DType == "F8_E5M2" && want == F8E5M2 {
		return f.ReadBytes(info.Name)
	}
	return f.Read(info.Name)
}

// Safetensor is the tensor under a name, to be written to a file of weights. The format has no dtype for I4: such a tensor is
// written as a vector of its bytes, of dtype U8.
func (t *Tensor) Safetensor(name string) safetensors.Tensor {
	r := safetensors.Tensor{Name: name, Shape: t.Type.Shape.Slice(), Data: t.Data}
	if bits, ok := t.Data.([]uint16); ok && t.Type.DType.Is16() {
		r.Data = safetensors.F16(bits)
		if t.Type.DType == BF16 {
			r.Data = safetensors.BF16(bits)
		}
	}
	if bytes, ok := t.Data.([]uint8); ok {
		switch t.Type.DType {
		case I4:
			r.Shape = []int{len(bytes)}
		case F8E4M3:
			r.Data = safetensors.F8E4M3(bytes)
		case F8E5M2:
			r.Data = safetensors.F8E5M2(bytes)
		}
	}
	return r
}

// graph reads the text form at path.
func (f *weightsFile) graph(path string) (*Graph, error) {
	src, err := readText(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, src, func(name string, t Type) (*Tensor, error) {
		v, err := f.tensor(name, t)
		if err == errNoTensor {
			err = &MissingWeightsError{Path: f.path, NoFile: f.missing, Names: []string{name}}
		}
		return v, err
	})
}

// readText reads a file of at most MaxText bytes.
func readText(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, MaxText+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, atomicfile.Cause(path, err))
	}
	return src, nil
}

func (f *weightsFile) unused() []string {
	var names []string
	if f.file != nil {
		for _, info := range f.file.Tensors() {
			if !f.used[info.Name] {
				names = append(names, info.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// Save writes a graph at path and its weights, with the constants too large for the text form, next to it; see
// [WeightsPath]. The weights must be exactly those of the Param and State nodes, and may be NaN. With nil weights the
// graph is saved without them, and an existing weights file is left unchanged.
//
// Both files are written completely and synced to disk before either replaces the old one, the weights first. After a
// failure, such as a full disk, the old files are unchanged.
func Save(path string, g *Graph, weights map[string]*Tensor) error {
	if err := save(path, g, weights); err != nil {
		return fmt.Errorf("saving %s: %w", cmp.Or(path, "a model"), atomicfile.Cause(path, err))
	}
	return nil
}

func save(path string, g *Graph, weights map[string]*Tensor) error {
	wpath := WeightsPath(path)
	if wpath == path {
		return fmt.Errorf("that is the name of the weights file; a graph is named like model.graph")
	}
	if err := Verify(g); err != nil {
		return err
	}
	text := Print(g)
	consts := Constants(g)
	// The text must be readable again. Only the bounds of the text form can prevent that.
	if _, err := Parse(path, []byte(text), LookupIn(consts)); err != nil {
		return err
	}
	tensors, err := collect(g, weights)
	if err != nil {
		return err
	}
	if weights == nil && len(consts) > 0 {
		if _, err := os.Stat(wpath); err == nil {
			return fmt.Errorf("its constants would replace the weights in %s: save it with weights or under another name", wpath)
		}
	}
	for name, t := range consts {
		tensors = append(tensors, t.Safetensor(name))
	}
	out, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	defer out.Abort()
	if _, err := io.WriteString(out, text); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	if len(tensors) > 0 {
		if err := safetensors.WriteFile(wpath, tensors, nil); err != nil {
			return err
		}
	}
	return out.Commit()
}

// collect checks that the weights are those of the graph's parameters and state.
func collect(g *Graph, weights map[string]*Tensor) ([]safetensors.Tensor, error) {
	var tensors []safetensors.Tensor
	if weights == nil {
		return nil, nil
	}
	for _, n := range g.Sources() {
		if _, ok := n.Op.(Input); ok {
			continue
		}
		t := weights[n.Name]
		switch {
		case t == nil:
			return nil, fmt.Errorf("%s has no weight", n.Where())
		case t.Type != n.Type:
			return nil, fmt.Errorf("%s is %v, its weight %v", n.Where(), n.Type, t.Type)
		case strings.HasPrefix(n.Name, constPrefix+"/"):
			return nil, fmt.Errorf("%s: names that begin with %s/ are kept for constants", n.Where(), constPrefix)
		}
		if err := t.Check(); err != nil {
			return nil, fmt.Errorf("%s: %w", n.Where(), err)
		}
		tensors = append(tensors, t.Safetensor(n.Name))
	}
	if len(tensors) < len(weights) {
		for name := range weights {
			if n := g.Lookup(name); n == nil || n.Op == Op(Input{n.Type}) {
				return nil, fmt.Errorf("weight %q belongs to no parameter or state of the graph", name)
			}
		}
	}
	return tensors, nil
}
