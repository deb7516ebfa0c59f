package main

import (
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// filter is a filter of a convolution, with He's initial values.
func (s *session) filter(g *G.ExprGraph, dt tensor.Dtype, name string, shape ...int) *G.Node {
	fan := shape[1] * shape[2] * shape[3]
	return G.NewTensor(g, dt, 4, G.WithShape(shape...), G.WithName(name),
		G.WithValue(s.normal(dt, math.Sqrt(2/float64(fan)), shape...)))
}

func conv(x, w *G.Node, stride int) *G.Node {
	k := w.Shape()[2]
	return G.Must(G.Conv2d(x, w, tensor.Shape{k, k}, []int{k / 2, k / 2}, []int{stride, stride}, []int{1, 1}))
}

func convnet(s *session) {
	const batch, side, k = 16, 28, 10
	g := G.NewGraph()
	x, y := input(g, G.Float32, "x", batch, 1, side, side), input(g, G.Float32, "y", batch, k)
	w0, w1 := s.filter(g, G.Float32, "w0", 8, 1, 3, 3), s.filter(g, G.Float32, "w1", 16, 8, 3, 3)
	w2, w3 := s.weight(g, G.Float32, "w2", 16*7*7, 64), s.weight(g, G.Float32, "w3", 64, k)
	weights := G.Nodes{w0, w1, w2, w3}
	pool := func(x *G.Node) *G.Node { return G.Must(G.MaxPool2D(x, tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2})) }
	h := pool(G.Must(G.Rectify(conv(x, w0, 1))))
	h = pool(G.Must(G.Rectify(conv(h, w1, 1))))
	h = G.Must(G.Reshape(h, tensor.Shape{batch, 16 * 7 * 7}))
	h = G.Must(G.Rectify(G.Must(G.Mul(h, w2))))
	out := G.Must(G.SoftMax(G.Must(G.Mul(h, w3))))
	cost := G.Must(G.Neg(G.Must(G.Mean(G.Must(G.HadamardProd(G.Must(G.Log(out)), y))))))
	var costValue G.Value
	G.Read(cost, &costValue)
	must(G.Grad(cost, weights...))

	s.train(10, G.NewRMSPropSolver(G.WithBatchSize(batch), G.WithLearnRate(0.002)), weights, held(&costValue), func() {
		classes := s.classes(batch, k)
		must1(G.Let(x, images(s, G.Float32, 1, side, k, classes)))
		must1(G.Let(y, oneHot(G.Float32, k, classes...)))
	})
}

// normed is batch normalisation with a scale of 1 and a bias of 0 that are trained.
func normed(x *G.Node, weights *G.Nodes) *G.Node {
	y, scale, bias, _, err := G.BatchNorm(x, nil, nil, 0.9, 1e-5)
	must1(err)
	must1(G.Let(scale, tensor.Ones(x.Dtype(), scale.Shape()...)))
	must1(G.Let(bias, tensor.New(tensor.Of(x.Dtype()), tensor.WithShape(bias.Shape()...))))
	*weights = append(*weights, scale, bias)
	return y
}

// block is two convolutions with a residual connection.
func (s *session) block(x *G.Node, out, stride int, weights *G.Nodes) *G.Node {
	g, dt, in := x.Graph(), x.Dtype(), x.Shape()[1]
	filter := func(in, k int) *G.Node {
		w := s.filter(g, dt, fmt.Sprintf("w%d", len(*weights)), out, in, k, k)
		*weights = append(*weights, w)
		return w
	}
	h := G.Must(G.Rectify(normed(conv(x, filter(in, 3), stride), weights)))
	h = normed(conv(h, filter(out, 3), 1), weights)
	if stride != 1 || in != out {
		x = normed(conv(x, filter(in, 1), stride), weights)
	}
	return G.Must(G.Rectify(G.Must(G.Add(h, x))))
}

func resnet(s *session) {
	const batch, channels, side, k = 8, 3, 16, 6
	g := G.NewGraph()
	x, y := input(g, G.Float32, "x", batch, channels, side, side), input(g, G.Float32, "y", batch, k)
	var weights G.Nodes
	h := s.block(x, 8, 1, &weights)
	h = s.block(h, 16, 2, &weights)
	h = s.block(h, 32, 2, &weights)
	h = G.Must(G.Mean(G.Must(G.Reshape(h, tensor.Shape{batch, 32, side / 4 * side / 4})), 2))
	head := s.weight(g, G.Float32, "head", 32, k)
	weights = append(weights, head)
	out := G.Must(G.SoftMax(G.Must(G.Mul(h, head))))
	cost := G.Must(G.Neg(G.Must(G.Mean(G.Must(G.HadamardProd(G.Must(G.Log(out)), y))))))
	var costValue, outValue G.Value
	G.Read(cost, &costValue)
	G.Read(out, &outValue)
	must(G.Grad(cost, weights...))

	s.train(6, G.NewVanillaSolver(G.WithLearnRate(0.1)), weights, held(&costValue), func() {
		classes := s.classes(batch, k)
		must1(G.Let(x, images(s, G.Float32, channels, side, k, classes)))
		must1(G.Let(y, oneHot(G.Float32, k, classes...)))
	})
	s.see("out", outValue)
}

func textCNN(s *session) {
	const batch, words, size, channels, k = 8, 20, 12, 6, 3
	g := G.NewGraph()
	x, y := input(g, G.Float64, "x", batch, 1, words, size), input(g, G.Float64, "y", batch, k)
	var weights, joined G.Nodes
	for _, width := range []int{2, 3, 4} {
		w := s.filter(g, G.Float64, fmt.Sprintf("w%d", width), channels, 1, width, size)
		weights = append(weights, w)
		h := G.Must(G.Conv2d(x, w, tensor.Shape{width, size}, []int{0, 0}, []int{1, 1}, []int{1, 1}))
		h = G.Must(G.Tanh(h))
		h = G.Must(G.MaxPool2D(h, tensor.Shape{words - width + 1, 1}, []int{0, 0}, []int{1, 1}))
		joined = append(joined, G.Must(G.Reshape(h, tensor.Shape{batch, channels})))
	}
	head := s.weight(g, G.Float64, "head", 3*channels, k)
	weights = append(weights, head)
	out := G.Must(G.SoftMax(G.Must(G.Mul(G.Must(G.Concat(1, joined...)), head))))
	cost := G.Must(G.Neg(G.Must(G.Mean(G.Must(G.HadamardProd(G.Must(G.Log(out)), y))))))
	must(G.Grad(cost, weights...))

	s.train(30, G.NewAdamSolver(G.WithLearnRate(0.01)), weights, cost.Value, func() {
		classes := s.classes(batch, k)
		text := s.normal(G.Float64, 1, batch, 1, words, size)
		for i, c := range classes {
			text.Float64s()[(i*words+3*c)*size+c] += 3
		}
		must1(G.Let(x, text))
		must1(G.Let(y, oneHot(G.Float64, k, classes...)))
	})
	s.seeAll(weights)
}

func dualNetwork(s *session) {
	const batch, planes, side, channels = 8, 4, 7, 16
	const moves = side*side + 1
	g := G.NewGraph()
	board := input(g, G.Float32, "board", batch, planes, side, side)
	played, won := input(g, G.Float32, "played", batch, moves), input(g, G.Float32, "won", batch)
	var weights G.Nodes
	h := s.block(board, channels, 1, &weights)
	h = s.block(h, channels, 1, &weights)
	weight := func(name string, in, out int) *G.Node {
		w := s.weight(g, G.Float32, name, in, out)
		weights = append(weights, w)
		return w
	}
	point := func(name string, out int) *G.Node {
		w := s.filter(g, G.Float32, name, out, channels, 1, 1)
		weights = append(weights, w)
		return w
	}
	ph := G.Must(G.Rectify(conv(h, point("policy filter", 2), 1)))
	logits := G.Must(G.Mul(G.Must(G.Reshape(ph, tensor.Shape{batch, 2 * side * side})), weight("policy", 2*side*side, moves)))
	policy := G.Must(G.SoftMax(logits))
	vh := G.Must(G.Rectify(conv(h, point("value filter", 1), 1)))
	vh = G.Must(G.Rectify(G.Must(G.Mul(G.Must(G.Reshape(vh, tensor.Shape{batch, side * side})), weight("value 1", side*side, 32)))))
	value := G.Must(G.Reshape(G.Must(G.Tanh(G.Must(G.Mul(vh, weight("value 2", 32, 1))))), tensor.Shape{batch}))

	policyCost := G.Must(G.Neg(G.Must(G.Mean(G.Must(G.Sum(G.Must(G.HadamardProd(played, G.Must(G.Log(policy)))), 1))))))
	valueCost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(won, value))))))
	cost := G.Must(G.Add(policyCost, valueCost))
	var policyValue, valueValue, costValue G.Value
	G.Read(policy, &policyValue)
	G.Read(value, &valueValue)
	G.Read(cost, &costValue)
	must(G.Grad(cost, weights...))

	s.train(6, G.NewVanillaSolver(G.WithLearnRate(0.05)), weights, held(&costValue), func() {
		must1(G.Let(board, s.fill(G.Float32, []int{batch, planes, side, side}, func() float64 { return float64(s.IntN(2)) })))
		must1(G.Let(played, oneHot(G.Float32, moves, s.classes(batch, moves)...)))
		must1(G.Let(won, s.fill(G.Float32, []int{batch}, func() float64 { return float64(2*s.IntN(2) - 1) })))
	})
	s.see("policy", policyValue)
	s.see("value", valueValue)
}
