package optim

import (
	"fmt"

	"fusec/graph"
)

// Rule is the update of one parameter as nodes of a graph. Those of this package are SGD, Momentum, Adam and AdamW.
type Rule interface {
	// Moments names the states that the rule has for each parameter. They have the parameter's type and start at zero.
	Moments() []string
	// Step appends the new value of parameter w, given its gradient g of the same type, and the new values of its
	// moments.
	Step(b *graph.Builder, now Now, w, g *graph.Node, moments []*graph.Node) (w1 *graph.Node, moments1 []*graph.Node)
	// Check reports a setting that makes no sense.
	Check() error
}

// Now has the values of one step.
type Now struct {
	Rate  *graph.Node // the learning rate of the parameter's group, an F64 scalar; 0 in a run that makes no step
	Count *graph.Node // the number of the step, from 1, an F64 scalar
	Decay bool        // apply weight decay
}

// SGD is plain stochastic gradient descent: w ← w − rate·g.
type SGD struct {
	Decay float64 // L2 regularisation: Decay·w is added to the gradient
}

// Momentum is gradient descent with a velocity: v ← Mu·v + g, w ← w − rate·v. With Nesterov the step looks ahead:
// w ← w − rate·(g + Mu·v) (I. Sutskever et al., "On the importance of initialization and momentum in deep learning",
// ICML 2013, in the form in which v does not contain the rate).
type Momentum struct {
	Mu       float64 // 0 counts as 0.9
	Nesterov bool
	Decay    float64 // L2 regularisation: Decay·w is added to the gradient
}

// Adam adapts the step of each element to its gradients' mean m and mean square v, both corrected for their start at
// zero: w ← w − rate·m̂ ÷ (√v̂ + Eps) (D. Kingma and J. Ba, "Adam", arXiv 1412.6980).
type Adam struct {
	Beta1, Beta2 float64 // 0 counts as 0.9 and 0.999
	Eps          float64 // 0 counts as 1e-8
	Decay        float64 // L2 regularisation: Decay·w is added to the gradient, and so adapted too; see AdamW
}

// AdamW is Adam with weight decay apart from the gradient: w ← w − rate·(m̂ ÷ (√v̂ + Eps) + Decay·w) (I. Loshchilov and
// F. Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, algorithm 2 with the rate as schedule of both).
type AdamW struct {
	Beta1, Beta2 float64 // 0 counts as 0.9 and 0.999
	Eps          float64 // 0 counts as 1e-8
	Decay        float64 // 0 counts as 0.01; a group with NoDecay has none
}

// Moments implements Rule.
func (SGD) Moments() []string { return nil }

// Moments implements Rule.
func (Momentum) Moments() []string { return []string{"velocity"} }

// Moments implements Rule.
func (Adam) Moments() []string { return []string{"mean", "square"} }

// Moments implements Rule.
func (AdamW) Moments() []string { return Adam{}.Moments() }

// Check implements Rule.
func (r SGD) Check() error { return within("weight decay", r.Decay, 0, -1) }

// Check implements Rule.
func (r Momentum) Check() error {
	if err := within("momentum", r.Mu, 0, 1); err != nil {
		return err
	}
	return within("weight decay", r.Decay, 0, -1)
}

// Check implements Rule.
func (r Adam) Check() error {
	for _, b := range []float64{r.Beta1, r.Beta2} {
		if err := within("decay of moments", b, 0, 1); err != nil {
			return err
		}
	}
	if err := within("epsilon", r.Eps, 0, -1); err != nil {
		return err
	}
	return within("weight decay", r.Decay, 0, -1)
}

// Check implements Rule.
func (r AdamW) Check() error { return Adam(r).Check() }

// within reports a value outside [lo,hi), or below lo if hi is not above it.
func within(what string, v, lo, hi float64) error {
	switch {
	case hi > lo && !(v >= lo && v < hi):
		return fmt.Errorf("the optimiser's %s is %v, which is not in [%v,%v)", what, v, lo, hi)
	case !(v >= lo) || v > 1e300:
		return fmt.Errorf("the optimiser's %s is %v", what, v)
	}
	return nil
}

// or is v, or the default where v is 0.
func or(v, otherwise float64) float64 {
	if v == 0 {
		return otherwise
	}
	return v
}

// Step implements Rule.
func (r SGD) Step(b *graph.Builder, now Now, w, g *graph.Node, _ []*graph.Node) (*graph.Node, []*graph.Node) {
	return descend(b, now.Rate, w, regularised(b, now, r.Decay, w, g)), nil
}

// Step implements Rule.
func (r Momentum) Step(b *graph.Builder, now Now, w, g *graph.Node, moments []*graph.Node) (*graph.Node,
	[]*graph.Node) {
	mu := or(r.Mu, 0.9)
	g = regularised(b, now, r.Decay, w, g)
	v := b.Binary(graph.Add, b.BinaryScalar(graph.Mul, moments[0], mu), g)
	by := v
	if r.Nesterov {
		by = b.Binary(graph.Add, g, b.BinaryScalar(graph.Mul, v, mu))
	}
	return descend(b, now.Rate, w, by), []*graph.Node{v}
}

// Step implements Rule.
func (r Adam) Step(b *graph.Builder, now Now, w, g *graph.Node, moments []*graph.Node) (*graph.Node, []*graph.Node) {
	g = regularised(b, now, r.Decay, w, g)
	rate, by, moments := r.adapted(b, now, g, moments)
	return descend(b, rate, w, by), moments
}

// Step implements Rule.
func (r AdamW) Step(b *graph.Builder, now Now, w, g *graph.Node, moments []*graph.Node) (*graph.Node, []*graph.Node) {
	from := w
	if now.Decay {
		keep := b.Binary(graph.Sub, b.Scalar(graph.F64, 1), b.BinaryScalar(graph.Mul, now.Rate, or(r.Decay, 0.01)))
		from = b.Binary(graph.Mul, w, as(b, keep, w))
	}
	rate, by, moments := Adam(r).adapted(b, now, g, moments)
	return descend(b, rate, from, by), moments
}

// adapted returns the corrected rate and Adam's direction: rate ÷ (1 − Beta1ᵗ) and m ÷ (√(v ÷ (1 − Beta2ᵗ)) + Eps).
func (r Adam) adapted(b *graph.Builder, now Now, g *graph.Node, moments []*graph.Node) (rate, by *graph.Node,
	moments1 []*graph.Node) {
	beta1, beta2 := or(r.Beta1, 0.9), or(r.Beta2, 0.999)
	one := b.Scalar(graph.F64, 1)
	correction := func(beta float64) *graph.Node {
		return b.Binary(graph.Sub, one, b.Binary(graph.Pow, b.Scalar(graph.F64, beta), now.Count))
	}
	m := b.Binary(graph.Add, b.BinaryScalar(graph.Mul, moments[0], beta1), b.BinaryScalar(graph.Mul, g, 1-beta1))
	v := b.Binary(graph.Add, b.BinaryScalar(graph.Mul, moments[1], beta2), b.BinaryScalar(graph.Mul,
		b.Unary(graph.Square, g), 1-beta2))
	size := b.Unary(graph.Sqrt, b.Binary(graph.Mul, v, as(b, b.Unary(graph.Recip, correction(beta2)), v)))
	by = b.Binary(graph.Div, m, b.BinaryScalar(graph.Add, size, or(r.Eps, 1e-8)))
	return b.Binary(graph.Div, now.Rate, correction(beta1)), by, []*graph.Node{m, v}
}

// descend is w − rate·by.
func descend(b *graph.Builder, rate, w, by *graph.Node) *graph.Node {
	return b.Binary(graph.Sub, w, b.Binary(graph.Mul, by, as(b, rate, w)))
}

// regularised is g with the gradient of decay·w² ÷ 2 added.
func regularised(b *graph.Builder, now Now, decay float64, w, g *graph.Node) *graph.Node {
	if decay == 0 || !now.Decay {
		return g
	}
	return b.Binary(graph.Add, g, b.BinaryScalar(graph.Mul, w, decay))
}

// as is an F64 scalar in the element type of like.
func as(b *graph.Builder, x, like *graph.Node) *graph.Node {
	if like.Type.DType == x.Type.DType {
		return x
	}
	return b.Add(graph.Cast{To: like.Type.DType}, x)
}
