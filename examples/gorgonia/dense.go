package main

import (
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

func xor(s *session) {
	g := G.NewGraph()
	x := G.NewMatrix(g, G.Float64, G.WithShape(4, 2), G.WithName("x"),
		G.WithValue(tensor.New(tensor.WithShape(4, 2), tensor.WithBacking([]float64{0, 0, 0, 1, 1, 0, 1, 1}))))
	y := G.NewMatrix(g, G.Float64, G.WithShape(4, 1), G.WithName("y"),
		G.WithValue(tensor.New(tensor.WithShape(4, 1), tensor.WithBacking([]float64{0, 1, 1, 0}))))
	w1, w2 := s.weight(g, G.Float64, "w1", 2, 8), s.weight(g, G.Float64, "w2", 8, 1)
	h := G.Must(G.Sigmoid(G.Must(G.Mul(x, w1))))
	out := G.Must(G.Sigmoid(G.Must(G.Mul(h, w2))))
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(y, out))))))
	var outValue G.Value
	G.Read(out, &outValue)
	must(G.Grad(cost, w1, w2))

	s.train(1000, G.NewVanillaSolver(G.WithLearnRate(2)), G.Nodes{w1, w2}, cost.Value, func() {})
	s.see("out", outValue)
}

func autoencoder(s *session) {
	const batch, pixels, hidden, code = 32, 196, 64, 16
	g := G.NewGraph()
	x := input(g, G.Float64, "x", batch, pixels)
	w1, w2 := s.weight(g, G.Float64, "w1", pixels, hidden), s.weight(g, G.Float64, "w2", hidden, code)
	b1 := G.NewVector(g, G.Float64, G.WithShape(hidden), G.WithName("b1"), G.WithInit(G.Zeroes()))
	b3 := G.NewVector(g, G.Float64, G.WithShape(pixels), G.WithName("b3"), G.WithInit(G.Zeroes()))
	weights := G.Nodes{w1, w2, b1, b3}
	h := G.Must(G.Tanh(G.Must(G.BroadcastAdd(G.Must(G.Mul(x, w1)), b1, nil, []byte{0}))))
	z := G.Must(G.Tanh(G.Must(G.Mul(h, w2))))
	back := G.Must(G.Tanh(G.Must(G.Mul(z, G.Must(G.Transpose(w2, 1, 0))))))
	again := G.Must(G.BroadcastAdd(G.Must(G.Mul(back, G.Must(G.Transpose(w1, 1, 0)))), b3, nil, []byte{0}))
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(again, x))))))
	must(G.Grad(cost, weights...))

	s.train(60, G.NewAdamSolver(G.WithLearnRate(0.003)), weights, cost.Value, func() {
		pictures := images(s, G.Float64, 1, 14, 6, s.classes(batch, 6))
		must1(pictures.Reshape(batch, pixels))
		must1(G.Let(x, pictures))
	})
	s.seeAll(weights)
}

func vae(s *session) {
	const batch, pixels, hidden, code = 32, 100, 48, 6
	g := G.NewGraph()
	x, noise := input(g, G.Float64, "x", batch, pixels), input(g, G.Float64, "noise", batch, code)
	enc := s.weight(g, G.Float64, "encode", pixels, hidden)
	toMean, toLog := s.weight(g, G.Float64, "mean", hidden, code), s.weight(g, G.Float64, "log of variance", hidden, code)
	dec, out := s.weight(g, G.Float64, "decode", code, hidden), s.weight(g, G.Float64, "out", hidden, pixels)
	weights := G.Nodes{enc, toMean, toLog, dec, out}

	h := G.Must(G.Softplus(G.Must(G.Mul(x, enc))))
	mean, logVar := G.Must(G.Mul(h, toMean)), G.Must(G.Mul(h, toLog))
	deviation := G.Must(G.Exp(G.Must(G.Mul(G.NewConstant(0.5), logVar))))
	z := G.Must(G.Add(mean, G.Must(G.HadamardProd(deviation, noise))))
	picture := G.Must(G.Sigmoid(G.Must(G.Mul(G.Must(G.Tanh(G.Must(G.Mul(z, dec)))), out))))
	off := G.Must(G.Sum(G.Must(G.Square(G.Must(G.Sub(picture, x))))))
	// KL divergence from the standard normal: −½ Σ (1 + log σ² − μ² − σ²)
	terms := G.Must(G.Sub(G.Must(G.Sub(G.Must(G.Add(G.NewConstant(1.0), logVar)), G.Must(G.Square(mean)))), G.Must(G.Exp(logVar))))
	kl := G.Must(G.Mul(G.NewConstant(-0.5), G.Must(G.Sum(terms))))
	cost := G.Must(G.Div(G.Must(G.Add(off, kl)), G.NewConstant(float64(batch))))
	var klValue, offValue G.Value
	G.Read(kl, &klValue)
	G.Read(off, &offValue)
	must(G.Grad(cost, weights...))

	vm := s.tape(g, G.BindDualValues(weights...))
	defer vm.Close()
	solver := G.NewAdamSolver(G.WithLearnRate(0.002))
	for range 60 {
		pictures := images(s, G.Float64, 1, 10, 6, s.classes(batch, 6))
		must1(pictures.Reshape(batch, pixels))
		must1(G.Let(x, pictures))
		must1(G.Let(noise, s.normal(G.Float64, 1, batch, code)))
		must1(vm.RunAll())
		s.see("KL", klValue)
		s.see("off", offValue)
		must1(solver.Step(G.NodesToValueGrads(weights)))
		vm.Reset()
	}
	s.seeAll(weights)
}

// gan has two graphs. The second one's generator and discriminator hold the weights of the first one's: the same tensors.
func gan(s *session) {
	const batch, noise, size, hidden = 32, 8, 20, 40
	type net struct {
		g                 *G.ExprGraph
		in, out           *G.Node
		generator, critic G.Nodes
	}
	g1, g2, d1, d2 := s.normal(G.Float64, 0.2, noise, hidden), s.normal(G.Float64, 0.2, hidden, size),
		s.normal(G.Float64, 0.2, size, hidden), s.normal(G.Float64, 0.2, hidden, 1)
	weight := func(g *G.ExprGraph, name string, v *tensor.Dense) *G.Node {
		return G.NewMatrix(g, G.Float64, G.WithShape(v.Shape()...), G.WithName(name), G.WithValue(v))
	}
	generate := func(n *net, z *G.Node) *G.Node {
		n.generator = G.Nodes{weight(n.g, "g1", g1), weight(n.g, "g2", g2)}
		return G.Must(G.Tanh(G.Must(G.Mul(G.Must(G.LeakyRelu(G.Must(G.Mul(z, n.generator[0])), 0.2)), n.generator[1]))))
	}
	judge := func(n *net, x *G.Node) *G.Node {
		n.critic = G.Nodes{weight(n.g, "d1", d1), weight(n.g, "d2", d2)}
		return G.Must(G.Sigmoid(G.Must(G.Mul(G.Must(G.LeakyRelu(G.Must(G.Mul(x, n.critic[0])), 0.2)), n.critic[1]))))
	}
	// The generator learns to make the discriminator say 1.
	var a net
	a.g = G.NewGraph()
	a.in = input(a.g, G.Float64, "z", batch, noise)
	made := generate(&a, a.in)
	a.out = G.Must(G.Neg(G.Must(G.Mean(G.Must(G.Log(judge(&a, made)))))))
	must(G.Grad(a.out, a.generator...))
	makes := s.tape(a.g, G.BindDualValues(a.generator...))
	defer makes.Close()
	// The discriminator learns to distinguish generated from real samples: one batch of both, with labels.
	var b net
	b.g = G.NewGraph()
	b.in = input(b.g, G.Float64, "x", 2*batch, size)
	real := input(b.g, G.Float64, "real", 2*batch, 1)
	says := judge(&b, b.in)
	one := G.NewConstant(1.0)
	right := G.Must(G.Add(G.Must(G.HadamardProd(real, G.Must(G.Log(says)))),
		G.Must(G.HadamardProd(G.Must(G.Sub(one, real)), G.Must(G.Log(G.Must(G.Sub(one, says))))))))
	b.out = G.Must(G.Neg(G.Must(G.Mean(right))))
	must(G.Grad(b.out, b.critic...))
	judges := s.tape(b.g, G.BindDualValues(b.critic...))
	defer judges.Close()

	labels := tensor.New(tensor.Of(G.Float64), tensor.WithShape(2*batch, 1))
	for i := range batch {
		labels.Float64s()[i] = 1
	}
	solveG, solveD := G.NewAdamSolver(G.WithLearnRate(0.002)), G.NewAdamSolver(G.WithLearnRate(0.002))
	for range 60 {
		must1(G.Let(a.in, s.normal(G.Float64, 1, batch, noise)))
		must1(makes.RunAll())
		s.see("generator's cost", a.out.Value())
		// The generated samples are an inner value of the graph: GAN programs read them from the node.
		fake := made.Value().Data().([]float64)
		must1(solveG.Step(G.NodesToValueGrads(a.generator)))

		x := s.normal(G.Float64, 0.3, 2*batch, size)
		copy(x.Float64s()[batch*size:], fake)
		makes.Reset()
		must1(G.Let(b.in, x))
		must1(G.Let(real, labels))
		must1(judges.RunAll())
		s.see("discriminator's cost", b.out.Value())
		must1(solveD.Step(G.NodesToValueGrads(b.critic)))
		judges.Reset()
	}
	s.see("g2", g2)
	s.see("d1", d1)
}

func adversary(s *session) {
	const pixels, k = 64, 5
	g := G.NewGraph()
	x := G.NewMatrix(g, G.Float64, G.WithShape(1, pixels), G.WithName("x"), G.WithValue(s.normal(G.Float64, 1, 1, pixels)))
	y := G.NewMatrix(g, G.Float64, G.WithShape(1, k), G.WithName("y"), G.WithValue(oneHot(G.Float64, k, 3)))
	w1, w2 := s.weight(g, G.Float64, "w1", pixels, 32), s.weight(g, G.Float64, "w2", 32, k)
	logits := G.Must(G.Mul(G.Must(G.Tanh(G.Must(G.Mul(x, w1)))), w2))
	cost := G.Must(G.Neg(G.Must(G.Sum(G.Must(G.HadamardProd(y, G.Must(G.Log(G.Must(G.SoftMax(logits))))))))))
	must(G.Grad(cost, x))

	vm := s.tape(g, G.BindDualValues(x))
	defer vm.Close()
	for range 50 {
		must1(vm.RunAll())
		s.see("cost", cost.Value())
		slope := must(x.Grad()).Data().([]float64)
		picture := x.Value().Data().([]float64)
		for i, d := range slope {
			picture[i] += 0.05 * d
			slope[i] = 0
		}
		vm.Reset()
	}
	s.seeAll(G.Nodes{x})
}

func siamese(s *session) {
	const pairs, size, code = 24, 30, 6
	g := G.NewGraph()
	left, right := input(g, G.Float64, "left", pairs, size), input(g, G.Float64, "right", pairs, size)
	alike := input(g, G.Float64, "alike", pairs)
	w1, w2 := s.weight(g, G.Float64, "w1", size, 20), s.weight(g, G.Float64, "w2", 20, code)
	embed := func(x *G.Node) *G.Node {
		return G.Must(G.Mul(G.Must(G.Tanh(G.Must(G.Mul(x, w1)))), w2))
	}
	apart := G.Must(G.Sum(G.Must(G.Square(G.Must(G.Sub(embed(left), embed(right))))), 1))
	one := G.NewConstant(1.0)
	margin := G.Must(G.Rectify(G.Must(G.Sub(one, G.Must(G.Sqrt(apart))))))
	cost := G.Must(G.Mean(G.Must(G.Add(G.Must(G.HadamardProd(alike, apart)),
		G.Must(G.HadamardProd(G.Must(G.Sub(one, alike)), G.Must(G.Square(margin))))))))
	must(G.Grad(cost, w1, w2))

	s.train(80, G.NewRMSPropSolver(G.WithLearnRate(0.005)), G.Nodes{w1, w2}, cost.Value, func() {
		a, b := s.normal(G.Float64, 1, pairs, size), s.normal(G.Float64, 1, pairs, size)
		same := tensor.New(tensor.Of(G.Float64), tensor.WithShape(pairs))
		for i := range pairs / 2 {
			same.Float64s()[i] = 1
			for j := range size {
				b.Float64s()[i*size+j] = a.Float64s()[i*size+j] + 0.1*s.NormFloat64()
			}
		}
		must1(G.Let(left, a))
		must1(G.Let(right, b))
		must1(G.Let(alike, same))
	})
	s.seeAll(G.Nodes{w1, w2})
}
