package bench

import (
	"fmt"
	"math"

	"fusec"
	"fusec/graph"
)

// decoderCase is a decoder layer without its attention, on some tokens, with weights of one type: an RMS norm, the queries, keys
// and values, a product of the queries with a residual, and a feed-forward network with SiLU gates.
type decoderCase struct {
	width, hidden, kv, tokens int
	weights                   graph.DType
	group                     int // rows of a column that share a scale; 0: all
}

// layerTypes are the types of weights besides bf16, with the standard deviation of what is stored and the size of groups.
var layerTypes = []struct {
	weights graph.DType
	spread  float64
	group   int
}{{graph.I8, 40, 0}, {graph.F8E4M3, 1, 0}, {graph.I4, 3, 128}}

// decoderWorks have the sizes of Llama 3 8B. The rate is the bytes of the weights, as they are stored, over the time; beside it is
// the rate of a copy.
func decoderWorks(small bool) []*gpuWork {
	c := decoderCase{width: 4096, hidden: 14336, kv: 1024, weights: graph.BF16}
	elems, tokens := 64<<20, []int{1, 16, 256}
	if small {
		c.width, c.hidden, c.kv = 32, 48, 16
		elems, tokens = 1<<10, []int{1}
	}
	list := []*gpuWork{copyWork(elems)}
	for _, c.tokens = range tokens {
		list = append(list, c.work(1))
	}
	c.tokens = 1
	for _, t := range layerTypes {
		c.weights, c.group = t.weights, t.group
		if small && c.group > 0 {
			c.group = 16
		}
		list = append(list, c.work(t.spread))
	}
	return list
}

// copyWork copies elements of f32: bytes read and bytes written are counted.
func copyWork(elems int) *gpuWork {
	return &gpuWork{
		name: fmt.Sprintf("copy f32 %dMiB", elems>>18), work: 8 * float64(elems), unit: gigabytes,
		build: func(b *graph.Builder) {
			b.Output("y", b.Add(graph.Copy{}, b.Input("x", graph.TypeOf(graph.F32, elems))))
		},
		check: func(v *gpuValues) error {
			x, y := v.in["x"], v.out["y"]
			for _, i := range samples(elems) {
				if err := near("y", y, i, x.Float(i), 0); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// decoderWeight is a matrix of the layer.
type decoderWeight struct {
	name       string
	rows, cols int
}

func (c decoderCase) matrices() []decoderWeight {
	return []decoderWeight{{"queries", c.width, c.width}, {"keys", c.width, c.kv}, {"values", c.width, c.kv},
		{"out", c.width, c.width},
		{"gate", c.width, c.hidden}, {"up", c.width, c.hidden}, {"down", c.hidden, c.width}}
}

// work is the workload; spread is the standard deviation of what the weights are stored as.
func (c decoderCase) work(spread float64) *gpuWork {
	w := &gpuWork{name: fmt.Sprintf("layer %v %d tokens", c.weights, c.tokens), unit: gigabytes, precision: fusec.BF16,
		build: c.build, check: checkDecoder, scale: map[string]float64{}}
	if c.tokens == 1 {
		w.name = fmt.Sprintf("layer %v 1 token", c.weights)
	}
	for _, m := range c.matrices() {
		deviation := 1 / math.Sqrt(float64(m.rows))
		w.work += float64(graph.TypeOf(c.weights, m.rows, m.cols).Bytes())
		if c.weights == graph.BF16 {
			w.scale[m.name] = deviation
			continue
		}
		w.scale[m.name], w.scale[m.name+".scale"] = spread, deviation/spread
		w.work += float64(c.scales(m).Bytes())
	}
	return w
}

// scales is the type of a matrix's scales.
func (c decoderCase) scales(m decoderWeight) graph.Type {
	if c.group == 0 {
		return graph.TypeOf(graph.F32, m.cols)
	}
	return graph.TypeOf(graph.F32, (m.rows+c.group-1)/c.group, m.cols)
}

// dequantize is the operation that gives a matrix's numbers.
func (c decoderCase) dequantize() graph.Dequantize {
	if c.group == 0 {
		return graph.Dequantize{Axis: 1}
	}
	return graph.Dequantize{Block: c.group}
}

func (c decoderCase) build(b *graph.Builder) {
	weight := map[string]*graph.Node{}
	for _, m := range c.matrices() {
		if c.weights == graph.BF16 {
			weight[m.name] = b.Param(m.name, graph.TypeOf(graph.F32, m.rows, m.cols))
			continue
		}
		stored := b.Param(m.name, graph.TypeOf(c.weights, m.rows, m.cols))
		weight[m.name] = b.Add(c.dequantize(), stored, b.Param(m.name+".scale", c.scales(m)))
	}
	product := func(x *graph.Node, name string) *graph.Node { return b.MatMul(x, weight[name], false, false) }
	norm := func(x *graph.Node, name string) *graph.Node {
		return b.Add(graph.RMSNorm{Eps: rmsEps}, x, b.Param(name, graph.TypeOf(graph.F32, c.width)))
	}
	x := b.Input("x", graph.TypeOf(graph.F32, c.tokens, c.width))
	n := norm(x, "gain1")
	for _, name := range []string{"keys", "values"} {
		b.Output(name, product(n, name))
	}
	r := b.Binary(graph.Add, x, product(product(n, "queries"), "out"))
	n = norm(r, "gain2")
	h := b.Binary(graph.Mul, b.Unary(graph.Silu, product(n, "gate")), product(n, "up"))
	b.Output("y", b.Binary(graph.Add, r, product(h, "down")))
}
