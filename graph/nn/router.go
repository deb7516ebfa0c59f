package nn

import (
	"fmt"

	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// Router scores tokens for experts and routes them.
type Router struct {
	W *gorgonia.Node // [d, e]
	// Noise [d, e], if not nil, adds softplus(x·Noise)·ε to the logits in training, with ε from a standard normal
	// distribution, so that experts with slightly lower scores are tried, too (Shazeer et al., arXiv 1701.06538). ε
	// follows from Seed, as in [Dropout]. In evaluation nothing is added.
	Noise, Seed *gorgonia.Node
	// Options are those of [Route].
	Options RouteOptions
}

// Params lists the weights.
func (r *Router) Params() gorgonia.Nodes {
	if r.Noise == nil {
		return gorgonia.Nodes{r.W}
	}
	return gorgonia.Nodes{r.W, r.Noise}
}

// Forward routes the tokens x [..., d].
func (r *Router) Forward(x *gorgonia.Node) (*Routing, error) {
	var logits *gorgonia.Node
	var err error
	if r.Noise == nil {
		logits, err = Linear(x, r.W, nil)
	} else {
		logits, err = apply(noisy{}, operand{"x", x}, operand{"w", r.W}, operand{"noise", r.Noise},
			operand{"seed", r.Seed})
	}
	if err != nil {
		return nil, fmt.Errorf("Router: %w", err)
	}
	return Route(logits, r.Options)
}

// noisy is the logits of a router; with quiet, without noise.
type noisy struct{ quiet bool }

func (d noisy) name() string {
	if d.quiet {
		return "Logits"
	}
	return "NoisyLogits"
}

func (d noisy) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	logits := linear{}.build(b, args[:2])
	if d.quiet || b.Err() != nil {
		return logits
	}
	size := b.Unary(graph.Softplus, linear{}.build(b, []*graph.Node{args[0], args[2]}))
	if b.Err() != nil {
		return nil
	}
	drawn := b.Add(graph.Random{Dist: graph.Normal, A: 0, B: 1, Type: logits.Type}, args[3])
	return b.Binary(graph.Add, logits, b.Binary(graph.Mul, size, drawn))
}

// still implements modal.
func (noisy) still() definition { return noisy{quiet: true} }
