package main

import (
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// dqn learns values of actions. The target network is a separate graph, to which the weights are copied every 20 steps.
func dqn(s *session) {
	const batch, states, actions, hidden = 32, 6, 3, 48
	type net struct {
		x, q    *G.Node
		weights G.Nodes
	}
	build := func(g *G.ExprGraph) net {
		x := input(g, G.Float64, "state", batch, states)
		w1, w2 := s.weight(g, G.Float64, "w1", states, hidden), s.weight(g, G.Float64, "w2", hidden, actions)
		b1 := G.NewMatrix(g, G.Float64, G.WithShape(1, hidden), G.WithName("b1"), G.WithInit(G.Zeroes()))
		h := G.Must(G.Tanh(G.Must(G.BroadcastAdd(G.Must(G.Mul(x, w1)), b1, nil, []byte{0}))))
		return net{x, G.Must(G.Mul(h, w2)), G.Nodes{w1, b1, w2}}
	}
	online := build(G.NewGraph())
	g := online.x.Graph()
	taken, aim := input(g, G.Float64, "taken", batch, actions), input(g, G.Float64, "aim", batch)
	chosen := G.Must(G.Sum(G.Must(G.HadamardProd(online.q, taken)), 1))
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(aim, chosen))))))
	must(G.Grad(cost, online.weights...))
	learner := s.tape(g, G.BindDualValues(online.weights...))
	defer learner.Close()

	target := build(G.NewGraph())
	judge := s.tape(target.x.Graph())
	defer judge.Close()
	follow := func() {
		for i, w := range online.weights {
			must1(tensor.Copy(target.weights[i].Value().(tensor.Tensor), w.Value().(tensor.Tensor)))
		}
	}
	follow()
	solver := G.NewAdamSolver(G.WithLearnRate(0.005))
	for step := range 100 {
		before, after := s.normal(G.Float64, 1, batch, states), s.normal(G.Float64, 1, batch, states)
		action := s.classes(batch, actions)
		must1(G.Let(target.x, after))
		must1(judge.RunAll())
		q := target.q.Value().Data().([]float64)
		aims := make([]float64, batch)
		for i := range aims {
			best := math.Inf(-1)
			for _, v := range q[i*actions : (i+1)*actions] {
				best = max(best, v)
			}
			aims[i] = before.Float64s()[i*states+action[i]] + 0.9*best
		}
		judge.Reset()
		must1(G.Let(online.x, before))
		must1(G.Let(taken, oneHot(G.Float64, actions, action...)))
		must1(G.Let(aim, tensor.New(tensor.WithShape(batch), tensor.WithBacking(aims))))
		must1(learner.RunAll())
		s.see("cost", cost.Value())
		must1(solver.Step(G.NodesToValueGrads(online.weights)))
		learner.Reset()
		if step%20 == 19 {
			follow()
		}
	}
	s.seeAll(online.weights)
}

func reinforce(s *session) {
	const batch, states, actions = 40, 5, 4
	g := G.NewGraph()
	x, taken := input(g, G.Float64, "state", batch, states), input(g, G.Float64, "taken", batch, actions)
	returns := input(g, G.Float64, "returns", batch)
	w1, w2 := s.weight(g, G.Float64, "w1", states, 20), s.weight(g, G.Float64, "w2", 20, actions)
	policy := G.Must(G.SoftMax(G.Must(G.Mul(G.Must(G.Tanh(G.Must(G.Mul(x, w1)))), w2))))
	chosen := G.Must(G.Sum(G.Must(G.HadamardProd(policy, taken)), 1))
	gain := G.Must(G.Mean(G.Must(G.HadamardProd(G.Must(G.Log(chosen)), returns))))
	entropy := G.Must(G.Neg(G.Must(G.Mean(G.Must(G.HadamardProd(policy, G.Must(G.Log(policy))))))))
	cost := G.Must(G.Neg(G.Must(G.Add(gain, G.Must(G.Mul(G.NewConstant(0.01), entropy))))))
	var policyValue G.Value
	G.Read(policy, &policyValue)
	weights := G.Nodes{w1, w2}
	must(G.Grad(cost, weights...))
	// Two machines of one graph: one chooses actions, the other learns.
	zero := func(n *G.Node) { must1(G.Let(n, tensor.New(tensor.Of(G.Float64), tensor.WithShape(n.Shape()...)))) }
	actor := s.tape(g)
	defer actor.Close()
	learner := s.tape(g, G.BindDualValues(weights...))
	defer learner.Close()
	solver := G.NewVanillaSolver(G.WithLearnRate(0.1))
	for range 40 {
		must1(G.Let(x, s.normal(G.Float64, 1, batch, states)))
		zero(taken)
		taken.Value().(*tensor.Dense).Memset(1.0)
		zero(returns)
		must1(actor.RunAll())
		p := append([]float64(nil), policyValue.Data().([]float64)...)
		actor.Reset()
		actions, gains := oneHot(G.Float64, actions, make([]int, batch)...), make([]float64, batch)
		for i := range batch {
			row, u, k := p[i*4:i*4+4], s.Float64(), 0
			for k < 3 && u > row[k] {
				u -= row[k]
				k++
			}
			copy(actions.Float64s()[i*4:], make([]float64, 4))
			actions.Float64s()[i*4+k] = 1
			gains[i] = x.Value().Data().([]float64)[i*states+k]
		}
		must1(G.Let(taken, actions))
		must1(G.Let(returns, tensor.New(tensor.WithShape(batch), tensor.WithBacking(gains))))
		must1(learner.RunAll())
		s.see("cost", cost.Value())
		must1(solver.Step(G.NodesToValueGrads(weights)))
		learner.Reset()
	}
	s.seeAll(weights)
}
