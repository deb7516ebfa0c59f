package graph

import "fmt"

// Phase is the part of a training step to which a node belongs. Every rewrite keeps it: new nodes have the latest phase
// of the nodes from which they are made, a value that two phases compute has the earlier one, and a fusion has the phase
// of its anchor, or the latest of its parts if it has no anchor. A part of the forward pass that is computed again for
// the backward pass belongs to the backward pass.
type Phase uint8

// The phases, in their order in a step.
const (
	Forward   Phase = iota // the model and its cost, and everything that is not part of a later phase
	Backward               // gradients, and what only they are computed from
	Optimiser              // what follows the gradients: clipping, moments, and the new values of parameters
)

var phases = [...]string{"forward", "backward", "optimiser"}

// String gives the phase's name, as the text form has it.
func (p Phase) String() string { return phases[p] }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Phase) UnmarshalText(b []byte) (err error) {
	*p, err = parseEnum(string(b), Phase.String, len(phases))
	return
}

// MarshalText implements encoding.TextMarshaler.
func (p Phase) MarshalText() ([]byte, error) {
	if int(p) >= len(phases) {
		return nil, fmt.Errorf("unknown phase %d", p)
	}
	return []byte(p.String()), nil
}

// GradientOf begins the name of a gradient of a node that has a name.
const GradientOf = "gradient of "

// NameGradient names the gradient d of a node, unless d has a name or the node has none.
func NameGradient(d, of *Node) {
	if d.Name == "" && of.Name != "" && !IsSource(d.Op) && ClassOf(d.Op) != ClassSource {
		d.Name = GradientOf + of.Name
	}
}
