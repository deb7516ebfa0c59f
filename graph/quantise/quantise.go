// Package quantise stores the weights of a graph's products in few bits. A weight becomes a parameter of I8 or I4 and one of
// scales, and a dequantize node:
//
//	w ─► matmul ─►      to      q, scale ─► dequantize ─► matmul ─►
//
// The scales are symmetric: of a row of numbers that share one, the scale is that, of a few candidates below the one by which
// the largest fits, whose rounding loses least. What is lost counts as what the product loses: errors of a row of the weights
// count by the mean square of the operand's elements that it is multiplied by (E. Frantar et al., "GPTQ", ICLR 2023, the diagonal
// of its Hessian matrix), where calibration has measured it.
package quantise

import (
	"fmt"
	"math"
	"slices"

	"fusec/graph"
)

// Options say how weights are stored.
type Options struct {
	Weights graph.DType // I8 or I4
	// Group is the number of rows of a column that share a scale, a multiple of 8; 0: all.
	Group int
	// Activations is the type that what is multiplied by the weights is rounded to in each run: F32 or Invalid for none, or I8, with
	// a scale for as many elements as share one of the weights; see [graph.Builder.RoundRows].
	Activations graph.DType
}

// Check reports options that there is no form for.
func (o Options) Check() error {
	if o.Weights != graph.I8 && o.Weights != graph.I4 {
		return fmt.Errorf("weights of %v: want i8 or i4", o.Weights)
	}
	if o.Group < 0 || o.Group%8 != 0 || o.Group > graph.MaxElems {
		return fmt.Errorf("groups of %d rows: want a multiple of 8, or 0 for one scale for each column", o.Group)
	}
	if d := o.Activations; d != graph.Invalid && d != graph.F32 && d != graph.I8 {
		return fmt.Errorf("activations of %v: want f32 or i8", d)
	}
	return nil
}

// A Layer is a weight matrix that products read.
type Layer struct {
	Weight   *graph.Node   // the parameter
	Products []*graph.Node // that multiply by it
	Inner    int           // the axis of Weight that products sum over
	Reason   string        // why the weight stays as it is, or ""
}

// leastElems is the number of elements of the smallest weights that are stored in few bits.
const leastElems = 1024

// Layers lists the matrices among the parameters of g that products read, in the graph's order, with the reasons why some stay
// as they are.
func Layers(g *graph.Graph) []Layer {
	uses := g.Uses()
	updated := map[*graph.Node]bool{}
	for _, u := range g.Updates {
		updated[u.Target] = true
	}
	var list []Layer
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.Param); !ok || n.Type.Shape.Rank() != 2 {
			continue
		}
		l := Layer{Weight: n, Inner: -1}
		l.follow(uses, n, false)
		switch {
		case len(l.Products) == 0:
			continue // no weight of a product
		case n.Type.DType != graph.F32:
			l.Reason = fmt.Sprintf("it is of %v", n.Type.DType)
		case updated[n]:
			l.Reason = "the graph trains it"
		case uses.Escapes(n):
			l.Reason = "it is an output"
		case l.Reason == "" && n.Type.Shape.Elems() < leastElems:
			l.Reason = fmt.Sprintf("it has less than %d elements", leastElems)
		}
		list = append(list, l)
	}
	return list
}

// follow takes in the readers of w, which is the weight, or its transpose.
func (l *Layer) follow(uses *graph.Uses, w *graph.Node, transposed bool) {
	for _, r := range uses.Readers(w) {
		switch op := r.Op.(type) {
		case graph.Transpose:
			if w == l.Weight && op.Perm == graph.IntsOf(1, 0) && !uses.Escapes(r) {
				l.follow(uses, r, true)
				continue
			}
		case graph.MatMul:
			if r.Args[1] != w || r.Args[0] == w || r.Type.DType != graph.F32 || op.TransA {
				break
			}
			inner := 0
			if op.TransB != transposed {
				inner = 1
			}
			if l.Inner >= 0 && l.Inner != inner {
				l.Reason = "products sum over either of its axes"
			}
			l.Inner, l.Products = inner, append(l.Products, r)
			continue
		}
		l.Reason = fmt.Sprintf("%s reads it, too", r.Where())
	}
}

// rows and columns are the sizes of the weights as the products read them.
func (l *Layer) rows() int    { return l.Weight.Type.Shape.At(l.Inner) }
func (l *Layer) columns() int { return l.Weight.Type.Shape.At(1 - l.Inner) }

// Scales is the type of the scales of a layer.
func (l *Layer) Scales(o Options) graph.Type {
	if o.Group == 0 {
		return graph.TypeOf(graph.F32, l.columns())
	}
	s := l.Weight.Type.Shape
	return graph.Type{DType: graph.F32, Shape: s.With(l.Inner, (s.At(l.Inner)+o.Group-1)/o.Group)}
}

// Bytes is the number of bytes of a layer's weights in few bits, with their scales.
func (l *Layer) Bytes(o Options) int64 {
	return l.Weight.Type.With(o.Weights).Bytes() + l.Scales(o).Bytes()
}

// Rounds reports whether a layer's operands are rounded to 8 bits: they are if their rows are whole groups.
func (l *Layer) Rounds(o Options) bool {
	return o.Activations == graph.I8 && (o.Group == 0 || l.rows()%o.Group == 0)
}

// operand is what a product of the layer multiplies by the weights.
func (l *Layer) operand(b *graph.Builder, x *graph.Node, o Options) *graph.Node {
	if !l.Rounds(o) {
		return x
	}
	return b.RoundRows(x, o.Group)
}

// op is the operation that gives the weights back.
func (l *Layer) op(o Options) graph.Dequantize {
	if o.Group == 0 {
		return graph.Dequantize{Axis: 1 - l.Inner}
	}
	return graph.Dequantize{Axis: l.Inner, Block: o.Group}
}

// candidates are the parts of the scale by which the largest number just fits that are tried.
var candidates = func() (list []float64) {
	for part := 1.0; part > 0.65; part -= 0.025 {
		list = append(list, part)
	}
	return
}()

// Matrix stores the weights w of a layer. Importance has a factor for each row, or is nil. Weights that are not finite are an
// error that names the element.
func (l *Layer) Matrix(w *graph.Tensor, importance []float64, o Options) (q, scale *graph.Tensor, err error) {
	data, ok := w.Data.([]float32)
	if !ok || w.Type != l.Weight.Type {
		return nil, nil, fmt.Errorf("%s is %v, its weights %v", l.Weight.Where(), l.Weight.Type, w.Type)
	}
	for i, v := range data {
		if v != v || math.IsInf(float64(v), 0) {
			return nil, nil, fmt.Errorf("%s: element %d is %v", l.Weight.Where(), i, v)
		}
	}
	rows, cols := l.rows(), l.columns()
	q, scale = graph.NewTensor(w.Type.With(o.Weights)), graph.NewTensor(l.Scales(o))
	group := o.Group
	if group == 0 {
		group = max(rows, 1)
	}
	at := func(row, col int) int {
		if l.Inner == 0 {
			return row*cols + col
		}
		return col*rows + row
	}
	index := graph.ScaleIndex(l.op(o).Axis, o.Group, w.Type.Shape, scale.Type.Shape)
	most, set := 127.0, func(i int, v int8) { q.SetInt(i, int64(v)) }
	if o.Weights == graph.I4 {
		most, set = 7, func(i int, v int8) { graph.SetNibble(q.Data.([]uint8), i, v) }
	}
	for col := range cols {
		for from := 0; from < rows; from += group {
			end := min(from+group, rows)
			largest := 0.0
			for row := from; row < end; row++ {
				largest = max(largest, math.Abs(float64(data[at(row, col)])))
			}
			if largest == 0 {
				largest = 1
			}
			best, step := math.Inf(1), 0.0
			for _, part := range candidates {
				s := float64(float32(part * largest / most))
				if s == 0 {
					s = math.SmallestNonzeroFloat32
				}
				lost := 0.0
				for row := from; row < end && lost < best; row++ {
					v := float64(data[at(row, col)])
					off := v - s*o.Weights.Quantised(v/s, 0)
					if importance != nil {
						off *= math.Sqrt(importance[row])
					}
					lost += off * off
				}
				if lost < best {
					best, step = lost, s
				}
			}
			scale.SetFloat(index(at(from, col)), step)
			for row := from; row < end; row++ {
				set(at(row, col), int8(o.Weights.Quantised(float64(data[at(row, col)])/step, 0)))
			}
		}
	}
	return q, scale, nil
}

// names are those of the parameters that take the place of a weight.
func names(g *graph.Graph, w *graph.Node) (q, scale string) {
	unique := func(name string) string {
		for g.Lookup(name) != nil {
			name += "_"
		}
		return name
	}
	return unique(w.Name + ".quantised"), unique(w.Name + ".scale")
}

// A Stored is a layer and what its weights are stored as.
type Stored struct {
	Layer
	Q, Scale *graph.Tensor
}

// Replace is g with the weights of some layers in few bits, and its weights. Neither g nor weights are changed. What g asks for
// of training is left out: weights of few bits are not trained.
func Replace(g *graph.Graph, weights map[string]*graph.Tensor, layers []Stored, o Options) (
	*graph.Graph, map[string]*graph.Tensor, error) {
	h, to := g.Clone()
	h.Gradients, h.Training = nil, nil
	values := make(map[string]*graph.Tensor, len(weights)+len(layers))
	for name, t := range weights {
		values[name] = t
	}
	with := map[*graph.Node]*graph.Node{}
	for i := range layers {
		l := &layers[i]
		w := to[l.Weight]
		b := graph.Extend(h).From(w)
		q, scale := names(h, w)
		delete(values, w.Name)
		values[q], values[scale] = l.Q, l.Scale
		with[w] = b.Add(l.op(o), b.Param(q, l.Q.Type), b.Param(scale, l.Scale.Type))
		for _, n := range l.Products {
			if n := to[n]; l.Rounds(o) {
				y := b.From(n).Add(n.Op, l.operand(b, n.Args[0], o), n.Args[1])
				y.Name = n.Name
				with[n] = y
			}
		}
		if err := b.Err(); err != nil {
			return nil, nil, err
		}
	}
	h.Replace(with)
	if err := h.Tidy(); err != nil {
		return nil, nil, err
	}
	h.Nodes = slices.DeleteFunc(h.Nodes, func(n *graph.Node) bool { _, gone := with[n]; return gone })
	return h, values, graph.Verify(h)
}

// Moments is g with outputs of what calibration measures first: the mean square of each element that a row of a layer's weights
// is multiplied by. [Importance] reads them.
func Moments(g *graph.Graph, layers []Layer) (*graph.Graph, error) {
	return probe(g, layers, func(b *graph.Builder, l *Layer, i, j int, n *graph.Node) {
		x := n.Args[0]
		axes := make([]int, x.Type.Shape.Rank()-1)
		for k := range axes {
			axes[k] = k
		}
		b.Output(probeName("moment", i, j), b.Reduce(graph.Mean, b.Unary(graph.Square, x), false, axes...))
	})
}

// Importance adds up what a run of [Moments] found for layer i.
func Importance(i int, l *Layer, out map[string]*graph.Tensor, sum []float64) []float64 {
	if sum == nil {
		sum = make([]float64, l.rows())
	}
	for j := range l.Products {
		for k, v := range out[probeName("moment", i, j)].Floats() {
			sum[k] += v
		}
	}
	return sum
}

// Losses is g with outputs of what calibration measures then: how far the products with a layer's weights of few bits are off.
// Its weights are those of g and those that it returns. [Lost] reads the outputs.
func Losses(g *graph.Graph, layers []Stored, o Options) (*graph.Graph, map[string]*graph.Tensor, error) {
	list := make([]Layer, len(layers))
	weights := map[string]*graph.Tensor{}
	for i := range layers {
		list[i] = layers[i].Layer
	}
	last, w := -1, (*graph.Node)(nil)
	h, err := probe(g, list, func(b *graph.Builder, l *Layer, i, j int, n *graph.Node) {
		if i != last {
			q, scale := probeName("quantised", i, 0), probeName("scale", i, 0)
			weights[q], weights[scale] = layers[i].Q, layers[i].Scale
			last, w = i, b.Add(l.op(o), b.Param(q, layers[i].Q.Type), b.Param(scale, layers[i].Scale.Type))
		}
		y := b.MatMul(l.operand(b, n.Args[0], o), w, false, l.Inner == 1)
		axes := make([]int, n.Type.Shape.Rank())
		for k := range axes {
			axes[k] = k
		}
		sum := func(x *graph.Node) *graph.Node { return b.Reduce(graph.Sum, b.Unary(graph.Square, x), false, axes...) }
		b.Output(probeName("off", i, j), sum(b.Binary(graph.Sub, y, n)))
		b.Output(probeName("size", i, j), sum(n))
	})
	return h, weights, err
}

// Lost reads from a run of [Losses] the squares of how far the products with the weights of layer i are off, and of their size.
func Lost(i int, l *Layer, out map[string]*graph.Tensor) (off, size float64) {
	for j := range l.Products {
		off += out[probeName("off", i, j)].Float(0)
		size += out[probeName("size", i, j)].Float(0)
	}
	return off, size
}

func probeName(what string, layer, product int) string {
	return fmt.Sprintf("quantise/%s/%d/%d", what, layer, product)
}

// probe is g, without what it hands out and updates, with outputs for each product of some layers.
func probe(g *graph.Graph, layers []Layer, add func(b *graph.Builder, l *Layer, i, j int, n *graph.Node)) (*graph.Graph, error) {
	h, to := g.Clone()
	h.Gradients, h.Training, h.Outputs, h.Updates = nil, nil, nil, nil
	b := graph.Extend(h)
	for i := range layers {
		for j, n := range layers[i].Products {
			add(b, &layers[i], i, j, to[n])
		}
	}
	return b.Graph()
}

// WeightError is the relative error of a layer's weights alone, in norm.
func (s *Stored) WeightError(w *graph.Tensor, o Options) float64 {
	index := graph.ScaleIndex(s.op(o).Axis, o.Group, w.Type.Shape, s.Scale.Type.Shape)
	off, size := 0.0, 0.0
	for i, v := range w.Floats() {
		d := v - s.Q.Float(i)*s.Scale.Float(index(i))
		off, size = off+d*d, size+v*v
	}
	return Relative(off, size)
}

// Relative is the relative error in norm, from the squares of how far something is off and of its size.
func Relative(off, size float64) float64 {
	if off == 0 {
		return 0
	}
	return math.Sqrt(off / size)
}
