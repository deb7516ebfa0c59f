package modelio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fusec/cmd/internal/cli"
	"fusec/graph"
	"fusec/graph/npy"
	"fusec/graph/onnx"
)

// Shapes are the sizes that an ONNX model leaves open: by name, and those of values of inputs.
type Shapes struct {
	dims map[string]int
	In   InputFiles // values of inputs, which are read before the model is
}

// Declare declares --dim, of which the help says for what it is.
func (s *Shapes) Declare(f *cli.FlagSet, what string) {
	f.Func("dim", what+"a size that an ONNX model leaves open, as `NAME=SIZE`, such as batch=4; may be repeated", s.Set)
}

// Set binds a size, given as NAME=SIZE.
func (s *Shapes) Set(text string) error {
	name, number, ok := strings.Cut(text, "=")
	size, err := strconv.Atoi(number)
	if !ok || name == "" || err != nil || size < 0 {
		return errors.New("want NAME=SIZE")
	}
	if old, twice := s.dims[name]; twice && old != size {
		return fmt.Errorf("%s is given twice", name)
	}
	if s.dims == nil {
		s.dims = map[string]int{}
	}
	s.dims[name] = size
	return nil
}

// Words are the flags that bind sizes.
func (s *Shapes) Words() (words []string) {
	for _, name := range SortedKeys(s.dims) {
		words = append(words, "--dim", fmt.Sprintf("%s=%d", name, s.dims[name]))
	}
	return words
}

// isONNX tells by its name whether a file is an ONNX model.
func isONNX(path string) bool { return strings.EqualFold(filepath.Ext(path), onnx.Extension) }

// load reads an ONNX model.
func (s *Shapes) load(e *cli.Env, path string) (*onnx.Model, error) {
	o := onnx.Options{Dims: s.dims, Inputs: map[string]*graph.Tensor{}}
	for _, name := range SortedKeys(s.In) {
		t, err := npy.ReadFile(s.In[name])
		if err != nil {
			return nil, err
		}
		o.Inputs[name] = t
	}
	m, err := onnx.Load(path, o)
	if err != nil {
		return nil, err
	}
	for _, name := range SortedKeys(s.dims) {
		switch {
		case len(m.Open) == 0:
			return nil, cli.Usage("--dim %s=%d: the model leaves no size open", name, s.dims[name])
		case !slices.Contains(m.Open, name):
			return nil, cli.Usage("--dim %s=%d: %s", name, s.dims[name], cli.Unknown("size", name, m.Open))
		}
	}
	if len(m.Fixed) > 0 {
		e.Note("the program is for these values alone of inputs that decide on shapes: %s", strings.Join(cli.FirstOf(m.Fixed, 8), ", "))
	}
	return m, nil
}

// LoadModel reads a model and its weights from a .graph or an ONNX model.
func LoadModel(e *cli.Env, path string, shapes *Shapes) (*graph.Graph, *graph.Weights, error) {
	if err := shapes.check(path); err != nil {
		return nil, nil, err
	}
	if !isONNX(path) {
		g, w, err := graph.Load(path)
		if err == nil && len(w.Unused) > 0 {
			e.Note("%s holds tensors that the graph does not name: %s", weightsOf(path), unused(w))
		}
		return g, w, err
	}
	m, err := shapes.load(e, path)
	if err != nil {
		return nil, nil, err
	}
	return m.Graph, &graph.Weights{Tensors: m.Weights}, nil
}

// unused lists tensors that the graph does not name.
func unused(w *graph.Weights) string { return strings.Join(cli.FirstOf(w.Unused, 5), ", ") }

// CheckReplaced refuses to write a model to a path whose weights file is the one that the model came from, if that holds
// tensors that the graph does not name: these would be lost.
func CheckReplaced(from, to string, w *graph.Weights) error {
	if len(w.Unused) > 0 && SameFile(weightsOf(from), graph.WeightsPath(to)) {
		return fmt.Errorf("%s would be replaced, and lose the tensors that the graph does not name: %s; name another file",
			weightsOf(from), unused(w))
	}
	return nil
}

// SameFile reports whether two paths lead to one file that exists.
func SameFile(a, b string) bool {
	i, err := os.Stat(a)
	if err != nil {
		return false
	}
	j, err := os.Stat(b)
	return err == nil && os.SameFile(i, j)
}

// weightsOf is the file that has a model's weights.
func weightsOf(path string) string {
	if isONNX(path) {
		return path
	}
	return graph.WeightsPath(path)
}

// check refuses --dim for models whose sizes are all fixed.
func (s *Shapes) check(path string) error {
	if len(s.dims) > 0 && !isONNX(path) {
		return cli.Usage("--dim is for ONNX models; the sizes of %s are fixed", path)
	}
	return nil
}
