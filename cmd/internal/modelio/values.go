package modelio

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"fusec/cmd/internal/cli"
	"fusec/graph"
	"fusec/graph/npy"
)

// RandomTensor makes the value of an input, parameter or state. It depends on the seed and the node's name and type
// alone. Numbers of inputs lie in [−1,1), those of weight matrices and filters in a range that keeps the scale of what
// they multiply, those of state (running variances among them) in [0.5,1.5). Integers lie below limit.
func RandomTensor(n *graph.Node, seed uint64, limit int) *graph.Tensor {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %v", n.Name, n.Type)
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	t := graph.NewTensor(n.Type)
	elems := n.Type.Shape.Elems()
	if !n.Type.DType.IsReal() {
		if n.Type.DType == graph.Bool {
			limit = 2
		}
		for i := range elems {
			t.SetFloat(i, float64(r.IntN(limit)))
		}
		return t
	}
	low, high := -1.0, 1.0
	switch n.Op.(type) {
	case graph.Param:
		if rank := n.Type.Shape.Rank(); rank > 1 {
			out := n.Type.Shape.At(rank - 1)
			if rank == 4 { // filters
				out = n.Type.Shape.At(0)
			}
			high = math.Sqrt(3 * float64(out) / float64(max(elems, 1)))
			low = -high
		}
	case graph.State:
		low, high = 0.5, 1.5
	}
	for i := range elems {
		t.SetFloat(i, low+(high-low)*r.Float64())
	}
	return t
}

// DefaultLimit bounds random integers of which nothing is known.
const DefaultLimit = 8

// IndexLimits bounds random integers: each source that is used as an index stays below the size of the axis that it picks from.
func IndexLimits(g *graph.Graph) map[*graph.Node]int {
	sizes := IndexSizes(g)
	limit := make(map[*graph.Node]int)
	for _, n := range g.Sources() {
		limit[n] = DefaultLimit
		if below, ok := sizes[n]; ok {
			limit[n] = max(1, min(DefaultLimit, below))
		}
	}
	return limit
}

// IndexSizes finds, for each source that is used as an index, the least size of the axes that it picks from.
func IndexSizes(g *graph.Graph) map[*graph.Node]int {
	sizes := make(map[*graph.Node]int)
	for _, n := range g.Nodes {
		index, below := graph.Index(n)
		if index == nil {
			continue
		}
		for len(index.Args) > 0 && (graph.IsView(index.Op) || index.Op.OpName() == "cast") {
			index = index.Args[0]
		}
		if old, ok := sizes[index]; !ok || below < old {
			sizes[index] = below
		}
	}
	return sizes
}

// checkNaN reports a weight that holds NaN.
func checkNaN(n *graph.Node, t *graph.Tensor) error {
	if t == nil || !t.Type.DType.IsReal() {
		return nil
	}
	count, first := 0, 0
	for i := range t.Type.Shape.Elems() {
		if math.IsNaN(t.Float(i)) {
			if count == 0 {
				first = i
			}
			count++
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("%s: NaN in %d of %d elements, the first at %v", n.Where(), count, t.Type.Shape.Elems(),
		indexAt(t.Type.Shape, first))
}

// indexAt is the index, by axes, of element i.
func indexAt(s graph.Shape, i int) []int {
	at := make([]int, s.Rank())
	for axis, stride := range s.Strides() {
		at[axis], i = i/stride, i%stride
	}
	return at
}

// InputFiles are the .npy files that hold values of inputs, by name.
type InputFiles map[string]string

// Declare declares --in, of which the help says for what it is.
func (in InputFiles) Declare(f *cli.FlagSet, what string) {
	f.Func("in", what+"the value of an input from a .npy file, as `NAME=FILE`; may be repeated", func(s string) error {
		name, file, ok := strings.Cut(s, "=")
		if !ok || name == "" || file == "" {
			return errors.New("want NAME=FILE")
		}
		if _, twice := in[name]; twice {
			return fmt.Errorf("%s is given twice", name)
		}
		in[name] = file
		return nil
	})
}

// Read replaces random values by those of the files.
func (in InputFiles) Read(g *graph.Graph, vals *Values) error {
	var known []string
	for _, n := range g.Sources() {
		known = append(known, n.Name)
	}
	for _, name := range SortedKeys(in) {
		n := g.Lookup(name)
		if n == nil {
			return fmt.Errorf("the model has no input %q: it has %s%s", name, strings.Join(cli.FirstOf(known, 8), ", "),
				cli.Suggest(name, known))
		}
		t, err := readInput(n, in[name])
		if err != nil {
			return err
		}
		to := vals.Weights
		if _, input := n.Op.(graph.Input); input {
			to = vals.Inputs
		}
		to[name] = t
		delete(vals.Random, name)
	}
	return nil
}

// readInput reads the value of a source from a .npy file.
func readInput(n *graph.Node, path string) (*graph.Tensor, error) {
	t, err := npy.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if t.Type.Shape != n.Type.Shape {
		return nil, fmt.Errorf("%s holds %v; %s is %v", path, t.Type, n.Where(), n.Type)
	}
	if t, err = Convert(t, n.Type.DType); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", path, n.Where(), err)
	}
	return t, nil
}

// Convert changes the element type between floats, which rounds, and between integers, which must fit.
func Convert(t *graph.Tensor, to graph.DType) (*graph.Tensor, error) {
	from := t.Type.DType
	switch {
	case from == to:
		return t, nil
	case from.IsReal() && to.IsReal():
	case from.IsInt() && to.IsInt():
		for i := range t.Type.Shape.Elems() {
			if v := t.Int(i); to.Wrap(v) != v || v < 0 && from.IsUnsigned() != to.IsUnsigned() {
				return nil, fmt.Errorf("%s at %v does not fit %v", t.Whole(i), indexAt(t.Type.Shape, i), to)
			}
		}
	default:
		return nil, fmt.Errorf("elements of %v cannot stand for %v", from, to)
	}
	r := graph.NewTensor(t.Type.With(to))
	for i := range t.Type.Shape.Elems() {
		r.SetElem(i, t, i)
	}
	return r, nil
}

func SortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
