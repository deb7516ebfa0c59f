// Package zoo builds the models of testdata/models the way Gorgonia users write them: with the public functions of
// gorgonia.org/gorgonia alone.
package zoo

import (
	"math"
	"math/rand/v2"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Model is a graph and the nodes that a program needs to use it.
type Model struct {
	Graph  *gorgonia.ExprGraph
	Input  *gorgonia.Node
	Output *gorgonia.Node
	Params gorgonia.Nodes
}

// builder collects parameters, drawn from a seeded generator so that a model is the same each time.
type builder struct {
	g      *gorgonia.ExprGraph
	r      *rand.Rand
	params gorgonia.Nodes
}

func newBuilder(seed uint64) *builder {
	return &builder{g: gorgonia.NewGraph(), r: rand.New(rand.NewPCG(seed, 1))}
}

// param declares a weight with normally distributed values around mean.
func (b *builder) param(name string, mean, deviation float64, shape ...int) *gorgonia.Node {
	n := tensor.Shape(shape).TotalSize()
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(mean + deviation*b.r.NormFloat64())
	}
	v := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
	p := gorgonia.NewTensor(b.g, tensor.Float32, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name),
		gorgonia.WithValue(v))
	b.params = append(b.params, p)
	return p
}

func (b *builder) input(name string, shape ...int) *gorgonia.Node {
	return gorgonia.NewTensor(b.g, tensor.Float32, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name))
}

func (b *builder) constant(v float64) *gorgonia.Node { return gorgonia.NewConstant(float32(v)) }

func must(n *gorgonia.Node, err error) *gorgonia.Node { return gorgonia.Must(n, err) }

// linear is x·w + bias for x [n, in].
func (b *builder) linear(name string, x *gorgonia.Node, in, out int) *gorgonia.Node {
	w := b.param(name+".weight", 0, math.Sqrt(2/float64(in+out)), in, out)
	bias := b.param(name+".bias", 0, 0.02, 1, out)
	return must(gorgonia.BroadcastAdd(must(gorgonia.Mul(x, w)), bias, nil, []byte{0}))
}

// gelu is the tanh form, written out.
func (b *builder) gelu(x *gorgonia.Node) *gorgonia.Node {
	cube := must(gorgonia.HadamardProd(b.constant(0.044715), must(gorgonia.Cube(x))))
	inner := must(gorgonia.HadamardProd(b.constant(math.Sqrt(2/math.Pi)), must(gorgonia.Add(x, cube))))
	half := must(gorgonia.HadamardProd(b.constant(0.5), x))
	return must(gorgonia.HadamardProd(half, must(gorgonia.Add(must(gorgonia.Tanh(inner)), b.constant(1)))))
}

// layerNorm normalises the rows of x [n, dim], written out.
func (b *builder) layerNorm(name string, x *gorgonia.Node, n, dim int) *gorgonia.Node {
	gamma := b.param(name+".gamma", 1, 0.02, 1, dim)
	beta := b.param(name+".beta", 0, 0.02, 1, dim)
	mean := must(gorgonia.Reshape(must(gorgonia.Mean(x, 1)), tensor.Shape{n, 1}))
	centred := must(gorgonia.BroadcastSub(x, mean, nil, []byte{1}))
	variance := must(gorgonia.Mean(must(gorgonia.Square(centred)), 1))
	deviation := must(gorgonia.Sqrt(must(gorgonia.Add(variance, b.constant(1e-5)))))
	y := must(gorgonia.BroadcastHadamardDiv(centred, must(gorgonia.Reshape(deviation, tensor.Shape{n, 1})), nil, []byte{1}))
	y = must(gorgonia.BroadcastHadamardProd(y, gamma, nil, []byte{0}))
	return must(gorgonia.BroadcastAdd(y, beta, nil, []byte{0}))
}

func (b *builder) model(input, output *gorgonia.Node) *Model {
	return &Model{Graph: b.g, Input: input, Output: output, Params: b.params}
}

// DigitsMLP classifies digits: 64 pixels, two hidden layers of 64 and 32 with ReLU, 10 logits.
func DigitsMLP(batch int) *Model {
	b := newBuilder(1)
	x := b.input("pixels", batch, 64)
	h := must(gorgonia.Rectify(b.linear("hidden1", x, 64, 64)))
	h = must(gorgonia.Rectify(b.linear("hidden2", h, 64, 32)))
	return b.model(x, b.linear("logits", h, 32, 10))
}

// TransformerBlock is self-attention and a feed-forward network on x [batch·seq, dim], normalised after each residual.
func TransformerBlock(batch, seq, dim, heads, hidden int) *Model {
	b := newBuilder(2)
	x := b.input("x", batch*seq, dim)
	return b.model(x, b.transformerBlock("block", x, batch, seq, dim, heads, hidden))
}

// Transformer is a stack of blocks.
func Transformer(layers, batch, seq, dim, heads, hidden int) *Model {
	b := newBuilder(3)
	x := b.input("x", batch*seq, dim)
	y := x
	for i := range layers {
		y = b.transformerBlock("layer"+string(rune('A'+i)), y, batch, seq, dim, heads, hidden)
	}
	return b.model(x, y)
}

func (b *builder) transformerBlock(name string, x *gorgonia.Node, batch, seq, dim, heads, hidden int) *gorgonia.Node {
	split := func(part string) *gorgonia.Node {
		y := must(gorgonia.Reshape(b.linear(name+"."+part, x, dim, dim), tensor.Shape{batch, seq, heads, dim / heads}))
		return must(gorgonia.Transpose(y, 0, 2, 1, 3))
	}
	q, k, v := split("query"), split("key"), split("value")
	scores := must(gorgonia.BatchedMatMul(q, k, false, true))
	scores = must(gorgonia.HadamardDiv(scores, b.constant(math.Sqrt(float64(dim/heads)))))
	probs := must(gorgonia.SoftMax(scores, 3))
	o := must(gorgonia.Transpose(must(gorgonia.BatchedMatMul(probs, v)), 0, 2, 1, 3))
	o = must(gorgonia.Reshape(o, tensor.Shape{batch * seq, dim}))
	y := b.layerNorm(name+".norm1", must(gorgonia.Add(x, b.linear(name+".out", o, dim, dim))), batch*seq, dim)
	h := b.gelu(b.linear(name+".up", y, dim, hidden))
	return b.layerNorm(name+".norm2", must(gorgonia.Add(y, b.linear(name+".down", h, hidden, dim))), batch*seq, dim)
}

// MoEBlock is a dense mixture of experts on x [tokens, dim]: a softmax gate weighs the output of every expert.
func MoEBlock(tokens, dim, hidden, experts int) *Model {
	b := newBuilder(4)
	x := b.input("x", tokens, dim)
	gate := must(gorgonia.SoftMax(b.linear("gate", x, dim, experts), 1))
	return b.model(x, b.experts(x, gate, tokens, dim, hidden, experts))
}

// MoETop2 is a mixture of experts on x [tokens, dim] of which each token takes two: the two largest weights of the gate
// are found by two maxima, those below the second become zero, and the two are made to sum to 1 again.
func MoETop2(tokens, dim, hidden, experts int) *Model {
	b := newBuilder(6)
	x := b.input("x", tokens, dim)
	gate := must(gorgonia.SoftMax(b.linear("gate", x, dim, experts), 1))
	column := func(n *gorgonia.Node) *gorgonia.Node { return must(gorgonia.Reshape(n, tensor.Shape{tokens, 1})) }
	first := column(must(gorgonia.Max(gate, 1)))
	rest := must(gorgonia.HadamardProd(gate, must(gorgonia.BroadcastLt(gate, first, true, nil, []byte{1}))))
	second := column(must(gorgonia.Max(rest, 1)))
	kept := must(gorgonia.HadamardProd(gate, must(gorgonia.BroadcastGte(gate, second, true, nil, []byte{1}))))
	kept = must(gorgonia.BroadcastHadamardDiv(kept, column(must(gorgonia.Sum(kept, 1))), nil, []byte{1}))
	return b.model(x, b.experts(x, kept, tokens, dim, hidden, experts))
}

// experts is the sum of feed-forward networks of x, each weighted by a column of the gate.
func (b *builder) experts(x, gate *gorgonia.Node, tokens, dim, hidden, experts int) *gorgonia.Node {
	var sum *gorgonia.Node
	for e := range experts {
		name := "expert" + string(rune('0'+e))
		y := b.linear(name+".down", must(gorgonia.Rectify(b.linear(name+".up", x, dim, hidden))), hidden, dim)
		weight := must(gorgonia.Reshape(must(gorgonia.Slice(gate, nil, gorgonia.S(e))), tensor.Shape{tokens, 1}))
		y = must(gorgonia.BroadcastHadamardProd(y, weight, nil, []byte{1}))
		if sum == nil {
			sum = y
		} else {
			sum = must(gorgonia.Add(sum, y))
		}
	}
	return sum
}

// LeNet classifies images of 28×28: two convolutions with ReLU and max-pooling, three linear layers.
func LeNet(batch int) *Model {
	b := newBuilder(5)
	x := b.input("image", batch, 1, 28, 28)
	conv := func(name string, x *gorgonia.Node, in, out, pad int) *gorgonia.Node {
		w := b.param(name+".weight", 0, math.Sqrt(2/float64(25*in)), out, in, 5, 5)
		y := must(gorgonia.Conv2d(x, w, tensor.Shape{5, 5}, []int{pad, pad}, []int{1, 1}, []int{1, 1}))
		return must(gorgonia.MaxPool2D(must(gorgonia.Rectify(y)), tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2}))
	}
	y := conv("conv2", conv("conv1", x, 1, 6, 2), 6, 16, 0)
	y = must(gorgonia.Reshape(y, tensor.Shape{batch, 400}))
	y = must(gorgonia.Rectify(b.linear("dense1", y, 400, 120)))
	y = must(gorgonia.Rectify(b.linear("dense2", y, 120, 84)))
	return b.model(x, b.linear("logits", y, 84, 10))
}
