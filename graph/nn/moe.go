package nn

import (
	"fmt"
	"math"

	"fusec/graph"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Experts are feed-forward networks of the same form, with their weights stacked along the first axis. Expert i is
//
//	act(x·W1ᵢ + B1ᵢ)·W2ᵢ + B2ᵢ                      or, with W3,
//	(act(x·W1ᵢ + B1ᵢ) ⊙ (x·W3ᵢ + B3ᵢ))·W2ᵢ + B2ᵢ    (Shazeer, arXiv 2002.05202)
//
// Either all biases are set or none.
type Experts struct {
	W1, W3 *gorgonia.Node // [e, d, f]; W3 may be nil
	W2     *gorgonia.Node // [e, f, o]
	B1, B3 *gorgonia.Node // [e, f]
	B2     *gorgonia.Node // [e, o]
	// Activation is act. The zero value, graph.Neg, is not an activation and selects SiLU.
	Activation graph.UnaryFn
	// Alpha is the parameter of activations that have one.
	Alpha float64
}

// Params lists the weights.
func (e *Experts) Params() gorgonia.Nodes {
	var p gorgonia.Nodes
	for _, w := range e.operands() {
		if w.node != nil {
			p = append(p, w.node)
		}
	}
	return p
}

// operands are the weights in the order of graph.MoE, nil ones too.
func (e *Experts) operands() []operand {
	return []operand{{"w1", e.W1}, {"b1", e.B1}, {"w3", e.W3}, {"b3", e.B3}, {"w2", e.W2}, {"b2", e.B2}}
}

// MoE is a mixture of experts, Σ gates[..., i]·expertᵢ(x) for x [..., d] and gates [..., e]; the result is [..., o]. A
// token whose gate for an expert is exactly zero is not sent to it: the pair costs nothing and has no gradient. If the
// gates are those of a [Routing], the compiler knows how many gates are not zero.
func MoE(x, gates *gorgonia.Node, e Experts) (*gorgonia.Node, error) {
	m := moe{graph.MoE{Activation: e.Activation, Alpha: e.Alpha, Gated: e.W3 != nil, Stacked: true,
		Bias: e.B1 != nil || e.B2 != nil || e.B3 != nil}}
	if m.op.Activation == graph.Neg {
		m.op.Activation = graph.Silu
	}
	if e.W3 == nil && e.B3 != nil {
		return nil, fmt.Errorf("%s: there is a b3 without a w3", m.name())
	}
	if gates != nil {
		if o, ok := gates.Op().(*op); ok {
			if g, ok := o.def.(gating); ok && !g.o.ExpertChoice {
				m.op.TopK = g.o.K
			}
		}
		if s := gates.Shape(); len(s) > 0 {
			m.op.Experts = s[len(s)-1]
		}
	}
	operands := []operand{{"x", x}, {"gates", gates}}
	weights := e.operands()
	for _, w := range m.op.Weights() {
		operands = append(operands, weights[w])
	}
	return apply(m, operands...)
}

type moe struct{ op graph.MoE }

func (d moe) name() string {
	if d.op.TopK > 0 {
		return fmt.Sprintf("MoE(top %d of %d)", d.op.TopK, d.op.Experts)
	}
	return fmt.Sprintf("MoE(%d)", d.op.Experts)
}

func (d moe) build(b *graph.Builder, args []*graph.Node) *graph.Node { return b.Add(d.op, args...) }

// MoEOptions are the options of [NewMoE].
type MoEOptions struct {
	// Route are the options of the router.
	Route RouteOptions
	// NoiseSeed, if not nil, is the seed of noise on the router's logits in training; see [Router].
	NoiseSeed *gorgonia.Node
	// Plain makes experts without W3, and Bias with biases.
	Plain, Bias bool
	// Activation and Alpha are those of the experts.
	Activation graph.UnaryFn
	Alpha      float64
}

// MixtureOfExperts is a layer of experts with its router. Its fields may be changed before it is used.
type MixtureOfExperts struct {
	Router  Router
	Experts Experts
}

// NewMoE makes the weights of a layer whose experts map dim features to dim through hidden ones, as nodes of g whose
// names begin with name: matrices by Glorot and Bengio's uniform initialisation for each expert; biases, and the
// router's noise, of 0.
func NewMoE(g *gorgonia.ExprGraph, of tensor.Dtype, name string, dim, experts, hidden int, o MoEOptions) (
	*MixtureOfExperts, error) {
	err := wantWeights(g, of)
	switch {
	case err != nil:
	case dim < 1 || experts < 1 || hidden < 1:
		err = fmt.Errorf("%d features, %d experts, %d hidden features", dim, experts, hidden)
	case o.Route.K < 1 || o.Route.K > experts:
		err = fmt.Errorf("%d experts for each token, of %d", o.Route.K, experts)
	}
	if err != nil {
		return nil, fmt.Errorf("MoE %s: %w", name, err)
	}
	weight := func(what string, init gorgonia.InitWFn, shape ...int) *gorgonia.Node {
		return gorgonia.NewTensor(g, of, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name+"."+what),
			gorgonia.WithInit(init))
	}
	matrices := func(what string, in, out int) *gorgonia.Node {
		limit := math.Sqrt(6 / float64(in+out))
		return weight(what, gorgonia.Uniform(-limit, limit), experts, in, out)
	}
	m := &MixtureOfExperts{Experts: Experts{Activation: o.Activation, Alpha: o.Alpha}}
	m.Router = Router{W: weight("router", gorgonia.GlorotU(1), dim, experts), Options: o.Route}
	if o.NoiseSeed != nil {
		m.Router.Noise, m.Router.Seed = weight("noise", gorgonia.Zeroes(), dim, experts), o.NoiseSeed
	}
	e := &m.Experts
	e.W1, e.W2 = matrices("w1", dim, hidden), matrices("w2", hidden, dim)
	if !o.Plain {
		e.W3 = matrices("w3", dim, hidden)
	}
	if o.Bias {
		e.B1, e.B2 = weight("b1", gorgonia.Zeroes(), experts, hidden), weight("b2", gorgonia.Zeroes(), experts, dim)
		if !o.Plain {
			e.B3 = weight("b3", gorgonia.Zeroes(), experts, hidden)
		}
	}
	return m, nil
}

// Params lists the weights, as solvers and gorgonia.Grad take them.
func (m *MixtureOfExperts) Params() gorgonia.Nodes {
	return append(m.Router.Params(), m.Experts.Params()...)
}

// Forward routes the tokens x [..., dim] and returns the weighted sum of the experts' results, [..., dim].
func (m *MixtureOfExperts) Forward(x *gorgonia.Node) (*gorgonia.Node, *Routing, error) {
	r, err := m.Router.Forward(x)
	if err != nil {
		return nil, nil, err
	}
	y, err := MoE(x, r.Gates, m.Experts)
	return y, r, err
}
