package main

import (
	"fmt"
	"math"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// gate is f(x·wx + h·wh + b).
func gate(f func(*G.Node) (*G.Node, error), x, h, wx, wh, b *G.Node) *G.Node {
	z := G.Must(G.Add(G.Must(G.Mul(x, wx)), G.Must(G.Mul(h, wh))))
	return G.Must(f(G.Must(G.BroadcastAdd(z, b, nil, []byte{0}))))
}

// gates are the weights of a recurrent cell's gates.
type gates struct{ wx, wh, b *G.Node }

func (s *session) gates(g *G.ExprGraph, in, size int, names string, weights *G.Nodes) map[rune]gates {
	m := map[rune]gates{}
	for _, name := range names {
		k := gates{s.weight(g, G.Float64, fmt.Sprintf("wx %c", name), in, size),
			s.weight(g, G.Float64, fmt.Sprintf("wh %c", name), size, size),
			G.NewMatrix(g, G.Float64, G.WithShape(1, size), G.WithName(fmt.Sprintf("b %c", name)), G.WithInit(G.Zeroes()))}
		m[name] = k
		*weights = append(*weights, k.wx, k.wh, k.b)
	}
	return m
}

func lstm(s *session) {
	const steps, batch, in, size, out = 12, 8, 10, 24, 5
	g := G.NewGraph()
	var weights G.Nodes
	w := s.gates(g, in, size, "ifou", &weights)
	wo := s.weight(g, G.Float64, "wo", size, out)
	weights = append(weights, wo)
	h := G.NewMatrix(g, G.Float64, G.WithShape(batch, size), G.WithName("h"), G.WithInit(G.Zeroes()))
	c := G.NewMatrix(g, G.Float64, G.WithShape(batch, size), G.WithName("c"), G.WithInit(G.Zeroes()))
	var xs, ys G.Nodes
	var cost *G.Node
	for t := range steps {
		x, y := input(g, G.Float64, fmt.Sprintf("x%d", t), batch, in), input(g, G.Float64, fmt.Sprintf("y%d", t), batch, out)
		xs, ys = append(xs, x), append(ys, y)
		i := gate(G.Sigmoid, x, h, w['i'].wx, w['i'].wh, w['i'].b)
		f := gate(G.Sigmoid, x, h, w['f'].wx, w['f'].wh, w['f'].b)
		o := gate(G.Sigmoid, x, h, w['o'].wx, w['o'].wh, w['o'].b)
		u := gate(G.Tanh, x, h, w['u'].wx, w['u'].wh, w['u'].b)
		c = G.Must(G.Add(G.Must(G.HadamardProd(f, c)), G.Must(G.HadamardProd(i, u))))
		h = G.Must(G.HadamardProd(o, G.Must(G.Tanh(c))))
		off := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(G.Must(G.Mul(h, wo)), y))))))
		if cost == nil {
			cost = off
		} else {
			cost = G.Must(G.Add(cost, off))
		}
	}
	var costValue G.Value
	G.Read(cost, &costValue)
	must(G.Grad(cost, weights...))

	s.train(20, G.NewAdamSolver(G.WithLearnRate(0.005), G.WithClip(5)), weights, held(&costValue), func() {
		for t := range steps {
			must1(G.Let(xs[t], s.normal(G.Float64, 1, batch, in)))
			must1(G.Let(ys[t], s.normal(G.Float64, 0.5, batch, out)))
		}
	})
	s.seeAll(weights)
}

func gru(s *session) {
	const steps, batch, in, size, k = 10, 8, 6, 20, 4
	g := G.NewGraph()
	var weights G.Nodes
	w := s.gates(g, in, size, "zrn", &weights)
	wo := s.weight(g, G.Float64, "wo", size, k)
	weights = append(weights, wo)
	h := G.NewMatrix(g, G.Float64, G.WithShape(batch, size), G.WithName("h"), G.WithInit(G.Zeroes()))
	one := G.NewConstant(1.0)
	// All steps are one input of three axes, which is split by slices.
	all := input(g, G.Float64, "x", steps, batch, in)
	for t := range steps {
		x := G.Must(G.Slice(all, G.S(t)))
		z := gate(G.Sigmoid, x, h, w['z'].wx, w['z'].wh, w['z'].b)
		r := gate(G.Sigmoid, x, h, w['r'].wx, w['r'].wh, w['r'].b)
		n := gate(G.Tanh, x, G.Must(G.HadamardProd(r, h)), w['n'].wx, w['n'].wh, w['n'].b)
		h = G.Must(G.Add(G.Must(G.HadamardProd(G.Must(G.Sub(one, z)), n)), G.Must(G.HadamardProd(z, h))))
	}
	y := input(g, G.Float64, "y", batch, k)
	out := G.Must(G.SoftMax(G.Must(G.Mul(h, wo))))
	cost := G.Must(G.Neg(G.Must(G.Mean(G.Must(G.HadamardProd(y, G.Must(G.Log(out))))))))
	must(G.Grad(cost, weights...))

	s.train(25, G.NewAdamSolver(G.WithLearnRate(0.01)), weights, cost.Value, func() {
		must1(G.Let(all, s.normal(G.Float64, 1, steps, batch, in)))
		must1(G.Let(y, oneHot(G.Float64, k, s.classes(batch, k)...)))
	})
	s.seeAll(weights)
}

const sentences = `the cat sat on the mat
a dog ran over the green field
the bird sang
no one saw the small mouse run
rain fell all night
snow lay on the hills`

// charRNN builds a graph for each sentence, as long as the sentence. The weights are the same tensors in all of them.
func charRNN(s *session) {
	const size = 24
	letters := func(c byte) int {
		if c == ' ' {
			return 26
		}
		return int(c - 'a')
	}
	values := map[string]*tensor.Dense{
		"embed": s.normal(G.Float64, 0.1, 27, size), "wx": s.normal(G.Float64, 0.1, size, size),
		"wh": s.normal(G.Float64, 0.1, size, size), "b": s.normal(G.Float64, 0.1, 1, size), "wo": s.normal(G.Float64, 0.1, size, 27),
	}
	names := []string{"embed", "wx", "wh", "b", "wo"}
	solver := G.NewVanillaSolver(G.WithLearnRate(0.02), G.WithClip(5))
	for range 3 {
		for _, sentence := range strings.Split(sentences, "\n") {
			g := G.NewGraph()
			w := map[string]*G.Node{}
			var weights G.Nodes
			for _, name := range names {
				w[name] = G.NewMatrix(g, G.Float64, G.WithShape(values[name].Shape()...), G.WithName(name), G.WithValue(values[name]))
				weights = append(weights, w[name])
			}
			h := G.NewMatrix(g, G.Float64, G.WithShape(1, size), G.WithName("h"), G.WithInit(G.Zeroes()))
			var cost *G.Node
			for t := range len(sentence) - 1 {
				x := G.NewMatrix(g, G.Float64, G.WithShape(1, 27), G.WithName(fmt.Sprintf("x%d", t)),
					G.WithValue(oneHot(G.Float64, 27, letters(sentence[t]))))
				y := G.NewMatrix(g, G.Float64, G.WithShape(1, 27), G.WithName(fmt.Sprintf("y%d", t)),
					G.WithValue(oneHot(G.Float64, 27, letters(sentence[t+1]))))
				h = gate(G.Tanh, G.Must(G.Mul(x, w["embed"])), h, w["wx"], w["wh"], w["b"])
				p := G.Must(G.SoftMax(G.Must(G.Mul(h, w["wo"]))))
				loss := G.Must(G.Neg(G.Must(G.Sum(G.Must(G.HadamardProd(G.Must(G.Log(p)), y))))))
				if cost == nil {
					cost = loss
				} else {
					cost = G.Must(G.Add(cost, loss))
				}
			}
			must(G.Grad(cost, weights...))
			vm := s.tape(g, G.BindDualValues(weights...))
			must1(vm.RunAll())
			s.see("cost", cost.Value())
			must1(solver.Step(G.NodesToValueGrads(weights)))
			must1(vm.Close())
		}
	}
	for _, name := range names {
		s.see(name, values[name])
	}
}

// statefulRNN reads the last state from an inner node and starts the next run with it.
func statefulRNN(s *session) {
	const steps, batch, in, size = 6, 4, 5, 16
	g := G.NewGraph()
	wx, wh, wo := s.weight(g, G.Float64, "wx", in, size), s.weight(g, G.Float64, "wh", size, size),
		s.weight(g, G.Float64, "wo", size, in)
	first := input(g, G.Float64, "first", batch, size)
	h := first
	var xs, outs G.Nodes
	for t := range steps {
		x := input(g, G.Float64, fmt.Sprintf("x%d", t), batch, in)
		xs = append(xs, x)
		h = G.Must(G.Tanh(G.Must(G.Add(G.Must(G.Mul(x, wx)), G.Must(G.Mul(h, wh))))))
		outs = append(outs, G.Must(G.Mul(h, wo)))
	}
	last := h
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Concat(1, outs...))))))
	weights := G.Nodes{wx, wh, wo}
	must(G.Grad(cost, weights...))
	vm := s.tape(g, G.BindDualValues(weights...))
	defer vm.Close()
	solver := G.NewVanillaSolver(G.WithLearnRate(0.1))
	state := tensor.New(tensor.Of(G.Float64), tensor.WithShape(batch, size))
	for run := range 40 {
		for t, x := range xs {
			v := s.normal(G.Float64, 0.1, batch, in)
			v.Float64s()[0] = math.Sin(float64(run*steps + t))
			must1(G.Let(x, v))
		}
		must1(G.Let(first, state))
		must1(vm.RunAll())
		s.see("cost", cost.Value())
		copy(state.Float64s(), last.Value().Data().([]float64))
		must1(solver.Step(G.NodesToValueGrads(weights)))
		vm.Reset()
	}
	s.see("state", state)
}

func embedding(s *session) {
	const vocabulary, size, pairs = 40, 12, 32
	g := G.NewGraph()
	table, context := s.weight(g, G.Float64, "table", vocabulary, size), s.weight(g, G.Float64, "context", size, vocabulary)
	words := G.NewVector(g, tensor.Int, G.WithShape(pairs), G.WithName("words"))
	y := input(g, G.Float64, "y", pairs, vocabulary)
	rows := G.Must(G.ByIndices(table, words, 0))
	p := G.Must(G.SoftMax(G.Must(G.Mul(rows, context))))
	cost := G.Must(G.Neg(G.Must(G.Mean(G.Must(G.HadamardProd(y, G.Must(G.Log(p))))))))
	weights := G.Nodes{table, context}
	must(G.Grad(cost, weights...))
	s.train(60, G.NewAdaGradSolver(), weights, cost.Value, func() {
		from := s.classes(pairs, vocabulary)
		to := make([]int, pairs)
		for i, w := range from {
			to[i] = (w + 1 + s.IntN(2)) % vocabulary
		}
		must1(G.Let(words, tensor.New(tensor.WithShape(pairs), tensor.WithBacking(from))))
		must1(G.Let(y, oneHot(G.Float64, vocabulary, to...)))
	})
	s.seeAll(weights)
}

func attention(s *session) {
	const tokens, size, head = 24, 32, 16
	g := G.NewGraph()
	x, y := input(g, G.Float64, "x", tokens, size), input(g, G.Float64, "y", tokens, size)
	wq, wk, wv := s.weight(g, G.Float64, "wq", size, head), s.weight(g, G.Float64, "wk", size, head),
		s.weight(g, G.Float64, "wv", size, head)
	wo := s.weight(g, G.Float64, "wo", head, size)
	weights := G.Nodes{wq, wk, wv, wo}
	later := tensor.New(tensor.Of(G.Float64), tensor.WithShape(tokens, tokens))
	for i := range tokens {
		for j := i + 1; j < tokens; j++ {
			later.Float64s()[i*tokens+j] = -1e9
		}
	}
	q, k, v := G.Must(G.Mul(x, wq)), G.Must(G.Mul(x, wk)), G.Must(G.Mul(x, wv))
	scores := G.Must(G.Div(G.Must(G.Mul(q, G.Must(G.Transpose(k, 1, 0)))), G.NewConstant(math.Sqrt(head))))
	scores = G.Must(G.Add(scores, G.NewConstant(later, G.WithName("mask"))))
	out := G.Must(G.Add(x, G.Must(G.Mul(G.Must(G.Mul(G.Must(G.SoftMax(scores)), v)), wo))))
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(out, y))))))
	must(G.Grad(cost, weights...))
	s.train(40, G.NewAdamSolver(G.WithLearnRate(0.01)), weights, cost.Value, func() {
		v := s.normal(G.Float64, 1, tokens, size)
		must1(G.Let(x, v))
		next := v.Clone().(*tensor.Dense)
		copy(next.Float64s()[size:], v.Float64s()[:(tokens-1)*size])
		must1(G.Let(y, next))
	})
	s.seeAll(weights)
}
