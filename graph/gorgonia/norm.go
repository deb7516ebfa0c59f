package gorgonia

import (
	"fmt"
	"math"

	"fusec/graph"

	"gorgonia.org/tensor"
)

// vector is a constant of n equal elements.
func (c *call) vector(d graph.DType, n int, v float64) *graph.Node {
	return c.b.Const(graph.Filled(graph.TypeOf(d, n), v))
}

// batchStats are the state nodes of a batch normalisation's running mean and variance, which the operation itself
// owns.
func (c *call) batchStats() (mean, variance *graph.Node, err error) {
	key := c.twin()
	if s, ok := c.shared[key]; ok {
		return s[0], s[1], nil
	}
	var s [2]*graph.Node
	base := c.base("batchnorm")
	for i, stat := range []struct{ field, name string }{{"runningMean", "mean"}, {"runningVariance", "variance"}} {
		d := value[*tensor.Dense](c.f, stat.field)
		if c.f.err != nil {
			return nil, nil, c.f.err
		}
		if d == nil {
			return nil, nil, fmt.Errorf("no %s", stat.field)
		}
		t, err := ToTensor(d)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", stat.field, err)
		}
		s[i] = c.b.State(c.unique(base+"."+stat.name), t.Type)
		c.States = append(c.States, State{
			Value: s[i],
			Load:  func(t *graph.Tensor) error { return Load(t, d) },
			Store: func(t *graph.Tensor) error { return Store(d, t) },
		})
	}
	c.shared[key] = s
	return s[0], s[1], c.b.Err()
}

// mode reads the training flag and sees to it that a later change is noticed.
func (c *call) mode(flag string) bool {
	c.f.bool(flag) // which keeps an error
	f := *c.f      // of this call, which does not last
	return c.staleMode(func() bool { return f.bool(flag) })
}

// staleMode is the training mode that now tells, whose change will be noticed.
func (c *call) staleMode(now func() bool) bool {
	was, n := now(), c.n
	c.stale = append(c.stale, staleness{nil, func() error {
		if now() != was {
			return fmt.Errorf("%s: the training mode was switched", originOf(n).Name)
		}
		return nil
	}})
	return was
}

// batchNorm only normalises: Gorgonia scales and shifts by operations of their own. Its momentum is the weight of the
// batch, not of the past.
func (c *call) batchNorm() (*graph.Node, error) {
	x := c.args[0]
	if x.Type.Shape.Rank() < 2 {
		return nil, fmt.Errorf("batch normalisation of %v", x.Type.Shape)
	}
	mean, variance, err := c.batchStats()
	if err != nil {
		return nil, err
	}
	op := graph.BatchNorm{Eps: c.f.float("epsilon"), Momentum: 1 - c.f.float("momentum"), Train: c.mode("training")}
	n := x.Type.Shape.At(1)
	if op.Train && x.Type.Shape.Elems() == n {
		c.differs(batchOfOne)
	}
	v := c.b.Add(op, x, c.vector(x.Type.DType, n, 1), c.vector(x.Type.DType, n, 0), mean, variance)
	if op.Train {
		c.b.Update(mean, c.b.Add(graph.Result{Index: 1}, v))
		c.b.Update(variance, c.b.Add(graph.Result{Index: 2}, v))
	}
	return v, nil
}

// perChannel spreads a vector over the second axis of s.
func (c *call) perChannel(v *graph.Node, s graph.Shape) *graph.Node {
	dims := make([]int, s.Rank()-1)
	for i := range dims {
		dims[i] = 1
	}
	dims[0] = s.At(1)
	return c.b.Broadcast(c.b.Reshape(v, dims...), s)
}

// batchNormDiff has the operands x and dy.
func (c *call) batchNormDiff() (*graph.Node, error) {
	x, dy := c.args[0], c.args[1]
	s, eps := x.Type.Shape, c.f.float("epsilon")
	if c.mode("training") {
		var axes []int
		for i := range s.Rank() {
			if i != 1 {
				axes = append(axes, i)
			}
		}
		return c.normDiff(x, dy, eps, axes...), nil
	}
	_, variance, err := c.batchStats()
	if err != nil {
		return nil, err
	}
	// Gorgonia clears the variance that its gradient of images reads.
	if s.Elems() > s.At(0)*s.At(1) && c.differs(batchNormGradient) {
		return c.b.BinaryScalar(graph.Mul, dy, 1/math.Sqrt(eps)), nil
	}
	r := c.b.Unary(graph.Rsqrt, c.b.BinaryScalar(graph.Add, variance, eps))
	return c.b.Binary(graph.Mul, dy, c.perChannel(r, s)), nil
}

// normDiff is the gradient of n = (x − mean)/σ along axes: (dy − mean dy − n⊙mean(dy⊙n))/σ.
func (c *call) normDiff(x, dy *graph.Node, eps float64, axes ...int) *graph.Node {
	b, s := c.b, x.Type.Shape
	mean := func(v *graph.Node) *graph.Node { return b.Broadcast(b.Reduce(graph.Mean, v, true, axes...), s) }
	d := b.Binary(graph.Sub, x, mean(x))
	r := b.Unary(graph.Rsqrt, b.BinaryScalar(graph.Add, b.Reduce(graph.Mean, b.Unary(graph.Square, d), true, axes...), eps))
	r = b.Broadcast(r, s)
	n := b.Binary(graph.Mul, d, r)
	dx := b.Binary(graph.Sub, dy, mean(dy))
	dx = b.Binary(graph.Sub, dx, b.Binary(graph.Mul, n, mean(b.Binary(graph.Mul, dy, n))))
	return b.Binary(graph.Mul, dx, r)
}

func (c *call) groupNorm() (*graph.Node, error) {
	x := c.args[0]
	if x.Type.Shape.Rank() < 2 {
		return nil, fmt.Errorf("group normalisation of %v", x.Type.Shape)
	}
	n := x.Type.Shape.At(1)
	op := graph.GroupNorm{Groups: c.f.int("numGroups"), Eps: c.f.float("epsilon")}
	return c.b.Add(op, x, c.vector(x.Type.DType, n, 1), c.vector(x.Type.DType, n, 0)), nil
}

// groupNormDiff has the operands x and dy.
func (c *call) groupNormDiff() (*graph.Node, error) {
	x, groups := c.args[0], c.f.int("numGroups")
	s := x.Type.Shape
	if s.Rank() < 2 || groups < 1 || s.At(1)%groups != 0 || s.Elems() == 0 {
		return nil, fmt.Errorf("group normalisation of %v in %d groups", s, groups)
	}
	rows := s.At(0) * groups
	split := func(v *graph.Node) *graph.Node { return c.b.Reshape(v, rows, s.Elems()/rows) }
	return c.normDiff(split(x), split(c.args[1]), c.f.float("epsilon"), 1), nil
}

// draw is the seed of one random operation: a counter that advances from run to run, plus the operation's number.
func (c *call) draw() *graph.Node {
	if c.seed == nil {
		counter := c.opts.Counter
		if counter == nil {
			counter = new(int64)
		}
		c.seed = c.counter("seed", counter)
	}
	c.draws++
	if c.draws == 1 {
		return c.seed
	}
	return c.b.BinaryScalar(graph.Add, c.seed, float64(c.draws-1))
}

// advanceSeed moves the counter on by the number of random operations.
func (im *importer) advanceSeed() {
	if im.seed != nil {
		b := graph.Extend(im.Graph)
		b.Update(im.seed, b.BinaryScalar(graph.Add, im.seed, float64(im.draws)))
	}
}

func (c *call) dropout() (*graph.Node, error) {
	p, train := c.f.float("probability"), c.mode("isTraining")
	if p == 0 || !train {
		return c.args[0], nil
	}
	c.differs(randomNumbers)
	seed := c.draw()
	c.shared[c.twin()] = [2]*graph.Node{seed}
	return c.b.Add(graph.Dropout{P: p}, c.args[0], seed), nil
}

// dropoutDiff has the operands x, y and dy: the same elements are dropped from dy and the others scaled alike.
func (c *call) dropoutDiff() (*graph.Node, error) {
	p, train := c.f.float("probability"), c.mode("isTraining")
	if c.differs(dropoutGradient) {
		y, dy := c.args[1], c.args[2]
		zero := c.b.Scalar(dy.Type.DType, 0)
		if p == 0 {
			return c.b.Broadcast(zero, dy.Type.Shape), nil
		}
		return c.b.Add(graph.Select{}, c.b.BinaryScalar(graph.Ne, y, 0), c.b.BinaryScalar(graph.Div, dy, p), zero), nil
	}
	if p == 0 || !train {
		return c.args[2], nil
	}
	s, ok := c.shared[c.twin()]
	if !ok {
		return nil, fmt.Errorf("the dropout that this is the derivative of is not in the graph")
	}
	return c.b.Add(graph.Dropout{P: p}, c.args[2], s[0]), nil
}

// distributions are Gorgonia's, in the order of its enumeration.
const (
	uniform = iota
	gaussian
	binomial
)

func (c *call) random() (*graph.Node, error) {
	a, b := c.f.float("a"), c.f.float("b")
	op := graph.Random{A: a, B: b, Type: c.want}
	switch which := c.f.byte("which"); which {
	case uniform:
		op.Dist = graph.Uniform
	case gaussian:
		op.Dist = graph.Normal
	case binomial:
		if int64(a) != 1 {
			return nil, fmt.Errorf("fusec draws from a binomial distribution of one trial only, not %v", a)
		}
		op.Dist, op.A, op.B = graph.Bernoulli, b, 0
	default:
		return nil, fmt.Errorf("unknown distribution %d", which)
	}
	c.differs(randomNumbers)
	return c.b.Add(op, c.draw()), nil
}
