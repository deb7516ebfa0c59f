package main

import (
	"fmt"
	"hash"
	"hash/fnv"
	"sync"

	"github.com/chewxy/hm"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// batchNorm trains with one machine and evaluates with another, on the same graph, as usual with running statistics.
func batchNorm(s *session) {
	const batch, channels, side = 8, 4, 6
	g := G.NewGraph()
	x, y := input(g, G.Float64, "x", batch, channels, side, side), input(g, G.Float64, "y", batch, channels, side, side)
	var weights G.Nodes
	h := normed(x, &weights)
	w := s.filter(g, G.Float64, "w", channels, channels, 3, 3)
	weights = append(weights, w)
	out := normed(conv(G.Must(G.Tanh(h)), w, 1), &weights)
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(out, y))))))
	var costValue, outValue G.Value
	G.Read(cost, &costValue)
	G.Read(out, &outValue)
	must(G.Grad(cost, weights...))
	s.train(12, G.NewVanillaSolver(G.WithLearnRate(0.05)), weights, held(&costValue), func() {
		must1(G.Let(x, s.normal(G.Float64, 2, batch, channels, side, side)))
		must1(G.Let(y, s.normal(G.Float64, 1, batch, channels, side, side)))
	})
	evaluates := s.tape(g, G.EvalMode())
	defer evaluates.Close()
	for range 3 {
		must1(G.Let(x, s.normal(G.Float64, 2, batch, channels, side, side)))
		must1(evaluates.RunAll())
		s.see("evaluated", outValue)
		evaluates.Reset()
	}
}

// compileFunction predicts without labels: the machine gets only the part of the program that the prediction needs.
func compileFunction(s *session) {
	const batch, in, out = 16, 20, 4
	g := G.NewGraph()
	x, y := input(g, G.Float64, "x", batch, in), input(g, G.Float64, "y", batch, out)
	w := s.weight(g, G.Float64, "w", in, out)
	guess := G.Must(G.Tanh(G.Must(G.Mul(x, w))))
	var guessValue, costValue G.Value
	read := G.Read(guess, &guessValue)
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(guess, y))))))
	G.Read(cost, &costValue)
	must(G.Grad(cost, w))

	compiled, locations, err := G.CompileFunction(g, G.Nodes{x, w}, G.Nodes{read})
	must1(err)
	predicts := s.tape(g, G.WithPrecompiled(compiled, locations))
	defer predicts.Close()
	must1(G.Let(x, s.normal(G.Float64, 1, batch, in)))
	must1(predicts.RunAll())
	s.see("before training", guessValue)
	predicts.Reset()

	s.train(30, G.NewVanillaSolver(G.WithLearnRate(0.1)), G.Nodes{w}, held(&costValue), func() {
		must1(G.Let(x, s.normal(G.Float64, 1, batch, in)))
		must1(G.Let(y, s.normal(G.Float64, 0.5, batch, out)))
	})
	must1(predicts.RunAll())
	s.see("after training", guessValue)
}

func subgraph(s *session) {
	const batch, in, hidden, out = 8, 10, 12, 3
	g := G.NewGraph()
	x, y := input(g, G.Float64, "x", batch, in), input(g, G.Float64, "y", batch, out)
	w1, w2 := s.weight(g, G.Float64, "w1", in, hidden), s.weight(g, G.Float64, "w2", hidden, out)
	h := G.Must(G.Tanh(G.Must(G.Mul(x, w1))))
	guess := G.Must(G.Mul(h, w2))
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(guess, y))))))
	must(G.Grad(cost, w1, w2))
	learns := s.tape(g, G.BindDualValues(w1, w2))
	defer learns.Close()
	predicts := s.tape(g.SubgraphRoots(guess))
	defer predicts.Close()
	looks := s.tape(g.SubgraphRoots(h))
	defer looks.Close()
	solver := G.NewVanillaSolver(G.WithLearnRate(0.1))
	for range 30 {
		must1(G.Let(x, s.normal(G.Float64, 1, batch, in)))
		must1(G.Let(y, s.normal(G.Float64, 1, batch, out)))
		must1(learns.RunAll())
		s.see("cost", cost.Value())
		must1(solver.Step(G.NodesToValueGrads(G.Nodes{w1, w2})))
		learns.Reset()
		must1(predicts.RunAll())
		s.see("guess", guess.Value())
		predicts.Reset()
		must1(looks.RunAll())
		s.see("hidden", h.Value())
		looks.Reset()
	}
}

// swish is x·sigmoid(βx) with its own derivative, as an operation that Gorgonia does not know.
type swish struct{ beta float64 }

func (swish) Arity() int { return 1 }
func (swish) Type() hm.Type {
	t := G.TensorType{Dims: 2, Of: hm.TypeVariable('a')}
	return hm.NewFnType(t, t)
}
func (swish) InferShape(in ...G.DimSizer) (tensor.Shape, error) {
	return in[0].(tensor.Shape).Clone(), nil
}
func (o swish) Do(in ...G.Value) (G.Value, error) {
	out := in[0].(*tensor.Dense).Clone().(*tensor.Dense)
	bx, err := tensor.Mul(out, -o.beta)
	if err != nil {
		return nil, err
	}
	e, err := tensor.Exp(bx)
	if err != nil {
		return nil, err
	}
	below, err := tensor.Add(e, 1.0)
	if err != nil {
		return nil, err
	}
	return tensor.Div(out, below)
}
func (swish) ReturnsPtr() bool          { return false }
func (swish) CallsExtern() bool         { return false }
func (swish) OverwritesInput() int      { return -1 }
func (o swish) WriteHash(h hash.Hash)   { fmt.Fprintf(h, "swish %v", o.beta) }
func (o swish) String() string          { return fmt.Sprintf("swish(%v)", o.beta) }
func (swish) DiffWRT(inputs int) []bool { return []bool{true} }
func (o swish) Hashcode() uint32 {
	h := fnv.New32a()
	o.WriteHash(h)
	return h.Sum32()
}
func (o swish) SymDiff(in G.Nodes, out, grad *G.Node) (G.Nodes, error) {
	// β·y + sigmoid(βx)·(1 − β·y)
	beta, one := G.NewConstant(o.beta), G.NewConstant(1.0)
	by := G.Must(G.Mul(out, beta))
	sig := G.Must(G.Sigmoid(G.Must(G.Mul(in[0], beta))))
	d := G.Must(G.Add(by, G.Must(G.HadamardProd(sig, G.Must(G.Sub(one, by))))))
	return G.Nodes{G.Must(G.HadamardProd(d, grad))}, nil
}

func userOp(s *session) {
	const batch, in, out = 16, 12, 5
	g := G.NewGraph()
	x, y := input(g, G.Float64, "x", batch, in), input(g, G.Float64, "y", batch, out)
	w1, w2 := s.weight(g, G.Float64, "w1", in, 24), s.weight(g, G.Float64, "w2", 24, out)
	h := must(G.ApplyOp(swish{1.5}, G.Must(G.Mul(x, w1))))
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(G.Must(G.Mul(h, w2)), y))))))
	must(G.Grad(cost, w1, w2))
	s.train(40, G.NewAdamSolver(G.WithLearnRate(0.01)), G.Nodes{w1, w2}, cost.Value, func() {
		must1(G.Let(x, s.normal(G.Float64, 1, batch, in)))
		must1(G.Let(y, s.normal(G.Float64, 1, batch, out)))
	})
	s.seeAll(G.Nodes{w1, w2})
}

// sharedWeights trains on batches of 32 and predicts one row at a time, with the same tensors in both graphs.
func sharedWeights(s *session) {
	const in, out = 14, 3
	w, b := s.normal(G.Float64, 0.2, in, out), s.normal(G.Float64, 0.2, 1, out)
	type net struct {
		x, guess, w, b *G.Node
	}
	build := func(batch int) net {
		g := G.NewGraph()
		n := net{x: input(g, G.Float64, "x", batch, in),
			w: G.NewMatrix(g, G.Float64, G.WithShape(in, out), G.WithName("w"), G.WithValue(w)),
			b: G.NewMatrix(g, G.Float64, G.WithShape(1, out), G.WithName("b"), G.WithValue(b))}
		n.guess = G.Must(G.Mul(n.x, n.w))
		if batch > 1 {
			n.guess = G.Must(G.BroadcastAdd(n.guess, n.b, nil, []byte{0}))
		} else {
			n.guess = G.Must(G.Add(n.guess, n.b))
		}
		n.guess = G.Must(G.Sigmoid(n.guess))
		return n
	}
	train, one := build(32), build(1)
	y := input(train.x.Graph(), G.Float64, "y", 32, out)
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(train.guess, y))))))
	must(G.Grad(cost, train.w, train.b))
	learns := s.tape(train.x.Graph(), G.BindDualValues(train.w, train.b))
	defer learns.Close()
	predicts := s.tape(one.x.Graph())
	defer predicts.Close()
	solver := G.NewMomentum(G.WithLearnRate(0.2))
	for range 60 {
		must1(G.Let(train.x, s.normal(G.Float64, 1, 32, in)))
		must1(G.Let(y, s.uniform(G.Float64, 0, 1, 32, out)))
		must1(learns.RunAll())
		s.see("cost", cost.Value())
		must1(solver.Step(G.NodesToValueGrads(G.Nodes{train.w, train.b})))
		learns.Reset()
		must1(G.Let(one.x, s.normal(G.Float64, 1, 1, in)))
		must1(predicts.RunAll())
		s.see("guess", one.guess.Value())
		predicts.Reset()
	}
}

// goroutines has a machine in each of four goroutines, with separate weights. After each step the gradients are
// averaged, and all weights get the same update.
func goroutines(s *session) {
	const workers, batch, in, out = 4, 16, 30, 6
	type worker struct {
		x, y, w, cost *G.Node
		vm            G.VM
	}
	first := s.normal(G.Float64, 0.2, in, out)
	ws := make([]worker, workers)
	for i := range ws { // graphs are built one after the other: Gorgonia's constants are shared without a lock
		g := G.NewGraph()
		k := worker{x: input(g, G.Float64, "x", batch, in), y: input(g, G.Float64, "y", batch, out)}
		k.w = G.NewMatrix(g, G.Float64, G.WithShape(in, out), G.WithName("w"), G.WithValue(first.Clone().(*tensor.Dense)))
		k.cost = G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(G.Must(G.Tanh(G.Must(G.Mul(k.x, k.w)))), k.y))))))
		must(G.Grad(k.cost, k.w))
		k.vm = s.tape(g, G.BindDualValues(k.w))
		defer k.vm.Close()
		ws[i] = k
	}
	for range 30 {
		for _, k := range ws {
			must1(G.Let(k.x, s.normal(G.Float64, 1, batch, in)))
			must1(G.Let(k.y, s.normal(G.Float64, 0.5, batch, out)))
		}
		errs := make([]error, workers)
		var all sync.WaitGroup
		for i := range ws {
			all.Go(func() { errs[i] = ws[i].vm.RunAll() })
		}
		all.Wait()
		mean := make([]float64, in*out)
		for i, k := range ws {
			must1(errs[i])
			s.see("cost", k.cost.Value())
			slope := must(k.w.Grad()).Data().([]float64)
			for j := range mean {
				mean[j] += slope[j] / workers
				slope[j] = 0
			}
			k.vm.Reset()
		}
		for _, k := range ws {
			for j, w := 0, k.w.Value().Data().([]float64); j < len(w); j++ {
				w[j] -= 0.3 * mean[j]
			}
		}
	}
	s.seeAll(G.Nodes{ws[0].w})
}

// innerValues reads inner values of the graph after each run, in the usual ways.
func innerValues(s *session) {
	const batch, in, hidden, k = 6, 9, 11, 4
	g := G.NewGraph()
	x, y := input(g, G.Float64, "x", batch, in), input(g, G.Float64, "y", batch, k)
	w1, w2 := s.weight(g, G.Float64, "w1", in, hidden), s.weight(g, G.Float64, "w2", hidden, k)
	z := G.Must(G.Mul(x, w1))
	h := G.Must(G.Tanh(z))
	p := G.Must(G.SoftMax(G.Must(G.Mul(h, w2))))
	losses := G.Must(G.Sum(G.Must(G.HadamardProd(G.Must(G.Log(p)), y)), 1))
	cost := G.Must(G.Neg(G.Must(G.Mean(losses))))
	must(G.Grad(cost, w1, w2))
	vm := s.tape(g, G.BindDualValues(w1, w2))
	defer vm.Close()
	solver := G.NewVanillaSolver(G.WithLearnRate(0.2))
	for range 20 {
		must1(G.Let(x, s.normal(G.Float64, 1, batch, in)))
		must1(G.Let(y, oneHot(G.Float64, k, s.classes(batch, k)...)))
		must1(vm.RunAll())
		s.see("z", z.Value())
		s.see("h", h.Value().Data())
		s.see("rows", h.Value().Shape()[0])
		s.see("p", p.Value())
		s.see("losses", losses.Value())
		s.see("cost", cost.Value())
		must1(solver.Step(G.NodesToValueGrads(G.Nodes{w1, w2})))
		vm.Reset()
	}
}

// lispMachine never calls Grad: the machine differentiates the forward graph while it runs. Each step makes a new
// machine, because Gorgonia's LispMachine returns the first run's values again after Reset.
func lispMachine(s *session) {
	const batch, in, out = 12, 8, 3
	g := G.NewGraph()
	x, y := input(g, G.Float64, "x", batch, in), input(g, G.Float64, "y", batch, out)
	w1, w2 := s.weight(g, G.Float64, "w1", in, 10), s.weight(g, G.Float64, "w2", 10, out)
	guess := G.Must(G.Mul(G.Must(G.Tanh(G.Must(G.Mul(x, w1)))), w2))
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(guess, y))))))
	must1(G.Let(x, s.normal(G.Float64, 1, batch, in)))
	must1(G.Let(y, s.normal(G.Float64, 1, batch, out)))
	solver := G.NewVanillaSolver(G.WithLearnRate(0.1))
	for range 30 {
		vm := s.lisp(g)
		must1(vm.RunAll())
		s.see("cost", cost.Value())
		must1(solver.Step(G.NodesToValueGrads(G.Nodes{w1, w2})))
		must1(vm.Close())
	}
	s.seeAll(G.Nodes{w1, w2})
}
