package nn

import (
	"errors"
	"fmt"
	"math"

	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// Gate says how gates are computed from a router's logits.
type Gate uint8

const (
	// GateOfAll is the softmax over all experts, of which the chosen entries are kept unchanged (Fedus et al., arXiv
	// 2101.03961). It passes a gradient to the router even if each token has one expert.
	GateOfAll Gate = iota
	// GateOfChosen is the softmax over the experts that were chosen (Shazeer et al., arXiv 1701.06538). That is the
	// softmax over all divided by its sum over the chosen ones; choices that a capacity drops count in it, so that the
	// gates of a token that lost an expert add up to less than 1 (Lepikhin et al., arXiv 2006.16668).
	GateOfChosen
)

// RouteOptions are the options of [Route].
type RouteOptions struct {
	// K is the number of experts that each token chooses: those with its highest scores, the first of equal ones. With
	// ExpertChoice and Capacity 1 it is the mean number of experts of a token.
	K int
	// Capacity c > 0 lets each of e experts take at most ⌈c·K·t/e⌉ of t tokens: first the tokens whose first choice it
	// is, then those whose second choice it is, and so on, each in order of the tokens. Further choices are dropped. 0
	// drops none.
	Capacity float64
	// ExpertChoice lets the experts choose: each takes the ⌈c·K·t/e⌉ tokens, with c = 1 where Capacity is 0, for which
	// its share in the token's softmax is highest (Zhou et al., arXiv 2202.09368).
	ExpertChoice bool
	// Gate is how the gates are made.
	Gate Gate
}

// Routing is the assignment of tokens to experts, with their weights. Its methods make nodes for further values, which
// are computed only if the methods are called.
type Routing struct {
	// Logits are the routed logits, [..., e].
	Logits *gorgonia.Node
	// Gates [..., e] are zero where a token is not sent to an expert. See [MoE].
	Gates *gorgonia.Node

	options RouteOptions
}

// Route assigns tokens to experts by logits [..., e] of each token for each of e experts. Choices pass no gradient;
// gates pass it to the logits.
func Route(logits *gorgonia.Node, o RouteOptions) (*Routing, error) {
	gates, err := apply(gating{o}, operand{"logits", logits})
	if err != nil {
		return nil, err
	}
	return &Routing{Logits: logits, Gates: gates, options: o}, nil
}

// LoadBalance is e·Σ fᵢ·pᵢ, a scalar: fᵢ is the share of expert i in all choices, before any are dropped, and pᵢ the
// mean of its softmax over the tokens (Fedus et al., arXiv 2101.03961, where a token has one choice). It is 1 if all
// experts are used equally, as always with ExpertChoice, and e if one of them gets everything. It is added to the cost
// with a factor of about 0.01.
func (r *Routing) LoadBalance() (*gorgonia.Node, error) { return r.value(loadBalance{r.options}) }

// ZLoss is the mean over the tokens of the square of log Σ exp(logits), a scalar that keeps logits small (Zoph et al.,
// arXiv 2202.08906). It is added to the cost with a factor of about 0.001.
func (r *Routing) ZLoss() (*gorgonia.Node, error) { return r.value(zLoss{}) }

// Load is the number of tokens [e] that go to each expert, as ints.
func (r *Routing) Load() (*gorgonia.Node, error) { return r.value(load{r.options}) }

// Dropped is the number of choices that capacities dropped, a scalar int; with ExpertChoice it is the number of tokens
// that no expert took.
func (r *Routing) Dropped() (*gorgonia.Node, error) { return r.value(dropped{r.options}) }

func (r *Routing) value(d definition) (*gorgonia.Node, error) {
	return apply(d, operand{"logits", r.Logits})
}

// routed has the values from which definitions of a routing are built.
type routed struct {
	logits           *graph.Node // [t, e]
	tokens, experts  int
	choices          int         // in total, if no score is −Inf
	softmax          *graph.Node // over the experts
	chosen           *graph.Node // Bools [t, e]
	sent             *graph.Node // the same without dropped choices
	droppedByExperts *graph.Node // [e]
}

// route builds the values of a routing, and sets b.Err if it cannot. Unused values are removed, and equal values of
// several nodes of one routing are merged, when the graph is simplified.
func (o RouteOptions) route(b *graph.Builder, logits *graph.Node) routed {
	s := logits.Type.Shape
	if err := o.check(logits); err != nil {
		b.Fail(fmt.Errorf("%s of type %v: %w", logits.Where(), logits.Type, err))
		return routed{}
	}
	e := s.At(s.Rank() - 1)
	t := s.Elems() / e
	r := routed{tokens: t, experts: e, choices: t * o.K, logits: b.Reshape(logits, t, e)}
	r.softmax = b.Add(graph.Softmax{Axis: 1}, r.logits)
	if o.ExpertChoice {
		c := o.capacity(t, e)
		r.choices = e * min(c, t)
		r.sent = b.Add(graph.Route{Capacity: c, ExpertChoice: true}, r.softmax)
		r.chosen = r.sent
	} else {
		r.chosen = b.Add(graph.Route{K: o.K}, r.logits)
		r.sent = r.chosen
		if o.Capacity > 0 {
			r.sent = b.Add(graph.Route{K: o.K, Capacity: o.capacity(t, e)}, r.logits)
		}
	}
	r.droppedByExperts = b.Add(graph.Result{Index: 1}, r.sent)
	return r
}

// check refuses logits and options that cannot be routed.
func (o RouteOptions) check(logits *graph.Node) error {
	s := logits.Type.Shape
	switch {
	case !logits.Type.DType.IsFloat() || s.Rank() == 0 || s.Elems() == 0:
		return errors.New("want floats [..., e] of one token and one expert or more")
	case o.K < 1 || o.K > s.At(s.Rank()-1):
		return fmt.Errorf("%d experts for each token, of %d", o.K, s.At(s.Rank()-1))
	case !(o.Capacity >= 0) || math.IsInf(o.Capacity, 1):
		return fmt.Errorf("the capacity %v is not a factor", o.Capacity)
	case o.Gate > GateOfChosen:
		return fmt.Errorf("gate %d is not known", o.Gate)
	}
	return nil
}

// capacity is the largest number of tokens, of t, that each of e experts takes. It is at most t.
func (o RouteOptions) capacity(t, e int) int {
	c := o.Capacity
	if c == 0 {
		c = 1
	}
	return int(min(math.Ceil(c*float64(o.K)*float64(t)/float64(e)), float64(t)))
}

func (o RouteOptions) String() string {
	s := fmt.Sprintf("top %d", o.K)
	if o.ExpertChoice {
		s = "choice by experts"
	}
	if o.Capacity > 0 {
		s += fmt.Sprintf(", capacity %v", o.Capacity)
	}
	if o.Gate == GateOfChosen {
		s += ", of the chosen"
	}
	return s
}

type gating struct{ o RouteOptions }

func (d gating) name() string { return fmt.Sprintf("Gates(%v)", d.o) }

func (d gating) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	r := d.o.route(b, args[0])
	if b.Err() != nil {
		return nil
	}
	gates, dtype := r.softmax, args[0].Type.DType
	if d.o.Gate == GateOfChosen {
		low := b.Scalar(dtype, math.Inf(-1))
		gates = b.Add(graph.Softmax{Axis: 1}, b.Add(graph.Select{}, r.chosen, r.logits, low))
	}
	if d.o.Gate != GateOfChosen || r.sent != r.chosen {
		gates = b.Add(graph.Select{}, r.sent, gates, b.Scalar(dtype, 0))
	}
	return b.Reshape(gates, args[0].Type.Shape.Slice()...)
}

type loadBalance struct{ o RouteOptions }

func (d loadBalance) name() string { return fmt.Sprintf("LoadBalance(%v)", d.o) }

func (d loadBalance) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	r := d.o.route(b, args[0])
	if b.Err() != nil {
		return nil
	}
	dtype := args[0].Type.DType
	count := b.Reduce(graph.Sum, b.Add(graph.Cast{To: dtype}, r.chosen), false, 0)
	p := b.Reduce(graph.Sum, r.softmax, false, 0)
	factor := float64(r.experts) / (float64(r.choices) * float64(r.tokens))
	return b.BinaryScalar(graph.Mul, b.Reduce(graph.Sum, b.Binary(graph.Mul, count, p), false, 0), factor)
}

type zLoss struct{}

func (zLoss) name() string { return "ZLoss" }

func (zLoss) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	x := args[0]
	low, by := shifted(b, x)
	last := x.Type.Shape.Rank() - 1
	z := b.Binary(graph.Add, b.Unary(graph.Log, b.Reduce(graph.Sum, b.Unary(graph.Exp, low), false, last)), by)
	axes := make([]int, last)
	for i := range axes {
		axes[i] = i
	}
	return b.Reduce(graph.Mean, b.Unary(graph.Square, z), false, axes...)
}

type load struct{ o RouteOptions }

func (d load) name() string { return fmt.Sprintf("Load(%v)", d.o) }

func (d load) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	r := d.o.route(b, args[0])
	if b.Err() != nil {
		return nil
	}
	return b.Reduce(graph.Sum, b.Add(graph.Cast{To: graph.I64}, r.sent), false, 0)
}

type dropped struct{ o RouteOptions }

func (d dropped) name() string { return fmt.Sprintf("Dropped(%v)", d.o) }

func (d dropped) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	r := d.o.route(b, args[0])
	if b.Err() != nil {
		return nil
	}
	return b.Reduce(graph.Sum, r.droppedByExperts, false, 0)
}
