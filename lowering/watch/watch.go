// Package watch looks at what every launch of a run makes: for values that are not finite, and for differences from the
// reference, package kernels/ref.
package watch

import (
	"fmt"
	"math"
	"slices"
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
	Shadow     *Shadow // or nil
	// Rounding is by how much the target rounds the f32 operands of contractions by itself, relative to them.
	Rounding float64
	// Integers is [lowering.Executable.Rounded] of the executable, for Shadow, or nil.
	Integers func(buffer int) (step, lo, hi float64)

	next int // index of the launch that is checked next
}

// Check looks at what a launch has made; see [lowering.Executable].
func (w *Watcher) Check(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
	if l == &w.Program.Launches[0] {
		w.next, w.Departures = 0, nil
	}
	for &w.Program.Launches[w.next] != l { // one whose operands the target keeps to itself
		if w.next++; w.Compare {
			w.Departures = append(w.Departures, ref.Departure{})
		}
	}
	w.next++
	if w.Compare {
		d, _, err := w.departure(l, value, false)
		if err != nil {
			return err
		}
		w.Departures = append(w.Departures, d)
	}
	if w.Shadow != nil {
		if err := w.shadow(w.next-1, l, value); err != nil {
			return err
		}
	}
	if w.NonFinite {
		return w.findNonFinite(l, value)
	}
	return nil
}

// departure has the reference compute a launch again. It returns by how much the results depart, and the operands.
// Operations of the user's run once, and are not compared: there are no operands then.
//
// With integers set, the bound is that of the integers that the target computes in. It rounds the operands and the
// results of its launches to multiples of a step, in a range outside of which it saturates. A launch may then depart by
// what comes of operands that are off by a step, twice what rounding does, since values inside of a launch are rounded,
// too; and by a step of the result. Where the step is not known, as of weights, which have several, it is the one of the
// largest number.
func (w *Watcher) departure(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error),
	integers bool) (worst ref.Departure, args []*graph.Tensor, err error) {
	if _, ok := l.Op.(graph.Host); ok {
		return worst, nil, nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("comparing %s with the reference: %w", l.Node.Where(), err)
		}
	}()
	args = make([]*graph.Tensor, len(l.Args))
	values := make([]ref.Value, len(l.Args))
	rounds := w.Rounding > 0 && contracts(l.Op)
	for i, v := range l.Args {
		if args[i], err = value(v); err != nil {
			return worst, nil, err
		}
		if values[i] = ref.FromTensor(args[i]); rounds && args[i].Type.DType == graph.F32 {
			values[i].Mag = make([]float64, values[i].Len())
			for j, x := range values[i].F {
				values[i].Mag[j] = math.Abs(x) * w.Rounding / graph.F32.Tolerance()
			}
		}
	}
	integers = integers && w.inIntegers(l)
	if integers {
		for i, v := range l.Args {
			w.widen(&values[i], v.Buffer)
		}
	}
	want, err := ref.OpBound(l.Op, values)
	if err != nil {
		return worst, nil, err
	}
	if integers {
		for i, v := range l.Results {
			w.widen(&want[i], v.Buffer)
		}
	}
	for i, v := range l.Results {
		t, err := value(v)
		if err != nil {
			return worst, nil, err
		}
		d, err := ref.Compare(t, want[i])
		if err != nil {
			return worst, nil, err
		}
		if i == 0 || d.Worst > worst.Worst {
			worst = d
		}
	}
	return worst, args, nil
}

// inIntegers reports whether the target computes a launch in integers.
func (w *Watcher) inIntegers(l *lowering.Launch) bool {
	return w.Integers != nil && l.Device == "" && slices.ContainsFunc(slices.Concat(l.Args, l.Results), func(v lowering.View) bool {
		step, _, _ := w.Integers(v.Buffer)
		return step > 0
	})
}

// widen adds to the bound of a float value what keeping it in integers does to it.
func (w *Watcher) widen(v *ref.Value, buffer int) {
	if !v.Type.DType.IsFloat() {
		return
	}
	step, lo, hi := w.Integers(buffer)
	if step == 0 {
		lo, hi = math.Inf(-1), math.Inf(1)
		for _, x := range v.F {
			step = max(step, math.Abs(x)/127)
		}
	}
	mag := make([]float64, v.Len())
	for i, x := range v.F {
		if mag[i] = math.Abs(x); v.Mag != nil {
			mag[i] = v.Mag[i]
		}
		mag[i] += (step + max(x-hi, lo-x, 0)) / v.Type.DType.Tolerance()
	}
	v.Mag = mag
}

// contracts reports whether a launch has a contraction inside.
func contracts(op graph.Op) bool {
	if f, ok := op.(graph.Fusion); ok {
		for _, n := range f.Body.Nodes {
			if contracts(n.Op) {
				return true
			}
		}
		return false
	}
	anchor, _ := graph.AnchorOf(op)
	return anchor.Contracts() || graph.ClassOf(op) == graph.ClassContraction
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
	return fmt.Sprintf("%s made %s of %s", e.Node, e.Value, of) + standsFor(e.Origin)
}

// standsFor lists the first of the user's nodes that a launch computes, by name.
func standsFor(origin []graph.Origin) string {
	var names []string
	for _, o := range origin {
		if o.Name != "" && len(names) < 4 {
			names = append(names, o.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; it stands for " + strings.Join(names, ", ")
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
