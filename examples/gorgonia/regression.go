package main

import (
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

func linearRegression(s *session) {
	const points = 100
	x, y := make([]float64, points), make([]float64, points)
	for i := range x {
		x[i] = float64(i) / points
		y[i] = 2*x[i] + 1 + 0.1*s.NormFloat64()
	}
	g := G.NewGraph()
	xs := G.NewVector(g, G.Float64, G.WithShape(points), G.WithName("x"),
		G.WithValue(tensor.New(tensor.WithShape(points), tensor.WithBacking(x))))
	ys := G.NewVector(g, G.Float64, G.WithShape(points), G.WithName("y"),
		G.WithValue(tensor.New(tensor.WithShape(points), tensor.WithBacking(y))))
	m := G.NewScalar(g, G.Float64, G.WithName("m"), G.WithValue(s.Float64()))
	c := G.NewScalar(g, G.Float64, G.WithName("c"), G.WithValue(s.Float64()))
	line := G.Must(G.Add(G.Must(G.Mul(xs, m)), c))
	cost := G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(line, ys))))))
	must(G.Grad(cost, m, c))

	s.train(400, G.NewMomentum(G.WithLearnRate(0.05), G.WithMomentum(0.5)), G.Nodes{m, c}, cost.Value, func() {})
	s.seeAll(G.Nodes{m, c})
}

func logisticRegression(s *session) {
	const rows, columns = 400, 28
	data := s.normal(G.Float64, 1, rows, columns)
	labels := tensor.New(tensor.Of(G.Float64), tensor.WithShape(rows))
	for i := range rows {
		if x := data.Float64s()[i*columns:]; x[0]-2*x[1]+x[2]*x[3] > 0 {
			labels.Float64s()[i] = 1
		}
	}
	g := G.NewGraph()
	x := G.NewMatrix(g, G.Float64, G.WithShape(rows, columns), G.WithName("x"), G.WithValue(data))
	y := G.NewVector(g, G.Float64, G.WithShape(rows), G.WithName("y"), G.WithValue(labels))
	w := G.NewVector(g, G.Float64, G.WithShape(columns), G.WithName("w"), G.WithValue(s.normal(G.Float64, 0.1, columns)))
	b := G.NewScalar(g, G.Float64, G.WithName("b"), G.WithValue(0.0))
	one := G.NewConstant(1.0)

	p := G.Must(G.Sigmoid(G.Must(G.Add(G.Must(G.Mul(x, w)), b))))
	hit := G.Must(G.HadamardProd(y, G.Must(G.Log(p))))
	miss := G.Must(G.HadamardProd(G.Must(G.Sub(one, y)), G.Must(G.Log(G.Must(G.Sub(one, p))))))
	loss := G.Must(G.Neg(G.Must(G.Mean(G.Must(G.Add(hit, miss))))))
	penalty := G.Must(G.Mul(G.NewConstant(0.01), G.Must(G.Sum(G.Must(G.Square(w))))))
	cost := G.Must(G.Add(loss, penalty))
	var costValue, pValue G.Value
	G.Read(cost, &costValue)
	G.Read(p, &pValue)
	must(G.Grad(cost, w, b))

	s.train(300, G.NewVanillaSolver(G.WithLearnRate(0.2)), G.Nodes{w, b}, held(&costValue), func() {})
	s.see("p", pValue)
	s.seeAll(G.Nodes{w, b})
}

func matrixFactors(s *session) {
	const users, items, rank = 60, 45, 8
	rating := s.uniform(G.Float64, 0, 5, users, items)
	known := s.fill(G.Float64, []int{users, items}, func() float64 { return math.Floor(s.Float64() + 0.3) })
	g := G.NewGraph()
	r := input(g, G.Float64, "ratings", users, items)
	mask := input(g, G.Float64, "known", users, items)
	u, v := s.weight(g, G.Float64, "users", users, rank), s.weight(g, G.Float64, "items", items, rank)
	bu := G.NewVector(g, G.Float64, G.WithShape(users), G.WithName("bias of users"), G.WithInit(G.Zeroes()))
	guess := G.Must(G.BroadcastAdd(G.Must(G.Mul(u, G.Must(G.Transpose(v, 1, 0)))), bu, nil, []byte{1}))
	off := G.Must(G.HadamardProd(mask, G.Must(G.Sub(r, guess))))
	cost := G.Must(G.Sum(G.Must(G.Square(off))))
	weights := G.Nodes{u, v, bu}
	must(G.Grad(cost, weights...))
	must1(G.Let(r, rating))
	must1(G.Let(mask, known))

	s.train(200, G.NewRMSPropSolver(G.WithLearnRate(0.01)), weights, cost.Value, func() {})
	s.seeAll(weights)
}

// images draws pictures of k classes: the stripes of each class have a different slope.
func images(s *session, dt tensor.Dtype, channels, side, k int, classes []int) *tensor.Dense {
	n := 0
	return s.fill(dt, []int{len(classes), channels, side, side}, func() float64 {
		c := classes[n/(channels*side*side)]
		row, column := n/side%side, n%side
		n++
		return math.Sin(float64(row*(c%3)+column*(c/3+1))*0.7) + 0.3*s.NormFloat64()
	})
}

func (s *session) classes(n, k int) []int {
	c := make([]int, n)
	for i := range c {
		c[i] = s.IntN(k)
	}
	return c
}

func digits(s *session) {
	const batch, side, hidden, k = 64, 28, 128, 10
	g := G.NewGraph()
	x := input(g, G.Float32, "x", batch, side*side)
	y := input(g, G.Float32, "y", batch, k)
	var weights G.Nodes
	layer := func(name string, x *G.Node, in, out int) *G.Node {
		w := s.weight(g, G.Float32, name+".w", in, out)
		b := G.NewMatrix(g, G.Float32, G.WithShape(1, out), G.WithName(name+".b"), G.WithInit(G.Zeroes()))
		weights = append(weights, w, b)
		return G.Must(G.BroadcastAdd(G.Must(G.Mul(x, w)), b, nil, []byte{0}))
	}
	h := G.Must(G.Rectify(layer("first", x, side*side, hidden)))
	h = G.Must(G.Rectify(layer("second", h, hidden, hidden)))
	p := G.Must(G.SoftMax(layer("third", h, hidden, k)))
	cost := G.Must(G.Neg(G.Must(G.Mean(G.Must(G.HadamardProd(G.Must(G.Log(p)), y))))))
	var costValue G.Value
	G.Read(cost, &costValue)
	must(G.Grad(cost, weights...))

	s.train(40, G.NewAdamSolver(G.WithLearnRate(0.001), G.WithBatchSize(batch)), weights, held(&costValue), func() {
		classes := s.classes(batch, k)
		pictures := images(s, G.Float32, 1, side, k, classes)
		must1(pictures.Reshape(batch, side*side))
		must1(G.Let(x, pictures))
		must1(G.Let(y, oneHot(G.Float32, k, classes...)))
	})
}
