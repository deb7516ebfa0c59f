package runner

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/memlimit"
	"fusec/kernels/ref"
	"fusec/lowering"
)

// runAgainst is how far a run departs from the reference.
type runAgainst struct {
	Reference string      `json:"reference"`
	Launches  []departure `json:"launches"` // each computed from the operands that it read
	Outputs   []departure `json:"outputs"`  // computed from the model as it is written
}

// departure is the worst element of a launch's results, or of an output.
type departure struct {
	Index    int        `json:"index"` // of the launch or output, from 1
	Kind     string     `json:"kind"`  // of the launch, or output
	Name     string     `json:"name,omitempty"`
	Elements int        `json:"elements"`
	Off      int        `json:"off"`   // elements out of bounds
	Worst    cli.Number `json:"worst"` // the largest difference, in units of its bound
	At       []int      `json:"at"`    // the element of which this is so
	Got      cli.Number `json:"got"`
	Want     cli.Number `json:"want"`
	Bound    cli.Number `json:"bound"` // by how much the two may differ
}

// wanted computes the outputs of a model as it is written. Where the program uses an algorithm with a bound of its own, outputs
// may depart by what that makes of them, too.
func wanted(g *graph.Graph, p *fusec.Program, vals *modelio.Values) (map[string]ref.Value, error) {
	elems := int64(0)
	for _, n := range g.Nodes {
		elems += int64(n.Type.Shape.Elems())
	}
	if err := memlimit.Check(16 * elems); err != nil { // a value and its bound, both in float64
		return nil, fmt.Errorf("the reference keeps every value of the model: %w", err)
	}
	in := maps.Clone(vals.Weights)
	if in == nil {
		in = map[string]*graph.Tensor{}
	}
	maps.Copy(in, vals.Inputs)
	want, _, err := ref.EvalBound(g, in)
	if err != nil || !slices.ContainsFunc(p.Lowered().Launches, func(l lowering.Launch) bool { return l.Algorithm() != "" }) {
		return want, err
	}
	stages := p.Trace().Stages
	compiled, _, err := ref.EvalBound(stages[len(stages)-1].Graph, in)
	if err != nil {
		return nil, err
	}
	for name, v := range want {
		for i, mag := range compiled[name].Mag {
			v.Mag[i] = max(v.Mag[i], mag)
		}
	}
	return want, nil
}

// against compares the last run of a program with the reference.
func against(reference string, p *fusec.Program, want map[string]ref.Value) (*runAgainst, error) {
	r := &runAgainst{Reference: reference, Launches: []departure{}, Outputs: []departure{}}
	for i, d := range p.Departures() {
		f := p.Fusions()[i]
		r.Launches = append(r.Launches, departs(d, i, f.Kind, f.Name))
	}
	for i, o := range p.Lowered().Outputs {
		w, written := want[o.Name]
		if !written { // a gradient that is made, or the optimiser's: compared launch by launch
			continue
		}
		t, err := p.Output(o.Name)
		if err != nil {
			return nil, err
		}
		d, err := ref.Compare(t, w)
		if err != nil {
			return nil, fmt.Errorf("output %q: %w", o.Name, err)
		}
		r.Outputs = append(r.Outputs, departs(d, i, "output", o.Name))
	}
	return r, nil
}

func departs(d ref.Departure, index int, kind, name string) departure {
	return departure{Index: index + 1, Kind: kind, Name: name, Elements: d.Elements, Off: d.Off, Worst: cli.Number(d.Worst),
		At: slices.Concat([]int{}, d.Index), Got: cli.Number(d.Got), Want: cli.Number(d.Want), Bound: cli.Number(d.Bound)}
}

// off lists what is out of bounds.
func off(all []departure) []departure {
	return slices.DeleteFunc(slices.Clone(all), func(d departure) bool { return d.Off == 0 })
}

// err is the error of a run that departs.
func (r *runAgainst) err() error {
	if l, o := len(off(r.Launches)), len(off(r.Outputs)); l+o > 0 {
		return fmt.Errorf("%s and %s depart from the reference by more than the bound", cli.Plural(l, "launch", "launches"),
			cli.Plural(o, "output", "outputs"))
	}
	return nil
}

// text prints the comparison for people.
func (r *runAgainst) text() string {
	var b strings.Builder
	all := append(slices.Clone(r.Launches), r.Outputs...)
	bad := off(all)
	fmt.Fprintf(&b, "compared with the reference: %s and %s, ", cli.Plural(len(r.Launches), "launch", "launches"),
		cli.Plural(len(r.Outputs), "output", "outputs"))
	if len(bad) == 0 {
		worst := slices.MaxFunc(append(all, departure{}), func(a, b departure) int { return cmp.Compare(a.Worst, b.Worst) })
		b.WriteString("all within the bound")
		if worst.Worst > 0 {
			what := "launch"
			if worst.Kind == "output" {
				what = "output"
			}
			fmt.Fprintf(&b, "; %s %d comes nearest, at %.2g of it", what, worst.Index, float64(worst.Worst))
		}
		return b.String() + "\n"
	}
	const most = 20
	b.WriteString("out of bounds:\n\n")
	t := cli.NewTable(">#", "kind", "name", ">elements off", ">worst ÷ bound", "at", ">is", ">reference")
	for _, d := range bad[:min(len(bad), most)] {
		times := "∞"
		if !math.IsInf(float64(d.Worst), 1) {
			times = fmt.Sprintf("%.3g", float64(d.Worst))
		}
		t.Row(fmt.Sprint(d.Index), d.Kind, d.Name, fmt.Sprintf("%d of %d", d.Off, d.Elements), times, fmt.Sprint(d.At),
			fmt.Sprintf("%.7g", float64(d.Got)), fmt.Sprintf("%.9g", float64(d.Want)))
	}
	b.WriteString(t.String())
	if n := len(bad) - most; n > 0 {
		fmt.Fprintf(&b, "and %d more; --json lists all\n", n)
	}
	return b.String()
}
