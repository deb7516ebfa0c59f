// Package watch looks at what every launch of a run makes: for values that are not finite, and for differences from the
// reference, package kernels/ref.
package watch

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"fusec/graph"
	"fusec/kernels/ref"
	"fusec/lowering"
)

// A Watcher looks at what every launch of a program makes.
type Watcher struct {
	Program   *lowering.Program
	NonFinite bool // ends the run with a [NonFiniteError] at the first operation that makes what is not finite
	Compare   bool // computes each launch again by the reference, in float64
	// Departures are by how much the results of each launch of the last run depart from the reference, in launch order; of
	// several results the one that departs most. Nil without Compare.
	Departures []ref.Departure
}

// Check looks at what a launch has made; see [lowering.Executable].
func (w *Watcher) Check(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
	if w.Compare {
		if err := w.compare(l, value); err != nil {
			return fmt.Errorf("comparing %s with the reference: %w", l.Node.Where(), err)
		}
	}
	if w.NonFinite {
		return w.findNonFinite(l, value)
	}
	return nil
}

// compare has the reference compute a launch again. Operations of the user's run once, and are not compared.
func (w *Watcher) compare(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
	if l == &w.Program.Launches[0] {
		w.Departures = nil
	}
	w.Departures = append(w.Departures, ref.Departure{})
	if _, ok := l.Op.(graph.Host); ok {
		return nil
	}
	worst := &w.Departures[len(w.Departures)-1]
	args := make([]ref.Value, len(l.Args))
	for i, v := range l.Args {
		t, err := value(v)
		if err != nil {
			return err
		}
		args[i] = ref.FromTensor(t)
	}
	want, err := ref.OpBound(l.Op, args)
	if err != nil {
		return err
	}
	for i, v := range l.Results {
		t, err := value(v)
		if err != nil {
			return err
		}
		d, err := ref.Compare(t, want[i])
		if err != nil {
			return err
		}
		if i == 0 || d.Worst > worst.Worst {
			*worst = d
		}
	}
	return nil
}

// NonFiniteError tells where a value that is not finite came from.
type NonFiniteError struct {
	Node   string         // the operation, the user's name of it or of what it computes, and, where known, file and line
	Origin []graph.Origin // the user's nodes that it computes
	Value  string         // NaN or Inf
	Source bool           // it is an input, parameter or state that was given with it
}

// Error implements error.
func (e *NonFiniteError) Error() string {
	if e.Source {
		return fmt.Sprintf("%s holds %s", e.Node, e.Value)
	}
	of := "finite operands"
	if e.Value == "NaN" {
		of = "operands without NaN"
	}
	s := fmt.Sprintf("%s made %s of %s", e.Node, e.Value, of)
	var names []string
	for _, o := range e.Origin {
		if o.Name != "" && len(names) < 4 {
			names = append(names, o.Name)
		}
	}
	if len(names) > 0 {
		s += "; its origin: " + strings.Join(names, ", ")
	}
	return s
}

// faults says what a value holds that is not finite.
type faults struct{ nan, inf bool }

func (f faults) or(g faults) faults { return faults{f.nan || g.nan, f.inf || g.inf} }

// madeOf is what an operation makes that its operands did not bring: "NaN", "Inf" or "".
func (f faults) madeOf(operands faults) string {
	switch {
	case f.nan && !operands.nan:
		return "NaN"
	case f.inf && !operands.nan && !operands.inf:
		return "Inf"
	}
	return ""
}

func faultsOf[T float32 | float64](x []T) (f faults) {
	for _, v := range x {
		if v-v != 0 { // neither NaN nor Inf is equal to itself less itself
			f.nan = f.nan || v != v
			f.inf = f.inf || v == v
		}
	}
	return f
}

func faultsIn(t *graph.Tensor) faults {
	switch d := t.Data.(type) {
	case []float32:
		return faultsOf(d)
	case []float64:
		return faultsOf(d)
	}
	return faults{}
}

// findNonFinite ends the run at the first operation that makes what is not finite.
func (w *Watcher) findNonFinite(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
	var made faults
	for i, v := range l.Results {
		t, err := value(v)
		if err != nil {
			return err
		}
		f := faultsIn(t)
		if i > 0 && isAttention(l.Op) {
			f.inf = false // the log-sum-exp of a query with nothing to attend
		}
		made = made.or(f)
	}
	if made == (faults{}) {
		return nil
	}
	args := make([]*graph.Tensor, len(l.Args))
	var had faults
	for i, v := range l.Args {
		var err error
		if args[i], err = value(v); err != nil {
			return err
		}
		f := faultsIn(args[i])
		if b := w.Program.Buffers[v.Buffer]; f.nan && b.Role <= lowering.State {
			return &NonFiniteError{Node: fmt.Sprintf("%s %q", b.Role, b.Name), Value: "NaN", Source: true}
		}
		had = had.or(f)
	}
	what := made.madeOf(had)
	if what == "" {
		return nil
	}
	n, from := l.Node, map[*graph.Node]*graph.Node{}
	if f, ok := l.Op.(graph.Fusion); ok {
		if k, v, inputs := firstFault(f.Body, args); k != nil {
			n, what = k, v
			for i, in := range inputs {
				if i < len(l.Node.Args) {
					from[in] = l.Node.Args[i]
				}
			}
		}
	}
	return &NonFiniteError{Node: n.WhereIn(from), Origin: n.Origin, Value: what}
}

func isAttention(op graph.Op) bool {
	f, ok := op.(graph.Fusion)
	_, bare := op.(graph.Attention)
	return bare || ok && f.Anchor == graph.AnchorAttention
}

// firstFault computes a body with the reference and returns its first node that makes NaN or Inf, and which, or nil if
// rounding between the nodes hides it; and the body's inputs.
func firstFault(body *graph.Graph, args []*graph.Tensor) (made *graph.Node, what string, inputs []*graph.Node) {
	body, _ = body.Clone()
	in := map[string]*graph.Tensor{}
	for _, n := range body.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			n.Name = "operand " + strconv.Itoa(len(in))
			in[n.Name] = args[len(in)]
			inputs = append(inputs, n)
		}
	}
	values, err := ref.Nodes(body, in, false)
	if err != nil {
		return nil, "", nil
	}
	found := map[*graph.Node]faults{}
	for _, n := range body.Nodes {
		f := faultsOf(rounded(values[n][0]))
		var had faults
		for _, a := range n.Args {
			had = had.or(found[a])
		}
		found[n] = f
		if what := f.madeOf(had); what != "" && graph.ClassOf(n.Op) != graph.ClassSource {
			return n, what, inputs
		}
	}
	return nil, "", nil
}

// rounded is a value as its element type holds it: beyond the range of float32 is an infinity.
func rounded(v ref.Value) []float64 {
	if v.Type.DType == graph.F32 {
		for i, x := range v.F {
			if math.Abs(x) > math.MaxFloat32 {
				v.F[i] = math.Copysign(math.Inf(1), x)
			}
		}
	}
	return v.F
}
